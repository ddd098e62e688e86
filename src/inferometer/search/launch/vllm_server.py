"""A pool as `vllm serve`: vLLM v0.25.1 vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py."""

from __future__ import annotations

import json
from typing import Any

from ...specs.engine_rules import version_number
from ...specs.structs import Speculation
from ..search_result import Candidate, PoolSpec
from .processes import VLLM
from .served_model import ServedModel

RPC_PORT = 13345  # of the data-parallel ranks
SIDE_CHANNEL = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "$HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}


def vllm_refusals(plan: Candidate, model: ServedModel) -> list[str]:
    """Why vLLM cannot run a plan: draft models came with 0.15 (v0.14.1 vllm/config/speculative.py:387 refuses them)."""
    engine, speculation = model.engine(VLLM, plan.pools[0]), model.speculation
    drafts = speculation is not None and speculation.method == "draft_model" and not model.speculative_head
    if not drafts or version_number(engine.version) >= version_number("0.15"):
        return []
    return [f"vLLM {engine.version} does not support a draft model: use vLLM 0.15 or newer, or method ngram"]


def vllm_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool: its arguments, those of its other nodes, its environment."""
    flags: list[Any] = _sizes(pool)
    flags += ["--enable-expert-parallel"] if pool.enable_expert_parallel else []
    engine = model.engine(VLLM, pool)
    old = version_number(engine.version) < version_number("0.17")  # v0.16.0 has no --moe-backend, v0.25.0 no variable
    flags += ["--moe-backend", engine.moe_backend] if engine.moe_backend and not old else []
    variables = {"VLLM_MXFP4_USE_MARLIN": "1"} if engine.moe_backend and old else {}
    quantization, cache_dtype = model.weights(VLLM, pool).quantization, model.cache_dtype(VLLM, pool)
    flags += ["--quantization", quantization] if quantization else []
    flags += ["--kv-cache-dtype", cache_dtype] if cache_dtype else []
    flags += ["--mamba-ssm-cache-dtype", model.state_dtype] if model.state_dtype else []
    flags += ["--kv-offloading-size", f"{pool.kv_offloading_size:g}"] if pool.kv_offloading_size else []
    flags += model.common_flags(VLLM, pool, "--dtype", "--max-model-len", "--gpu-memory-utilization")
    limits = {
        "max_num_batched_tokens": ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        "max_num_seqs": ("--max-num-seqs", pool.max_num_seqs),  # of each data-parallel rank
    }
    flags += model.flags(VLLM, pool, limits)
    if model.speculation is not None:
        flags += ["--speculative-config", json.dumps(_speculative_config(model.speculation, model.speculative_head))]
    if pool.role != "both":
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[pool.role]
        flags += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})]
    argv = [*map(str, ("vllm", "serve", "$MODEL", *flags, "--port", "$PORT"))]
    first, others = _over_nodes(pool, nodes)
    return {
        "argv": [*argv, *first],
        "env": variables | (SIDE_CHANNEL if pool.role != "both" else {}),
        "headless_argv": [*argv, *others, "--headless"] if nodes > 1 else None,
    }


def _over_nodes(pool: PoolSpec, nodes: int) -> tuple[list[str], list[str]]:
    """Flags of the first and of the other nodes of a server: whole data-parallel ranks on each, else parts of one.

    The first must not say which rank it begins with: that would make each node answer requests for its own ranks.
    """
    if nodes == 1:
        return [], []
    if pool.data_parallel_size % nodes == 0 and pool.pipeline_parallel_size == 1:
        local = pool.data_parallel_size // nodes
        flags = ["--data-parallel-size-local", str(local), "--data-parallel-address", "$HEAD_IP"]
        flags += ["--data-parallel-rpc-port", str(RPC_PORT)]
        return flags, [*flags, "--data-parallel-start-rank", f"$((NODE_RANK * {local}))"]
    flags = ["--nnodes", str(nodes), "--node-rank", "$NODE_RANK", "--master-addr", "$HEAD_IP"]
    return flags, flags


def _sizes(pool: PoolSpec) -> list[Any]:
    """Flags of the parallel sizes above 1."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    sizes = (pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size)
    return [part for name, size in zip(names, sizes, strict=True) if size > 1 for part in (name, size)]


def _speculative_config(speculation: Speculation, head: str) -> dict[str, Any]:
    """The value of vLLM's --speculative-config."""
    config: dict[str, Any] = {"method": head or speculation.method}
    config["num_speculative_tokens"] = speculation.num_speculative_tokens
    return {**config, "model": speculation.model} if speculation.model else config
