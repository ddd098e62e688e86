"""A pool as `trtllm-serve` with its YAML of options.

Flags are those of TensorRT-LLM (commit 00209af) tensorrt_llm/commands/serve.py, options the fields of its
tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

import json
from typing import Any

from ...base.units import ceil_div
from ...specs.structs import Speculation
from ..search_result import Candidate, PoolSpec
from .processes import TRTLLM
from .served_model import ServedModel


def trtllm_refusals(plan: Candidate) -> list[str]:
    """Why TensorRT-LLM cannot run a plan."""
    mixed = any(pool.tensor_parallel_size > 1 and pool.data_parallel_size > 1 for pool in plan.pools)
    reason = "TensorRT-LLM does not support this layout: its attention is tensor-parallel or data-parallel, not both"
    return [reason] if mixed else []


def trtllm_server(pool: PoolSpec, model: ServedModel, nodes: int) -> dict[str, Any]:
    """Fields of the `Process` of one server of a pool; over several nodes MPI starts one process for each GPU."""
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    options, name = _options(pool, model), f"extra_{pool.role}.yaml"
    limits = {
        "max_num_seqs": ("--max_batch_size", pool.max_num_seqs),
        "max_num_batched_tokens": ("--max_num_tokens", pool.max_num_batched_tokens),
    }
    flags: list[Any] = ["--tp_size", tp * dp]
    flags += ["--pp_size", pp] if pp > 1 else []
    flags += ["--ep_size", tp * dp] if pool.enable_expert_parallel else []
    flags += [*model.flags(TRTLLM, pool, limits)]
    flags += ["--max_seq_len", model.length_limit] if model.length_limit else []
    flags += ["--extra_llm_api_options", name] if options else []
    spread = ["mpirun", "-n", pool.gpus, "--hostfile", "hostfile", "trtllm-llmapi-launch"] if nodes > 1 else []
    hosts = "".join(f"node-{n} slots={ceil_div(pool.gpus, nodes)}\n" for n in range(nodes))
    files = {name: "".join(f"{line}\n" for line in options)} if options else {}
    argv = (*spread, "trtllm-serve", "$MODEL", *flags, "--host", "0.0.0.0", "--port", "$PORT")
    return {
        "argv": [*map(str, argv)],
        "files": {**files, "hostfile": hosts} if nodes > 1 else files,
        "headless_argv": [] if nodes > 1 else None,
    }


def _options(pool: PoolSpec, model: ServedModel) -> list[str]:
    """Lines of the YAML with what has no flag."""
    format_name, cache_dtype = model.weights(TRTLLM, pool).dtype, model.cache_dtype(TRTLLM, pool)
    options = [f"dtype: {format_name}"] if format_name else []
    options += ["enable_attention_dp: true"] if pool.data_parallel_size > 1 else []
    kept: dict[str, Any] = {"dtype": cache_dtype} if cache_dtype else {}
    if TRTLLM in model.memory_shares:
        kept["free_gpu_memory_fraction"] = model.memory_shares[TRTLLM]
    if pool.kv_offloading_size:  # of every rank of a replica
        ranks = pool.tensor_parallel_size * pool.pipeline_parallel_size
        kept["host_cache_size"] = int(pool.kv_offloading_size * 2**30 / ranks)
    options += [f"kv_cache_config: {json.dumps(kept)}"] if kept else []
    options += ["enable_chunked_prefill: true"] if model.max_len > pool.max_num_batched_tokens else []
    options += ['cache_transceiver_config: {"backend": "DEFAULT"}'] if pool.role != "both" else []
    options += ["disable_overlap_scheduler: true"] if pool.role == "prefill" else []
    if model.speculation is not None:
        options.append(
            f"speculative_config: {json.dumps(_speculative_config(model.speculation, model.speculative_head))}"
        )
    return options


def _speculative_config(speculation: Speculation, head: str) -> dict[str, Any]:
    """MTP counts its modules; a draft model has a name; n-grams need neither."""
    kinds = {"mtp": "MTP", "draft_model": "Draft_Target", "ngram": "NGram", "eagle": "Eagle", "eagle3": "Eagle3"}
    kind = kinds[head or speculation.method]
    count = speculation.num_speculative_tokens
    config: dict[str, Any] = {"decoding_type": kind, "max_draft_len": count}
    if speculation.method == "mtp":
        config["num_nextn_predict_layers"] = count
    return {**config, "speculative_model": speculation.model} if speculation.model else config
