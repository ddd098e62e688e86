"""``profile --kernels``: shapes in order of their worth, measured within a budget of time.

A campaign is resumed where an earlier one stopped: rows that the file has are kept.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, cast

import msgspec

from ..base.errors import BadFile, BadValue, UnknownName
from ..base.extras import is_installed, load_library
from ..base.files import user_path
from ..specs import catalog
from . import machine, shape_grid, timer
from .machine import optional_library
from .microbenchmarks import CASES, KernelBench, Library, Ready, reason
from .profile_csv import ProfileWriter, shape_cell
from .roofline_limits import INFINITE_PEAK, DeviceLimits, device_limits, roofline_seconds
from .timer import Log, OnProgress, parse_duration, progress_lines

WARNED = 20  # sentences about rows that were refused or failed; the rest is counted
UNIT = "h200"  # the work of a row is counted in seconds at this device's peaks
CALLS = timer.REPLAYS + 2  # that a long shape takes
LONG_SHARE = 0.02  # of the budget that one shape may take before all others had their turn
NO_WORK = 1e-12  # s of work below which a row has none


def profile_kernels(
    output: str,
    budget: str,
    device: str,
    say: Log,
    progress: OnProgress | None = None,
    kinds: str | None = None,
) -> dict[str, int]:
    """Measure the shapes that the file lacks; every row is written at once, so nothing is lost when it stops.

    ``profile_kernels("kernels.csv", "10m", "cuda", print, kinds="linear,moe")``; ``progress`` moves a bar, without it a
    line is said now and then.
    """
    seconds, wanted = parse_duration(budget), parse_kinds(kinds)
    if device not in ("cuda", "cpu"):
        raise UnknownName("`device`", device, ("cuda", "cpu"))
    path = user_path(output)
    if path.is_dir() or not path.parent.is_dir():
        raise BadFile(f"{path} cannot be written: it is a folder, or its folder is not there")
    torch = load_library("torch", "profile")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("profile finds no CUDA device; `device` cpu measures the CPU")
    return _run_campaign(torch, path, seconds, device, say, progress, wanted)


def parse_kinds(kinds: str | None) -> list[tuple[str, str]]:
    """Kinds of kernel, and of which format; all where none is named: ``parse_kinds("moe:fp8")  # [("moe", "fp8")]``"""
    pairs = [name.strip().partition(":") for name in (kinds or "").split(",") if name.strip()]
    for name, _, format_ in pairs:
        if name not in CASES:
            raise UnknownName("kind of kernel in `kinds`", name, CASES)
        if format_ and format_ not in catalog.precisions():
            raise UnknownName("number format in `kinds`", format_, catalog.precisions())
    if kinds is not None and not pairs:
        raise BadValue("`kinds` needs at least one kind of kernel, such as linear,moe")
    return [(name, format_) for name, _, format_ in pairs]


def _run_campaign(
    torch: Any,
    path: Path,
    seconds: float,
    device: str,
    say: Log,
    progress: OnProgress | None,
    wanted: list[tuple[str, str]],
) -> dict[str, int]:
    about = machine.describe(torch, device)
    record = machine.MachineRecord(path, about)
    start: dict[str, Any] = {"began": machine.now(), "before": machine.clocks(torch, device), "budget": seconds}
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "cuda", "vllm") if about.get(name))
    say(f"{about['device']}: {versions}")
    with kernel_bench(device, about) as bench:
        limits = device_limits(bench, about)
        method = {"replays": timer.REPLAYS, "rotation_bytes": bench.rotation, "data": "random", **limits.as_record()}
        ranks = tuple(n for n in shape_grid.RANKS if n <= torch.cuda.device_count()) if device == "cuda" else (2,)
        rows = shape_grid.all_shapes(ranks, "" if device == "cuda" else "gloo")
        rows = shape_grid.chosen_shapes(rows, wanted) if wanted else rows
        result = CampaignResult()
        try:
            measure(
                rows,
                path,
                budget=seconds,
                bench=bench,
                progress=progress or progress_lines(say),
                say=say,
                limits=limits,
                result=result,
            )
        finally:  # a run that is broken off has a record, too
            record.write(
                {
                    **start,
                    "ended": machine.now(),
                    "after": machine.clocks(torch, device),
                    **method,
                    "kinds": [":".join(filter(None, pair)) for pair in wanted] or sorted(CASES),
                    "counts": result.counts,
                    "reasons": result.reasons,
                }
            )
    counts = ", ".join(f"{number:,} {name}" for name, number in result.counts.items() if number)
    say(f"wrote {path} and {record.path.name}: {counts or 'nothing'}")
    return result.counts


