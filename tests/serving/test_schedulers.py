"""Schedulers, by hand: every step takes one second, so that the clock says what was computed when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.serving.arrivals import ClosedLoop, OpenLoop, by_arrival, is_closed_loop
from inferometer.serving.engine import EngineCore
from inferometer.serving.kv_cache import KVCache
from inferometer.serving.pipeline import PipelineEngine
from inferometer.serving.request_table import RequestTable, column
from inferometer.serving.schedulers import SCHEDULERS, SchedulerLimits
from inferometer.serving.trace import Trace


class Seconds:
    """Steps of one second each, and a note of what was in them."""

    closed_form, tokens_per_decode, accepted_per_step, throttle_after, cooling = None, 1, 1.0, 0.0, 0.0

    def __init__(self) -> None:
        self.steps: list[tuple[int, list[int]]] = []  # decoding sequences, tokens of every prompt

    def decode_seconds(self, batch: Any) -> float:
        self.steps.append((batch.num_seqs, []))
        return 1.0

    def mixed_seconds(self, batch: Any, chunks: list[tuple[int, int, int]], num_completed: int, *more: float) -> float:
        self.steps.append((batch.num_seqs if batch is not None else 0, [new for _, new, _ in chunks]))
        return 1.0


def serve(
    requests: list[tuple[float, int, int]],
    *,
    scheduler: str = "vllm",
    blocks: int = 1000,
    max_concurrency: int | None = None,
    priority: list[int] | None = None,
    stages: int = 1,
    after: list[int] | None = None,
    think: float = 0.0,
    **limits: Any,
) -> tuple[dict[str, list[float]], Seconds, EngineCore]:
    """Requests as (arrival, prompt, answer); gives columns, the steps, and the engine."""
    arrival, inputs, outputs = (np.array(x) for x in zip(*requests, strict=True))
    trace = Trace(
        input_tokens=inputs,
        output_tokens=outputs,
        arrival_s=arrival.astype(float),
        after=None if after is None else np.array(after),
        think_s=np.full(len(requests), think),
    )
    table = RequestTable(inputs.tolist(), outputs.tolist(), priority)
    source: Any = (
        ClosedLoop(trace, table.arrival_s, max_concurrency)
        if is_closed_loop(trace, max_concurrency)
        else OpenLoop(*by_arrival(trace), table.arrival_s)
    )
    allowed = SchedulerLimits(
        **{
            "max_num_batched_tokens": 100,
            "max_num_seqs": 10,
            "priority": priority is not None,
            "static_batch": scheduler == "static",
            "reserve_full_prompt": scheduler == "sarathi",
            **limits,
        }
    )
    cost: Any = Seconds()
    cache, chosen = KVCache(blocks, 4), SCHEDULERS[scheduler]
    if stages > 1:
        engine: EngineCore = PipelineEngine([cost] * stages, allowed, table, cache, source, chosen)
    else:
        engine = EngineCore(cost, allowed, table, cache, source, chosen, fast_forward=False)
    if isinstance(source, ClosedLoop):
        engine.on_finished = source.finished
    engine.run()
    names = ("arrival_s", "scheduled_s", "first_token_s", "finished_s", "num_preemptions")
    return {name: column(getattr(table, name)).tolist() for name in names}, cost, engine


def test_one_request() -> None:
    columns, cost, engine = serve([(2.0, 10, 3)])
    assert (columns["scheduled_s"], columns["first_token_s"], columns["finished_s"]) == ([2.0], [3.0], [5.0])
    assert (
        cost.steps == [(0, [10]), (1, []), (1, [])]
        and engine.computed_tokens == 10 + 2
        and engine.kv_cache.free_blocks == 1000
    )


def test_no_answer_ends_with_its_prompt() -> None:
    columns, cost, _ = serve([(0.0, 10, 0), (0.0, 5, 1)])
    assert columns["first_token_s"] == columns["finished_s"] == [1.0, 1.0] and cost.steps == [(0, [10, 5])]


def test_a_long_prompt_is_cut_and_the_next_one_takes_what_is_left() -> None:
    _, cost, _ = serve([(0.0, 25, 2), (0.5, 8, 2)], max_num_batched_tokens=10)
    # the first one's last piece leaves 5 tokens of the budget; then it decodes, and 9 are left for the other's rest
    assert cost.steps == [(0, [10]), (0, [10]), (0, [5, 5]), (1, [3]), (1, [])]


def test_without_cutting_a_prompt_waits_for_a_step_of_its_own() -> None:
    _, cost, _ = serve([(0.0, 6, 1), (0.0, 8, 1)], max_num_batched_tokens=10, enable_chunked_prefill=False)
    assert cost.steps == [(0, [6]), (0, [8])]


def test_a_piece_of_one_prompt_may_be_limited() -> None:
    _, cost, _ = serve([(0.0, 25, 1), (0.0, 4, 1)], max_num_batched_tokens=100, long_prefill_token_threshold=10)
    assert cost.steps == [(0, [10, 4]), (0, [10]), (0, [5])]


def test_decodes_come_before_prompts() -> None:
    _, cost, _ = serve([(0.0, 4, 5), (0.0, 4, 5), (0.5, 20, 1)], max_num_batched_tokens=10)
    assert cost.steps == [(0, [4, 4]), (2, [8]), (2, [8]), (2, [4]), (2, [])]


def test_no_more_sequences_than_allowed() -> None:
    columns, _, _ = serve([(0.0, 4, 3), (0.0, 4, 2), (0.0, 4, 2)], max_num_seqs=2)
    assert columns["scheduled_s"] == [0.0, 0.0, 2.0]


def test_asynchronous_scheduling_learns_of_arrivals_one_step_later() -> None:
    requests = [(0.0, 10, 9), (0.5, 10, 2)]
    assert serve(requests)[0]["scheduled_s"] == [0.0, 1.0]
    assert serve(requests, async_scheduling=True)[0]["scheduled_s"] == [0.0, 2.0]
    assert serve([(0.0, 10, 1), (0.5, 10, 2)], async_scheduling=True)[0]["scheduled_s"] == [0.0, 1.0], (
        "nothing else was under way"
    )


def test_a_decoding_engine_polls_for_requests_at_intervals() -> None:
    requests = [(0.0, 4, 40), (2.5, 4, 40), (7.5, 4, 2)]
    assert serve(requests)[0]["scheduled_s"] == [0.0, 3.0, 8.0]
    # the prompt ends at 1, five steps later the engine polls, then a prompt is in the step and five more follow
    assert serve(requests, scheduler_recv_interval=5)[0]["scheduled_s"] == [0.0, 6.0, 12.0]
    assert serve([(0.0, 4, 40), (0.5, 4, 2)], scheduler_recv_interval=5)[0]["scheduled_s"][1] == 1.0, (
        "after a prompt it polls at once"
    )
    assert serve([(0.0, 4, 2), (2.5, 4, 2)], scheduler_recv_interval=5)[0]["scheduled_s"][1] == 2.5, (
        "and with nothing to do"
    )


def test_prompts_begin_in_every_fourth_step() -> None:
    """vLLM's prefill_schedule_interval; a step takes a second, so step k begins at k."""
    requests = [(0.0, 4, 40), (2.5, 4, 40), (7.5, 4, 2)]
    assert serve(requests, prefill_schedule_interval=4)[0]["scheduled_s"] == [0.0, 4.0, 8.0]
    assert serve(requests, prefill_schedule_interval=5)[0]["scheduled_s"] == [0.0, 5.0, 10.0]
    assert serve(requests, prefill_schedule_interval=5, async_scheduling=True)[0]["scheduled_s"] == [0.0, 5.0, 10.0]


