"""LLM-Viewer: operators, totals and memory of 59 cases.

Its figures are per layer; k_proj and v_proj write straight into the cache; each of q, k and v (and gate and up) reads
its input anew. Ours are one product each, and are compared by the elements that they move, so that quantised cases
count too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from inferometer.inference.report import Phase, Report

from . import DOWN, FIGURES, OUT, QKV, UP, Case, Ledger, config_file, elements, gpu, rows, run, total

GROUPS = {
    "qkv": (QKV, ("q_proj", "k_proj", "v_proj")),
    "o": (OUT, ("out_proj",)),
    "up": (UP, ("gate_proj", "up_proj")),
    "down": (DOWN, ("down_proj",)),
}
NEVER = ("facebook/opt", "DiT")  # models that it gives a gate_proj that they have not
_WEIGHTS = {(16, 16): "fp16", (4, 16): "w4a16", (8, 8): "int8", (4, 4): "int4", (4, 8): "w4a16", (1, 1): "fp16"}
_NATIVE = {(16, 16): 2.0, (4, 16): 2.0, (8, 8): 1.0, (4, 4): 0.5}  # bytes of an input element that both sides mean
_CACHE = {16: "fp16", 8: "int8", 4: "int4"}


def device(case: Case) -> str:
    """Its hardware as overrides of one of ours."""
    d = case.device
    figures = {
        "memory_bandwidth": d["memory_bandwidth"],
        "flops__fp16": d["flops_fp16"],
        "flops__bf16": d["flops_fp16"],
    }
    figures |= {"flops__int8": d["flops_int8"], "flops__int4": d["flops_int8"]} if "flops_int8" in d else {}
    return gpu("a100-sxm-40gb", **figures)


def arguments(case: Case) -> dict[str, Any]:
    """Its options as ours."""
    i = case.plan
    return {
        "batch_size": i["batch_size"],
        "dtype": "fp16",
        "quantization": _WEIGHTS[i["weight_bits"], i["activation_bits"]],
        "kv_cache_dtype": _CACHE.get(i.get("kv_cache_bits", 16), "fp16"),
        "tensor_parallel_size": i["tensor_parallel_size"],
        "attention": i["attention"],
    }


def model(case: Case) -> str:
    """The path of its model's config, or a name where it has none."""
    return case.name if case.name.startswith("DiT") else config_file(case.model)


def reports(case: Case) -> tuple[Report, Report | None]:
    """Ours for its prefill and its decode step: its length counts the new token, so ours is one shorter."""
    length = case.plan["input_len"]
    if case.name.startswith("DiT"):
        return run(model(case), device(case), input_len=length, **arguments(case)), None
    shorter = [n - 1 for n in length] if isinstance(length, list) else max(1, length - 1)
    first = run(model(case), device(case), input_len=length, output_len=2, **arguments(case))
    return first, run(model(case), device(case), input_len=shorter, output_len=2, **arguments(case))


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if "e2e_seconds" in case.figures:
        return  # only times of whole generations: looked at by the tests
    first, second = reports(case)
    for name, report in (("prefill", first), ("decode", second)):
        if report is None:
            continue
        phase = report.phases[name]
        if name in case.operators:
            _operators(ledger, case, name, phase)
            _attention(ledger, case, name, phase)
            _head(ledger, case, name, phase)
        if case.plan["tensor_parallel_size"] == 1 and "operators_skipped" not in case.plan and _whole(case, name):
            _sums(ledger, case, name, phase)
    _memory(ledger, case, first)


def layers(case: Case) -> int:
    """How many layers the model has."""
    c = case.model
    return int(c.get("num_hidden_layers") or c.get("n_layer") or c["depth"])


def theirs(case: Case, phase: str, *names: str) -> dict[str, float]:
    """Its figures for these operators, summed over all layers."""
    ops = [op for op in case.operators[phase] if op.name in names]
    times = 1 if "lm_head" in names else layers(case)
    return {key: times * sum(getattr(op, key) for op in ops) for key in FIGURES}


