"""Points per second of ``sweep`` on a million points, beside a loop of single analyses. Prints; asserts nothing.

A point is a whole workload on a whole plan: its waits, throughputs, cost, energy and memory, and whether it works.
"""

from __future__ import annotations

import os
import random
import time
from itertools import product

import numpy as np

from inferometer import Sweep, sweep
from inferometer.inference.latency import predict
from inferometer.inference.memory import footprint
from inferometer.inference.request import build_request
from inferometer.inference.workload import uniform_batch_shape
from inferometer.sweep.grid import Grid
from inferometer.sweep.points import chunks

SCALAR = 200
GRIDS = {
    "one plan": (
        "llama-3.1-8b",
        {"gpu": "h200", "batch_size": "1:250:1", "input_len": "16:8000:16", "output_len": "64:512:64"},
    ),
    "16 plans": (
        "llama-3.1-8b",
        {
            "gpu": "h200,h100-sxm",
            "tensor_parallel_size": "1:8:x2",
            "quantization": "bf16,fp8",
            "batch_size": "1:250:1",
            "input_len": "128:32000:128",
        },
    ),
    "experts": (
        "deepseek-v3",
        {
            "gpu": "h200",
            "tensor_parallel_size": 8,
            "enable_expert_parallel": [False, True],
            "batch_size": "1:250:1",
            "input_len": "16:16000:16",
            "output_len": [128, 1024],
        },
    ),
}


def loop(swept: Sweep) -> tuple[float, float]:
    """CPU seconds a point of the same figures one by one, the plans made once, and the largest difference."""
    names = list(swept.axes)
    points = list(product(*(range(len(values)) for values in swept.axes.values())))
    chosen = random.Random(0).sample(range(len(points)), SCALAR)
    plans: dict[tuple[object, ...], object] = {}
    took = worst = 0.0
    for at in chosen:
        point = {name: swept.axes[name][i] for name, i in zip(names, points[at], strict=True)}
        work = [
            float(point.pop(name, default))
            for name, default in (("batch_size", 1), ("input_len", 1024), ("output_len", 128))
        ]
        key = tuple(point.values())
        if key not in plans:
            plans[key] = build_request(**point).bind()
        bound_plan = plans[key]
        began = time.process_time()
        talk = uniform_batch_shape(bound_plan, *work)  # type: ignore[arg-type]
        one, held = predict(bound_plan, talk), footprint(bound_plan, talk).total  # type: ignore[arg-type]
        took += time.process_time() - began
        worst = max(
            worst,
            abs(swept.columns["e2el_ms"][at] / one.e2el / 1e3 - 1),
            abs(swept.columns["total_bytes"][at] / held - 1),
        )
    return took / SCALAR, worst


def main() -> None:
    sweep("llama-3.1-8b", gpu="h200,h100-sxm", batch_size=[1, 2])  # what is read once in a process has been read
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, (model, axes) in GRIDS.items():
        grid = Grid(model, **axes)
        grid.check()
        times, computing = {}, time.process_time()
        for threads in (1, os.cpu_count() or 1):
            began = time.perf_counter()
            swept = Sweep(grid, chunks(grid, threads))
            times[threads] = time.perf_counter() - began
        computing = (time.process_time() - computing) / len(times)
        slow, worst = loop(swept)
        print(f"{name:9} {len(swept):9,} points in {min(times.values()):5.2f} s", end="")
        print(f" ({', '.join(f'{n} threads {t:.2f} s' for n, t in times.items())}), {computing:.2f} s of CPU", end="")
        print(f"   one by one {slow * len(swept):6,.0f} s of CPU", end="")
        print(f"   ratio {slow * len(swept) / computing:6,.0f}x   difference {worst:.0e}")
    began = time.perf_counter()
    rows = sum(np.size(swept.columns[column]) for column in swept.columns)
    print(f"columns of the last one, put together: {rows:,} cells in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
