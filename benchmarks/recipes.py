"""How the servers of the silicon set were started: what their scripts said, as options of `simulate`.

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

from inferometer.base.units import ceil_div
from inferometer.specs import catalog
from inferometer.specs.engine_rules import version_number

Row = Mapping[str, str]
FP8_CACHE = {"kv_cache_dtype": "fp8"}


def recipe(row: Row) -> dict[str, Any]:
    """The options of a row's server beyond its layout and its precision."""
    options = {"quantization": "fp8-block"} if row["quantization"] == "fp8" and in_blocks(row["model"]) else {}
    if row["source"] == "aiconfigurator":
        return options | _generated(row)
    options |= _autumn_layout(row)
    return options | {"sglang": _sglang, "trtllm": _trtllm, "vllm": _vllm}[row["engine"]](row)


def unlike(row: Row) -> str:
    """Why a row is not what its columns say, so that it is not compared; '' where it is.

    Clients before 2026-05-15 took a tokenizer of DeepSeek that transformers 5 reads wrongly: changes ef01c2205 (without
    effect for models of a hub) and 5fe6d56ee. SGLang 0.5.10 came with it.
    """
    release = version_number(row["engine_version"])
    wrong = "DeepSeek" in row["model"] and row["engine"] == "sglang" and release >= (0, 5, 10)
    return "its prompts were some five times as long for the server as for the client" if wrong else ""


def was_cold(row: Row) -> bool:
    """Whether the client measured from the first request on: it warms servers up since d053ae24e (2026-01-21)."""
    return row["source"] != "aiconfigurator" and row["date"] < "2026-01-21"


def _autumn_layout(row: Row) -> dict[str, Any]:
    """Layouts that scripts of early November 2025 chose themselves, so that the rows' columns have ones (e06929c70)."""
    tp, many = _number(row, "tensor_parallel_size"), _concurrency(row)
    if row["date"] > "2025-11-10" or tp == 1 or "Llama" in row["model"] or row["engine"] == "vllm":
        return {}
    spread = {"enable_expert_parallel": True}
    if row["engine"] == "sglang":  # --enable-ep-moe, in the script for fp4 alone
        return spread if row["precision"] == "fp4" else {}
    if "gpt-oss" in row["model"]:
        return {} if _is_blackwell(row) else spread
    long = row["input_len"] == "8192"
    if row["precision"] == "fp8":
        alone = many > (32 if long else 64)
    else:
        alone = many >= 256 or (long and many > 32)
        spread = spread if alone or many > (32 if tp == 4 else 8 if _is_short(row) else 16) else {}
    return {**spread, "tensor_parallel_size": 1, "data_parallel_size": tp} if alone else spread


def engine(row: Row) -> str:
    """The engine with the release that a row was measured with, or the nearest whose defaults were checked.

    Rows of InferenceX that name no release are of autumn 2025 (vLLM 0.11, SGLang 0.5.4 or so) or nightly builds of
    spring 2026 (vLLM 0.19, SGLang 0.5.9); TensorRT-LLM has one set of defaults here.
    """
    backend, release = row["engine"], row["engine_version"]
    numbers = version_number(release)
    if backend == "trtllm":
        return backend
    checked = [version_number(version) for version in catalog.engine(backend).versions]
    if len(numbers) < 2:
        numbers = {"vllm": (0, 19), "sglang": (0, 5, 9)}[backend] if row["date"] >= "2026" else checked[0]
    nearest = max([version for version in checked if version <= numbers], default=checked[0])
    return f"{backend}@{'.'.join(map(str, nearest))}"


CHECKPOINTS = {  # what InferenceX's nvidia-master.yaml serves in fp4, where it leaves attention in 16 bits
    "MiniMaxAI/MiniMax-M2.5": "nvidia/MiniMax-M2.5-NVFP4",
    "moonshotai/Kimi-K2.5": "nvidia/Kimi-K2.5-NVFP4",
    "Qwen/Qwen3.5-397B-A17B": "nvidia/Qwen3.5-397B-A17B-NVFP4",
}


def checkpoint(row: Row) -> str:
    """The checkpoint that was served: ``checkpoint(row)  # "nvidia/MiniMax-M2.5-NVFP4"``"""
    return CHECKPOINTS.get(row["model"], row["model"]) if row["quantization"] == "nvfp4" else row["model"]


def one_length(row: Row) -> bool:
    """Whether all prompts, and all answers, had the same length: so did AIConfigurator's client (deviation 0)."""
    return row["source"] == "aiconfigurator"


def in_blocks(model: str) -> bool:
    """Whether a checkpoint in fp8 has a scale for every 128 × 128 weights, as its config.json says."""
    return any(name in model for name in ("DeepSeek", "Qwen3.5", "Qwen3-235B", "MiniMax-M2", "GLM-5"))