def test_a_step_that_left_prompts_waiting_is_followed_by_others() -> None:
    requests = [(0.0, 4, 40), (0.5, 8, 3), (0.5, 8, 3), (0.5, 8, 2)]
    columns, cost, _ = serve(requests, prefill_schedule_interval=4, max_num_batched_tokens=10)
    # step 4 has room for 9 tokens of prompts and leaves the last one waiting, so step 5 takes prompts, too; with none
    # left waiting, the rest of the last prompt waits for step 8
    assert cost.steps[:9] == [(0, [4]), *[(1, [])] * 3, (1, [8, 1]), (2, [7, 1]), (3, []), (2, []), (1, [7])]
    assert columns["scheduled_s"] == [0.0, 4.0, 4.0, 5.0] and columns["first_token_s"][3] == 9.0


def test_steps_are_counted_from_when_there_was_nothing_to_do() -> None:
    requests = [(0.0, 4, 2), (2.5, 4, 20), (3.0, 4, 2)]
    assert serve(requests, prefill_schedule_interval=4)[0]["scheduled_s"] == [0.0, 2.5, 6.5]


def test_a_step_computes_a_few_prompts_at_most() -> None:
    requests = [(0.0, 4, 2)] * 3
    _, cost, _ = serve(requests, scheduler="prefill_first", prefill_max_requests=2)
    assert cost.steps == [(0, [4, 4]), (0, [4]), (3, [])]


