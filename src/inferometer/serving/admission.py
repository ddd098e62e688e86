"""Which requests an engine takes: as vLLM does, too long ones are rejected with a reason, and answers are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .requests import Trace


class Admitted(NamedTuple):
    """Prompts and answers as the engine takes them, and why it rejects the others."""

    inputs: np.ndarray
    outputs: np.ndarray
    rejected: dict[int, str]


def admitted(trace: Trace, longest: int, held: int) -> Admitted:
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
            rejected[i] = (f"the prompt of {given:,} tokens and at least one of the answer are longer than the maximum "
                           f"model length of {longest:,}")  # fmt: skip
        else:
            rejected[i] = f"{given:,} + {made:,} tokens are more than the {held:,} that the KV cache holds"
    return Admitted(inputs, outputs, rejected)
