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

from . import DOWN, OUT, QKV, UP, Case, Ledger, config_file, elements, gpu, rows, run, total

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
    h = case["hardware_params"]
    figures = {"memory_bandwidth": h["bandwidth"], "flops__fp16": h["FP16"], "flops__bf16": h["FP16"]}
    figures |= {"flops__int8": h["INT8"], "flops__int4": h["INT8"]} if "INT8" in h else {}
    return gpu("a100-sxm-40gb", **figures)


def arguments(case: Case) -> dict[str, Any]:
    """Its options as ours."""
    i = case["inputs"]
    return {
        "batch_size": i["batchsize"],
        "dtype": "fp16",
        "quantization": _WEIGHTS[i["w_bit"], i["a_bit"]],
        "kv_cache_dtype": _CACHE.get(i["kv_bit"] or 16, "fp16"),
        "tensor_parallel_size": i.get("tp_size", 1),
        "attention": "flash" if i.get("use_flashattention") else "eager",
    }


def model(case: Case) -> str:
    """The path of its model's config, or a name where it has none."""
    name: str = case["inputs"]["model_id"]
    return name if name.startswith("DiT") else config_file(case["model_config"])


def reports(case: Case) -> tuple[Report, Report | None]:
    """Ours for its prefill and its decode step: its ``seqlen`` counts the new token, so ours is one shorter."""
    i = case["inputs"]
    length = i.get("promptlen") or i["seqlen"]
    if i["model_id"].startswith("DiT"):
        return run(model(case), device(case), input_len=length, **arguments(case)), None
    shorter = [n - 1 for n in length] if isinstance(length, list) else max(1, length - 1)
    first = run(model(case), device(case), input_len=length, output_len=2, **arguments(case))
    return first, run(model(case), device(case), input_len=shorter, output_len=2, **arguments(case))


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if "total_results" not in case["outputs"]:
        return  # only times of whole generations: looked at by the tests
    first, second = reports(case)
    for name, report in (("prefill", first), ("decode", second)):
        if report is None:
            continue
        phase = report.phases[name]
        if name in case["outputs"]:
            _operators(ledger, case, name, phase)
            _attention(ledger, case, name, phase)
            _head(ledger, case, name, phase)
        if case["inputs"].get("tp_size", 1) == 1 and not case["inputs"].get("skip") and _whole(case, name):
            _sums(ledger, case, name, phase)
    _memory(ledger, case, first)


def layers(case: Case) -> int:
    """How many layers the model has."""
    c = case["model_config"]
    return int(c.get("num_hidden_layers") or c.get("n_layer") or c["depth"])


def theirs(case: Case, phase: str, *names: str) -> dict[str, float]:
    """Its figures for these operators, summed over all layers."""
    keys_there = {"flops": "OPs", "seconds": "inference_time"}
    ops = [case["outputs"][phase][n] for n in names if n in case["outputs"][phase]]
    times = 1 if "lm_head" in names else layers(case)
    keys = ("flops", "load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache", "seconds")
    return {k: times * sum(op[keys_there.get(k, k)] for op in ops) for k in keys}


def gates(case: Case, group: str) -> float:
    """2 where it computes a gate that the model has not."""
    return 2.0 if group == "up" and case["inputs"]["model_id"].startswith(NEVER) else 1.0


def _whole(case: Case, phase: str) -> bool:
    """Whether our decode step can stand at its context: not at a single token, nor with its FlashAttention sums."""
    return not case["inputs"].get("use_flashattention") and (phase == "prefill" or case["inputs"].get("seqlen") != 1)


