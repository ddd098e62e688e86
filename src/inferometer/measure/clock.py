"""How long a piece of device work takes: CUDA-graph replays over rotating buffers, or plain repeats on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Work = Callable[[], object]
PASS = 1.5e-3  # s of work in one graph: long against a replay's own overhead
REPLAYS = 7


def seconds(torch: Any, calls: Sequence[Work], device: str = "cuda") -> float:
    """Median seconds of one call; ``calls`` do the same on different buffers, so that no cache keeps the inputs.

    ``seconds(torch, [lambda: x @ w for w in weights])``
    """
    return _cuda(torch, calls) if device == "cuda" else _cpu(calls)


def _cpu(calls: Sequence[Work]) -> float:
    for call in calls[:2]:
        call()
    found = []
    for _ in range(REPLAYS):
        began = time.perf_counter()
        for call in calls:
            call()
        found.append((time.perf_counter() - began) / len(calls))
    return float(statistics.median(found))


def _cuda(torch: Any, calls: Sequence[Work]) -> float:
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
    rounds = max(1, min(200, round(PASS / max(each * len(calls), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    found = []
    for _ in range(REPLAYS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / 1e3 / (rounds * len(calls)))
    del graph
    return float(statistics.median(found))
