"""How long a piece of device work takes: CUDA-graph replays over rotating buffers, or plain repeats on a CPU."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Work = Callable[[], object]
PASS = 1.5e-3  # s of work in one graph: long against a replay's own overhead
PASS_CPU = 20e-3  # s of calls that are timed together on a CPU
REPLAYS = 7
ENOUGH = 3  # replays without which there is no median
LONG = 0.1  # s of a call that no more than these are needed of


class OutOfTime(Exception):
    """The budget ended before a shape was measured."""


def seconds(torch: Any, calls: Sequence[Work], device: str = "cuda", deadline: float = math.inf) -> float:
    """Median seconds of one call; ``calls`` do the same on different buffers, so that no cache keeps the inputs.

    ``seconds(torch, [lambda: x @ w for w in weights])``. No replay begins after ``deadline`` (of ``time.monotonic``).
    """
    return _cuda(torch, calls, deadline) if device == "cuda" else _cpu(calls, deadline)


def _check(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise OutOfTime


def _replays(once: Callable[[], float], deadline: float, number: int = REPLAYS) -> float:
    """The median of several measurements; of those that the time allows, if they are enough for one."""
    found: list[float] = []
    for _ in range(number):
        if time.monotonic() >= deadline:
            if len(found) < ENOUGH:
                raise OutOfTime
            break
        found.append(once())
    return float(statistics.median(found))


def _cpu(calls: Sequence[Work], deadline: float) -> float:
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


def _cuda(torch: Any, calls: Sequence[Work], deadline: float) -> float:
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
    each = first.elapsed_time(last) / 1e3 / len(calls)
    _check(deadline)
    rounds = max(1, min(200, round(PASS / max(each * len(calls), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()

    def once() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last) / 1e3 / (rounds * len(calls)))

    return _replays(once, deadline)
