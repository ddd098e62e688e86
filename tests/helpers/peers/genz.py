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

from . import DOWN, OUT, QKV, UP, Case, Ledger, data, elements, gpu, network_file, rows, run, total

GI, MI = 2**30, 2**20
GROUPS = {"QKV": QKV, "Out Proj": OUT, "up+gate": UP, "down": DOWN}
ON_CHIP = 18000 * GI  # bytes/s of its on-chip memory
START = 5e-6  # s that it adds to every collective
BITS = {"bf16": 16, "int8": 8, "fp8": 8, "int4": 4}


def usable(case: Case) -> bool:
    """Cases of one stage and no expert ranks, of models that its sizes describe (its DeepSeek and Mamba are not)."""
    i = case["inputs"]
    plain = i["pipeline_parallel"] == 1 and i["expert_parallel"] == 1 and case["status"] == "ok"
    return plain and not case["model_dims"]["is_mamba"] and "DeepSeek" not in i["model"]


def model(case: Case) -> str:
    """Its sizes as a network of ours."""
    m = case["model_dims"]
    mixture = {"experts": m["num_experts"], "top_k": m["expert_top_k"]} if m["is_moe"] else {}
    return network_file(
        hidden=m["hidden_size"],
        vocab=m["vocab_size"],
        layers=m["num_decoder_layers"],
        heads=m["num_attention_heads"],
        kv_heads=m["num_key_value_heads"],
        head_dim=m["head_dim"],
        inner=int(m["intermediate_size"]),
        gated=m["num_ffi"] == 2,
        **mixture,
    )


def device(case: Case, unit: float = GI) -> str:
    """Its system as overrides of one of ours; ``unit`` is what it takes a GB for."""
    y = case["inputs"]["system_dict"]
    peak = y["Flops"] * 1e12
    return gpu(
        "h100-sxm",
        memory_bandwidth=y["Memory_BW"] * unit,
        flops__bf16=peak,
        flops__fp16=peak,
        flops__int8=2 * peak,
        flops__fp8=2 * peak,
        links__nvlink__bandwidth=y["ICN"] * unit,
        links__nvlink__latency=y.get("ICN_LL", 1) * 1e-6,
    )


def arguments(case: Case) -> dict[str, Any]:
    """Its options as ours."""
    i = case["inputs"]
    return {
        "batch_size": i["batch_size"],
        "tensor_parallel_size": i["tensor_parallel"],
        "quantization": i["bits"],
        "kv_cache_dtype": i["bits"],
        "attention": "eager",
        "efficiency": {"flops": i["system_eff"], "hbm": i["system_eff"]},
    }


def reports(case: Case) -> tuple[Report, Report]:
    """Ours for its prefill, and for its decode step: the one of the last answer token."""
    i = case["inputs"]
    first = run(
        model(case),
        device(case),
        input_len=i["input_tokens"],
        output_len=i["output_tokens"],
        beam_width=i["beam_size"],
        **arguments(case),
    )
    last = run(
        model(case),
        device(case),
        input_len=i["input_tokens"] + i["output_tokens"] - 1,
        output_len=2,
        beam_width=i["beam_size"],
        **arguments(case),
    )
    return first, last


def theirs(case: Case, phase: str, *starts: str) -> dict[str, float]:
    """Its figures for the operators whose names begin so, summed over all layers."""
    ops = [op for op in case[phase]["ops"] if op["name"].startswith(starts)]
    ends = ("classifier", "embeddings", "Emb_AR")
    times = 1 if starts[0] in ends else case["model_dims"]["num_decoder_layers"]
    keys = {
        "flops": ("MFLOP", 1e6),
        "load_weight": ("in_w_MiB", MI),
        "load_act": ("in_a_MiB", MI),
        "store_act": ("out_MiB", MI),
        "seconds": ("latency_ms", 1e-3),
    }
    return {k: times * sum(op[word] * unit for op in ops) for k, (word, unit) in keys.items()}


def check(ledger: Ledger, case: Case) -> None:
    """Every quantity of a case."""
    if not usable(case):
        return
    first, last = reports(case)
    for name, report in (("prefill", first), ("decode", last)):
        phase = report.phases[name]
        for group, our_ops in GROUPS.items():
            if not case["model_dims"]["is_moe"] or group in ("QKV", "Out Proj"):
                _linear(ledger, case, name, phase, group, our_ops)
        if case["model_dims"]["is_moe"]:
            y, x = theirs(case, name, "up+gate", "down"), total(phase, "experts")
            ledger.same(f"{name} experts FLOPs", y["flops"], x["flops"])
        _attention(ledger, case, name, phase)
        _head(ledger, case, name, phase)
        _collectives(ledger, case, name, phase)
    _memory(ledger, case, first)


