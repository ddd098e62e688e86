"""Which plans are simulated, and in which order: the climb to the fewest GPUs, ties, confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.search import finalists
from inferometer.search.explanation import to_candidate
from inferometer.search.finalists import (
    SimulationOptions,
    bisect_down,
    climb,
    ladders,
    ranked,
    simulate_finalists,
)
from inferometer.search.modes import aggregated
from inferometer.search.objective import build_objective, build_traffic
from inferometer.search.plan_simulation import SimulatedCase, SimulationCase
from inferometer.search.plan_table import PlanTable
from inferometer.search.search_result import SimulationResult
from inferometer.search.server_table import estimate_servers
from inferometer.search.space import Problem, build_space, servers


class Probe:
    """A predicate that remembers which indices were tried: ``Probe(4)(3)  # False``"""

    def __init__(self, threshold: int) -> None:
        self.threshold, self.tried = threshold, list[int]()

    def __call__(self, index: int) -> bool:
        self.tried.append(index)
        return index >= self.threshold


def test_climbing_ends_at_the_first_step_that_holds() -> None:
    holds = Probe(4)
    assert climb(9, 1, holds) == (3, 5)
    assert holds.tried == [1, 3, 5]
    assert bisect_down(3, 5, holds) == 4


def test_climbing_tries_the_last_before_it_gives_up() -> None:
    holds = Probe(6)
    assert climb(7, 2, holds) == (5, 6)
    assert holds.tried == [2, 5, 6]
    nothing = Probe(9)
    assert climb(7, 2, nothing) is None
    assert nothing.tried == [2, 5, 6]


def test_climbing_begins_where_estimates_say_that_it_may_hold() -> None:
    holds = Probe(2)
    assert climb(8, 3, holds) == (-1, 3)
    assert holds.tried == [3]
    assert bisect_down(-1, 3, holds) == 2


def test_one_plan_is_tried_once() -> None:
    holds = Probe(1)
    assert climb(1, 0, holds) is None
    assert holds.tried == [0]


@given(st.integers(1, 60), st.integers(0, 70), st.data())
def test_climbing_and_bisection_end_at_the_lowest_that_holds(count: int, threshold: int, data: st.DataObject) -> None:
    holds = Probe(threshold)
    bracket = climb(count, data.draw(st.integers(0, count - 1)), holds)
    assert (bracket is None) == (threshold >= count)
    if bracket is not None:
        assert bisect_down(*bracket, holds) == threshold
        assert len(set(holds.tried)) == len(holds.tried), "no plan is simulated twice"


# ------------------------------------------------------------------ on a table of plans, with a made-up simulator


def table_of(request_rate: float | None, objective: str = "throughput", num_gpus: int = 8) -> PlanTable:
    model = "llama-3.1-8b"
    fixed: dict[str, Any] = {"quantization": "bf16", "kv_cache_dtype": "auto", "max_num_seqs": 256}
    space = build_space(model, ["h200"], num_gpus, modes=("aggregated",), pipeline_parallel_size=1, **fixed)
    traffic = build_traffic(input_len=1000, output_len=200, request_rate=request_rate)
    problem = Problem(model, space, traffic, build_objective(objective, "ttft:500,tpot:30", 0.9))
    table, _ = estimate_servers(servers(space, model)[0], problem)
    assert table is not None
    return PlanTable(problem, table, aggregated(table, problem))


def result(rate: float, holds: bool, good: float = 0.95, e2el_ms: float = 1000.0) -> SimulationResult:
    figures = {"mean": e2el_ms, "share": e2el_ms}
    return SimulationResult(
        request_rate=rate,
        holds=holds,
        good=good if holds else 0.5,
        requests=300,
        concurrency=1.0,
        ttft_ms=figures,
        tpot_ms=figures,
        e2el_ms=figures,
    )


