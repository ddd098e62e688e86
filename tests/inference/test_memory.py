"""Memory: live tensors, shards of weights, and caches that add up."""

from __future__ import annotations

import pytest

from inferometer.base.symbols import evaluate
from inferometer.costs.binding import BoundPlan, bind, step_env
from inferometer.costs.step import Group, Step
from inferometer.inference.memory import (
    activation_bytes,
    cache_bytes,
    live_peak,
    longest_step,
    parameters,
    profiling_step,
    weight_bytes,
)
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Plan

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


def setup_of(model: str, **plan: object) -> BoundPlan:
    network = families.build(catalog.model(model).config)
    return bind(network, catalog.hardware("h200"), catalog.engine("vllm"), Plan(**plan))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", MODELS)
def test_the_live_peak_lies_between_the_largest_tensor_and_all_of_them(model: str) -> None:
    bound_plan = setup_of(model)
    env = step_env(bound_plan, Step((Group(2, 600, 0),)))
    for block in bound_plan.model.blocks:
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
    bound_plan = setup_of("llama-3.1-8b")
    step = Step((Group(1, 1000, 0),))
    layer = next(b for b in bound_plan.model.blocks if b.stage == "layer")
    peak = float(evaluate(live_peak(layer), {**step_env(bound_plan, step), **layer.dims}))
    wide, stream = 1000 * 2 * 14336 * 2, 1000 * 4096 * 2
    assert peak == wide + wide / 2 + stream, "gate and up, what act_fn makes of them, and the residual stream"
    assert activation_bytes(bound_plan, step) >= peak


def test_activations_grow_with_the_step() -> None:
    bound_plan = setup_of("llama-3.1-8b")
    sizes = [float(activation_bytes(bound_plan, Step((Group(1, n, 0),)))) for n in (1, 10, 1000, 8000)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert profiling_step(bound_plan).groups[0].new * profiling_step(bound_plan).groups[0].seqs == 8192, (
        "vLLM profiles it"
    )
    last = longest_step(3, 5000, 1000, budget=8192).groups[0]
    assert last.seqs * last.new == 8192 and last.cached + last.new == 6000


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [2, 4])
def test_shards_of_the_linears_add_up(model: str, tp: int) -> None:
    one, many = setup_of(model), setup_of(model, tensor_parallel_size=tp)
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
    bound_plan = bind(network, catalog.hardware("h200"), catalog.engine("vllm"), Plan(), roles=roles)
    assert weight_bytes(bound_plan) == pytest.approx(2 * parameters(network), rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_caches_grow_and_layers_add_up(model: str) -> None:
    bound_plan = setup_of(model)
    sizes = [float(cache_bytes(bound_plan, n)) for n in (0, 1, 100, 10_000)]
    assert sizes == sorted(sizes) and sizes[-1] > 0
    layers = sum(float(cache_bytes(bound_plan, 700, (i,))) for i in range(bound_plan.model.num_layers))
    assert layers == pytest.approx(float(cache_bytes(bound_plan, 700)))


@pytest.mark.parametrize("quantization", ["fp8", "fp8-block", "w4a16", "nvfp4", "mxfp4", "int8", "int2"])
def test_quantised_layers_shrink_and_the_ends_stay(quantization: str) -> None:
    network = families.build(catalog.model("llama-3.1-8b").config)
    plain = bind(network, catalog.hardware("h200"), catalog.engine("vllm"), Plan())
    small = bind(network, catalog.hardware("h200"), catalog.engine("vllm"), Plan(quantization=quantization))
    ends = 2 * 128256 * 4096 * 2 + (2 * 32 + 1) * 4096 * 2
    layers = float(weight_bytes(plain)) - ends
    assert (float(weight_bytes(small)) - ends) / layers == pytest.approx(catalog.precision(quantization).bytes / 2)
