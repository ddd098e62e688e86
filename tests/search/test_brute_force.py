"""The search against brute force: plain loops over floats, every plan by itself, nothing shared and nothing pruned.

This proves that arrays, shared pipeline stages and pruned pairs change nothing: `one_load` has the same queueing
formulas as `search.steady_state`, written for floats. That the formulas are near the truth is another test's business:
`test_search.test_means_are_near_what_is_simulated` compares them with the simulator.
"""

from __future__ import annotations

from math import ceil, exp, log
from typing import Any, NamedTuple

import numpy as np
import pytest

from inferometer.costs.binding import stage_plans
from inferometer.costs.step import Group, Step
from inferometer.inference import memory
from inferometer.inference.cache_size import cache_bytes
from inferometer.inference.latency import frontend_seconds, stage_seconds
from inferometer.search.modes import aggregated, disaggregated
from inferometer.search.objective import Traffic, build_objective, build_traffic
from inferometer.search.plan_table import Plans, PlanTable, Status, front_rows, value
from inferometer.search.server_table import ServerTable, estimate_servers
from inferometer.search.space import Problem, Server, build_space, servers
from inferometer.search.steady_state import MAX_UTILIZATION, MIXED_BATCHING, concurrency_grid
from inferometer.serving.kv_cache import kv_transfer_seconds

CASES = [
    ("llama-3.1-8b", {"num_gpus": 2, "input_len": 2000, "output_len": 200}, "ttft:150,tpot:15", {}),
    ("llama-3.1-8b", {"num_gpus": 3, "input_len": 700, "output_len": 300}, "tpot:9", {"engine": "sglang"}),
    ("qwen3-30b-a3b", {"num_gpus": 2, "input_len": 900, "output_len": 150}, "ttft:400,tpot:40", {}),
    ("llama-3.1-8b", {"num_gpus": 3, "input_len": 2000, "output_len": 200, "request_rate": 9.0}, "tpot:12", {}),
]
LIMITS = {"max_num_batched_tokens": [2048, 8192], "max_num_seqs": [8, 48]}


class OneLoad(NamedTuple):
    """One load of one server, by hand."""

    rate: float
    ttft: float
    queue: float
    utilization: float
    tpot: float


def steps_of(
    server: Server, traffic: Traffic, d: float, prompts: float, heat: float, prompt_ranks: float | None = None
) -> list[float]:
    """Seconds on every stage of a step with d decoding sequences and so many tokens of prompts."""
    bound_plan = server.bind()
    ranks = {"prompt_ranks": prompt_ranks} if prompt_ranks is not None else {}
    bound_plan = bound_plan._replace(env={**bound_plan.env, "thermal_state": heat, **ranks})
    groups = [Group(d, 1, traffic.input_len + traffic.output_len / 2, 1, True)] if d else []
    if prompts:
        chunk = min(traffic.input_len, prompts)
        groups.append(Group(prompts / chunk, chunk, (traffic.input_len - chunk) / 2, chunk / traffic.input_len))
    return [float(t) for t in stage_seconds(bound_plan, Step(tuple(groups)))]


