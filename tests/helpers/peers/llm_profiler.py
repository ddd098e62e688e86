"""llm_profiler: parameters, FLOPs, prefill times and cache of 23 cases.

Its FLOPs are of the whole network and of one layer, its times of all layers on one device at 90 % of the peaks.
"""

from __future__ import annotations

from typing import Any

from inferometer.inference.report import Phase, Report

from . import DOWN, OUT, QKV, UP, Case, Ledger, config_file, elements, gpu, rows, run, total

EFFICIENCY = {"flops": 0.9, "hbm": 0.9, "intra": 0.75}  # built in; its arguments change nothing


def device(case: Case) -> str:
    """Its GPU as overrides of one of ours."""
    g = case["gpu_config"]
    peak = g["peak_fp16_TFLOPS"] * 1e12
    return gpu(
        "a100-sxm-40gb",
        memory_bandwidth=g["hbm_bandwidth_in_GB_per_sec"] * 1e9,
        flops__fp16=peak,
        flops__bf16=peak,
        memory=g["memory_GPU_in_GB"] * 1e9,
        links__nvlink__bandwidth=g["intra_node_bandwidth_in_GB_per_sec"] * 1e9,
    )


def model(case: Case) -> str:
    """Its sizes as a config.json."""
    m = case["model_config"]
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": m["hidden_size"],
        "intermediate_size": m["intermediate_size"],
        "num_hidden_layers": m["num_layers"],
        "num_attention_heads": m["num_heads"],
        "head_dim": m["head_dim"],
        "num_key_value_heads": m["num_kv_heads"],
        "vocab_size": m["vocab_size"],
        "torch_dtype": "float16",
        "tie_word_embeddings": False,
    }
    if normed(case):
        config["model_type"] = "qwen3"
    if m.get("num_experts"):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": m["num_experts"],
            "num_experts_per_tok": m["num_experts_per_tok"],
            "moe_intermediate_size": m["moe_intermediate_size"],
        }
    return config_file(config)


def normed(case: Case) -> bool:
    """Whether it counts the norms on q and k: in dense Qwen3, not in its mixtures."""
    return "Qwen3" in case["model_config"]["model_name"] and not case["model_config"].get("num_experts")


def outputs(case: Case) -> dict[str, Any]:
    """Its figures, before they are rounded for printing."""
    data: dict[str, Any] = case["outputs"].get("raw", case["outputs"])
    return data


def report(case: Case, **more: Any) -> Report:
    """Ours for a case."""
    i = case["inputs"]
    kwargs = {
        "batch_size": i["batch_size"],
        "input_len": i["seq_len"],
        "output_len": i["generate_len"],
        "dtype": "fp16",
        "tensor_parallel_size": i["tp_size"],
        "attention": "eager",
        "efficiency": EFFICIENCY,
    }
    return run(model(case), device(case), **{**kwargs, **more})


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    i, m, y, x = case["inputs"], case["model_config"], outputs(case), report(case)
    mixture, split = bool(m.get("num_experts")), m["num_kv_heads"] >= i["tp_size"]
    prefill = x.phases["prefill"]
    _parameters(ledger, case, x)
    for name in ("prefill", "decode"):
        if f"{name}_flops_per_layer" in y:
            _flops(ledger, case, name, x.phases[name], y[f"{name}_flops_per_layer"], split)
    if split:
        _seconds(ledger, case, "qkvo_proj", prefill, *QKV, *OUT)
        if not normed(case):  # its kernel has the norms of q and k in it
            _seconds(ledger, case, "attn_kernel", prefill, "attention")
    if not mixture:
        _seconds(ledger, case, "mlp", prefill, *UP, *DOWN)
    if i.get("pp_size", 1) > 1 or "memory_decode" not in y:
        return
    why = "a KV head for every rank" if not split else ""
    held = y["memory_decode"]["kv_cache_memory_per_gpu"]
    if split:
        ledger.same("KV cache", held, x.memory.kv_cache_bytes)
    else:
        ledger.explained("KV cache", held, x.memory.kv_cache_bytes * m["num_kv_heads"] / i["tp_size"], why)
    if not mixture and "bytes_per_param" not in i:
        tp, hidden, layers = i["tp_size"], m["hidden_size"], m["num_layers"]
        input_table, norms = 2 * m["vocab_size"] * hidden / tp, y["params_per_layer"]["rmsnorm"] * layers
        ours = x.memory.weights_bytes - input_table - 2 * hidden - 2 * norms * (1 - 1 / tp)
        ledger.explained(
            "weights",
            y["memory_prefill"]["weight_memory_per_gpu"],
            ours,
            "no input embedding nor final norm; sharded norms",
        )


def _seconds(ledger: Ledger, case: Case, word: str, phase: Phase, *names: str) -> None:
    """All layers of a prefill. A pipeline divides its latency by the stages, which only its throughput would be."""
    y, ours = outputs(case)["latency_prefill"][f"prefill_{word}"], total(phase, *names)["seconds"]
    stages = case["inputs"].get("pp_size", 1)
    if stages == 1:
        ledger.same(f"prefill {word} seconds", y, ours)
    else:
        ledger.explained(f"prefill {word} seconds", y, ours / stages, "latency divided by the stages")


def _parameters(ledger: Ledger, case: Case, x: Report) -> None:
    m, y, tp = case["model_config"], outputs(case), case["inputs"]["tp_size"]
    phase, layers, hidden = x.phases["prefill"], m["num_layers"], m["hidden_size"]
    own = y["params_per_layer"]
    if m["num_kv_heads"] >= tp:
        ledger.same("qkvo parameters", own["qkvo_proj"], elements(rows(phase, *QKV, *OUT)) * tp / layers)
    if m.get("num_experts"):
        once = x.model.active_params - m["vocab_size"] * hidden - hidden  # one embedding, no final norm
        ledger.explained("parameters", y["params_model"], once, "only the chosen experts")
    else:
        ledger.same("MLP parameters", own["mlp"], elements(rows(phase, *UP, *DOWN)) * tp / layers)
        ledger.explained(
            "parameters",
            y["params_model"],
            x.model.params - m["vocab_size"] * hidden - hidden,
            "no input embedding nor final norm",
        )
    norms = total(phase, "input_layernorm", "post_attention_layernorm", "qk_norm")["load_weight"] / 2
    ledger.same("norm parameters", own["rmsnorm"], norms / layers)
    ledger.same("head parameters", own["output_embedding"], elements(rows(phase, "lm_head")) * tp)


def _flops(ledger: Ledger, case: Case, name: str, phase: Phase, y: dict[str, float], split: bool) -> None:
    i, m, layers = case["inputs"], case["model_config"], case["model_config"]["num_layers"]
    tp, tokens = i["tp_size"], i["batch_size"] * (i["seq_len"] if name == "prefill" else 1)
    if split:
        ledger.same(f"{name} qkvo FLOPs", y["qkvo_proj"], total(phase, *QKV, *OUT)["flops"] * tp / layers)
    feed = total(phase, *UP, *DOWN, "experts")["flops"] * tp + total(phase, "router")["flops"]
    ledger.same(f"{name} MLP FLOPs", y["mlp"], feed / layers)
    if name == "prefill":
        softmax = tokens * (3 * m["num_heads"] * m["head_dim"] + 1024)
        ours = total(phase, "attention")["flops"] * tp / layers + softmax
        ledger.explained("prefill attention FLOPs", y["attention_kernel"], ours, "softmax by tokens, not by scores")
