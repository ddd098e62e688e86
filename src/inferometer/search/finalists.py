"""The finalists: the best plans by their estimates are simulated until no other can be better.

Without a given rate, the first plan's highest rate is searched. Every other must hold the rate that would make it as
good, less what predictions are off: one that does not is beaten. One that holds that is tried a little above the rate
that makes it as good, and only plans that hold this, too, are looked at closely. All are compared with a rate that was
confirmed.
Plans come in the order of their optimistic estimates, so that the search may end where even those are below what was
simulated.

Workers change nothing but the time: they run cases ahead of their turn, and each case is a function of its key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..base import parallel_map
from ..base.files import noted_files, settled
from ..serving.replica_pool import ReplicaPool
from .plan_simulation import SimulatedCase, SimulationCase, challenge, confirm_case, max_rate_case, simulate_case
from .plan_table import PlanTable, Status, ranking
from .search_result import SimulationResult

ENOUGH = 3  # plans that hold a given rate, before the search ends
AHEAD = 1.015  # a plan must hold this much more than the rate that makes it as good, to be better
SHOWN = 5  # plans that are simulated even where estimates say that they lose
WORTH_WORKERS = 2.0  # s of simulations: starting processes takes about half a second each
AT_MOST, AT_LEAST = "below", "at least"  # what a rate in `Finalist.bound` is, where it is not the plan's highest

Key = tuple[Any, ...]  # of a case: its function's name, the row of the plan table, rates


class Finalist(NamedTuple):
    """A plan that was simulated."""

    row: int  # of the plan table
    simulations: int
    final: SimulationResult | None  # at the given rate, or the highest that holds, or the one that it failed
    reason: str  # why it cannot run at all
    value: float  # of the objective; -inf if it does not hold
    bound: str = ""  # "at least": it holds more, but not what would make it better than the best; "below": it failed
    estimate: float = 0.0  # requests/s: where its highest rate is, if `final` is not at it

    @property
    def holds(self) -> bool:
        """Whether it holds the SLO in its final simulation."""
        return self.value > -np.inf


class SimulationOptions(NamedTuple):
    """How many simulations, and where they run."""

    finalists: int
    jobs: int = 1  # simulations at a time
    pool: parallel_map.TaskPool | None = None  # a cluster; without one, processes begin when they are worth it
    files: Mapping[str, Path] = MappingProxyType({})  # the user's files that plans are made of
    progress: Callable[[int], None] | None = None
    server_cache: dict[str, ReplicaPool] | None = None  # simulated servers: plans have many in common

    def report(self, done: int) -> None:
        """So many plans have been simulated."""
        if self.progress is not None:
            self.progress(done)

    @property
    def lost(self) -> list[str]:
        """How a cluster went away, as a warning."""
        return [self.pool.lost] if self.pool is not None and self.pool.lost else []


@contextmanager
def simulation_options(
    finalists: int, backend: str, jobs: int | None, address: str | None
) -> Iterator[SimulationOptions]:
    """Where simulations run, from now on: a cluster is reached at once, so that a wrong address is said at once.

    ``with simulation_options(12, "dask", None, "tcp://scheduler:8786") as options: …``
    """
    parallel_map.check_backend(backend, jobs, address)
    with ExitStack() as stack, noted_files() as files:
        if backend == "processes":
            yield SimulationOptions(finalists, jobs or 1, files=files)
        else:
            pool = stack.enter_context(parallel_map.worker_pool(backend, jobs, address))
            yield SimulationOptions(finalists, pool.slots, pool, files)


# ------------------------------------------------------------------ cases, here or on workers


class CaseRunner:
    """Runs cases when their turn comes, or ahead of it on workers: ``runner.run("simulate", row)``"""

    def __init__(self, table: PlanTable, options: SimulationOptions) -> None:
        self.table, self.options = table, options
        self.results: dict[Key, SimulatedCase] = {}
        self.seconds: list[float] = []  # of the cases that ran here
        self.stack = ExitStack()
        self.pool = options.pool
        if self.pool is not None:
            self.pool.carry(options.files)

    def __enter__(self) -> CaseRunner:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stack.close()

    def run(self, *key: Any) -> SimulatedCase:
        """The result of a case."""
        if key not in self.results:
            began = perf_counter()
            self.results[key] = _run_case((key, self._case(key)), self.options.server_cache)
            self.seconds.append(perf_counter() - began)
        return self.results[key]

    def ahead(self, keys: list[Key]) -> None:
        """Cases that will probably be needed: as many as there are workers are run now, if that is worth while."""
        jobs = self.options.jobs
        keys = [key for key in keys if key not in self.results][:jobs]
        each = max(self.seconds, default=0.0)
        if jobs < 2 or len(keys) < 2 or (self.pool is None and self._is_small(each)):
            return
        if self.pool is None:
            self.pool = self.stack.enter_context(parallel_map.worker_pool("processes", jobs))
            self.pool.carry(self.options.files)
        results = self.pool.run(_run_case, [(key, self._case(key)) for key in keys])
        self.results |= {key: SimulatedCase(*result) for key, result in zip(keys, results, strict=True)}

    def _is_small(self, seconds_per_case: float) -> bool:
        return self.options.finalists * seconds_per_case < WORTH_WORKERS

    def _case(self, key: Key) -> SimulationCase:
        return self.table.simulation_case(key[1])


_CASES: dict[str, Callable[..., SimulatedCase]] = {
    "simulate": simulate_case,
    "confirm": confirm_case,
    "challenge": challenge,
    "max_rate": max_rate_case,
}
_SERVERS: dict[tuple[Path, ...], dict[str, ReplicaPool]] = {}  # of a worker, by its files: cases have some in common


def _run_case(work: tuple[Key, SimulationCase], server_cache: dict[str, ReplicaPool] | None = None) -> SimulatedCase:
    (name, _, *rates), case = work
    if server_cache is None:
        server_cache = _SERVERS.setdefault(tuple(settled.values()), {})
    return _CASES[name](case, *rates, server_cache=server_cache)


# ------------------------------------------------------------------ which plans, and in which order


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
    with CaseRunner(table, options) as runner:
        if table.compares_rates:
            return _by_max_rate(runner, rows, values)
        if table.problem.objective.name == "latency":
            finalists = _by_latency(runner, rows)
        else:
            finalists = _by_fewest_gpus(runner, rows, values)
        return _confirmed(runner, finalists)


def _confirmed(runner: CaseRunner, finalists: list[Finalist]) -> list[Finalist]:
    """Best first, of which the first has held with further draws of requests; one that does not comes down."""
    confirmed: set[int] = set()
    while True:
        finalists = sorted(finalists, key=lambda one: -one.value)
        first = finalists[0] if finalists else None
        if first is None or not first.holds or first.row in confirmed:
            return finalists
        confirmed.add(first.row)
        again = runner.run("confirm", first.row)
        finalists[0] = _finalist(
            runner.table, first.row, again._replace(simulations=first.simulations + again.simulations)
        )


def _finalist(table: PlanTable, row: int, simulated: SimulatedCase, bound: str = "") -> Finalist:
    simulations, final, reason, estimate = simulated
    if final is None or not final.holds:
        return Finalist(row, simulations, final, reason, -np.inf, AT_MOST, estimate)
    return Finalist(row, simulations, final, reason, simulated_value(table, row, final), bound, estimate)


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


class _Simulations:
    """Plans simulated one after the other: ``simulations.holds(row)``"""

    def __init__(self, runner: CaseRunner, values: np.ndarray) -> None:
        self.runner, self.table, self.values = runner, runner.table, values
        self.finalists: list[Finalist] = []
        self.best = -np.inf  # highest optimistic value of the plans that hold

    @property
    def held(self) -> list[Finalist]:
        """The plans that hold."""
        return [one for one in self.finalists if one.holds]

    def ahead(self, rows: list[int]) -> None:
        """Plans that will probably be simulated."""
        self.runner.ahead([("simulate", row) for row in rows])

    def holds(self, row: int) -> bool:
        """Simulate a plan: at the given rate, or for the objective latency at its estimated one."""
        finalist = _finalist(self.table, row, self.runner.run("simulate", row))
        self.finalists.append(finalist)
        self.runner.options.report(len(self.finalists))
        if finalist.holds:
            self.best = max(self.best, float(self.values[row]))
        return finalist.holds


def _by_latency(runner: CaseRunner, rows: list[int]) -> list[Finalist]:
    """Objective latency: simulate plans in order of their estimated end-to-end latency until ENOUGH hold."""
    simulations = _Simulations(runner, np.zeros(len(runner.table.plans.gpus)))
    rows = rows[: 4 * runner.options.finalists]
    for number, row in enumerate(rows):
        if len(simulations.held) >= ENOUGH:
            break
        simulations.ahead(rows[number:])
        simulations.holds(row)
    return simulations.finalists


def _by_fewest_gpus(runner: CaseRunner, rows: list[int], values: np.ndarray) -> list[Finalist]:
    """A given rate: for each server (or pair of servers) the fewest GPUs that hold it, as far as that may be best.

    Of each server, plans with more GPUs are more likely to hold and worth less. Until a plan holds, the number of GPUs
    climbs; afterwards only plans count that would be as good as the best. Then it is bisected down.
    """
    simulations = _Simulations(runner, values)
    table, count = runner.table, runner.options.finalists
    climbs = ladders(table, rows)
    for number, ladder in enumerate(climbs):
        held = len(simulations.held)
        if held >= count or len(simulations.finalists) >= 8 * count or (held and number >= 2 * count):
            break

        def holds(index: int, ladder: list[int] = ladder) -> bool:
            return simulations.holds(ladder[index])

        best = simulations.best
        if best == -np.inf:
            start = next((n for n, row in enumerate(ladder) if table.plans.slo_ratio[row] <= 1), 0)
            simulations.ahead(ladder[start :: start + 1])
            bracket = climb(len(ladder), start, holds)
        else:
            simulations.ahead([each[place] for each in climbs[number:] if (place := _as_good(each, values, best)) >= 0])
            last = _as_good(ladder, values, best)
            bracket = (-1, last) if last >= 0 and holds(last) else None
        if bracket is not None:
            bisect_down(*bracket, holds)
    _simulate_runners_up(simulations, rows)
    return simulations.finalists


def _as_good(ladder: list[int], values: np.ndarray, best: float) -> int:
    """Index of the last plan of a ladder that would be as good as the best; -1 if none would."""
    return max((n for n, row in enumerate(ladder) if values[row] >= best - abs(best) * 1e-9), default=-1)


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


# ------------------------------------------------------------------ no given rate: the highest


def _by_max_rate(runner: CaseRunner, rows: list[int], values: np.ndarray) -> list[Finalist]:
    """No given rate: the highest rate of the first plan; of each other one if it holds what would make it as good."""
    table, options = runner.table, runner.options
    finalists: list[Finalist] = []
    best: Finalist | None = None
    for done, row in enumerate(rows):
        if best is not None and ((values[row] < best.value and done >= SHOWN) or done >= options.finalists):
            break
        if best is None and done >= 4 * options.finalists:
            break
        if best is None:
            finalist = _finalist(table, row, runner.run("simulate", row))
        else:
            following = [
                one
                for n, one in enumerate(rows[done : options.finalists], done)
                if n < SHOWN or values[one] >= best.value
            ]
            runner.ahead([_challenge_key(table, one, values, best) for one in following])
            finalist = _challenged(runner, row, values, best)
        finalists.append(finalist)
        if finalist.holds and not finalist.bound and (best is None or finalist.value > best.value):
            best = finalist
        options.report(done + 1)
    return _with_runner_up(runner, finalists, values, best)


def _challenge_key(table: PlanTable, row: int, values: np.ndarray, best: Finalist) -> Key:
    equal = _equal_rate(table, row, float(values[row]), best.value)
    return "challenge", row, equal * (1 - table.prediction_error(best.row)), equal * AHEAD


def _challenged(runner: CaseRunner, row: int, values: np.ndarray, best: Finalist) -> Finalist:
    """A plan against the best so far, whose rate has been confirmed."""
    key = _challenge_key(runner.table, row, values, best)
    simulated = runner.run(*key)
    is_low = simulated.final is not None and simulated.final.request_rate == key[2]
    return _finalist(runner.table, row, simulated, AT_LEAST if is_low else "")


def _equal_rate(table: PlanTable, row: int, value: float, best: float) -> float:
    """The rate at which a plan of this optimistic value would be as good as the best.

    Values are tokens/s (positive), or cost or energy of a token (negative); both go with the rate.
    """
    ratio = best / value if value > 0 else value / best
    return float(table.plans.optimistic_rate[row]) * ratio


def _value_at(table: PlanTable, row: int, value: float, rate: float) -> float:
    """What a plan of this optimistic value is worth at a rate."""
    ratio = max(rate, 1e-12) / float(table.plans.optimistic_rate[row])
    return value * ratio if value > 0 else value / ratio


def _with_runner_up(
    runner: CaseRunner, finalists: list[Finalist], values: np.ndarray, best: Finalist | None
) -> list[Finalist]:
    """Best first. Of the others, the highest rate of the one that came nearest is found, too: the margin is measured.

    A plan that only held its own against an earlier best is tried against the last.
    """
    if best is None:
        return finalists
    finalists = [_challenged(runner, one.row, values, best) if one.bound == AT_LEAST else one for one in finalists]
    others = [one for one in finalists if one is not best and one.final is not None]
    unmeasured = [one for one in others if one.bound]
    if unmeasured:
        nearest = max(
            unmeasured, key=lambda one: _value_at(runner.table, one.row, float(values[one.row]), one.estimate)
        )
        measured = runner.run("max_rate", nearest.row, nearest.estimate)
        if measured.final is not None:
            measured = measured._replace(simulations=nearest.simulations + measured.simulations)
            runner_up = _finalist(runner.table, nearest.row, measured)
            finalists = [runner_up if one is nearest else one for one in finalists]
    return sorted(finalists, key=lambda one: -one.value)
