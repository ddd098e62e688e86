"""What people read of a sweep: how many points can be used, why others cannot, and the best of each workload.

A point is on the Pareto front of its workload if no other has more tokens/s per user and more tokens/s per GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import pareto_front
from .grid import INNER_AXES, Grid
from .points import Categorical, Chunk, axis_cell, cell, column_kinds

# axes that say what is computed; all others are ways to run it
WORKLOAD_AXES = ("model", "beam_width", "turns", "images", "usecase", "input_len", "output_len", "prefix_len")
MAX_WORKLOADS = 12  # that have a front, spread over all of them


class FrontPoint(NamedTuple):
    """A point of a front: output tokens/s per user and per GPU, and its row of the table."""

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
