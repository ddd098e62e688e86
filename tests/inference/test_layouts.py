"""Layouts, memory and origins that were once wrong: each test is a plan whose figures a person worked out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran

import inferometer
from inferometer.base import symbols
from inferometer.base.cache import cache_by_identity
from inferometer.base.symbols import evaluate
from inferometer.costs import collectives, parallelism
from inferometer.costs.binding import BoundPlan, bind, stage_plans, step_env, step_rows
from inferometer.costs.step import Group, Step
from inferometer.inference import advice, latency
from inferometer.inference.request import build_request
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Engine, Plan, Speculation

Run = Callable[..., Ran]
PREFILL = Step((Group(4, 1024, 0),))


def bound_plan(
    name: str, gpu: str = "h200", engine: str = "vllm", efficiency: dict[str, float] | None = None, **plan: Any
) -> BoundPlan:
    return bind(
        families.build(catalog.model(name).config),
        catalog.hardware(gpu),
        catalog.engine(engine),
        Plan(**plan),
        efficiency=efficiency,
    )


def origins(report: inferometer.Report, name: str) -> set[str]:
    return {op.origin for phase in report.phases.values() for op in phase.ops if op.name == name and op.seconds > 0}


# ------------------------------------------------------------------ pipelines


def test_stages_launch_their_own_layers_only() -> None:
    waits = [
        (
            inferometer.analyze(
                "llama-3.1-70b", gpu="h100-sxm", tensor_parallel_size=2, pipeline_parallel_size=pp, input_len=64
            ).metrics.ttft_ms
            or 0.0
        )
        - 2.1 * pp
        for pp in (2, 4, 8)
    ]
    assert all(23 < wait < 30 for wait in waits), waits  # 80 launches of 0.25 ms however they are cut
    model = bound_plan("llama-3.1-70b").model
    assert [part.num_layers for part in parallelism.pipeline_stages(model, 3)] == [
        27,
        27,
        26,
    ] and model.num_layers == 80


def test_a_stage_names_its_own_layers(run: Run) -> None:
    names = [b.name for part in parallelism.pipeline_stages(bound_plan("llama-3.1-8b").model, 2) for b in part.blocks]
    assert "layers.0-15" in names and "layers.16-31" in names and "layers.0-31" not in names
    told = run("analyze", "llama-3.1-8b", "-pp", "2", "--explain", "qkv_proj")
    assert told.code == 0 and "layers.0-15" in told.out and "16 ×" in told.out


def test_stages_are_cut_once() -> None:
    one = bound_plan("llama-3.1-8b", pipeline_parallel_size=4)
    assert all(a.model is b.model for a, b in zip(stage_plans(one), stage_plans(one), strict=True))


# ------------------------------------------------------------------ nodes


def test_smaller_nodes_have_the_network_between() -> None:
    near = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8)
    far = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8, gpus_per_node=4, nodes=2)
    assert near.plan["placement"]["tp"] == "8 ranks on nvlink"
    assert far.plan["placement"]["tp"] == "8 ranks on nvlink, 4 a node, network between"
    assert (far.metrics.tpot_ms or 0) > 1.1 * (near.metrics.tpot_ms or 0)


@pytest.mark.parametrize(
    ("gpu", "per_node", "tp", "together"),
    [
        ("h200", 8, 16, 8),
        ("h200", 4, 8, 4),
        ("h200", 16, 16, 16),
        ("gb200", 4, 16, 16),  # boxes of 4 share one NVLink domain of 72
        ("gb200", 2, 16, 2),
        ("gb200", 72, 144, 72),
        ("a10", 4, 8, 4),  # PCIe does not leave the box, however many devices it can join
    ],
)
def test_the_domain_of_a_link(gpu: str, per_node: int, tp: int, together: int) -> None:
    plan = Plan(tensor_parallel_size=tp, gpus_per_node=per_node, nodes=-(-tp // per_node))
    assert parallelism.places(plan, catalog.hardware(gpu))["tp"].per_node == together


def test_inter_efficiency_is_for_axes_that_span_nodes() -> None:
    def seconds(axis: str, factors: dict[str, float], **plan: Any) -> float:
        s = bound_plan("qwen3-30b-a3b", efficiency=factors, **plan)
        return float(sum(r.seconds for st in stage_plans(s) for r in step_rows(st, PREFILL) if r.op.axis == axis))

    one = {"intra": 1.0, "inter": 1.0}
    for axis, plan, wide in (
        ("tp", {"tensor_parallel_size": 4}, False),
        ("tp", {"tensor_parallel_size": 4, "gpus_per_node": 2, "nodes": 2}, True),
        ("ep", {"data_parallel_size": 8, "enable_expert_parallel": True}, False),
        ("ep", {"data_parallel_size": 16, "enable_expert_parallel": True, "nodes": 2}, True),
        ("pp", {"pipeline_parallel_size": 2}, False),
        ("pp", {"pipeline_parallel_size": 2, "gpus_per_node": 1, "nodes": 2}, True),
    ):
        base = seconds(axis, one, **plan)
        assert (seconds(axis, {**one, "inter": 0.5}, **plan) > 1.5 * base) is wide, (axis, plan)
        assert (seconds(axis, {**one, "intra": 0.5}, **plan) > 1.5 * base) is not wide, (axis, plan)


# ------------------------------------------------------------------ memory


def test_activations_are_those_of_the_largest_step() -> None:
    eager = inferometer.analyze("llama-3.1-8b", attention="eager", input_len=32768)
    scores = 32 * 8192 * 32768 * 2  # the last 8,192 queries over all keys, heads and bytes
    assert scores < eager.memory.activation_bytes < 1.05 * scores
    assert eager.memory.activation_bytes == eager.phases["prefill"].memory_consumption_tmp_act
    flash = inferometer.analyze("llama-3.1-8b", input_len=32768)
    assert flash.memory.activation_bytes < 1e9


def test_expanded_latents_are_activations_too() -> None:
    r = inferometer.analyze(
        "deepseek-v3", gpu="h200", data_parallel_size=8, enable_expert_parallel=True, input_len=130000
    )
    expanded = 130000 * 128 * (128 + 128) * 2
    assert r.memory.activation_bytes > expanded
    assert r.memory.activation_bytes >= r.phases["prefill"].memory_consumption_tmp_act > expanded


def test_a_vision_tower_needs_its_own_memory() -> None:
    r = inferometer.analyze("qwen2.5-vl-7b", images="20x2016x2016")
    wide = 20 * (2016 // 14) ** 2 * 2 * 3420 * 2  # gate and up of all patches
    assert r.memory.activation_bytes > wide
    assert r.phases["prefill"].memory_consumption_tmp_act == r.memory.activation_bytes


def test_the_largest_batch_counts_what_grows_with_it(run: Run) -> None:
    words = ("qwen2.5-vl-7b", "--images", "2x2016x2016", "--input-len", "64", "--json")
    most = run("analyze", *words).json["memory"]["max_batch_size"]
    assert most > 1
    assert run("analyze", *words, "--batch-size", str(most)).code == 0
    assert run("analyze", *words, "--batch-size", str(most + 1)).code == 1


@pytest.mark.parametrize("name", ["mamba-2.8b", "mamba2-2.7b"])
def test_a_model_without_kv_cache_has_no_room_in_tokens(run: Run, name: str) -> None:
    held = inferometer.analyze(name).memory
    assert held.kv_bytes_per_token == 0 and held.max_total_tokens is None and held.max_batch_size > 1
    assert "tokens of KV cache" not in run("analyze", name).out


def test_offloading_takes_the_weights_first_and_then_the_cache() -> None:
    plan: dict[str, Any] = {"gpu": "h200", "batch_size": 64, "engine": "roofline"}
    plain = inferometer.analyze("llama-3.1-8b", **plan)
    weights = inferometer.analyze("llama-3.1-8b", **plan, cpu_offload_gb=plain.memory.weights_bytes / 1e9)
    both = inferometer.analyze("llama-3.1-8b", **plan, cpu_offload_gb=plain.memory.weights_bytes / 1e9 + 4)
    assert weights.memory.weights_bytes == pytest.approx(0, abs=1)
    assert weights.memory.kv_cache_bytes == plain.memory.kv_cache_bytes
    assert plain.memory.kv_cache_bytes - both.memory.kv_cache_bytes == pytest.approx(4e9)
    assert both.memory.max_batch_size > weights.memory.max_batch_size
    sent = [sum(op.sent for op in r.phases["decode"].ops if op.name == "host_copy") for r in (weights, both)]
    share = 4e9 / plain.memory.kv_cache_bytes
    assert sent[1] - sent[0] == pytest.approx(share * plain.phases["decode"].load_kv_cache)
    assert (both.metrics.tpot_ms or 0) > (weights.metrics.tpot_ms or 0)


# ------------------------------------------------------------------ origins


@pytest.mark.parametrize(
    ("words", "origin"),
    [
        ({"gpu": "h200"}, "fitted"),
        ({"gpu": "l40s"}, "fitted"),
        ({"gpu": "mi300x"}, "assumed"),
        ({"gpu": "v100-sxm-32gb", "dtype": "fp16"}, "assumed"),
        ({"gpu": "h200", "engine": "sglang"}, "assumed"),
        ({"gpu": "h200", "engine": "trtllm"}, "fitted"),
        ({"gpu": "b200", "engine": "trtllm"}, "assumed"),
        ({"gpu": "h200", "gpus_per_node": 2, "nodes": 2}, "assumed"),
    ],
)
def test_collectives_say_what_nobody_measured(words: dict[str, Any], origin: str) -> None:
    found = inferometer.analyze("llama-3.1-8b", tensor_parallel_size=4, output_len=2, **words)
    assert origins(found, "all_reduce") == {origin}


def test_an_assumed_collective_is_explained_as_one(run: Run) -> None:
    told = run("analyze", "llama-3.1-8b", "--gpu", "mi300x", "-tp", "4", "--explain", "all_reduce").out
    assert "○ assumed" in told and "xgmi (direct)" in told and "rounded from the three NVLink styles" in told
    assert collectives.origin("all_gather", "nvlink", "hopper", "sglang") == "fitted"  # NCCL's, whoever calls it
    assert collectives.origin("all_reduce", "something-new") == "assumed"


# ------------------------------------------------------------------ what would make it fit


def test_more_nodes_are_proposed() -> None:
    reason = inferometer.analyze("llama-3.1-405b", gpu="h100-sxm").reason or ""
    assert "-tp 16 (2 nodes)" in reason and "-pp 16 (2 nodes)" in reason
    given = inferometer.analyze("llama-3.1-405b", gpu="h100-sxm", nodes=1, tensor_parallel_size=8).reason or ""
    assert "-tp 16 (2 nodes) or -pp 2 (2 nodes)" in given
    odd = inferometer.analyze("qwen2.5-7b", gpu="rtx4090:memory=12e9", dtype="bf16").reason or ""
    assert "-tp 2" in odd and "nodes" not in odd
    rack = inferometer.analyze("llama-3.1-405b", gpu="gb200").reason or ""
    assert "-tp 8" in rack and "nodes" not in rack  # 8 of the 72 that one NVLink domain joins


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm-16gb", "a100-sxm-40gb"])
def test_only_precisions_that_the_device_runs_are_proposed(gpu: str) -> None:
    name = "llama-2-13b" if gpu.startswith("a100") else "llama-3.1-8b"
    gpu = f"{gpu}:memory=18e9" if gpu.startswith("a100") else gpu
    asked = build_request(name, gpu, dtype="fp16", batch_size=8 if "v100" in gpu else 1)
    reason = inferometer.analyze(name, gpu=gpu, dtype="fp16", batch_size=asked.workload.batch_size).reason or ""
    assert "-q w8a16" in reason and "fp8" not in reason.replace("--kv-cache-dtype fp8", "")
    assert not advice._runs(asked.device, "fp8") and advice._runs(asked.device, "w4a16")


# ------------------------------------------------------------------ rows without a kernel


def test_rows_without_a_kernel_are_explained(run: Run) -> None:
    words = ("analyze", "llama-3.1-70b", "--gpu", "h200", "-pp", "4")
    host = run(*words, "--input-len", "64", "--explain", "host_overhead")
    assert host.code == 0 and "power limit" in host.out and "prefill" in host.out and "decode" in host.out
    table = run(*words, "--json").json["phases"]
    for name, phase in (("pipeline_wait", "decode"), ("pipeline_fill", "prefill")):
        told = run(*words, "--explain", name, "--json")
        row = next(op for op in table[phase]["ops"] if op["name"] == name)
        assert told.code == 0 and len(told.json) == 1
        assert told.json[0]["seconds"] == pytest.approx(row["seconds"]) and "stage" in told.json[0]["note"]
    spec = '{"model": "llama-3.2-1b", "num_speculative_tokens": 4, "acceptance_rate": 0.7}'
    draft = run(
        "analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "4", "--speculative-config", spec, "--explain", "draft"
    )
    assert draft.code == 0 and "4 steps of llama-3.2-1b" in draft.out
    assert run("analyze", "llama-3.1-8b", "--explain", "pipeline_wait").code == 0  # nothing to wait for
    assert "pipeline_wait" in run("analyze", "llama-3.1-8b", "--explain", "pipeline_wayt").err


# ------------------------------------------------------------------ who drafts


def drafted(model: str, **words: Any) -> inferometer.Report:
    spec = {"model": model, "num_speculative_tokens": 4, "acceptance_rate": 0.7}
    return inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8, speculative_config=spec, **words)


def draft_seconds(report: inferometer.Report) -> float:
    return next(op.seconds for op in report.phases["decode"].ops if op.name == "draft")


def test_efficiency_is_the_drafters_too() -> None:
    slow, fast = (drafted("llama-3.2-1b", efficiency=x) for x in (0.25, 1.0))
    waiting = catalog.engine("vllm").step_overhead * 4
    assert draft_seconds(slow) - waiting > 2 * (draft_seconds(fast) - waiting)  # links keep their latency


def test_a_draft_keeps_its_own_quantisation() -> None:
    plain, small = drafted("llama-3.2-1b"), drafted("meta-llama/Llama-3.2-1B-FP8")
    assert small.memory.weights_bytes < plain.memory.weights_bytes - 0.3 * 2 * 1.2e9 / 8
    assert draft_seconds(small) < draft_seconds(plain)


def test_only_decoders_draft(run: Run) -> None:
    spec = '{"model": "DiT-XL/2", "num_speculative_tokens": 2}'
    ran = run("analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "8", "--speculative-config", spec)
    assert ran.code == 2 and "only a decoder can draft" in ran.err and "Traceback" not in ran.err


def test_a_layout_must_suit_the_draft() -> None:
    found = drafted("qwen2.5-0.5b")  # 14 heads
    assert not found.feasible and "qwen2.5-0.5b cannot draft here: 14 attention heads do not divide by tp 8" in (
        found.reason or ""
    )


def test_a_network_file_can_draft_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    text = """hidden_size = 512
vocab_size = 32000
[[layers]]
repeat = {}
blocks = [
  {{ block = "gqa", num_attention_heads = 8, num_key_value_heads = 8, head_dim = 64 }},
  {{ block = "mlp", intermediate_size = 2048 }},
]
"""
    path.write_text(text.format(4), encoding="utf-8")
    first = draft_seconds(drafted(str(path)))
    path.write_text(text.format(40), encoding="utf-8")
    os.utime(path, (1, 1))
    assert draft_seconds(drafted(str(path))) > 3 * first


def test_a_draft_is_built_once() -> None:
    spec = Speculation(model="llama-3.2-1b", acceptance_length=2.0)
    target = bound_plan("llama-3.1-8b", speculation=spec)
    first = latency.draft_plan(target)
    assert latency.draft_plan(target).model is first.model
    own = bound_plan("deepseek-v3", speculation=Speculation(method="mtp", acceptance_length=1.8))
    assert latency.draft_plan(own).model is latency.draft_plan(own).model


# ------------------------------------------------------------------ attention


def test_expanded_keys_and_values_are_no_cache() -> None:
    wide, narrow = (
        inferometer.analyze(
            "deepseek-v2-lite", gpu="h200", input_len=4096, prefix_len=1024, kv_cache_dtype=word
        ).phases["prefill"]
        for word in ("bf16", "fp8")
    )
    latent = 27 * 4096 * (512 + 64)
    assert wide.load_kv_cache == pytest.approx(2 * latent) and narrow.load_kv_cache == pytest.approx(latent)
    keys = [next(op for op in phase.ops if op.name == "attention") for phase in (wide, narrow)]
    assert keys[0].load_act == keys[1].load_act > 4096 * 16 * (128 + 64 + 128) * 2  # of the first layer
    assert keys[0].load_kv_cache == 0


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash", "minimax-m3"])
def test_indexers_score_in_fp8(name: str) -> None:
    if catalog.registered_name("models", name) is None:
        pytest.skip(f"{name} is not in the catalogue")
    network = families.build(catalog.model(name).config)
    scores = [op for block in network.blocks for op in block.ops if op.name == "index_scores"]
    assert scores and {op.peak for op in scores} == {"index_peak_flops"}
    for gpu, word in (("h200", "fp8"), ("a100-sxm-80gb", "bf16")):
        device = catalog.hardware(gpu)
        env = bind(network, device, Engine(), Plan()).env
        assert env["index_peak_flops"] == device.flops[word] and env["attention_peak_flops"] == device.flops["bf16"]


# ------------------------------------------------------------------ experts


def test_experts_that_do_not_divide_are_spread_with_a_rest() -> None:
    r = inferometer.analyze("deepseek-v3", gpu="b300", data_parallel_size=7, enable_expert_parallel=True, batch_size=7)
    assert "experts" not in (r.reason or "")
    op = next(op for op in r.phases["decode"].ops if op.name == "experts")
    assert op.shape["weight"][0] == 37  # 256 = 4·37 + 3·36
    s = bound_plan("deepseek-v3", data_parallel_size=7, enable_expert_parallel=True)
    one = bound_plan("deepseek-v3")
    for a, b in zip(one.model.blocks, s.model.blocks, strict=True):
        for x, y in zip(a.ops, b.ops, strict=True):
            if x.kind == "moe":
                whole = evaluate(x.work.stored, {**one.env, **a.dims})
                assert evaluate(y.work.stored, {**s.env, **b.dims}) == pytest.approx(whole * 37 / 256)
                flops = [
                    evaluate(op.work.flops, {**step_env(st, PREFILL), **blk.dims})
                    for op, st, blk in ((x, one, a), (y, s, b))
                ]
                assert flops[1] == pytest.approx(flops[0] * 7 * 37 / 256)  # seven replicas' tokens


# ------------------------------------------------------------------ long lives


def test_formulas_go_with_their_model() -> None:
    start = 3 * symbols.name("never_seen_before") + 0.123456
    key = next(k for k, v in symbols._interned.items() if v is start)
    del start
    gc.collect()
    assert key not in symbols._interned
    x, y = symbols.names.tokens * 7, symbols.names.tokens * 7
    assert x is y  # equal formulas are still one object


def test_what_is_remembered_is_bounded() -> None:
    calls: list[str] = []

    @cache_by_identity(3)
    def shout(thing: list[str], mark: str) -> str:
        calls.append(mark)
        return thing[0].upper() + mark

    words = ["a"]
    assert shout(words, "!") == shout(words, "!") == "A!" and calls == ["!"]
    others = [[letter] for letter in "bcdefg"]
    assert [shout(other, "?") for other in others] == ["B?", "C?", "D?", "E?", "F?", "G?"]
    assert shout(words, "!") == "A!" and calls.count("!") == 2  # forgotten in the meantime


def test_engines_have_no_figures_that_nothing_reads() -> None:
    for name in catalog.names("engines"):
        assert not {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"} & set(
            catalog.engine(name).kernels
        ), name


def test_the_cache_is_counted_in_whole_blocks() -> None:
    for block in (16, 1000, 7):
        held = inferometer.analyze("llama-3.1-8b", gpu="h200", block_size=block).memory
        assert held.max_total_tokens is not None and held.max_total_tokens % block == 0
        assert 0 <= 898_746 - held.max_total_tokens < block + 16
