"""Laws of layouts: nothing is lost or doubled over ranks, size 1 is the single GPU, and illegal layouts say why."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferometer
from inferometer.base.symbols import evaluate
from inferometer.costs import parallelism, precision
from inferometer.costs.binding import BoundPlan, bind, stage_plans, step_env, step_rows, step_seconds
from inferometer.costs.roofline import weight_sum
from inferometer.costs.step import Group, Step
from inferometer.inference import memory
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Plan

NAMES = [
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "gpt-oss-120b",
    "nemotron-3-nano-30b-a3b",
]
DECODE, PREFILL = Step((Group(64, 1, 2000, 1, True),)), Step((Group(4, 1024, 0),))


def bound_plan(name: str, gpu: str = "h200", engine: str = "vllm", **plan: Any) -> BoundPlan:
    model = families.build(catalog.model(name).config)
    return bind(
        model,
        catalog.hardware(gpu),
        catalog.engine(engine),
        Plan(**plan),
        roles=precision.precision_by_role(model, "bf16", "bf16"),
    )


def flops(s: BoundPlan, step: Step) -> float:
    return float(sum(row.work["flops"] * row.count for stage in stage_plans(s) for row in step_rows(stage, step)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_size_one_is_the_single_gpu(name: str, step: Step) -> None:
    alone = bound_plan(name)
    same = bound_plan(
        name,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        enable_expert_parallel=True,
        sequence_parallel=True,
        decode_context_parallel_size=1,
    )
    assert step_seconds(alone, step) == step_seconds(same, step)
    assert memory.weight_bytes(alone) == memory.weight_bytes(same)
    assert not any(row.work["sent"] for row in step_rows(alone, step))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_weights_over_ranks_are_the_model_plus_what_is_replicated(name: str, tp: int) -> None:
    one, many = bound_plan(name), bound_plan(name, tensor_parallel_size=tp)
    for a, b in zip(one.model.blocks, many.model.blocks, strict=True):
        for op in a.ops:
            whole = evaluate(op.work.stored, {**one.env, **a.dims})
            over = tp * evaluate(op.work.stored, {**many.env, **b.dims})
            assert over >= whole * (1 - 1e-12), op.name
            assert over == pytest.approx(whole) or over <= tp * whole * (1 + 1e-12), op.name
            if op.name in ("o_proj", "gate_up_proj", "down_proj", "experts", "embed_tokens", "lm_head", "out_proj"):
                assert over == pytest.approx(whole, rel=0.003), op.name  # sharded; only a bias may be on every rank


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b"])
def test_experts_spread_or_sliced_over_ranks_are_all_there(name: str) -> None:
    whole = _experts(bound_plan(name))
    assert 8 * _experts(bound_plan(name, tensor_parallel_size=8)) == pytest.approx(whole)
    assert 8 * _experts(bound_plan(name, tensor_parallel_size=8, enable_expert_parallel=True)) == pytest.approx(whole)
    assert 8 * _experts(bound_plan(name, data_parallel_size=8, enable_expert_parallel=True)) == pytest.approx(whole)
    both = bound_plan(name, tensor_parallel_size=2, data_parallel_size=4, enable_expert_parallel=True)
    assert 8 * _experts(both) == pytest.approx(whole)


def _experts(s: BoundPlan) -> float:
    found = 0.0
    for block in s.model.blocks:
        for op in block.ops:
            if op.kind == "moe":
                found += block.count * evaluate(op.work.stored, {**s.env, **block.dims})
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pp", [2, 3, 5])
def test_pipeline_stages_hold_every_layer_once(name: str, pp: int) -> None:
    s = bound_plan(name)
    parts = parallelism.pipeline_stages(s.model, pp)
    layers = sorted(i for part in parts for b in part.blocks if b.stage == "layer" for i in b.layers)
    assert layers == list(range(s.model.num_layers))
    assert sum(weight_sum(p.blocks, s.env, "stored") for p in parts) == pytest.approx(
        weight_sum(s.model.blocks, s.env, "stored")
    )
    sizes = [sum(b.count for b in p.blocks if b.stage == "layer") for p in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [any(o.kind == "send" for b in p.blocks for o in b.ops) for p in parts] == [True] * (pp - 1) + [False]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b-v0.1"])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_flops_are_conserved(name: str, step: Step) -> None:
    whole = flops(bound_plan(name), step)
    for plan in (
        {"tensor_parallel_size": 4},
        {"pipeline_parallel_size": 4},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ):
        s = bound_plan(name, **plan)
        sharded = s.plan.tensor_parallel_size * _sharded(s, step) + _replicated(s, step)
        assert sharded == pytest.approx(whole, rel=1e-9), plan


def _replicated(s: BoundPlan, step: Step) -> float:
    """FLOPs that every rank repeats: norms, router, sampling."""
    rows = [r for stage in stage_plans(s) for r in step_rows(stage, step)]
    return float(
        sum(
            r.work["flops"] * r.count
            for r in rows
            if r.op.kind in ("norm", "sampler") or r.op.name in ("router", "topk")
        )
    )


def _sharded(s: BoundPlan, step: Step) -> float:
    return flops(s, step) - _replicated(s, step)


@pytest.mark.slow
@given(tp=st.sampled_from([2, 4, 8]), batch=st.integers(1, 256))
@settings(max_examples=20, deadline=None)
def test_communication_grows_with_the_group(tp: int, batch: int) -> None:
    step = Step((Group(batch, 1, 500, 1, True),))
    sent = [
        sum(r.work["sent"] * r.count for r in step_rows(bound_plan("llama-3.1-8b", tensor_parallel_size=n), step))
        for n in (1, tp, 2 * tp)
    ]
    assert sent[0] == 0 < sent[1] < sent[2]


@pytest.mark.parametrize("key", ["links.nvlink.bandwidth", "links.network.bandwidth", "memory_bandwidth", "flops.bf16"])
@pytest.mark.parametrize(
    "plan",
    [
        {"tensor_parallel_size": 8},
        {"tensor_parallel_size": 4, "pipeline_parallel_size": 4},
        {"data_parallel_size": 16, "enable_expert_parallel": True},
    ],
)
def test_better_hardware_is_never_slower(key: str, plan: dict[str, Any]) -> None:
    figure = {
        "links.nvlink.bandwidth": 450e9,
        "links.network.bandwidth": 50e9,
        "memory_bandwidth": 4.8e12,
        "flops.bf16": 989.4e12,
    }[key]
    for step in (DECODE, PREFILL):
        slow, fast = (
            sum(step_seconds(stage, step) for stage in stage_plans(bound_plan("qwen3-30b-a3b", gpu, **plan)))
            for gpu in (f"h200:{key}={figure}", f"h200:{key}={figure * 1.5}")
        )
        assert fast <= slow * (1 + 1e-12)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"model": "qwen2.5-7b", "tensor_parallel_size": 8}, "28 attention heads are not divisible by tp 8"),
        ({"model": "llama-3.1-8b", "pipeline_parallel_size": 33}, "pp 33 needs at least 33 layers"),
        (
            {"model": "llama-3.1-8b", "tensor_parallel_size": 4, "nodes": 1, "gpus_per_node": 2},
            "= 4 GPUs, but 1 × 2 = 2",
        ),
        (
            {"model": "mixtral-8x7b-v0.1", "data_parallel_size": 16, "enable_expert_parallel": True},
            "8 experts are fewer than the 16 ranks",
        ),
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "must divide tp 4"),
        (
            {"model": "llama-3.1-8b", "tensor_parallel_size": 8, "decode_context_parallel_size": 2},
            "ranks that share a KV",
        ),
    ],
)
def test_illegal_layouts_say_why(words: dict[str, Any], why: str) -> None:
    report = inferometer.analyze(words.pop("model"), gpu="h200", **words)
    assert not report.feasible
    assert why in (report.reason or "")


def test_deepseek_on_4090s_and_on_h200s_fits_for_the_right_reason() -> None:
    small = inferometer.analyze(
        "deepseek-v3", gpu="rtx4090", nodes=6, tensor_parallel_size=8, pipeline_parallel_size=6, quantization="fp8"
    )
    assert small.feasible and small.plan["gpus"] == 48
    assert (
        671e9 / 48 < small.memory.weights_bytes < 671e9 / 48 * 1.25
    )  # an even share, uneven stages, replicated latents
    wide = inferometer.analyze(
        "deepseek-v3", gpu="h200", nodes=4, data_parallel_size=32, enable_expert_parallel=True, batch_size=1024
    )
    assert wide.feasible
    experts = 58 * 256 * 3 * 7168 * 2048 / 32  # bytes in fp8
    assert experts < wide.memory.weights_bytes < experts * 2  # attention, dense layers and embeddings on every GPU
    plain = inferometer.analyze("deepseek-v3", gpu="h800", nodes=1, tensor_parallel_size=8)
    assert not plain.feasible and "needs" in (plain.reason or "")


def test_decode_context_parallel_shares_the_latent_cache() -> None:
    one = inferometer.analyze("deepseek-v3", gpu="h200", tensor_parallel_size=8, input_len=32768, batch_size=16)
    eight = inferometer.analyze(
        "deepseek-v3",
        gpu="h200",
        tensor_parallel_size=8,
        input_len=32768,
        batch_size=16,
        decode_context_parallel_size=8,
    )
    assert eight.memory.kv_bytes_per_token == pytest.approx(one.memory.kv_bytes_per_token / 8)
    assert eight.phases["decode"].load_kv_cache == pytest.approx(one.phases["decode"].load_kv_cache / 8)
    assert "context_gather" in {op.name for op in eight.phases["decode"].ops}


def test_speculation_costs_a_verification_and_yields_tokens() -> None:
    plain = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8)
    spec = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.8}
    guessed = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8, speculative_config=spec)
    step = guessed.phases["decode"].seconds
    assert step >= plain.phases["decode"].seconds
    expected = (1 - 0.8**4) / (1 - 0.8)
    assert guessed.metrics.tpot_ms == pytest.approx(step / expected * 1e3, rel=1e-6)
    head = next(op for op in guessed.phases["decode"].ops if op.name == "lm_head")
    assert head.shape["input"][0] == 4  # every drafted token and the bonus need logits


def test_a_draft_model_takes_memory_and_time() -> None:
    plain = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8)
    spec = {"model": "llama-3.2-1b", "num_speculative_tokens": 4, "acceptance_rate": 0.7}
    drafted = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8, speculative_config=spec)
    assert drafted.memory.weights_bytes > plain.memory.weights_bytes
    assert "draft" in {op.name for op in drafted.phases["decode"].ops}


def test_lora_adds_exactly_its_products() -> None:
    plain = inferometer.analyze("llama-3.1-8b", gpu="h200", batch_size=8)
    tuned = inferometer.analyze(
        "llama-3.1-8b", gpu="h200", batch_size=8, lora_rank=16, lora_targets="qkv_proj", lora_adapters=4
    )
    per_layer = 16 * (3 * 4096 + 6144)  # q, k and v each have a way down of their own
    more = tuned.phases["decode"].OPs - plain.phases["decode"].OPs
    assert more == pytest.approx(32 * 2 * 8 * per_layer)
    assert tuned.memory.weights_bytes - plain.memory.weights_bytes == pytest.approx(32 * 4 * per_layer * 2)
    assert tuned.model.params == plain.model.params


def test_offloaded_weights_come_over_the_host_link() -> None:
    plain = inferometer.analyze("llama-3.1-8b", gpu="h200")
    moved = inferometer.analyze("llama-3.1-8b", gpu="h200", cpu_offload_gb=8)
    assert plain.memory.weights_bytes - moved.memory.weights_bytes == pytest.approx(8e9, rel=0.005)  # with their blocks
    extra = (moved.roofline.tpot_ms or 0) - (plain.roofline.tpot_ms or 0)
    read = plain.phases["decode"].load_weight / plain.memory.weights_bytes  # the embedding table is hardly read
    assert extra == pytest.approx(8e9 * read / 64e9 * 1e3, rel=0.02)


def test_a_pipeline_waits_unless_it_is_filled() -> None:
    single = inferometer.analyze("llama-3.1-70b", gpu="h200", pipeline_parallel_size=4)
    waits = {op.name: op.share for op in single.phases["decode"].ops}
    assert waits["pipeline_wait"] > 0.7  # one sequence is on one of four stages at a time
    full = inferometer.analyze("llama-3.1-70b", gpu="h200", pipeline_parallel_size=4, batch_size=64)
    assert {op.name: op.share for op in full.phases["decode"].ops}.get("pipeline_wait", 0.0) < 0.1


def test_a_pipeline_says_what_its_other_stages_do() -> None:
    """One sequence on four stages of 20 layers: three quarters of a layer's operators are on the other three."""
    report = inferometer.analyze("llama-3.1-70b", gpu="h200", pipeline_parallel_size=4)
    for name, wait in (("prefill", "pipeline_fill"), ("decode", "pipeline_wait")):
        phase = report.phases[name]
        waited = next(op for op in phase.ops if op.name == wait)
        assert sum(row.seconds for row in phase.other_stages) == pytest.approx(waited.seconds)
        assert sum(row.share for row in phase.other_stages) == pytest.approx(waited.share)
        here = sum(op.seconds for op in phase.ops if op.name == "down_proj")
        there = next(row for row in phase.other_stages if row.name == "down_proj")
        assert there.seconds == pytest.approx(3 * here, rel=1e-6) and there.bound in ("memory", "compute")
    assert re.search(
        r"decode waits for other pipeline stages for 7\d\.\d% of its [\d.]+ ms \(they are memory-bound for 9\d",
        report.summary,
    )
    alone = inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=4)
    assert all(not phase.other_stages for phase in alone.phases.values())


