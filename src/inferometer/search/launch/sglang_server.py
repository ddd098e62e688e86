"""A pool as `python -m sglang.launch_server`."""

from __future__ import annotations

from typing import Any

from ..search_result import PoolSpec
from .processes import SGLANG
from .served_model import ServedModel


def sglang_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool."""
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    flags: list[Any] = ["--model-path", model.name, "--tp-size", tp * dp]  # its tp counts all ranks of a stage
    flags += ["--pp-size", pp] if pp > 1 else []
    flags += ["--dp-size", dp, "--enable-dp-attention"] if dp > 1 else []
    flags += ["--ep-size", tp * dp] if pool.enable_expert_parallel else []
    flags += [] if model.own_quantization else ["--quantization", pool.quantization]
    kept = "fp8_e4m3" if pool.kv_cache_dtype == "fp8" else pool.kv_cache_dtype
    flags += [] if model.own_kv_cache_dtype else ["--kv-cache-dtype", kept]
    chunk = {"max_num_batched_tokens": ("--chunked-prefill-size", pool.max_num_batched_tokens)}
    running = model.flags(SGLANG, pool, {"max_num_seqs": ("--max-running-requests", pool.max_num_seqs)})
    flags += ["--context-length", model.max_model_len, *model.flags(SGLANG, pool, chunk)]
    flags += [running[0], running[1] * dp] if running else []  # of all data-parallel ranks
    flags += model.memory_flag(SGLANG, "--mem-fraction-static")
    if model.speculation is not None and model.speculation.method == "mtp":
        count = model.speculation.num_speculative_tokens
        flags += ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", count]
        flags += ["--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", count + 1]
    if pool.role != "both":
        flags += ["--disaggregation-mode", pool.role, "--disaggregation-transfer-backend", "nixl"]
    if nodes > 1:
        flags += ["--nnodes", nodes, "--node-rank", "$NODE_RANK", "--dist-init-addr", "$HEAD_IP:5000"]
    return {
        "argv": [*map(str, ("python", "-m", "sglang.launch_server", *flags, "--host", "0.0.0.0", "--port", "$PORT"))]
    }
