"""The finalists: the best plans by their estimates are simulated until no other can be better.

Without a given rate, the first plan's highest rate is searched; every other must hold a little more than the rate that
would make it as good, and only plans that do are looked at closely. Plans come in the order of their optimistic
estimates, so that the search may end where even those are below what was simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..base import parallel_map
from ..serving.deployment import ReplicaPool
from .plan_simulation import CONFIRM, PlanSimulator, SimulatedCase, simulate_case
from .plan_table import PlanTable, Status, ranking
from .search_result import SimulationResult

AHEAD = 1.01  # a plan must hold this much more than the rate that makes it as good, to be better
ENOUGH = 3  # plans that hold a given rate, before the search ends
SHOWN = 5  # plans that are simulated even where estimates say that they lose


class Finalist(NamedTuple):
    """A plan that was simulated."""

    row: int  # of the plan table
    results: list[SimulationResult]
    final: SimulationResult | None  # at the given rate, or the highest that holds, or the one that it failed
    reason: str  # why it cannot run at all
    value: float  # of the objective; -inf if it does not hold

    @property
    def holds(self) -> bool:
        """Whether it holds the SLO in its final simulation."""
        return self.value > -np.inf


class SimulationOptions(NamedTuple):
    """How many simulations, and where they run."""

    finalists: int
    backend: str = "processes"
    jobs: int = 1
    address: str | None = None
    progress: Callable[[int], None] | None = None
    server_cache: dict[str, ReplicaPool] | None = None  # simulated servers: plans have many in common

    def report(self, done: int) -> None:
        """So many plans have been simulated."""
        if self.progress is not None:
            self.progress(done)


def ranked(table: PlanTable) -> tuple[list[int], np.ndarray]:
    """Rows that may win, best first, one for every number of every server; and the optimistic value of all rows."""
    p = table.plans
    values = table.value(p._replace(request_rate=p.optimistic_rate))
    possible = p.status == Status.MEETS_SLO
    order = ranking(p, np.where(possible, values, -np.inf), table.servers)
    best: dict[tuple[int, ...], int] = {}
    for row in order[: int(possible.sum())].tolist():
        columns = (p.prefill_server, p.replicas, p.decode_server, p.decode_replicas)
        best.setdefault(tuple(int(column[row]) for column in columns), row)
    return list(best.values()), values


def simulate_finalists(
    table: PlanTable, rows: list[int], values: np.ndarray, options: SimulationOptions
) -> list[Finalist]:
    """Simulate ranked rows; the winner comes first, then plans that hold, then those that do not."""
    if options.backend != "processes" or options.jobs > 1:
        finalists = _in_parallel(table, rows, options)
    elif table.problem.objective.name == "latency":
        finalists = _by_latency(table, rows, options)
    elif table.problem.traffic.request_rate is not None:
        finalists = _by_fewest_gpus(table, rows, values, options)
    else:
        finalists = _by_max_rate(table, rows, values, options)
    return _confirmed(table, finalists, options)


def _confirmed(table: PlanTable, finalists: list[Finalist], options: SimulationOptions) -> list[Finalist]:
    """Best first, of which the first has held in a longer run with other requests; one that does not comes down."""
    confirmed: set[int] = set()
    while True:
        finalists = sorted(finalists, key=lambda one: -one.value)
        first = finalists[0] if finalists else None
        if first is None or not first.holds or first.row in confirmed or first.final is None:
            return finalists
        confirmed.add(first.row)
        simulator = PlanSimulator(table.simulation_case(first.row), options.server_cache)
        rate = first.final.request_rate
        final = simulator.confirm(rate) if table.compares_rates else simulator.simulate(rate, CONFIRM)
        finalists[0] = _finalist(table, first.row, SimulatedCase([*first.results, *simulator.results], final))


def _finalist(table: PlanTable, row: int, simulated: SimulatedCase) -> Finalist:
    results, final, reason = simulated
    if final is None or not final.holds:
        return Finalist(row, results, final or (results[-1] if results else None), reason, -np.inf)
    return Finalist(row, results, final, reason, simulated_value(table, row, final))


def simulated_value(table: PlanTable, row: int, result: SimulationResult) -> float:
    """The objective of a simulated plan.

    At a given rate plans on as many GPUs are worth the same: ties go to the higher goodput, then to faster answers.
    """
    plan = table.plans.at([row])._replace(
        request_rate=np.array([result.request_rate]),
        tpot=np.array([result.tpot_ms["mean"] / 1e3]),
        ttft=np.array([result.ttft_ms["mean"] / 1e3]),
    )
    value = float(table.value(plan)[0])
    tie = result.good * 1e-3 - result.e2el_ms["mean"] * 1e-9 if table.problem.traffic.request_rate else 0.0
    return value + abs(value) * tie


def _in_parallel(table: PlanTable, rows: list[int], options: SimulationOptions) -> list[Finalist]:
    """Batches of finalists at once, on processes or a cluster, until one holds."""
    finalists: list[Finalist] = []
    count = options.finalists
    if table.problem.traffic.request_rate:
        rows = sorted(rows, key=lambda row: bool(table.plans.slo_ratio[row] > 1))
    with parallel_map.worker_pool(options.backend, options.jobs, options.address) as run:
        for start in range(0, min(len(rows), 8 * count), count):
            batch = rows[start : start + count]
            simulated = run(simulate_case, [table.simulation_case(row) for row in batch])
            finalists += [_finalist(table, row, SimulatedCase(*one)) for row, one in zip(batch, simulated, strict=True)]
            options.report(len(finalists))
            if any(one.holds for one in finalists):
                break
    return finalists


class _Simulations:
    """Plans simulated one after the other: ``simulations.holds(row)``"""

    def __init__(self, table: PlanTable, values: np.ndarray, options: SimulationOptions) -> None:
        self.table, self.values, self.options = table, values, options
        self.finalists: list[Finalist] = []
        self.best = -np.inf  # highest optimistic value of the plans that hold

    @property
    def held(self) -> list[Finalist]:
        """The plans that hold."""
        return [one for one in self.finalists if one.holds]

    def holds(self, row: int) -> bool:
        """Simulate a plan: at the given rate, or for the objective latency at its estimated one."""
        simulated = simulate_case(self.table.simulation_case(row), self.options.server_cache)
        finalist = _finalist(self.table, row, simulated)
        self.finalists.append(finalist)
        self.options.report(len(self.finalists))
        if finalist.holds:
            self.best = max(self.best, float(self.values[row]))
        return finalist.holds


def _by_latency(table: PlanTable, rows: list[int], options: SimulationOptions) -> list[Finalist]:
    """Objective latency: simulate plans in order of their estimated end-to-end latency until ENOUGH hold."""
    simulations = _Simulations(table, np.zeros(len(table.plans.gpus)), options)
    for row in rows[: 4 * options.finalists]:
        if len(simulations.held) >= ENOUGH:
            break
        simulations.holds(row)
    return simulations.finalists


def _by_fewest_gpus(
    table: PlanTable, rows: list[int], values: np.ndarray, options: SimulationOptions
) -> list[Finalist]:
    """A given rate: for each server (or pair of servers) the fewest GPUs that hold it, as far as that may be best.

    Of each server, plans with more GPUs are more likely to hold and worth less. Until a plan holds, the number of GPUs
    climbs; afterwards only plans count that would be as good as the best. Then it is bisected down.
    """
    simulations = _Simulations(table, values, options)
    count = options.finalists
    for number, ladder in enumerate(ladders(table, rows)):
        held = len(simulations.held)
        if held >= count or len(simulations.finalists) >= 8 * count or (held and number >= 2 * count):
            break

        def holds(index: int, ladder: list[int] = ladder) -> bool:
            return simulations.holds(ladder[index])

        best = simulations.best
        if best == -np.inf:
            start = next((n for n, row in enumerate(ladder) if table.plans.slo_ratio[row] <= 1), 0)
            bracket = climb(len(ladder), start, holds)
        else:
            as_good = [n for n, row in enumerate(ladder) if values[row] >= best - abs(best) * 1e-9]
            bracket = (-1, as_good[-1]) if as_good and holds(as_good[-1]) else None
        if bracket is not None:
            bisect_down(*bracket, holds)
    _simulate_runners_up(simulations, rows)
    return simulations.finalists


def ladders(table: PlanTable, rows: list[int]) -> list[list[int]]:
    """For each server (or pair), in the order of ``rows``, its plans by rising number of GPUs.

    Of several plans on as many GPUs the one with the lowest SLO ratio counts.
    """
    p = table.plans
    by_gpus: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:
        steps = by_gpus.setdefault((int(p.prefill_server[row]), int(p.decode_server[row])), {})
        gpus = int(p.gpus[row])
        if gpus not in steps or p.slo_ratio[row] < p.slo_ratio[steps[gpus]]:
            steps[gpus] = row
    return [[row for _, row in sorted(steps.items())] for steps in by_gpus.values()]


def climb(count: int, start: int, holds: Callable[[int], bool]) -> tuple[int, int] | None:
    """Indices (low, high) of which high holds and low does not, or is -1; None if nothing up to the last holds.

    From ``start`` up in steps of ``start + 1``, so that a bisection below ``high`` takes few tries; the last index is
    tried before giving up: ``climb(9, 1, lambda n: n >= 4)  # (3, 5): 1 and 3 fail, 5 holds``
    """
    low = -1
    for high in range(start, count, start + 1):
        if holds(high):
            return low, high
        low = high
    last = count - 1
    return (low, last) if low < last and holds(last) else None


def bisect_down(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The lowest index that holds, given that ``high`` does and ``low`` does not (or is -1).

    ``bisect_down(3, 7, lambda n: n >= 4)  # 4``
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _simulate_runners_up(simulations: _Simulations, rows: list[int]) -> None:
    """Plans of other servers that are worth less than the best, for comparison, until ENOUGH hold."""
    p = simulations.table.plans

    def servers(row: int) -> tuple[int, int]:
        return int(p.prefill_server[row]), int(p.decode_server[row])

    for row in rows:
        held = simulations.held
        if not held or len(held) >= ENOUGH:
            break
        worse = simulations.values[row] < simulations.best and p.slo_ratio[row] <= 1
        if worse and servers(row) not in {servers(one.row) for one in held}:
            simulations.holds(row)


def _by_max_rate(table: PlanTable, rows: list[int], values: np.ndarray, options: SimulationOptions) -> list[Finalist]:
    """No given rate: the highest rate of the first plan; of each other one if it holds what would make it better."""
    finalists: list[Finalist] = []
    best: Finalist | None = None
    simulators: dict[int, PlanSimulator] = {}
    for done, row in enumerate(rows):
        if best is not None and ((values[row] < best.value and done >= SHOWN) or done >= options.finalists):
            break
        if best is None and done >= 4 * options.finalists:
            break
        simulator = simulators[row] = PlanSimulator(table.simulation_case(row), options.server_cache)
        final: SimulationResult | None = None
        if not simulator.reason and best is None:
            final = simulator.max_rate(simulator.case.estimated_rate)
        elif not simulator.reason and best is not None:
            target = _equal_rate(table, row, float(values[row]), best.value) * AHEAD
            final = simulator.simulate(target)
            if final.holds:
                final = simulator.max_rate(target * AHEAD) or final
        finalist = _finalist(table, row, SimulatedCase(simulator.results, final, simulator.reason))
        finalists.append(finalist)
        if finalist.value > (best.value if best is not None else -np.inf):
            best = finalist
        options.report(done + 1)
    return _with_runner_up(table, finalists, best, values, simulators)


def _equal_rate(table: PlanTable, row: int, value: float, best: float) -> float:
    """The rate at which a plan of this optimistic value would be as good as the best.

    Values are tokens/s (positive), or cost or energy of a token (negative); both go with the rate.
    """
    ratio = best / value if value > 0 else value / best
    return float(table.plans.optimistic_rate[row]) * ratio


def _with_runner_up(
    table: PlanTable,
    finalists: list[Finalist],
    best: Finalist | None,
    values: np.ndarray,
    simulators: dict[int, PlanSimulator],
) -> list[Finalist]:
    """The highest rate also of the beaten plan with the best estimate, so that the winner's margin is measured."""
    others = [one for one in finalists if one is not best]
    second = max((one.value for one in others), default=-np.inf)
    beaten = [one for one in others if not one.holds and one.final is not None and values[one.row] > second]
    if best is None or not beaten:
        return finalists
    nearest = max(beaten, key=lambda one: float(values[one.row]))
    simulator = simulators[nearest.row]
    final = simulator.max_rate(simulator.results[-1].request_rate / AHEAD**3)
    measured = _finalist(table, nearest.row, SimulatedCase(simulator.results, final))
    return [measured if one is nearest else one for one in finalists]
