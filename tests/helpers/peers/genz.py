"""GenZ: operators, memory and collectives of its cases with tensor parallelism (pipelines and expert ranks apart).

It takes GB/s as GiB/s, so that is what the device gets here. In a decode step the activations of a layer stay on the
chip at 18,000 GiB/s; elsewhere they go through memory, as ours do.
"""

from __future__ import annotations

from typing import Any

from inferometer.base.symbols import evaluate
from inferometer.base.symbols import names as s
from inferometer.inference.report import Phase, Report
from inferometer.network.operators import all_gather, all_reduce

from . import DOWN, OUT, QKV, UP, Case, Ledger, elements, gpu, network_file, rows, run, table, total

BINARY = 2**30 / 1e9  # what it makes of a GB
GROUPS = {"QKV": QKV, "Out Proj": OUT, "up+gate": UP, "down": DOWN}
ON_CHIP = 18000e9 * BINARY  # bytes/s of its on-chip memory
START = 5e-6  # s that it adds to every collective
BITS = {"bf16": 16, "int8": 8, "fp8": 8, "int4": 4}


def usable(case: Case) -> bool:
    """Cases of one stage and no expert ranks, of models that its sizes describe (its DeepSeek is not)."""
    one = case.plan["pipeline_parallel_size"] == 1 and case.plan["expert_parallel_size"] == 1
    return one and "DeepSeek" not in case.name


def model(case: Case) -> str:
    """Its sizes as a network of ours."""
    m = case.model
    mixture = {"experts": m["num_experts"], "top_k": m["num_experts_per_tok"]} if "num_experts" in m else {}
    return network_file(
        hidden=m["hidden_size"],
        vocab=m["vocab_size"],
        layers=m["num_hidden_layers"],
        heads=m["num_attention_heads"],
        kv_heads=m["num_key_value_heads"],
        head_dim=m["head_dim"],
        inner=m["intermediate_size"],
        gated=m["gated"],
        **mixture,
    )


def device(case: Case, unit: float = BINARY) -> str:
    """Its system as overrides of one of ours; ``unit`` is what it makes of a GB."""
    d = case.device
    peak = d["flops_bf16"]
    return gpu(
        "h100-sxm",
        memory_bandwidth=d["memory_bandwidth"] * unit,
        flops__bf16=peak,
        flops__fp16=peak,
        flops__int8=2 * peak,
        flops__fp8=2 * peak,
        links__nvlink__bandwidth=d["link_bandwidth"] * unit,
        links__nvlink__latency=d["link_latency"],
    )


def arguments(case: Case) -> dict[str, Any]:
    """Its options as ours."""
    i = case.plan
    return {
        "batch_size": i["batch_size"],
        "tensor_parallel_size": i["tensor_parallel_size"],
        "quantization": i["quantization"],
        "kv_cache_dtype": i["quantization"],
        "attention": "eager",
        "efficiency": {"flops": i["efficiency"], "hbm": i["efficiency"]},
    }


def reports(case: Case) -> tuple[Report, Report]:
    """Ours for its prefill, and for its decode step: the one of the last answer token."""
    i = case.plan
    first = run(
        model(case),
        device(case),
        input_len=i["input_len"],
        output_len=i["output_len"],
        beam_width=i["beam_width"],
        **arguments(case),
    )
    last = run(
        model(case),
        device(case),
        input_len=i["input_len"] + i["output_len"] - 1,
        output_len=2,
        beam_width=i["beam_width"],
        **arguments(case),
    )
    return first, last


def theirs(case: Case, phase: str, *starts: str) -> dict[str, float]:
    """Its figures for the operators whose names begin so, summed over all layers."""
    ops = [op for op in case.operators[phase] if op.name.startswith(starts)]
    times = 1 if starts[0] in ("classifier", "embeddings") else case.model["num_hidden_layers"]
    keys = ("flops", "load_weight", "load_act", "store_act", "seconds")
    return {key: times * sum(getattr(op, key) for op in ops) for key in keys}


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if not usable(case):
        return
    first, last = reports(case)
    for name, report in (("prefill", first), ("decode", last)):
        phase = report.phases[name]
        for group, our_ops in GROUPS.items():
            if "num_experts" not in case.model or group in ("QKV", "Out Proj"):
                _linear(ledger, case, name, phase, group, our_ops)
        if "num_experts" in case.model:
            y, x = theirs(case, name, "up+gate", "down"), total(phase, "experts")
            ledger.same(f"{name} experts FLOPs", y["flops"], x["flops"])
        _attention(ledger, case, name, phase)
        _head(ledger, case, name, phase)
        _collectives(ledger, case, name, phase)
    _memory(ledger, case, first)