def _operators(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """Linears: FLOPs, weights, activations and, in 16 bit, seconds."""
    i, h = case["inputs"], case["hardware_params"]
    bits = (i["w_bit"], i["a_bit"])
    for group, (our_ops, other) in GROUPS.items():
        ops, y, x = rows(phase, *our_ops), theirs(case, name, *other), total(phase, *our_ops)
        twice, what = gates(case, group), f"{name} {group}"
        _one(ledger, f"{what} FLOPs", y["flops"], x["flops"], twice, "a gate that the model has not")
        weight = elements(ops, _WEIGHTS[bits]) * i["w_bit"] / 8
        _one(ledger, f"{what} weights", y["load_weight"], weight, twice, "a gate that the model has not")
        parts = len([n for n in other if n in case["outputs"][name]])
        if bits in _NATIVE:
            read = x["load_act"] / _NATIVE[bits] * i["a_bit"] / 8
            _one(ledger, f"{what} input", y["load_act"], read, parts, "its input is read by each of its parts")
        wrote = y["store_act"] / i["a_bit"] + y["store_kv_cache"] / i["kv_bit"]
        _one(ledger, f"{what} output", wrote * 8, x["store_act"] / 2, twice, "a gate that the model has not")
        bounds = {case["outputs"][name][n]["bound"] for n in other if n in case["outputs"][name]}
        if bits == (16, 16) and twice == 1 and len(bounds) == 1:
            extra = (parts - 1) * x["load_act"] - (x["load_weight"] - weight)
            extra += y["store_act"] + y["store_kv_cache"] - x["store_act"]  # K and V written in the cache's precision
            late = extra / h["bandwidth"] if bounds == {"memory"} else 0.0
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
    i, x = case["inputs"], total(phase, "attention")
    tp, flash = i.get("tp_size", 1), i["use_flashattention"]
    if name == "decode" and i["seqlen"] == 1:
        return
    heads = case["model_config"].get("num_attention_heads") or 1
    groups = heads / (case["model_config"].get("num_key_value_heads") or heads)
    y = theirs(case, name, "qk_matmul", "sv_matmul", "softmax", "fused_attention")
    masked = 2 * i["seqlen"] / (i["seqlen"] + 1) if flash and name == "prefill" and "DiT" not in i["model_id"] else 1.0
    softmax = layers(case) * 5 * _heads(case) * i["batchsize"] * i["seqlen"] * (i["seqlen"] if name == "prefill" else 1)
    _one(ledger, f"{name} attention FLOPs", y["flops"] - softmax, x["flops"], masked * tp, "no causal mask; TP ignored")
    cached = not i["model_id"].startswith("DiT") and i["kv_bit"] in _CACHE
    if cached and not (flash and name == "prefill"):
        again = tp * (groups if flash and case["variant"].startswith("clone") else 1)
        _one(ledger, f"{name} cache read", y["load_kv_cache"], x["load_kv_cache"], again, "all heads read K and V; TP")
    if not flash and i["a_bit"] == 16 and tp == 1 and cached:
        query = layers(case) * i["batchsize"] * i["seqlen"] * case["model_config"].get("hidden_size", 0) * 2
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
    c = case["model_config"]
    return int(c.get("num_attention_heads") or c.get("n_head") or c["num_heads"])


def _head(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """The LM head: its weights the same, its OPs half, its rows of one sequence only, and nothing sharded."""
    ops = rows(phase, "lm_head")
    if not ops:
        return
    i, y, x = case["inputs"], theirs(case, name, "lm_head"), total(phase, "lm_head")
    tp = i.get("tp_size", 1)
    _one(ledger, f"{name} head weights", y["load_weight"], elements(ops) * i["w_bit"] / 8, tp, "TP: not sharded")
    ledger.explained(f"{name} head OPs", y["flops"], x["flops"] / 2 * tp, "a multiply-add counted as one")
    if i["a_bit"] == 16:
        alone = 1 / i["batchsize"]
        _one(ledger, f"{name} head input", y["load_act"], x["load_act"], alone, "one sequence's rows")
        _one(ledger, f"{name} head output", y["store_act"], x["store_act"], alone * tp, "one sequence's rows; TP")


def _sums(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """OPs of the whole network, put together from ours the way it counts."""
    i = case["inputs"]
    lengths = i["promptlen"] if "promptlen" in i else [i["seqlen"]] * layers(case)
    hidden = case["model_config"].get("hidden_size") or case["model_config"]["n_embd"]
    ops = sum(gates(case, group) * total(phase, *our_ops)["flops"] for group, (our_ops, _) in GROUPS.items())
    ops += total(phase, "attention")["flops"] + total(phase, "lm_head")["flops"] / 2
    pairs = sum(n * (n if name == "prefill" else 1) for n in lengths)
    tokens = sum(n if name == "prefill" else 1 for n in lengths)
    norms = 1 if case["model_config"].get("model_type") == "gptj" else 2
    each = 7 * norms + 2 * 1 + 2  # norms, adds, activation
    ops += i["batchsize"] * (5 * _heads(case) * pairs + each * hidden * tokens)
    y = case["outputs"]["total_results"][name]
    ledger.explained(f"{name} OPs", y["OPs"], ops, "half a head; 5 a score; 18 a hidden element")
    if i["w_bit"] == 16:
        weights = 2 * sum(gates(case, g) * elements(rows(phase, *m)) for g, (m, _) in GROUPS.items())
        note = ledger.same if gates(case, "up") == 1 else _gated(ledger)
        note(f"{name} load_weight", y["load_weight"], weights + 2 * elements(rows(phase, "lm_head")))
        note(f"{name} weight memory", y["memory_consumption_weight"], weights)


def _gated(ledger: Ledger) -> Callable[[str, float, float], None]:
    return functools.partial(ledger.explained, why="a gate that the model has not")


def _memory(ledger: Ledger, case: Case, report: Report) -> None:
    """The cache that the prompt leaves."""
    if case["inputs"]["kv_bit"] in _CACHE and not case["inputs"]["model_id"].startswith("DiT"):
        y = case["outputs"]["total_results"]["prefill"]["memory_consumption_kv_cache"]
        ledger.same("KV cache", y, report.phases["prefill"].memory_consumption_kv_cache)