def test_whole_prompts_begin_only_when_all_answers_have_room() -> None:
    _, cost, _ = serve([(0.0, 6, 1), (0.0, 8, 1), (0.0, 25, 1)], scheduler="trtllm", max_num_batched_tokens=10)
    assert cost.steps == [(0, [6]), (0, [8, 2]), (0, [10]), (0, [10]), (0, [3])], "what no step has room for is cut"
    # 8 tokens need 2 blocks to their end: the second waits for the first to end, and no request is preempted
    columns, _, _ = serve([(0.0, 4, 5), (0.0, 4, 5)], scheduler="trtllm", blocks=3)
    assert columns["scheduled_s"] == [0.0, 5.0] and columns["num_preemptions"] == [0.0, 0.0]


def test_prompts_wait_for_a_batch() -> None:
    requests = [(0.0, 4, 40), (1.5, 4, 2), (3.5, 4, 2)]
    assert serve(requests, scheduler="trtllm")[0]["scheduled_s"] == [0.0, 2.0, 4.0]
    wait = {"scheduler": "trtllm", "batch_wait_timeout_iters": 4}
    assert serve(requests, **wait, batch_wait_min_tokens=100)[0]["scheduled_s"] == [0.0, 6.0, 6.0], "four steps"
    assert serve(requests, **wait, batch_wait_min_tokens=9)[0]["scheduled_s"] == [0.0, 4.0, 4.0], (
        "two prompts and an answer are enough"
    )
    assert serve([(0.0, 4, 2), (5.0, 4, 2)], **wait, batch_wait_min_tokens=100)[0]["scheduled_s"] == [0.0, 5.0], (
        "nothing decodes"
    )


def test_a_front_end_reads_one_prompt_after_the_other() -> None:
    trace = Trace(input_tokens=np.array([4, 4, 4]), output_tokens=np.ones(3, int), arrival_s=np.array([0.0, 0.5, 9.0]))
    sent = RequestTable([4] * 3, [1] * 3).arrival_s
    tokenize_s = [2.0, 1.0, 3.0]
    for source in (
        OpenLoop(*by_arrival(trace), sent, 0.5, tokenize_s),
        ClosedLoop(trace, sent, 3, 0.5, (), tokenize_s),
    ):
        there = []
        while source.next < np.inf:
            there.append((source.next, source.take(source.next)))
        assert there == [(2.5, [0]), (3.5, [1]), (12.5, [2])] and sent.tolist() == [0.0, 0.5, 9.0]