def _linear(ledger: Ledger, case: Case, name: str, phase: Phase, group: str, our_ops: tuple[str, ...]) -> None:
    i, y, x = case.plan, theirs(case, name, group), total(phase, *our_ops)
    bits = i["quantization"]
    size = BITS[bits] / 8
    ledger.same(f"{name} {group} FLOPs", y["flops"], x["flops"])
    ledger.same(f"{name} {group} weights", y["load_weight"], elements(rows(phase, *our_ops), bits) * size)
    ledger.same(f"{name} {group} output", y["store_act"], x["store_act"] / 2 * size)
    if bits != "int4":  # ours has no int4 units to multiply in on that device
        ledger.same(f"{name} {group} input", y["load_act"], x["load_act"])
    if name == "prefill" and (bits == "bf16" or (bits != "int4" and _bound(case, name, group) == "compute")):
        ledger.same(f"{name} {group} seconds", y["seconds"], x["seconds"])
    if name == "decode" and bits == "bf16" and _bound(case, name, group) == "memory":
        speed = case.device["memory_bandwidth"] * BINARY
        near = (x["load_act"] + x["store_act"]) * (1 / ON_CHIP - 1 / speed) / i["efficiency"]
        ledger.explained(f"{name} {group} seconds", y["seconds"], x["seconds"] + near, "activations stay on the chip")


def _bound(case: Case, phase: str, group: str) -> str:
    return next(op.bound for op in case.operators[phase] if op.name == group)


def _attention(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """All pairs of a prompt (ours without FlashAttention); beams share the prompt's queries in its decode."""
    i, x, y = case.plan, total(phase, "attention"), theirs(case, name, "Logit", "Attend")
    beams, prompt, answer = i["beam_width"], i["input_len"], i["output_len"]
    share = (prompt + beams * answer) / (beams * (prompt + answer)) if name == "decode" else 1.0
    for what, a, b in (("FLOPs", y["flops"], x["flops"]), ("cache read", y["load_weight"], x["load_kv_cache"])):
        if share == 1:
            ledger.same(f"{name} attention {what}", a, b)
        else:
            ledger.explained(f"{name} attention {what}", a, b * share, "one query for all beams")


def _head(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    i, x, y = case.plan, total(phase, "lm_head"), theirs(case, name, "classifier")
    size = BITS[i["quantization"]] / 8
    ledger.same(f"{name} head weights", y["load_weight"], elements(rows(phase, "lm_head")) * size)
    if name == "prefill":
        ledger.explained("prefill head FLOPs", y["flops"], x["flops"] * i["input_len"], "on every prompt token")
    else:
        ledger.same("decode head FLOPs", y["flops"], x["flops"])
        if i["quantization"] == "bf16":
            ledger.same("decode head seconds", y["seconds"] - _gather(case), x["seconds"])


def _gather(case: Case) -> float:
    return sum(op.seconds for op in case.operators["decode"] if op.name == "classifier_AG")


def ring(ranks: int, passes: int, latency: float) -> float:
    """What it adds to the bytes on the wire: 5 µs to start, and a hop for each of the others, once or twice around."""
    return START + passes * (ranks - 1) * latency if ranks > 1 else 0.0


def _collectives(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """All-reduces of the layers and the gather of the logits, by the bytes that a rank must send."""
    ranks, latency = case.plan["tensor_parallel_size"], case.device["link_latency"]
    speed = case.device["link_bandwidth"] * BINARY
    if ranks == 1 or case.plan["quantization"] != "bf16":
        return
    our_ops = [op for op in rows(phase, "all_reduce") if op.block.startswith("layers")]
    ours = sum(op.sent / speed + op.count * ring(ranks, 2, latency) for op in our_ops)
    why = "a ring's hops and 5 µs to start"
    ledger.explained(f"{name} all-reduce seconds", theirs(case, name, "MHA AR", "FFN AR")["seconds"], ours, why)
    if name == "decode":
        wire = sum(op.sent for op in rows(phase, "all_gather")) / speed
        ledger.explained("decode gather seconds", _gather(case), wire + ring(ranks, 1, latency), why)


def _memory(ledger: Ledger, case: Case, report: Report) -> None:
    """Weights without norms, and the cache of the whole conversation."""
    i, m, y = case.plan, case.model, case.figures
    ledger.same("KV cache", y["kv_cache_bytes"], report.memory.kv_cache_bytes)
    ledger.same(
        "KV cache of the prompt",
        y["prefill_kv_cache_bytes"],
        report.phases["prefill"].memory_consumption_kv_cache,
    )
    if i["quantization"] == "bf16":
        norms = (2 * m["num_hidden_layers"] + 1) * m["hidden_size"] * 2
        router = m.get("num_experts", 0) * m["hidden_size"] * m["num_hidden_layers"] * 2
        kept = report.memory.weights_bytes - norms - router * (1 - 1 / i["tensor_parallel_size"])
        why = "no norms; a sharded router" if router else "no norms"
        ledger.explained("weights", y["weights_bytes"], kept, why)


def check_collectives(ledger: Ledger) -> None:
    """Its table of collectives: the bytes of ours, with a ring's hops and 5 µs to start."""
    for row in table("genz_collectives"):
        ranks, speed = int(row["ranks"]), float(row["link_bandwidth"]) * BINARY
        ledger.case = f"{row['system']} {ranks} × {row['bytes']} B"
        env = {"tp": ranks, "act_bytes": 2, "tokens": 1, "width": int(row["bytes"]) / 2}
        for name, passes, op in (("all_reduce", 2, all_reduce), ("all_gather", 1, all_gather)):
            wire = evaluate(op("op", s.width).work.sent, env) / speed
            time = wire + ring(ranks, passes, float(row["link_latency"]))
            ledger.explained(name, float(row[f"{name}_seconds"]), time, "a ring's hops and 5 µs to start")
