"""Time: what a budget says, how far a run has come, and how long device work takes.

A kernel is timed by CUDA-graph replays over rotating buffers, or by plain repeats on a CPU. The parts of a forward pass
are timed by a clock that gives each part its own time alone, without that of the parts inside it: wall time on a CPU,
the time of its kernels on a GPU.
"""

from __future__ import annotations

import math
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import BadValue

KernelCall = Callable[[], object]
Log = Callable[[str], None]  # takes a line for people: ``print``
OnProgress = Callable[[int, int, str], None]  # done, of how many, and the time spent or what is next, as text
PROGRESS_EVERY = 10.0  # s between lines of progress
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
Forward = Callable[[], object]
Spent = dict[str, float]  # part -> seconds, of one forward pass
MARK = "inferometer/"  # how our parts are distinguished from everything else in a trace
WHOLE = "forward"
PASS = 1.5e-3  # s of work in one graph: long against a replay's own overhead
WARM = 4e-3  # s of replays before those that count
PASS_CPU = 20e-3  # s of calls that are timed together on a CPU
REPLAYS = 7
ENOUGH = 3  # replays without which there is no median
LONG = 0.1  # s of a call that no more than these are needed of


class OutOfTime(Exception):
    """The budget ended before a shape or a length was measured."""


def parse_duration(text: str) -> float:
    """Seconds of a budget: ``span("10m")  # 600.0``"""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not match or not 0 < float(match[1]) < math.inf:
        raise BadValue(f"`budget` must be a time such as 90s, 10m or 1h, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def progress_lines(say: Log, what: str = "shapes") -> OnProgress:
    """A line at the start and then every ten seconds: ``lines(print)(7, 1000, "12 of 60 s")``"""
    last = -float("inf")

    def progress(number: int, whole: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_EVERY:
            last = now
            say(f"{number:,} of {whole:,} {what}, {text}")

    return progress


def median_seconds(torch: Any, calls: Sequence[KernelCall], device: str = "cuda", deadline: float = math.inf) -> float:
    """Median seconds of one call; ``calls`` do the same on different buffers, so that no cache keeps the inputs.

    ``seconds(torch, [lambda: x @ w for w in weights])``. No replay begins after ``deadline`` (of ``time.monotonic``).
    """
    return _cuda(torch, calls, deadline) if device == "cuda" else _cpu(calls, deadline)


def _check(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise OutOfTime


def _replays(once: Callable[[], float], deadline: float, number: int = REPLAYS) -> float:
    """The median of several measurements; of those that the time allows, if they are enough for one."""
    samples: list[float] = []
    for _ in range(number):
        if time.monotonic() >= deadline:
            if len(samples) < ENOUGH:
                raise OutOfTime
            break
        samples.append(once())
    return float(statistics.median(samples))


def _cpu(calls: Sequence[KernelCall], deadline: float) -> float:
    _check(deadline)
    began = time.perf_counter()
    calls[0]()  # warms up
    each = time.perf_counter() - began
    some = max(1, min(len(calls), round(PASS_CPU / max(each, 1e-9))))  # together long against the clock's own time

    def once() -> float:
        began = time.perf_counter()
        for call in calls[:some]:
            call()
        return (time.perf_counter() - began) / some

    return _replays(once, deadline, REPLAYS if each < LONG else ENOUGH)


def _cuda(torch: Any, calls: Sequence[KernelCall], deadline: float) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm up where the capture will run: libraries choose and load kernels here
        for call in calls[:2]:
            call()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(stream)
        for call in calls:
            call()
        last.record(stream)
    torch.cuda.synchronize()
    each: float = first.elapsed_time(last) / 1e3 / len(calls)
    _check(deadline)
    rounds = max(1, min(200, round(PASS / max(each * len(calls), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    # A step of an engine follows the one before at once. So do these replays: a chip that pauses between them is up to
    # a tenth slower in products of few rows.
    for _ in range(max(1, math.ceil(WARM / max(each * rounds * len(calls), 1e-6)))):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    marks[0].record()
    number = 0
    while number < REPLAYS and (number < ENOUGH or time.monotonic() < deadline):
        graph.replay()
        number += 1
        marks[number].record()
        if each > LONG:  # calls that long are waited for, so that the deadline is kept
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    took: list[float] = [one.elapsed_time(other) for one, other in pairwise(marks[: number + 1])]
    return statistics.median(took) / 1e3 / (rounds * len(calls))


# ------------------------------------------------------------------ parts of a forward pass


class WallClock:
    """Parts timed where Python calls them, for devices that work while Python waits.

    ``clock.enter("q_proj"); q_proj(x); clock.leave()``
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, float, list[float]]] = []
        self._spent: Spent = {}

    def enter(self, name: str) -> None:
        """A part begins."""
        self._open.append((name, time.perf_counter(), [0.0]))

    def leave(self) -> None:
        """The part that began last ends."""
        now = time.perf_counter()
        name, began, inner = self._open.pop()
        self._spent[name] = self._spent.get(name, 0.0) + (now - began) - inner[0]
        if self._open:
            self._open[-1][2][0] += now - began

    def record(self, forwards: Iterable[Forward]) -> list[Spent]:
        """Run each, and say what its parts took: ``clock.record([lambda: model(tokens)])  # [{"q_proj": 1e-5, …}]``"""
        passes = []
        for forward in forwards:
            self._open, self._spent = [], {}
            forward()
            passes.append(self._spent)
        return passes


class KernelClock:
    """Parts marked in PyTorch's profiler; a part's time is that of the kernels which are launched in it."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: list[Any] = []

    def enter(self, name: str) -> None:
        """A part begins."""
        mark = self._torch.profiler.record_function(MARK + name)
        mark.__enter__()
        self._open.append(mark)

    def leave(self) -> None:
        """The part that began last ends."""
        self._open.pop().__exit__(None, None, None)

    def record(self, forwards: Iterable[Forward]) -> list[Spent]:
        """Run each, and say what its parts took on the device."""
        passes = self.traced(forwards)
        if not any(any(spent.values()) for spent in passes):
            raise BadValue("PyTorch's profiler saw no kernels on this device: layers cannot be timed without CUPTI")
        return passes

    def traced(self, forwards: Iterable[Forward]) -> list[Spent]:
        """The same for any device; where there are no kernels, the parts are there and took nothing."""
        torch, activity = self._torch, self._torch.profiler.ProfilerActivity
        cuda = torch.cuda.is_available()
        activities = [activity.CPU, *([activity.CUDA] if cuda else [])]
        self._open = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that events are of one cycle: there is only one
            with torch.profiler.profile(activities=activities) as profiler:
                for forward in forwards:
                    self.enter(WHOLE)
                    forward()
                    self.leave()
                if cuda:
                    torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:  # the trace is read ten times faster than the profiler's events
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            return kernel_seconds(path.read_bytes())


class _Link(msgspec.Struct):
    correlation: Any = None  # the same number at a kernel and at the call that launched it


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0.0  # µs
    dur: float = 0.0  # µs
    args: _Link | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]


def kernel_seconds(trace: bytes) -> list[Spent]:
    """What the parts of each forward pass took on the device, from a Chrome trace of PyTorch's profiler.

    A kernel belongs to the innermost part during which it was launched; when it ran is another matter.
    """
    events = msgspec.json.decode(trace, type=_Trace).traceEvents
    took: dict[Any, float] = {}
    for event in events:
        if event.cat in ("kernel", "gpu_memcpy", "gpu_memset") and event.args is not None:
            took[event.args.correlation] = took.get(event.args.correlation, 0.0) + event.dur * 1e-6
    calls = [e for e in events if e.cat in ("cuda_runtime", "cuda_driver") and e.args and e.args.correlation in took]
    parts = [e for e in events if e.cat == "user_annotation" and e.name.startswith(MARK)]
    passes: list[Spent] = []
    around: list[_Event] = []
    for event in sorted([*parts, *calls], key=lambda e: (e.ts, -e.dur)):
        while around and event.ts >= around[-1].ts + around[-1].dur:
            around.pop()
        name = event.name.removeprefix(MARK)
        if event.cat == "user_annotation":
            if name == WHOLE:
                passes.append({})
            elif passes:
                passes[-1].setdefault(name, 0.0)
            around.append(event)
        elif around and passes and (inner := around[-1].name.removeprefix(MARK)) != WHOLE:
            assert event.args is not None
            passes[-1][inner] += took[event.args.correlation]
    return passes
