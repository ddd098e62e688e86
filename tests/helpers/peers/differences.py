"""What the peers and we say differently on purpose: one concrete case for each row of docs/compared.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from inferometer.inference.report import Phase, Report
from inferometer.specs.catalog import hardware

from . import DOWN, OUT, QKV, UP, case, figures, genz, llm_analysis, llm_profiler, llm_viewer, rows, run, total

NORMS = ("input_layernorm", "post_attention_layernorm")


class Difference(NamedTuple):
    """A row: what differs, in which case, and both figures (SI)."""

    what: str
    case: str
    theirs: float
    ours: float
    unit: str = ""

    @property
    def row(self) -> str:
        """The row without its reason, as the page has it: ``| what | case | theirs | ours | ours ÷ theirs |``"""
        ratio = f"{self.ours / self.theirs:.4g}" if self.theirs else "–"
        return f"| {self.what} | {self.case} | {self._shown(self.theirs)} | {self._shown(self.ours)} | {ratio} |"

    def _shown(self, value: float) -> str:
        if self.unit == "s":
            for scale, word in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
                if value >= scale:
                    return f"{value / scale:.4g} {word}"
            return "0 s" if value == 0 else f"{value * 1e9:.4g} ns"
        text = f"{value:,.0f}" if value < 1e14 else f"{value:.5g}"
        return f"{text} {self.unit}".strip()


def _sent(phase: Phase, *names: str) -> float:
    return sum(op.sent for op in rows(phase, *names))


def _viewer() -> Iterator[Difference]:
    def pair(
        start: str, phase: str, others: tuple[str, ...], our_ops: tuple[str, ...], field: str
    ) -> tuple[float, float]:
        y = case("llm_viewer", start)
        x = llm_viewer.reports(y)[0 if phase == "prefill" else 1]
        assert x is not None
        return llm_viewer.theirs(y, phase, *others)[field], total(x.phases[phase], *our_ops)[field]

    attention = ("fused_attention",), ("attention",)
    sample, sampled = case("llm_viewer", "lv028"), llm_viewer.reports(case("llm_viewer", "lv028"))
    sums = sample.figures
    yield Difference("LM head, OPs", "lv028 decode", *pair("lv028", "decode", ("lm_head",), ("lm_head",), "flops"))
    yield Difference("weights kept", "lv028", sums["decode_weights_bytes"], sampled[0].memory.weights_bytes, "B")
    yield Difference(
        "LM head, logits written",
        "lv002 decode",
        *pair("lv002", "decode", ("lm_head",), ("lm_head",), "store_act"),
        "B",
    )
    yield Difference(
        "LM head weights at 4 bit",
        "lv009 decode",
        *pair("lv009", "decode", ("lm_head",), ("lm_head",), "load_weight"),
        "B",
    )
    yield Difference(
        "4-bit weights of down_proj", "lv009 decode", *pair("lv009", "decode", ("down_proj",), DOWN, "load_weight"), "B"
    )
    yield Difference(
        "8-bit down_proj, output", "lv010 prefill", *pair("lv010", "prefill", ("down_proj",), DOWN, "store_act"), "B"
    )
    yield Difference(
        "input of q, k and v",
        "lv001 prefill",
        *pair("lv001", "prefill", ("q_proj", "k_proj", "v_proj"), QKV, "load_act"),
        "B",
    )
    yield Difference(
        "MLP activation, input", "lv001 prefill", *pair("lv001", "prefill", ("mlp_act",), ("act_fn",), "load_act"), "B"
    )
    yield Difference(
        "norm weights read",
        "lv001 decode",
        *pair("lv001", "decode", ("attn_norm", "mlp_norm"), NORMS, "load_weight"),
        "B",
    )
    yield Difference("FlashAttention, OPs", "lv014 prefill", *pair("lv014", "prefill", *attention, "flops"))
    yield Difference("FlashAttention, output", "lv014 prefill", *pair("lv014", "prefill", *attention, "store_act"), "B")
    yield Difference(
        "FlashAttention, K and V read", "lv014 prefill", *pair("lv014", "prefill", *attention, "load_kv_cache"), "B"
    )
    yield Difference(
        "FlashAttention with grouped heads, K and V read",
        "lv022 decode",
        *pair("lv022", "decode", *attention, "load_kv_cache"),
        "B",
    )
    yield Difference(
        "query read with grouped heads",
        "lv017 prefill",
        *pair("lv017", "prefill", ("qk_matmul", "softmax", "sv_matmul"), ("attention",), "load_act"),
        "B",
    )
    yield Difference(
        "OPT's first MLP product, OPs",
        "lv000 prefill",
        *pair("lv000", "prefill", ("gate_proj", "up_proj"), UP, "flops"),
    )
    yield Difference(
        "DiT's first MLP product, OPs", "lv032", *pair("lv032", "prefill", ("gate_proj", "up_proj"), UP, "flops")
    )
    yield Difference(
        "temporary memory",
        "lv001 prefill",
        case("llm_viewer", "lv001").figures["prefill_activation_bytes"],
        llm_viewer.reports(case("llm_viewer", "lv001"))[0].phases["prefill"].memory_consumption_tmp_act,
        "B",
    )
    yield Difference(
        "TP 8: K and V read per GPU",
        "lv040 decode",
        *pair("lv040", "decode", ("qk_matmul", "sv_matmul"), ("attention",), "load_kv_cache"),
        "B",
    )
    wide = llm_viewer.reports(case("llm_viewer", "lv040"))[0].phases["prefill"]
    yield Difference("TP 8: sent by a GPU", "lv040 prefill", 0.0, _sent(wide, "all_reduce", "all_gather"), "B")
    yield Difference("whole prefill", "lv028", sums["prefill_seconds"], sampled[0].phases["prefill"].seconds, "s")


def _profiler() -> Iterator[Difference]:
    def ours(start: str, phase: str, *names: str, field: str = "seconds") -> float:
        return total(llm_profiler.report(case("llm_profiler", start)).phases[phase], *names)[field]

    def theirs(start: str, figure: str) -> float:
        return case("llm_profiler", start).figures[figure]

    def report(start: str, **more: object) -> Report:
        return llm_profiler.report(case("llm_profiler", start), **more)

    mlp = (*UP, *DOWN)
    yield Difference("decode, MLP", "lp000", theirs("lp000", "decode_mlp_seconds"), ours("lp000", "decode", *mlp), "s")
    tp, layers = 8, 80
    yield Difference(
        "decode, attention FLOPs of a layer",
        "lp000",
        theirs("lp000", "decode_layer_attention_flops"),
        ours("lp000", "decode", "attention", field="flops") * tp / layers,
    )
    yield Difference(
        "decode, attention after a long prompt",
        "lp021",
        theirs("lp021", "decode_attention_seconds"),
        ours("lp021", "decode", "attention"),
        "s",
    )
    yield Difference(
        "decode, attention in a long answer",
        "lp004",
        theirs("lp004", "decode_attention_seconds"),
        ours("lp004", "decode", "attention"),
        "s",
    )
    again = theirs("lp004", "decode_kv_cache_seconds") + theirs("lp004", "prompt_kv_cache_seconds")
    yield Difference(
        "decode, cache apart from attention", "lp004", again, ours("lp004", "decode", "kv_cache_write"), "s"
    )
    efficiency = {"flops": 0.5, "hbm": 0.5, "intra": 0.3}
    yield Difference(
        "prefill MLP at flops_efficiency 0.5",
        "lp018",
        theirs("lp018", "prefill_mlp_seconds"),
        total(report("lp018", efficiency=efficiency).phases["prefill"], *mlp)["seconds"],
        "s",
    )
    yield Difference(
        "cache at kv_cache_bytes 1",
        "lp019",
        theirs("lp019", "kv_cache_bytes"),
        report("lp019", kv_cache_dtype="int8").memory.kv_cache_bytes,
        "B",
    )
    yield Difference(
        "weights per GPU",
        "lp000",
        theirs("lp000", "weights_bytes"),
        report("lp000").memory.weights_bytes,
        "B",
    )
    yield Difference(
        "weights of a mixture",
        "lp011",
        theirs("lp011", "weights_bytes"),
        report("lp011").memory.weights_bytes,
        "B",
    )
    yield Difference(
        "decode, experts",
        "lp011",
        theirs("lp011", "decode_mlp_seconds"),
        ours("lp011", "decode", "experts"),
        "s",
    )
    yield Difference(
        "cache per GPU, 4 KV heads on 8 GPUs",
        "lp012",
        theirs("lp012", "kv_cache_bytes"),
        report("lp012").memory.kv_cache_bytes,
        "B",
    )
    yield Difference(
        "weights per GPU, TP 4 × PP 2",
        "lp020",
        theirs("lp020", "weights_bytes"),
        report("lp020", pipeline_parallel_size=2).memory.weights_bytes,
        "B",
    )
    sent = theirs("lp000", "prefill_all_reduce_seconds") * 600e9 * 0.75
    yield Difference(
        "prefill, sent by a GPU", "lp000", sent, _sent(report("lp000").phases["prefill"], "all_reduce"), "B"
    )
    yield Difference(
        "H100 in 16 bit, FLOP/s",
        "lp002",
        case("llm_profiler", "lp002").device["flops_fp16"],
        hardware("h100-sxm").flops["fp16"],
    )
    yield Difference(
        "A100 NVLink, bytes/s one way",
        "lp000",
        case("llm_profiler", "lp000").device["link_bandwidth"],
        hardware("a100-sxm-40gb").links["nvlink"].bandwidth,
    )


def _analysis() -> Iterator[Difference]:
    y = case("llm_analysis", "la10")
    o, x = y.figures, llm_analysis.report(y)
    prefill, decode = x.phases["prefill"], x.phases["decode"]
    products = (*QKV, *OUT, *UP, *DOWN, "lm_head", "attention")
    yield Difference("decode FLOPs", "la10", o["decode_flops"], total(decode, *products)["flops"])
    yield Difference(
        "prefill, LM head",
        "la10",
        o["prefill_head_seconds"],
        total(prefill, "lm_head")["seconds"],
        "s",
    )
    yield Difference(
        "decode, LM head",
        "la10",
        o["decode_head_seconds"],
        total(decode, "lm_head")["seconds"],
        "s",
    )
    yield Difference(
        "decode, reading the cache",
        "la10",
        o["decode_kv_cache_seconds"],
        total(decode, "attention")["load_kv_cache"] / 1555e9,
        "s",
    )
    yield Difference(
        "decode, embedding",
        "la10",
        o["decode_embedding_seconds"],
        total(decode, "embed_tokens")["seconds"],
        "s",
    )
    yield Difference("decode, MLP", "la10", o["decode_mlp_seconds"], total(decode, *UP, *DOWN)["seconds"], "s")
    yield Difference(
        "largest prefill batch",
        "la10",
        o["prefill_max_batch_size"],
        llm_analysis.report(y, attention="flash").memory.max_batch_size_prefill,
    )
    real = run("llama-2-7b", llm_analysis.device(y))
    yield Difference(
        "parameters of Llama-2-7B",
        "la09",
        case("llm_analysis", "la09").figures["params"],
        real.model.params,
    )
    four = case("llm_analysis", "la13")
    yield Difference(
        "weights at 4 bit",
        "la13",
        four.figures["weights_bytes"],
        llm_analysis.report(four).memory.weights_bytes,
        "B",
    )


def _genz() -> Iterator[Difference]:
    def reports(start: str) -> tuple[Report, Report]:
        return genz.reports(case("genz", start))

    def theirs(start: str, phase: str, *names: str, field: str = "seconds") -> float:
        return genz.theirs(case("genz", start), phase, *names)[field]

    plain, c01 = case("genz", "c00"), reports("c01")
    i = plain.plan
    real = run(
        genz.model(plain),
        genz.device(plain, 1.0),
        input_len=i["input_len"] + i["output_len"] - 1,
        output_len=2,
        **genz.arguments(plain),
    )
    yield Difference(
        "decode step at 2,039 GB/s", "c00", plain.figures["tpot_seconds"], (real.metrics.tpot_ms or 0) / 1e3, "s"
    )
    flash = run(
        genz.model(case("genz", "c01")),
        genz.device(case("genz", "c01")),
        input_len=1024,
        **{**genz.arguments(case("genz", "c01")), "attention": "flash"},
    )
    yield Difference(
        "prefill, attention FLOPs",
        "c01",
        theirs("c01", "prefill", "Logit", "Attend", field="flops"),
        total(flash.phases["prefill"], "attention")["flops"],
    )
    yield Difference(
        "prefill, LM head",
        "c01",
        theirs("c01", "prefill", "classifier"),
        total(c01[0].phases["prefill"], "lm_head")["seconds"],
        "s",
    )
    yield Difference(
        "prefill, embedding",
        "c01",
        theirs("c01", "prefill", "embeddings"),
        total(c01[0].phases["prefill"], "embed_tokens")["seconds"],
        "s",
    )
    yield Difference(
        "prefill, logits sent by a GPU",
        "c16",
        case("genz", "c16").figures["prefill_logits"] * 2 * 3 / 4,
        _sent(reports("c16")[0].phases["prefill"], "all_gather"),
        "B",
    )
    yield Difference(
        "decode, QKV product",
        "c03",
        theirs("c03", "decode", "QKV"),
        total(reports("c03")[1].phases["decode"], *QKV)["seconds"],
        "s",
    )
    moe = [op for op in case("genz", "c40").operators["decode"] if op.name in ("up+gate", "down") and op.flops]
    yield Difference(
        "decode, experts' weights read",
        "c40",
        32 * sum(op.load_weight for op in moe),
        total(reports("c40")[1].phases["decode"], "experts")["load_weight"],
        "B",
    )
    yield Difference(
        "decode, attention FLOPs of 4 beams",
        "c06",
        theirs("c06", "decode", "Logit", "Attend", field="flops"),
        total(reports("c06")[1].phases["decode"], "attention")["flops"],
    )
    yield Difference(
        "weights at 4 bit",
        "c05",
        case("genz", "c05").figures["weights_bytes"],
        reports("c05")[0].memory.weights_bytes,
        "B",
    )
    stages = case("genz", "c18")
    i = stages.plan
    staged = run(
        genz.model(stages),
        genz.device(stages),
        input_len=i["input_len"],
        output_len=i["output_len"],
        pipeline_parallel_size=i["pipeline_parallel_size"],
        **genz.arguments(stages),
    )
    yield Difference(
        "cache per GPU, TP 2 × PP 2",
        "c18",
        stages.figures["kv_cache_bytes"],
        staged.memory.kv_cache_bytes,
        "B",
    )
    name = "platform_size[llama2_70b,A100_80GB_GPU,b8]"
    least = next(
        tp
        for tp in (1, 2, 4, 8)
        if run(
            "llama2_70b", "A100_80GB_GPU", batch_size=8, input_len=2000, output_len=256, tensor_parallel_size=tp
        ).feasible
    )
    yield Difference("fewest GPUs for Llama-2-70B", name, figures("genz")[name]["num_gpus"], least)
    deep = case("genz", "c46")
    chips = deep.plan["tensor_parallel_size"] * deep.plan["expert_parallel_size"]
    kept = sum(op.load_weight for op in deep.operators["prefill"] if op.name in ("up+gate", "down"))
    experts = rows(run("deepseek-v3", "h200").phases["prefill"], "experts")
    yield Difference(
        "parameters of DeepSeek-V3's experts",
        "c46",
        kept * chips * 61,
        sum(math.prod(op.shape["weight"]) * op.count for op in experts),
    )


TOOLS: dict[str, Callable[[], Iterator[Difference]]] = {
    "llm_viewer": _viewer,
    "llm_profiler": _profiler,
    "llm_analysis": _analysis,
    "genz": _genz,
}
