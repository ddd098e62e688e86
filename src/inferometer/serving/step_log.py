"""What engines write about their own steps, as rows: vLLM's log, SGLang's, Dynamo's records, Prometheus' pages.

log = read_step_log(["server.log"])
log.steps[0]          # LoggedStep(prefill_tokens=0, …, decode_seqs=31, decode_kv=28412.0, seconds=0.0057, steps=1)

| what | its source | what a row is |
|---|---|---|
| vLLM's `Iteration(…)` lines, enable_logging_iteration_details | vllm/v1/engine/core.py, v0.14.0 to v0.25.0; \
vllm/v1/metrics/loggers.py from v0.26.0 on (a014e35) | one step |
| vLLM's `Engine 000: Avg prompt throughput …` | vllm/v1/metrics/loggers.py, v0.9.2 and a014e35 | mean decode step of \
10 s without prompts |
| SGLang's `Prefill batch`, `Decode batch` | sglang/srt/managers/scheduler_components/metrics_reporter.py at cce0a12 | \
one prompt step that follows another; mean of 40 decode steps |
| Dynamo's `ForwardPassMetrics`, one JSON object a line, also inside of its trace records | \
components/src/dynamo/common/forward_pass_metrics.py and lib/llm/src/fpm_trace at bb3100e | one step |
| pages of /metrics, one after the other | `metrics_page.py` | mean decode step between two of them |

Only rows whose duration is a step's own are kept: a line of SGLang's that spans idle time or other steps says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadFile
from ..base.files import input_path
from ..base.input_file import open_input
from .metrics_page import (
    MetricsPage,
    ServerStatistics,
    distribution,
    growth,
    kv_cache_tokens,
    read_pages,
    server_statistics,
)

MAX_STEPS = 200_000  # that are kept of a log
MOST = 1e6  # sequences or tokens of a step, and seconds
MAX_LINE = 2**20  # bytes of one line; what is longer goes on in the next
MAX_WITHOUT = 2**26  # bytes of a log in which there has to be a step
MAX_PAGE_LINES = 5_000_000
ALIKE = 0.1  # by which the sequences of two lines may differ so that steps between them are alike
FEW_PROMPTS = 0.02  # of an interval's tokens: so few are no burden on its decode steps
CLOCK_ERROR = 0.6  # s: two stamps of whole seconds differ by that much from what they mean, nearly always


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
    source: str = ""
    kv_cache_tokens: float = math.nan  # that the KV cache holds, where the log says it
    notes: list[str] = []  # what should be known about it
    server: ServerStatistics | None = None  # what it says of the server as a whole

    def __len__(self) -> int:
        return len(self.steps)


class LogReader:
    """Takes lines in; a subclass says which it knows: ``reader.take(line); reader.steps``"""

    kind = engine = ""
    marks: tuple[str, ...] = ()  # one of which a line of the format has

    def __init__(self) -> None:
        self.steps: list[LoggedStep] = []
        self.kv_cache_tokens = math.nan
        self.skipped = 0

    def take(self, line: str) -> None:
        """One line that has one of the marks."""
        raise BadFile(f"{type(self).__name__} reads no lines")

    def notes(self) -> list[str]:
        """What should be known about the steps, once all lines are in."""
        return []

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


# ------------------------------------------------------------------ vLLM

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
_ENGINE = re.compile(r"Engine (\d+)|(?=Iteration)")
_CLOCK = re.compile(r"\b(?:(\d\d)-(\d\d)[ T])?(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


class VllmIterations(LogReader):
    """One line a step. What is timed is the wait for its result, which leaves out planning and launching."""

    kind, engine = "vLLM's iterations", "vllm"
    marks = ("Iteration(", "GPU KV cache size:", "Avg prompt throughput:", "enforce_eager", "max_num_batched_tokens")

    def __init__(self) -> None:
        super().__init__()
        self.enforce_eager: bool | None = None
        self.max_num_batched_tokens = math.nan
        self.kv_usage = math.nan
        self.untimed_s = 0.0

    def take(self, line: str) -> None:
        """One line of the log."""
        if capacity := _CAPACITY.search(line):
            self.kv_cache_tokens = float(capacity.group(1).replace(",", ""))
        elif statistics := _STATISTICS.search(line):
            self.kv_usage = float(statistics.group(5)) / 100
        elif "Iteration(" not in line:
            if eager := _EAGER.search(line):
                self.enforce_eager = eager.group(1) == "True"
            if budget := _BUDGET.search(line):
                self.max_num_batched_tokens = float(budget.group(1))
        elif step := _ITERATION.search(line):
            prompts, new, decoding = (float(step.group(k)) for k in (2, 3, 4))
            seconds = float(step.group(6)) / 1e3
            if step.group(7) or not seconds or not (new or decoding):
                return
            self.kv_usage = float(step.group(8)) / 100 if step.group(8) else self.kv_usage
            engine, now = _ENGINE.search(line), clock_seconds(line)
            stream = f"engine {engine.group(1) or 0}" if engine else "engine"
            row = LoggedStep(new, prompts, 0.0, decoding, math.nan, seconds, 1, self.kv_usage, stream, clock_s=now)
            self.steps.append(row)

    def finish(self) -> None:
        """Add to every step what the clock of the log shows and its timings leave out."""
        if len({step.stream for step in self.steps}) > 1:
            return  # whose clock it is cannot be said
        timed = elapsed = error = 0.0
        count = begin = 0
        for end in range(1, len(self.steps) + 1):
            if end < len(self.steps) and self.steps[end].decode_seqs:
                continue  # without a pause
            spell = self.steps[end - 1].clock_s - self.steps[begin].clock_s
            if spell >= 10 * CLOCK_ERROR:
                elapsed += spell
                timed += sum(step.seconds for step in self.steps[begin + 1 : end])
                count += end - 1 - begin
                error = math.hypot(error, CLOCK_ERROR)
            begin = end
        if count and elapsed - timed > max(2 * error, 0.02 * elapsed):
            self.untimed_s = (elapsed - timed) / count
            more = self.untimed_s
            self.steps = [step._replace(seconds=step.seconds + more, wait_s=step.seconds) for step in self.steps]

    def server(self) -> ServerStatistics:
        """What it was started with stands in its first lines."""
        stated = {"enforce_eager": self.enforce_eager, "max_num_batched_tokens": self.max_num_batched_tokens}
        return msgspec.structs.replace(super().server(), **stated)

    def notes(self) -> list[str]:
        """What was added."""
        more = f"the log's clock shows {self.untimed_s * 1e3:.2f} ms a step more than its timings: they leave out "
        return [more + "planning and launching, and this was added"] if self.untimed_s else []


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


# ------------------------------------------------------------------ SGLang

_FIELDS = {
    "running": r"#running-req: (\d+)",
    "tokens": r"#(?:full )?token: (\d+)",
    "accepted": r"accept len: ([\d.]+)",
    "generated": r"gen throughput \(token/s\): ([\d.]+)",
    "new_seqs": r"#new-seq: (\d+)",
    "new": r"#new-token: (\d+)",
    "cached": r"#cached-token: (\d+)",
    "queued": r"#queue-req: (\d+)",
    "pending": r"#pending-token: (\d+)",
    "computed": r"input throughput \(token/s\): ([\d.]+)",
}
_SGLANG = {name: re.compile(pattern) for name, pattern in _FIELDS.items()}
_RANK = re.compile(r"\bDP(\d+)\b")


class SglangBatches(LogReader):
    """A line for every prompt step, and for every 40th decode step, each with its rate since the one before."""

    kind, engine = "SGLang's batches", "sglang"
    marks = ("Decode batch", "Prefill batch", "max_total_num_tokens=")

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, dict[str, float]] = {}  # rank -> fields of its line before

    def take(self, line: str) -> None:
        """One line of the log."""
        if "batch" not in line:
            capacity = re.search(r"max_total_num_tokens=(\d+)", line)
            self.kv_cache_tokens = float(capacity.group(1)) if capacity else self.kv_cache_tokens
            return
        there = {name: float(field.group(1)) for name, pattern in _SGLANG.items() if (field := pattern.search(line))}
        rank = _RANK.search(line)
        key = rank.group(1) if rank else ""
        before, self.before[key] = self.before.get(key, {}), there
        step = _decode_step(before, there) if "generated" in there else _prompt_step(before, there)
        if step is None:
            self.skipped += 1
        else:
            self.steps.append(step)


def _decode_step(before: dict[str, float], there: dict[str, float]) -> LoggedStep | None:
    """The mean decode step since the line before, if that was one of decode steps, too."""
    running, rate = there.get("running", 0.0), there["generated"]
    if "generated" not in before or not rate or not running or not alike(before.get("running", 0.0), running):
        return None
    context = (before.get("tokens", math.nan) + there.get("tokens", math.nan)) / 2
    running = (before["running"] + running) / 2
    return LoggedStep(0, 0, 0, running, context, running * (there.get("accepted") or 1.0) / rate, 40)


def _prompt_step(before: dict[str, float], there: dict[str, float]) -> LoggedStep | None:
    """A prompt step, if the one before it was one, too, and left prompts for this one."""
    left = before.get("queued", 0.0) + before.get("pending", 0.0)
    if "new" not in before or not left or not there.get("computed") or not there.get("new"):
        return None
    seqs = max(1.0, there.get("new_seqs", 1.0))
    return LoggedStep(there["new"], seqs, there.get("cached", 0.0), 0, 0.0, there["new"] / there["computed"])


# ------------------------------------------------------------------ Dynamo's forward-pass metrics


class ScheduledRequests(msgspec.Struct):
    """What a step computed, in the order that `LoggedStep` has."""

    sum_prefill_tokens: float = 0
    num_prefill_requests: float = 0
    sum_prefill_kv_tokens: float = 0
    num_decode_requests: float = 0
    sum_decode_kv_tokens: float = 0


class ForwardPass(msgspec.Struct):
    """One record; those of an idle engine have no time."""

    wall_time: float
    scheduled_requests: ScheduledRequests
    version: int = 1
    worker_id: str = ""
    dp_rank: int = 0


class ForwardPassTrace(msgspec.Struct):
    """A record of Dynamo's trace, around one."""

    fpm: ForwardPass


