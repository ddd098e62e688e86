"""The search against brute force: plain loops over floats, every plan by itself, nothing shared and nothing pruned."""

from __future__ import annotations

from math import ceil, exp, log
from typing import Any, NamedTuple

import numpy as np
import pytest

from inferometer.costs.binding import stage_plans
from inferometer.costs.step import Group, Step
from inferometer.inference import memory
from inferometer.inference.latency import frontend_seconds, stage_seconds
from inferometer.search.disaggregated import disaggregated
from inferometer.search.front import listed
from inferometer.search.objective import Aim, Traffic, aim, traffic
from inferometer.search.plan_table import MET, Book, aggregated, joined, value
from inferometer.search.server_costs import prices
from inferometer.search.space import Server, Space, servers, space
from inferometer.search.steady_state import FULL, MIXING, grid
from inferometer.serving.deployment import ReplicaPool, kv_transfer_seconds

CASES = [
    ("llama-3.1-8b", {"num_gpus": 2, "input_len": 2000, "output_len": 200}, "ttft:150,tpot:15", {}),
    ("llama-3.1-8b", {"num_gpus": 3, "input_len": 700, "output_len": 300}, "tpot:9", {"engine": "sglang"}),
    ("qwen3-30b-a3b", {"num_gpus": 2, "input_len": 900, "output_len": 150}, "ttft:400,tpot:40", {}),
    ("llama-3.1-8b", {"num_gpus": 3, "input_len": 2000, "output_len": 200, "request_rate": 9.0}, "tpot:12", {}),
]
LIMITS = {"max_num_batched_tokens": [2048, 8192], "max_num_seqs": [8, 48]}


class Priced(NamedTuple):
    """One load of one server, by hand."""

    rate: float
    ttft: float
    queue: float
    used: float
    tpot: float


def steps_of(server: Server, asked: Traffic, budget: int, d: float, prompts: float, heat: float) -> list[float]:
    """Seconds on every stage of a step with d answers and so many tokens of prompts."""
    bound_plan = server.bind()
    bound_plan = bound_plan._replace(env={**bound_plan.env, "thermal_state": heat})
    groups = [Group(d, 1, asked.input_len + asked.output_len / 2, 1, True)] if d else []
    if prompts:
        piece = min(asked.input_len, prompts)
        groups.append(Group(prompts / piece, piece, (asked.input_len - piece) / 2, piece / asked.input_len))
    return [float(t) for t in stage_seconds(bound_plan, Step(tuple(groups)))]


