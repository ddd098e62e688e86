"""llm-analysis: parameters, weights, cache, FLOPs and times of its inference cases.

It shares one table between embedding and head, and reads some configs as an MLP of four times the width without a
gate; the networks here are built as it sees them.
"""

from __future__ import annotations

from typing import Any

from inferometer.inference.report import Phase, Report

from . import DOWN, OUT, QKV, UP, Case, Ledger, elements, gpu, network_file, rows, run, total

WEIGHTS = {"w16a16e16": "fp16", "w8a8e16": "int8", "w4a16e16": "w4a16"}


def usable(case: Case) -> bool:
    """Its inference cases that ran."""
    return case["kind"] == "infer" and not case["error"]


def model(case: Case) -> str:
    """Its sizes as a network of ours."""
    m = case["model_config"]
    return network_file(
        hidden=m["hidden_dim"],
        vocab=m["vocab_size"],
        layers=m["num_layers"],
        heads=m["n_head"],
        kv_heads=m["num_key_value_heads"],
        head_dim=m["hidden_dim"] // m["n_head"],
        inner=m["ffn_embed_dim"],
        gated=m["mlp_gated_linear_units"],
        tied=True,
    )


def device(case: Case) -> str:
    """Its GPU as overrides of one of ours."""
    g = case["gpu_config"]
    peak = g["peak_fp16_TFLOPS"] * 1e12
    return gpu(
        "a100-sxm-40gb",
        memory_bandwidth=g["hbm_bandwidth_in_GB_per_sec"] * 1e9,
        flops__fp16=peak,
        flops__bf16=peak,
        flops__int8=g["peak_i8_TFLOPS"] * 1e12,
        memory=g["mem_per_GPU_in_GB"] * 1e9,
        links__nvlink__bandwidth=g["intra_node_bandwidth_in_GB_per_sec"] * 1e9,
    )


def report(case: Case, **more: Any) -> Report:
    """Ours for a case."""
    i, o, kind = case["inputs"], case["outputs"], WEIGHTS[case["dtype_config"]["name"]]
    kwargs = {
        "batch_size": i["batch_size_per_gpu"],
        "input_len": i["seq_len"],
        "output_len": i["num_tokens_to_generate"],
        "tensor_parallel_size": i.get("tp_size", 1),
        "dtype": "fp16",
        "quantization": kind,
        "attention": "eager",
        "kv_cache_dtype": "int8" if kind == "int8" else "fp16",
        "efficiency": {"flops": o["flops_efficiency"], "hbm": o["hbm_memory_efficiency"]},
    }
    return run(model(case), device(case), **{**kwargs, **more})


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if not usable(case):
        return
    o, x = case["outputs"], report(case)
    prefill, decode = x.phases["prefill"], x.phases["decode"]
    _memory(ledger, case, x)
    _flops(ledger, case, prefill, decode)
    ledger.same("prefill MLP seconds", o["prefill_latency_fwd_mlp"], total(prefill, *UP, *DOWN)["seconds"])
    _decode_seconds(ledger, case, decode)
    if case["inputs"].get("tp_size", 1) > 1:
        per_layer = [op for op in rows(prefill, "all_reduce") if op.block.startswith("layers")]
        wire = sum(op.sent for op in per_layer) / (case["gpu_config"]["intra_node_bandwidth_in_GB_per_sec"] * 1e9)
        ledger.explained("prefill all-reduce seconds", o["prefill_latency_fwd_tp_comm"], wire, "no latency")


