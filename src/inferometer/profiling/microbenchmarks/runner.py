"""What a kernel case is, and the bench that it is prepared on.

A case turns a shape into calls that do the work once each. It offers several kernels, the engine's own first; the
first that runs here is the one that is timed, and its name goes into the row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ...base.units import ceil_div
from ..machine import optional_library
from ..timer import KernelCall, OutOfTime

NONE = "no engine's kernels here"
TILE = 1 << 22  # random numbers that a CPU makes anew; more are these again, since making them takes seconds
MOST_COPIES = 64  # buffers of one kind; smaller ones than 1/64 of the rotation are of no weight in a kernel's time


class Ready(msgspec.Struct, frozen=True):
    """A kernel ready to be timed: ``Ready([partial(product, x, w)], "torch")``"""

    calls: Sequence[KernelCall]  # the same work on different buffers; each returns its result, unless it works in place
    source: str  # the library of the kernel, and its name
    inputs: dict[str, Any] = {}  # what the first call works on, for tests that check its result
    cold: float = 0.0  # bytes that each call must fetch from memory, since they rotate: none can be faster
    own: Callable[[], float] | None = None  # a clock of its own (host time, ranks); then ``calls`` are not timed


Prepare = Callable[..., Ready]
CASES: dict[str, Prepare] = {}


def case(kind: str) -> Callable[[Prepare], Prepare]:
    """Register how a kind of kernel is prepared: ``@case("linear")``. Registering a kind twice is an error."""

    def register(function: Prepare) -> Prepare:
        if kind in CASES:
            raise ValueError(f"kernel kind {kind!r} is registered twice")
        CASES[kind] = function
        return function

    return register


class Missing(LookupError):
    """A kernel that this machine does not have."""


class Library:
    """Functions of a library that may not be there, looked up once each: ``Library("vllm")("_custom_ops:rms_norm")``

    What is missing is missing alone: a library of another version still lends the functions that it has.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.known: dict[str, Any] = {}

    def __call__(self, path: str) -> Any:
        if path not in self.known:
            self.known[path] = self._look(path)
        function = self.known[path]
        if isinstance(function, Missing):
            raise Missing(*function.args)  # a new one: an error that is kept would keep its callers' buffers, too
        return function

    def _look(self, path: str) -> Any:
        if not self.name:
            return Missing(NONE)
        module, _, attributes = path.partition(":")
        try:
            target = optional_library(f"{self.name}.{module}" if module else self.name)
            for attribute in attributes.split("."):
                target = getattr(target, attribute)
        except Exception as error:  # a broken library raises anything while it is imported
            return Missing(f"{self.name} has no {path} ({type(error).__name__})")
        return target


class KernelBench(msgspec.Struct):
    """Where kernels run: torch, the device, the engine's kernels, and buffers that shapes share."""

    torch: Any
    device: str
    vllm: Library
    rotation: float  # bytes that rotating buffers must exceed, so that no cache keeps them
    deadline: float = math.inf  # of ``time.monotonic``: nothing long begins shortly before it
    buffers: dict[str, Any] = {}
    teams: dict[int, Any] = {}  # processes for collectives, by their number
    compiled: dict[str, Any] = {}  # functions that torch.compile was given, by name
    warmed: dict[tuple[Any, ...], float] = {}  # kernels that are compiled, by kind and key, and the s that it took

    @property
    def gpu(self) -> bool:
        """Whether kernels run on a GPU."""
        return self.device == "cuda"

    def random(self, *shape: int, dtype: Any = None) -> Any:
        """Random numbers of unit size; zeros would run faster than real data."""
        t = self.torch
        kind = dtype or t.bfloat16
        if kind in (t.float32, t.bfloat16, t.float16):
            size = math.prod(shape)
            if self.gpu or size <= TILE:
                return t.empty(shape, device=self.device, dtype=kind).normal_()
            return t.empty(TILE, dtype=kind).normal_().repeat(ceil_div(size, TILE))[:size].view(shape)
        if kind in (t.int8, t.int32, t.uint8):
            limits = t.iinfo(kind)
            return t.randint(max(limits.min, -limits.max), limits.max, shape, device=self.device, dtype=kind)
        return self.random(*shape).to(kind)  # 8-bit floats

    def scales(self, *shape: int, dtype: Any = None) -> Any:
        """Random factors between a half and one and a half."""
        t = self.torch
        return t.rand(shape, device=self.device).add_(0.5).to(dtype or t.float32)

    def copies(self, key: Any, each: float, make: Callable[[], Any]) -> list[Any]:
        """Enough copies of a buffer to outgrow the cache, kept until another key is needed."""
        if self.buffers.get("key") != key:
            self.buffers.clear()
            number = max(1, min(MOST_COPIES, math.ceil(self.rotation / max(each, 1.0))))
            self.buffers["made"] = [make() for _ in range(number)]
            self.buffers["key"] = key
        made: list[Any] = self.buffers["made"]
        return made

    def first(self, *tries: Callable[[], Ready]) -> Ready:
        """The first kernel that can be prepared and run once; why the others could not is said if none can."""
        reasons: dict[str, str] = {}
        for attempt in tries:
            try:
                ready = attempt()
                if ready.calls:
                    ready.calls[0]()
                    self.wait()
                return ready
            except Exception as error:  # a kernel that refuses a shape leaves it to the next
                name = attempt.func.__name__ if isinstance(attempt, partial) else "kernel"
                reasons.setdefault(reason(error), name.strip("_"))
                self.buffers.clear()
        said = {text: name for text, name in reasons.items() if text != NONE} or reasons
        raise Missing("; ".join(f"{name}: {text}" for text, name in said.items()) or "no kernel is known")

    def warm(self, kind: str, key: tuple[Any, ...], seconds: float, call: Callable[[], object]) -> None:
        """Compile and tune once for each key, by a call that may take ``seconds`` or what others of its kind took.

        ``bench.warm("scan", (64, 128), 12.0, small_scan)``; OutOfTime where that would outlast the budget.
        """
        if (kind, *key) in self.warmed:
            return
        expected = max([seconds, *(took for (other, *_), took in self.warmed.items() if other == kind)])
        began = time.monotonic()
        if began + expected > self.deadline:
            raise OutOfTime
        call()
        self.wait()
        self.warmed[kind, *key] = time.monotonic() - began

    def wait(self) -> None:
        """Until the device has done what it was given; what went wrong there is raised here."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def cpu_only(self, what: str) -> None:
        """Refuse a stand-in on a GPU, where its time would be taken for a kernel's."""
        if self.gpu:
            raise Missing(f"PyTorch has no kernel for {what} here")

    def close(self) -> None:
        """End the processes of the collectives and let go of the buffers."""
        self.buffers.clear()
        for team in self.teams.values():
            team.close()
        self.teams.clear()


def reason(error: BaseException) -> str:
    """An error as one short line: ``reason(ValueError("no\\nway"))  # 'no'``"""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text if isinstance(error, LookupError) else f"{type(error).__name__}: {text}"[:160]
