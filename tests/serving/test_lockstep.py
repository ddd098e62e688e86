"""Ranks that meet at the experts step together: what must hold whatever the load is."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from inferometer.base.errors import BadValue
from inferometer.inference.request import build_request
from inferometer.serving.arrivals import OpenLoop, RouterInbox
from inferometer.serving.batch import DecodeBatch
from inferometer.serving.deployment import ServingOptions, scheduler_limits
from inferometer.serving.engine import EngineCore
from inferometer.serving.kv_cache import KVCache
from inferometer.serving.lockstep import LockstepServer, RankEngine
from inferometer.serving.lockstep_cost import RankStep, lockstep_cost
from inferometer.serving.outcome import Outcome
from inferometer.serving.replica_pool import ReplicaPool, build_pool
from inferometer.serving.request_table import RequestTable
from inferometer.serving.router import Fleet
from inferometer.serving.schedulers import SCHEDULERS
from inferometer.serving.simulate import simulate
from inferometer.serving.step_cost import CompiledCost
from inferometer.serving.trace import Trace

MODEL, GPU, RANKS = "qwen3-30b-a3b", "h100-sxm", 4


def requests(count: int, *, rate: float = 20.0, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(
        input_tokens=rng.integers(20, 3000, count),
        output_tokens=rng.integers(1, 200, count),
        arrival_s=np.cumsum(rng.exponential(1 / rate, count)),
        source="test",
    )


@cache
def pool_of(ranks: int, engine: str = "vllm", expert_parallel: bool = True) -> ReplicaPool:
    options = {"engine": engine, "data_parallel_size": ranks, "enable_expert_parallel": expert_parallel}
    longest = Trace(input_tokens=np.array([9000]), output_tokens=np.array([500]), source="test")
    return build_pool(build_request(MODEL, GPU, **options), ranks, longest)


def cost_of(ranks: int, engine: str = "vllm", expert_parallel: bool = True) -> CompiledCost:
    cost = pool_of(ranks, engine, expert_parallel).stages[0]
    assert isinstance(cost, CompiledCost)
    return cost


def batch_of(num_seqs: int, context: int = 1500) -> DecodeBatch:
    batch = DecodeBatch(1000, 16)
    for i in range(num_seqs):
        batch.join(i, context + i, 100)
    return batch


def served(ranks: int, trace: Trace, *, plain: bool, scheduler: str = "vllm", blocks: int = 4000) -> RequestTable:
    """Requests dealt out in turn, by ranks in lock step or each rank as a plain engine."""
    pool = pool_of(ranks, "sglang" if scheduler == "prefill_first" else "vllm")
    limits = scheduler_limits(pool, ServingOptions(scheduler=scheduler))
    limits = limits._replace(results_after_launches=False)  # as with several ranks
    table = RequestTable(trace.input_tokens.tolist(), trace.output_tokens.tolist())
    assert trace.arrival_s is not None
    source = OpenLoop(list(range(len(trace))), trace.arrival_s.tolist(), table.arrival_s)
    kind = EngineCore if plain else RankEngine
    engines = [
        kind(pool.stages[0], limits, table, KVCache(blocks, 16), source.every(k, ranks), SCHEDULERS[scheduler])
        for k in range(ranks)
    ]
    if plain:
        for engine in engines:
            engine.run()
    else:
        LockstepServer([engine for engine in engines if isinstance(engine, RankEngine)]).run()
    assert all(engine.kv_cache.free_blocks == blocks and not engine.running for engine in engines)
    return table


@pytest.mark.parametrize("scheduler", ["vllm", "prefill_first", "trtllm"])
@pytest.mark.parametrize("blocks", [4000, 400])  # 400: requests are preempted, or wait for room
def test_one_rank_is_a_plain_engine(scheduler: str, blocks: int) -> None:
    trace = requests(30)
    alone, plain = (served(1, trace, plain=plain, scheduler=scheduler, blocks=blocks) for plain in (False, True))
    assert np.allclose(alone.first_token_s, plain.first_token_s, rtol=1e-4)
    assert np.allclose(alone.finished_s, plain.finished_s, rtol=1e-4)


def test_equal_loads_are_what_one_rank_assumes_of_the_others() -> None:
    single = requests(20, rate=4.0)
    assert single.arrival_s is not None
    alike = Trace(
        input_tokens=np.repeat(single.input_tokens, RANKS),
        output_tokens=np.repeat(single.output_tokens, RANKS),
        arrival_s=np.repeat(single.arrival_s, RANKS),
        source="test",
    )
    together, apart = served(RANKS, alike, plain=False), served(RANKS, alike, plain=True)
    assert np.allclose(together.finished_s, apart.finished_s, rtol=1e-4)


def test_a_prompt_on_one_rank_delays_the_tokens_of_all() -> None:
    def last_token(prompt_on_another_rank: int) -> float:
        # request 0 decodes on rank 0 when request 1 arrives on rank 1
        lengths = np.array([100, prompt_on_another_rank])
        answers, arrivals = np.array([300, 1]), np.array([0.0, 0.1])
        trace = Trace(input_tokens=lengths, output_tokens=answers, arrival_s=arrivals, source="test")
        return served(2, trace, plain=False).finished_s[0]

    seconds = [last_token(prompt) for prompt in (10, 1000, 4000, 8000)]
    cost = lockstep_cost(cost_of(2))
    step = cost.mixed_seconds([RankStep(batch_of(1), [], 0), RankStep(None, [(999, 8000, 0)], 1)])
    decode = cost.decode_steps([batch_of(1), None], 1, 1.0, 0)[1]
    assert seconds == sorted(seconds)
    assert seconds[-1] - seconds[0] == pytest.approx(step - decode, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["vllm", "prefill_first"])
def test_steps_one_by_one_end_as_those_that_are_summed(scheduler: str) -> None:
    trace = requests(24)
    outcomes = [
        simulate(
            MODEL,
            GPU,
            trace=trace,
            scheduler=scheduler,
            data_parallel_size=RANKS,
            fast_forward=fast_forward,
            num_gpu_blocks_override=500,
            router="least_loaded",
        )
        for fast_forward in (True, False)
    ]
    assert np.allclose(outcomes[0].finished_s, outcomes[1].finished_s, rtol=1e-9)
    assert outcomes[0].steps == outcomes[1].steps
    assert_conserved(trace, outcomes[0])


def assert_conserved(trace: Trace, outcome: Outcome) -> None:
    assert not outcome.rejected and not np.isnan(outcome.finished_s).any()
    assert (outcome.first_token_s <= outcome.finished_s).all() and (outcome.arrival_s <= outcome.scheduled_s).all()
    assert set(outcome.replica.tolist()) == set(range(RANKS))
    assert outcome.output_tokens.sum() == trace.output_tokens.sum()


@pytest.mark.parametrize("expert_parallel", [True, False])
def test_the_same_tokens_take_least_where_they_are_spread_evenly(expert_parallel: bool) -> None:
    cost = lockstep_cost(cost_of(RANKS, expert_parallel=expert_parallel))
    even = cost.mixed_seconds([RankStep(None, [(990 + k, 2000, 0)], 1) for k in range(RANKS)])
    uneven = cost.mixed_seconds(
        [RankStep(None, [(990, 5000, 0)], 1)] + [RankStep(None, [(991 + k, 1000, 0)], 1) for k in range(RANKS - 1)]
    )
    alone = cost.mixed_seconds([RankStep(None, [(990, 8000, 0)], 1)] + [RankStep(None, [], 0)] * (RANKS - 1))
    assert even < uneven < alone
    # and a rank that assumes the others to be as busy as itself assumes too much
    assert alone < cost_of(RANKS, expert_parallel=expert_parallel).mixed_seconds(None, [(990, 8000, 0)], 1)
    batches = [batch_of(n) for n in (70, 10, 10, 10)]
    assert cost.decode_steps(batches, 1, 1.0, 0)[1] > cost.decode_steps([batch_of(25)] * RANKS, 1, 1.0, 0)[1]


def test_ranks_without_graphs_are_not_padded_to_the_largest() -> None:
    cost = lockstep_cost(cost_of(RANKS))
    idle = [RankStep(None, [], 0)] * (RANKS - 1)
    alone = cost.mixed_seconds([RankStep(None, [(990, 4000, 0)], 1), *idle])
    assert cost.mixed_seconds([RankStep(None, [(990, 4000, 0)], 1), RankStep(batch_of(64), [], 0), *idle[1:]]) > alone
    # a decode step is a graph: one busy rank takes what four do but for their attention
    one, all_four = cost.decode_steps([batch_of(64), None, None, None], 1, 1.0, 0), [batch_of(64)] * RANKS
    assert one[1] == pytest.approx(cost.decode_steps(all_four, 1, 1.0, 0)[1])


def test_only_ranks_that_meet_at_experts_step_together() -> None:
    assert pool_of(RANKS).ranks_per_server == RANKS
    dense = build_pool(build_request("qwen3-8b", GPU, data_parallel_size=4), 4, requests(10))
    assert dense.ranks_per_server == 1
    pool, table = pool_of(RANKS), RequestTable([1], [1])
    limits = scheduler_limits(pool, ServingOptions())
    ranks = [
        RankEngine(pool.stages[0], limits, table, KVCache(10, 16), RouterInbox(), SCHEDULERS["vllm"]) for _ in range(4)
    ]
    fleet = Fleet([LockstepServer(ranks)], [RouterInbox() for _ in ranks], [1.0] * 4, "round_robin")
    assert fleet.replicas == ranks and fleet.server_of == [0] * 4 and len(fleet.earliest_finishes) == 1


def test_closed_loops_and_polls_of_several_steps() -> None:
    trace = requests(80)
    outcome = simulate(
        MODEL,
        GPU,
        trace=trace,
        engine="sglang",
        data_parallel_size=RANKS,
        max_concurrency=16,
        scheduler_recv_interval=10,
    )
    assert_conserved(trace, outcome)


# ------------------------------------------------------------------ TensorRT-LLM's attention_dp_config


def begins(timeout_iters: int, batching_wait_iters: int = 0) -> list[float]:
    """When three prompts begin: two ranks decode from 0 on; the third prompt is rank 0's, and no other comes."""
    pool = pool_of(2)
    limits = scheduler_limits(pool, ServingOptions(scheduler="trtllm"))._replace(
        attention_dp_timeout_iters=timeout_iters,
        attention_dp_batching_wait_iters=batching_wait_iters,
        async_scheduling=False,
    )
    table = RequestTable([10, 10, 10], [500, 500, 5])
    source = OpenLoop([0, 1, 2], [0.0, 0.0, 0.05], table.arrival_s)
    engines = [
        RankEngine(pool.stages[0], limits, table, KVCache(500, 16), source.every(k, 2), SCHEDULERS["trtllm"])
        for k in range(2)
    ]
    LockstepServer(engines).run()
    return list(table.scheduled_s)