def _linear(ledger: Ledger, case: Case, name: str, phase: Phase, group: str, our_ops: tuple[str, ...]) -> None:
    i, y, x = case["inputs"], theirs(case, name, group), total(phase, *our_ops)
    size = BITS[i["bits"]] / 8
    ledger.same(f"{name} {group} FLOPs", y["flops"], x["flops"])
    ledger.same(f"{name} {group} weights", y["load_weight"], elements(rows(phase, *our_ops), i["bits"]) * size)
    ledger.same(f"{name} {group} output", y["store_act"], x["store_act"] / 2 * size)
    if i["bits"] != "int4":  # ours has no int4 units to multiply in on that device
        ledger.same(f"{name} {group} input", y["load_act"], x["load_act"])
    if name == "prefill" and (i["bits"] == "bf16" or (i["bits"] != "int4" and _bound(case, name, group) == "Compute")):
        ledger.same(f"{name} {group} seconds", y["seconds"], x["seconds"])
    if name == "decode" and i["bits"] == "bf16" and _bound(case, name, group) == "Memory":
        speed = case["inputs"]["system_dict"]["Memory_BW"] * GI
        near = (x["load_act"] + x["store_act"]) * (1 / ON_CHIP - 1 / speed) / i["system_eff"]
        ledger.explained(f"{name} {group} seconds", y["seconds"], x["seconds"] + near, "activations stay on the chip")


def _bound(case: Case, phase: str, group: str) -> str:
    bound: str = next(op["bound"] for op in case[phase]["ops"] if op["name"] == group)
    return bound


def _attention(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """All pairs of a prompt (ours without FlashAttention); beams share the prompt's queries in its decode."""
    i, x, y = case["inputs"], total(phase, "attention"), theirs(case, name, "Logit", "Attend")
    beams, prompt, answer = i["beam_size"], i["input_tokens"], i["output_tokens"]
    share = (prompt + beams * answer) / (beams * (prompt + answer)) if name == "decode" else 1.0
    for what, a, b in (("FLOPs", y["flops"], x["flops"]), ("cache read", y["load_weight"], x["load_kv_cache"])):
        if share == 1:
            ledger.same(f"{name} attention {what}", a, b)
        else:
            ledger.explained(f"{name} attention {what}", a, b * share, "one query for all beams")


def _head(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    i, x, y = case["inputs"], total(phase, "lm_head"), theirs(case, name, "classifier")
    ledger.same(f"{name} head weights", y["load_weight"], elements(rows(phase, "lm_head")) * BITS[i["bits"]] / 8)
    if name == "prefill":
        ledger.explained("prefill head FLOPs", y["flops"], x["flops"] * i["input_tokens"], "on every prompt token")
    else:
        ledger.same("decode head FLOPs", y["flops"], x["flops"])
        if i["bits"] == "bf16":
            ledger.same("decode head seconds", y["seconds"] - _gather(case), x["seconds"])


def _gather(case: Case) -> float:
    return float(sum(op["latency_ms"] * 1e-3 for op in case["decode"]["ops"] if op["name"] == "classifier_AG"))


def ring(ranks: int, passes: int, latency: float) -> float:
    """What it adds to the bytes on the wire: 5 µs to start, and a hop for each of the others, once or twice around."""
    return START + passes * (ranks - 1) * latency if ranks > 1 else 0.0


def _collectives(ledger: Ledger, case: Case, name: str, phase: Phase) -> None:
    """All-reduces of the layers and the gather of the logits, by the bytes that a rank must send."""
    i, system = case["inputs"], case["inputs"]["system_dict"]
    ranks, speed, latency = i["tensor_parallel"], system["ICN"] * GI, system.get("ICN_LL", 1) * 1e-6
    if ranks == 1 or i["bits"] != "bf16":
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
    i, m, d = case["inputs"], case["model_dims"], case["derived"]
    ledger.same("KV cache", d["kv_MiB_per_chip_genz"] * MI, report.memory.kv_cache_bytes)
    ledger.same(
        "KV cache of the prompt",
        case["prefill"]["summary"]["KV Cache (MB)"] * MI,
        report.phases["prefill"].memory_consumption_kv_cache,
    )
    if i["bits"] == "bf16":
        norms = (2 * m["num_decoder_layers"] + 1) * m["hidden_size"] * 2
        router = m["num_experts"] * m["hidden_size"] * m["num_decoder_layers"] * 2 if m["is_moe"] else 0
        kept = report.memory.weights_bytes - norms - router * (1 - 1 / i["tensor_parallel"])
        why = "no norms; a sharded router" if router else "no norms"
        ledger.explained("weights", d["weights_MiB_per_chip"] * MI, kept, why)


def check_collectives(ledger: Ledger) -> None:
    """Its table of collectives: the bytes of ours, with a ring's hops and 5 µs to start."""
    for row in data("genz")["collectives"]:
        ledger.case = f"{row['system']} {row['N']} × {row['bytes']} B"
        env = {"tp": row["N"], "act_bytes": 2, "tokens": 1, "width": row["bytes"] / 2}
        for word, passes, op in (("AR_ms", 2, all_reduce("op", s.width)), ("AG_ms", 1, all_gather("op", s.width))):
            wire = evaluate(op.work.sent, env) / (row["icn_GB"] * GI)
            time = wire + ring(row["N"], passes, row["icn_lat_us"] * 1e-6)
            ledger.explained(word, row[word] * 1e-3, time, "a ring's hops and 5 µs to start")