def gates(case: Case, group: str) -> float:
    """2 where it computes a gate that the model has not."""
    return 2.0 if group == "up" and case.name.startswith(NEVER) else 1.0


def _whole(case: Case, phase: str) -> bool:
    """Whether our decode step can stand at its context: not at a single token, nor with its FlashAttention sums."""
    return case.plan["attention"] == "eager" and (phase == "prefill" or case.plan["input_len"] != 1)


def _operators(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """Linears: FLOPs, weights, activations and, in 16 bit, seconds."""
    i = case.plan
    bits = (i["weight_bits"], i["activation_bits"])
    for group, (our_ops, other) in GROUPS.items():
        ops, y, x = rows(phase, *our_ops), theirs(case, name, *other), total(phase, *our_ops)
        twice, what = gates(case, group), f"{name} {group}"
        _one(ledger, f"{what} FLOPs", y["flops"], x["flops"], twice, "a gate that the model has not")
        weight = elements(ops, _WEIGHTS[bits]) * i["weight_bits"] / 8
        _one(ledger, f"{what} weights", y["load_weight"], weight, twice, "a gate that the model has not")
        there = [op for op in case.operators[name] if op.name in other]
        parts = len(there)
        if bits in _NATIVE:
            read = x["load_act"] / _NATIVE[bits] * i["activation_bits"] / 8
            _one(ledger, f"{what} input", y["load_act"], read, parts, "its input is read by each of its parts")
        wrote = y["store_act"] / i["activation_bits"] + y["store_kv_cache"] / i["kv_cache_bits"]
        _one(ledger, f"{what} output", wrote * 8, x["store_act"] / 2, twice, "a gate that the model has not")
        bounds = {op.bound for op in there}
        if bits == (16, 16) and twice == 1 and len(bounds) == 1:
            extra = (parts - 1) * x["load_act"] - (x["load_weight"] - weight)
            extra += y["store_act"] + y["store_kv_cache"] - x["store_act"]  # K and V written in the cache's precision
            late = extra / case.device["memory_bandwidth"] if bounds == {"memory"} else 0.0
            if late:
                ledger.explained(f"{what} seconds", y["seconds"], x["seconds"] + late, "re-read inputs, free biases")
            else:
                ledger.same(f"{what} seconds", y["seconds"], x["seconds"])
        if bits == (8, 8) and bounds == {"compute"} and twice == 1:
            ledger.same(f"{what} seconds", y["seconds"], x["seconds"])


def _one(ledger: Ledger, what: str, theirs: float, ours: float, factor: float, why: str) -> None:
    if factor == 1:
        ledger.same(what, theirs, ours)
    else:
        ledger.explained(what, theirs, ours * factor, why)


def _attention(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """Scores and values: FLOPs, cache reads and, without FlashAttention, all traffic."""
    i, x = case.plan, total(phase, "attention")
    tp, flash, length = i["tensor_parallel_size"], i["attention"] == "flash", i["input_len"]
    if name == "decode" and length == 1:
        return
    heads = case.model.get("num_attention_heads") or 1
    groups = heads / (case.model.get("num_key_value_heads") or heads)
    y = theirs(case, name, "qk_matmul", "sv_matmul", "softmax", "fused_attention")
    masked = 2 * length / (length + 1) if flash and name == "prefill" and "DiT" not in case.name else 1.0
    softmax = layers(case) * 5 * _heads(case) * i["batch_size"] * length * (length if name == "prefill" else 1)
    _one(ledger, f"{name} attention FLOPs", y["flops"] - softmax, x["flops"], masked * tp, "no causal mask; TP ignored")
    cached = not case.name.startswith("DiT") and i["kv_cache_bits"] in _CACHE
    if cached and not (flash and name == "prefill"):
        again = tp * (groups if flash and case.variant == "released" else 1)
        _one(ledger, f"{name} cache read", y["load_kv_cache"], x["load_kv_cache"], again, "all heads read K and V; TP")
    if not flash and i["activation_bits"] == 16 and tp == 1 and cached:
        query = layers(case) * i["batch_size"] * length * case.model.get("hidden_size", 0) * 2
        lost = query * (1 - 1 / groups) if name == "prefill" else 0.0
        if lost:
            ledger.explained(f"{name} attention input", y["load_act"], x["load_act"] - lost, "query by KV heads")
        else:
            ledger.same(f"{name} attention input", y["load_act"], x["load_act"])
        ledger.same(f"{name} attention output", y["store_act"], x["store_act"])
    if cached:
        y, x = theirs(case, name, "k_proj", "v_proj"), total(phase, "kv_cache_write")
        ledger.same(f"{name} cache written", y["store_kv_cache"], x["store_kv_cache"])


def _heads(case: Case) -> int:
    c = case.model
    return int(c.get("num_attention_heads") or c.get("n_head") or c["num_heads"])


def _head(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """The LM head: its weights the same, its OPs half, its rows of one sequence only, and nothing sharded."""
    ops = rows(phase, "lm_head")
    if not ops:
        return
    i, y, x = case.plan, theirs(case, name, "lm_head"), total(phase, "lm_head")
    tp = i["tensor_parallel_size"]
    _one(ledger, f"{name} head weights", y["load_weight"], elements(ops) * i["weight_bits"] / 8, tp, "TP: not sharded")
    ledger.explained(f"{name} head OPs", y["flops"], x["flops"] / 2 * tp, "a multiply-add counted as one")
    if i["activation_bits"] == 16:
        alone = 1 / i["batch_size"]
        _one(ledger, f"{name} head input", y["load_act"], x["load_act"], alone, "one sequence's rows")
        _one(ledger, f"{name} head output", y["store_act"], x["store_act"], alone * tp, "one sequence's rows; TP")


def _sums(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """OPs of the whole network, put together from ours the way it counts."""
    i, y = case.plan, case.figures
    lengths = i["input_len"] if isinstance(i["input_len"], list) else [i["input_len"]] * layers(case)
    hidden = case.model.get("hidden_size") or case.model["n_embd"]
    ops = sum(gates(case, group) * total(phase, *our_ops)["flops"] for group, (our_ops, _) in GROUPS.items())
    ops += total(phase, "attention")["flops"] + total(phase, "lm_head")["flops"] / 2
    pairs = sum(n * (n if name == "prefill" else 1) for n in lengths)
    tokens = sum(n if name == "prefill" else 1 for n in lengths)
    norms = 1 if case.model.get("model_type") == "gptj" else 2
    each = 7 * norms + 2 * 1 + 2  # norms, adds, activation
    ops += i["batch_size"] * (5 * _heads(case) * pairs + each * hidden * tokens)
    ledger.explained(f"{name} OPs", y[f"{name}_flops"], ops, "half a head; 5 a score; 18 a hidden element")
    if i["weight_bits"] == 16:
        weights = 2 * sum(gates(case, g) * elements(rows(phase, *m)) for g, (m, _) in GROUPS.items())
        note = ledger.same if gates(case, "up") == 1 else _gated(ledger)
        note(f"{name} load_weight", y[f"{name}_load_weight"], weights + 2 * elements(rows(phase, "lm_head")))
        note(f"{name} weight memory", y[f"{name}_weights_bytes"], weights)


def _gated(ledger: Ledger) -> Callable[[str, float, float], None]:
    return functools.partial(ledger.explained, why="a gate that the model has not")


def _memory(ledger: Ledger, case: Case, report: Report) -> None:
    """The cache that the prompt leaves."""
    if case.plan["kv_cache_bits"] in _CACHE and not case.name.startswith("DiT"):
        ledger.same(
            "KV cache", case.figures["prefill_kv_cache_bytes"], report.phases["prefill"].memory_consumption_kv_cache
        )
