"""What limits a plan, said in the report's own figures; what would make it work: every proposal is tried."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Ran

import inferometer
from inferometer.base.units import percent, seconds
from inferometer.inference import remedies
from inferometer.inference.report import Report
from inferometer.inference.request import build_request

Run = Callable[..., Ran]


def test_more_nodes_are_proposed() -> None:
    reason = inferometer.analyze("llama-3.1-405b", gpu="h100-sxm").reason or ""
    assert "-tp 16 (2 nodes)" in reason and "-pp 16 (2 nodes)" in reason
    given = inferometer.analyze("llama-3.1-405b", gpu="h100-sxm", nodes=1, tensor_parallel_size=8).reason or ""
    assert "-tp 16 (2 nodes), -pp 2 (2 nodes), -q fp8 or --gpu h200" in given
    odd = inferometer.analyze("qwen2.5-7b", gpu="rtx4090:memory=12e9", dtype="bf16").reason or ""
    assert "-tp 2" in odd and "nodes" not in odd
    rack = inferometer.analyze("llama-3.1-405b", gpu="gb200").reason or ""
    assert "-tp 8" in rack and "nodes" not in rack  # 8 of the 72 that one NVLink domain joins


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm-16gb", "a100-sxm-40gb"])
def test_only_precisions_that_the_device_runs_are_proposed(gpu: str) -> None:
    name = "llama-2-13b" if gpu.startswith("a100") else "llama-3.1-8b"
    gpu = f"{gpu}:memory=18e9" if gpu.startswith("a100") else gpu
    request = build_request(name, gpu, dtype="fp16", batch_size=8 if "v100" in gpu else 1)
    reason = inferometer.analyze(name, gpu=gpu, dtype="fp16", batch_size=request.workload.batch_size).reason or ""
    assert "-q w8a16" in reason and "fp8" not in reason.replace("--kv-cache-dtype fp8", "")
    assert not remedies.runs_on(request.device, "fp8") and remedies.runs_on(request.device, "w4a16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("llama-3.1-70b", "--gpu", "h100-sxm"),
        ("llama-3.1-405b", "--gpu", "h200"),
        ("llama-3.1-8b", "--gpu", "t4"),
        ("llama-3.1-8b", "--batch-size", "1024", "--input-len", "4096"),
        ("llama-2-7b", "--gpu", "a100-sxm-40gb", "--batch-size", "100"),
        ("mixtral-8x22b-v0.1", "--gpu", "b200"),
        ("qwen3-235b-a22b", "--gpu", "b300"),
        ("llama-3.1-8b", "--turns", "60000:2000,60000:2000", "--batch-size", "8"),
        ("llama-2-13b", "--beam-width", "16", "--batch-size", "16", "--gpu", "a100-sxm-80gb", "--input-len", "3000"),
        ("llama-2-7b", "--batch-size", "64", "--engine", "hf", "--gpu", "a100-sxm-40gb"),
        ("qwen2.5-vl-7b", "--images", "8x1344x1344", "--batch-size", "64"),
        ("llama-2-7b", "--batch-size", "48", "--gpu", "a100-sxm-40gb", "--prefix-len", "512"),
    ],
)
def test_what_is_said_to_fit_does_fit(run: Run, args: tuple[str, ...]) -> None:
    ran = run("analyze", *args, "--json")
    assert ran.code == 1 and ran.json["feasible"] is False
    reason = ran.json["reason"]
    assert f"infeasible: {reason}" in ran.err and re.match(r"needs [\d.]+ .?B of [\d.]+ .?B usable per GPU", reason)
    assert (
        ran.json["memory"]["total_bytes"] > ran.json["memory"]["usable_bytes"] and ran.json["phases"]["prefill"]["ops"]
    )
    ways = reason.partition("fits with ")[2]
    for way in re.split(" or |, ", ways) if ways else []:
        flags = way.partition(" (")[0].split()  # what stands after them is how many nodes that takes
        again = run("analyze", *args, *flags, "--json")
        assert again.code == 0, f"{way}: {again.json['reason']}"


def test_a_layout_that_does_not_divide_is_infeasible(run: Run) -> None:
    ran = run("analyze", "llama-3.1-8b", "-tp", "3", "--json")
    assert ran.code == 1 and "32" in ran.json["reason"] and "3" in ran.json["reason"]
    assert ran.json["plan"]["tensor_parallel_size"] == 3
    assert ran.json["infeasibility"]["problem"] == "32 attention heads are not divisible by tp 3"
    assert ran.json["infeasibility"]["remedies"] == [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 4}]


# ------------------------------------------------------------------ what limits

CLAUSE = re.compile(
    r"(?:(prefill|decode|a denoising step) |and )(?:is )?(?:(\w+)-bound|waits for other pipeline stages|drafts tokens) "
    r"for ([\d.]+%)(?: of its ([\d.]+ \w+))?(?: \(([^)]*)\))?",
    re.I,
)


def clauses(report: Report) -> Iterator[tuple[Any, str, float, str]]:
    """Phase, bound, share and what stands in parentheses, of every clause of the sentence."""
    phase: Any = None
    for name, bound, share, took, details in CLAUSE.findall(report.summary):
        if name:
            phase = report.phases["prefill" if "step" in name else name.lower()]
            assert took == seconds(phase.seconds), "shares are of the phase"
        yield phase, bound, share, details


PLANS = itertools.chain(
    itertools.product(("llama-3.1-8b", "qwen3-30b-a3b"), ("h200", "a100-sxm-80gb"), (1, 4), (1, 64), (128, 8192)),
    [("deepseek-v3", "h200", 8, 64, 4096), ("llama-3.1-70b", "h100-sxm", 8, 16, 16384)],
    itertools.product(("mamba-2.8b", "gpt-oss-20b", "gemma-3-4b"), ("l4", "mi300x"), (2,), (1, 32), (1024,)),
    [("dit-xl-2", "a100-sxm-80gb", 1, 1, 256), ("dit-xl-2", "h100-sxm", 1, 64, 256)],
)


@pytest.mark.slow
def test_the_sentence_says_what_the_operators_say() -> None:
    runners_up = 0
    for model, gpu, tp, batch, length in PLANS:
        report = inferometer.analyze(model, gpu=gpu, tensor_parallel_size=tp, batch_size=batch, input_len=length)
        where = (model, gpu, tp, batch, length, report.summary)
        parts = list(clauses(report))
        assert len({id(phase) for phase, *_ in parts}) == len(report.phases), where
        assert report.summary.startswith("If it fitted: ") is not report.feasible, where
        assert "most" not in report.summary and "host_overhead" not in report.summary, where
        for phase, bound, share, details in parts:
            ops = [op for op in phase.ops if op.bound == bound]
            assert share == percent(sum(op.share for op in ops)), where
            top = max({op.name for op in ops}, key=lambda name: sum(op.share for op in ops if op.name == name))
            top_share = percent(sum(op.share for op in ops if op.name == top))
            single = "host overhead" if bound == "host" else top
            expected = single if top_share == share else f"largest: {top}, {top_share}"
            assert details.partition("; ")[0] == expected, where
        runners_up += len(parts) - len(report.phases)
    assert runners_up > 5, "a second bound is named where it is near"


def test_a_second_bound_that_is_near_is_named() -> None:
    rag = {"tensor_parallel_size": 8, "quantization": "fp8", "batch_size": 16, "input_len": 16384}
    summary = inferometer.analyze("llama-3.1-70b", gpu="h100-sxm", **rag).summary
    clause = r"Prefill is compute-bound for [45]\d\.\d% of its 1[01]\.\d s \(largest: gate_up_proj, \d+\.\d%\) and "
    assert re.match(clause + r"communication-bound for \d+\.\d% \(all_reduce\); decode is memory-bound", summary)
    alone = inferometer.analyze("llama-3.1-8b", gpu="h100-sxm").summary
    assert " and " not in alone.partition("; decode")[0], "what is far behind is not"


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.1-8b", {"tensor_parallel_size": 3}, "-tp 2 or -tp 4"),
    ("qwen2.5-7b", {"tensor_parallel_size": 8}, "-tp 4"),
    ("llama-3.2-1b", {"pipeline_parallel_size": 17}, "-pp 16"),
    ("llama-3.1-8b", {"tensor_parallel_size": 8, "nodes": 1, "gpus_per_node": 4}, "--nodes 2 or -tp 4"),
    ("llama-3.1-405b", {"tensor_parallel_size": 3}, "-tp 16 (2 nodes)"),
    ("qwen3-30b-a3b", {"tensor_parallel_size": 8, "data_parallel_size": 32, "enable_expert_parallel": True}, "-dp 16"),
    ("llama-3.1-8b", {"input_len": 900_000}, "--input-len"),
    ("llama-3.1-70b", {}, "--gpu b100"),
    ("llama-3.1-70b", {"engine": "sglang", "kv_cache_dtype": "bf16", "batch_size": 64}, "-tp"),
    ("deepseek-v3", {}, "-tp 16 (2 nodes)"),
    ("dit-xl-2", {"batch_size": 20_000, "max_num_seqs": 20_000}, "--batch-size"),
]


@pytest.mark.parametrize(("model", "plan", "offered"), IMPOSSIBLE)
def test_every_remedy_makes_the_plan_work(model: str, plan: dict[str, Any], offered: str) -> None:
    report = inferometer.analyze(model, **plan)
    why = report.infeasibility
    assert why and not report.feasible and offered in why.reason and why.reason.startswith(f"{why.problem}; ")
    assert why.remedies and "would cut" not in report.summary and report.summary.startswith("If it ")
    for change in why.remedies:
        assert remedies.works(build_request(**{"model": model, **plan, **change})), change
    assert inferometer.analyze(**{"model": model, **plan, **why.remedies[0]}).feasible


def test_remedies_of_a_plan_that_its_arguments_no_longer_make_are_its_own() -> None:
    request = build_request("llama-3.1-8b", "h100-sxm", batch_size=8)
    larger = request._replace(workload=build_request("llama-3.1-8b", "h100-sxm", input_len=900_000).workload)
    from inferometer.inference.analyze import report_of

    why = report_of(larger).infeasibility
    assert why and {"kv_cache_dtype": "fp8"} in why.remedies and all("gpu" not in change for change in why.remedies)
