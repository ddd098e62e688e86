"""How fast requests are simulated, and in how much memory: one process, set-up included; short runs the best of three.

python benchmarks/serving_speed.py              # a few seconds
python benchmarks/serving_speed.py --all        # also a million requests, and the public traces where they lie
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from measurements import elsewhere

from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace, read_trace

CHAT = {"input_len": "lognormal:mean=512,std=600,max=8000", "output_len": "lognormal:mean=250,std=250,max=2000"}


def fixed(count: int) -> Trace:
    return synthetic(num_prompts=count, request_rate=5, input_len=256, output_len=256)


def chat(count: int, rate: float = 20) -> Trace:
    return synthetic(num_prompts=count, request_rate=rate, **CHAT)  # type: ignore[arg-type]


def public(name: str) -> Trace:
    path = elsewhere(f"reference/traces/{name}")
    if path is None:
        sys.exit(f"{name} is optional: INFEROMETER_SHARED names a folder with reference/traces")
    return read_trace(path)


CASES: dict[str, tuple[Callable[[], Trace], str, dict[str, object]]] = {
    "10,000 × 256/256 at 5/s, Llama-2-7B on A100": (lambda: fixed(10_000), "llama-2-7b a100-sxm-80gb", {}),
    "100,000 chat-like at 20/s, Llama-3.1-8B on H100": (lambda: chat(100_000), "llama-3.1-8b h100-sxm", {}),
    "the same, every step by itself": (lambda: chat(5_000), "llama-3.1-8b h100-sxm", {"fast_forward": False}),
    "100,000 chat-like at once, 256 at a time": (
        lambda: chat(100_000, float("inf")),
        "llama-3.1-8b h100-sxm",
        {"max_concurrency": 256},
    ),
    "20,000 chat-like at 20/s, gpt-oss-120b (windows) on H100": (lambda: chat(20_000), "gpt-oss-120b h100-sxm", {}),
    "20,000 chat-like at 20/s, 4 replicas, least loaded": (
        lambda: chat(20_000),
        "llama-3.1-8b a100-sxm-80gb",
        {"data_parallel_size": 4, "router": "least_loaded"},
    ),
}
LONG: dict[str, tuple[Callable[[], Trace], str, dict[str, object]]] = {
    "1,000,000 chat-like at 20/s, Llama-3.1-8B on H100": (lambda: chat(1_000_000), "llama-3.1-8b h100-sxm", {}),
    "Azure 2023, code, Llama-3.1-8B on H100": (
        lambda: public("AzureLLMInferenceTrace_code.csv"),
        "llama-3.1-8b h100-sxm",
        {},
    ),
    "Azure 2023, conversation, Llama-3.1-8B on H100": (
        lambda: public("AzureLLMInferenceTrace_conv.csv"),
        "llama-3.1-8b h100-sxm",
        {},
    ),
    "Mooncake conversation, Llama-3.1-70B on 8 H200": (
        lambda: public("mooncake_conversation.jsonl"),
        "llama-3.1-70b h200",
        {"tensor_parallel_size": 8},
    ),
    "the same without prefix cache": (
        lambda: public("mooncake_conversation.jsonl"),
        "llama-3.1-70b h200",
        {"tensor_parallel_size": 8, "enable_prefix_caching": False},
    ),
}


def run(name: str) -> None:
    """One case in this process: requests a second of `simulate`, and the most memory that the process ever had."""
    make, where, options = (CASES | LONG)[name]
    model, gpu = where.split()
    trace = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took = busy = float("inf")
    for _ in range(3 if len(trace) <= 20_000 else 1):
        start, began = time.perf_counter(), time.process_time()
        outcome = simulate(model, gpu, trace=trace, **options)  # type: ignore[arg-type]
        took, busy = min(took, time.perf_counter() - start), min(busy, time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    served = int(np.count_nonzero(~np.isnan(outcome.finished_s)))
    print(
        f"{name}: {len(trace) / took:,.0f} requests/s ({took:.2f} s, {busy:.2f} s of CPU), {outcome.steps:,} steps, "
        f"{served:,} served, {int(outcome.preemptions.sum()):,} preemptions, {outcome.prefix_hit_rate:.1%} prefix "
        f"hits, memory {before / 1024:,.0f} -> {peak / 1024:,.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also what takes longer")
    parser.add_argument("--case", choices=list(CASES | LONG), metavar="NAME", help="one case, in this process")
    given = parser.parse_args()
    if given.case:
        run(given.case)
        return
    for name in CASES | (LONG if given.all else {}):  # each in a process of its own, so that memory is its own
        if subprocess.run([sys.executable, __file__, "--case", name], check=False).returncode:
            print(f"{name}: not run")


if __name__ == "__main__":
    main()
