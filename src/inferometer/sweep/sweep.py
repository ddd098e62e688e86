"""Every combination of values as one table, its columns, and the best of its points.

table = inferometer.sweep("llama-3.1-8b", gpu="h200,h100-sxm", batch_size="1:256:x2")
table.columns["tpot_ms"]        table.best("output_throughput_per_gpu")["batch_size"]        table.to_csv("points.csv")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import BadValue, UnknownName
from ..base.pareto import pareto_front
from ..base.result import Result, views
from ..base.units import plural
from ..specs.arguments import signature
from ..specs.plan_args import PlanArgs
from .grid import INNER_AXES, Grid
from .points import METRICS, Categorical, Chunk, axis_cell, cell, chunks, column_kinds, rows

MAX_IN_MEMORY = 10**7  # points that are kept, or shown
MAX_POINTS = 10**9  # of any grid
LOWER_IS_BETTER = (
    "_ms",
    "_bytes",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
    "watts_per_gpu",
)  # how names end
# axes that say what is computed; all others are ways to run it
WORKLOAD_AXES = ("model", "beam_width", "turns", "images", "usecase", "input_len", "output_len", "prefix_len")
MAX_WORKLOADS = 12  # that have a front, spread over all of them


@signature(PlanArgs)
def sweep(model: Any, gpu: Any = "h100-sxm", **axes: Any) -> Sweep:
    """Predict every combination of the axes; the keywords are those of `analyze`, each one value, a list or a range.

    ``sweep("llama-3.1-8b", gpu="h200", tensor_parallel_size="1:8:x2", batch_size=[1, 8, 64], quantization="bf16,fp8")``
    """
    grid = checked_grid(model, gpu, to_file=False, **axes)
    return Sweep(grid, chunks(grid))


def checked_grid(model: Any, gpu: Any, *, to_file: bool, **axes: Any) -> Grid:
    """The grid of some axes with nothing wrong in it, and no larger than what becomes of it allows."""
    grid = Grid(model, gpu, **axes)
    if grid.points > MAX_POINTS:
        raise BadValue(
            f"the grid has {grid.points:,} points, more than {MAX_POINTS:,}: give fewer values or larger steps"
        )
    if grid.points > MAX_IN_MEMORY and not to_file:
        raise BadValue(
            f"the grid has {grid.points:,} points, more than the {MAX_IN_MEMORY:,} kept in memory: write them "
            "to a file, with sweep … -o FILE.parquet and without `plot`"
        )
    grid.check()
    return grid


class LazyColumns(Mapping[str, np.ndarray]):
    """Columns by name, each joined from its chunks when it is first looked at."""

    def __init__(self, kinds: dict[str, str], parts: list[Chunk]) -> None:
        self._kinds, self._chunks = kinds, parts
        self._joined: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._kinds:
            raise UnknownName("column", name, self._kinds)
        if name not in self._joined:
            self._joined[name] = _joined(self._kinds[name], [(len(c), c.column(name)) for c in self._chunks])
        return self._joined[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _joined(holds: str, parts: list[tuple[int, Any]]) -> np.ndarray:
    """A column of (rows, values) parts as one array. Texts are objects, so that equal ones are one."""
    dtype: Any = {"text": object, "switch": bool}.get(holds, float)
    column = np.empty(sum(count for count, _ in parts), dtype)
    at = 0
    for count, part in parts:
        value = np.array(part.categories, object)[part.codes] if isinstance(part, Categorical) else part
        column[at : at + count] = value if value is not None or holds == "text" else np.nan
        at += count
    return column.astype(np.int64) if holds == "int" and not np.isnan(column).any() else column


class Sweep(Result):
    """All points of a grid, those that cannot be used included."""

    def __init__(self, grid: Grid, parts: Iterable[Chunk]) -> None:
        self.grid = grid
        self.chunks = list(parts)
        self.kinds = column_kinds(grid)
        self.columns: Mapping[str, np.ndarray] = LazyColumns(self.kinds, self.chunks)
        self.axes: dict[str, tuple[Any, ...]] = grid.axes
        self.warnings = tuple(grid.warnings)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.axes.items() if len(values) > 1)
        model = f"{str(self.axes['model'][0])[:40]}: " if len(self.axes["model"]) == 1 else ""
        text = f"<Sweep of {model}{plural(len(self), 'point')}{', ' * bool(axes)}{axes}>"
        return text if len(text) < 200 else f"{text[:195]} …>"

    def plot(self, kind: str = "", path: str | Path | None = None, *, x: str = "", y: str = "") -> Any:
        """A figure, which a notebook shows: ``table.plot(x="batch_size", y="tpot_ms")``

        ``curves``: waits, throughput and memory along ``x``, an axis of numbers, or the one metric ``y``. ``front``:
        tokens/s of a GPU over tokens/s of a user. With ``path``, the picture is also written (.png, .svg, .pdf).
        """
        return views().figure(self, kind, path, **({"x": x, "y": y} if x or y else {}))

    def cube(self, name: str) -> np.ndarray:
        """A column with one dimension per axis, in the order of ``axes``."""
        return self.columns[name].reshape([len(values) for values in self.axes.values()])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each point as a dict; None where it has no such metric."""
        for chunk in self.chunks:
            yield from rows(chunk, self.kinds)

    def best(self, figure: str) -> dict[str, Any]:
        """The point with the best value of a metric among those that can be used: the least of ms, bytes, cost and
        joules, the most of everything else."""
        if figure not in METRICS:
            raise UnknownName("figure", figure, METRICS)
        values = np.where(self.columns["feasible"], self.columns[figure], np.nan)
        if np.isnan(values).all():
            raise BadValue(f"none of the {len(self):,} points is feasible and has {figure}")
        at = int(np.nanargmin(values) if figure.endswith(LOWER_IS_BETTER) else np.nanargmax(values))
        return {name: cell(self.columns[name][at]) for name in self.columns}

    def to_csv(self, path: str | Path) -> Path:
        """Every point as a line of CSV, in a file that is there as a whole or not at all."""
        return self._to(path, "csv")

    def to_json(self, path: str | Path) -> Path:
        """Every point as an object, in one JSON document."""
        return self._to(path, "json")

    def to_parquet(self, path: str | Path) -> Path:
        """Every point as a row of a Parquet file, texts as dictionaries."""
        return self._to(path, "parquet")

    def _to(self, path: str | Path, file_format: str) -> Path:
        from .writers import write

        return write(path, file_format, self.chunks, self.kinds, self.axes, self.warnings)


