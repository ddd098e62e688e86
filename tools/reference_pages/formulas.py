"""Formulas of the concept pages, between markers: printed from the code where it has them as formulas, else checked.

A formula that the code has only as Python stands here as text, and `checks` evaluates it beside the code it describes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from inferometer.base.symbols import evaluate, text
from inferometer.costs import collectives, host
from inferometer.costs import step as steps
from inferometer.costs.kernels.source import Terms, assumed
from inferometer.inference.memory import kv_bytes_per_token, usable_share
from inferometer.inference.request import build_request
from inferometer.network import blocks
from inferometer.network.graph import Part, Span
from inferometer.specs import catalog
from inferometer.specs.hosts import host as host_of
from inferometer.specs.hosts import hosted_engine

from .markdown import code, table
from .operators import example

MARKER = re.compile(r"(<!-- formulas: ([\w-]+) -->\n).*?(<!-- /formulas -->)", re.S)

LINES: dict[str, dict[str, str]] = {  # name -> what is on the left: what it is equal to
    "operator": {
        "compute": "flops / peak_flops",
        "memory": "bytes / memory_bandwidth",
        "link": "sent / link_bandwidth",
        "latency": "hops·link_latency",
        "roofline": "max(compute, memory, link + latency)",
        "seconds": "calls·fixed + ((compute/flops_share)^p + (memory/hbm_share)^p)^(1/p)",
        "efficiency": "roofline / seconds",
    },
    "step": {
        "kernels": "Σ count·seconds of all operators",
        "planning": "step_floor + step_floor_per_sequence·seqs + step_floor_per_state_group·state_groups",
        "beyond, scheduled ahead": "max(launching + planning - kernels, 0)",
        "beyond, one after the other": "planning + max(launching - kernels, 0)",
        "step": "kernels + step_overhead + beyond + throttling",
    },
    "ttft-tpot": {
        "ttft": "frontend + prefill",
        "frontend, in process": "request_overhead",
        "frontend, http": "request_overhead + http_overhead + token_overhead·batch_size·input_len",
        "prefill": "Σ steps of the prompts; through a pipeline Σ tₖ + (n - 1)·max tₖ",
        "context of the decode step": "input_len + max(output_len - 2, 0)/2",
        "tpot": "decode step at that context; through a pipeline max(Σ tₖ, m·max tₖ)",
        "e2el": "ttft + (output_len - 1)·tpot",
        "output_throughput": "batch_size·output_len / e2el",
        "cost_per_million_output_tokens": "gpus·price_per_hour/3600·e2el / (batch_size·output_len)·1e6",
    },
    "memory": {
        "total": "weights + kv_cache + activations + overhead",
        "kv_cache": "batch_size·kv_bytes_per_token·(input_len + output_len)",
        "usable, share of the device": "share·memory",
        "usable, share for static things": "share·memory + min(aside, (1 - share)·memory)",
        "usable, share of what is free": "share·memory + (1 - share)·min(weights + aside, memory)",
        "kv_capacity": "usable - weights - aside",
        "max_total_tokens": "kv_capacity / kv_bytes_per_token",
    },
    "all-reduce": {
        "hops of a ring": "2·(ranks - 1)",
        "wire of a ring": "2·(ranks - 1)/ranks·size",
        "own of a ring": "size/ranks",
        "seconds": "start + hops·hop·latency + wire/(bandwidth·efficiency) + own/(bandwidth·copy)",
    },
    "moe-routing": {
        "in_use": "top_k + (count - top_k)·(1 - routing_skew)",
        "usable": "in_use·local_experts/count",
        "chosen": "1 - (1 - top_k/in_use)^moe_tokens",
        "touched": "usable·min(chosen + ep_spread·(chosen·(1 - chosen)/usable)^0.5, 1)",
        "weight bytes read": "touched·expert_bytes/moe_tp",
    },
    "prefill-chunks": {
        "total": "batch_size·new",
        "full_steps": "total // budget",
        "rest": "total - full_steps·budget",
        "pairs of a prompt": "new·cached + new·(new + 1)/2",
    },
}
NOTES = {
    "operator": """Seconds come from measured kernels (●) or a surface fitted to them (◐), by shape. The formula for
