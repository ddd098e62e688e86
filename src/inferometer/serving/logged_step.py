"""A step of an engine, as its log says it, and the log of many: what all readers of `step_log` and their users share.

LoggedStep(prefill_tokens=0, prefill_seqs=0, prefill_cached=0, decode_seqs=31, decode_kv=28412.0, seconds=0.0057)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from ..base.errors import BadFile
from .metrics_page import ServerStatistics

ALIKE = 0.1  # by which the sequences of two lines may differ so that steps between them are alike
FEW_PROMPTS = 0.02  # of an interval's tokens: so few are no burden on its decode steps


class LoggedStep(NamedTuple):
    """One step, or the mean of some that are alike."""

    prefill_tokens: float  # of prompts, computed in it
    prefill_seqs: float
    prefill_cached: float  # tokens of the same prompts that were there before
    decode_seqs: float
    decode_kv: float  # tokens in the KV cache of all sequences that decode; nan: only `kv_usage` is known
    seconds: float
    steps: int = 1
    kv_usage: float = math.nan  # share of the KV cache in use
    stream: str = ""  # which engine's, where every step of it is in the log; "" where some are not
    ahead: float = 0.0  # s by which the host was free to launch it before the device was
    thermal_state: float = 0.0  # how far the chip was throttled when it began
    wait_s: float = math.nan  # for its result, once the next step was launched: all that some logs time
    clock_s: float = math.nan  # when it came; in whole seconds, unless lines are stamped more finely
    whole: bool = True  # whether `seconds` are its own, and no guess
    uncertain_s: float = 0.0  # by which `seconds` may be off in all steps alike, as a standard deviation


class StepLog(msgspec.Struct, kw_only=True):
    """The steps of a log in their order."""

    steps: list[LoggedStep]
    kind: str  # "vLLM's iterations", …
    engine: str = ""  # vllm, sglang; "" where the format does not say
    version: str = ""  # of the engine, where the log says it
    tensor_parallel_size: int = 0  # the same
    source: str = ""
    kv_cache_tokens: float = math.nan  # that the KV cache holds, where the log says it
    notes: list[str] = []  # what should be known about it
    objection: str = ""  # why its times are no measure of predictions, "" if they are
    server: ServerStatistics | None = None  # what it says of the server as a whole

    def __len__(self) -> int:
        return len(self.steps)


class LogReader:
    """Takes lines in; a subclass says which it knows: ``reader.take(line); reader.steps``"""

    kind = engine = ""
    marks: tuple[str, ...] = ()  # one of which a line of the format has
    repeats = False  # whether the same line may stand in two parts of a log and mean something in both

    def __init__(self) -> None:
        self.steps: list[LoggedStep] = []
        self.kv_cache_tokens = math.nan
        self.skipped = 0
        self.version = ""
        self.tensor_parallel_size = 0

    def take(self, line: str) -> None:
        """One line that has one of the marks."""
        raise BadFile(f"{type(self).__name__} reads no lines")

    def notes(self) -> list[str]:
        """What should be known about the steps, once all lines are in."""
        return []

    def objection(self) -> str:
        """Why the times of the steps are no measure of predictions, "" if they are."""
        return ""

    def finish(self) -> None:
        """All lines are in."""

    def server(self) -> ServerStatistics:
        """What the steps say of the server as a whole; of sizes only where every step is in the log."""
        known = [step for step in self.steps if step.stream]
        tokens = [step.prefill_tokens + step.decode_seqs for step in known]
        usage = [step.kv_usage for step in self.steps if math.isfinite(step.kv_usage)]
        if not usage and self.kv_cache_tokens > 0:
            usage = [(step.decode_kv + step.prefill_cached) / self.kv_cache_tokens for step in known]
        return ServerStatistics(
            seconds=sum(step.seconds * step.steps for step in self.steps),
            steps=float(len(known)) or math.nan,
            tokens_per_step=sum(tokens) / len(tokens) if tokens else math.nan,
            largest_step_tokens=max(tokens, default=math.nan),
            kv_cache_usage=max(usage, default=math.nan),
            kv_cache_tokens=self.kv_cache_tokens,
        )


def alike(a: float, b: float) -> bool:
    """Whether two numbers of sequences differ by little: ``alike(30, 32)``"""
    return min(a, b) > 0 and abs(a - b) <= max(1.0, ALIKE * max(a, b))
