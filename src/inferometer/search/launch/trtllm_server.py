"""A pool as `trtllm-serve` with its extra options."""

from __future__ import annotations

import json
from typing import Any

from ..search_result import Candidate, PoolSpec
from .processes import TRTLLM
from .served_model import ServedModel


def trtllm_refusals(plan: Candidate) -> list[str]:
    """Why TensorRT-LLM cannot run a plan."""
    mixed = any(pool.tensor_parallel_size > 1 and pool.data_parallel_size > 1 for pool in plan.pools)
    reason = "TensorRT-LLM has no such layout: its attention is tensor parallel or data parallel, not both"
    return [reason] if mixed else []


def trtllm_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool."""
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    options, name = _options(pool, model), f"extra_{pool.role}.yaml"
    limits = {
        "max_num_seqs": ("--max_batch_size", pool.max_num_seqs),
        "max_num_batched_tokens": ("--max_num_tokens", pool.max_num_batched_tokens),
    }
    flags = ["--tp_size", tp * dp]
    flags += ["--pp_size", pp] if pp > 1 else []
    flags += ["--ep_size", tp * dp] if pool.enable_expert_parallel else []
    flags += [*model.flags(TRTLLM, pool, limits), "--max_seq_len", model.max_model_len]
    flags += ["--extra_llm_api_options", name] if options else []
    return {
        "argv": [*map(str, ("trtllm-serve", model.name, *flags, "--host", "0.0.0.0", "--port", "$PORT"))],
        "files": {name: "".join(f"{line}\n" for line in options)} if options else {},
    }


def _options(pool: PoolSpec, model: ServedModel) -> list[str]:
    """Lines of the YAML with what has no flag."""
    options = ["enable_attention_dp: true"] if pool.data_parallel_size > 1 else []
    kept: dict[str, Any] = {} if model.own_kv_cache_dtype else {"dtype": pool.kv_cache_dtype}
    share = model.memory_flag(TRTLLM, "free_gpu_memory_fraction")
    kept |= {share[0]: share[1]} if share else {}
    options += [f"kv_cache_config: {json.dumps(kept)}"] if kept else []
    options += ["enable_chunked_prefill: true"] if model.max_model_len > pool.max_num_batched_tokens else []
    options += ['cache_transceiver_config: {"backend": "DEFAULT"}'] if pool.role != "both" else []
    options += ["disable_overlap_scheduler: true"] if pool.role == "prefill" else []
    if model.speculation is not None and model.speculation.method == "mtp":
        draft = {"decoding_type": "MTP", "max_draft_len": model.speculation.num_speculative_tokens}
        options.append(f"speculative_config: {json.dumps(draft)}")
    return options