def test_prefix_and_beams_share_what_they_should() -> None:
    whole = inferometer.analyze("llama-3.1-8b", gpu="h200", input_len=4096)
    cached = inferometer.analyze("llama-3.1-8b", gpu="h200", input_len=4096, prefix_len=3072)
    assert (cached.metrics.ttft_ms or 0) < 0.4 * (whole.metrics.ttft_ms or 0)
    assert cached.memory.kv_cache_bytes == whole.memory.kv_cache_bytes
    beams = inferometer.analyze("llama-3.1-8b", gpu="h200", input_len=4096, beam_width=4, output_len=128)
    assert beams.memory.kv_cache_bytes == pytest.approx(131072 * (4096 + 4 * 128))


def test_a_mixed_step_costs_more_than_decoding_and_less_than_both_apart() -> None:
    r = inferometer.analyze(
        "llama-3.1-8b",
        gpu="h200",
        batch_size=64,
        input_len=2048,
        max_num_batched_tokens=1024,
        enable_chunked_prefill=True,
    )
    mixed, decode = r.phases["mixed"], r.phases["decode"]
    chunk = step_seconds(bound_plan("llama-3.1-8b"), Step((Group(1, 960, 544),)))
    assert decode.seconds < mixed.seconds < decode.seconds + chunk
    assert step_env(bound_plan("llama-3.1-8b"), PREFILL)["tokens"] == 4096


