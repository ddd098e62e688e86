"""Every combination of values as one table, its columns, and the best of its points.

table = inferometer.sweep("llama-3.1-8b", gpu="h200,h100-sxm", batch_size="1:256:x2")
table.columns["tpot_ms"]        table.best("output_throughput_per_gpu")["batch_size"]        table.to_csv("points.csv")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import BadValue, UnknownName
from ..specs.arguments import signature
from ..specs.plan_args import PlanArgs
from .grid import Grid
from .points import METRICS, Categorical, Chunk, cell, chunks, column_kinds, rows

MAX_IN_MEMORY = 10**7  # points that are kept, or shown
MAX_POINTS = 10**9  # of any grid
LOWER_IS_BETTER = ("_ms", "_bytes", "cost_per_million_output_tokens", "joules_per_output_token")  # how names end


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
            f"the grid has {grid.points:,} points, too many to be held: up to {MAX_IN_MEMORY:,} are, and more go to "
            "a file alone, with sweep … -o FILE.parquet and without `plot`"
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


class Sweep:
    """All points of a grid, those that cannot be used included."""

    def __init__(self, grid: Grid, parts: Iterable[Chunk]) -> None:
        self.chunks = list(parts)
        self.kinds = column_kinds(grid)
        self.columns: Mapping[str, np.ndarray] = LazyColumns(self.kinds, self.chunks)
        self.axes: dict[str, tuple[Any, ...]] = grid.axes
        self.warnings = tuple(grid.warnings)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.axes.items() if len(values) > 1)
        return f"<Sweep of {len(self):,} points{', ' * bool(axes)}{axes}>"

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
            raise BadValue(f"none of the {len(self):,} points can be used and has {figure}")
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
