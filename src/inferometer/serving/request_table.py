"""Requests as columns: what each one still needs, and what became of it. One table serves all replicas of a pool.

table = RequestTable([512, 64], [128, 8])       # prompt and output tokens of two requests
table.prefill_target[1], table.finished_s[1]    # 64, nan
"""

from __future__ import annotations

from array import array
from enum import Enum
from math import nan
from typing import NamedTuple

import numpy as np

from .kv_tiers import TierStore
from .trace import Trace


class RequestTable:
    """``RequestTable([512, 64], [128, 8])``: one row per request, by its number in the trace."""

    __slots__ = (
        "arrival_s",
        "finished_s",
        "first_token_s",
        "num_cached_tokens",
        "num_preemptions",
        "pauses",
        "preempted_s",
        "prefill_target",
        "priority",
        "prompt_tokens",
        "remaining_tokens",
        "replica",
        "scheduled_s",
        "tier_stores",
        "tier_tokens",
        "transferred_tokens",
    )

    def __init__(self, input_tokens: list[int], output_tokens: list[int], priority: list[int] | None = None) -> None:
        n = len(input_tokens)
        self.prefill_target = input_tokens  # tokens to have in the cache before the next one comes out
        self.remaining_tokens = output_tokens  # tokens still to come out
        self.transferred_tokens: list[int] | None = None  # tokens whose KV cache came from another replica
        self.priority = priority
        never, zero = array("d", [float("nan")]) * n, array("q", [0]) * n
        self.arrival_s, self.scheduled_s = never[:], never[:]
        self.first_token_s, self.finished_s = never[:], never
        self.num_cached_tokens, self.num_preemptions, self.replica = zero[:], zero[:], zero
        self.tier_tokens: list[array[int]] = []  # of each tier below the GPU: tokens of prompts that came from there
        self.tier_stores: dict[str, TierStore] = {}  # that all replicas share
        self.prompt_tokens: list[int] = []  # of every request, where there are tiers
        self.preempted_s: dict[int, float] = {}  # requests that wait again, since when
        self.pauses: list[tuple[int, float, float]] = []  # request, preempted, admitted again

    def put(self, i: int, input_tokens: int, output_tokens: int, priority: int = 0) -> None:
        """A new request takes row ``i``, which is free or the next one: rows of a live server are used again."""
        if i == len(self):
            for counts in (
                self.prefill_target,
                self.remaining_tokens,
                *([] if self.priority is None else [self.priority]),
            ):
                counts.append(0)
            for times in (self.arrival_s, self.scheduled_s, self.first_token_s, self.finished_s):
                times.append(nan)
            for numbers in (self.num_cached_tokens, self.num_preemptions, self.replica):
                numbers.append(0)
        self.prefill_target[i], self.remaining_tokens[i] = input_tokens, output_tokens
        if self.priority is not None:
            self.priority[i] = priority
        for times in (self.arrival_s, self.scheduled_s, self.first_token_s, self.finished_s):
            times[i] = nan
        for numbers in (self.num_cached_tokens, self.num_preemptions, self.replica):
            numbers[i] = 0
        self.preempted_s.pop(i, None)

    def preempt(self, i: int, now: float) -> None:
        """A request waits again."""
        self.num_preemptions[i] += 1
        self.preempted_s[i] = now

    def resume(self, i: int, now: float) -> None:
        """A request that was preempted is admitted again."""
        self.pauses.append((i, self.preempted_s.pop(i), now))

    def __len__(self) -> int:
        return len(self.prefill_target)


class RequestStatus(Enum):
    """Where a request is in its life; see the diagram in `engine`."""

    UNKNOWN = "not arrived yet"
    WAITING = "waiting"
    PREEMPTED = "preempted"
    LOADING = "loading"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHING = "finishing"
    FINISHED = "finished"
    REJECTED = "rejected"


class Finishing(NamedTuple):
    """A request that has all its tokens, and still has its place in the engine."""

    request: int
    blocks: int
    computed_tokens: int  # in those blocks
    last_step: int
    blocks_until: float  # s: its KV cache is being sent until then


def column(values: array[float] | array[int]) -> np.ndarray:
    """A column of the table as a NumPy array over the same memory: ``column(table.finished_s).max()``"""
    return np.frombuffer(values, dtype=np.float64 if values.typecode == "d" else np.int64)


# ------------------------------------------------------------------ admission to the server


class RejectionKind(Enum):
    """What a rejected request ran into."""

    EMPTY_PROMPT = "empty prompt"
    MAX_MODEL_LEN = "max_model_len"
    KV_CACHE = "KV cache"  # the request is longer than the cache, seen on arrival
    KV_BLOCKS = "KV blocks"  # it does not even fit into an idle engine
    PLAN = "plan"  # the plan itself cannot work
    SERVER_ERROR = "server error"  # what a live server answered


class Rejection(NamedTuple):
    """Why a request is rejected: its kind, by which rejections are counted, and a sentence as vLLM's."""

    kind: RejectionKind
    reason: str

    def __str__(self) -> str:
        return self.reason


class AdmittedRequests(NamedTuple):
    """Prompt and output tokens as the server takes them, and why it rejects the other requests."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    rejected: dict[int, Rejection]


def admit_trace(trace: Trace, max_model_len: int, kv_cache_tokens: int) -> AdmittedRequests:
    """The requests that a server takes, as vLLM does: outputs end at ``max_model_len``, too long requests are rejected.

    A prompt must leave room for one output token, and one request alone must fit into ``kv_cache_tokens``.
    """
    inputs, outputs = trace.input_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
    outputs = np.minimum(outputs, np.maximum(max_model_len - inputs, 0))
    rejected: dict[int, Rejection] = {}
    misfits = (inputs < 1) | (inputs >= max_model_len) | (inputs + outputs > kv_cache_tokens)
    for i in np.flatnonzero(misfits).tolist():
        rejected[i] = _rejection(int(inputs[i]), int(outputs[i]), max_model_len, kv_cache_tokens)
    return AdmittedRequests(inputs, outputs, rejected)


def _rejection(input_len: int, output_len: int, max_model_len: int, kv_cache_tokens: int) -> Rejection:
    if input_len < 1:
        return Rejection(RejectionKind.EMPTY_PROMPT, "the prompt is empty")
    if input_len >= max_model_len:
        return Rejection(
            RejectionKind.MAX_MODEL_LEN,
            f"the prompt of {input_len:,} tokens plus one output token exceeds the maximum "
            f"model length of {max_model_len:,}",
        )
    return Rejection(
        RejectionKind.KV_CACHE,
        f"{input_len:,} + {output_len:,} tokens exceed the {kv_cache_tokens:,} that the KV cache holds",
    )