# ------------------------------------------------------------------ what people read of a sweep


class FrontPoint(NamedTuple):
    """A point of a workload's Pareto front: no other has more output tokens/s per user and more per GPU.

    Both rates, and its row of the table.
    """

    per_user: float
    per_gpu: float
    row: dict[str, Any]


def spread(values: Sequence[Any], most: int = MAX_WORKLOADS) -> list[Any]:
    """At most so many of a list, evenly over it, with its ends: ``spread([1, 2, 3, 4, 5], 3)  # [1, 3, 5]``"""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


class Digest:
    """Counts and fronts of chunks as they stream by: ``for chunk in digest.watch(chunks(grid)): …``"""

    def __init__(self, grid: Grid) -> None:
        self.kinds = column_kinds(grid)
        self.points = self.feasible = 0
        self.reasons: dict[str, int] = {}
        self._workload_axes = [name for name in WORKLOAD_AXES if name in grid.axes]
        values = [grid.axes[name] for name in self._workload_axes]
        shape = [len(v) for v in values]
        spots = [np.unravel_index(place, shape) for place in spread(range(math.prod(shape)))]
        self.fronts: dict[tuple[Any, ...], list[FrontPoint]] = {
            tuple(v[int(at)] for v, at in zip(values, spot, strict=True)): [] for spot in spots
        }

    def watch(self, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same chunks, each added on its way."""
        for chunk in stream:
            self.add(chunk)
            yield chunk

    def add(self, chunk: Chunk) -> None:
        """Count the points of a chunk and keep the best of them."""
        reason: Categorical = chunk.columns["reason"]
        repeats = len(chunk) // reason.codes.size
        counts = np.bincount(reason.codes.ravel(), minlength=len(reason.categories)) * repeats
        for text, number in zip(reason.categories, counts.tolist(), strict=True):
            if text and number:
                self.reasons[text] = self.reasons.get(text, 0) + number
            elif number:
                self.feasible += number
        self.points += len(chunk)
        for workload in self.fronts:
            box = self._box(chunk, workload)
            if box is not None:
                self._update_front(workload, chunk, box)

    def _box(self, chunk: Chunk, workload: tuple[Any, ...]) -> tuple[np.ndarray, ...] | None:
        """Where in a chunk a workload lies; None if it does not."""
        places = [np.arange(n) for n in chunk.shape]
        for name, value in zip(self._workload_axes, workload, strict=True):
            if name in INNER_AXES:
                at = INNER_AXES.index(name)
                places[at] = np.flatnonzero(chunk.columns[name].ravel() == value)
            elif chunk.columns[name] != axis_cell(value):
                return None
        return np.ix_(*places) if all(map(len, places)) else None

    def _update_front(self, workload: tuple[Any, ...], chunk: Chunk, box: tuple[np.ndarray, ...]) -> None:
        """The front of the points that it had and of those in the box."""

        def boxed(name: str) -> np.ndarray:
            column = chunk.columns[name]
            values: np.ndarray = np.broadcast_to(np.nan if column is None else column, chunk.shape)[box]
            return values.ravel()

        usable = np.flatnonzero(boxed("feasible"))
        if not len(usable):
            return
        per_user, per_gpu = boxed("output_throughput_per_user")[usable], boxed("output_throughput_per_gpu")[usable]
        # where there is no output, or of one token: prompts a second, and tokens of prompts
        per_user = np.where(np.isnan(per_user), 1e3 / boxed("ttft_ms")[usable], per_user)
        per_gpu = np.where(np.isnan(per_gpu), boxed("prefill_throughput")[usable] / chunk.columns["gpus"], per_gpu)
        front = self.fronts[workload]
        x = np.concatenate([[point.per_user for point in front], per_user])
        y = np.concatenate([[point.per_gpu for point in front], per_gpu])
        row_of = np.arange(len(chunk)).reshape(chunk.shape)[box].ravel()[usable]
        old = len(front)
        self.fronts[workload] = [
            front[at] if at < old else FrontPoint(float(x[at]), float(y[at]), self._row(chunk, int(row_of[at - old])))
            for at in pareto_front(x, y).tolist()
        ]

    def _row(self, chunk: Chunk, at: int) -> dict[str, Any]:
        place = np.unravel_index(at, chunk.shape)
        row = {}
        for name, holds in self.kinds.items():
            column = chunk.columns[name]
            if isinstance(column, Categorical):
                column = column.categories[int(np.broadcast_to(column.codes, chunk.shape)[place])]
            value = cell(np.broadcast_to(column, chunk.shape)[place]) if isinstance(column, np.ndarray) else column
            row[name] = int(value) if holds == "int" and value is not None and value == value else value
        return row

    def table(self) -> list[dict[str, Any]]:
        """The rows to show: of one workload its front, of several the best of each by tokens/s per GPU."""
        if len(self.fronts) == 1:
            return [point.row for point in spread(next(iter(self.fronts.values())))]
        return [max(front, key=lambda point: point.per_gpu).row for front in self.fronts.values() if front]
