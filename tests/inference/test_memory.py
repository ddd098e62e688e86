"""Memory: live tensors, shards of weights, and caches that add up."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran
from helpers.plans import bound_plan

import inferometer
from inferometer import Report, analyze
from inferometer.base.symbols import evaluate
from inferometer.base.units import size
from inferometer.costs.binding import bind, step_env
from inferometer.costs.step import Group, Step
from inferometer.inference.memory import (
    activation_bytes,
    cache_bytes,
    live_peak,
    longest_step,
    max_total_tokens,
    profiling_step,
)
from inferometer.inference.request import build_request
from inferometer.inference.weights import MIB, CachingAllocator, parameters, weight_bytes
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Plan
from inferometer.views.text.terminal import kv_per_token

MODELS = [
    "llama-3.1-8b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "gemma-3-27b",
    "phi-2",
    "opt-125m",
    "mamba2-2.7b",
]


@pytest.mark.parametrize("model", MODELS)
def test_the_live_peak_lies_between_the_largest_tensor_and_all_of_them(model: str) -> None:
    plan = bound_plan(model)
    env = step_env(plan, Step((Group(2, 600, 0),)))
    for block in plan.model.blocks:
        here = {**env, **block.dims}
        outputs = [float(evaluate(op.output, here)) for op in block.ops]
        stream = (
            here["tokens"] * here["hidden_size"] * here["act_bytes"]
            if block.residual and block.stage != "vision"
            else 0.0
        )
        peak = float(evaluate(live_peak(block), here))
        assert peak >= max(outputs), block.name
        if block.stage != "vision":
            assert peak <= sum(outputs) + stream, block.name


def test_the_live_peak_of_a_llama_layer_is_its_mlp() -> None:
    plan = bound_plan("llama-3.1-8b")
    step = Step((Group(1, 1000, 0),))
    layer = next(b for b in plan.model.blocks if b.stage == "layer")
    peak = float(evaluate(live_peak(layer), {**step_env(plan, step), **layer.dims}))
    wide, stream = 1000 * 2 * 14336 * 2, 1000 * 4096 * 2
    assert peak == wide + wide / 2 + stream, "gate and up, what act_fn makes of them, and the residual stream"
    assert activation_bytes(plan, step) >= peak


def test_activations_grow_with_the_step() -> None:
    plan = bound_plan("llama-3.1-8b")
    sizes = [float(activation_bytes(plan, Step((Group(1, n, 0),)))) for n in (1, 10, 1000, 8000)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert profiling_step(plan).groups[0].new * profiling_step(plan).groups[0].seqs == 8192, "vLLM profiles it"
    last = longest_step(3, 5000, 1000, budget=8192).groups[0]
    assert last.seqs * last.new == 8192 and last.cached + last.new == 6000


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [2, 4])
def test_shards_of_the_linears_add_up(model: str, tp: int) -> None:
    one, many = bound_plan(model), bound_plan(model, tensor_parallel_size=tp)
    for block in one.model.blocks:
        if block.stage == "vision":
            continue
        for op in block.ops:
            if op.kind not in ("linear", "moe") or not parameters(one.model):
                continue
            whole = float(evaluate(op.work.stored, {**one.env, **block.dims}))
            shard = float(evaluate(op.work.stored, {**many.env, **block.dims}))
            replicated = shard == whole
            assert replicated or tp * shard >= whole * (1 - 1e-9), op.name
            if op.kind == "moe" or op.name in ("gate_up_proj", "down_proj", "o_proj"):
                assert tp * shard == pytest.approx(whole, rel=0.01), op.name  # a row-parallel bias is on every rank
    assert weight_bytes(one) / tp <= weight_bytes(many) * (1 + 1e-9) < weight_bytes(one)


@pytest.mark.parametrize("model", MODELS)
def test_weights_in_bf16_are_two_bytes_a_parameter(model: str) -> None:
    network = families.build(catalog.model(model).config)
    roles = dict.fromkeys(("attn", "mlp", "experts", "shared", "head", "embed", "router", "vision"), "bf16")
    plan = bind(network, catalog.hardware("h200"), catalog.engine("roofline"), Plan(), roles=roles)
    assert weight_bytes(plan) == pytest.approx(2 * parameters(network), rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_caches_grow_and_layers_add_up(model: str) -> None:
    plan = bound_plan(model)
    sizes = [float(cache_bytes(plan, n)) for n in (0, 1, 100, 10_000)]
    assert sizes == sorted(sizes) and sizes[-1] > 0
    layers = sum(float(cache_bytes(plan, 700, (i,))) for i in range(plan.model.num_layers))
    assert layers == pytest.approx(float(cache_bytes(plan, 700)))


@pytest.mark.parametrize("quantization", ["fp8", "fp8-block", "w4a16", "nvfp4", "mxfp4", "int8", "int2"])
def test_quantised_layers_shrink_and_the_ends_stay(quantization: str) -> None:
    network = families.build(catalog.model("llama-3.1-8b").config)
    plain = bind(network, catalog.hardware("h200"), catalog.engine("roofline"), Plan())
    small = bind(network, catalog.hardware("h200"), catalog.engine("roofline"), Plan(quantization=quantization))
    ends = 2 * 128256 * 4096 * 2 + (2 * 32 + 1) * 4096 * 2
    layers = float(weight_bytes(plain)) - ends
    assert (float(weight_bytes(small)) - ends) / layers == pytest.approx(catalog.precision(quantization).bytes / 2)


Run = Callable[..., Ran]


def test_activations_are_those_of_the_largest_step() -> None:
    eager = inferometer.analyze("llama-3.1-8b", attention="eager", input_len=32768)
    scores = 2 * 32 * 8192 * 32768 * 2  # the last 8,192 queries over all keys, heads and bytes, and their softmax
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
    args = ("qwen2.5-vl-7b", "--images", "2x2016x2016", "--input-len", "64", "--json")
    most = run("analyze", *args).json["memory"]["max_batch_size"]
    assert most > 1
    assert run("analyze", *args, "--batch-size", str(most)).code == 0
    assert run("analyze", *args, "--batch-size", str(most + 1)).code == 1


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


def test_the_cache_is_counted_in_whole_blocks() -> None:
    for block in (16, 1000, 7):
        held = inferometer.analyze("llama-3.1-8b", gpu="h200", block_size=block).memory
        assert held.max_total_tokens is not None and held.max_total_tokens % block == 0
        assert 0 <= 920_367 - held.max_total_tokens < block + 16


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("llama-3.1-8b", 131072),
        ("deepseek-v3", 1152 * 61),
        ("llama-2-7b", 2 * 32 * 4096 * 2),
        ("qwen3-30b-a3b", 48 * 2 * 4 * 128 * 2),
        ("gpt-oss-20b", 24 * 2 * 8 * 64 * 2),
        ("mixtral-8x7b-v0.1", 131072),
        ("qwen2-0.5b", 24 * 2 * 2 * 64 * 2),
        ("mamba2-2.7b", 0),
    ],
)
def test_cache_bytes_of_a_token(report: Callable[..., Report], model: str, per_token: float) -> None:
    full = report(model, gpu="b300:memory=2e12", kv_cache_dtype="bf16")
    assert full.memory.kv_bytes_per_token == per_token
    half = report(model, gpu="b300:memory=2e12", kv_cache_dtype="fp8")
    assert half.memory.kv_bytes_per_token == per_token / 2


@pytest.mark.slow
def test_a_window_bounds_the_cache(report: Callable[..., Report]) -> None:
    short, long = (report("gemma-3-1b", input_len=n, output_len=2).memory.kv_cache_bytes for n in (400, 8000))
    layer = 2 * 1 * 256 * 2  # one KV head of 256
    assert short == 26 * layer * 402
    assert long == (4 * 8002 + 22 * 512) * layer, "22 of 26 layers see 512 tokens"


def test_tensor_parallel_ranks_share_weights_and_cache(report: Callable[..., Report]) -> None:
    one, four = (report("llama-3.1-8b", engine="roofline", tensor_parallel_size=n) for n in (1, 4))
    norms = (2 * 32 + 1) * 4096 * 2
    assert four.memory.weights_bytes == pytest.approx((one.memory.weights_bytes - norms) / 4 + norms)
    assert four.memory.kv_bytes_per_token == one.memory.kv_bytes_per_token / 4
    assert four.phases["decode"].load_kv_cache == one.phases["decode"].load_kv_cache / 4
    sixteen = report("llama-3.1-8b", tensor_parallel_size=16)
    assert sixteen.memory.kv_bytes_per_token == one.memory.kv_bytes_per_token / 8, "eight KV heads, each on two ranks"


def test_the_largest_batch_is_the_largest(run: Run) -> None:
    for engine in ("vllm", "hf", "roofline"):
        args = ("llama-2-7b", "--gpu", "a100-sxm-40gb", "--engine", engine, "--json")
        most = run("analyze", *args).json["memory"]["max_batch_size"]
        assert run("analyze", *args, "--batch-size", str(most)).code == 0, engine
        assert run("analyze", *args, "--batch-size", str(most + 1)).code == 1, engine


def draft(model: str = "llama-3.2-1b") -> dict[str, Any]:
    return {"model": model, "num_speculative_tokens": 4, "acceptance_rate": 0.7}


def test_the_cache_of_a_draft_model_counts_wherever_the_model_s_does() -> None:
    """70B on 4 GPUs keeps 80 layers x 2 heads x 2 x 128 x 2 bytes a token, the 1B model 16 x 2 x 2 x 64 x 2 more."""
    kwargs: dict[str, Any] = {"tensor_parallel_size": 4}
    alone, drafted = (analyze("llama-3.1-70b", "h200", **kwargs, speculative_config=s).memory for s in (None, draft()))
    assert alone.kv_bytes_per_token == 81_920
    assert drafted.kv_bytes_per_token == 81_920 + 8_192
    assert drafted.max_total_tokens is not None
    used = drafted.max_total_tokens * drafted.kv_bytes_per_token
    assert 0 <= drafted.kv_capacity_bytes - used < 16 * drafted.kv_bytes_per_token  # less than one block is left


def test_the_cache_of_a_prediction_module_counts() -> None:
    """DeepSeek-V3: 61 layers of 576 x 2 bytes a token, and one of the module."""
    held = analyze("deepseek-v3", "h200", tensor_parallel_size=8, speculative_config={"method": "mtp"}).memory
    assert held.kv_bytes_per_token == 62 * 1152


def test_a_report_has_the_work_of_drafting() -> None:
    """Four drafts of the 1B model a step, a quarter on each GPU: its weights are read and multiplied by four times."""
    report = analyze("llama-3.1-70b", "h200", tensor_parallel_size=4, batch_size=8, speculative_config=draft())
    decode = report.phases["decode"]
    row = next(op for op in decode.ops if op.name == "draft")
    small = analyze("llama-3.2-1b", "h200", tensor_parallel_size=4, batch_size=8, output_len=128).phases["decode"]
    assert row.flops == pytest.approx(4 * small.OPs, rel=1e-6)
    assert row.load_weight == pytest.approx(4 * small.load_weight, rel=1e-6)
    assert decode.OPs == pytest.approx(sum(op.flops for op in decode.ops))


@pytest.mark.parametrize(
    "model,groups",
    [
        # gemma-3-27b: 10 full layers are a group, 52 with windows of 1,024 are 6 groups of 10, 8 of them padding.
        # A request of 131,072 tokens takes 8,192 blocks of the one and 577 of each of the others: 9,215 tokens are
        # the window's 1,023 and a step's 8,192, and one block more for where it begins.
        ("gemma-3-27b", (10, 8192 + 6 * (576 + 1))),
        # gpt-oss-120b: 18 and 18 layers, windows of 128: 8,319 tokens in 520 blocks and one
        ("gpt-oss-120b", (18, 8192 + 520 + 1)),
    ],
)
def test_the_cache_of_windowed_models_is_as_large_as_vllm_prints(model: str, groups: tuple[int, int]) -> None:
    held = analyze(model, "h200", max_model_len=131_072).memory
    layers, blocks = groups
    per_layer = held.kv_bytes_per_token / {10: 62, 18: 36}[layers]
    num_blocks = held.kv_capacity_bytes // (layers * 16 * per_layer)
    assert held.max_total_tokens == pytest.approx(num_blocks / blocks * 131_072, abs=16)


def test_the_header_s_room_and_bytes_per_token_agree() -> None:
    """What a token of the longest requests takes, times the tokens there is room for, is the memory there is."""
    for model, words in (("gemma-3-27b", "508 kB while short"), ("llama-3.1-8b", "131 kB per token")):
        held = analyze(model, "h200").memory
        assert words in kv_per_token(held)
        assert held.max_total_tokens
        assert f"{size(held.kv_capacity_bytes / held.max_total_tokens)} per token" in kv_per_token(held)


def test_no_engine_may_use_more_than_there_is() -> None:
    """TensorRT-LLM's share is of what weights leave, which is nothing where they fill the device."""
    held = analyze("granite-4.0-h-small", gpu="a30", engine="trtllm").memory
    assert held.weights_bytes > held.capacity_bytes >= held.usable_bytes