def _generated(row: Row) -> dict[str, Any]:
    """AIConfigurator's generator: room for one prompt, all answers and 1,500 tokens; SGLang mixes prompts and answers.

    vLLM plans ahead by itself since 0.14 only. The rows of SGLang 0.5.1 are older than the rules and have its defaults.
    """
    budget = {"max_num_batched_tokens": int(row["input_len"]) + _concurrency(row) + 1500}
    if row["engine"] == "sglang":
        return {} if row["engine_version"].startswith("0.5.1") else {"scheduler": "vllm", **budget}
    if row["engine"] == "vllm":
        return {**budget, "async_scheduling": False}
    return {**budget, "max_cudagraph_capture_size": max(128, _concurrency(row))}


def _sglang(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>.sh`` of SGLang; the B300's "reuse the existing B200 recipe as-is"."""
    for name, options in (("DeepSeek", _sglang_deepseek), ("GLM", _sglang_glm), ("Qwen3.5", _sglang_qwen)):
        if name in row["model"]:
            return options(row)
    return {}


def _is_blackwell(row: Row) -> bool:
    return row["gpu"][:4] in ("b200", "b300")


def _recv_interval(row: Row) -> int:
    return 30 if _concurrency(row) >= 16 else 10


def _sglang_deepseek(row: Row) -> dict[str, Any]:
    if not _is_blackwell(row):
        return {
            "max_num_batched_tokens": 32768,
            "max_num_seqs": 512 if row["input_len"] == row["output_len"] else 256,
            "gpu_memory_utilization": 0.82,
        }
    if row["precision"] == "fp4":
        own = {"max_num_batched_tokens": 16384, "max_num_seqs": 256, "gpu_memory_utilization": 0.85}
    elif row["tensor_parallel_size"] == "4":
        own = {"max_num_batched_tokens": 8192, "max_num_seqs": 32, "gpu_memory_utilization": 0.95}
    else:
        own = {"max_num_batched_tokens": 32768, "max_num_seqs": 128, "gpu_memory_utilization": 0.82}
    if _sglang_deepseek_drafts(row):
        own = {"max_num_batched_tokens": 16384, "max_num_seqs": 512, "gpu_memory_utilization": 0.82, **_SLOW_DRAFTS[2]}
    every_ten = row["precision"] != "fp4" and row["tensor_parallel_size"] == "4"
    return {"scheduler_recv_interval": 10 if every_ten else _recv_interval(row), "kv_cache_dtype": "fp8", **own}


# Drafts of so many tokens under SGLANG_ENABLE_SPEC_V2's default: without the scheduler that plans ahead.
_SLOW_DRAFTS: dict[int, dict[str, Any]] = {
    tokens: {"speculative_config": {"method": "mtp", "num_speculative_tokens": tokens}, "async_scheduling": False}
    for tokens in (2, 3)
}


def _sglang_deepseek_drafts(row: Row) -> bool:
    """Whether DeepSeek drafted tokens: loads of fp8 on eight B200 that only the configuration ``-mtp`` has (12ba0ae07).

    Smaller loads are in both configurations; they are taken as without drafts.
    """
    many, wide = _concurrency(row), row["tensor_parallel_size"] == "8" and row["engine_version"] == "0.5.9"
    only = many > 64 or (row["input_len"] == "8192" and many > 4)
    return wide and only and row["precision"] == "fp8" and row["gpu"].startswith("b200")


def _sglang_glm(row: Row) -> dict[str, Any]:
    if not _is_blackwell(row):
        return {"gpu_memory_utilization": 0.85}
    if row["precision"] == "fp4" and row["gpu"].startswith("b200") and row["date"] == "2026-03-29":  # d43805fc3
        own = {"max_num_batched_tokens": 131072, "max_num_seqs": _concurrency(row), "gpu_memory_utilization": 0.8}
        return {"kv_cache_dtype": "fp8", **own}
    fp4 = {"scheduler_recv_interval": 10, "gpu_memory_utilization": 0.9}
    fp8 = {"max_num_seqs": _concurrency(row), "gpu_memory_utilization": 0.85}
    return {"max_num_batched_tokens": 32768, "kv_cache_dtype": "fp8", **(fp4 if row["precision"] == "fp4" else fp8)}


def _sglang_qwen(row: Row) -> dict[str, Any]:
    concurrency, precision = _concurrency(row), row["precision"]
    cache = {} if precision == "bf16" else {"kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "bf16"}
    if not _is_blackwell(row):
        own = {"max_num_seqs": 128, "gpu_memory_utilization": 0.8, "api_server_count": 6}
        return {"max_num_batched_tokens": 16384, **own, **cache}
    interval, tokens, seqs, memory = _recv_interval(row), 32768, max(concurrency, 128), 0.82
    if precision == "fp4" and row["gpu"].startswith("b200"):
        interval, memory = 30, 0.85
    elif precision == "fp8" and row["gpu"].startswith("b300") and row["date"] >= "2026-04-15":  # its own configuration
        interval, tokens, seqs, memory = 10, 16384, concurrency, 0.8
    draft = {}
    if _sglang_qwen_drafts(row):
        seqs, memory = concurrency, 0.8
        draft = _SLOW_DRAFTS[3]
    return {
        "scheduler_recv_interval": interval,
        "api_server_count": 6,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "gpu_memory_utilization": memory,
        **cache,
        **draft,
    }


def _sglang_qwen_drafts(row: Row) -> bool:
    """Whether Qwen3.5 drafted tokens with its own module (three, and no overlap scheduler: no SGLANG_ENABLE_SPEC_V2).

    In fp8 on B200, tp 4 without expert parallelism was only in the configuration ``-mtp`` (change 898, 2026-03-20); the
    one without drafts had tp 8, or tp 4 with expert parallelism (changes 804 and 918). B300s ran the same until they
    had a configuration of their own (b2b0f7858, 2026-04-15).
    """
    tp4 = (
        row["tensor_parallel_size"] == "4"
        and int(row["expert_parallel_size"]) == 1
        and row["engine_version"] == "0.5.9"
    )
    like_b200 = row["gpu"].startswith("b200") or (row["gpu"].startswith("b300") and row["date"] < "2026-04-15")
    return tp4 and row["precision"] == "fp8" and like_b200


def _vllm(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>.sh`` of vLLM, where they say more than the layout."""
    model, date, many, given = row["model"], row["date"], _concurrency(row), int(row["input_len"])
    wide = {"kv_cache_dtype": "fp8", "max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 2 * given}
    if "gpt-oss" in model:
        # Hopper's scripts have VLLM_MXFP4_USE_MARLIN=1 since 2026-01-02; images before vLLM 0.12 have no other kernels
        experts = {} if row["gpu"].startswith("b") else {"moe_backend": "marlin"}
        wide = {"max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 8192, "max_num_seqs": many}
        return {"async_scheduling": True, **experts, **(wide if date >= "2025-12" else {})}
    if "MiniMax" in model:
        return _vllm_minimax(row, wide)
    if "Kimi" in model:
        own = wide if row["precision"] == "fp4" and date >= "2026-04-08" else {}  # since change 1047
        return {"max_num_seqs": many, "gpu_memory_utilization": 0.95 if row["precision"] == "int4" else 0.9, **own}
    if "Llama-3.1-70B" in model:
        blackwell = row["gpu"].startswith("b")
        graphs = {"max_prefill_cudagraph_capture_size": 0} if blackwell else {}  # FULL_DECODE_ONLY
        limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 512 if blackwell else many}
        return {"kv_cache_dtype": "fp8", "async_scheduling": True, **limits, **graphs}
    return {}


def _vllm_minimax(row: Row, wide: dict[str, Any]) -> dict[str, Any]:
    """``minimaxm2.5_<precision>_<gpu>.sh``; for a while its test was EP_SIZE >= 1: experts were always spread."""
    gpu, release, own = row["gpu"], row["engine_version"], {"gpu_memory_utilization": 0.95}
    if gpu.startswith("h100"):
        return {"max_num_seqs": 256, "gpu_memory_utilization": 0.9}
    if gpu.startswith("h200"):
        return {**own, "enable_expert_parallel": True} if release == "0.18.0" else own
    if release == "0.17.0":
        return {**own, "block_size": 32, "enable_expert_parallel": True}
    if row["precision"] == "fp4" and row["date"] < "2026-04-08":  # 08bcde8f1
        return {**own, "block_size": 32, "kv_cache_dtype": "fp8"}
    return {**wide, "block_size": 32}


def _trtllm(row: Row) -> dict[str, Any]:
    """``<model>_<precision>_<gpu>_trt*.sh``: tokens of a step, graphs of prompts, prompts held back for a fuller batch.

    All of them pad decode steps to graphs (``cuda_graph_config``) of up to 1,024 sequences (Llama), 128 (DeepSeek on
    H200), 512 (DeepSeek on B200 in fp4) or as many as are under way, and say which share of the free memory is for KV.

    Ranks of data-parallel attention are balanced (attention_dp_config): prompts begin when every rank has one, or when
    ``timeout_iters`` steps have passed; gpt-oss' script leaves both at their defaults (llm_args.py: 50 and 10). A
    request goes to the rank with the fewest (executor_request_queue.py, `_schedule_attention_dp_requests`).
    """
    if "gpt-oss" in row["model"]:
        own = FP8_CACHE if row["gpu"].startswith("b") else {}
        limits = {"max_num_seqs": 512 if own else _concurrency(row), "gpu_memory_utilization": 0.85}
        own = own | _attention_dp(row, timeout_iters=50, batching_wait_iters=10)
        return {"max_num_batched_tokens": 20000, "max_cudagraph_capture_size": _concurrency(row), **limits, **own}
    if "Llama" in row["model"]:
        waits = _is_short(row) and _number(row, "tensor_parallel_size") < 8
        wait = {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9} if waits else {}
        return {"max_num_batched_tokens": 16384, "max_cudagraph_capture_size": 1024, **FP8_CACHE, **wait}
    budget, own, graphs = _trtllm_drafting(row) if _drafts(row) else _trtllm_plain(row)
    own = own | _attention_dp(row, timeout_iters=60, batching_wait_iters=0)
    captured = {"max_prefill_cudagraph_capture_size": budget} if graphs else {}
    return {"max_num_batched_tokens": budget, **_trtllm_memory(row), **own, **captured}


def _attention_dp(row: Row, timeout_iters: int, batching_wait_iters: int) -> dict[str, Any]:
    if int(row["data_parallel_size"]) == 1:
        return {}
    return {
        "router": "least_loaded",
        "attention_dp_timeout_iters": timeout_iters,
        "attention_dp_batching_wait_iters": batching_wait_iters,
    }


def _trtllm_memory(row: Row) -> dict[str, Any]:
    """DeepSeek: sequences of the largest decode graph, in tokens, and the share of free memory that is for KV."""
    each = 1 if not _drafts(row) else 2 if int(row["data_parallel_size"]) > 1 else 4
    if row["gpu"].startswith("h200"):
        return {"max_cudagraph_capture_size": 128 * each, "gpu_memory_utilization": 0.75}
    if row["precision"] == "fp4":
        return {"max_cudagraph_capture_size": 512 * each, "gpu_memory_utilization": 0.8}
    many = _concurrency(row) >= 256 and _number(row, "input_len") == 1024
    sequences = _concurrency(row) // 8 if many else _concurrency(row)
    return {"max_cudagraph_capture_size": sequences * each, "gpu_memory_utilization": 0.7 if many else 0.8}


def _trtllm_drafting(row: Row) -> tuple[int, dict[str, Any], bool]:
    """DeepSeek with drafted tokens: tokens of a step, further options, and whether prompts run in graphs."""
    concurrency, ranks, short = _concurrency(row), int(row["data_parallel_size"]), _is_short(row)
    tokens, seqs = (1, max(1, concurrency // ranks)) if ranks > 1 else (3, concurrency)
    draft = {"method": "mtp", "num_speculative_tokens": tokens}
    options = {"max_num_seqs": seqs, "speculative_config": draft, **FP8_CACHE}
    if row["precision"] == "fp4":
        captured = short and concurrency in (32, 64, 128)
    else:
        captured = concurrency > (4 if short else 16)
    graphs = row["engine_version"] == "1.2.0rc6.post3" and ranks == 1 and captured
    return _round((tokens + 1) * seqs + _number(row, "input_len") + 64), options, graphs


def _trtllm_plain(row: Row) -> tuple[int, dict[str, Any], bool]:
    """DeepSeek without drafted tokens: tokens of a step, further options, and whether prompts run in graphs."""
    concurrency, ranks, precision = _concurrency(row), int(row["data_parallel_size"]), row["precision"]
    short, new = _is_short(row), row["engine_version"] == "1.2.0rc6.post2"
    budget = max(8192 * new, _round(max(1, concurrency // ranks) + _number(row, "input_len") + 64))  # 8,192 since then
    options: dict[str, Any] = dict(FP8_CACHE)
    if precision == "fp8" and new and short and concurrency >= 64:
        options |= {"batch_wait_timeout_iters": 40, "batch_wait_max_tokens_ratio": 0.8}
    if precision == "fp4":
        captured = short and _number(row, "tensor_parallel_size") == 8 == int(row["expert_parallel_size"])
    else:
        captured = concurrency >= 64
    return budget, options, new and captured


def _is_short(row: Row) -> bool:
    return _number(row, "input_len") == _number(row, "output_len") == 1024


def _drafts(row: Row) -> bool:
    """Whether DeepSeek drafted tokens with its own module.

    Only the ``-mtp`` configurations went from TensorRT-LLM 1.1.0rc2.post2 to 1.2.0rc6.post3 (changes 632 and 642);
    those without went to post2. They were added with 1.1.0rc2.post2 in January 2026 (change 392); the others' rows of
    that release are older.
    """
    release, date = row["engine_version"], row["date"]
    return release == "1.2.0rc6.post3" or (release == "1.1.0rc2.post2" and date >= "2026-01")


def _concurrency(row: Row) -> int:
    return _number(row, "max_concurrency")


def _number(row: Row, column: str) -> int:
    return int(row[column])


def _round(tokens: int) -> int:
    return ceil_div(tokens, 64) * 64
