"""What sits where and what travels: by rank and link, the same sums as the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ran

from inferometer.inference.analyze import report_of
from inferometer.inference.placement import Placement, placement, shard
from inferometer.inference.report import Report
from inferometer.inference.request import build_request
from inferometer.network.operators import KINDS

MTP = '{"method": "mtp", "num_speculative_tokens": 3}'
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one GPU": ("llama-3.1-8b", "h200", {}),
    "tp": ("llama-3.1-70b", "h200", {"tensor_parallel_size": 8}),
    "tp over two nodes": ("llama-3.1-70b", "h200", {"tensor_parallel_size": 16, "batch_size": 16}),
    "tp and pp": ("llama-3.1-70b", "h200", {"tensor_parallel_size": 4, "pipeline_parallel_size": 3, "batch_size": 8}),
    "attention-DP": (
        "deepseek-v3",
        "h200",
        {"data_parallel_size": 4, "tensor_parallel_size": 4, "enable_expert_parallel": True, "batch_size": 64},
    ),
    "a rack": ("deepseek-v3", "gb200", {"data_parallel_size": 72, "enable_expert_parallel": True, "batch_size": 72}),
    "replicas": ("llama-3.1-8b", "h200", {"data_parallel_size": 3, "batch_size": 6}),
    "drafts": ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "speculative_config": MTP}),
    "images": (
        "qwen2.5-vl-7b",
        "h200",
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "images": "1x448x448"},
    ),
    "context": ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}),
    "offload": ("llama-3.1-8b", "h200", {"cpu_offload_gb": 8}),
    "bridges": ("llama-3.1-8b", "h100-nvl", {"tensor_parallel_size": 4, "enable_chunked_prefill": True}),
    "sequence parallel, overlapped": (
        "llama-3.1-8b",
        "h200",
        {"tensor_parallel_size": 4, "sequence_parallel": True, "overlap": 0.5},
    ),
}


@pytest.fixture(scope="module", params=PLANS)
def both(request: pytest.FixtureRequest) -> tuple[Placement, Report]:
    model, gpu, plan = PLANS[request.param]
    built = build_request(model, gpu, **plan)
    return placement(built), report_of(built)


def test_the_bytes_of_all_ranks_are_the_reports(both: tuple[Placement, Report]) -> None:
    placed, report = both
    fullest = max((stage.memory for stage in placed.stages), key=lambda held: held.total_bytes)
    for name in ("weights_bytes", "kv_cache_bytes", "activation_bytes", "overhead_bytes", "total_bytes"):
        assert getattr(fullest, name) == getattr(report.memory, name)
    total = sum(placed.stages[rank.stage].memory.weights_bytes for rank in placed.ranks)
    assert total <= report.memory.weights_bytes * report.plan["gpus"] * (1 + 1e-12)
    if len(placed.stages) == 1:
        assert total == pytest.approx(report.memory.weights_bytes * report.plan["gpus"])
    for stage in placed.stages:
        assert sum(stage.weights.values()) == pytest.approx(stage.memory.weights_bytes)


def test_each_rank_has_one_place(both: tuple[Placement, Report]) -> None:
    placed, report = both
    sizes = placed.parallel
    assert len(placed.ranks) == placed.num_gpus == report.plan["gpus"] == sizes["tp"] * sizes["dp"] * sizes["pp"]
    assert len({(rank.stage, rank.dp, rank.tp) for rank in placed.ranks}) == placed.num_gpus
    assert max(Counter(rank.node for rank in placed.ranks).values()) <= placed.gpus_per_node
    layers = [layer for stage in placed.stages for layer in range(stage.layers[0], stage.layers[1] + 1)]
    assert layers == list(range(report.model.layers))


def test_what_travels_is_what_the_operators_send(both: tuple[Placement, Report]) -> None:
    """Every communication operator of the report is a flow of its stage, once, with the same bytes and seconds."""
    placed, report = both
    moving = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "host_copy"}
    assert moving <= {*KINDS, "host_copy"}
    for phase, table in report.phases.items():
        slowest = placed.phases[phase].slowest_stage
        assert placed.phases[phase].seconds == table.seconds
        ops = [(op.block, op.name, op.count, op.sent, op.seconds) for op in table.ops if op.kind in moving and op.sent]
        own = [flow for stage in placed.stages if stage.stage == slowest for flow in stage.flows[phase]]
        if slowest:  # a table has the images, which are the first stage's, whichever stage it is of
            own += [flow for flow in placed.stages[0].flows[phase] if flow.block.startswith("vision")]
        flows = [(f.block, f.name, f.count, f.sent, f.seconds) for f in own if not f.draft]
        assert len(flows) == len(ops)
        for flow, op in zip(sorted(flows), sorted(ops), strict=True):
            assert flow[:2] == op[:2] and flow[2:] == pytest.approx(op[2:])
        drafted = sum(flow.sent for stage in placed.stages for flow in stage.flows[phase] if flow.draft)
        assert drafted == pytest.approx(sum(op.sent for op in table.ops if op.kind == "draft"))


def test_bytes_go_over_links_that_are_there(both: tuple[Placement, Report]) -> None:
    placed, report = both
    known = {link.name: link for link in placed.links}
    crossing = max(rank.domain for rank in placed.ranks) > 0
    for stage in placed.stages:
        for flow in (flow for flows in stage.flows.values() for flow in flows):
            assert sum(flow.links.values()) == pytest.approx(flow.sent) and set(flow.links) <= set(known)
            assert crossing or "network" not in flow.links
            assert flow.bandwidth <= flow.peak_bandwidth * (1 + 1e-9) or report.plan["overlap"]


def test_equal_stages_are_equal_but_for_their_layers() -> None:
    plan = {"tensor_parallel_size": 2, "pipeline_parallel_size": 5, "batch_size": 8}
    stages = placement(build_request("llama-3.1-70b", "h200", **plan)).stages
    assert [stage.layers for stage in stages] == [[0, 15], [16, 31], [32, 47], [48, 63], [64, 79]]
    assert stages[1].memory == stages[3].memory and stages[0].weights["embedding"] == stages[4].weights["head"]
    assert [flow.block for flow in stages[3].flows["decode"]] == ["layers.48-63", "layers.48-63", "pipeline"]


def test_heads_layers_and_experts_of_a_rank() -> None:
    model, gpu, plan = PLANS["attention-DP"]
    ranks = placement(build_request(model, gpu, **plan)).ranks
    assert [rank.experts for rank in ranks] == [[16 * i, 16 * i + 15] for i in range(16)]
    assert ranks[5].dp == 1 and ranks[5].tp == 1 and ranks[5].heads == [32, 63] and ranks[9].node == 1
    assert shard(8, 5, 16) == [2, 2], "two ranks share each KV head"
    assert [shard(256, i, 72) for i in (0, 39, 40, 71)] == [[0, 3], [156, 159], [160, 162], [253, 255]]
    assert sum(b - a + 1 for a, b in (shard(256, i, 72) or [0, 0] for i in range(72))) == 256


def test_a_ring_across_nodes_sends_its_part_over_the_network() -> None:
    """Of 2·15/16 of a tensor, 2·7/8 go round inside a node and 2·(1/8)·(1/2) to the other one."""
    model, gpu, plan = PLANS["tp over two nodes"]
    flow = placement(build_request(model, gpu, **plan)).stages[0].flows["decode"][0]
    tensor = flow.sent / (2 * 15 / 16)
    assert flow.links == pytest.approx({"nvlink": 2 * 7 / 8 * tensor, "network": 2 / 8 / 2 * tensor})


def test_a_layout_that_cannot_be_is_a_result(run: Callable[..., Ran]) -> None:
    placed = placement(build_request("llama-3.1-70b", "h200", tensor_parallel_size=3))
    assert not placed.feasible and "are not divisible by tp 3" in placed.reason and placed.ranks == []
    ran = run("analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "8", "--cluster", "--json")
    assert ran.code == 0 and json.loads(ran.out)["ranks"][7]["heads"] == [56, 63]
    text = run("analyze", "llama-3.1-70b", "--gpu", "h100-sxm", "--cluster")
    assert text.code == 1 and "the fullest GPU needs 144 GB" in text.out and "free of" in text.out
    rows = run("analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "2", "--cluster", "--csv").out.splitlines()
    assert len(rows) == 3 and rows[2].startswith("1,0,0,0,0,1,0,32-63,4-7,,0-79,")
