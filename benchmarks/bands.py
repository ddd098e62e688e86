"""The expected error of every kind of prediction, and whether it holds where it was not made from.

    python benchmarks/bands.py                       coverage of the bands, from benchmarks/data/predictions.csv
    python benchmarks/bands.py --write               the same into docs/accuracy, and data/expected_errors.json
    python benchmarks/bands.py --predict --write     everything predicted anew first (some minutes); `--rows FILE` takes
                                                     what `benchmarks/serving.py --every 1 --rows FILE` wrote

A band is a quantile of |ln(predicted / measured)| over the runs of a class. A class of few models says little of the
next one, so the class around it counts as `PARENT` models more: its spread comes in where a class has few of its own.
Both are rules for all classes; no band is chosen by hand. Rows are judged by bands that were made without their model,
and once more without their GPU.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import expm1
from pathlib import Path
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
PARENT = 4  # models that the wider class counts as


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


def points(rows: Iterable[Prediction]) -> list[Point]:
    """The figures of all runs; one that was predicted without its GPU's tables says nothing of that GPU."""
    made = []
    for row in rows:
        for metric in row.measured:
            chain = class_chain(row.traits, metric, row.load, row.short)
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
        for key in point.own:
            members[key].append(point)
        parents |= dict(zip(point.chain, point.chain[1:], strict=False))
    spread: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def spread_of(key: str) -> tuple[np.ndarray, np.ndarray]:
        """Sizes of errors, and how much each counts: the class as its models, the one around it as `PARENT`."""
        if key not in spread:
            own = members.get(key, [])
            sizes = np.abs([point.off for point in own])
            weights = np.full(len(own), len({point.row.model for point in own}) / max(len(own), 1))
            if key in parents:
                more, counts = spread_of(parents[key])
                sizes = np.concatenate([sizes, more])
                weights = np.concatenate([weights, counts * (PARENT / max(counts.sum(), 1e-9))])
            spread[key] = sizes, weights
        return spread[key]

    made = {}
    for key, own in members.items():
        models = len({point.row.model for point in own})
        if key.count("/") == 1 or (len(own) >= MIN_ROWS and models >= MIN_MODELS):
            sizes, weights = spread_of(key)
            order = np.argsort(sizes)
            reached = np.cumsum(weights[order])
            at = np.minimum(np.searchsorted(reached, np.array(QUANTILES) * reached[-1]), len(order) - 1)
            bias = float(np.median([point.off for point in own]))
            made[key] = Band(tuple(sizes[order][at].tolist()), bias, len(own), models)
    return made


# ------------------------------------------------------------------ do they hold?


class Judged(NamedTuple):
    """A figure and the band that was made without its model, or without its GPU."""

    point: Point
    band: Band


def judged(every: list[Point], left: Callable[[Point], str]) -> Iterator[Judged]:
    """Every figure with the band that the others give: ``judged(points(rows), lambda point: point.row.model)``"""
    for name in sorted({left(point) for point in every}):
        made = bands([point for point in every if left(point) != name])
        for point in every:
            if left(point) == name:
                key = next((key for key in point.chain if key in made), None)
                if key is not None:
                    yield Judged(point, made[key])


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
    "without the GPU's own tables": lambda p: p.row.hidden and p.row.traits.tables == "near",
    "without those of its generation": lambda p: p.row.hidden and p.row.traits.tables == "far",
    "without any table": lambda p: p.row.hidden and p.row.traits.tables == "none",
}


def markdown(rows: list[Prediction]) -> str:
    """How many figures lie in their bands, by kind."""
    every = points(rows)
    by_model = list(judged(every, lambda point: point.row.model))
    by_gpu = list(judged(every, lambda point: point.row.traits.gpu))
    lines = [
        "| figures | number | 50% band | 80% band | 90% band | median 80% band | 80% band, GPU left out |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, belongs in PARTS.items():
        part = [one for one in by_model if belongs(one.point)]
        if part:
            held = [f"{100 * coverage(part, at):.0f}%" for at in range(len(QUANTILES))]
            width = f"±{100 * expm1(float(np.median([one.band.quantiles[1] for one in part]))):.0f}%"
            other = coverage([one for one in by_gpu if belongs(one.point)])
            lines.append(f"| {name} | {len(part):,} | {' | '.join(held)} | {width} | {100 * other:.0f}% |")
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
    accuracy_page.write(bands=markdown(rows))


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
    print(markdown(rows))
    if given.write:
        write(rows)


if __name__ == "__main__":
    main()
