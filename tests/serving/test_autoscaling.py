"""Replicas whose number follows the load: laws of queues, the rules of Kubernetes, and what replicas come to."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from inferometer.base.errors import InferometerError
from inferometer.inference.request import build_request
from inferometer.serving.autoscaling import (
    AutoscalingOptions,
    autoscaling_constants,
    hpa,
    parse_autoscaling,
    replica_use,
    replicas_at,
    schedule,
    startup_seconds,
)
from inferometer.serving.deployment import ServingOptions, serve
from inferometer.serving.metrics import good_requests, latencies
from inferometer.serving.outcome import Outcome, ReplicaLife
from inferometer.serving.replica_pool import ReplicaPool, build_pool
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace

MODEL, GPU = "llama-3.1-8b", "l40s"


def steady(rate: float, count: int, seed: int = 0, burstiness: float = 1.0) -> Trace:
    return synthetic(
        num_prompts=count, request_rate=rate, burstiness=burstiness, input_len=400, output_len=60, seed=seed
    )


def stepped(low: float, high: float, before: float, after: float) -> Trace:
    """Evenly spaced requests at one rate, then at another."""
    times = np.concatenate([np.arange(0, before, 1 / low), before + np.arange(0, after, 1 / high)])
    return Trace(
        input_tokens=np.full(len(times), 400), output_tokens=np.full(len(times), 60), arrival_s=times, source="steps"
    )


def pool_for(trace: Trace) -> ReplicaPool:
    return build_pool(build_request(MODEL, GPU, frontend="http"), 1, trace)


def autoscaled(trace: Trace, **options: Any) -> Outcome:
    autoscaling = AutoscalingOptions(**options)
    return serve(trace, [("both", pool_for(trace))], ServingOptions(autoscale=autoscaling))


# ------------------------------------------------------------------ the simulation


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_number_that_never_changes_is_that_many_replicas(replicas: int) -> None:
    """To the last digit: periods only cut the simulation into pieces."""
    trace = steady(6.0 * replicas, 400)
    fixed = serve(trace, [("both", pool_for(trace)._replace(replicas=replicas))], ServingOptions())
    outcome = autoscaled(trace, policy="schedule", schedule=((0.0, replicas),), initial=replicas, startup=30.0)
    for name in ("scheduled_s", "first_token_s", "finished_s", "replica"):
        np.testing.assert_allclose(getattr(outcome, name), getattr(fixed, name), atol=1e-9)
    assert len(outcome.lives) == replicas and outcome.steps == fixed.steps


def test_replicas_come_late_drain_and_lose_nothing() -> None:
    """One replica for 60 s, three until 120 s, then one again: by hand, with 20 s to start."""
    trace = stepped(4.0, 4.0, 100.0, 100.0)
    outcome = autoscaled(
        trace, policy="schedule", schedule=((0.0, 1), (60.0, 3), (120.0, 1)), initial=1, startup=20.0, period=10.0
    )
    assert outcome.done.all() and len(outcome.lives) == 3
    always, *others = outcome.lives
    assert always == ReplicaLife(0.0, 0.0, inf, inf)
    for life in others:  # launched so that they serve when they are needed, and a period later at the most
        assert life.launched_s == 40.0 and life.ready_s == 60.0 and life.drained_s == 120.0
        assert 120.0 <= life.ended_s < 130.0  # its last requests take some seconds
    use = replica_use(outcome.lives, 0.0, 200.0)
    held = sum(life.ended_s - life.launched_s for life in others)
    assert use.hours == pytest.approx((200.0 + held) / 3600) and use.peak == 3
    assert dict(zip(use.times.tolist(), use.serving.tolist(), strict=True)) == {0.0: 1, 60.0: 3, 120.0: 1}
    by_replica = [outcome.arrival_s[outcome.replica == n] for n in range(3)]
    assert all(times.min() >= 60.0 and times.max() < 120.0 for times in by_replica[1:])


def test_without_a_start_up_time_and_in_short_windows_hours_are_those_that_are_needed() -> None:
    """Windows of 5 s: only what replicas still have to finish is beyond the schedule."""
    needed = [1, 2, 4, 3, 2, 1, 2, 1]
    trace = stepped(6.0, 6.0, 20.0, 20.0)
    steps = tuple((5.0 * number, count) for number, count in enumerate(needed))
    outcome = autoscaled(trace, policy="schedule", schedule=steps, initial=1, startup=0.0, period=5.0)
    span = float(outcome.arrival_s.max())
    use = replica_use(outcome.lives, 0.0, span)
    bound = sum(needed[:-1]) * 5.0 + needed[-1] * (span - 35.0)
    drained = sum(min(life.ended_s, span) - life.drained_s for life in outcome.lives if life.drained_s < span)
    assert use.hours * 3600 == pytest.approx(bound + drained) and 0 < drained < 0.5 * bound
    assert use.serving.tolist() == needed


@pytest.mark.slow
def test_a_steady_load_settles_at_what_littles_law_says() -> None:
    """L = λ·W requests are in flight; at a target of L/3.5 each, four replicas hold them, within the tolerance."""
    trace = steady(12.0, 6000, burstiness=50.0)
    wide = autoscaled(trace, policy="schedule", schedule=((0.0, 4),), initial=4)
    in_flight = 12.0 * float(np.mean(wide.finished_s - wide.arrival_s))
    outcome = autoscaled(trace, target=in_flight / 3.5, startup=20.0, initial=4)
    use = replica_use(outcome.lives, 0.0, 500.0)
    late = use.serving[use.times > 100.0] if (use.times > 100.0).any() else use.serving[-1:]
    assert set(late.tolist()) <= {4} and outcome.done.all()


@pytest.mark.slow
def test_the_queue_while_a_replica_starts_grows_as_a_fluid() -> None:
    """Twice what one replica carries comes in: until the second serves, (λ - μ)·t requests pile up."""
    at_once = msgspec.structs.replace(steady(1.0, 1500), arrival_s=np.zeros(1500))
    alone = serve(at_once, [("both", pool_for(at_once))], ServingOptions())
    capacity = 1500 / alone.duration_s
    trace = stepped(0.2 * capacity, 2 * capacity, 30.0, 180.0)
    startup, period = 60.0, 15.0
    outcome = autoscaled(trace, target=60.0, startup=startup, period=period, max=4)
    second = outcome.lives[1]
    assert 30.0 < second.launched_s <= 30.0 + 2 * period and second.ready_s == second.launched_s + startup
    now = second.ready_s
    queue = int(((outcome.arrival_s <= now) & (outcome.finished_s > now)).sum())
    assert queue == pytest.approx((2 * capacity - capacity) * (now - 30.0), rel=0.2)


@pytest.mark.slow
def test_a_longer_start_never_helps() -> None:
    trace = stepped(2.0, 40.0, 120.0, 400.0)
    shares = []
    for startup in (0.0, 60.0, 240.0):
        outcome = autoscaled(trace, target=12.0, startup=startup, max=6)
        shares.append(float(good_requests(latencies(outcome), {"ttft": 1000.0}).mean()))
    assert shares[0] > shares[1] > shares[2]


def test_the_keyword_of_simulate() -> None:
    trace = stepped(2.0, 30.0, 60.0, 120.0)
    outcome = simulate(MODEL, GPU, trace=trace, autoscale="target=10,startup=20,max=3")
    assert outcome.done.all() and replica_use(outcome.lives, 0.0, 180.0).peak == 3
    assert (outcome.series["busy"] <= 1).all() and (outcome.series["kv_used"] <= 1).all()
    weights = 16.06e9
    start = autoscaling_constants().startup
    assert startup_seconds(pool_for(trace).bound_plan) == pytest.approx(
        start.engine + weights / start.load_bandwidth, rel=0.01
    )


# ------------------------------------------------------------------ policies


def state(current: int, unfinished: int, target: float = 10.0, **more: Any) -> Any:
    return SimpleNamespace(
        hpa=autoscaling_constants().hpa,
        options=AutoscalingOptions(target=target, **more),
        current=current,
        num_unfinished=unfinished,
        recommendations=[],
        startup=20.0,
        period=15.0,
    )


@pytest.mark.parametrize(
    ("current", "unfinished", "desired"),
    [
        (2, 35, 4),  # ⌈35/10⌉
        (4, 43, 4),  # 7% above the target: within the tolerance
        (4, 45, 5),  # 12% above
        (1, 300, 5),  # four more at a time …
        (10, 900, 20),  # … or twice as many
    ],
)
def test_hpa_goes_up_as_kubernetes_does(current: int, unfinished: int, desired: int) -> None:
    assert hpa(state(current, unfinished), 0.0) == desired


def test_hpa_goes_down_after_five_quiet_minutes() -> None:
    autoscaler = state(8, 80)
    assert hpa(autoscaler, 0.0) == 8
    autoscaler.num_unfinished = 12
    for now in np.arange(15.0, 300.0, 15.0):
        assert hpa(autoscaler, float(now)) == 8
    assert hpa(autoscaler, 300.0) == 2


def test_a_schedule_looks_one_start_ahead() -> None:
    autoscaler = state(1, 0, schedule=((0.0, 1), (100.0, 4), (200.0, 2)))
    assert [schedule(autoscaler, now) for now in (0.0, 60.0, 66.0, 150.0, 200.0, 999.0)] == [1, 1, 4, 4, 2, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("target", "takes pairs such as target=24"),
        ("tarjet=3", "did you mean target"),
        ("target=no", "`autoscale` target must be from 0.001"),
        ("min=4,max=2", "min=4 is above max=2"),
        ("max=2.5", "max must be a whole number"),
        ("policy=schedule", "hpa"),
        (7, "takes pairs such as"),
    ],
)
def test_what_is_wrong_is_one_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        parse_autoscaling(given)
    assert sentence.replace("`", "") in str(error.value).replace("`", "")


def test_what_is_right() -> None:
    options = parse_autoscaling("target=24, startup=90,min=2,max=8")
    assert (options.target, options.startup, options.min, options.max) == (24.0, 90.0, 2, 8)
    assert parse_autoscaling({"target": 24}) == AutoscalingOptions(target=24.0)
    assert parse_autoscaling(options) is options


def test_autoscaling_needs_arrivals_a_target_and_one_pool() -> None:
    trace = steady(5.0, 20)
    none = msgspec.structs.replace(trace, arrival_s=None)
    for kwargs, sentence in (
        ({"trace": trace, "autoscale": "max=2"}, "needs target="),
        ({"trace": none, "autoscale": "target=2"}, "a trace with arrivals"),
        ({"trace": trace, "autoscale": "target=2", "router": "least_loaded"}, "round_robin"),
        ({"trace": trace, "autoscale": "target=2", "prefill_replicas": 1, "decode_replicas": 1}, "one aggregated pool"),
    ):
        with pytest.raises(InferometerError, match=sentence):
            simulate(MODEL, GPU, **kwargs)  # type: ignore[arg-type]


def test_use_by_hand() -> None:
    lives = (
        ReplicaLife(0.0, 0.0, inf, inf),
        ReplicaLife(100.0, 160.0, 400.0, 430.0),
        ReplicaLife(200.0, inf, 215.0, 215.0),
    )
    use = replica_use(lives, 0.0, 3600.0)
    assert use.hours == pytest.approx((3600 + 330 + 15) / 3600) and use.peak == 2
    assert use.times.tolist() == [0.0, 160.0, 400.0] and use.serving.tolist() == [1, 2, 1]
    assert replicas_at(lives, np.array([50.0, 200.0, 420.0, 431.0])).tolist() == [1, 2, 2, 1]
