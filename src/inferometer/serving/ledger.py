"""Requests as columns: what each one still needs, and what became of it. One ledger serves all replicas of a pool."""

from __future__ import annotations

from array import array

import numpy as np


class Ledger:
    """``Ledger([512, 64], [128, 8])``: prompts and answers of two requests, by number."""

    __slots__ = ("arrival", "cached", "finished", "first", "given", "left", "preempted", "priority", "replica",
                 "scheduled", "target")  # fmt: skip

    def __init__(self, inputs: list[int], outputs: list[int], priority: list[int] | None = None) -> None:
        n = len(inputs)
        self.target = inputs  # tokens to have in the cache before the next one comes out
        self.left = outputs  # tokens still to come out
        self.given: list[int] | None = None  # tokens whose cache came from elsewhere
        self.priority = priority
        never, none = array("d", [float("nan")]) * n, array("q", [0]) * n
        self.arrival, self.scheduled, self.first, self.finished = never[:], never[:], never[:], never
        self.cached, self.preempted, self.replica = none[:], none[:], none

    def __len__(self) -> int:
        return len(self.target)


def column(values: array[float] | array[int]) -> np.ndarray:
    """The same memory as an array of NumPy's."""
    return np.frombuffer(values, dtype=np.float64 if values.typecode == "d" else np.int64)