def _memory(ledger: Ledger, case: Case, x: Report) -> None:
    o, m, tp = case["outputs"], case["model_config"], case["inputs"].get("tp_size", 1)
    kind, hidden, layers = WEIGHTS[case["dtype_config"]["name"]], m["hidden_dim"], m["num_layers"]
    phase = x.phases["prefill"]
    ledger.same("parameters", o["num_params_total"], x.model.params)
    ledger.same("active parameters", o["num_active_params_total"], x.model.active_params)
    ledger.same("MLP parameters", o["num_params_total_mlp"], elements(rows(phase, *UP, *DOWN), kind) * tp)
    ledger.same("embedding parameters", o["num_params_total_embedding"], elements(rows(phase, "lm_head")) * tp)
    ledger.same("KV cache", o["kv_cache_memory_per_gpu"], x.memory.kv_cache_bytes)
    final = 2 * hidden * (1 - 1 / tp)  # its final norm is sharded
    if kind == "fp16" and tp == 1:
        ledger.same("weights", o["weight_memory_per_gpu"], x.memory.weights_bytes)
    elif kind == "fp16":
        ledger.explained("weights", o["weight_memory_per_gpu"], x.memory.weights_bytes - final, "a sharded final norm")
    else:
        linears = elements(rows(phase, *QKV, *OUT, *UP, *DOWN), kind)
        bits = case["dtype_config"]["weight_bits"]
        norms = hidden * (2 * layers + 1)
        scales = linears * 20 / 128 / 8 if kind == "w4a16" else 0.0
        ours = x.memory.weights_bytes - scales - norms * (2 - bits / 8)
        ledger.explained("weights", o["weight_memory_per_gpu"], ours, "quantised norms, no scales")


def _flops(ledger: Ledger, case: Case, prefill: Phase, decode: Phase) -> None:
    o, i, m = case["outputs"], case["inputs"], case["model_config"]
    tp, peak = i.get("tp_size", 1), case["gpu_config"]["peak_fp16_TFLOPS"] * 1e12 * o["flops_efficiency"]
    peak *= 2 if WEIGHTS[case["dtype_config"]["name"]] == "int8" else 1
    linears = total(prefill, *QKV, *OUT, *UP, *DOWN)["flops"]
    attention, head = total(prefill, "attention")["flops"], total(prefill, "lm_head")["flops"]
    whole = tp * (linears + attention + head * i["seq_len"])
    ledger.explained("prefill FLOPs", o["prefill_num_flops_fwd_total"], whole, "the head on every prompt token")
    seen = 4 * m["hidden_dim"] * m["num_layers"] * i["batch_size_per_gpu"]  # attention over one token
    ours = tp * total(decode, *QKV, *OUT, *UP, *DOWN, "lm_head")["flops"] + seen
    ledger.explained("decode FLOPs", o["decode_num_flops_fwd_total"], ours, "a context of one token")
    spent = (total(prefill, *QKV, *OUT)["flops"] + attention) / peak
    ledger.explained("prefill attention seconds", o["prefill_latency_fwd_attn"], spent, "FLOPs only, no traffic")


def _decode_seconds(ledger: Ledger, case: Case, decode: Phase) -> None:
    """Weights through memory as ours; of the activations it counts the inner ones of the MLP, and 3 × hidden."""
    o, i, m, g = case["outputs"], case["inputs"], case["model_config"], case["gpu_config"]
    speed = g["hbm_bandwidth_in_GB_per_sec"] * 1e9 * o["hbm_memory_efficiency"]
    kind, tp = case["dtype_config"], i.get("tp_size", 1)
    ours = WEIGHTS[kind["name"]]
    moved = i["batch_size_per_gpu"] * m["num_layers"] * kind["activation_bits"] / 8 / tp
    inner = elements(rows(decode, *UP, *DOWN), ours) * kind["weight_bits"] / 8 + moved * m["ffn_embed_dim"]
    outer = elements(rows(decode, *QKV, *OUT), ours) * kind["weight_bits"] / 8 + moved * 3 * m["hidden_dim"]
    ledger.explained("decode MLP seconds", o["decode_latency_fwd_mlp"], inner / speed, "only inner activations")
    ledger.explained("decode attention seconds", o["decode_latency_fwd_attn"], outer / speed, "3 × hidden activations")
