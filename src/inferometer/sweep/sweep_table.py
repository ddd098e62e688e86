"""The table that a sweep makes: columns as arrays, rows as dicts, files, and the best of its points.

found = inferometer.sweep("llama-3.1-8b", gpu="h200,h100-sxm", batch_size="1:256:x2")
found.columns["tpot_ms"]        found.best("output_throughput_per_gpu")["batch_size"]        found.to_csv("points.csv")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import BadValue, UnknownName
from .grid import INNER, Grid, kind
from .points import ALWAYS, FIGURES, Piece, Texts

LOWER = ("_ms", "_bytes", "cost_per_million_output_tokens", "joules_per_output_token")  # of these, less is better


def column_kinds(grid: Grid) -> dict[str, str]:
    """The columns of a grid's table in order, and what each holds: 'word', 'whole', 'switch' or 'real'."""
    given = {**dict.fromkeys(ALWAYS), **grid.axes, **dict.fromkeys(INNER[:3]), **grid.inner}
    found = {name: "whole" if name == "gpus" else kind(name) for name in given}
    return {**found, "feasible": "switch", "reason": "word", **dict.fromkeys(FIGURES, "real")}


class Columns(Mapping[str, np.ndarray]):
    """Columns by name, each put together when it is first looked at."""

    def __init__(self, kinds: dict[str, str], pieces: list[Piece]) -> None:
        self._kinds, self._pieces = kinds, pieces
        self._made: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._kinds:
            raise UnknownName("column", name, self._kinds)
        if name not in self._made:
            self._made[name] = _joined(self._kinds[name], [(len(p), p.column(name)) for p in self._pieces])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _joined(holds: str, parts: list[tuple[int, Any]]) -> np.ndarray:
    """Pieces of a column as one array. Texts are objects, so that equal ones are one."""
    dtype: Any = {"word": object, "switch": bool}.get(holds, float)
    found = np.empty(sum(rows for rows, _ in parts), dtype)
    at = 0
    for rows, part in parts:
        value = np.array(part.texts, object)[part.codes] if isinstance(part, Texts) else part
        found[at : at + rows] = value if value is not None or holds == "word" else np.nan
        at += rows
    return found.astype(np.int64) if holds == "whole" and not np.isnan(found).any() else found


class Sweep:
    """All points of a grid, those that cannot be used included."""

    def __init__(self, grid: Grid, pieces: Iterable[Piece]) -> None:
        self.pieces = list(pieces)
        self.kinds = column_kinds(grid)
        self.columns: Mapping[str, np.ndarray] = Columns(self.kinds, self.pieces)
        self.axes: dict[str, tuple[Any, ...]] = grid.every
        self.warnings = tuple(grid.warnings)

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.axes.items() if len(values) > 1)
        return f"<Sweep of {len(self):,} points{', ' * bool(axes)}{axes}>"

    def cube(self, name: str) -> np.ndarray:
        """A column with one dimension per axis, in the order of ``axes``."""
        return self.columns[name].reshape([len(values) for values in self.axes.values()])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each point as a dict; None where it has no such figure."""
        for piece in self.pieces:
            yield from rows(piece, self.kinds)

    def best(self, figure: str) -> dict[str, Any]:
        """The point with the best value of a figure among those that can be used: the least of ms, bytes, cost and
        joules, the most of everything else."""
        if figure not in FIGURES:
            raise UnknownName("figure", figure, FIGURES)
        values = np.where(self.columns["feasible"], self.columns[figure], np.nan)
        if np.isnan(values).all():
            raise BadValue(f"none of the {len(self):,} points can be used and has {figure}")
        at = int(np.nanargmin(values) if figure.endswith(LOWER) else np.nanargmax(values))
        return {name: cell(self.columns[name][at]) for name in self.columns}

    def to_csv(self, path: str | Path) -> Path:
        """Every point as a line of CSV, in a file that is there as a whole or not at all."""
        return self._to(path, "csv")

    def to_json(self, path: str | Path) -> Path:
        """Every point as an object, in one JSON document."""
        return self._to(path, "json")

    def to_parquet(self, path: str | Path) -> Path:
        """Every point as a row of a Parquet file, words as dictionaries."""
        return self._to(path, "parquet")

    def _to(self, path: str | Path, form: str) -> Path:
        from .writers import write

        return write(path, form, self.pieces, self.kinds, self.axes, self.warnings)


def rows(piece: Piece, kinds: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The points of a piece as dicts."""
    names = list(kinds)
    return (dict(zip(names, values, strict=True)) for values in zip(*cells(piece, kinds), strict=True))


def cells(piece: Piece, kinds: Mapping[str, str]) -> Iterator[list[Any]]:
    """The columns of a piece as lists of plain values, None where there is none."""
    for name, holds in kinds.items():
        found = piece.column(name)
        if isinstance(found, Texts):
            texts = [text or None for text in found.texts]
            yield [texts[code] for code in found.codes.tolist()]
        elif isinstance(found, np.ndarray):
            missing = found.dtype == float and np.isnan(found)
            whole = found.astype(np.int64) if holds == "whole" and not np.any(missing) else found
            values = whole.tolist()
            yield [None if lost else v for v, lost in zip(values, missing, strict=True)] if np.any(missing) else values
        else:
            value = cell(found)
            yield [int(value) if holds == "whole" and value is not None else value] * len(piece)


def cell(value: Any) -> Any:
    """One value of a column as Python has it; nan and no words are None."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain != plain or plain == "" else plain
