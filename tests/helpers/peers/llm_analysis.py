"""llm-analysis: parameters, weights, cache, FLOPs and times of its inference cases.

It shares one table between embedding and head, and reads some configs as an MLP of four times the width without a
gate; the networks here are built as it sees them.
"""

from __future__ import annotations

from typing import Any

from inferometer.inference.report import Phase, Report

from . import DOWN, OUT, QKV, UP, Case, Ledger, elements, gpu, network_file, rows, run, total

WEIGHTS = {16: "fp16", 8: "int8", 4: "w4a16"}


def usable(case: Case) -> bool:
    """Its inference cases."""
    return case.variant == "inference"


def model(case: Case) -> str:
    """Its sizes as a network of ours."""
    m = case.model
    return network_file(
        hidden=m["hidden_size"],
        vocab=m["vocab_size"],
        layers=m["num_hidden_layers"],
        heads=m["num_attention_heads"],
        kv_heads=m["num_key_value_heads"],
        head_dim=m["hidden_size"] // m["num_attention_heads"],
        inner=m["intermediate_size"],
        gated=m["gated"],
        tied=True,
    )


def device(case: Case) -> str:
    """Its GPU as overrides of one of ours."""
    d = case.device
    return gpu(
        "a100-sxm-40gb",
        memory_bandwidth=d["memory_bandwidth"],
        flops__fp16=d["flops_fp16"],
        flops__bf16=d["flops_fp16"],
        flops__int8=d["flops_int8"],
        memory=d["memory"],
        links__nvlink__bandwidth=d["link_bandwidth"],
    )


def report(case: Case, **more: Any) -> Report:
    """Ours for a case."""
    i, kind = case.plan, WEIGHTS[case.plan["weight_bits"]]
    kwargs = {
        "batch_size": i["batch_size"],
        "input_len": i["input_len"],
        "output_len": i["output_len"],
        "tensor_parallel_size": i["tensor_parallel_size"],
        "dtype": "fp16",
        "quantization": kind,
        "attention": "eager",
        "kv_cache_dtype": "int8" if kind == "int8" else "fp16",
        "efficiency": {"flops": i["flops_efficiency"], "hbm": i["memory_efficiency"]},
    }
    return run(model(case), device(case), **{**kwargs, **more})


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if not usable(case):
        return
    o, x = case.figures, report(case)
    prefill, decode = x.phases["prefill"], x.phases["decode"]
    _memory(ledger, case, x)
    _flops(ledger, case, prefill, decode)
    ledger.same("prefill MLP seconds", o["prefill_mlp_seconds"], total(prefill, *UP, *DOWN)["seconds"])
    _decode_seconds(ledger, case, decode)
    if case.plan["tensor_parallel_size"] > 1:
        per_layer = [op for op in rows(prefill, "all_reduce") if op.block.startswith("layers")]
        wire = sum(op.sent for op in per_layer) / case.device["link_bandwidth"]
        ledger.explained("prefill all-reduce seconds", o["prefill_all_reduce_seconds"], wire, "no latency")


def _memory(ledger: Ledger, case: Case, x: Report) -> None:
    o, m, tp, bits = case.figures, case.model, case.plan["tensor_parallel_size"], case.plan["weight_bits"]
    kind, hidden, layers = WEIGHTS[bits], m["hidden_size"], m["num_hidden_layers"]
    phase = x.phases["prefill"]
    ledger.same("parameters", o["params"], x.model.params)
    ledger.same("active parameters", o["active_params"], x.model.active_params)
    ledger.same("MLP parameters", o["mlp_params"], elements(rows(phase, *UP, *DOWN), kind) * tp)
    ledger.same("embedding parameters", o["embedding_params"], elements(rows(phase, "lm_head")) * tp)
    ledger.same("KV cache", o["kv_cache_bytes"], x.memory.kv_cache_bytes)
    final = 2 * hidden * (1 - 1 / tp)  # its final norm is sharded
    if kind == "fp16" and tp == 1:
        ledger.same("weights", o["weights_bytes"], x.memory.weights_bytes)
    elif kind == "fp16":
        ledger.explained("weights", o["weights_bytes"], x.memory.weights_bytes - final, "a sharded final norm")
    else:
        linears = elements(rows(phase, *QKV, *OUT, *UP, *DOWN), kind)
        norms = hidden * (2 * layers + 1)
        scales = linears * 20 / 128 / 8 if kind == "w4a16" else 0.0
        ours = x.memory.weights_bytes - scales - norms * (2 - bits / 8)
        ledger.explained("weights", o["weights_bytes"], ours, "quantised norms, no scales")


def _flops(ledger: Ledger, case: Case, prefill: Phase, decode: Phase) -> None:
    o, i, m = case.figures, case.plan, case.model
    tp, peak = i["tensor_parallel_size"], case.device["flops_fp16"] * i["flops_efficiency"]
    peak *= 2 if i["weight_bits"] == 8 else 1
    linears = total(prefill, *QKV, *OUT, *UP, *DOWN)["flops"]
    attention, head = total(prefill, "attention")["flops"], total(prefill, "lm_head")["flops"]
    whole = tp * (linears + attention + head * i["input_len"])
    ledger.explained("prefill FLOPs", o["prefill_flops"], whole, "the head on every prompt token")
    seen = 4 * m["hidden_size"] * m["num_hidden_layers"] * i["batch_size"]  # attention over one token
    ours = tp * total(decode, *QKV, *OUT, *UP, *DOWN, "lm_head")["flops"] + seen
    ledger.explained("decode FLOPs", o["decode_flops"], ours, "a context of one token")
    spent = (total(prefill, *QKV, *OUT)["flops"] + attention) / peak
    ledger.explained("prefill attention seconds", o["prefill_attention_seconds"], spent, "FLOPs only, no traffic")


def _decode_seconds(ledger: Ledger, case: Case, decode: Phase) -> None:
    """Weights through memory as ours; of the activations it counts the inner ones of the MLP, and 3 × hidden."""
    o, i, m = case.figures, case.plan, case.model
    speed = case.device["memory_bandwidth"] * i["memory_efficiency"]
    ours, size = WEIGHTS[i["weight_bits"]], i["weight_bits"] / 8
    moved = i["batch_size"] * m["num_hidden_layers"] * i["activation_bits"] / 8 / i["tensor_parallel_size"]
    inner = elements(rows(decode, *UP, *DOWN), ours) * size + moved * m["intermediate_size"]
    outer = elements(rows(decode, *QKV, *OUT), ours) * size + moved * 3 * m["hidden_size"]
    ledger.explained("decode MLP seconds", o["decode_mlp_seconds"], inner / speed, "only inner activations")
    ledger.explained("decode attention seconds", o["decode_attention_seconds"], outer / speed, "3 × hidden activations")
