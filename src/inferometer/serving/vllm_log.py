"""The lines of vLLM's log that time steps: one for every step, or one for each 10 s.

reader = VllmIterations()
reader.take("… Iteration(91): 1 context requests, 951 context tokens, …")
reader.finish()
reader.steps
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from .logged_step import FEW_PROMPTS, LoggedStep, LogReader, alike
from .metrics_page import ServerStatistics

CLOCK_ERROR = 0.6  # s: two stamps of whole seconds differ by that much from what they mean, nearly always
STAMP_ERROR = 0.005  # the same of stamps that are finer
LEAP = 5.0  # s by which a clock runs ahead of the steps where it was set, or lines are missing

_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms( \(dummy\))?(?:, GPU KV cache usage: ([\d.]+)%)?"
)
_STATISTICS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs, Waiting: (\d+) reqs.*?GPU KV cache usage: ([\d.]+)%"
)
_CAPACITY = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_EAGER = re.compile(r"enforce_eager['\"]?[=:] ?(True|False)")
_BUDGET = re.compile(r"max_num_batched_tokens['\"]?[=:] ?(\d+)")
_VERSION = re.compile(r"LLM engine \(v(\d+\.\d+)")
_RANKS = re.compile(r"\btensor_parallel_size['\"]?[=:] ?(\d{1,6})\b")
_ENGINE = re.compile(r"\bEngine (\d+): |\bEngineCore_DP(\d+)\b")
_PROCESS = re.compile(r"\(EngineCore\w* pid=(\d+)\)")
_CLOCK = re.compile(r"\b(?:(\d\d)-(\d\d)[ T])?(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


class VllmIterations(LogReader):
    """One line a step. What is timed is the wait for its result, which leaves out planning and launching.

    Before 0.26, that is: lines of later versions say how full the KV cache is, too, and time the step.
    """

    kind, engine = "vLLM's iterations", "vllm"
    marks = ("Iteration(", "GPU KV cache size:", "Avg prompt throughput:", "enforce_eager", "max_num_batched_tokens")

    def __init__(self) -> None:
        super().__init__()
        self.enforce_eager: bool | None = None
        self.max_num_batched_tokens = math.nan
        self.kv_usage: dict[int, float] = {}  # by number of the engine
        self.latest: dict[int, str] = {}  # the same: its stream
        self.streams: dict[str, list[int]] = {}  # which steps are whose
        self.waits: set[str] = set()  # streams whose lines time waits alone
        self.untimed_s = 0.0

    def take(self, line: str) -> None:
        """One line of the log."""
        if "Iteration(" in line:
            if step := _ITERATION.search(line):
                self._take_step(line, step)
        elif capacity := _CAPACITY.search(line):
            self.kv_cache_tokens = float(capacity.group(1).replace(",", ""))
        elif statistics := _STATISTICS.search(line):
            self.kv_usage[_engine_number(line)] = float(statistics.group(5)) / 100
        else:
            if eager := _EAGER.search(line):
                self.enforce_eager = eager.group(1) == "True"
            if version := _VERSION.search(line):
                self.version = version.group(1)
            if ranks := _RANKS.search(line):
                self.tensor_parallel_size = int(ranks.group(1))
            if budget := _BUDGET.search(line):
                self.max_num_batched_tokens = float(budget.group(1))

    def _take_step(self, line: str, step: re.Match[str]) -> None:
        prompts, new, decoding = (float(step.group(k)) for k in (2, 3, 4))
        seconds = float(step.group(6)) / 1e3
        if step.group(7) or not seconds or not (new or decoding):
            return
        engine, process = _engine_number(line), _PROCESS.search(line)
        stream = f"engine {engine}" + (f" of process {process.group(1)}" if process else "")
        if self.latest.setdefault(engine, stream) != stream:  # started again: its cache is empty
            self.latest[engine] = stream
            self.kv_usage.pop(engine, None)
        if step.group(8):
            self.kv_usage[engine] = float(step.group(8)) / 100
        else:
            self.waits.add(stream)
        usage, now = self.kv_usage.get(engine, math.nan), clock_seconds(line)
        row = LoggedStep(new, prompts, 0.0, decoding, math.nan, seconds, 1, usage, stream, clock_s=now)
        self.streams.setdefault(stream, []).append(len(self.steps))
        self.steps.append(row)

    def finish(self) -> None:
        """Add to every step what the clock of the log shows and its timings leave out."""
        untimed = {name: untimed_seconds([self.steps[at] for at in places]) for name, places in self.streams.items()}
        known = [(more, len(self.streams[name])) for name, more in untimed.items() if more is not None]
        if not known:
            return
        mean = sum(more * count for more, count in known) / sum(count for _, count in known)
        for name, places in self.streams.items():
            more = untimed[name]
            if more is None:  # a few steps before it was started again: as the others
                more = mean if name in self.waits else 0.0
            for at in places if more else ():
                step = self.steps[at]
                self.steps[at] = step._replace(seconds=step.seconds + more, wait_s=step.seconds)
        self.untimed_s = mean
        self.waits.clear()

    def server(self) -> ServerStatistics:
        """What it was started with stands in its first lines."""
        stated = {"enforce_eager": self.enforce_eager, "max_num_batched_tokens": self.max_num_batched_tokens}
        return msgspec.structs.replace(super().server(), **stated)

    def notes(self) -> list[str]:
        """What was added, or cannot be."""
        if objection := self.objection():
            return [objection]
        more = f"the log's clock shows {self.untimed_s * 1e3:.2f} ms a step more than its timings: they leave out "
        return [more + "planning and launching, and this was added"] if self.untimed_s else []

    def objection(self) -> str:
        """Waits that no clock completes are no times of steps."""
        if not self.waits:
            return ""
        return (
            "the log times only the wait for each result: how long planning and launching took cannot be said without "
            f"a time of day in its lines, for {10 * CLOCK_ERROR:.0f} s without a pause or more finely than in seconds"
        )


def untimed_seconds(steps: Sequence[LoggedStep]) -> float | None:
    """Seconds that the clock shows of a step more than its timing; None if the clock cannot tell.

    Spells without a pause are looked at. They end, too, where the clock was set or lines are missing.
    """
    resolution = STAMP_ERROR if any(step.clock_s % 1 > 0 for step in steps) else CLOCK_ERROR
    timed = elapsed = error = 0.0
    count = begin = 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and steps[end].decode_seqs:
            passed = steps[end].clock_s - steps[end - 1].clock_s
            if not (passed < -resolution or passed > steps[end].seconds + LEAP):
                continue  # without a pause
        spell = steps[end - 1].clock_s - steps[begin].clock_s
        if spell >= 10 * resolution:
            elapsed += spell
            timed += sum(step.seconds for step in steps[begin + 1 : end])
            count += end - 1 - begin
            error = math.hypot(error, resolution)
        begin = end
    if not count:
        return None
    return (elapsed - timed) / count if elapsed - timed > max(2 * error, 0.02 * elapsed) else 0.0


def _engine_number(line: str) -> int:
    engine = _ENGINE.search(line)
    return int(engine.group(1) or engine.group(2)) if engine else 0


def clock_seconds(line: str) -> float:
    """The time of day that a line begins with, in seconds of its month; nan if it has none."""
    clock = _CLOCK.search(line[:80])
    if clock is None:
        return math.nan
    _, day, hour, minute, second = (float((part or "0").replace(",", ".")) for part in clock.groups())
    return ((day * 24 + hour) * 60 + minute) * 60 + second


class VllmStatistics(LogReader):
    """One line each 10 s. In a window without prompts every sequence has a token a step."""

    kind, engine = "vLLM's lines of every 10 s", "vllm"
    marks = ("Avg prompt throughput:", "GPU KV cache size:")

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, float] = {}  # engine -> sequences that ran at the line before

    def take(self, line: str) -> None:
        """One line of the log."""
        if capacity := _CAPACITY.search(line):
            self.kv_cache_tokens = float(capacity.group(1).replace(",", ""))
        elif line_of := _STATISTICS.search(line):
            prompts, tokens, running, _, usage = (float(line_of.group(k)) for k in range(1, 6))
            name = line[: line_of.start()].rpartition("Engine ")[2]
            before, self.before[name] = self.before.get(name, 0.0), running
            if not tokens or prompts > FEW_PROMPTS * tokens or not alike(before, running):
                self.skipped += 1
                return
            running = (before + running) / 2
            self.steps.append(
                LoggedStep(0, 0, 0, running, math.nan, running / tokens, round(10 * tokens / running) or 1, usage / 100)
            )
