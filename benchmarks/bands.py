"""The expected error of every kind of prediction, and whether it holds where it was not made from.

    python benchmarks/bands.py                       coverage of the bands, from benchmarks/data/predictions.csv
    python benchmarks/bands.py --write               the same into docs/accuracy, and data/expected_errors.json
    python benchmarks/bands.py --predict --write     everything predicted anew first (some minutes); `--rows FILE` takes
                                                     what `benchmarks/serving.py --every 1 --rows FILE` wrote

A run is of a group: one model on one machine. Its error is the group's shift (what is wrong about that model, and how
that machine differs) and its own scatter about it. A band is for a model and a machine that are both new: a quantile
of |ln(predicted / measured)| over the runs of a class, where the shifts of few groups are stretched
(`Spread.of_new_group`). A class of few groups says little of the next one, so the class around it counts as `PARENT`
groups more. Rows that constants were chosen with make no band. These are rules for all classes; no band is chosen by
hand. Rows are judged by bands that were made without their model, without their machine too, and without their GPU;
later machines by those of the machines before them.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import expm1
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import accuracy_page
import band_rows
import numpy as np
from band_rows import Prediction

from inferometer.inference.expected_error import LOADS, METRICS, class_chain

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "inferometer" / "data" / "expected_errors.json"
QUANTILES = (0.5, 0.8, 0.9)
MIN_ROWS, MIN_MODELS = 20, 3  # of a class with a band of its own
PARENT = 4  # groups that the wider class counts as
FIRST_MACHINES = ("first", "another", "2", "3", "one more")  # the rule was chosen on these H200s, before the others


class Point(NamedTuple):
    """One figure of a run: ln(predicted / measured), its classes, narrowest first, and those that it is of."""

    row: Prediction
    metric: str
    off: float
    chain: tuple[str, ...]
    own: tuple[str, ...]


class Band(NamedTuple):
    """Quantiles of |off|, the median of off, and what they were made from."""

    quantiles: tuple[float, ...]
    bias: float
    rows: int
    models: int


class Spread(NamedTuple):
    """How the errors of a class vary: of each run its group's median, its own scatter about it, what it counts."""

    shift: np.ndarray
    scatter: np.ndarray
    weight: np.ndarray  # in groups

    def with_parent(self, parent: Spread) -> Spread:
        """With the class around it, which counts as `PARENT` groups more."""
        counts = parent.weight * (PARENT / max(parent.weight.sum(), PARENT))
        both = zip(self, parent._replace(weight=counts), strict=True)
        return Spread(*(np.concatenate(pair) for pair in both))

    def of_new_group(self) -> np.ndarray:
        """Quantiles of |off| where neither the model nor the machine made the class.

        Of few groups, none need be as far off as the next one: their shifts are stretched by what Student's t has
        over the normal distribution.
        """
        sizes = np.abs(self.shift * _stretch(float(self.weight.sum())) + self.scatter)
        order = np.argsort(sizes)
        reached = np.cumsum(self.weight[order])
        at = np.searchsorted(reached, np.array(QUANTILES) * reached[-1])
        return np.asarray(sizes[order][np.minimum(at, len(order) - 1)])


@cache
def _stretch(groups: float) -> float:
    """The 90% quantile of Student's t over that of the normal distribution: ``_stretch(4.0)  # 1.2``

    The angle atan(t / sqrt(n)) has the density cos(angle)^(n-1).
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, 4001)[1:-1]
    reached = np.cumsum(np.cos(angle) ** (groups - 1))
    student = np.sqrt(groups) * np.tan(np.interp(0.9, reached / reached[-1], angle))
    return float(student / NormalDist().inv_cdf(0.9))


def group_of(point: Point) -> tuple[str, str, str]:
    """Runs that share what is wrong about them: a model on a machine."""
    return point.row.traits.gpu, point.row.machine, point.row.model


def spread(own: list[Point]) -> Spread:
    """What the groups of a class say."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for point in own:
        groups[group_of(point)].append(point.off)
    if not groups:
        return Spread(*np.zeros((3, 0)))
    shift = np.concatenate([np.full(len(offs), np.median(offs)) for offs in groups.values()])
    scatter = np.concatenate([np.array(offs) for offs in groups.values()]) - shift
    return Spread(shift, scatter, np.full(len(own), len(groups) / len(own)))