# ------------------------------------------------------------------ the campaign


class CampaignResult(msgspec.Struct):
    """What came of a campaign: filled on the way, so that it is there even if the run is broken off."""

    measured: int = 0
    kept: int = 0  # the file had them
    failed: int = 0  # no kernel here, or one that broke
    refused: int = 0  # faster than the device can be
    left: int = 0  # no time
    reasons: dict[str, int] = {}  # why rows failed
    broken: str = ""  # what the device said when it stopped answering

    @property
    def counts(self) -> dict[str, int]:
        """``{"measured": 12, "kept": 0, "failed": 1, "refused": 0, "left": 0}``"""
        return {name: getattr(self, name) for name in ("measured", "kept", "failed", "refused", "left")}


@contextmanager
def kernel_bench(device: str = "cuda", about: dict[str, Any] | None = None) -> Iterator[KernelBench]:
    """The machine at hand, torch and vLLM's kernels where they can be imported; processes and buffers end with it.

    ``with kernel_bench("cpu") as bench: measure(rows, path, budget=60, bench=bench)``
    """
    torch = optional_library("torch")
    library = Library("vllm" if device == "cuda" and is_installed("vllm") else "")
    with _vllm_config(library):
        bench = KernelBench(torch, device, library, machine.rotation(about or machine.describe(torch, device)))
        try:
            yield bench
        finally:
            bench.close()


def _vllm_config(library: Library) -> AbstractContextManager[Any]:
    """vLLM's default configuration as the current one: some of its kernels read it, and fail alone without one."""
    try:
        context, config = library("config:set_current_vllm_config"), library("config:VllmConfig")
        return cast(AbstractContextManager[Any], context(config()))
    except Exception:  # no vLLM, or one that cannot be configured here: kernels that need it will say so
        return nullcontext()


class CostEstimate:
    """Seconds that measuring a shape will take, by the best rates per FLOP and per byte that were seen so far.

    ``estimate.learn(row, took)``, then ``estimate.expected(larger_row)``.
    """

    def __init__(self) -> None:
        device = catalog.hardware(UNIT)
        self.units = {
            "flops": msgspec.structs.replace(device, memory_bandwidth=INFINITE_PEAK),
            "bytes": msgspec.structs.replace(device, flops=dict.fromkeys(device.flops, INFINITE_PEAK)),
        }
        self.rates: dict[tuple[str, ...], float] = {}  # seconds per unit of work: of one kind and format, and of all

    def expected(self, row: Mapping[str, Any]) -> float:
        """Seconds to measure a row: at its kind's rates, else at the best of all kinds; 0 while nothing is known."""
        seconds = 0.0
        for unit, work in self._works(row):
            rate = self.rates.get((unit, row["kind"], row["dtype"]), self.rates.get((unit,), 0.0))
            seconds = max(seconds, CALLS * rate * work)
        return seconds

    def learn(self, row: Mapping[str, Any], took: float) -> None:
        """A row took so long: larger ones are held to the best rates so far."""
        for unit, work in self._works(row):
            for key in ((unit,), (unit, row["kind"], row["dtype"])):
                self.rates[key] = min(self.rates.get(key, math.inf), took / work)

    def _works(self, row: Mapping[str, Any]) -> list[tuple[str, float]]:
        """What a row computes and what it moves, in seconds of the unit; not what it does not do."""
        works = [(unit, roofline_seconds(row, device)) for unit, device in self.units.items()]
        return [(unit, work) for unit, work in works if work > NO_WORK]