def replicas_and_size(case: SimulationCase) -> tuple[int, int]:
    (pool,) = case.pools
    return pool.replicas, pool.request_kwargs["tensor_parallel_size"]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Simulations (replicas, tp) in their order; three replicas of tp1, or two of a larger server, hold."""
    log: list[tuple[int, int]] = []

    def simulate(case: SimulationCase, server_cache: Any = None) -> SimulatedCase:
        replicas, tp = replicas_and_size(case)
        log.append((replicas, tp))
        return SimulatedCase(1, result(case.traffic.request_rate or 1.0, replicas >= (3 if tp == 1 else 2)))

    monkeypatch.setitem(finalists._CASES, "simulate", simulate)
    monkeypatch.setattr(finalists, "_confirmed", lambda runner, those: sorted(those, key=lambda one: -one.value))
    return log


def test_a_rate_is_held_by_the_fewest_gpus(simulated: list[tuple[int, int]]) -> None:
    table = table_of(request_rate=20.0)
    rows, values = ranked(table)
    ended = simulate_finalists(table, rows, values, SimulationOptions(finalists=4))
    best = table.candidate(ended[0].row)
    assert ended[0].holds and (best.pools[0].replicas, best.pools[0].tensor_parallel_size) == (3, 1)
    assert (2, 1) in simulated, "one replica less was tried and failed"
    assert len(simulated) == len(set(simulated)), "no plan is simulated twice"
    others = [table.candidate(one.row).gpus for one in ended[1:] if one.holds]
    assert others and min(others) >= 4, "plans that come after the best are there for comparison"


def test_ladders_climb_by_gpus_and_prefer_the_lowest_slo_ratio() -> None:
    table = table_of(request_rate=20.0)
    rows, _ = ranked(table)
    plans = table.plans
    for ladder in ladders(table, rows):
        assert len({int(plans.prefill_server[row]) for row in ladder}) == 1
        assert (np.diff(plans.gpus[ladder]) > 0).all()
        for row in ladder:
            server, gpus = plans.prefill_server[row], plans.gpus[row]
            rivals = [r for r in rows if plans.prefill_server[r] == server and plans.gpus[r] == gpus]
            assert plans.slo_ratio[row] == min(plans.slo_ratio[rivals])


def test_latency_ends_when_enough_plans_hold(simulated: list[tuple[int, int]]) -> None:
    table = table_of(request_rate=None, objective="latency")
    rows, values = ranked(table)
    ended = simulate_finalists(table, rows, values, SimulationOptions(finalists=6))
    assert sum(one.holds for one in ended) <= finalists.ENOUGH
    estimated = [table.candidate(row).priced.e2el_ms for row in rows]
    assert estimated == sorted(estimated), "the fastest by estimate come first"


class HighestRates:
    """Plans of which each holds up to a rate, by its tp; what was tried: ``HighestRates({1: 60.0, 2: 58.0})``"""

    def __init__(self, highest: dict[int, float]) -> None:
        self.highest, self.tried = highest, list[tuple[int, float]]()

    def at(self, case: SimulationCase, rate: float) -> SimulationResult:
        tp = replicas_and_size(case)[1]
        self.tried.append((tp, rate))
        return result(rate, rate <= self.highest[tp])

    def max_rate(self, case: SimulationCase, start: float = 0.0, server_cache: Any = None) -> SimulatedCase:
        return SimulatedCase(1, self.at(case, self.highest[replicas_and_size(case)[1]]))

    def challenge(self, case: SimulationCase, low: float, high: float, server_cache: Any = None) -> SimulatedCase:
        final, estimate = self.at(case, low), self.highest[replicas_and_size(case)[1]]
        if final.holds and self.at(case, high).holds:
            return self.max_rate(case)
        return SimulatedCase(1, final, estimate=estimate)


@pytest.mark.parametrize(
    ("highest", "order", "verdicts"),
    [
        ({1: 60.0, 2: 58.0, 4: 40.0}, [1, 2, 4], ["wins", "ties", "beaten"]),
        ({1: 50.0, 2: 80.0, 4: 60.0}, [2, 4, 1], ["wins", "holds", "holds"]),
        ({1: 60.0, 2: 40.0, 4: 41.0}, [1, 4, 2], ["wins", "holds", "beaten"]),
    ],
)
def test_rivals_are_beaten_by_a_rate_that_was_confirmed(
    monkeypatch: pytest.MonkeyPatch, highest: dict[int, float], order: list[int], verdicts: list[str]
) -> None:
    """Nothing is called beaten at a rate above what makes it equal to the winner; the runner-up is measured."""
    table = table_of(request_rate=None, num_gpus=4)
    rows, values = ranked(table)
    plans = HighestRates(highest)
    for name, function in (("simulate", plans.max_rate), ("max_rate", plans.max_rate), ("challenge", plans.challenge)):
        monkeypatch.setitem(finalists._CASES, name, function)
    ended = simulate_finalists(table, rows, values, SimulationOptions(finalists=6))
    candidates = [to_candidate(table, one, ended[0]) for one in ended]
    assert [one.pools[0].tensor_parallel_size for one in candidates] == order
    assert [one.verdict for one in candidates] == verdicts
    best = candidates[0].trial
    assert best is not None and best.request_rate == max(highest.values())
    for one in candidates:
        assert one.trial is not None
        if one.verdict == "beaten":
            assert one.bound == "below" and highest[one.pools[0].tensor_parallel_size] < one.trial.request_rate
            assert one.trial.request_rate <= best.request_rate, "the bound is not above what makes it as good"
    second = candidates[1]
    assert second.trial is not None and second.bound == ""
    assert second.trial.request_rate == highest[second.pools[0].tensor_parallel_size]
    error = table.prediction_error(ended[0].row)
    gap = 1 - highest[order[1]] / highest[order[0]]
    assert (verdicts[1] == "ties") == (gap <= error)


def test_a_winner_that_does_not_last_comes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a given rate the first is simulated again with more requests; if it fails, the next is."""
    table = table_of(request_rate=20.0, num_gpus=4)
    rows, values = ranked(table)

    def simulate(case: SimulationCase, server_cache: Any = None) -> SimulatedCase:
        return SimulatedCase(1, result(20.0, True))

    def confirm(case: SimulationCase, server_cache: Any = None) -> SimulatedCase:
        return SimulatedCase(3, result(20.0, replicas_and_size(case)[1] > 1))

    monkeypatch.setitem(finalists._CASES, "simulate", simulate)
    monkeypatch.setitem(finalists._CASES, "confirm", confirm)
    ended = simulate_finalists(table, rows, values, SimulationOptions(finalists=6))
    assert ended[0].holds and table.candidate(ended[0].row).pools[0].tensor_parallel_size > 1
    assert any(not one.holds and one.simulations == 4 for one in ended), "the one that came down counts all its runs"


