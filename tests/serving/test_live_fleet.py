"""A fleet that serves while a clock runs: its times are those of `simulate`, whatever comes and goes between."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

import numpy as np
import pytest

import inferometer
from inferometer.serving.deployment import ServingOptions
from inferometer.serving.live_fleet import ABORTED, LiveFleet, LiveRequest
from inferometer.serving.live_prefix import LEAST_SWEEP, LivePrefixCache, LivePrefixTree
from inferometer.serving.simulate import build_deployment
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.serving.trace_formats import BLOCK

MODEL, GPU = "llama-3.1-8b", "h200"


class Content:
    """Tokens whose first blocks have the ids of a trace; the rest is this request's own."""

    def __init__(self, num_tokens: int, ids: Sequence[int] = (), name: Any = None) -> None:
        self.num_tokens, self.ids, self.name = num_tokens, ids, name if name is not None else id(self)

    def hashes(self, size: int) -> list[int]:
        return self._chain(size, 0, self.num_tokens // size)

    def output_hashes(self, size: int, first: int, last: int) -> list[int]:
        return self._chain(size, first, last)

    def _chain(self, size: int, first: int, last: int) -> list[int]:
        shared, blocks = [int(i) for i in self.ids], [(k + 1) * size // BLOCK for k in range(first, last)]
        return [hash((size, *shared[:n], n, None if n <= len(shared) else self.name)) for n in blocks]


def fleet_for(trace: Trace, rows: int = 1 << 12, **given: Any) -> LiveFleet:
    options = {name: given.pop(name) for name in ("router", "enable_prefix_caching") if name in given}
    pools, serving = build_deployment(MODEL, GPU, trace, ServingOptions(scheduler="", **options), **given)
    return LiveFleet(pools, serving, rows)


def drain(fleet: LiveFleet, due: float) -> None:
    while due < inf:
        due = fleet.advance(due)


def served(fleet: LiveFleet, trace: Trace) -> list[LiveRequest]:
    """Every request sent at its time, and the clock stopped at every step."""
    requests, due = [], inf
    assert trace.arrival_s is not None
    for i, arrival in enumerate(trace.arrival_s.tolist()):
        while due <= arrival:
            due = fleet.advance(due)
        ids = trace.blocks[i] if trace.blocks is not None else ()
        request = fleet.submit(arrival, Content(int(trace.input_tokens[i]), ids), int(trace.output_tokens[i]))
        assert request is not None
        requests.append(request)
        due = fleet.advance(arrival)
    drain(fleet, due)
    return requests


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_gpu_blocks_override": 150},  # preempted
        {"engine": "sglang"},
        {"engine": "trtllm", "pipeline_parallel_size": 2},
        {"data_parallel_size": 3, "router": "prefix_aware"},
        {"enable_prefix_caching": False},
    ],
)
def test_requests_have_the_times_of_a_simulation(given: dict[str, Any]) -> None:
    trace = synthetic(
        num_prompts=40, request_rate=40, input_len="uniform:min=300,max=900", output_len=40, prefix_len=96
    )
    expected = inferometer.simulate(MODEL, GPU, trace=trace, fast_forward=False, **given)
    fleet = fleet_for(trace, **given)
    requests = served(fleet, trace)
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        assert np.allclose([getattr(r, name) for r in requests], getattr(expected, name), rtol=1e-9), name
    assert [r.num_cached_tokens for r in requests] == expected.cached_tokens.tolist()
    assert sum(r.num_preemptions for r in requests) == expected.preemptions.sum()
    assert (expected.preemptions.sum() > 0) == ("num_gpu_blocks_override" in given)


def test_tokens_are_out_when_the_clock_is_there() -> None:
    fleet = fleet_for(synthetic(num_prompts=1, input_len=100, output_len=6))
    request = fleet.submit(1.0, Content(100), 6)
    assert request is not None
    due, seen = fleet.due(), []
    while due < inf:
        due = fleet.advance(max(due, 1.0))
        seen.append(request.num_tokens)
    assert [b - a for a, b in zip([0, *seen], seen, strict=False) if b > a] == [1] * 6
    assert request.is_over and request.last_token_s == request.finished_s
    late = fleet_for(synthetic(num_prompts=1, input_len=100, output_len=6))
    same = late.submit(1.0, Content(100), 6)
    assert same is not None
    assert late.advance(9.0) == inf, "a clock that comes late finds all tokens at once"
    assert same.num_tokens == 6 and same.finished_s == pytest.approx(request.finished_s)