def points(rows: Iterable[Prediction]) -> list[Point]:
    """The figures of all runs; one that was predicted without its GPU's tables says nothing of that GPU."""
    made = []
    for row in rows:
        for metric in row.measured:
            chain = class_chain(row.traits, metric, row.load, row.waits)
            keys = [one for one in chain if not row.hidden or row.traits.gpu not in one.key.split("/")]
            lent = "own" if not row.hidden else row.traits.tables  # a run with its GPU's tables is none without them
            own = tuple(
                one.key
                for one in keys
                if f"/{row.load}" in one.key and not (row.load == "static" and lent == "own" and one.note)
            )
            off = float(np.log(row.predicted[metric] / row.measured[metric]))
            made.append(Point(row, metric, off, tuple(one.key for one in keys), own))
    return made


def bands(evidence: list[Point]) -> dict[str, Band]:
    """The band of every class that has enough: ``bands(points(rows))["tpot/online/vllm"].quantiles[1]``"""
    members: dict[str, list[Point]] = defaultdict(list)
    parents: dict[str, str] = {}
    for point in evidence:
        if not point.row.chosen:
            for key in point.own:
                members[key].append(point)
        parents |= dict(zip(point.chain, point.chain[1:], strict=False))

    @cache
    def whole(key: str) -> Spread:
        own = spread(members.get(key, []))
        return own.with_parent(whole(parents[key])) if key in parents else own

    made = {}
    for key, own in members.items():
        models = len({point.row.model for point in own})
        if key.count("/") == 1 or (len(own) >= MIN_ROWS and models >= MIN_MODELS):
            bias = float(np.median([point.off for point in own]))
            made[key] = Band(tuple(whole(key).of_new_group().tolist()), bias, len(own), models)
    return made


# ------------------------------------------------------------------ do they hold?


class Judged(NamedTuple):
    """A figure and the band that was made without its model, its machine or its GPU."""

    point: Point
    band: Band


def judged(
    every: list[Point],
    left: Callable[[Point], tuple[str, ...]],
    judge: Callable[[Point], bool] = lambda point: True,
    evidence: Callable[[Point], bool] = lambda point: True,
) -> Iterator[Judged]:
    """Figures, each with the band that those give which share nothing of what is left out: ``judged(every, MODEL)``"""
    allowed = [point for point in every if evidence(point)]
    for names in sorted({left(point) for point in every if judge(point)}):
        made = bands([p for p in allowed if not any(map(str.__eq__, left(p), names))])
        for point in every:
            if judge(point) and not point.row.chosen and left(point) == names:
                key = next((key for key in point.chain if key in made), None)
                if key is not None:
                    yield Judged(point, made[key])


def model(point: Point) -> tuple[str, ...]:
    """A new model on machines that were measured."""
    return (point.row.model,)


def model_and_machine(point: Point) -> tuple[str, ...]:
    """A new model on a new machine; of public runs, one of another list."""
    return point.row.model, point.row.machine


def gpu(point: Point) -> tuple[str, ...]:
    """A GPU of which no run was measured."""
    return (point.row.traits.gpu,)


def static(point: Point) -> bool:
    """A step of the engine with the tables of its GPU."""
    return point.row.load == "static" and not point.row.hidden


def later_machines(every: list[Point]) -> Iterator[tuple[str, list[Judged]]]:
    """Each H200 that was measured after the rule was chosen, by bands of those before it without its models."""
    seen = {point.row.machine for point in every if static(point)}
    before = set(FIRST_MACHINES)
    for machine in sorted(seen - before, key=lambda name: (len(name), name)):

        def new(point: Point, machine: str = machine) -> bool:
            return static(point) and point.row.machine == machine

        def earlier(point: Point, known: frozenset[str] = frozenset(before)) -> bool:
            return point.row.load != "static" or point.row.machine in known

        yield machine, list(judged(every, model, new, earlier))
        before.add(machine)


def coverage(rows: list[Judged], quantile: int = 1) -> float:
    """The share of the figures that lie in their bands."""
    return (
        float(np.mean([abs(one.point.off) <= one.band.quantiles[quantile] for one in rows])) if rows else float("nan")
    )


