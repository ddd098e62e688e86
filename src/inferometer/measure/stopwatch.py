"""How long each named part of a forward pass takes: wall time on a CPU, time of its kernels on a GPU.

Both clocks give a part its own time alone: what runs inside a part that it contains is that part's.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadValue

Forward = Callable[[], object]
Spent = dict[str, float]  # part -> seconds, of one forward pass
MARK = "inferometer/"  # how our parts are told from everything else in a trace
WHOLE = "forward"


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
        found = []
        for forward in forwards:
            self._open, self._spent = [], {}
            forward()
            found.append(self._spent)
        return found


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
        found = self.traced(forwards)
        if not any(any(spent.values()) for spent in found):
            raise BadValue("PyTorch's profiler saw no kernels on this device: without CUPTI, layers cannot be timed")
        return found

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
    found: list[Spent] = []
    around: list[_Event] = []
    for event in sorted([*parts, *calls], key=lambda e: (e.ts, -e.dur)):
        while around and event.ts >= around[-1].ts + around[-1].dur:
            around.pop()
        name = event.name.removeprefix(MARK)
        if event.cat == "user_annotation":
            if name == WHOLE:
                found.append({})
            elif found:
                found[-1].setdefault(name, 0.0)
            around.append(event)
        elif around and found and (inner := around[-1].name.removeprefix(MARK)) != WHOLE:
            assert event.args is not None
            found[-1][inner] += took[event.args.correlation]
    return found
