"""What would make a plan fit: every proposal is tried, and only what the device can run is proposed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Ran

import inferometer
from inferometer.inference import advice
from inferometer.inference.request import build_request

Run = Callable[..., Ran]


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
    request = build_request(name, gpu, dtype="fp16", batch_size=8 if "v100" in gpu else 1)
    reason = inferometer.analyze(name, gpu=gpu, dtype="fp16", batch_size=request.workload.batch_size).reason or ""
    assert "-q w8a16" in reason and "fp8" not in reason.replace("--kv-cache-dtype fp8", "")
    assert not advice._runs(request.device, "fp8") and advice._runs(request.device, "w4a16")


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
    for way in ways.split(" or ") if ways else []:
        flags = way.partition(" (")[0].split()  # what stands after them is how many nodes that takes
        again = run("analyze", *args, *flags, "--json")
        assert again.code == 0, f"{way}: {again.json['reason']}"


def test_a_layout_that_does_not_divide_is_infeasible(run: Run) -> None:
    ran = run("analyze", "llama-3.1-8b", "-tp", "3", "--json")
    assert ran.code == 1 and "32" in ran.json["reason"] and "3" in ran.json["reason"]
    assert ran.json["plan"]["tensor_parallel_size"] == 3