def one_load(server: Server, traffic: Traffic, budget: int, d: float) -> OneLoad:
    """The mean field, written out for floats."""
    engine, micro_batches, bound_plan = server.request.engine, server.layout.pp, server.bind()
    prompt, decode_tokens, mixes = traffic.input_len, traffic.output_len - 1, engine.scheduler in MIXED_BATCHING
    arrivals = d / decode_tokens
    room = budget - d if mixes else budget
    together = prompt * round(arrivals / (1 - exp(-arrivals)))
    chunks = ceil(prompt / max(room, 1)) if mixes else 1
    if mixes and chunks > 1:
        crowd = min(arrivals * prompt / max(room, 1), 1)
        new = prompt / (chunks + crowd * (prompt / max(room, 1) - chunks))
    else:
        new = min(together, max(room, 1) if mixes else prompt * max(room // prompt, 1))
    often = arrivals * prompt / new
    often = min(often, 1.0) if mixes else often
    own, dp, at_experts = often, int(bound_plan.env["dp"]), None
    if dp > 1:  # a prompt on any rank is a step for all
        often = own * (1 - (1 - min(own, 1)) ** dp) / min(own, 1)
        at_experts = dp * own / often
    decode = steps_of(server, traffic, d, 0, 0.0)
    mixed = steps_of(server, traffic, d if mixes else 0, new, 0.0, at_experts)
    if bound_plan.env["throttle"]:
        mean = max(decode) * (1 - often * mixes) + often * max(mixed)
        share = new / (new + (d if mixes else 0))
        heat = min(own * max(mixed) / mean, 1) * share
        mixed = steps_of(server, traffic, d if mixes else 0, new, heat, at_experts)
    several = mixes and micro_batches > 1
    held = 1 - (1 - often) ** ((chunks + micro_batches - 1) / chunks) if several else often
    both = [max(sum(t), micro_batches * max(t)) for t in (decode, mixed)]
    period = both[0] * (1 - held * mixes) + held * both[1]
    interval = period / micro_batches
    utilization = arrivals * prompt / max(room, 1) if mixes else often * max(mixed) / interval
    rate = micro_batches * d / decode_tokens / period if utilization < 1 and room > 0 else 0.0
    second = max(decode) ** 2 * (1 - often * mixes) + often * max(mixed) ** 2
    ahead = interval if engine.async_scheduling and micro_batches == 1 else 0.0
    busy = 1 - exp(-micro_batches * d)
    each = max(mixed) * (prompt / max(room, 1) if mixes else own / arrivals)
    full = min(utilization, MAX_UTILIZATION)
    queue = full / (1 - full) / 2 * each + busy * (second / interval - max(decode)) / 2
    fixed = frontend_seconds(bound_plan, prompt) + busy * (max(decode) / 2 + ahead)
    return OneLoad(rate * server.layout.dp, fixed + sum(mixed) + (chunks - 1) * max(mixed), queue, utilization, period)


def max_seqs(server: Server, traffic: Traffic, budget: int, seqs: int) -> float:
    """Sequences that the fullest stage has memory for."""
    bound_plan = server.bind()
    engine, usable = server.request.engine, server.request.device.memory * server.request.plan.gpu_memory_utilization
    if engine.profile_run:
        rows = min(seqs, budget)
        largest = Step((Group(rows, budget / rows, 0, 1),))
    else:
        chunk = min(budget, traffic.input_len)
        largest = Step((Group(budget / chunk, chunk, traffic.input_len - chunk, 1),))
    fewest = float("inf")
    for stage in stage_plans(bound_plan):
        fixed = memory.weight_bytes(stage) + engine.memory_reserve + memory.activation_bytes(stage, largest)
        left = usable - fixed - cache_bytes(stage, float(traffic.max_len))
        each = float(cache_bytes(stage, traffic.input_len + traffic.output_len / 2))
        fewest = min(fewest, 1 + left // each if left >= 0 else 0)
    return fewest


def late_ttft(load: OneLoad, ranks: int, share: float) -> float:
    """TTFT that the share that counts keeps, where requests are dealt out to so many ranks."""
    rho = min(max(load.utilization, 1e-9), MAX_UTILIZATION)
    even = 1 / ranks * exp(-2 * (1 - rho) / 3 / rho * (1 - 1 / ranks) ** 2 * ranks)
    return load.ttft + load.queue * even * max(log(rho / (1 - share)) / rho, 1.0)


def keeps(problem: Problem, ttft: float, tpot: float) -> bool:
    metrics = {"ttft": ttft, "tpot": tpot, "e2el": ttft + (problem.traffic.output_len - 1) * tpot}
    return all(metrics[name] <= limit for name, limit in problem.objective.slo.items())


def brute(problem: Problem, legal: list[Server]) -> list[tuple[float, Any]]:
    """Every plan that keeps the limits at some load, with its value: tokens/s per GPU."""
    space, traffic = problem.space, problem.traffic
    plans: list[tuple[float, Any]] = []
    loads = [float(d) for d in concurrency_grid(max(space.max_num_seqs))]
    for server in legal:
        micro_batches, most = server.layout.pp, space.num_gpus // server.layout.gpus
        for budget in space.max_num_batched_tokens:
            estimated = {d: one_load(server, traffic, budget, d) for d in loads}
            for seqs in space.max_num_seqs:
                if server.request.engine.scheduler in MIXED_BATCHING and seqs > budget:
                    continue
                room = max_seqs(server, traffic, budget, seqs)
                for replicas in range(1, most + 1) if traffic.request_rate else [most]:
                    best: float | None = None
                    for d in loads:
                        one = estimated[d]
                        if not one.rate or micro_batches * d > min(room, seqs):
                            continue
                        if traffic.request_rate and one.rate * replicas < traffic.request_rate:
                            continue
                        late = late_ttft(one, replicas * server.layout.dp, problem.objective.goodput_share)
                        carried = traffic.request_rate or one.rate * replicas
                        gpus = replicas * server.layout.gpus if traffic.request_rate else space.num_gpus
                        if keeps(problem, late, one.tpot):
                            best = max(best or 0.0, carried * traffic.output_len / gpus)
                        if traffic.request_rate:
                            break  # the lightest load that carries it is the plan's
                    if best is not None:
                        plans.append((best, (server.layout, server.kind, budget, seqs, replicas)))
    return plans


def brute_pairs(problem: Problem, legal: list[Server]) -> list[float]:
    """Every pair of pools without pipeline stages, at every load: tokens/s per GPU of those that keep the limits."""
    space, traffic = problem.space, problem.traffic
    throughputs = []
    default = legal[0].request.plan
    for prefill in legal:
        for decode in legal:
            if prefill.kind != decode.kind or prefill.layout.pp > 1 or decode.layout.pp > 1:
                continue
            transfer = [
                kv_transfer_seconds(side, side, np.array([round(traffic.input_len)]))[0]
                for side in (prefill.bind(), decode.bind())
            ]
            budgets = sorted(space.max_num_batched_tokens, key=lambda b: abs(b - default.max_num_batched_tokens))
            limits = sorted(space.max_num_seqs, key=lambda s: abs(s - default.max_num_seqs))
            room = max_seqs(decode, traffic, budgets[0], limits[0])
            for budget in space.max_num_batched_tokens:
                chunks = ceil(traffic.input_len / budget)
                alone = sum(steps_of(prefill, traffic, 0, traffic.input_len / chunks, 1.0)) * chunks
                full = sum(steps_of(prefill, traffic, 0, budget, 1.0))
                dp = prefill.layout.dp
                prefill_rate = min(dp * budget / traffic.input_len / full, dp / transfer[0])
                for x in range(1, space.num_gpus + 1):
                    y = (space.num_gpus - x * prefill.layout.gpus) // decode.layout.gpus
                    for d in (float(d) for d in concurrency_grid(max(space.max_num_seqs))):
                        if y < 1 or d > min(room, max(space.max_num_seqs)):
                            continue
                        tpot = sum(steps_of(decode, traffic, d, 0, 0.0))
                        rate = y * decode.layout.dp * d / (traffic.output_len - 1) / tpot
                        utilization = rate / (x * prefill_rate)
                        rho = min(utilization, MAX_UTILIZATION)
                        wait = rho / (1 - rho) / 2 * dp / prefill_rate
                        ahead = 1.5 if decode.request.engine.async_scheduling else 0.5
                        fixed = frontend_seconds(prefill.bind(), traffic.input_len) + alone + max(transfer)
                        one = OneLoad(rate, fixed + (1 + ahead) * tpot, wait, utilization, tpot)
                        late = late_ttft(one, x * dp, problem.objective.goodput_share)
                        if dp > 1:  # the rest of the step that another rank's prompt is in
                            busy = min(rate / x * dp / prefill_rate, 1)
                            late += dp / prefill_rate * max(1 - (1 - problem.objective.goodput_share) / busy, 0)
                        if utilization < 1 and keeps(problem, late, tpot):
                            throughputs.append(rate * traffic.output_len / space.num_gpus)
    return throughputs


def kept_values(plans: Plans, table: ServerTable, problem: Problem) -> dict[tuple[Any, ...], float]:
    """Value of the plans that keep the limits, by server, limits and replicas."""
    kept = plans.at((plans.status == Status.MEETS_SLO) & (plans.slo_ratio <= 1))
    indices = (kept.prefill_server, kept.token_budget, kept.seqs, kept.replicas, value(kept, table, problem))
    values = {}
    for server, budget, seqs, replicas, worth in zip(*(column.tolist() for column in indices), strict=True):
        limits = int(table.max_num_batched_tokens[budget]), int(table.max_num_seqs[seqs])
        values[table.servers[server].layout, table.servers[server].kind, *limits, replicas] = worth
    return values


@pytest.mark.slow
@pytest.mark.parametrize(("model", "load", "limits", "kwargs"), CASES)
def test_every_plan_is_what_plain_loops_say(
    model: str, load: dict[str, Any], limits: str, kwargs: dict[str, Any]
) -> None:
    traffic = build_traffic(**{key: given for key, given in load.items() if key != "num_gpus"})
    fixed = {"modes": ("aggregated",), "frontend": "http", "kv_cache_dtype": "auto", **LIMITS}
    space = build_space(model, ["h200"], load["num_gpus"], **fixed, **kwargs)
    problem = Problem(model, space, traffic, build_objective("throughput", limits, 0.9))
    legal, _ = servers(space, model)
    table, shortfalls = estimate_servers(legal, problem)
    assert table is not None and not any(shortfalls)
    ours = kept_values(aggregated(table, problem), table, problem)
    theirs = {key: worth for worth, key in brute(problem, legal)}
    assert set(ours) == set(theirs) and len(ours) > 3
    for key, worth in theirs.items():
        assert ours[key] == pytest.approx(worth, rel=1e-9), key


@pytest.mark.slow
def test_pools_that_are_left_out_are_no_better() -> None:
    model = "qwen3-30b-a3b"
    fixed = {"modes": ("disaggregated",), "frontend": "http", "quantization": "fp8", "kv_cache_dtype": "fp8", **LIMITS}
    space = build_space(model, ["h200"], 3, **fixed)
    traffic = build_traffic(input_len=1500, output_len=200)
    problem = Problem(model, space, traffic, build_objective("throughput", "ttft:250,tpot:12", 0.9))
    legal, _ = servers(space, model)
    table, _ = estimate_servers(legal, problem)
    assert table is not None
    plans, considered = disaggregated(table, problem)
    assert plans is not None and considered > len(plans.gpus)
    kept = plans.at((plans.status == Status.MEETS_SLO) & (plans.slo_ratio <= 1))
    assert max(brute_pairs(problem, legal)) == pytest.approx(float(value(kept, table, problem).max()), rel=1e-9)


def test_the_front_is_what_comparing_all_with_all_gives() -> None:
    model = "llama-3.1-8b"
    space = build_space(model, ["h200", "h100-sxm"], 2, modes=("aggregated",), frontend="http", **LIMITS)
    traffic = build_traffic(input_len=1000, output_len=100)
    problem = Problem(model, space, traffic, build_objective("throughput", "tpot:30", 0.9))
    legal, _ = servers(space, model)
    table, _ = estimate_servers(legal, problem)
    assert table is not None
    rows, points = front_rows(PlanTable(problem, table, aggregated(table, problem)))
    columns = np.stack([points.per_gpu, points.per_user, -points.cost], 1)
    beaten = [bool(((columns >= one).all(1) & (columns > one).any(1)).any()) for one in columns]
    left = {tuple(one) for one, lost in zip(columns.tolist(), beaten, strict=True) if not lost}
    shown = {
        (p["output_throughput_per_gpu"], p["output_throughput_per_user"], -p["cost_per_million_output_tokens"])
        for p in rows
    }
    assert shown == left


@pytest.mark.slow
def test_kernels_that_layouts_share_are_as_those_of_each_alone() -> None:
    """`SeenKernels` saves lookups and changes nothing: layouts estimated together are as each by itself."""
    space = build_space("qwen3-30b-a3b", ["h200"], 4, modes=("aggregated", "disaggregated"))
    traffic = build_traffic(input_len=900, output_len=150)
    problem = Problem("qwen3-30b-a3b", space, traffic, build_objective("throughput", "tpot:40", 0.9))
    legal, _ = servers(problem.space, problem.model)
    together, _ = estimate_servers(legal, problem)
    assert together is not None
    for number in range(0, len(legal), 7):
        alone, _ = estimate_servers([legal[number]], problem)
        if alone is None:
            continue
        row = together.servers.index(legal[number])
        for name in ("tpot", "base_ttft", "request_rate", "decode_tpot", "prefill_rate"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0], err_msg=name)
