"""Requests as columns: what each one still needs, and what became of it. One ledger serves all replicas of a pool."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from .trace import Trace


class RequestTable:
    """``Ledger([512, 64], [128, 8])``: prompts and answers of two requests, by number."""

    __slots__ = (
        "arrival",
        "cached",
        "finished",
        "first",
        "given",
        "left",
        "preempted",
        "priority",
        "replica",
        "scheduled",
        "target",
    )

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


# ------------------------------------------------------------------ admission
# Which requests an engine takes: as vLLM does, too long ones are rejected with a reason, and answers are cut.


class AdmittedRequests(NamedTuple):
    """Prompts and answers as the engine takes them, and why it rejects the others."""

    inputs: np.ndarray
    outputs: np.ndarray
    rejected: dict[int, str]


def admit_trace(trace: Trace, longest: int, held: int) -> AdmittedRequests:
    """Requests for a model of ``longest`` tokens (max_model_len) and a KV cache that holds ``held``.

    A prompt must leave room for a token of the answer; an answer ends at the longest length; and one request alone must
    fit into the cache.
    """
    inputs, outputs = trace.input_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
    outputs = np.minimum(outputs, np.maximum(longest - inputs, 0))
    rejected: dict[int, str] = {}
    for i in np.flatnonzero((inputs < 1) | (inputs >= longest) | (inputs + outputs > held)).tolist():
        given, made = int(inputs[i]), int(outputs[i])
        if given < 1:
            rejected[i] = "the prompt is empty"
        elif given >= longest:
            rejected[i] = (
                f"the prompt of {given:,} tokens and at least one of the answer are longer than the maximum "
                f"model length of {longest:,}"
            )
        else:
            rejected[i] = f"{given:,} + {made:,} tokens are more than the {held:,} that the KV cache holds"
    return AdmittedRequests(inputs, outputs, rejected)