# ------------------------------------------------------------------ as engines reported it

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_memory.csv"


def test_weights_and_kv_tokens_are_those_that_vllm_reported(tmp_path: Path) -> None:
    """fp8, mxfp4, mixtures, windows and recurrent states on H200s; bytes of the KV cache were given but once."""
    for row in csv.DictReader(ROWS.open(encoding="utf-8")):
        name, given, length = row["model"], row["kv_cache_memory_bytes"], int(row["max_model_len"])
        model = name
        if name.endswith("-text"):
            (tmp_path / "config.json").write_text(json.dumps(catalog.model(name[:-5]).config["text_config"]))
            model = str(tmp_path / "config.json")
        kwargs = {word: row[word] for word in ("quantization", "kv_cache_dtype")} | {"engine": "vllm@0.25"}
        limits = {"max_num_seqs": 512, "max_num_batched_tokens": 8192, "max_model_len": length}
        plan = build_request(model, "h200", **kwargs, **limits).bind()
        assert weight_bytes(plan) == pytest.approx(int(row["weight_bytes"]), rel=4e-3), name
        if given:
            tokens, whole = max_total_tokens(plan, float(given), length), int(row["kv_cache_tokens"])
            assert tokens == pytest.approx(whole, rel=3e-4), name  # the engine's are whole blocks
        else:
            held = analyze(model, "h200", **kwargs, **limits).memory
            assert held.max_total_tokens == pytest.approx(int(row["kv_cache_tokens"]), rel=2e-3), name