class ForwardPassRecords(LogReader):
    """One JSON object a line."""

    kind = "Dynamo's forward-pass metrics"
    marks = ('"scheduled_requests"',)

    def take(self, line: str) -> None:
        """One line of the file."""
        text = line[line.find("{") :].strip()
        try:
            kind: Any = ForwardPassTrace if '"fpm"' in text else ForwardPass
            record = msgspec.json.decode(text, type=kind, strict=False)
            step: ForwardPass = getattr(record, "fpm", record)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFile(f"a record of forward-pass metrics is not valid: {error}") from None
        if step.version != 1:
            raise BadFile(f"forward-pass metrics of version {step.version} are not known; version 1 is")
        sums = step.scheduled_requests
        if step.wall_time > 0 and (sums.sum_prefill_tokens or sums.num_decode_requests):
            new, prompts, cached, decoding, context = msgspec.structs.astuple(sums)
            stream = f"{step.worker_id} rank {step.dp_rank}"
            self.steps.append(LoggedStep(new, prompts, cached, decoding, context, step.wall_time, stream=stream))


# ------------------------------------------------------------------ pages of /metrics


def page_steps(pages: Sequence[MetricsPage]) -> Iterator[LoggedStep]:
    """The mean decode step between two pages, where prompts were few: the mean gap between two tokens."""
    for before, after in pairwise(pages):
        gaps = distribution(before, after, "itl")
        prompts, tokens = (growth(before, after, name) for name in ("prompt_tokens", "output_tokens"))
        running = (before.value("running"), after.value("running"))
        if not gaps.number or not prompts <= FEW_PROMPTS * tokens or not alike(*running):
            continue
        steps, seqs = distribution(before, after, "step_tokens").number, sum(running) / 2
        usage = (before.value("kv_usage") + after.value("kv_usage")) / 2
        yield LoggedStep(0, 0, 0, seqs, math.nan, gaps.mean, round(steps or gaps.number / max(seqs, 1)) or 1, usage)