def test_a_prompt_waits_for_those_of_the_other_ranks_until_the_timeout() -> None:
    step = lockstep_cost(cost_of(2)).decode_steps([batch_of(1, 20)] * 2, 1, 1.0, 0)[1]
    at_once, at_forty, at_eighty = (begins(timeout)[2] for timeout in (0, 40, 80))
    assert 0.05 <= at_once <= 0.05 + 1.1 * step
    first = begins(40)[0]
    for begun, timeout in ((at_forty, 40), (at_eighty, 80)):  # at a whole number of timeouts, whenever it came
        steps = round((begun - first) / step)
        assert begun >= 0.05 and steps % timeout <= 3 and steps < 0.05 / step + timeout + 3


@pytest.mark.slow
def test_held_prompts_end_the_same_step_by_step() -> None:
    options = {"attention_dp_timeout_iters": 30, "attention_dp_batching_wait_iters": 4, "max_concurrency": 12}
    trace = requests(20)
    outcomes = [
        simulate(MODEL, GPU, trace=trace, engine="trtllm", data_parallel_size=RANKS, fast_forward=fast, **options)
        for fast in (True, False)
    ]
    assert np.allclose(outcomes[0].finished_s, outcomes[1].finished_s, rtol=1e-9)
    assert_conserved(trace, outcomes[0])


def test_balance_is_of_trtllm_and_takes_a_timeout() -> None:
    with pytest.raises(BadValue, match="scheduler trtllm, not to vllm"):
        simulate(MODEL, GPU, trace=requests(1), attention_dp_timeout_iters=5)
    with pytest.raises(BadValue, match="give attention_dp_timeout_iters"):
        simulate(MODEL, GPU, trace=requests(1), engine="trtllm", attention_dp_batching_wait_iters=5)
