"""How the servers of the silicon set were started: what their scripts said, as words of `simulate`.

    recipe(row)["scheduler_recv_interval"]  # 30

Most rows are SemiAnalysis' InferenceX (github.com/SemiAnalysisAI/InferenceX): the scripts under ``benchmarks`` that are
named after model, precision and GPU start the server, ``perf-changelog.yaml`` says which release of an engine a
configuration ran with, and ``benchmark_lib.sh`` drives it with ten prompts per place under way. AIConfigurator's own
rows follow the rules of its generator (``rule_plugin/benchmark`` in github.com/ai-dynamo/aiconfigurator). Nothing here
was chosen by its outcome; what no script says is left to the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, str]


def recipe(row: Row) -> dict[str, Any]:
    """What a row's server was told beyond its layout and its precision."""
    words = {"quantization": "fp8-block"} if row["quantization"] == "fp8" and _in_blocks(row["model_path"]) else {}
    if row["source_kind"] == "nvidia_gap_analysis":
        return words | _generated(row)
    return words | {"sglang": _sglang, "trtllm": _trtllm, "vllm": _vllm}[row["backend"]](row)


def one_length(row: Row) -> bool:
    """Whether all prompts, and all answers, had the same length: so did AIConfigurator's client (deviation 0)."""
    return row["source_kind"] == "nvidia_gap_analysis"


def _in_blocks(model: str) -> bool:
    """Whether a checkpoint in fp8 has a scale for every 128 × 128 weights, as its config.json says."""
    return any(name in model for name in ("DeepSeek", "Qwen3.5", "Qwen3-235B", "MiniMax-M2", "GLM-5"))


def _generated(row: Row) -> dict[str, Any]:
    """AIConfigurator's generator: room for one prompt, all answers and 1,500 tokens; SGLang mixes prompts and answers.

    vLLM plans ahead by itself since 0.14 only. The rows of SGLang 0.5.1 are older than the rules and have its defaults.
    """
    budget = {"max_num_batched_tokens": int(row["isl"]) + _many(row) + 1500}
    if row["backend"] == "sglang":
        return {} if row["backend_version"].startswith("0.5.1") else {"scheduler": "vllm", **budget}
    return {**budget, "async_scheduling": False} if row["backend"] == "vllm" else budget