def test_large_tensors_keep_the_blocks_that_they_got() -> None:
    allocator = CachingAllocator(20 * MIB, free=(60 * MIB,))
    assert allocator.allocate(9.7 * MIB) == 9.7 * MIB, "a part of a block"
    assert allocator.allocate(112.5 * MIB) == 114 * MIB
    assert allocator.allocate(39 * MIB) == 40 * MIB, "the free one is larger by 20 MiB"
    assert allocator.allocate(56.25 * MIB) == 60 * MIB and not allocator.free
    allocator.release(114 * MIB)
    assert allocator.allocate(96 * MIB) == 114 * MIB


def test_an_engine_counts_what_sampling_and_experts_keep() -> None:
    """V1's model runner has probabilities and noise of every token beside the logits; V2's has not."""
    step = Step((Group(512, 16, 0, 1),))
    logits, hidden = 512 * 151936, 8192 * 2048 * 2
    mixture = build_request("qwen3-30b-a3b", "h200", engine="vllm@0.25").bind()
    workspace = 8192 * 8 * (2048 + 2048) * 2
    assert activation_bytes(mixture, step) == pytest.approx(logits * 14 + hidden + workspace)
    for engine, each in (("vllm@0.25", 6), ("vllm@0.21", 14)):
        dense = build_request("qwen3-0.6b", "h200", engine=engine).bind()
        assert activation_bytes(dense, step) == pytest.approx(logits * each + hidden / 2)
