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
from typing import Any

import msgspec

from ..base.errors import BadFile
from ..base.files import input_path
from ..base.input_file import open_input, unreadable
from .logged_step import FEW_PROMPTS, LoggedStep, LogReader, StepLog, alike
from .metrics_page import (
    MetricsPage,
    ServerStatistics,
    distribution,
    growth,
    kv_cache_tokens,
    read_pages,
    server_statistics,
)
from .vllm_log import VllmIterations, VllmStatistics, clock_seconds

MAX_STEPS = 200_000  # that are kept of a log
MOST = 1e6  # tokens of a step, and seconds
MOST_SEQS = 1e5
MAX_LINE = 2**20  # bytes of one line; what is longer goes on in the next
MAX_WITHOUT = 2**26  # bytes of a log in which there has to be a step
MAX_PAGE_LINES = 5_000_000
HALF_A_MONTH = 15.5 * 86400  # s: clocks of logs have no years


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
    repeats = True

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


def log_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a log, packed or not; bytes that are no text are replaced."""
    place = input_path(str(path))
    with open_input(place) as source:
        try:
            for line in iter(lambda: source.file.readline(MAX_LINE), b""):
                yield line.decode(errors="replace")
        except OSError as error:  # the rest of a packed file is missing
            raise unreadable(place, error) from None


class LogParts:
    """The parts of a log, one after the other into all readers: ``LogParts(readers).read("server.log.1")``"""

    def __init__(self, readers: Sequence[LogReader]) -> None:
        self.readers = readers
        self.known: set[int] = set()  # lines of the parts so far, as hashes
        self.repeated = 0
        self.last = ("", math.nan)  # name and first moment of the part before
        self.unfinished: BadFile | None = None  # what is wrong with a last line that may be half of one
        self.notes: list[str] = []

    def read(self, path: str | PathLike[str], is_only: bool = True) -> None:
        """All lines of one part."""
        unread, lines, begin = MAX_WITHOUT, set[int](), math.nan  # unread: in characters
        for number, line in enumerate(log_lines(path), 1):
            unread -= len(line)
            takers = [each for each in self.readers if any(mark in line for mark in each.marks)]
            if takers:
                unread = MAX_WITHOUT
                begin = begin if math.isfinite(begin) else clock_seconds(line)
            if takers and not (is_only or all(each.repeats for each in takers)):
                lines.add(hash(line))
                if hash(line) in self.known:
                    self.repeated += 1
                    continue
            for reader in takers:
                self._take(reader, line, f"{path}, line {number}")
            if unread < 0:
                break
            if any(len(each.steps) > MAX_STEPS for each in takers):
                self.notes.append(f"only the first {MAX_STEPS:,} steps of the log were read")
                break
        self.known |= lines
        self._in_order(str(path), begin)

    def _take(self, reader: LogReader, line: str, where: str) -> None:
        try:
            reader.take(line)
        except (BadFile, ValueError) as error:
            why = error if isinstance(error, BadFile) else "a number of the step cannot be read"
            wrong = BadFile(f"{where}: {why}")
            if line.endswith("\n"):
                raise wrong from None
            self.unfinished = wrong  # the server may still be writing it

    def _in_order(self, path: str, begin: float) -> None:
        before, began = self.last
        if (began - begin) % (2 * HALF_A_MONTH) < HALF_A_MONTH and began != begin:
            self.notes.append(f"{path} begins before {before}: give the oldest part of a log first")
        self.last = (path, begin)


def read_step_log(paths: Sequence[str | PathLike[str]], needs_steps: bool = True) -> StepLog:
    """The steps of one log or several parts of it, in the format that has most of them.

    ``read_step_log(["server.log"]).kind  # "vLLM's iterations"``. Pages of /metrics under prompts have no steps.
    """
    readers = [make() for make in READERS]
    source = ", ".join(str(path) for path in paths)
    parts = LogParts(readers)
    for path in paths:
        parts.read(path, len(paths) == 1)
    for reader in readers:
        reader.finish()
    best = next((reader for reader in readers if reader.steps), None)
    pages = next(each for each in readers if isinstance(each, MetricsPages)).pages
    if best is None and not needs_steps:
        best = next((each for each in readers if isinstance(each, MetricsPages) and len(pages) > 1), None)
    if best is None:
        raise parts.unfinished or BadFile(_no_steps(source, len(pages), sum(each.skipped for each in readers)))
    if (number := next((k for k, step in enumerate(best.steps, 1) if not _is_possible(step)), 0)) > 0:
        raise BadFile(f"{source}, step {number}: no step of an engine has such numbers")
    repeated = f"{parts.repeated:,} lines stand in two parts of the log: they are read once"
    return StepLog(
        steps=best.steps[:MAX_STEPS],
        kind=best.kind,
        engine=best.engine or ("sglang" if any(r.steps for r in readers if r.engine == "sglang") else ""),
        version=best.version,
        tensor_parallel_size=best.tensor_parallel_size,
        source=source,
        kv_cache_tokens=best.kv_cache_tokens,
        notes=[*best.notes(), *parts.notes, *([repeated] if parts.repeated else [])],
        objection=best.objection(),
        server=best.server(),
    )


def _no_steps(source: str, pages: int, skipped: int) -> str:
    if pages == 1:
        return f"{source} has one page of /metrics: steps need a second one, some seconds later, in the same file"
    if pages:
        return (
            f"{source} has {pages:,} pages of /metrics, but never decode steps alone between two of them; they are "
            "evidence for the diagnosis of measured requests"
        )
    why = f" ({skipped:,} lines span several kinds of steps)" if skipped else ""
    return (
        f"{source} has no steps{why}: a step log is a log of vLLM (of its iterations, or its lines of every 10 s) "
        "or SGLang, Dynamo's forward-pass metrics as JSON lines, or pages of /metrics one after the other"
    )


def _is_possible(step: LoggedStep) -> bool:
    """Whether its figures are those of some engine."""
    counted = (step.prefill_tokens, step.prefill_cached, step.seconds)
    seqs = (step.prefill_seqs, step.decode_seqs)
    possible = all(0 <= number <= MOST for number in counted) and all(0 <= number <= MOST_SEQS for number in seqs)
    return possible and not (step.decode_kv < 0 or step.decode_kv > MOST**2)