PARTS: dict[str, Callable[[Point], bool]] = {
    "all": lambda p: not p.row.hidden,
    **{
        f"{LOADS[load]}, {METRICS[metric]}": lambda p, load=load, metric=metric: (
            not p.row.hidden and p.row.load == load and p.metric == metric
        )
        for load in LOADS
        for metric in METRICS
    },
    **{
        f"servers, {name}": lambda p, name=name: (
            not p.row.hidden and p.row.load != "static" and p.row.traits.engine == name
        )
        for name in ("vllm", "sglang", "trtllm")
    },
    **{
        f"{name} networks": lambda p, name=name: not p.row.hidden and p.row.traits.network == name
        for name in ("dense", "mixture", "hybrid", "small")
    },
    "static batches that wait for the host": lambda p: not p.row.hidden and p.row.load == "static" and p.row.waits,
    "without the GPU's own tables": lambda p: p.row.hidden and p.row.traits.tables == "near",
    "without those of its generation": lambda p: p.row.hidden and p.row.traits.tables == "far",
    "without any table": lambda p: p.row.hidden and p.row.traits.tables == "none",
}


def _share(rows: list[Judged], quantile: int = 1) -> str:
    return f"{100 * coverage(rows, quantile):.0f}%" if rows else "–"


def _width(rows: list[Judged]) -> str:
    return f"±{100 * expm1(float(np.median([one.band.quantiles[1] for one in rows]))):.0f}%"


def markdown(rows: list[Prediction]) -> str:
    """How many figures lie in their bands, by kind."""
    every = points(rows)
    by_model, by_machine, by_gpu = (list(judged(every, left)) for left in (model, model_and_machine, gpu))
    lines = [
        "| figures | number | 50% band | 80% band | 90% band | median 80% band | 80% band, machine left out too"
        " | 80% band, GPU left out |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, belongs in PARTS.items():
        part, new, other = ([one for one in j if belongs(one.point)] for j in (by_model, by_machine, by_gpu))
        if part:
            held = [_share(part, at) for at in range(len(QUANTILES))]
            cells = (f"{len(part):,}", *held, _width(part), _share(new), _share(other))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown_later(rows: list[Prediction]) -> str:
    """How many figures of machines measured later lie in the bands of the ones before."""
    lines = [
        "| machine | figures | 50% band | 80% band | 90% band | median 80% band | TPOT | TTFT | E2E"
        " | steps that wait for the host |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for machine, part in later_machines(points(rows)):
        kinds = [[one for one in part if one.point.metric == name and not one.point.row.waits] for name in METRICS]
        kinds = [kinds[1], kinds[0], kinds[2], [one for one in part if one.point.row.waits]]
        held = [_share(part, at) for at in range(len(QUANTILES))]
        cells = (f"{_share(some)} of {len(some)}" for some in kinds)
        lines.append(f"| {machine} | {len(part)} | {' | '.join([*held, _width(part), *cells])} |")
    return "\n".join(lines)


def error_data(rows: list[Prediction]) -> dict[str, Any]:
    """The file that the package ships: of each class p50, p80, p90, bias, rows, models."""
    made = bands(points(rows))
    classes = {
        key: [*(round(expm1(q), 4) for q in band.quantiles), round(expm1(band.bias), 4), band.rows, band.models]
        for key, band in sorted(made.items())
    }
    return {
        "schema": "inferometer.expected_errors/1",
        "columns": ["p50", "p80", "p90", "bias", "rows", "models"],
        "classes": classes,
    }


def write(rows: list[Prediction]) -> None:
    """Put them into the package and the page."""
    lines = json.dumps(error_data(rows), separators=(",", ":")).replace('],"', '],\n"')
    DATA.write_text(lines + "\n", encoding="utf-8")
    accuracy_page.write(**{"bands": markdown(rows), "bands-later": markdown_later(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description="The expected error of every kind of prediction.")
    parser.add_argument("--predict", action="store_true", help="predict everything anew")
    parser.add_argument("--rows", help="with --predict: rows of `benchmarks/serving.py --every 1 --rows FILE`")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="docs/accuracy and data/expected_errors.json")
    given = parser.parse_args()
    if given.predict:
        band_rows.write(band_rows.predictions(given.rows, given.processes))
    rows = band_rows.read()
    print(markdown(rows), markdown_later(rows), sep="\n\n")
    if given.write:
        write(rows)


if __name__ == "__main__":
    main()