class MetricsPages(LogReader):
    """Pages one after the other."""

    kind = "pages of /metrics"
    marks = ("vllm:", "sglang:")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.pages: list[MetricsPage] = []

    def take(self, line: str) -> None:
        """One line of a page."""
        if len(self.lines) > MAX_PAGE_LINES:
            raise BadFile(f"more than {MAX_PAGE_LINES:,} lines of /metrics")
        if line.startswith(self.marks):
            self.lines.append(line)

    def finish(self) -> None:
        """Compare each page with the next."""
        self.pages = pages = list(read_pages(self.lines))
        self.steps = list(page_steps(pages))
        if pages:
            self.kv_cache_tokens = kv_cache_tokens(pages[-1])

    def server(self) -> ServerStatistics:
        """The first page against the last."""
        if len(self.pages) < 2:
            return super().server()
        first, last = self.pages[0], self.pages[-1]
        return msgspec.structs.replace(
            server_statistics(first, last, last.time_s - first.time_s),
            running=fmean(page.value("running") for page in self.pages),
            waiting=fmean(page.value("waiting") for page in self.pages),
            kv_cache_usage=max(page.value("kv_usage") for page in self.pages),
        )


# ------------------------------------------------------------------ files

READERS: tuple[type[LogReader], ...] = (
    ForwardPassRecords,
    VllmIterations,
    SglangBatches,
    VllmStatistics,
    MetricsPages,
)


