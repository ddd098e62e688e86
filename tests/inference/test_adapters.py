"""LoRA adapters: which layers they extend by default, and what they weigh."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Ran, refused

from inferometer import Report

Run = Callable[..., Ran]
Reports = Callable[..., Report]


@pytest.mark.slow
def test_the_usual_adapters_of_latent_attention(report: Reports) -> None:
    targets = set(report("deepseek-v3", gpu="b200", tensor_parallel_size=8, lora_rank=8).plan["lora"]["targets"])
    assert targets == {"qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj", "gate_up_proj", "down_proj", "shared_experts"}
    small = set(report("deepseek-v2-lite", lora_rank=8).plan["lora"]["targets"])
    assert {"q_proj", "kv_a_proj"} < small and "experts" not in small


def test_adapters_of_shared_experts_have_a_way_down_for_gate_and_up(report: Reports) -> None:
    kwargs = {"gpu": "b200", "tensor_parallel_size": 8}
    plain = report("deepseek-v3", **kwargs).memory.weights_bytes
    adapted = report("deepseek-v3", lora_rank=8, lora_targets="shared_experts", **kwargs).memory.weights_bytes
    per_layer = 2 * 7168 + 2 * 2048 / 8 + 2048 / 8 + 7168  # gate and up share no way down; 1/8 of the inner width
    assert adapted - plain == pytest.approx(58 * 2 * 8 * per_layer)


def test_a_model_without_usual_targets_names_its_own(run: Run) -> None:
    refused(run("analyze", "mamba-2.8b", "--lora-rank", "8"), "--lora-targets", "in_proj", "x_proj")
    assert run("analyze", "mamba-2.8b", "--lora-rank", "8", "--lora-targets", "in_proj", "--json").code == 0
