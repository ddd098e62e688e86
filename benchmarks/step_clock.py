"""How long `StepClock.step_ms` takes: µs of one core per step, after the tables have filled up; the best of many runs.

python benchmarks/step_clock.py
"""

from __future__ import annotations

import argparse
import timeit

from inferometer import StepClock

PLANS: dict[str, tuple[str, str, dict[str, int]]] = {
    "Llama-3.1-8B on H200": ("llama-3.1-8b", "h200", {}),
    "Llama-3.1-70B on 4 H100": ("llama-3.1-70b", "h100-sxm", {"tensor_parallel_size": 4}),
    "DeepSeek-V3 on 8 H200": ("deepseek-v3", "h200", {"tensor_parallel_size": 8}),
    "gpt-oss-20b (windows) on H200": ("gpt-oss-20b", "h200", {}),
    "Qwen3-Next-80B (states) on 4 H200": ("qwen3-next-80b-a3b", "h200", {"tensor_parallel_size": 4}),
}
CHUNKS = {"decodes only": [], "and a prompt": [(512, 0)], "and two chunks": [(512, 1024), (300, 0)]}
REPEATS, NUMBER = 25, 100


def microseconds(clock: StepClock, prefills: list[tuple[int, int]], num_seqs: int) -> float:
    """µs of a step that has been met before."""
    batch = (prefills, list(range(500, 500 + num_seqs)))
    clock.step_ms(batch)
    return min(timeit.repeat(lambda: clock.step_ms(batch), number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqs", type=int, nargs="+", default=[1, 64, 256, 1024], help="sequences that decode")
    seqs = parser.parse_args().seqs
    print(f"{'µs per step':<34} {'step':<15}" + "".join(f"{n:>8,} seqs" for n in seqs))
    for label, (model, gpu, plan) in PLANS.items():
        clock = StepClock(model, gpu, **plan)
        for kind, prefills in CHUNKS.items():
            figures = "".join(f"{microseconds(clock, prefills, n):>13.1f}" for n in seqs)
            print(f"{label:<34} {kind:<15}{figures}")


if __name__ == "__main__":
    main()
