"""Which plans are simulated, and in which order: the climb to the fewest GPUs, ties, confirmation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.search import finalists
from inferometer.search.finalists import SimulationOptions, bisect_down, climb, ladders, ranked, simulate_finalists
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

    def simulate(case: SimulationCase, cache: Any = None) -> SimulatedCase:
        replicas, tp = replicas_and_size(case)
        log.append((replicas, tp))
        one = result(case.traffic.request_rate or 1.0, replicas >= (3 if tp == 1 else 2))
        return SimulatedCase([one], one)

    monkeypatch.setattr(finalists, "simulate_case", simulate)
    monkeypatch.setattr(finalists, "_confirmed", lambda table, those, options: sorted(those, key=lambda f: -f.value))
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


class FakeSimulator:
    """A plan that holds up to a rate: ``limits`` by row, ``confirmed`` in the longer run."""

    limits: dict[int, float]
    longer: dict[int, float]

    def __init__(self, case: SimulationCase, cache: Any = None) -> None:
        self.case, self.reason, self.results = case, "", list[SimulationResult]()
        self.tp = replicas_and_size(case)[1]

    def simulate(self, rate: float, longer: int = 1) -> SimulationResult:
        one = result(rate, rate <= (self.longer if longer > 1 else self.limits)[self.tp])
        self.results.append(one)
        return one

    def max_rate(self, start: float) -> SimulationResult | None:
        return self.simulate(self.limits[self.tp])

    def confirm(self, start: float) -> SimulationResult | None:
        one = self.simulate(min(start, self.longer[self.tp]), 3)
        return one if one.holds else None


def test_a_winner_that_does_not_last_comes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(request_rate=None, num_gpus=2)
    rows, values = ranked(table)
    by_estimate = [table.candidate(row).pools[0].tensor_parallel_size for row in rows]
    assert sorted(by_estimate) == [1, 2]
    limits = {1: 60.0, 2: 58.0}
    monkeypatch.setattr(FakeSimulator, "limits", limits, raising=False)
    monkeypatch.setattr(FakeSimulator, "longer", {1: 40.0, 2: 58.0}, raising=False)
    monkeypatch.setattr(finalists, "PlanSimulator", FakeSimulator)
    ended = simulate_finalists(table, rows, values, SimulationOptions(finalists=6))
    order = [(table.candidate(one.row).pools[0].tensor_parallel_size, one.final) for one in ended]
    rates = {size: final.request_rate for size, final in order if final is not None}
    assert order[0][0] == 2 and rates == {2: 58.0, 1: 40.0}


def test_ties_at_a_rate_go_to_goodput_then_to_speed() -> None:
    table = table_of(request_rate=20.0)
    row = ranked(table)[0][0]
    value = finalists.simulated_value
    assert value(table, row, result(20, True, good=0.99)) > value(table, row, result(20, True, good=0.95))
    quick, slow = (value(table, row, result(20, True, e2el_ms=ms)) for ms in (900.0, 1000.0))
    assert quick > slow
