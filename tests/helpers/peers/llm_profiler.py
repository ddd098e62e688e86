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
    d = case.device
    return gpu(
        "a100-sxm-40gb",
        memory_bandwidth=d["memory_bandwidth"],
        flops__fp16=d["flops_fp16"],
        flops__bf16=d["flops_fp16"],
        memory=d["memory"],
        links__nvlink__bandwidth=d["link_bandwidth"],
    )


def model(case: Case) -> str:
    """Its sizes as a config.json."""
    config = {**case.model, "torch_dtype": "float16", "tie_word_embeddings": False}
    config["model_type"] = "qwen3" if normed(case) else "llama"
    if "num_experts" in config:
        config |= {"model_type": "mixtral", "num_local_experts": config.pop("num_experts")}
    return config_file(config)


def normed(case: Case) -> bool:
    """Whether it counts the norms on q and k: in dense Qwen3, not in its mixtures."""
    return "Qwen3" in case.name and "num_experts" not in case.model


def report(case: Case, **more: Any) -> Report:
    """Ours for a case."""
    names = ("batch_size", "input_len", "output_len", "tensor_parallel_size")
    kwargs = {name: case.plan[name] for name in names}
    kwargs |= {"dtype": "fp16", "attention": "eager", "efficiency": EFFICIENCY}
    return run(model(case), device(case), **{**kwargs, **more})


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    i, m, y, x = case.plan, case.model, case.figures, report(case)
    tp, heads = i["tensor_parallel_size"], m["num_key_value_heads"]
    mixture, split = "num_experts" in m, heads >= tp
    prefill = x.phases["prefill"]
    _parameters(ledger, case, x)
    for name in ("prefill", "decode"):
        if f"{name}_layer_mlp_flops" in y:
            _flops(ledger, case, name, x.phases[name], split)
    if split:
        _seconds(ledger, case, "qkvo", prefill, *QKV, *OUT)
        if not normed(case):  # its kernel has the norms of q and k in it
            _seconds(ledger, case, "attention", prefill, "attention")
    if not mixture:
        _seconds(ledger, case, "mlp", prefill, *UP, *DOWN)
    if i["pipeline_parallel_size"] > 1 or "kv_cache_bytes" not in y:
        return
    why = "a KV head for every rank" if not split else ""
    held = y["kv_cache_bytes"]
    if split:
        ledger.same("KV cache", held, x.memory.kv_cache_bytes)
    else:
        ledger.explained("KV cache", held, x.memory.kv_cache_bytes * heads / tp, why)
    if not mixture and "weight_bits" not in i:
        hidden, layers = m["hidden_size"], m["num_hidden_layers"]
        input_table, norms = 2 * m["vocab_size"] * hidden / tp, y["layer_norm_params"] * layers
        ours = x.memory.weights_bytes - input_table - 2 * hidden - 2 * norms * (1 - 1 / tp)
        ledger.explained(
            "weights",
            y["weights_bytes"],
            ours,
            "no input embedding nor final norm; sharded norms",
        )


def _seconds(ledger: Ledger, case: Case, word: str, phase: Phase, *names: str) -> None:
    """All layers of a prefill. A pipeline divides its latency by the stages, which only its throughput would be."""
    y, ours = case.figures[f"prefill_{word}_seconds"], total(phase, *names)["seconds"]
    stages = case.plan["pipeline_parallel_size"]
    if stages == 1:
        ledger.same(f"prefill {word} seconds", y, ours)
    else:
        ledger.explained(f"prefill {word} seconds", y, ours / stages, "latency divided by the stages")


def _parameters(ledger: Ledger, case: Case, x: Report) -> None:
    m, y, tp = case.model, case.figures, case.plan["tensor_parallel_size"]
    phase, layers, hidden = x.phases["prefill"], m["num_hidden_layers"], m["hidden_size"]
    if m["num_key_value_heads"] >= tp:
        ledger.same("qkvo parameters", y["layer_qkvo_params"], elements(rows(phase, *QKV, *OUT)) * tp / layers)
    if "num_experts" in m:
        once = x.model.active_params - m["vocab_size"] * hidden - hidden  # one embedding, no final norm
        ledger.explained("parameters", y["params"], once, "only the chosen experts")
    else:
        ledger.same("MLP parameters", y["layer_mlp_params"], elements(rows(phase, *UP, *DOWN)) * tp / layers)
        ledger.explained(
            "parameters",
            y["params"],
            x.model.params - m["vocab_size"] * hidden - hidden,
            "no input embedding nor final norm",
        )
    norms = total(phase, "input_layernorm", "post_attention_layernorm", "qk_norm")["load_weight"] / 2
    ledger.same("norm parameters", y["layer_norm_params"], norms / layers)
    ledger.same("head parameters", y["head_params"], elements(rows(phase, "lm_head")) * tp)


def _flops(ledger: Ledger, case: Case, name: str, phase: Phase, split: bool) -> None:
    i, m, y, layers = case.plan, case.model, case.figures, case.model["num_hidden_layers"]
    tp, tokens = i["tensor_parallel_size"], i["batch_size"] * (i["input_len"] if name == "prefill" else 1)
    if split:
        ledger.same(
            f"{name} qkvo FLOPs", y[f"{name}_layer_qkvo_flops"], total(phase, *QKV, *OUT)["flops"] * tp / layers
        )
    feed = total(phase, *UP, *DOWN, "experts")["flops"] * tp + total(phase, "router")["flops"]
    ledger.same(f"{name} MLP FLOPs", y[f"{name}_layer_mlp_flops"], feed / layers)
    if name == "prefill":
        softmax = tokens * (3 * m["num_attention_heads"] * m["head_dim"] + 1024)
        ours = total(phase, "attention")["flops"] * tp / layers + softmax
        why = "softmax by tokens, not by scores"
        ledger.explained("prefill attention FLOPs", y["prefill_layer_attention_flops"], ours, why)
