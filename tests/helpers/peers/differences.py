"""What the peers and we say differently on purpose: one concrete case for each row of docs/compared.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from inferometer.inference.report import Phase, Report
from inferometer.specs.catalog import hardware

from . import DOWN, OUT, QKV, UP, case, data, genz, llm_analysis, llm_profiler, llm_viewer, rows, run, total

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
    sums = sample["outputs"]["total_results"]
    yield Difference("LM head, OPs", "lv028 decode", *pair("lv028", "decode", ("lm_head",), ("lm_head",), "flops"))
    yield Difference(
        "weights kept", "lv028", sums["decode"]["memory_consumption_weight"], sampled[0].memory.weights_bytes, "B"
    )
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
        case("llm_viewer", "lv001")["outputs"]["total_results"]["prefill"]["memory_consumption_tmp_act"],
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
    yield Difference(
        "whole prefill", "lv028", sums["prefill"]["inference_time"], sampled[0].phases["prefill"].seconds, "s"
    )


def _profiler() -> Iterator[Difference]:
    def ours(start: str, phase: str, *names: str, field: str = "seconds") -> float:
        return total(llm_profiler.report(case("llm_profiler", start)).phases[phase], *names)[field]

    def theirs(start: str, part: str, word: str) -> float:
        return float(llm_profiler.outputs(case("llm_profiler", start))[part][word])

    def report(start: str, **more: object) -> Report:
        return llm_profiler.report(case("llm_profiler", start), **more)

    mlp = (*UP, *DOWN)
    yield Difference(
        "decode, MLP", "lp000", theirs("lp000", "latency_decode", "decode_mlp"), ours("lp000", "decode", *mlp), "s"
    )
    tp, layers = 8, 80
    yield Difference(
        "decode, attention FLOPs of a layer",
        "lp000",
        theirs("lp000", "decode_flops_per_layer", "attention_kernel"),
        ours("lp000", "decode", "attention", field="flops") * tp / layers,
    )
    yield Difference(
        "decode, attention after a long prompt",
        "lp021",
        theirs("lp021", "latency_decode", "decode_attn_kernel"),
        ours("lp021", "decode", "attention"),
        "s",
    )
    yield Difference(
        "decode, attention in a long answer",
        "lp004",
        theirs("lp004", "latency_decode", "decode_attn_kernel"),
        ours("lp004", "decode", "attention"),
        "s",
    )
    again = sum(theirs("lp004", "latency_decode", w) for w in ("decode_kv_cache_rw", "kv_cache_latency"))
    yield Difference(
        "decode, cache apart from attention", "lp004", again, ours("lp004", "decode", "kv_cache_write"), "s"
    )
    efficiency = {"flops": 0.5, "hbm": 0.5, "intra": 0.3}
    yield Difference(
        "prefill MLP at flops_efficiency 0.5",
        "lp018",
        theirs("lp018", "latency_prefill", "prefill_mlp"),
        total(report("lp018", efficiency=efficiency).phases["prefill"], *mlp)["seconds"],
        "s",
    )
    yield Difference(
        "cache at kv_cache_bytes 1",
        "lp019",
        theirs("lp019", "memory_decode", "kv_cache_memory_per_gpu"),
        report("lp019", kv_cache_dtype="int8").memory.kv_cache_bytes,
        "B",
    )
    yield Difference(
        "weights per GPU",
        "lp000",
        theirs("lp000", "memory_prefill", "weight_memory_per_gpu"),
        report("lp000").memory.weights_bytes,
        "B",
    )
    yield Difference(
        "weights of a mixture",
        "lp011",
        theirs("lp011", "memory_prefill", "weight_memory_per_gpu"),
        report("lp011").memory.weights_bytes,
        "B",
    )
    yield Difference(
        "decode, experts",
        "lp011",
        theirs("lp011", "latency_decode", "decode_mlp"),
        ours("lp011", "decode", "experts"),
        "s",
    )
    yield Difference(
        "cache per GPU, 4 KV heads on 8 GPUs",
        "lp012",
        theirs("lp012", "memory_decode", "kv_cache_memory_per_gpu"),
        report("lp012").memory.kv_cache_bytes,
        "B",
    )
    yield Difference(
        "weights per GPU, TP 4 × PP 2",
        "lp020",
        theirs("lp020", "memory_prefill", "weight_memory_per_gpu"),
        report("lp020", pipeline_parallel_size=2).memory.weights_bytes,
        "B",
    )
    sent = theirs("lp000", "latency_prefill", "prefill_tp_comm") * 600e9 * 0.75
    yield Difference(
        "prefill, sent by a GPU", "lp000", sent, _sent(report("lp000").phases["prefill"], "all_reduce"), "B"
    )
    yield Difference(
        "H100 in 16 bit, FLOP/s",
        "lp002",
        case("llm_profiler", "lp002")["gpu_config"]["peak_fp16_TFLOPS"] * 1e12,
        hardware("h100-sxm").flops["fp16"],
    )
    yield Difference(
        "A100 NVLink, bytes/s one way",
        "lp000",
        case("llm_profiler", "lp000")["gpu_config"]["intra_node_bandwidth_in_GB_per_sec"] * 1e9,
        hardware("a100-sxm-40gb").links["nvlink"].bandwidth,
    )


def _analysis() -> Iterator[Difference]:
    y = case("llm_analysis", "la10")
    o, x = y["outputs"], llm_analysis.report(y)
    prefill, decode = x.phases["prefill"], x.phases["decode"]
    products = (*QKV, *OUT, *UP, *DOWN, "lm_head", "attention")
    yield Difference("decode FLOPs", "la10", o["decode_num_flops_fwd_total"], total(decode, *products)["flops"])
    yield Difference(
        "prefill, LM head",
        "la10",
        o["prefill_latency_fwd_output_embedding_loss"],
        total(prefill, "lm_head")["seconds"],
        "s",
    )
    yield Difference(
        "decode, LM head",
        "la10",
        o["decode_latency_fwd_output_embedding_loss"],
        total(decode, "lm_head")["seconds"],
        "s",
    )
    yield Difference(
        "decode, reading the cache",
        "la10",
        o["kv_cache_latency"],
        total(decode, "attention")["load_kv_cache"] / 1555e9,
        "s",
    )
    yield Difference(
        "decode, embedding",
        "la10",
        o["decode_latency_fwd_input_embedding"],
        total(decode, "embed_tokens")["seconds"],
        "s",
    )
    yield Difference("decode, MLP", "la10", o["decode_latency_fwd_mlp"], total(decode, *UP, *DOWN)["seconds"], "s")
    yield Difference(
        "largest prefill batch",
        "la10",
        o["prefill_max_batch_size_per_gpu"],
        llm_analysis.report(y, attention="flash").memory.max_batch_size_prefill,
    )
    real = run("llama-2-7b", llm_analysis.device(y))
    yield Difference(
        "parameters of Llama-2-7B",
        "la09",
        case("llm_analysis", "la09")["outputs"]["num_params_total"],
        real.model.params,
    )
    four = case("llm_analysis", "la13")
    yield Difference(
        "weights at 4 bit",
        "la13",
        four["outputs"]["weight_memory_per_gpu"],
        llm_analysis.report(four).memory.weights_bytes,
        "B",
    )


def _genz() -> Iterator[Difference]:
    def reports(start: str) -> tuple[Report, Report]:
        return genz.reports(case("genz", start))

    def theirs(start: str, phase: str, *names: str, field: str = "seconds") -> float:
        return genz.theirs(case("genz", start), phase, *names)[field]

    plain, c01 = case("genz", "c00"), reports("c01")
    i = plain["inputs"]
    real = run(
        genz.model(plain),
        genz.device(plain, 1e9),
        input_len=i["input_tokens"] + i["output_tokens"] - 1,
        output_len=2,
        **genz.arguments(plain),
    )
    yield Difference(
        "decode step at 2,039 GB/s", "c00", plain["derived"]["TPOT_ms"] / 1e3, (real.metrics.tpot_ms or 0) / 1e3, "s"
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
    gather = next(op["dims"] for op in case("genz", "c16")["prefill"]["ops"] if op["name"] == "classifier_AG")
    yield Difference(
        "prefill, logits sent by a GPU",
        "c16",
        math.prod(gather) * 2 * 3 / 4,
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
    moe = [op for op in case("genz", "c40")["decode"]["ops"] if op["name"] in ("up+gate", "down") and op["MFLOP"]]
    yield Difference(
        "decode, experts' weights read",
        "c40",
        32 * sum(op["in_w_MiB"] for op in moe) * genz.MI,
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
        case("genz", "c05")["derived"]["weights_MiB_per_chip"] * genz.MI,
        reports("c05")[0].memory.weights_bytes,
        "B",
    )
    stages = case("genz", "c18")
    i = stages["inputs"]
    staged = run(
        genz.model(stages),
        genz.device(stages),
        input_len=i["input_tokens"],
        output_len=i["output_tokens"],
        pipeline_parallel_size=i["pipeline_parallel"],
        **genz.arguments(stages),
    )
    yield Difference(
        "cache per GPU, TP 2 × PP 2",
        "c18",
        stages["derived"]["kv_MiB_per_chip_genz"] * genz.MI,
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
    yield Difference("fewest GPUs for Llama-2-70B", name, data("genz")["features"][name]["min_nodes"], least)
    deep = case("genz", "c46")
    chips = deep["inputs"]["tensor_parallel"] * deep["inputs"]["expert_parallel"]
    kept = sum(op["in_w_MiB"] for op in deep["prefill"]["ops"] if op["name"] in ("up+gate", "down")) * genz.MI
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
