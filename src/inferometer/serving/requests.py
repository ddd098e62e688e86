"""Requests as columns: what arrives at a server, when, how long it is and what it shares with others.

Trace(input_tokens=np.array([512, 64]), output_tokens=np.array([128, 0]), arrival_s=np.array([0.0, 0.3]))
"""

from __future__ import annotations

import msgspec
import numpy as np


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Requests in the order of their file; every column has one entry per request."""

    input_tokens: np.ndarray  # int64
    output_tokens: np.ndarray  # int64; 0 is allowed: such a request ends with its prefill
    arrival_s: np.ndarray | None = None  # float64; None: each request waits for the end of the one before it
    blocks: tuple[np.ndarray, ...] | None = None
    """Per request the ids (int64) of the leading blocks of its tokens; equal ids are equal content. They may run on
    past the prompt: those ids name the blocks of its answer, which the conversation's next turn has in its prompt."""
    block_tokens: int = 0  # tokens that one of those ids stands for (Mooncake: 512)
    after: np.ndarray | None = None  # int64: the request that must end first (the turn before), -1 = none
    think_s: np.ndarray | None = None  # float64: pause after that end before this one is sent
    priority: np.ndarray | None = None  # int64, smaller first, for the priority policy
    measured: dict[str, np.ndarray] = {}  # TTFT, TPOT, E2E in ms where the file has them; nan where a row has none
    source: str = ""

    def __len__(self) -> int:
        return len(self.input_tokens)


def first(trace: Trace, count: int) -> Trace:
    """The first requests of a trace, in its order: ``first(trace, 100)``"""
    if count >= len(trace):
        return trace
    columns = {name: column[:count] for name in _COLUMNS if (column := getattr(trace, name)) is not None}
    if "after" in columns:  # one that waits for a request that is left out need not wait
        columns["after"] = np.where(columns["after"] < count, columns["after"], -1)
    measured = {name: column[:count] for name, column in trace.measured.items()}
    return msgspec.structs.replace(trace, **columns, measured=measured)


_COLUMNS = ("input_tokens", "output_tokens", "arrival_s", "blocks", "after", "think_s", "priority")
