"""What launching costs: kernels one by one from the host, and replayed as a CUDA graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from ..timer import REPLAYS
from .runner import KernelBench, Missing, Ready, case


@case("launch")
def launch(b: KernelBench, *, dtype: str, kernels: int) -> Ready:
    """Host seconds to launch an empty kernel, averaged over ``kernels`` of them in a row; the device is not awaited."""
    empty = _empty(b)

    def seconds() -> float:
        samples = []
        for _ in range(REPLAYS + 1):  # the first warms up
            b.wait()
            began = time.perf_counter()
            for _ in range(kernels):
                empty()
            samples.append((time.perf_counter() - began) / kernels)
        b.wait()
        return float(statistics.median(samples[1:]))

    return Ready([empty], "torch", own=seconds)


@case("graph_replay")
def graph_replay(b: KernelBench, *, dtype: str, kernels: int) -> Ready:
    """Device seconds of an empty kernel in a captured graph of ``kernels`` of them, launch of the graph included."""
    t = b.torch
    if not b.gpu:
        raise Missing("a CPU has no CUDA graphs")
    empty = _empty(b)

    def seconds() -> float:
        graph = t.cuda.CUDAGraph()
        empty()
        b.wait()
        with t.cuda.graph(graph):
            for _ in range(kernels):
                empty()
        graph.replay()
        samples = []
        for _ in range(REPLAYS):
            first, last = (t.cuda.Event(enable_timing=True) for _ in range(2))
            b.wait()
            first.record()
            graph.replay()
            last.record()
            b.wait()
            samples.append(first.elapsed_time(last) / 1e3 / kernels)
        return float(statistics.median(samples))

    return Ready([empty], "torch", own=seconds)


def _empty(b: KernelBench) -> Callable[[], object]:
    """A kernel that does nothing; on a CPU the smallest operator, which costs what calling costs."""
    if b.gpu:
        return partial(b.torch.cuda._sleep, 0)
    return b.torch.zeros(1).relu_  # type: ignore[no-any-return]
