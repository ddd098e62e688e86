"""What people read of a sweep: how many points can be used, why others cannot, and the best of each workload.

A point is on the front of its workload if no other answers each user faster and gets more out of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import pareto_front
from .grid import INNER, Grid
from .points import Piece, Texts, label
from .sweep_table import cell, column_kinds

# what is asked for; all other axes are ways to answer it
QUESTIONS = ("model", "beam_width", "turns", "images", "usecase", "input_len", "output_len", "prefix_len")
SHOWN = 12  # workloads that are looked at, spread over all of them


class Spot(NamedTuple):
    """A point of a front: tokens/s of a user, tokens/s of a GPU, and its row."""

    user: float
    gpu: float
    row: dict[str, Any]


def fewer(values: list[Any], most: int = SHOWN) -> list[Any]:
    """At most so many of a list, spread over it, with its ends: ``fewer([1, 2, 3, 4, 5], 3)  # [1, 3, 5]``"""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


class Digest:
    """Looks at pieces as they come: ``for piece in digest.seen(pieces(grid)): …``"""

    def __init__(self, grid: Grid) -> None:
        self.kinds = column_kinds(grid)
        self.points = self.feasible = 0
        self.reasons: dict[str, int] = {}
        self._asked = [name for name in QUESTIONS if name in grid.every]
        places = fewer(range(math.prod(len(grid.every[name]) for name in self._asked)))  # type: ignore[arg-type]
        values = [grid.every[name] for name in self._asked]
        sizes = [len(v) for v in values]
        spots = [np.unravel_index(place, sizes) for place in places]
        self.fronts: dict[tuple[Any, ...], list[Spot]] = {
            tuple(v[int(at)] for v, at in zip(values, spot, strict=True)): [] for spot in spots
        }

    def seen(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The same pieces, each looked at on its way."""
        for piece in pieces:
            self.add(piece)
            yield piece

    def add(self, piece: Piece) -> None:
        """Count the points of a piece and keep the best of them."""
        reason: Texts = piece.columns["reason"]
        often = len(piece) // reason.codes.size
        counts = np.bincount(reason.codes.ravel(), minlength=len(reason.texts)) * often
        for text, number in zip(reason.texts, counts.tolist(), strict=True):
            if text and number:
                self.reasons[text] = self.reasons.get(text, 0) + number
            elif number:
                self.feasible += number
        self.points += len(piece)
        for question in self.fronts:
            box = self._box(piece, question)
            if box is not None:
                self._keep(question, piece, box)

    def _box(self, piece: Piece, question: tuple[Any, ...]) -> tuple[np.ndarray, ...] | None:
        """Where in a piece a workload lies; None if it does not."""
        places = [np.arange(n) for n in piece.shape]
        for name, value in zip(self._asked, question, strict=True):
            if name in INNER:
                at = INNER.index(name)
                places[at] = np.flatnonzero(piece.columns[name].ravel() == value)
            elif piece.columns[name] != label(value):
                return None
        return np.ix_(*places) if all(map(len, places)) else None

    def _keep(self, question: tuple[Any, ...], piece: Piece, box: tuple[np.ndarray, ...]) -> None:
        def taken(name: str) -> np.ndarray:
            found = piece.columns[name]
            values: np.ndarray = np.broadcast_to(np.nan if found is None else found, piece.shape)[box]
            return values.ravel()

        usable = np.flatnonzero(taken("feasible"))
        if not len(usable):
            return
        user, gpu = taken("output_throughput_per_user")[usable], taken("output_throughput_per_gpu")[usable]
        # where there are no answers, or of one token: prompts a second, and tokens of prompts
        user = np.where(np.isnan(user), 1e3 / taken("ttft_ms")[usable], user)
        gpu = np.where(np.isnan(gpu), taken("prefill_throughput")[usable] / piece.columns["gpus"], gpu)
        known = self.fronts[question]
        x = np.concatenate([[spot.user for spot in known], user])
        y = np.concatenate([[spot.gpu for spot in known], gpu])
        where = np.arange(len(piece)).reshape(piece.shape)[box].ravel()[usable]
        old = len(known)
        self.fronts[question] = [
            known[at] if at < old else Spot(float(x[at]), float(y[at]), self._row(piece, int(where[at - old])))
            for at in pareto_front(x, y).tolist()
        ]

    def _row(self, piece: Piece, at: int) -> dict[str, Any]:
        place = np.unravel_index(at, piece.shape)
        row = {}
        for name, holds in self.kinds.items():
            found = piece.columns[name]
            if isinstance(found, Texts):
                found = found.texts[int(np.broadcast_to(found.codes, piece.shape)[place])]
            value = cell(np.broadcast_to(found, piece.shape)[place]) if isinstance(found, np.ndarray) else found
            row[name] = int(value) if holds == "whole" and value is not None and value == value else value
        return row

    def table(self) -> list[dict[str, Any]]:
        """The rows to show: of one workload its front, of several the best of each by tokens/s of a GPU."""
        if len(self.fronts) == 1:
            return [spot.row for spot in fewer(next(iter(self.fronts.values())))]
        return [max(front, key=lambda spot: spot.gpu).row for front in self.fronts.values() if front]