`seconds` serves where there are none (○); its shares and `fixed` are the [engine's](../reference/engines.md). `p` is
its `smooth`. [Operators](../reference/operators.md) has FLOPs and bytes of each kind.""",
    "step": """`launching` is 0 for a decode step that is replayed as a CUDA graph. Times of the host are the
[engine's](../reference/engines.md).""",
    "ttft-tpot": """`tₖ` is a step's time on pipeline stage k, `n` the steps of the prompts, `m` the micro-batches that
take turns.""",
    "memory": """`aside` is activations and overhead. `share` is `--gpu-memory-utilization`: vLLM takes it of the
device, SGLang for weights and KV cache, TensorRT-LLM of what is free after loading.""",
    "all-reduce": """Every algorithm takes this time with its own hops and bytes, and the fastest is taken: ring, tree,
switch, and the engine's own kernels. `start`, `hop`, `efficiency` and `copy` were fitted by kind of link.""",
    "moe-routing": """`ep_spread` is how many standard deviations the fullest of `ep` ranks lies above the mean.""",
    "prefill-chunks": """`budget` is `max_num_batched_tokens`. Prompts are laid end to end and cut every
`budget` tokens.""",
}


def block(name: str) -> str:
    """What stands between the markers of a name: ``block("step")``"""
    if name == "kv-bytes":
        return _kv_bytes()
    rows = [[code(left), code(right)] for left, right in LINES[name].items()]
    if name == "all-reduce":
        rows.insert(0, [code("bytes that each rank must send"), code(text(example("all_reduce").work.sent))])
    more = _chunk_example() if name == "prefill-chunks" else ""
    return f"\n{table(['quantity', 'formula'], rows)}\n{NOTES[name]}\n{more}\n"


def filled(page: str) -> str:
    """A page with its formulas between the markers: ``filled("<!-- formulas: step -->\\n<!-- /formulas -->")``"""
    return MARKER.sub(lambda marked: f"{marked[1]}{block(marked[2])}{marked[3]}", page)


# ------------------------------------------------------------------ printed from the code


KEPT: dict[str, tuple[str, Callable[[], Part]]] = {
    "grouped-query attention": (
        "Llama, Qwen, Mistral; MHA and MQA are the ends of it",
        lambda: blocks.gqa(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=2),
    ),
    "multi-head latent attention": (
        "DeepSeek, Kimi",
        lambda: blocks.mla(
            hidden_size=8,
            num_attention_heads=4,
            q_lora_rank=4,
            kv_lora_rank=4,
            qk_nope_head_dim=2,
            qk_rope_head_dim=2,
            v_head_dim=2,
        ),
    ),
    "Mamba-2": (
        "Nemotron-H, Granite 4",
        lambda: blocks.mamba2(
            hidden_size=8, mamba_num_heads=4, mamba_head_dim=4, n_groups=1, ssm_state_size=4, conv_kernel=4
        ),
    ),
    "gated delta net": (
        "Qwen3-Next",
        lambda: blocks.delta_net(
            hidden_size=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=4,
            linear_value_head_dim=4,
            linear_conv_kernel_dim=4,
        ),
    ),
}
SPANS = {
    "full": ("n / ratio", Span()),
    "window": ("min(n, size)", Span("window", 4096)),
    "chunk": ("min(n, size)", Span("chunk", 8192)),
    "top_k": ("n / ratio", Span("top_k", 2048)),
}
SHOWN = ("llama-2-7b", "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gemma-3-27b")


def _kv_bytes() -> str:
    rows = []
    for label, (who, build) in KEPT.items():
        caches = [op.cache for op in build().ops if op.cache is not None]
        token = " + ".join(t for c in caches if (t := text(c.per_token)) != "0") or "0"
        sequence = " + ".join(t for c in caches if (t := text(c.per_sequence)) != "0") or "0"
        rows.append([label, code(token), code(sequence), who])
    spans = [[code(kind), code(formula)] for kind, (formula, _) in SPANS.items()]
    models = []
    for name in SHOWN:
        each = float(kv_bytes_per_token(build_request(name, "h200").bind()))
        models.append([code(name), f"{each:,.0f}"])
    head = ["bytes per layer and GPU", "for each cached token", "for each sequence", "models"]
    return (
        f"\n{table(head, rows)}\nA sequence of `n` tokens keeps so many entries of a layer:\n\n"
        f"{table(['span', 'entries'], spans)}\nBytes that one more token takes in all layers, at tp 1 and in "
        "the model's own format:\n\n"
        f"{table(['model', 'bytes per token'], models, numbers=['bytes per token'])}\n"
    )


def _chunk_example() -> str:
    rows = []
    for step, often in steps.prefill(3, 1000, budget=2048):
        groups = [f"{g.seqs:g} × {g.new:g} after {g.cached:g}" for g in step.groups if g.seqs]
        rows.append([f"{often:g}", f"{step.sums({'': Span()})['tokens']:,.0f}", "; ".join(groups)])
    head = ["times", "tokens", "sequences × new tokens after cached ones"]
    return f"\nThree prompts of 1,000 tokens with a budget of 2,048:\n\n{table(head, rows, numbers=head[:2])}"


# ------------------------------------------------------------------ checked against the code


class Check(NamedTuple):
    """One formula beside the code that it describes."""

    name: str
    by_text: float
    by_code: float


def value(formula: str, names: Mapping[str, Any]) -> float:
    """``value("2·(ranks - 1)", {"ranks": 8})  # 14``"""
    source = formula.replace("·", "*").replace("^", "**")
    return float(eval(source, {"__builtins__": {}, "max": max, "min": min}, dict(names)))


def checks() -> Iterator[Check]:
    """Every formula of `LINES` that can be evaluated, with numbers of a real plan."""
    yield from _operator_checks()
    yield from _step_checks()
    yield from _report_checks()
    yield from _collective_checks()
    yield from _moe_checks()
    for kind, (formula, span) in SPANS.items():
        names = {"n": 10_000, "size": span.size, "ratio": span.ratio}
        yield Check(f"kv-bytes {kind}", value(formula, names), float(steps.cache_entries(span, 10_000)))
    prefill = LINES["prefill-chunks"]
    sums = [(s.sums({"": Span()}), often) for s, often in steps.prefill(3, 1000, budget=2048)]
    names = {"batch_size": 3, "new": 1000, "cached": 0, "budget": 2048}
    names |= {"total": value(prefill["total"], names)}
    yield Check("prefill total", names["total"], sum(one["tokens"] * often for one, often in sums))
    names |= {"full_steps": value(prefill["full_steps"], names)}
    yield Check("prefill rest", value(prefill["rest"], names), sums[-1][0]["tokens"])
    pairs = sum(one["prefill_qk"] * often for one, often in sums)
    yield Check("prefill pairs", 3 * value(prefill["pairs of a prompt"], names), pairs)


def _operator_checks() -> Iterator[Check]:
    lines, engine = LINES["operator"], catalog.engine("vllm")
    op, kernel = example("norm"), engine.kernels["norm"]
    names = {"flops": 4e9, "bytes": 3e8, "peak_flops": 1e14, "memory_bandwidth": 4e12, "sent": 0.0, "hops": 0}
    names |= {"link_bandwidth": 1.0, "link_latency": 0.0, "calls": op.calls, "fixed": kernel.fixed, "p": engine.smooth}
    names |= {"flops_share": kernel.flops, "hbm_share": kernel.hbm}
    for left in ("compute", "memory", "link", "latency", "roofline"):
        names[left] = value(lines[left], names)
    terms = Terms(names["compute"], names["memory"], names["link"], names["latency"])
    yield Check("operator roofline", names["roofline"], float(terms.roofline))
    yield Check("operator seconds", value(lines["seconds"], names), float(assumed(engine).answer(op, dict, terms)))


def _step_checks() -> Iterator[Check]:
    lines = LINES["step"]
    request = build_request("llama-3.1-8b", "h200")
    engine = hosted_engine(request.engine, host_of())
    sums = {"prefill_tokens": 4000.0, "tokens": 4000.0, "decode_tokens": 0.0, "seqs": 4.0, "throttle": 0.0}
    launches, kernels = host.Launches(0.02, 0.01), 0.015
    names = {"launching": 0.03, "kernels": kernels, "seqs": 4.0, "state_groups": 0, "throttling": 0.0}
    names |= {f: getattr(engine, f) for f in ("step_floor", "step_floor_per_sequence", "step_floor_per_state_group")}
    names |= {"planning": value(lines["planning"], names), "step_overhead": engine.step_overhead}
    for ahead, line in ((True, "beyond, scheduled ahead"), (False, "beyond, one after the other")):
        took = host.host_seconds(request.model, replace(engine, async_scheduling=ahead), sums, kernels, launches)
        names["beyond"] = value(lines[line], names)
        yield Check(f"step {line}", value(lines["step"], names), kernels + float(took))


def _report_checks() -> Iterator[Check]:
    from inferometer import analyze

    report = analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128)
    metrics, held, engine = report.metrics, report.memory, catalog.engine("vllm")
    names: dict[str, Any] = {"batch_size": 8, "input_len": 1024, "output_len": 128, "gpus": 1}
    names |= {"prefill": report.phases["prefill"].seconds * 1e3, "price_per_hour": report.device["price_per_hour"]}
    names |= {"request_overhead": engine.request_overhead * 1e3, "tpot": metrics.tpot_ms}
    lines = LINES["ttft-tpot"]
    names["frontend"] = value(lines["frontend, in process"], names)
    names["ttft"] = value(lines["ttft"], names)
    yield Check("ttft", names["ttft"], metrics.ttft_ms or 0)
    names["e2el"] = value(lines["e2el"], names)
    yield Check("e2el", names["e2el"], metrics.e2el_ms or 0)
    names["e2el"] /= 1e3
    for left in ("output_throughput", "cost_per_million_output_tokens"):
        yield Check(left, value(lines[left], names), getattr(metrics, left))
    lines = LINES["memory"]
    names |= {"weights": held.weights_bytes, "activations": held.activation_bytes, "overhead": held.overhead_bytes}
    names |= {"kv_bytes_per_token": held.kv_bytes_per_token, "memory": held.capacity_bytes, "share": 0.92}
    names |= {"aside": held.activation_bytes + held.overhead_bytes, "kv_cache": value(lines["kv_cache"], names)}
    yield Check("kv_cache", names["kv_cache"], held.kv_cache_bytes)
    yield Check("total", value(lines["total"], names), held.total_bytes)
    for engine_name, what in (
        ("vllm", "of the device"),
        ("sglang", "for static things"),
        ("trtllm", "of what is free"),
    ):
        share = usable_share(catalog.engine(engine_name), names["memory"], 0.92, names["weights"], names["aside"])
        yield Check(f"usable {what}", value(lines[f"usable, share {what}"], names), float(share))
    names["usable"] = held.usable_bytes
    names["kv_capacity"] = value(lines["kv_capacity"], names)
    yield Check("kv_capacity", names["kv_capacity"], held.kv_capacity_bytes)
    yield Check(
        "max_total_tokens", math.floor(value(lines["max_total_tokens"], names) / 16), held.max_total_tokens // 16
    )


