"""Layouts on stages, nodes and experts, with figures worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ran
from helpers.plans import bound_plan

import inferometer
from inferometer.base.symbols import evaluate
from inferometer.costs import parallelism
from inferometer.costs.binding import stage_plans, step_env, step_rows
from inferometer.costs.step import Group, Step
from inferometer.specs import catalog
from inferometer.specs.structs import Plan

Run = Callable[..., Ran]
PREFILL = Step((Group(4, 1024, 0),))


# ------------------------------------------------------------------ pipelines


def test_stages_launch_their_own_layers_only() -> None:
    waits = [
        (
            inferometer.analyze(
                "llama-3.1-70b",
                gpu="h100-sxm",
                tensor_parallel_size=2,
                pipeline_parallel_size=pp,
                input_len=64,
                host_profile="h200-vm",
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
    ran = run("analyze", "llama-3.1-8b", "-pp", "2", "--explain", "qkv_proj")
    assert ran.code == 0 and "layers.0-15" in ran.out and "16 ×" in ran.out


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


# ------------------------------------------------------------------ who drafts


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
