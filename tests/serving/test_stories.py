"""One short story for each part of the simulator, so that a failure names a method."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import numpy as np
import pytest

from inferometer.serving.arrivals import ClosedLoop, OpenLoop, RouterInbox
from inferometer.serving.batch import DecodeBatch
from inferometer.serving.engine import EngineCore
from inferometer.serving.kv_cache import KVCache, PrefixCache, prefix_tree
from inferometer.serving.outcome import POINTS, Recorder, merge_series
from inferometer.serving.request_table import RejectionKind, RequestStatus, RequestTable, admit_trace
from inferometer.serving.router import ROUTERS, Fleet, router
from inferometer.serving.schedulers import (
    SCHEDULERS,
    FCFSQueue,
    PriorityQueue,
    SchedulerLimits,
    admissible_prompt_tokens,
    scheduler,
)
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace
from inferometer.serving.trace_formats import trace_format
from inferometer.serving.traffic import load_traffic

# ------------------------------------------------------------------ queues


def test_fcfs_serves_in_order_of_arrival() -> None:
    queue = FCFSQueue()
    queue.push(3)
    queue.push(1)
    assert queue.peek() == 3 and [queue.pop_first(), queue.pop_first()] == [3, 1] and not queue


def test_fcfs_puts_a_preempted_request_in_front() -> None:
    queue = FCFSQueue()
    queue.push(3)
    queue.push_front(7)
    assert list(queue) == [7, 3]


def test_priority_serves_small_numbers_first_then_by_arrival() -> None:
    table = RequestTable([8] * 3, [8] * 3, priority=[1, 0, 0])
    table.arrival_s[0], table.arrival_s[1], table.arrival_s[2] = 0.0, 2.0, 1.0
    queue = PriorityQueue(table)
    for i in range(3):
        queue.push(i)
    assert queue.peek() == 2 and [queue.pop_first() for _ in range(3)] == [2, 1, 0]


def test_priority_sorts_a_preempted_request_in() -> None:
    queue = PriorityQueue(RequestTable([8] * 2, [8] * 2, priority=[0, 1]))
    queue.push(0)
    queue.push_front(1)
    assert queue.peek() == 0 and len(queue) == 2


# ------------------------------------------------------------------ the KV cache


def test_allocate_takes_whole_blocks() -> None:
    cache = KVCache(num_blocks=4, block_size=16)
    assert cache.allocate(0, 0, 17) and cache.free_blocks == 2


def test_allocate_is_all_or_nothing() -> None:
    cache = KVCache(num_blocks=4, block_size=16)
    assert not cache.can_hold(0, 0, 65) and not cache.allocate(0, 0, 65) and cache.free_blocks == 4


def test_extend_takes_only_what_is_missing() -> None:
    cache = KVCache(num_blocks=4, block_size=16)
    assert cache.allocate(0, 0, 10) and cache.extend(0, 10, 16) and cache.free_blocks == 3
    assert cache.extend(0, 16, 17) and cache.free_blocks == 2


def test_release_gives_all_back() -> None:
    cache = KVCache(num_blocks=4, block_size=16)
    cache.take(3)
    cache.release(0, 3, 48)
    assert cache.free_blocks == 4


def test_match_prefix_counts_whole_blocks_of_another_prompt() -> None:
    cache = PrefixCache(10, 16, prefix_tree((np.arange(2), np.arange(2)), 16, np.array([40, 40])))
    assert cache.match_prefix(1, 40) == 0 and cache.allocate(0, 0, 40)
    assert cache.match_prefix(1, 40) == 32


def test_evicted_blocks_match_no_more() -> None:
    cache = PrefixCache(4, 16, prefix_tree((np.arange(2), np.arange(2)), 16, np.array([40, 40])))
    assert cache.allocate(0, 0, 40)
    cache.release(0, 3, 40)
    cache.take(4)
    assert cache.match_prefix(1, 40) == 0


def test_a_prefix_tree_parts_where_prompts_do() -> None:
    tree = prefix_tree((np.array([1, 2, 3]), np.array([1, 2, 4])), 16, np.array([48, 48]))
    assert tree.of(0)[0] == tree.of(1)[0] and tree.of(0)[1] != tree.of(1)[1]
    assert tree.last[tree.of(0)[0]] == 32


# ------------------------------------------------------------------ the decode batch


def test_a_sequence_finishes_after_its_tokens() -> None:
    batch = DecodeBatch(num_requests=4, block_size=16)
    batch.join(2, context=10, remaining=3)
    batch.advance(2)
    assert batch.pop_finished() == -1 and batch.steps_to_first_finish() == 1
    batch.advance(1)
    assert batch.pop_finished() == 2 and batch.pop_finished() == -1


def test_contexts_grow_by_a_token_a_step() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, context=10, remaining=30)
    batch.advance(5)
    batch.join(1, context=100, remaining=30)
    assert batch.contexts().tolist() == [15, 100] and batch.total_context() == 115


def test_a_full_block_needs_a_new_one() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, context=15, remaining=30)
    assert batch.blocks_for_next_step() == 0 and batch.block_growth(2) == 1
    batch.advance(1)
    assert batch.blocks_for_next_step() == 1 and batch.blocks_of(0) == 1


def test_blocks_to_completion_are_those_of_the_whole_output() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, context=16, remaining=33)  # 49 tokens at the end: four blocks, of which it has one
    assert batch.blocks_to_completion() == 3 and batch.max_steps_within(2, 33) == 32


def test_blocks_held_are_those_of_all_sequences() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, context=16, remaining=30)
    batch.join(1, context=31, remaining=30)
    assert batch.blocks_held() == 1 + 2
    batch.advance(1)  # 17 and 32 tokens
    assert batch.blocks_held() == 2 + 2 == batch.blocks_of(0) + batch.blocks_of(1)


def test_speculation_advances_by_accepted_tokens() -> None:
    batch = DecodeBatch(4, 16, accepted_per_step=2.5)
    batch.join(0, context=10, remaining=10)
    assert batch.steps_to_first_finish() == 4 and batch.next_gain() == 2
    batch.advance(4)
    assert batch.clock == 10 and batch.pop_finished() == 0


def test_leave_makes_room() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, context=10, remaining=10)
    assert batch.drop(0) == 10
    batch.leave(0)
    assert batch.num_seqs == batch.offset_sum == sum(batch.block_phase_counts) == 0


# ------------------------------------------------------------------ the recorder


def sampled(recorder: Recorder, now: float, **state: Any) -> None:
    zero = {"running": 0, "waiting": 0, "kv_used": 0.0, "computed_tokens": 0, "busy_s": 0.0, "steps": 0}
    recorder.sample(now=now, **{**zero, **state})


def test_rates_are_those_between_two_samples() -> None:
    recorder = Recorder()
    sampled(recorder, 1.0, computed_tokens=100, busy_s=1.0, steps=10)
    sampled(recorder, 3.0, computed_tokens=500, busy_s=2.0, steps=30)
    series = recorder.series()
    assert series["tokens_per_s"].tolist() == [100, 200] and series["busy"].tolist() == [1, 0.5]
    assert series["batch_tokens"].tolist() == [10, 20]


def test_samples_thin_out_as_a_run_grows_long() -> None:
    recorder = Recorder()
    for second in range(2 * POINTS):
        sampled(recorder, float(second))
    assert len(recorder.samples) == POINTS and recorder.interval >= 1.9
    assert recorder.next_sample > 2 * POINTS - 1


def test_progress_is_told_every_hundred_samples() -> None:
    recorder, told = Recorder(), []
    recorder.on_progress = lambda: told.append(len(recorder.samples))
    for second in range(250):
        sampled(recorder, float(second))
    assert told == [100, 200]


def test_replicas_are_summed_where_they_are_counts() -> None:
    one, two = Recorder(), Recorder()
    sampled(one, 1.0, running=3, kv_used=0.5)
    sampled(two, 1.0, running=4, kv_used=0.1)
    merged = merge_series([one.series(), two.series()])
    assert merged["running"].tolist() == [7] and merged["kv_used"].tolist() == pytest.approx([0.3])


# ------------------------------------------------------------------ routers


def fleet_of(count: int, name: str = "round_robin", tree: Any = None, speeds: list[float] | None = None) -> Fleet:
    idle: Any = [None] * count
    return Fleet(idle, [RouterInbox() for _ in range(count)], speeds or [1.0] * count, name, tree)


def test_round_robin_takes_turns() -> None:
    fleet = fleet_of(3)
    for i in range(4):
        fleet.send(i, 0.0)
    assert [fleet.replica_of[i] for i in range(4)] == [0, 1, 2, 0] and fleet.num_unfinished == [2, 1, 1]


def test_least_loaded_goes_where_a_request_finished() -> None:
    fleet = fleet_of(2, "least_loaded")
    for i in range(4):
        fleet.send(i, 0.0)
    fleet.finished(2)
    fleet.send(4, 0.0)
    assert fleet.replica_of[4] == 0


def test_least_loaded_knows_that_a_replica_is_faster() -> None:
    fleet = fleet_of(2, "least_loaded", speeds=[1.0, 3.0])
    for i in range(8):
        fleet.send(i, 0.0)
    assert fleet.num_unfinished == [2, 6]


def test_prefix_aware_sends_a_prompt_where_its_beginning_went() -> None:
    tree = prefix_tree((np.array([1, 2]), np.array([8, 9]), np.array([1, 3])), 16, np.array([32, 32, 32]))
    fleet = fleet_of(2, "prefix_aware", tree)
    for i in range(3):
        fleet.send(i, 0.0)
    assert fleet.replica_of == {0: 0, 1: 1, 2: 0}


def test_a_name_is_registered_once() -> None:
    def vllm(engine: Any) -> Any:
        return True, []

    def round_robin(fleet: Fleet, i: int) -> int:
        return 0

    with pytest.raises(ValueError, match="scheduler named 'vllm' is registered already"):
        scheduler()(vllm)
    with pytest.raises(ValueError, match="router named 'round_robin' is registered already"):
        router(round_robin)
    with pytest.raises(ValueError, match="format named 'Mooncake' is registered already"):
        trace_format("Mooncake", "timestamp")(len)
    assert SCHEDULERS["vllm"].schedule is not vllm and ROUTERS["round_robin"] is not round_robin


# ------------------------------------------------------------------ arrivals


def test_an_open_loop_gives_what_is_there() -> None:
    table = RequestTable([4] * 3, [1] * 3)
    source = OpenLoop([2, 0, 1], [0.0, 1.0, 5.0], table.arrival_s, overhead=0.5)
    assert source.next == 0.5 and source.take(1.5) == [2, 0] and source.next == 5.5
    assert table.arrival_s[0] == 1.0 and isnan(table.arrival_s[1]) and source.last_arrival == 5.0


def test_an_open_loop_is_dealt_out_in_turn() -> None:
    source = OpenLoop([*range(5)], [0.0, 1.0, 2.0, 3.0, 4.0], RequestTable([4] * 5, [1] * 5).arrival_s)
    assert source.every(1, 2).take(9.0) == [1, 3]


def test_a_closed_loop_waits_for_a_place() -> None:
    trace = Trace(input_tokens=np.full(2, 4), output_tokens=np.ones(2, int))
    source = ClosedLoop(trace, RequestTable([4] * 2, [1] * 2).arrival_s, max_concurrency=1)
    assert source.take(0.0) == [0] and source.next == inf
    source.finished(0, 7.0)
    assert source.next == 7.0 and source.take(7.0) == [1]


def test_an_inbox_gives_requests_from_their_time_on() -> None:
    inbox = RouterInbox()
    inbox.push(5, 1.0)
    inbox.push(6, 2.0)
    assert inbox.take(1.5) == [5] and inbox.next == 2.0 and inbox.take(3.0) == [6] and inbox.next == inf


# ------------------------------------------------------------------ admission, and a request's life


def test_admissible_prompt_tokens_are_the_budget_the_threshold_or_nothing() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=100, max_num_seqs=2, long_prefill_token_threshold=30)
    assert admissible_prompt_tokens(limits, 20, 0) == 20 and admissible_prompt_tokens(limits, 50, 1) == 30
    assert admissible_prompt_tokens(limits, 50, 2) == 0 and admissible_prompt_tokens(limits, -5, 0) <= 0


def test_a_request_is_rejected_for_one_kind_of_reason() -> None:
    trace = Trace(input_tokens=np.array([0, 90, 40, 30]), output_tokens=np.array([5, 5, 20, 5]))
    admitted = admit_trace(trace, max_model_len=80, kv_cache_tokens=50)
    kinds = {i: rejection.kind for i, rejection in admitted.rejected.items()}
    assert kinds == {0: RejectionKind.EMPTY_PROMPT, 1: RejectionKind.MAX_MODEL_LEN, 2: RejectionKind.KV_CACHE}


class OneSecond:
    """Every step takes a second."""

    closed_form, tokens_per_decode, accepted_per_step, throttle_after, cooling = None, 1, 1.0, 0.0, 0.0

    def decode_seconds(self, batch: Any) -> float:
        return 1.0

    def mixed_seconds(self, batch: Any, chunks: Any, num_completed: int, *more: float) -> float:
        return 1.0


def test_the_life_of_two_requests() -> None:
    cost: Any = OneSecond()
    table = RequestTable([6, 4], [3, 9])
    source = OpenLoop([0, 1], [0.0, 0.5], table.arrival_s)
    limits = SchedulerLimits(max_num_batched_tokens=4, max_num_seqs=4)
    engine = EngineCore(cost, limits, table, KVCache(4, 4), source, SCHEDULERS["vllm"], fast_forward=False)
    lives: list[tuple[str, str]] = []
    for second in range(1, 6):
        engine.run(until=float(second))
        lives.append((engine.status(0).value, engine.status(1).value))
    engine.run()
    assert lives[:4] == [
        ("prefilling", "not arrived yet"),
        ("decoding", "prefilling"),
        ("decoding", "decoding"),
        ("finished", "decoding"),
    ]
    assert engine.status(1) is RequestStatus.FINISHED and engine.kv_cache.free_blocks == 4


def test_a_preempted_request_waits_again() -> None:
    cost: Any = OneSecond()
    table = RequestTable([4, 4], [4, 4])
    source = OpenLoop([0, 1], [0.0, 0.0], table.arrival_s)
    limits = SchedulerLimits(max_num_batched_tokens=100, max_num_seqs=4)
    engine = EngineCore(cost, limits, table, KVCache(3, 4), source, SCHEDULERS["vllm"], fast_forward=False)
    engine.run(until=2.0)
    assert engine.status(0) is RequestStatus.DECODING and engine.status(1) is RequestStatus.PREEMPTED


# ------------------------------------------------------------------ traffic


def test_traffic_says_what_it_is() -> None:
    traffic = load_traffic({"num_prompts": 5, "request_rate": 8.0, "block_size": 16}, None)
    assert traffic.label == "1024 in, 128 out, at 8/s" and len(traffic.trace) == 5
    assert traffic._replace(schedule="at the highest rate").label == "1024 in, 128 out, at the highest rate"
    assert load_traffic({"num_prompts": 5, "turns": 3}, 2).label.endswith("2 at a time, conversations of 3 turns")


def test_reasons_that_differ_by_numbers_are_counted_as_one() -> None:
    trace = Trace(input_tokens=np.array([9000, 9001, 8, 0]), output_tokens=np.full(4, 4), arrival_s=np.zeros(4))
    outcome = simulate("llama-2-7b", "a100-sxm-80gb", trace=trace)
    kinds = [rejection.kind for rejection in outcome.rejected.values()]
    assert kinds == [RejectionKind.MAX_MODEL_LEN, RejectionKind.MAX_MODEL_LEN, RejectionKind.EMPTY_PROMPT]