def _collective_checks() -> Iterator[Check]:
    lines, device = LINES["all-reduce"], catalog.hardware("h200")
    link, style = device.links["nvlink"], collectives.style("nvlink", device.architecture)
    names: dict[str, Any] = {"ranks": 4, "size": 2.0**16, "latency": link.latency, "bandwidth": link.bandwidth}
    for short in ("hops", "wire", "own"):
        names[short] = value(lines[f"{short} of a ring"], names)
    rings = []
    for protocol in collectives.constants().styles[style].ring.values():
        more = {key: getattr(protocol, key) for key in ("start", "hop", "efficiency")}
        rings.append(value(lines["seconds"], {**names, **more, "copy": protocol.copy or math.inf}))
    took = collectives.seconds("all_reduce", names["size"], 4, link=link, style=style)
    yield Check("all-reduce", min(rings), float(took))


def _moe_checks() -> Iterator[Check]:
    lines = LINES["moe-routing"]
    names: dict[str, float] = {"top_k": 8, "count": 128, "routing_skew": 0.3, "local_experts": 16, "moe_tokens": 6}
    names |= {"ep_spread": 1.4, "moe_tp": 1, "expert_bytes": 3 * 64 * 32 * 2}
    for left in ("in_use", "usable", "chosen", "touched"):
        names[left] = value(lines[left], names)
    env = {**names, "hidden": 64, "intermediate": 32, "ep": 8, "experts_weight_bytes": 2, "act_bytes": 2}
    took = evaluate(example("moe").work.weights, env)
    yield Check("moe-routing", value(lines["weight bytes read"], names), float(took))