def one_load(server: Server, asked: Traffic, budget: int, d: float) -> Priced:
    """The mean field, written out for floats."""
    engine, lanes, bound_plan = server.request.engine, server.layout.pp, server.bind()
    prompt, answers, mixes = asked.input_len, asked.output_len - 1, engine.scheduler in MIXING
    begun = d / answers
    room = budget - d if mixes else budget
    together = prompt * round(begun / (1 - exp(-begun)))
    pieces = ceil(prompt / max(room, 1)) if mixes else 1
    if mixes and pieces > 1:
        crowd = min(begun * prompt / max(room, 1), 1)
        new = prompt / (pieces + crowd * (prompt / max(room, 1) - pieces))
    else:
        new = min(together, max(room, 1) if mixes else prompt * max(room // prompt, 1))
    often = begun * prompt / new
    often = min(often, 1.0) if mixes else often
    plain = steps_of(server, asked, budget, d, 0, 0.0)
    mixed = steps_of(server, asked, budget, d if mixes else 0, new, 0.0)
    if bound_plan.env["throttle"]:
        mean = max(plain) * (1 - often * mixes) + often * max(mixed)
        share = new / (new + (d if mixes else 0))
        mixed = steps_of(server, asked, budget, d if mixes else 0, new, min(often * max(mixed) / mean, 1) * share)
    held = 1 - (1 - often) ** ((pieces + lanes - 1) / pieces) if mixes and lanes > 1 else often
    both = [max(sum(t), lanes * max(t)) for t in (plain, mixed)]
    period = both[0] * (1 - held * mixes) + held * both[1]
    top = period / lanes
    used = begun * prompt / max(room, 1) if mixes else often * max(mixed) / top
    rate = lanes * d / answers / period if used < 1 and room > 0 else 0.0
    second = max(plain) ** 2 * (1 - often * mixes) + often * max(mixed) ** 2
    ahead = top if engine.async_scheduling and lanes == 1 else 0.0
    busy = 1 - exp(-lanes * d)
    each = max(mixed) * (prompt / max(room, 1) if mixes else often / begun)
    full = min(used, FULL)
    queue = full / (1 - full) / 2 * each + busy * (second / top - max(plain)) / 2
    ttft = (
        frontend_seconds(bound_plan, prompt) + busy * (max(plain) / 2 + ahead) + sum(mixed) + (pieces - 1) * max(mixed)
    )
    return Priced(rate * server.layout.dp, ttft, queue, used, period)


def room_for(server: Server, asked: Traffic, budget: int, seqs: int) -> float:
    """Sequences that the fullest stage has memory for."""
    bound_plan = server.bind()
    engine, usable = server.request.engine, server.request.device.memory * server.request.plan.gpu_memory_utilization
    if engine.profile_run:
        rows = min(seqs, budget)
        largest = Step((Group(rows, budget / rows, 0, 1),))
    else:
        piece = min(budget, asked.input_len)
        largest = Step((Group(budget / piece, piece, asked.input_len - piece, 1),))
    found = float("inf")
    for part in stage_plans(bound_plan):
        fixed = memory.weight_bytes(part) + engine.memory_reserve + memory.activation_bytes(part, largest)
        left = usable - fixed - memory.cache_bytes(part, float(asked.longest))
        each = float(memory.cache_bytes(part, asked.input_len + asked.output_len / 2))
        found = min(found, 1 + left // each if left >= 0 else 0)
    return found


def waits(priced: Priced, ranks: int, share: float) -> tuple[float, float]:
    """Mean TTFT, and what the share that counts keeps, where requests are dealt out to so many ranks."""
    used = min(max(priced.used, 1e-9), FULL)
    even = 1 / ranks * exp(-2 * (1 - used) / 3 / used * (1 - 1 / ranks) ** 2 * ranks)
    late = max(log(used / (1 - share)) / used, 1.0)
    return priced.ttft + priced.queue * even, priced.ttft + priced.queue * even * late


def brute(where: Space, asked: Traffic, wanted: Aim, able: list[Server]) -> list[tuple[float, Any]]:
    """Every plan that keeps the limits at some load, with what it is worth: tokens/s per GPU."""
    found: list[tuple[float, Any]] = []
    loads = [float(d) for d in grid(max(where.sequences))]

    def keeps(late: float, tpot: float) -> bool:
        figures = {"ttft": late, "tpot": tpot, "e2el": late + (asked.output_len - 1) * tpot}
        return all(figures[name] <= limit for name, limit in wanted.limits.items())

    for server in able:
        lanes, most = server.layout.pp, where.num_gpus // server.layout.gpus
        for budget in where.budgets:
            priced = {d: one_load(server, asked, budget, d) for d in loads}
            for seqs in where.sequences:
                if server.request.engine.scheduler in MIXING and seqs > budget:
                    continue
                room = room_for(server, asked, budget, seqs)
                for replicas in range(1, most + 1) if asked.rate else [most]:
                    best: float | None = None
                    for d in loads:
                        one = priced[d]
                        if not one.rate or lanes * d > min(room, seqs):
                            continue
                        if asked.rate and one.rate * replicas < asked.rate:
                            continue
                        _, late = waits(one, replicas * server.layout.dp, wanted.share)
                        carried = asked.rate or one.rate * replicas
                        gpus = replicas * server.layout.gpus if asked.rate else where.num_gpus
                        if keeps(late, one.tpot):
                            best = max(best or 0.0, carried * asked.output_len / gpus)
                        if asked.rate:
                            break  # the lightest load that carries it is the plan's
                    if best is not None:
                        found.append((best, (server.layout, server.kind, budget, seqs, replicas)))
    return found


def brute_pools(where: Space, asked: Traffic, wanted: Aim, able: list[Server]) -> list[float]:
    """Every pair of pools without pipeline stages, at every load: tokens/s per GPU of those that keep the limits."""
    found = []
    default = able[0].request.plan
    for reader in able:
        for writer in able:
            if reader.kind != writer.kind or reader.layout.pp > 1 or writer.layout.pp > 1:
                continue
            sent = [
                kv_transfer_seconds(side, side, np.array([round(asked.input_len)]))[0]
                for side in (ReplicaPool(s.bind(), 1, [], 0, 0, "", ()) for s in (reader, writer))
            ]
            budgets = sorted(where.budgets, key=lambda b: abs(b - default.max_num_batched_tokens))
            limits = sorted(where.sequences, key=lambda s: abs(s - default.max_num_seqs))
            room = room_for(writer, asked, budgets[0], limits[0])
            for budget in where.budgets:
                pieces = ceil(asked.input_len / budget)
                alone = sum(steps_of(reader, asked, budget, 0, asked.input_len / pieces, 1.0)) * pieces
                full = sum(steps_of(reader, asked, budget, 0, budget, 1.0))
                dp = reader.layout.dp
                reading = min(dp * budget / asked.input_len / full, dp / sent[0])
                for x in range(1, where.num_gpus + 1):
                    y = (where.num_gpus - x * reader.layout.gpus) // writer.layout.gpus
                    for d in (float(d) for d in grid(max(where.sequences))):
                        if y < 1 or d > min(room, max(where.sequences)):
                            continue
                        gap = sum(steps_of(writer, asked, budget, d, 0, 0.0))
                        rate = y * writer.layout.dp * d / (asked.output_len - 1) / gap
                        used = rate / (x * reading)
                        wait = min(used, FULL) / (1 - min(used, FULL)) / 2 * dp / reading
                        ahead = 1.5 if writer.request.engine.async_scheduling else 0.5
                        fixed = frontend_seconds(reader.bind(), asked.input_len) + alone + max(sent) + (1 + ahead) * gap
                        _, late = waits(Priced(rate, fixed, wait, used, gap), x * dp, wanted.share)
                        figures = {"ttft": late, "tpot": gap}
                        if used < 1 and all(figures[name] <= limit for name, limit in wanted.limits.items()):
                            found.append(rate * asked.output_len / where.num_gpus)
    return found


@pytest.mark.parametrize(("model", "load", "limits", "words"), CASES)
def test_every_plan_is_what_plain_loops_say(
    model: str, load: dict[str, Any], limits: str, words: dict[str, Any]
) -> None:
    count = load["num_gpus"]
    asked = traffic(**{key: given for key, given in load.items() if key != "num_gpus"})
    wanted = aim("throughput", limits, 0.9, asked.output_len)
    where = space(
        model, ["h200"], count, modes=("aggregated",), frontend="http", kv_cache_dtype="auto", **LIMITS, **words
    )
    able, _ = servers(where, model)
    table, lacks = prices(able, where, asked)
    assert table is not None and not any(lacks)
    plans = aggregated(table, where, asked, wanted)
    kept = plans.at((plans.verdict == MET) & (plans.miss <= 1))
    mine = {
        (table.servers[a].layout, table.servers[a].kind, int(table.budgets[t]), int(table.sequences[s]), int(r)): v
        for a, t, s, r, v in zip(
            kept.first.tolist(),
            kept.budget.tolist(),
            kept.seqs.tolist(),
            kept.replicas.tolist(),
            value(kept, table, where, asked, wanted).tolist(),
            strict=True,
        )
    }
    theirs = {key: worth for worth, key in brute(where, asked, wanted, able)}
    assert set(mine) == set(theirs) and len(mine) > 3
    for key, worth in theirs.items():
        assert mine[key] == pytest.approx(worth, rel=1e-9), key


def test_pools_that_are_left_out_are_no_better() -> None:
    asked = traffic(input_len=1500, output_len=200)
    wanted = aim("throughput", "ttft:250,tpot:12", 0.9, 200)
    where = space(
        "qwen3-30b-a3b",
        ["h200"],
        3,
        modes=("disaggregated",),
        frontend="http",
        quantization="fp8",
        kv_cache_dtype="fp8",
        **LIMITS,
    )
    able, _ = servers(where, "qwen3-30b-a3b")
    table, _ = prices(able, where, asked)
    assert table is not None
    plans, considered = disaggregated(table, where, asked, wanted)
    assert plans is not None and considered > len(plans.first)
    kept = plans.at((plans.verdict == MET) & (plans.miss <= 1))
    best = brute_pools(where, asked, wanted, able)
    assert max(best) == pytest.approx(float(value(kept, table, where, asked, wanted).max()), rel=1e-9)


def test_the_front_is_what_comparing_all_with_all_gives() -> None:
    asked = traffic(input_len=1000, output_len=100)
    wanted = aim("throughput", "tpot:30", 0.9, 100)
    where = space("llama-3.1-8b", ["h200", "h100-sxm"], 2, modes=("aggregated",), frontend="http", **LIMITS)
    able, _ = servers(where, "llama-3.1-8b")
    table, _ = prices(able, where, asked)
    assert table is not None
    book = Book("llama-3.1-8b", where, asked, wanted, table, joined([aggregated(table, where, asked, wanted)]))
    found, every = listed(book)
    columns = np.stack([every.per_gpu, every.per_user, -every.cost], 1)
    beaten = [bool(((columns >= one).all(1) & (columns > one).any(1)).any()) for one in columns]
    left = {tuple(one) for one, lost in zip(columns.tolist(), beaten, strict=True) if not lost}
    shown = {
        (p["output_throughput_per_gpu"], p["output_throughput_per_user"], -p["cost_per_million_output_tokens"])
        for p in found
    }
    assert shown == left
