"""Who wins under real arrivals: the best-priced plans are simulated until no other can be better.

Without a rate to carry, the first plan's highest rate is found; every other must hold a little more than what would
make it as good, and only who does is looked at closely. Plans are taken in the order of their prices, in favour of each
as far as means may be off, until even that is below what was simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..base import parallel_map
from ..serving.deployment import ReplicaPool
from .plan_simulation import LONGER, Bench, Trial, tried
from .plan_table import MET, Book, order, value

MORE = 1.01  # of its rate must a plan hold to be better
PASSED = 3  # plans that hold a given rate, before the search ends
SHOWN = 5  # plans that are simulated even where prices say that they lose


class Entry(NamedTuple):
    """A plan that was simulated."""

    row: int
    trials: list[Trial]
    final: Trial | None  # at the given rate, or the highest that holds, or the one that it failed
    reason: str  # why it cannot run at all
    value: float  # of the objective; -inf if it does not hold


class Ways(NamedTuple):
    """How many simulations, and where they run."""

    finalists: int
    backend: str
    jobs: int
    address: str | None
    progress: Callable[[int], None] | None = None
    known: dict[str, ReplicaPool] | None = None  # servers that were simulated: plans have many in common

    def told(self, done: int) -> None:
        """So many plans have been simulated."""
        if self.progress is not None:
            self.progress(done)


def ranked(book: Book) -> tuple[list[int], np.ndarray]:
    """Rows that may win, best first, one for every number of every server; and the value of all rows."""
    values = value(book.plans._replace(rate=book.plans.hope), book.prices, book.space, book.traffic, book.aim)
    rows = order(book.plans, np.where(book.plans.verdict == MET, values, -np.inf), book.prices)
    p = book.plans
    seen: set[tuple[int, ...]] = set()
    found: list[int] = []
    for row in rows[: int((p.verdict == MET).sum())].tolist():
        key = (int(p.first[row]), int(p.replicas[row]), int(p.second[row]), int(p.others[row]))
        if key not in seen:
            seen.add(key)
            found.append(row)
    return found, values


def contest(book: Book, rows: list[int], values: np.ndarray, ways: Ways) -> list[Entry]:
    """Simulate finalists; the winner comes first, then those that hold, then those that do not."""
    if ways.backend != "processes" or ways.jobs > 1:
        found = _everyone(book, rows, ways)
    elif book.aim.objective == "latency":
        found = list(_by_answer(book, rows, ways))
    elif book.traffic.rate is not None:
        found = _at_the_rate(book, rows, values, ways)
    else:
        found = _highest(book, rows, values, ways)
    return _confirmed(book, found, ways)


def _confirmed(book: Book, found: list[Entry], ways: Ways) -> list[Entry]:
    """Best first, of which the first has held in a longer run with other requests; who does not may come down."""
    free = book.traffic.rate is None and book.aim.objective != "latency"
    sure: set[int] = set()
    while True:
        found = sorted(found, key=lambda one: -one.value)
        first = found[0] if found else None
        if first is None or first.value == -np.inf or first.row in sure or first.final is None:
            return found
        sure.add(first.row)
        bench = Bench(book.contender(first.row), book.traffic, book.aim, ways.known)
        rate = first.final.request_rate
        final = bench.confirmed(rate) if free else bench.at(rate, LONGER)
        found[0] = _entry(book, first.row, [*first.trials, *bench.tried], final, "")


def _entry(book: Book, row: int, trials: list[Trial], final: Trial | None, reason: str) -> Entry:
    if final is None or not final.holds:
        return Entry(row, trials, final or (trials[-1] if trials else None), reason, -np.inf)
    return Entry(row, trials, final, reason, worth(book, row, final))


def worth(book: Book, row: int, trial: Trial) -> float:
    """What the objective makes of a simulated plan."""
    seen = {"rate": trial.request_rate, "tpot": trial.tpot_ms["mean"] / 1e3, "ttft": trial.ttft_ms["mean"] / 1e3}
    one = book.plans.at([row])._replace(**{word: np.array([figure]) for word, figure in seen.items()})
    found = float(value(one, book.prices, book.space, book.traffic, book.aim)[0])
    # at a given rate plans on as many GPUs are worth the same: more requests that keep the limits, then faster ones
    tie = trial.good * 1e-3 - trial.e2el_ms["mean"] * 1e-9 if book.traffic.rate else 0.0
    return found + abs(found) * tie


def _everyone(book: Book, rows: list[int], ways: Ways) -> list[Entry]:
    """Finalists at once, on processes or a cluster; at a given rate more of them until one holds."""
    found: list[Entry] = []
    ordered = sorted(rows, key=lambda row: bool(book.plans.miss[row] > 1)) if book.traffic.rate else rows
    with parallel_map.worker_pool(ways.backend, ways.jobs, ways.address) as run:
        for start in range(0, min(len(ordered), 8 * ways.finalists), ways.finalists):
            some = ordered[start : start + ways.finalists]
            asked = [(book.contender(row), book.traffic, book.aim, book.traffic.rate) for row in some]
            found += [_entry(book, row, *one) for row, one in zip(some, run(tried, asked), strict=True)]
            ways.told(len(found))
            if any(one.value > -np.inf for one in found):
                break
    return found


def _by_answer(book: Book, rows: list[int], ways: Ways) -> Iterable[Entry]:
    """Plans by how fast they answer, until some hold."""
    passed = 0
    for done, row in enumerate(rows[: 4 * ways.finalists]):
        if passed >= PASSED:
            return
        trials, final, reason = tried((book.contender(row), book.traffic, book.aim, book.traffic.rate), ways.known)
        passed += final is not None and final.holds
        ways.told(done + 1)
        yield _entry(book, row, trials, final, reason)


def _at_the_rate(book: Book, rows: list[int], values: np.ndarray, ways: Ways) -> list[Entry]:
    """The fewest GPUs that carry the rate: servers one after the other, each in the number that would be as good."""
    p, found = book.plans, []
    ladders: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:  # of every pair of servers and number of GPUs, the plan that is furthest from the limits
        steps = ladders.setdefault((int(p.first[row]), int(p.second[row])), {})
        gpus = int(p.gpus[row])
        if gpus not in steps or p.miss[row] < p.miss[steps[gpus]]:
            steps[gpus] = row
    best = -np.inf

    def holds(row: int) -> bool:
        nonlocal best
        trials, final, reason = tried((book.contender(row), book.traffic, book.aim, book.traffic.rate), ways.known)
        found.append(_entry(book, row, trials, final, reason))
        ways.told(len(found))
        best = max(best, float(values[row])) if found[-1].value > -np.inf else best
        return found[-1].value > -np.inf

    for number, steps in enumerate(ladders.values()):
        ladder = [row for _, row in sorted(steps.items())]
        passed = sum(one.value > -np.inf for one in found)
        if passed >= ways.finalists or len(found) >= 8 * ways.finalists or (passed and number >= 2 * ways.finalists):
            break
        if best == -np.inf:  # climb until a number of servers holds
            low, high = -1, next((n for n, row in enumerate(ladder) if p.miss[row] <= 1), 0)
            while high < len(ladder) and not holds(ladder[high]):
                low, high = high, 2 * high - low if high > low else high + 1
            if high >= len(ladder):
                if low < len(ladder) - 1 and not holds(ladder[-1]):
                    continue
                high = len(ladder) - 1
        else:  # only as many as would be as good as the best
            able = [n for n, row in enumerate(ladder) if values[row] >= best - abs(best) * 1e-9]
            low, high = -1, able[-1] if able else -1
            if high < 0 or not holds(ladder[high]):
                continue
        if best == -np.inf:
            continue
        while high - low > 1:  # and fewer, if they hold
            middle = (low + high) // 2
            low, high = (low, middle) if holds(ladder[middle]) else (middle, high)
    for row in rows:  # some that come after the best, for comparison
        if best == -np.inf or sum(one.value > -np.inf for one in found) >= PASSED:
            break
        known = {(int(p.first[one.row]), int(p.second[one.row])) for one in found if one.value > -np.inf}
        if values[row] < best and p.miss[row] <= 1 and (int(p.first[row]), int(p.second[row])) not in known:
            holds(row)
    return found


def _highest(book: Book, rows: list[int], values: np.ndarray, ways: Ways) -> list[Entry]:
    found: list[Entry] = []
    best: Entry | None = None
    benches: dict[int, Bench] = {}
    for done, row in enumerate(rows):
        if best is not None and ((values[row] < best.value and done >= SHOWN) or done >= ways.finalists):
            break
        if best is None and done >= 4 * ways.finalists:
            break
        bench = benches[row] = Bench(book.contender(row), book.traffic, book.aim, ways.known)
        final: Trial | None = None
        if not bench.reason and best is None:
            final = bench.highest(bench.plan.rate)
        elif not bench.reason and best is not None:
            target = _as_good(book, row, float(values[row]), best.value)
            final = bench.at(target * MORE)
            if final.holds:
                final = bench.highest(target * MORE * MORE) or final
        entry = _entry(book, row, bench.tried, final, bench.reason)
        found.append(entry)
        if entry.value > (best.value if best is not None else -np.inf):
            best = entry
        ways.told(done + 1)
    return _runner_up(book, found, best, values, benches)


def _as_good(book: Book, row: int, mine: float, best: float) -> float:
    """The rate at which a plan would be worth as much as the best: tokens/s, or cost and energy by the token."""
    ratio = best / mine if mine > 0 else mine / best
    return float(book.plans.hope[row]) * ratio


def _runner_up(
    book: Book, found: list[Entry], best: Entry | None, values: np.ndarray, benches: dict[int, Bench]
) -> list[Entry]:
    """Of those that were beaten, the best-priced is looked at closely, too: the winner's margin is measured."""
    others = [one for one in found if one is not best]
    second = max((one.value for one in others), default=-np.inf)
    lost = [one for one in others if one.value == -np.inf and one.final is not None and values[one.row] > second]
    if best is None or not lost:
        return found
    near = max(lost, key=lambda one: float(values[one.row]))
    bench = benches[near.row]
    final = bench.highest(bench.tried[-1].request_rate / MORE**3)
    return [_entry(book, one.row, bench.tried, final, "") if one is near else one for one in found]