def test_a_tied_head_has_its_own_table_on_the_last_stage() -> None:
    whole, cut = bound_plan("qwen3-0.6b"), bound_plan("qwen3-0.6b", pipeline_parallel_size=2)
    parts = sum(memory.weight_bytes(stage) for stage in stage_plans(cut))
    assert parts - memory.weight_bytes(whole) == pytest.approx(151936 * 1024 * 2, rel=0.05)  # and blocks


def test_overlap_hides_communication_but_not_more_than_computing() -> None:
    plan = {"gpu": "h200", "data_parallel_size": 32, "enable_expert_parallel": True, "batch_size": 2048}
    times = [inferometer.analyze("deepseek-v3", **plan, overlap=x).metrics.tpot_ms for x in (0.0, 0.5, 1.0)]  # type: ignore[arg-type]
    assert times[0] > times[1] > times[2] > 0.5 * times[0]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("pp", "layers"), [(1, [32]), (3, [11, 11, 10]), (5, [6, 6, 7, 7, 6]), (6, [5, 5, 5, 6, 6, 5])]
)
def test_layers_that_are_left_over_go_before_the_last_stage(pp: int, layers: list[int]) -> None:
    entry = catalog.model("llama-3.1-8b")
    stages = parallelism.pipeline_stages(families.build(entry.config), pp)
    assert [stage.num_layers for stage in stages] == layers


