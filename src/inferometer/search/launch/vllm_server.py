"""A pool as `vllm serve`."""

from __future__ import annotations

import json
from typing import Any

from ...specs.structs import Speculation
from ..search_result import PoolSpec
from .processes import VLLM
from .served_model import ServedModel

RPC_PORT = 13345  # of the data-parallel ranks
SIDE_CHANNEL = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "$HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}


def vllm_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool: its arguments, those of its other nodes, its environment."""
    flags: list[Any] = _sizes(pool)
    flags += ["--enable-expert-parallel"] if pool.enable_expert_parallel else []
    flags += [] if model.own_quantization else ["--quantization", pool.quantization]
    flags += [] if model.own_kv_cache_dtype else ["--kv-cache-dtype", pool.kv_cache_dtype]
    limits = {
        "max_num_batched_tokens": ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        "max_num_seqs": ("--max-num-seqs", pool.max_num_seqs),
    }
    flags += ["--max-model-len", model.max_model_len, *model.flags(VLLM, pool, limits)]
    flags += model.memory_flag(VLLM, "--gpu-memory-utilization")
    if model.speculation is not None:
        flags += ["--speculative-config", json.dumps(_speculative_config(model.speculation))]
    if pool.role != "both":
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[pool.role]
        flags += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})]
    argv = [*map(str, ("vllm", "serve", model.name, *flags, "--port", "$PORT", *_over_nodes(pool, nodes)))]
    return {
        "argv": argv,
        "env": SIDE_CHANNEL if pool.role != "both" else {},
        "headless_argv": [*argv, "--headless"] if nodes > 1 else None,
    }


def _over_nodes(pool: PoolSpec, nodes: int) -> list[Any]:
    """Flags of a server that spans nodes: whole data-parallel ranks on each, else ranks of one engine."""
    if nodes == 1:
        return []
    if pool.data_parallel_size % nodes == 0 and pool.pipeline_parallel_size == 1:
        local = pool.data_parallel_size // nodes
        flags: list[Any] = ["--data-parallel-size-local", local]
        flags += ["--data-parallel-start-rank", f"$((NODE_RANK * {local}))"]
        return [*flags, "--data-parallel-address", "$HEAD_IP", "--data-parallel-rpc-port", RPC_PORT]
    return ["--nnodes", nodes, "--node-rank", "$NODE_RANK", "--master-addr", "$HEAD_IP"]


def _sizes(pool: PoolSpec) -> list[Any]:
    """Flags of the parallel sizes above 1."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    sizes = (pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size)
    return [part for name, size in zip(names, sizes, strict=True) if size > 1 for part in (name, size)]


def _speculative_config(speculation: Speculation) -> dict[str, Any]:
    """The value of vLLM's --speculative-config."""
    config: dict[str, Any] = {"method": speculation.method}
    config["num_speculative_tokens"] = speculation.num_speculative_tokens
    return {**config, "model": speculation.model} if speculation.model else config
