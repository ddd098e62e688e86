"""Plans of all kinds as launches, without a search."""

from __future__ import annotations

from typing import Any

import msgspec

from inferometer.search.launch.bench_command import bench
from inferometer.search.launch.plan_launch import launches
from inferometer.search.launch.processes import SERVERS, Launch
from inferometer.search.launch.served_model import ServedModel
from inferometer.search.objective import build_objective, build_traffic
from inferometer.search.search_result import Candidate, PlanMetrics, PoolSpec
from inferometer.specs import catalog


def plan_of(*pools: PoolSpec) -> Candidate:
    """A plan of some pools, with metrics of no meaning."""
    nothing = PlanMetrics(
        request_rate=1,
        output_throughput=1,
        output_throughput_per_gpu=1,
        output_throughput_per_user=1,
        ttft_ms=1,
        tpot_ms=1,
        e2el_ms=1,
        cost_per_million_output_tokens=None,
        joules_per_output_token=None,
    )
    return Candidate(gpu="h200", mode="any", pools=list(pools), gpus=1, idle_gpus=0, priced=nothing)


def pool_of(role: str = "both", tp: int = 1, pp: int = 1, dp: int = 1, ep: bool = False, **fields: Any) -> PoolSpec:
    """``pool_of("prefill", tp=2, replicas=3, quantization="bf16")``"""
    limits = {"max_num_batched_tokens": 4096, "max_num_seqs": 100}
    return PoolSpec(
        role=role,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        enable_expert_parallel=ep,
        **{"replicas": 1, "quantization": "fp8", "kv_cache_dtype": "fp8", **limits, **fields},
    )


def launches_of(
    *pools: PoolSpec, versions: dict[str, str] | None = None, moe_backend: str = "", **changes: Any
) -> dict[str, Launch]:
    """A plan by engine; ``versions`` of engines: ``launches_of(pool_of(), versions={"vllm": "0.15"})``"""
    names = {name: f"{name}@{(versions or {})[name]}" if name in (versions or {}) else name for name in SERVERS}
    engines = {(name, role): catalog.engine(names[name]) for name in SERVERS for role in ("both", "prefill", "decode")}
    engines = {key: msgspec.structs.replace(one, moe_backend=moe_backend) for key, one in engines.items()}
    model = ServedModel("owner/model", 8, max_len=131072, engines=engines)
    traffic = build_traffic(input_len=1000, output_len=200, request_rate=2.0)
    check = bench(traffic, build_objective("throughput", "ttft:200", 0.9), request_rate=2.0, count=200)
    return launches(plan_of(*pools), model._replace(**changes), check)
