"""What engine steps showed of experts, latent attention and states: launch settings, copies, streams of their own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from inferometer.costs.binding import BoundPlan, step_rows, step_seconds
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.registry import KernelProfile, read_profile
from inferometer.costs.kernels.surfaces import SHAPES, surface_seconds
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.specs import catalog


def experts_seconds(profile: KernelProfile, tokens: float, **sizes: float) -> float:
    """Seconds of experts' products in bf16 by a profile's surfaces."""
    row = row_terms("moe", "bf16", {"tokens": tokens, "hidden": 4096.0, **sizes}, catalog.hardware("h200"))
    assert row is not None
    key = profile.surface_key("moe", "bf16", row.dims)
    return float(surface_seconds(profile.fitted["moe"][key], SHAPES["moe"], row.dims, row.terms))


def test_experts_without_launch_settings_take_longer_in_prompts() -> None:
    profile = read_profile("h200", "measured")
    assert profile is not None
    phi = {"inner": 6400.0, "experts": 16.0, "top_k": 2.0}  # vLLM warns that it has none for these
    assert profile.surface_key("moe", "bf16", {"experts": 8, "inner": 14336}) == "bf16-tuned"
    assert profile.surface_key("moe", "bf16", phi) == "bf16-untuned"
    assert profile.surface_key("moe", "fp8", phi) == "fp8", "known of 16-bit experts alone"
    tuned = replace(profile, tuned={"bf16": [(16, 6400)]})
    slower = [experts_seconds(profile, n, **phi) / experts_seconds(tuned, n, **phi) for n in (1.0, 16.0, 8000.0)]
    assert slower[:2] == pytest.approx([1, 1], abs=0.02) and 1.03 < slower[2] < 1.15


def test_prompts_of_latent_attention_copy_queries_keys_and_outputs() -> None:
    glm = build_request("glm-4.7-flash", "h200", engine="vllm@0.25", host_profile="h200-vm").bind()

    def copied(step: Step) -> dict[str, float]:
        rows = [row for row in step_rows(glm, step) if row.op.name in ("key_concat", "query_copy")]
        return {row.op.name: sum(r.seconds * r.count for r in rows if r.op.name == row.op.name) for row in rows}

    prompt = copied(Step((Group(1, 2048, 0),)))
    # 2.99 ms of strided copies and 0.64 of the output's in 47 layers, and what rotary positions take beyond their own
    assert sum(prompt.values()) == pytest.approx(3.96e-3 + 0.8e-3, rel=0.15)
    assert sum(copied(Step((Group(8, 1, 2047, 1, True),))).values()) == 0, "answers are read off the latents"
    cached = copied(Step((Group(1, 1024, 1024),)))
    assert cached["key_concat"] == pytest.approx(prompt["key_concat"], rel=0.01), "cached tokens have keys, too"
    assert cached["query_copy"] < 0.55 * prompt["query_copy"]


def decode_seconds(plan: BoundPlan, sequences: int, context: int) -> float:
    return float(step_seconds(plan, Step((Group(sequences, 1, context, 1, True),))))


@pytest.mark.parametrize(
    ("model", "sequences", "context", "measured"),
    [
        ("granite-4.0-h-small", 1, 1041, 6.754e-3),
        ("granite-4.0-h-small", 32, 1017, 19.61e-3),
        ("falcon-h1-7b", 1, 1041, 5.893e-3),
        ("falcon-h1-7b", 64, 145, 12.47e-3),
        ("falcon-h1-7b", 256, 146, 32.49e-3),
    ],
)
def test_decode_steps_of_hybrids_are_those_of_vllm(model: str, sequences: int, context: int, measured: float) -> None:
    """vLLM 0.25.1 on two H200s: states of 256 are updated far below the speed of memory."""
    plan = build_request(model, "h200", engine="vllm@0.25", host_profile="h200-vm", max_num_seqs=256).bind()
    assert decode_seconds(plan, sequences, context) == pytest.approx(measured, rel=0.05)


def test_shared_experts_run_beside_the_routed_ones_where_vllm_hands_them_over() -> None:
    def saved(model: str, side_stream_tokens: int) -> float:
        plan = build_request(model, "h200", engine="vllm@0.25").bind()
        beside = plan._replace(env={**plan.env, "side_stream_tokens": side_stream_tokens})
        return decode_seconds(plan, 1, 1000) - decode_seconds(beside, 1, 1000)

    assert saved("qwen1.5-moe-a2.7b", 256) == 0, "it has a stream for them"
    assert saved("granite-4.0-h-small", 0) == 0, "they are a layer of their own"
    assert saved("granite-4.0-h-small", 256) > 0.4e-3