@pytest.mark.slow
@pytest.mark.parametrize("request_rate", [None, 30.0])
def test_cases_that_ran_ahead_change_nothing(monkeypatch: pytest.MonkeyPatch, request_rate: float | None) -> None:
    """Workers run cases before their turn; which ones are used, and in which order, is the same."""
    table = table_of(request_rate=request_rate, num_gpus=4)
    rows, values = ranked(table)
    ran: list[int] = []

    @contextmanager
    def workers(backend: str, jobs: int) -> Iterator[Any]:
        def run(function: Any, items: list[Any]) -> list[Any]:
            ran.append(len(items))
            return [function(item) for item in items]

        yield SimpleNamespace(run=run, carry=lambda files: None)

    monkeypatch.setattr(finalists.parallel_map, "worker_pool", workers)
    monkeypatch.setattr(finalists, "WORTH_WORKERS", 0.0)
    alone = simulate_finalists(table, rows, values, SimulationOptions(finalists=4))
    spread = simulate_finalists(table, rows, values, SimulationOptions(finalists=4, jobs=3))
    assert alone == spread and ran


def test_ties_at_a_rate_go_to_goodput_then_to_speed() -> None:
    table = table_of(request_rate=20.0)
    row = ranked(table)[0][0]
    value = finalists.simulated_value
    assert value(table, row, result(20, True, good=0.99)) > value(table, row, result(20, True, good=0.95))
    quick, slow = (value(table, row, result(20, True, e2el_ms=ms)) for ms in (900.0, 1000.0))
    assert quick > slow