def test_a_mesh_and_a_bridge_limit_few_and_many_ranks() -> None:
    mesh = catalog.hardware("mi300x")
    by_ranks = {n: parallelism.places(Plan(tensor_parallel_size=n), mesh)["tp"] for n in (2, 4, 8)}
    assert {n: place.bandwidth for n, place in by_ranks.items()} == {2: 64e9, 4: 192e9, 8: 448e9}
    assert parallelism.places(Plan(pipeline_parallel_size=2), mesh)["pp"].bandwidth == 64e9  # a stage has one neighbour
    texts = [parallelism.placement_summary(Plan(tensor_parallel_size=n), mesh)["tp"] for n in (2, 8)]
    assert texts == ["2 ranks on xgmi (64 of 448 GB/s: 1 of 7 links)", "8 ranks on xgmi"]
    geforce = parallelism.placement_summary(Plan(tensor_parallel_size=2), catalog.hardware("rtx4090"))
    assert geforce == {"tp": "2 ranks on pcie (through the host's memory)"}
    bridged = catalog.hardware("h100-nvl")  # its NVLink bridges join two cards
    assert [parallelism.places(Plan(tensor_parallel_size=n), bridged)["tp"].name for n in (2, 4)] == ["nvlink", "pcie"]


def test_a_mesh_takes_what_its_links_take() -> None:
    """Two of eight MI300X have 64 GB/s: the all-reduces of a long prompt cannot take less than at that rate."""
    result = inferometer.analyze("llama-3.1-70b", gpu="mi300x", tensor_parallel_size=2, batch_size=8, input_len=8192)
    sent = sum(op.sent for op in result.phases["prefill"].ops if op.kind == "all_reduce")
    took = sum(op.seconds for op in result.phases["prefill"].ops if op.kind == "all_reduce")
    assert sent / 64e9 <= took <= 1.6 * sent / 64e9


def test_lora_targets_are_names() -> None:
    with pytest.raises(inferometer.BadValue, match="lora_targets must be names separated by commas"):
        inferometer.analyze("llama-3.1-8b", gpu="h200", lora_rank=16, lora_targets=[[]])
