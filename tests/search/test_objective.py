"""Traffic of a search: a trace at its own rate, at another, or at the highest; which of its requests are simulated."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from inferometer.base.errors import InferometerError
from inferometer.search.objective import Objective, build_traffic
from inferometer.search.plan_table import slo_ratio
from inferometer.serving.steady_run import TRACE_REQUESTS, RequestSupply, stretches
from inferometer.serving.trace import Trace


def bursts(count: int = 100, seed: int = 0) -> Trace:
    """Requests at one a second in bursts of ten, numbered by their prompts."""
    times = np.repeat(np.arange(count // 10) * 10.0, 10)
    return Trace(input_tokens=np.arange(count) + 10, output_tokens=np.full(count, 5), arrival_s=times)


def test_a_rate_stretches_the_arrivals() -> None:
    own = build_traffic(trace=bursts())
    assert own.request_rate == pytest.approx(99 / 90) and own.stretch is None
    slow = build_traffic(trace=bursts(), request_rate="0.55")
    assert slow.request_rate == 0.55 and slow.stretch == pytest.approx(2.0)
    highest = build_traffic(trace=bursts(), request_rate="max")
    assert highest.request_rate is None and highest.trace is not None
    drawn = build_traffic(trace=bursts(), request_rate=2.0, burstiness=1.0)
    assert drawn.stretch is None and drawn.trace is not None and drawn.trace.arrival_s is not None
    assert (np.diff(drawn.trace.arrival_s) > 0).all()


@pytest.mark.parametrize("rate", ["most", -1.0, 0, True, "inf"])
def test_a_rate_is_a_number_or_max(rate: object) -> None:
    with pytest.raises(InferometerError, match="or max to find the highest"):
        build_traffic(trace=bursts(), request_rate=rate)  # type: ignore[arg-type]


def test_one_replica_gets_every_nth_request_of_a_burst() -> None:
    """Two replicas at twice the rate: each has five of every burst of ten, and the bursts come twice as fast."""
    part = build_traffic(trace=bursts(), request_rate="max").requests(50, 99 / 90, 2)
    assert part.input_tokens.tolist() == list(range(10, 110, 2))
    assert part.arrival_s == pytest.approx(np.repeat(np.arange(10) * 5.0, 5))


def test_a_long_trace_is_taken_in_stretches() -> None:
    assert stretches(10, 10).tolist() == list(range(10))
    trace = bursts(10 * TRACE_REQUESTS)
    kept = RequestSupply(trace=trace).requests(TRACE_REQUESTS, 1.0)
    assert len(kept) == TRACE_REQUESTS
    assert kept.input_tokens[0] == trace.input_tokens[0] and kept.input_tokens[-1] == trace.input_tokens[-1]
    jumps = np.flatnonzero(np.diff(kept.input_tokens) > 1)
    assert len(jumps) == 4  # five stretches, as they lie in the trace
    assert kept.arrival_s is not None and 0 <= np.diff(kept.arrival_s).min() <= np.diff(kept.arrival_s).max() <= 10.1
    assert TRACE_REQUESTS / np.ptp(kept.arrival_s) == pytest.approx(1.0, rel=0.02)


def test_requests_come_by_time() -> None:
    trace = bursts()
    assert trace.arrival_s is not None
    order = np.random.default_rng(0).permutation(100)
    mixed = Trace(
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens,
        arrival_s=trace.arrival_s[order],
        blocks=tuple(np.array([int(i)]) for i in order),
    )
    ordered = RequestSupply(trace=mixed).requests(100, 99 / 90)
    assert ordered.arrival_s is not None and ordered.arrival_s == pytest.approx(trace.arrival_s)
    assert ordered.blocks is not None
    assert [int(ids[0]) for ids in ordered.blocks] == (ordered.input_tokens - 10).tolist()


def test_a_trace_goes_on_for_as_long_as_it_takes() -> None:
    """Bursts stay bursts in every pass; only what many prompts share is found in the cache again."""
    trace = bursts(20)
    shared = np.array([0, 1])
    blocks = tuple(shared if i % 2 else np.array([0, 100 + i]) for i in range(20))
    trace = Trace(
        input_tokens=trace.input_tokens, output_tokens=trace.output_tokens, arrival_s=trace.arrival_s, blocks=blocks
    )
    many = RequestSupply(trace=trace).requests(60, 19 / 10, lead=20)
    assert many.input_tokens.tolist() == 3 * trace.input_tokens.tolist()
    assert many.arrival_s is not None and many.blocks is not None
    assert (np.diff(many.arrival_s).reshape(-1)[:9] == 0).all() and many.arrival_s[20] > many.arrival_s[19]
    assert [ids[0] for ids in many.blocks] == [0] * 60, "the common prefix stays"
    assert len({int(many.blocks[i][1]) for i in (0, 20, 40)}) == 3, "a prompt's own blocks are new in every pass"
    assert len({int(many.blocks[i][1]) for i in (1, 21, 41)}) == 1


def test_a_limit_next_to_nothing_is_missed_without_a_word() -> None:
    traffic = SimpleNamespace(decode_tokens=15.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limits = Objective("cost", {"tpot": 1e-320, "ttft": 1.0}, 0.9)
        ratio = slo_ratio(limits, traffic, np.array([0.5]), np.array([0.01]))  # type: ignore[arg-type]
    assert ratio.tolist() == [float("inf")]
