"""A run that is played again loses no request and no token, on one replica, several, and disaggregated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.serving.metrics import metrics
from inferometer.serving.outcome import Outcome
from inferometer.serving.replay import MAX_REQUESTS, PHASES, counts_at, replay, replica_samples, token_bins
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic

RUNS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "at once": {"traffic": {"request_rate": float("inf")}},
    "four replicas": {"data_parallel_size": 4},
    "stages": {"pipeline_parallel_size": 2},
    "disaggregated": {"prefill_replicas": 2, "decode_replicas": 1},
    "preempted": {"num_gpu_blocks_override": 120, "traffic": {"request_rate": 100.0, "input_len": 200}},
    "closed loop": {"max_concurrency": 5},
    "too long": {"max_model_len": 900},
}


def served(name: str) -> Outcome:
    options = dict(RUNS[name])
    traffic = {"num_prompts": 60, "request_rate": 30.0, "input_len": "uniform:min=20,max=1500"}
    trace = synthetic(**{**traffic, "output_len": "uniform:min=1,max=60", "seed": 1, **options.pop("traffic", {})})
    return simulate("llama-3.1-8b", "h200", trace=trace, **options)


def phase_of(outcome: Outcome, i: int, now: float) -> str:
    """Where a request is, asked one by one."""
    if not now >= outcome.arrival_s[i]:
        return "not_arrived"
    if i in outcome.rejected:
        return "rejected"
    if now >= outcome.finished_s[i]:
        return "finished"
    if any(start <= now < stop for request, start, stop in outcome.pauses if request == i):
        return "queued"
    first, decode = outcome.first_token_s[i], outcome.first_token_s[i]
    if outcome.hand_over is not None:
        first, decode = outcome.hand_over.prefilled_s[i], outcome.hand_over.decode_s[i]
    if now >= decode:
        return "decode"
    if now >= first:
        return "transfer"
    return "prefill" if now >= outcome.scheduled_s[i] else "queued"


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_lost(name: str) -> None:
    outcome = served(name)
    total, end = len(outcome.arrival_s), float(np.nanmax(outcome.finished_s))
    events = [outcome.arrival_s[:9], outcome.first_token_s[-9:], np.array(outcome.pauses).reshape(-1, 3)[:9, 1:]]
    times = np.concatenate([np.linspace(0, end, 40), *(one.ravel() for one in events if one.size)])
    times = np.unique(times[~np.isnan(times)])
    counts = counts_at(outcome, times)
    assert (np.sum([counts[phase] for phase in PHASES], axis=0) == total).all()
    for place, now in enumerate(times):
        phases = [phase_of(outcome, i, now) for i in range(total)]
        assert {phase: int(counts[phase][place]) for phase in PHASES} == {p: phases.count(p) for p in PHASES}
    bins = token_bins(outcome)
    assert bins.output_tokens.sum() == pytest.approx(metrics(outcome)["total_output_tokens"], rel=1e-12)
    computed = sum(timeline.computed_tokens for timeline in outcome.timelines)
    assert bins.computed_tokens.sum() == pytest.approx(computed, rel=1e-9)
    assert (bins.output_tokens >= 0).all() and (bins.computed_tokens >= -1e-6).all()
    prompts = (outcome.input_tokens - outcome.cached_tokens)[outcome.done].sum()
    assert computed >= prompts and (outcome.preemptions.sum() == 0 or computed > prompts)


def test_what_each_kind_of_run_has() -> None:
    apart = served("disaggregated")
    assert [one.role for one in apart.timelines] == ["prefill", "prefill", "decode"]
    assert apart.hand_over is not None and set(apart.hand_over.prefill_replica) == {0, 1}
    assert counts_at(apart, np.linspace(0, 3, 2000))["transfer"].max() > 0
    several = served("four replicas")
    assert sorted(set(several.replica)) == [0, 1, 2, 3] and len(several.timelines) == 4
    preempted = served("preempted")
    assert len(preempted.pauses) == preempted.preemptions.sum() > 0
    for i, start, stop in preempted.pauses:
        assert preempted.scheduled_s[i] <= start < stop <= preempted.finished_s[i]
    assert served("too long").rejected


def test_a_replica_has_the_seconds_of_its_steps() -> None:
    """Fewer samples are the same tokens and busy seconds, over longer times."""
    timeline = served("poisson").timelines[0]
    every, few = replica_samples(timeline, 10**6), replica_samples(timeline, 10)
    assert len(few["time_s"]) <= 10 < len(every["time_s"]) and few["time_s"][-1] == every["time_s"][-1]
    for one in (every, few):
        tokens = (one["tokens_per_s"] * np.diff(one["time_s"], prepend=0)).sum()
        assert tokens == pytest.approx((every["tokens_per_s"] * np.diff(every["time_s"], prepend=0)).sum())
        assert 1e-3 < np.nanmin(one["step_s"]) <= np.nanmax(one["step_s"]) < 0.1


@pytest.mark.slow
def test_many_requests_are_played_in_part() -> None:
    trace = synthetic(num_prompts=MAX_REQUESTS + 2000, request_rate=200.0, input_len=8, output_len=2)
    played = replay(simulate("llama-3.1-8b", "h200", trace=trace, data_parallel_size=2))
    shares = np.bincount(played["requests"]["replica"]) / MAX_REQUESTS
    assert shares == pytest.approx(
        0.5, abs=0.03
    )  # requests are dealt out in turn, and every second one would be biased
    assert len(played["requests"]["index"]) == MAX_REQUESTS and played["num_requests"] == MAX_REQUESTS + 2000
    assert played["counts"]["finished"][-1] == MAX_REQUESTS + 2000
    assert len(played["replicas"][0]["time_s"]) <= 4000