def test_asynchronous_scheduling_learns_of_ends_one_step_later() -> None:
    requests = [(0.0, 4, 9), (0.0, 4, 2), (0.0, 4, 2)]
    assert serve(requests, max_num_seqs=2)[0]["scheduled_s"][2] == 2.0
    columns, cost, _ = serve(requests, max_num_seqs=2, async_scheduling=True)
    assert columns["scheduled_s"][2] == 3.0 and columns["finished_s"][1] == 2.0
    assert cost.steps[2] == (1, []), "the place is taken, but no token is computed"
    wasted = serve(requests, max_num_seqs=2, async_scheduling=True, ends_on_stop_token=True)[1]
    assert wasted.steps[2] == (2, []), "a stop token is not known beforehand: one more is computed in vain"


def test_a_token_in_vain_holds_up_the_next_request() -> None:
    requests = [(0.0, 4, 2), (2.5, 4, 1)]
    assert serve(requests, async_scheduling=True)[0]["scheduled_s"][1] == 2.5
    assert serve(requests, async_scheduling=True, ends_on_stop_token=True)[0]["scheduled_s"][1] == 3.0


def test_the_request_admitted_last_is_preempted() -> None:
    # three blocks: after the prompts one is free, which the first takes at 4 -> 5 tokens; then the second must go
    columns, cost, engine = serve([(0.0, 4, 4), (0.0, 4, 4)], blocks=3)
    assert columns["num_preemptions"] == [0.0, 1.0] and engine.kv_cache.free_blocks == 3
    assert cost.steps[:2] == [(0, [4, 4]), (1, [])], (
        "it goes before it decodes, and no request is admitted in that step"
    )
    # its prompt and the one token that it had, when the first has ended
    assert columns["finished_s"][0] == 4.0 and cost.steps[4] == (0, [5])
    assert columns["first_token_s"] == [1.0, 1.0] and columns["finished_s"][1] == 7.0


def test_a_prompt_that_is_cut_begins_when_all_of_it_has_room() -> None:
    columns, cost, _ = serve([(0.0, 4, 12), (0.5, 24, 1)], blocks=7, max_num_batched_tokens=9)
    # its first two pieces would have fitted from 1 s on, and the third not before the other has ended at 12 s
    assert (
        columns["num_preemptions"] == [0, 0]
        and columns["scheduled_s"] == [0.0, 12.0]
        and columns["finished_s"] == [12.0, 15.0]
    )
    assert cost.steps[-3:] == [(0, [9]), (0, [9]), (0, [6])]


def test_a_prompt_under_way_loses_its_blocks_too() -> None:
    columns, cost, engine = serve([(0.0, 4, 12), (0.5, 24, 1)], blocks=8, max_num_batched_tokens=4)
    # all six blocks were free when it began at 1 s; at 7 s it has five and the other, which goes on answering, three
    assert (
        columns["num_preemptions"] == [0, 1]
        and columns["scheduled_s"] == [0.0, 1.0]
        and engine.kv_cache.free_blocks == 8
    )
    assert cost.steps[1:8] == [(1, [3])] * 6 + [(1, [])] and columns["finished_s"] == [12.0, 18.0]


def test_priority_goes_first_and_is_preempted_last() -> None:
    columns, _, _ = serve([(0.0, 4, 3), (0.1, 4, 1), (0.2, 4, 1)], max_num_seqs=1, priority=[0, 2, 1])
    assert columns["scheduled_s"] == [0.0, 4.0, 3.0]
    columns, _, _ = serve([(0.0, 4, 4), (0.0, 4, 4)], blocks=3, priority=[1, 0])
    assert columns["num_preemptions"] == [1.0, 0.0]


def test_first_come_first_served_whatever_the_order_of_the_file() -> None:
    columns, _, _ = serve([(3.0, 4, 1), (0.0, 4, 5), (1.0, 4, 1), (1.0, 4, 1)], max_num_seqs=1)
    assert columns["scheduled_s"] == [7.0, 0.0, 5.0, 6.0]


