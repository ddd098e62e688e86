"""A pool as `python -m sglang.launch_server`: SGLang v0.5.18 python/sglang/srt/server_args.py."""

from __future__ import annotations

from typing import Any

from ...specs.structs import Speculation
from ..search_result import PoolSpec
from .processes import SGLANG
from .served_model import ServedModel

_ALGORITHMS = {"mtp": "EAGLE", "draft_model": "STANDALONE", "ngram": "NGRAM"}


def sglang_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool."""
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    flags: list[Any] = ["--model-path", "$MODEL", "--tp-size", tp * dp]  # its tp counts all ranks of a stage
    flags += ["--pp-size", pp] if pp > 1 else []
    flags += ["--dp-size", dp, "--enable-dp-attention"] if dp > 1 else []
    flags += ["--ep-size", tp * dp] if pool.enable_expert_parallel else []
    quantization, cache_dtype = model.weights(SGLANG, pool).quantization, model.cache_dtype(SGLANG, pool)
    flags += ["--quantization", quantization] if quantization else []
    flags += ["--kv-cache-dtype", cache_dtype] if cache_dtype else []
    flags += ["--mamba-ssm-dtype", model.state_dtype] if model.state_dtype else []
    if pool.kv_offloading_size:  # GB of every rank of a replica
        size = max(1, round(pool.kv_offloading_size * 2**30 / 1e9 / (tp * pp)))
        flags += ["--enable-hierarchical-cache", "--hicache-size", size]
    flags += model.common_flags(SGLANG, pool, "--dtype", "--context-length", "--mem-fraction-static")
    flags += _limits(pool, model)
    if model.speculation is not None:
        flags += _speculation(model.speculation, model.speculative_head)
    if pool.role != "both":
        flags += ["--disaggregation-mode", pool.role, "--disaggregation-transfer-backend", "nixl"]
    if nodes > 1:
        flags += ["--nnodes", nodes, "--node-rank", "$NODE_RANK", "--dist-init-addr", "$HEAD_IP:5000"]
    argv = ("python", "-m", "sglang.launch_server", *flags, "--host", "0.0.0.0", "--port", "$PORT")
    return {"argv": [*map(str, argv)]}


def _limits(pool: PoolSpec, model: ServedModel) -> list[Any]:
    """Limits of a step; SGLang's are of all data-parallel ranks together, and it divides them."""
    ranks = pool.data_parallel_size
    own = model.engine(SGLANG, pool)
    flags: list[Any] = []
    if ranks > 1 or own.max_num_batched_tokens != pool.max_num_batched_tokens:
        flags += ["--chunked-prefill-size", pool.max_num_batched_tokens * ranks]
    if own.max_num_seqs != pool.max_num_seqs:
        flags += ["--max-running-requests", pool.max_num_seqs * ranks]
    return flags


def _speculation(speculation: Speculation, head: str) -> list[Any]:
    """Flags of speculative decoding; a step verifies the drafted tokens and one more."""
    count = speculation.num_speculative_tokens
    flags: list[Any] = ["--speculative-algorithm", head.upper() or _ALGORITHMS[speculation.method]]
    flags += ["--speculative-draft-model-path", speculation.model] if speculation.model else []
    if speculation.method != "ngram":
        flags += ["--speculative-num-steps", count, "--speculative-eagle-topk", 1]
    return [*flags, "--speculative-num-draft-tokens", count + 1]