def _sglang(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>.sh`` of SGLang; the B300's "reuse the existing B200 recipe as-is"."""
    model, precision, many = row["model_path"], row["precision"], _many(row)
    new, often = row["system"][:4] in ("b200", "b300"), 30 if many >= 16 else 10
    if "DeepSeek" in model:
        if not new:
            return {
                "max_num_batched_tokens": 32768,
                "max_num_seqs": 512 if row["isl"] == row["osl"] else 256,
                "gpu_memory_utilization": 0.82,
            }
        if precision == "fp4":
            return {
                "scheduler_recv_interval": often,
                "max_num_batched_tokens": 16384,
                "max_num_seqs": 256,
                "kv_cache_dtype": "fp8",
                "gpu_memory_utilization": 0.85,
            }
        if row["tp_size"] == "4":
            return {
                "scheduler_recv_interval": 10,
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 32,
                "kv_cache_dtype": "fp8",
                "gpu_memory_utilization": 0.95,
            }
        return {
            "scheduler_recv_interval": often,
            "max_num_batched_tokens": 32768,
            "max_num_seqs": 128,
            "kv_cache_dtype": "fp8",
            "gpu_memory_utilization": 0.82,
        }
    if "GLM" in model:
        if not new:
            return {"gpu_memory_utilization": 0.85}
        fp4 = {"scheduler_recv_interval": 10, "gpu_memory_utilization": 0.9}
        fp8 = {"max_num_seqs": many, "gpu_memory_utilization": 0.85}
        return {"max_num_batched_tokens": 32768, "kv_cache_dtype": "fp8", **(fp4 if precision == "fp4" else fp8)}
    if "Qwen3.5" in model:
        cache = {} if precision == "bf16" else {"kv_cache_dtype": "fp8"}
        if not new:
            return {"max_num_batched_tokens": 16384, "max_num_seqs": 128, "gpu_memory_utilization": 0.8, **cache}
        if precision == "fp4" and row["system"].startswith("b200"):
            return {
                "scheduler_recv_interval": 30,
                "max_num_batched_tokens": 32768,
                "max_num_seqs": max(many, 128),
                "gpu_memory_utilization": 0.85,
                **cache,
            }
        if precision == "fp8" and row["system"].startswith("b300"):
            return {
                "scheduler_recv_interval": 10,
                "max_num_batched_tokens": 16384,
                "max_num_seqs": many,
                "gpu_memory_utilization": 0.8,
                **cache,
            }
        return {
            "scheduler_recv_interval": often,
            "max_num_batched_tokens": 32768,
            "max_num_seqs": max(many, 128),
            "gpu_memory_utilization": 0.82,
            **cache,
        }
    return {}


def _vllm(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>.sh`` of vLLM, where they say more than the layout."""
    model, date, many, given = row["model_path"], row["measured_date"], _many(row), int(row["isl"])
    wide = {"kv_cache_dtype": "fp8", "max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 2 * given}
    if "gpt-oss" in model and date >= "2025-12":
        return {"max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 8192, "max_num_seqs": many}
    if "MiniMax" in model and row["system"].startswith("b"):
        if row["backend_version"] == "0.17.0":  # its test was EP_SIZE >= 1, so experts were always spread
            return {"gpu_memory_utilization": 0.95, "block_size": 32, "enable_expert_parallel": True}
        return {**wide, "block_size": 32}
    if "Kimi" in model:
        own = wide if row["precision"] == "fp4" and date >= "2026-04-08" else {}  # since change 1047
        return {"max_num_seqs": many, "gpu_memory_utilization": 0.95 if row["precision"] == "int4" else 0.9, **own}
    if "Llama-3.1-70B" in model:
        most = 512 if row["system"].startswith("b") else many
        return {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 8192, "max_num_seqs": most}
    return {}


def _trtllm(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>_trt*.sh``: tokens of a step, graphs of prompts, prompts held back for company.

    Ranks of data-parallel attention are balanced (attention_dp_config): prompts begin when every rank has one, or when
    ``timeout_iters`` steps have passed. Each rank gets one in some thirty steps or more, so all have one seldom enough
    that this is a look every so many steps (but for gpt-oss, which has two ranks: both soon have one).
    """
    many, given, made, tp = (int(float(row[key])) for key in ("silicon_concurrency", "isl", "osl", "tp_size"))
    ranks, precision, short = int(row["attention_dp_size"]), row["precision"], given == made == 1024
    cache = {"kv_cache_dtype": "fp8"}
    if "gpt-oss" in row["model_path"]:
        return {"max_num_batched_tokens": 20000, **(cache if row["system"].startswith("b") else {})}
    if "Llama" in row["model_path"]:
        wait = {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9} if short and tp < 8 else {}
        return {"max_num_batched_tokens": 16384, **cache, **wait}
    if _drafts(row):
        tokens, seqs = (1, max(1, many // ranks)) if ranks > 1 else (3, many)
        budget = _round((tokens + 1) * seqs + given + 64)
        draft = {"method": "mtp", "num_speculative_tokens": tokens}
        own = {"max_num_seqs": seqs, "speculative_config": draft, **cache}
        new = row["backend_version"] == "1.2.0rc6.post3" and ranks == 1
        captured = short and many in (32, 64, 128) if precision == "fp4" else many > (4 if short else 16)
        graphs = new and captured
    else:
        new = row["backend_version"] == "1.2.0rc6.post2"
        budget, own = max(8192 * new, _round(max(1, many // ranks) + given + 64)), cache  # 8,192 at least since then
        if precision == "fp8" and new and short and many >= 64:
            own = {**cache, "batch_wait_timeout_iters": 40, "batch_wait_max_tokens_ratio": 0.8}
        captured = short and tp == 8 == int(float(row["moe_ep_size"] or 1)) if precision == "fp4" else many >= 64
        graphs = new and captured
    if ranks > 1:
        own = {**own, "scheduler_recv_interval": 60}
    return {"max_num_batched_tokens": budget, **own, **({"max_cudagraph_capture_size": budget} if graphs else {})}


def _drafts(row: Row) -> bool:
    """Whether DeepSeek drafted tokens with its own module.

    Only the ``-mtp`` configurations went from TensorRT-LLM 1.1.0rc2.post2 to 1.2.0rc6.post3 (changes 632 and 642);
    those without went to post2. They were added with 1.1.0rc2.post2 in January 2026 (change 392); the others' rows of
    that release are older.
    """
    release, date = row["backend_version"], row["measured_date"]
    return release == "1.2.0rc6.post3" or (release == "1.1.0rc2.post2" and date >= "2026-01")


def _many(row: Row) -> int:
    return int(float(row["silicon_concurrency"]))


def _round(tokens: int) -> int:
    return -(-tokens // 64) * 64