def test_prefill_first_lets_answers_wait() -> None:
    _, cost, _ = serve([(0.0, 4, 4), (0.5, 4, 2), (0.5, 98, 2)], scheduler="prefill_first")
    assert cost.steps == [(0, [4]), (0, [4]), (0, [98]), (3, []), (1, []), (1, [])]
    assert serve([(0.0, 250, 1)], scheduler="prefill_first")[1].steps == [(0, [250])], (
        "one above the budget comes alone"
    )


def test_static_batches_wait_for_their_longest_answer() -> None:
    columns, cost, engine = serve([(0.0, 4, 4), (0.0, 4, 2), (0.5, 4, 2)], scheduler="static")
    assert columns["finished_s"][:2] == [4.0, 2.0] and columns["scheduled_s"][2] == 4.0
    assert (
        cost.steps == [(0, [4, 4]), (2, []), (2, []), (2, []), (0, [4]), (1, [])]
        and engine.kv_cache.free_blocks == 1000
    )
    # the longest prompt and answer for each: two of them are six blocks
    assert serve([(0.0, 4, 4), (0.0, 4, 8)], scheduler="static", blocks=5)[0]["scheduled_s"] == [0.0, 4.0]


def test_sarathi_begins_a_prompt_only_if_all_of_it_fits() -> None:
    requests = [(0.0, 4, 6), (0.5, 24, 1)]
    columns, _, _ = serve(requests, scheduler="sarathi", blocks=7, max_num_batched_tokens=9)
    assert columns["num_preemptions"] == [0.0, 0.0] and columns["scheduled_s"] == [0.0, 6.0]


def test_a_closed_loop_sends_when_one_ends() -> None:
    columns, _, _ = serve([(0.0, 4, 2)] * 3, max_concurrency=1)
    assert columns["arrival_s"] == [0.0, 2.0, 4.0] and columns["finished_s"] == [2.0, 4.0, 6.0]
    columns, _, _ = serve([(0.0, 4, 2)] * 4, max_concurrency=2)
    assert sorted(columns["arrival_s"]) == [0.0, 0.0, 2.0, 2.0]


def test_a_turn_comes_after_the_one_before_it_and_a_thought() -> None:
    columns, _, _ = serve([(0.0, 4, 2), (0.0, 4, 2), (9.0, 4, 1)], after=[-1, 0, 1], think=0.5)
    assert columns["arrival_s"] == [0.0, 2.5, 9.0] and columns["finished_s"] == [2.0, 4.5, 10.0]


def test_a_pipeline_has_a_batch_for_every_stage() -> None:
    columns, cost, _ = serve([(0.0, 4, 3), (0.5, 4, 3)], stages=2)
    # the second prompt follows the first through the stages; a token takes both stages
    assert columns["first_token_s"] == [2.0, 3.0] and columns["finished_s"] == [6.0, 7.0]
    assert cost.steps[:4] == [(0, [4]), (0, [4])] * 2


def test_a_prompt_goes_on_in_the_next_batch_of_a_pipeline() -> None:
    columns, _, _ = serve([(0.0, 20, 1)], stages=2, max_num_batched_tokens=10)
    assert columns["first_token_s"] == [3.0], "its second piece is in the first stage while its first is in the second"


def test_what_can_never_fit_is_refused() -> None:
    columns, _, engine = serve([(0.0, 40, 2), (0.0, 4, 2)], blocks=5, max_num_batched_tokens=100)
    assert list(engine.refused) == [0] and "5 blocks of 4 tokens" in engine.refused[0].reason
    assert np.isnan(columns["finished_s"][0]) and columns["finished_s"][1] == 2.0


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_every_scheduler_serves_every_request_once(name: str) -> None:
    requests = [(0.3 * i, 3 + 5 * (i % 4), i % 5) for i in range(20)]
    columns, cost, engine = serve(requests, scheduler=name, blocks=40, max_num_seqs=4, max_num_batched_tokens=30)
    assert not np.isnan(columns["finished_s"]).any() and engine.kv_cache.free_blocks == 40
    assert sum(sum(new) for _, new in cost.steps) >= sum(prompt for _, prompt, _ in requests)
