"""How long a search takes, and how good its prices are: ``python benchmarks/search.py [--prices | --training]``

Three searches over 16 GPUs, each in a process of its own: plans priced a second, plans simulated, seconds from start to
end. With ``--prices`` the mean-field figures that plans are priced by, against the simulator, over models, engines,
layouts, lengths, budgets and loads. With ``--training`` three searches for training layouts over 1,024 H100: how many
there are, and how many were estimated.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from itertools import product

MODELS = ("llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3")
ASKED = (
    "--gpu",
    "h200",
    "--num-gpus",
    "16",
    "--input-len",
    "4000",
    "--output-len",
    "500",
    "--goodput",
    "ttft:500,tpot:50",
    "--json",
)
SERVERS = (
    ("llama-3.1-8b", {}),
    ("llama-3.1-70b", {"tensor_parallel_size": 4}),
    ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "quantization": "fp8"}),
    ("qwen3-30b-a3b", {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}),
    ("deepseek-v3", {"tensor_parallel_size": 8}),
    ("gpt-oss-120b", {}),
    ("llama-3.1-8b", {"engine": "sglang"}),
)
LENGTHS = ((4000, 500), (500, 500), (1000, 100), (200, 1000))


def searches() -> None:
    """Time the three searches, Python's start included."""
    print(
        f"{'model':16}{'seconds':>9}{'CPU':>7}{'price':>8}{'simulate':>10}{'servers':>9}{'plans':>8}{'loads':>9}"
        f"{'loads/s':>12}{'simulated':>11}{'runs':>6}  winner"
    )
    before = 0.0
    for model in MODELS:
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "inferometer", "search", model, *ASKED], capture_output=True, text=True
        )
        took = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu, before = used.ru_utime + used.ru_stime - before, used.ru_utime + used.ru_stime
        result = json.loads(ran.stdout)
        c, s = result["counts"], result["seconds"]
        plans = c["plans_aggregated"] + c["plans_disaggregated"]
        pools = " → ".join(
            f"{p['replicas']}×tp{p['tensor_parallel_size']}·pp{p['pipeline_parallel_size']}·dp"
            f"{p['data_parallel_size']}{'·ep' if p['enable_expert_parallel'] else ''}"
            for p in result["winner"]["pools"]
        )
        columns = (
            f"{took:9.2f}{cpu:7.2f}{s['enumerate'] + s['price']:8.2f}{s['simulate']:10.2f}{c['servers']:9,}"
            f"{plans:8,}{c['points']:9,}{c['points'] / s['price']:12,.0f}{c['plans_simulated']:11}"
            f"{c['simulations']:6}"
        )
        print(f"{model:16}{columns}  {pools}")


def prices() -> None:
    """Mean TTFT and TPOT of the means against the simulator, requests at random."""
    import numpy as np

    from inferometer.inference.request import build_request
    from inferometer.search.objective import build_traffic
    from inferometer.search.steady_state import load_grid, steady_states
    from inferometer.serving.deployment import ServingOptions, serve
    from inferometer.serving.metrics import latencies
    from inferometer.serving.replica_pool import build_pool

    errors: list[tuple[float, float]] = []
    for (model, kwargs), (given, made), budget in product(SERVERS, LENGTHS, (2048, 8192)):
        traffic = build_traffic(input_len=given, output_len=made)
        one = build_request(model, "h200", frontend="http", max_num_batched_tokens=budget, **kwargs)
        bound_plan = one.bind()
        bound_plan = bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})
        state = steady_states([bound_plan], load_grid(traffic, one.engine, one.plan, (budget,), 512))[0]
        server = None
        for wanted in (1, 8, 48, 150):
            n = int(np.argmin(abs(state.decoding - wanted)))
            rate, tpot = float(state.request_rate[0, n]), float(state.tpot[0, n])
            ttft = float(state.base_ttft[0, n] + state.queue_seconds[0, n])
            under_way = rate * (ttft + made * tpot)
            trace = traffic.requests(int(min(6000, max(300, 12 * under_way))), rate, 1) if rate else None
            if trace is None:
                continue
            server = server or build_pool(one, 1, trace)
            if server.reason or server.kv_cache_tokens < state.decoding[n] * (given + made / 2):
                continue
            seen = latencies(serve(trace, [("both", server)], ServingOptions(scheduler=one.engine.scheduler)))
            part = slice(int(3 * under_way), -int(under_way) - 1)
            errors.append(
                (
                    ttft * 1e3 / float(np.nanmean(seen["ttft"][part])) - 1,
                    tpot * 1e3 / float(np.nanmean(seen["tpot"][part])) - 1,
                )
            )
    for number, name in enumerate(("TTFT", "TPOT")):
        off = [error[number] for error in errors]
        size = sorted(map(abs, off))
        print(
            f"{name}: {len(off)} loads, median error {statistics.median(size):.1%}, nine in ten below "
            f"{size[int(0.9 * len(size))]:.1%}, bias {statistics.median(off):+.1%}"
        )


TRAINED = (("llama-3.1-70b", 8192, 1024), ("qwen3-30b-a3b", 4096, 2048), ("deepseek-v3", 4096, 4096))


def training() -> None:
    """A line per model: seconds without Python's start, CPU seconds of the whole process."""
    titles = ("seconds", "memory", "estimate", "CPU", "layouts", "too large", "estimated")
    print(f"{'model':16}" + "".join(f"{title:>11}" for title in titles) + "  winner")
    before = 0.0
    for model, seq_len, batch in TRAINED:
        options = f"--train --gpu h100-sxm --num-gpus 1024 --json --seq-len {seq_len} --global-batch-size {batch}"
        command = [sys.executable, "-m", "inferometer", "search", model, *options.split()]
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu, before = used.ru_utime + used.ru_stime - before, used.ru_utime + used.ru_stime
        took, counts = result["seconds"], result["counts"]
        seconds = "".join(f"{each:>11.2f}" for each in (took["total"], took["memory"], took["estimate"], cpu))
        numbers = "".join(f"{counts[name]:>11,}" for name in ("layouts", "layouts_too_large", "layouts_estimated"))
        print(f"{model:16}{seconds}{numbers}  {result['winner']['label']}")


if __name__ == "__main__":
    prices() if "--prices" in sys.argv else training() if "--training" in sys.argv else searches()
