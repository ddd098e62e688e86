"""Points per second of the vectorised evaluation, beside a scalar loop of the same formulas. Prints; asserts nothing.

A point is one (batch, context, tp) of Llama-3.1-8B's decode step, or of its prefill, engine and all.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from inferometer import catalog, models
from inferometer.evaluate import Setup, prepare, step_seconds
from inferometer.spec import Plan
from inferometer.steps import Group, Step

POINTS = 1_000_000
CHUNK = 16_384  # small enough that a chunk's arrays stay in cache
SCALAR = 300


def axes(points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches, contexts and tensor-parallel sizes, spread over their ranges."""
    rng = np.random.default_rng(0)
    return (
        np.floor(2 ** rng.uniform(0, 9, points)),
        np.floor(2 ** rng.uniform(5, 15, points)),
        2.0 ** rng.integers(0, 4, points),
    )


def step(setup: Setup, batch: object, length: object, tp: object, decode: bool) -> object:
    """Seconds of one step, floats or arrays."""
    bound = setup._replace(env={**setup.env, "tp": tp, "moe_tp": tp})
    group = Group(batch, 1, length, 1, True) if decode else Group(batch, length, 0)
    return step_seconds(bound, Step((group,)))


def main() -> None:
    model = models.build(catalog.model("llama-3.1-8b").config)
    setup = prepare(model, catalog.hardware("h200"), catalog.engine("vllm"), Plan())
    batch, length, tp = axes(POINTS)
    for decode in (True, False):
        name = "decode" if decode else "prefill"
        out = np.empty(POINTS)

        def fill(start: int, decode: bool = decode, out: np.ndarray = out) -> None:
            part = slice(start, start + CHUNK)
            out[part] = step(setup, batch[part], length[part], tp[part], decode)

        fill(0)
        began = time.perf_counter()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, range(0, POINTS, CHUNK)))
        fast = time.perf_counter() - began
        began = time.perf_counter()
        slow_out = [step(setup, float(batch[i]), float(length[i]), float(tp[i]), decode) for i in range(SCALAR)]
        slow = (time.perf_counter() - began) / SCALAR * POINTS
        worst = float(np.max(np.abs(np.array(slow_out) / out[:SCALAR] - 1)))
        print(f"{name:8} {POINTS / fast:12,.0f} points/s  ({fast:.2f} s for {POINTS:,})", end="")
        print(f"   scalar loop {POINTS / slow:8,.0f} points/s   ratio {slow / fast:,.0f}x   difference {worst:.1e}")


if __name__ == "__main__":
    main()