def measure(
    rows: Iterable[dict[str, Any]],
    path: Path,
    *,
    budget: float,
    bench: KernelBench,
    progress: OnProgress | None = None,
    say: Log = print,
    limits: DeviceLimits | None = None,
    result: CampaignResult | None = None,
) -> CampaignResult:
    """Measure what is not in the file yet, until the budget (s) is spent; each row is written at once.

    ``measure(all_shapes(), Path("kernels.csv"), budget=60, bench=bench).counts``
    """
    campaign = _Campaign(list(rows), budget, bench, say, limits or DeviceLimits(), result or CampaignResult())
    with ProfileWriter(path) as writer:
        campaign.run(writer, progress)
    return campaign.result


class _Campaign:
    """The rows to measure, and what is known so far: when time is up, how long shapes take, what went wrong."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        budget: float,
        bench: KernelBench,
        say: Log,
        limits: DeviceLimits,
        result: CampaignResult,
    ) -> None:
        self.rows, self.budget, self.bench, self.say = rows, budget, bench, say
        self.limits, self.result = limits, result
        self.estimate, self.warned = CostEstimate(), Counter[str]()
        self.began = time.monotonic()
        self.deadline = bench.deadline = self.began + budget

    def run(self, writer: ProfileWriter, progress: OnProgress | None) -> None:
        """All rows once; those that would take a large share of the budget after all others."""
        later: list[dict[str, Any]] = []
        for number, row in enumerate(chain(self.rows, later)):
            now = time.monotonic()
            if progress:
                progress(sum(self.result.counts.values()), len(self.rows), self._spent(now))
            if writer.has(row):
                self.result.kept += 1
                continue
            expected = self.estimate.expected(row) if now < self.deadline else 0.0
            if now + expected >= self.deadline:
                self.result.left += 1
            elif expected > LONG_SHARE * self.budget and number < len(self.rows):
                later.append(row)
            else:
                self._measure_row(row, writer)
                if self.result.broken:
                    self.result.left += len(self.rows) - sum(self.result.counts.values())
                    break
        if progress:
            progress(len(self.rows), len(self.rows), self._spent(time.monotonic()))

    def _spent(self, now: float) -> str:
        return f"{now - self.began:.0f} of {self.budget:.0f} s"

    def _measure_row(self, row: dict[str, Any], writer: ProfileWriter) -> None:
        name = f"{row['kind']} {row['dtype']} {shape_cell(row)}"
        try:
            ready, took = _timed(self.bench, row)
        except timer.OutOfTime:
            self.result.left += 1
            return
        except Exception as error:  # a shape that a library refuses is a row that is missing, not the end
            self._failed(row, name, reason(error))
            return
        self.estimate.learn(row, took)
        if self.limits.refuses(row, took, ready.cold):
            self.result.refused += 1
            least = self.limits.least(row, ready.cold)
            self._warn("refused", f"{name}: {took:.3g} s is faster than the roofline of {least:.3g} s and is not kept")
            return
        writer.add(row, took, ready.source)
        self.result.measured += 1

    def _failed(self, row: dict[str, Any], name: str, why: str) -> None:
        self.result.failed += 1
        cause = f"{row['kind']} {row['dtype']}: {why}"
        self.result.reasons[cause] = self.result.reasons.get(cause, 0) + 1
        if self.result.reasons[cause] == 1:
            self._warn("failed", f"{name}: {why}")
        self.result.broken = _device_error(self.bench)
        if self.result.broken:
            self.say(f"the device stopped answering at {name}: {self.result.broken}; run again to continue")

    def _warn(self, category: str, sentence: str) -> None:
        self.warned[category] += 1
        if self.warned[category] <= WARNED:
            self.say(sentence)


def _timed(bench: KernelBench, row: Mapping[str, Any]) -> tuple[Ready, float]:
    ready = CASES[row["kind"]](bench, **{k: v for k, v in row.items() if k != "kind"})
    if ready.own is not None:
        return ready, ready.own()
    return ready, timer.median_seconds(bench.torch, ready.calls, bench.device, bench.deadline)


def _device_error(bench: KernelBench) -> str:
    """Let go of what the failed shape held; what the device says if it is beyond use, since then all others fail."""
    bench.buffers.clear()
    try:
        bench.wait()
        if bench.gpu:
            bench.torch.cuda.empty_cache()
    except Exception as error:
        return reason(error)
    return ""