def alike(a: float, b: float) -> bool:
    """Whether two numbers of sequences differ by little: ``alike(30, 32)``"""
    return min(a, b) > 0 and abs(a - b) <= max(1.0, ALIKE * max(a, b))


def clock_seconds(line: str) -> float:
    """The time of day that a line begins with, in seconds of its month; nan if it has none."""
    clock = _CLOCK.search(line[:80])
    if clock is None:
        return math.nan
    _, day, hour, minute, second = (float((part or "0").replace(",", ".")) for part in clock.groups())
    return ((day * 24 + hour) * 60 + minute) * 60 + second


def log_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a log, packed or not; bytes that are no text are replaced."""
    with open_input(input_path(str(path))) as source:
        for line in iter(lambda: source.file.readline(MAX_LINE), b""):
            yield line.decode(errors="replace")


def read_step_log(paths: Sequence[str | PathLike[str]], needs_steps: bool = True) -> StepLog:
    """The steps of one log or several parts of it, in the format that has most of them.

    ``read_step_log(["server.log"]).kind  # "vLLM's iterations"``. Pages of /metrics under prompts have no steps.
    """
    readers = [make() for make in READERS]
    source = ", ".join(str(path) for path in paths)
    for path in paths:
        unread = MAX_WITHOUT  # characters
        for number, line in enumerate(log_lines(path), 1):
            unread -= len(line)
            for reader in readers:
                if any(mark in line for mark in reader.marks):
                    _take(reader, line, f"{path}, line {number}")
                    unread = MAX_WITHOUT
            if unread < 0 or any(len(reader.steps) > MAX_STEPS for reader in readers):
                break
    for reader in readers:
        reader.finish()
    best = next((reader for reader in readers if reader.steps), None)
    if best is None and not needs_steps:
        best = next((each for each in readers if isinstance(each, MetricsPages) and len(each.pages) > 1), None)
    if best is None:
        skipped = sum(reader.skipped for reader in readers)
        why = f" ({skipped:,} lines span several kinds of steps)" if skipped else ""
        raise BadFile(
            f"{source} has no steps{why}: a step log is a log of vLLM (of its iterations, or its lines of every 10 s) "
            "or SGLang, Dynamo's forward-pass metrics as JSON lines, or pages of /metrics one after the other"
        )
    if (number := next((k for k, step in enumerate(best.steps, 1) if not _is_possible(step)), 0)) > 0:
        raise BadFile(f"{source}, step {number}: no step of an engine has such numbers")
    return StepLog(
        steps=best.steps[:MAX_STEPS],
        kind=best.kind,
        engine=best.engine or ("sglang" if any(r.steps for r in readers if r.engine == "sglang") else ""),
        source=source,
        kv_cache_tokens=best.kv_cache_tokens,
        notes=best.notes(),
        server=best.server(),
    )


def _is_possible(step: LoggedStep) -> bool:
    """Whether its figures are those of some engine."""
    counted = (step.prefill_tokens, step.prefill_seqs, step.prefill_cached, step.decode_seqs, step.seconds)
    return all(0 <= number <= MOST for number in counted) and not (step.decode_kv < 0 or step.decode_kv > MOST**2)


def _take(reader: LogReader, line: str, where: str) -> None:
    try:
        reader.take(line)
    except (BadFile, ValueError) as error:
        why = error if isinstance(error, BadFile) else "a number of the step cannot be read"
        raise BadFile(f"{where}: {why}") from None