def test_a_clock_that_comes_late_does_not_delay_what_is_over() -> None:
    """While a longer one goes on: the time of its last token is then when it came, not when the clock looked."""
    fleet = fleet_for(synthetic(num_prompts=1, input_len=100, output_len=6))
    short, longer = (fleet.submit(0.0, Content(100), tokens) for tokens in (6, 60))
    assert short is not None and longer is not None
    fleet.advance(1e3)
    assert short.last_token_s == short.finished_s < longer.last_token_s == longer.finished_s


def test_the_shortest_sequences_are_looked_up_ahead() -> None:
    fleet = fleet_for(synthetic(num_prompts=1, input_len=1, output_len=1), max_model_len=2)
    fleet.warm_up()
    request = fleet.submit(0.0, Content(1), 1)
    assert request is not None
    drain(fleet, fleet.due())
    assert request.num_tokens == 1


def test_requests_that_leave_give_everything_back() -> None:
    """In the inbox, in the queue, in mid-prompt and while decoding; rows are used again and again."""
    trace = synthetic(num_prompts=4, input_len=600, output_len=50)
    fleet = fleet_for(trace, rows=24, max_num_seqs=8, max_num_batched_tokens=512, num_gpu_blocks_override=400)
    cache, rng = fleet.fleet.replicas[0].kv_cache, np.random.default_rng(5)
    alive: list[LiveRequest] = []
    now, aborted, refused = 0.0, 0, 0
    for _ in range(400):
        now += float(rng.exponential(0.01))
        fleet.advance(now)
        request = fleet.submit(
            now, Content(int(rng.integers(1, 900)), (), int(rng.integers(3))), int(rng.integers(1, 60))
        )
        refused += request is None
        alive += [request] if request is not None else []
        if alive and rng.random() < 0.4:
            gone = alive.pop(int(rng.integers(len(alive))))
            fleet.abort(gone)
            aborted += gone.reason == ABORTED
        alive = [r for r in alive if not r.is_over]
    drain(fleet, fleet.due())
    fleet.advance(now + 1e6)
    assert aborted > 50 and refused > 0
    assert not any(fleet.of_server) and not fleet.fleet.replicas[0].running
    assert cache.free_blocks == cache.num_blocks
    assert len(fleet.free_rows) + len(fleet.leaving) == 24
    assert fleet.fleet.num_unfinished == [0]


def test_a_request_that_never_fits_is_told() -> None:
    fleet = fleet_for(synthetic(num_prompts=1, input_len=100, output_len=6), num_gpu_blocks_override=10)
    woken: list[bool] = []
    request = fleet.submit(0.0, Content(500), 5)
    assert request is not None
    request.wake = lambda: woken.append(True)
    drain(fleet, fleet.due())
    assert "do not fit" in request.reason and woken and isnan(request.first_token_s)


def test_the_next_turn_finds_the_answer_before() -> None:
    fleet = fleet_for(synthetic(num_prompts=1, input_len=100, output_len=6))
    for num_tokens, cached in ((320, 0), (480, 416), (480, 464)):  # 320 + 100 were computed, then 480: all but one
        request = fleet.submit(fleet.fleet.replicas[0].now, Content(num_tokens, (), "conversation"), 100)
        assert request is not None
        drain(fleet, fleet.due())
        assert request.num_cached_tokens == cached


def test_what_nobody_has_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.serving.live_prefix.LEAST_SWEEP", 64)
    assert LEAST_SWEEP > 64
    tree = LivePrefixTree(16)
    tree.sweep_at = 64
    cache = LivePrefixCache(20, tree)
    for i in range(200):
        tree.put(i % 3, [hash((i, k)) for k in range(10)])
        assert cache.match_prefix(i % 3, 160) == 0 and cache.allocate(i % 3, 0, 160)
        cache.release(i % 3, 10, 160)
        tree.drop(i % 3)
    assert len(tree.start_block) < 200 and cache.free_blocks == 20
    tree.put(0, [hash((199, k)) for k in range(10)])
    assert cache.match_prefix(0, 161) == 160
