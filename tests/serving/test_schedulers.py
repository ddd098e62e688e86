"""Schedulers, by hand: every step takes one second, so that the clock says who was computed when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.serving.arrivals import ClosedLoop, OpenLoop, by_arrival, is_closed_loop
from inferometer.serving.engine import EngineCore, SchedulerLimits
from inferometer.serving.kv_cache import KVCache
from inferometer.serving.pipeline import PipelineEngine
from inferometer.serving.request_table import RequestTable, column
from inferometer.serving.schedulers import SCHEDULERS
from inferometer.serving.trace import Trace


class Seconds:
    """Steps of one second each, and a note of what was in them."""

    closed, width, pace, throttled = False, 1, 1.0, 0.0

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[int]]] = []  # decoding rows, tokens of every prompt

    def decode(self, batch: Any) -> float:
        self.seen.append((batch.rows, []))
        return 1.0

    def mixed(self, batch: Any, chunks: list[tuple[int, int, int]], ends: int) -> float:
        self.seen.append((batch.rows if batch is not None else 0, [new for _, new, _ in chunks]))
        return 1.0


def serve(
    requests: list[tuple[float, int, int]],
    *,
    scheduler: str = "vllm",
    blocks: int = 1000,
    most: int | None = None,
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
    ledger = RequestTable(inputs.tolist(), outputs.tolist(), priority)
    feed: Any = (
        ClosedLoop(trace, ledger.arrival, most)
        if is_closed_loop(trace, most)
        else OpenLoop(*by_arrival(trace), ledger.arrival)
    )
    allowed = SchedulerLimits(
        **{
            "tokens": 100,
            "seqs": 10,
            "priority": priority is not None,
            "padded": scheduler == "static",
            "whole": scheduler == "sarathi",
            **limits,
        }
    )
    times: Any = Seconds()
    cache, plan = KVCache(blocks, 4), SCHEDULERS[scheduler]
    if stages > 1:
        replica: EngineCore = PipelineEngine([times] * stages, allowed, ledger, cache, feed, plan)
    else:
        replica = EngineCore(times, allowed, ledger, cache, feed, plan, fast=False)
    if isinstance(feed, ClosedLoop):
        replica.ends = feed.ended
    replica.run()
    names = ("arrival", "scheduled", "first", "finished", "preempted")
    return {name: column(getattr(ledger, name)).tolist() for name in names}, times, replica


def test_one_request() -> None:
    found, times, replica = serve([(2.0, 10, 3)])
    assert (found["scheduled"], found["first"], found["finished"]) == ([2.0], [3.0], [5.0])
    assert times.seen == [(0, [10]), (1, []), (1, [])] and replica.computed == 10 + 2 and replica.cache.free == 1000


def test_no_answer_ends_with_its_prompt() -> None:
    found, times, _ = serve([(0.0, 10, 0), (0.0, 5, 1)])
    assert found["first"] == found["finished"] == [1.0, 1.0] and times.seen == [(0, [10, 5])]


def test_a_long_prompt_is_cut_and_the_next_one_takes_what_is_left() -> None:
    _, times, _ = serve([(0.0, 25, 2), (0.5, 8, 2)], tokens=10)
    # the first one's last piece leaves 5 tokens of the budget; then it decodes, and 9 are left for the other's rest
    assert times.seen == [(0, [10]), (0, [10]), (0, [5, 5]), (1, [3]), (1, [])]


def test_without_cutting_a_prompt_waits_for_a_step_of_its_own() -> None:
    _, times, _ = serve([(0.0, 6, 1), (0.0, 8, 1)], tokens=10, chunked=False)
    assert times.seen == [(0, [6]), (0, [8])]


def test_a_piece_of_one_prompt_may_be_limited() -> None:
    _, times, _ = serve([(0.0, 25, 1), (0.0, 4, 1)], tokens=100, piece=10)
    assert times.seen == [(0, [10, 4]), (0, [10]), (0, [5])]


def test_who_decodes_comes_before_prompts() -> None:
    _, times, _ = serve([(0.0, 4, 5), (0.0, 4, 5), (0.5, 20, 1)], tokens=10)
    assert times.seen == [(0, [4, 4]), (2, [8]), (2, [8]), (2, [4]), (2, [])]


def test_no_more_sequences_than_allowed() -> None:
    found, _, _ = serve([(0.0, 4, 3), (0.0, 4, 2), (0.0, 4, 2)], seqs=2)
    assert found["scheduled"] == [0.0, 0.0, 2.0]


def test_asynchronous_scheduling_learns_of_arrivals_one_step_later() -> None:
    requests = [(0.0, 10, 9), (0.5, 10, 2)]
    assert serve(requests)[0]["scheduled"] == [0.0, 1.0]
    assert serve(requests, lag=True)[0]["scheduled"] == [0.0, 2.0]
    assert serve([(0.0, 10, 1), (0.5, 10, 2)], lag=True)[0]["scheduled"] == [0.0, 1.0], "nothing else was under way"


def test_an_engine_that_answers_looks_seldom_who_has_come() -> None:
    requests = [(0.0, 4, 40), (2.5, 4, 40), (7.5, 4, 2)]
    assert serve(requests)[0]["scheduled"] == [0.0, 3.0, 8.0]
    # the prompt ends at 1, five steps later somebody looks, then a prompt is in the step and five more follow
    assert serve(requests, interval=5)[0]["scheduled"] == [0.0, 6.0, 12.0]
    assert serve([(0.0, 4, 40), (0.5, 4, 2)], interval=5)[0]["scheduled"][1] == 1.0, "after a prompt it looks at once"
    assert serve([(0.0, 4, 2), (2.5, 4, 2)], interval=5)[0]["scheduled"][1] == 2.5, "and with nothing to do"


def test_whole_prompts_begin_only_when_all_answers_have_room() -> None:
    _, times, _ = serve([(0.0, 6, 1), (0.0, 8, 1), (0.0, 25, 1)], scheduler="trtllm", tokens=10)
    assert times.seen == [(0, [6]), (0, [8, 2]), (0, [10]), (0, [10]), (0, [3])], "what no step has room for is cut"
    # 8 tokens need 2 blocks to their end: the second waits for the first to end, and nobody is preempted
    found, _, _ = serve([(0.0, 4, 5), (0.0, 4, 5)], scheduler="trtllm", blocks=3)
    assert found["scheduled"] == [0.0, 5.0] and found["preempted"] == [0.0, 0.0]


def test_prompts_are_held_back_for_company() -> None:
    requests = [(0.0, 4, 40), (1.5, 4, 2), (3.5, 4, 2)]
    assert serve(requests, scheduler="trtllm")[0]["scheduled"] == [0.0, 2.0, 4.0]
    wait = {"scheduler": "trtllm", "hold": 4}
    assert serve(requests, **wait, company=100)[0]["scheduled"] == [0.0, 6.0, 6.0], "four steps"
    assert serve(requests, **wait, company=9)[0]["scheduled"] == [0.0, 4.0, 4.0], "two prompts and an answer are enough"
    assert serve([(0.0, 4, 2), (5.0, 4, 2)], **wait, company=100)[0]["scheduled"] == [0.0, 5.0], "nobody answers"


def test_a_front_end_reads_one_prompt_after_the_other() -> None:
    trace = Trace(input_tokens=np.array([4, 4, 4]), output_tokens=np.ones(3, int), arrival_s=np.array([0.0, 0.5, 9.0]))
    sent = RequestTable([4] * 3, [1] * 3).arrival
    reading = [2.0, 1.0, 3.0]
    for feed in (OpenLoop(*by_arrival(trace), sent, 0.5, reading), ClosedLoop(trace, sent, 3, 0.5, (), reading)):
        there = []
        while feed.next < np.inf:
            there.append((feed.next, feed.take(feed.next)))
        assert there == [(2.5, [0]), (3.5, [1]), (12.5, [2])] and sent.tolist() == [0.0, 0.5, 9.0]


def test_asynchronous_scheduling_learns_of_ends_one_step_later() -> None:
    requests = [(0.0, 4, 9), (0.0, 4, 2), (0.0, 4, 2)]
    assert serve(requests, seqs=2)[0]["scheduled"][2] == 2.0
    found, times, _ = serve(requests, seqs=2, lag=True)
    assert found["scheduled"][2] == 3.0 and found["finished"][1] == 2.0
    assert times.seen[2] == (1, []), "the place is taken, but no token is computed"
    wasted = serve(requests, seqs=2, lag=True, wasted=True)[1]
    assert wasted.seen[2] == (2, []), "a stop token is not known beforehand: one more is computed in vain"


def test_a_token_in_vain_holds_up_who_comes_next() -> None:
    requests = [(0.0, 4, 2), (2.5, 4, 1)]
    assert serve(requests, lag=True)[0]["scheduled"][1] == 2.5
    assert serve(requests, lag=True, wasted=True)[0]["scheduled"][1] == 3.0


def test_whoever_was_admitted_last_gives_his_blocks() -> None:
    # three blocks: after the prompts one is free, which the first takes at 4 -> 5 tokens; then the second must go
    found, times, replica = serve([(0.0, 4, 4), (0.0, 4, 4)], blocks=3)
    assert found["preempted"] == [0.0, 1.0] and replica.cache.free == 3
    assert times.seen[:2] == [(0, [4, 4]), (1, [])], "it goes before it decodes, and nobody is admitted in that step"
    # its prompt and the one token that it had, when the first has ended
    assert found["finished"][0] == 4.0 and times.seen[4] == (0, [5])
    assert found["first"] == [1.0, 1.0] and found["finished"][1] == 7.0


def test_a_prompt_that_is_cut_begins_when_all_of_it_has_room() -> None:
    found, times, _ = serve([(0.0, 4, 12), (0.5, 24, 1)], blocks=7, tokens=9)
    # its first two pieces would have fitted from 1 s on, and the third not before the other has ended at 12 s
    assert found["preempted"] == [0, 0] and found["scheduled"] == [0.0, 12.0] and found["finished"] == [12.0, 15.0]
    assert times.seen[-3:] == [(0, [9]), (0, [9]), (0, [6])]


def test_a_prompt_under_way_loses_its_blocks_too() -> None:
    found, times, replica = serve([(0.0, 4, 12), (0.5, 24, 1)], blocks=8, tokens=4)
    # all six blocks were free when it began at 1 s; at 7 s it has five and the other, which goes on answering, three
    assert found["preempted"] == [0, 1] and found["scheduled"] == [0.0, 1.0] and replica.cache.free == 8
    assert times.seen[1:8] == [(1, [3])] * 6 + [(1, [])] and found["finished"] == [12.0, 18.0]


def test_priority_goes_first_and_is_preempted_last() -> None:
    found, _, _ = serve([(0.0, 4, 3), (0.1, 4, 1), (0.2, 4, 1)], seqs=1, priority=[0, 2, 1])
    assert found["scheduled"] == [0.0, 4.0, 3.0]
    found, _, _ = serve([(0.0, 4, 4), (0.0, 4, 4)], blocks=3, priority=[1, 0])
    assert found["preempted"] == [1.0, 0.0]


def test_first_come_first_served_whatever_the_order_of_the_file() -> None:
    found, _, _ = serve([(3.0, 4, 1), (0.0, 4, 5), (1.0, 4, 1), (1.0, 4, 1)], seqs=1)
    assert found["scheduled"] == [7.0, 0.0, 5.0, 6.0]


def test_prefill_first_lets_answers_wait() -> None:
    _, times, _ = serve([(0.0, 4, 4), (0.5, 4, 2), (0.5, 98, 2)], scheduler="prefill_first")
    assert times.seen == [(0, [4]), (0, [4]), (0, [98]), (3, []), (1, []), (1, [])]
    assert serve([(0.0, 250, 1)], scheduler="prefill_first")[1].seen == [(0, [250])], "one above the budget comes alone"


def test_static_batches_wait_for_their_longest_answer() -> None:
    found, times, replica = serve([(0.0, 4, 4), (0.0, 4, 2), (0.5, 4, 2)], scheduler="static")
    assert found["finished"][:2] == [4.0, 2.0] and found["scheduled"][2] == 4.0
    assert times.seen == [(0, [4, 4]), (2, []), (2, []), (2, []), (0, [4]), (1, [])] and replica.cache.free == 1000
    # the longest prompt and answer for each: two of them are six blocks
    assert serve([(0.0, 4, 4), (0.0, 4, 8)], scheduler="static", blocks=5)[0]["scheduled"] == [0.0, 4.0]


def test_sarathi_begins_a_prompt_only_if_all_of_it_fits() -> None:
    requests = [(0.0, 4, 6), (0.5, 24, 1)]
    found, _, _ = serve(requests, scheduler="sarathi", blocks=7, tokens=9)
    assert found["preempted"] == [0.0, 0.0] and found["scheduled"] == [0.0, 6.0]


def test_a_closed_loop_sends_when_one_ends() -> None:
    found, _, _ = serve([(0.0, 4, 2)] * 3, most=1)
    assert found["arrival"] == [0.0, 2.0, 4.0] and found["finished"] == [2.0, 4.0, 6.0]
    found, _, _ = serve([(0.0, 4, 2)] * 4, most=2)
    assert sorted(found["arrival"]) == [0.0, 0.0, 2.0, 2.0]


def test_a_turn_comes_after_the_one_before_it_and_a_thought() -> None:
    found, _, _ = serve([(0.0, 4, 2), (0.0, 4, 2), (9.0, 4, 1)], after=[-1, 0, 1], think=0.5)
    assert found["arrival"] == [0.0, 2.5, 9.0] and found["finished"] == [2.0, 4.5, 10.0]


def test_a_pipeline_has_a_batch_for_every_stage() -> None:
    found, times, _ = serve([(0.0, 4, 3), (0.5, 4, 3)], stages=2)
    # the second prompt follows the first through the stages; a token takes both stages
    assert found["first"] == [2.0, 3.0] and found["finished"] == [6.0, 7.0]
    assert times.seen[:4] == [(0, [4]), (0, [4])] * 2


def test_a_prompt_goes_on_in_the_next_batch_of_a_pipeline() -> None:
    found, _, _ = serve([(0.0, 20, 1)], stages=2, tokens=10)
    assert found["first"] == [3.0], "its second piece is in the first stage while its first is in the second"


def test_what_can_never_fit_is_refused() -> None:
    found, _, replica = serve([(0.0, 40, 2), (0.0, 4, 2)], blocks=5, tokens=100)
    assert list(replica.refused) == [0] and "5 blocks of 4 tokens" in replica.refused[0]
    assert np.isnan(found["finished"][0]) and found["finished"][1] == 2.0


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_every_scheduler_serves_everyone_once(name: str) -> None:
    requests = [(0.3 * i, 3 + 5 * (i % 4), i % 5) for i in range(20)]
    found, times, replica = serve(requests, scheduler=name, blocks=40, seqs=4, tokens=30)
    assert not np.isnan(found["finished"]).any() and replica.cache.free == 40
    assert sum(sum(new) for _, new in times.seen) >= sum(prompt for _, prompt, _ in requests)
