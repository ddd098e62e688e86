"""Where figures come from: measured, fitted or assumed, and the warnings that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ran

import inferometer
from inferometer import Report
from inferometer.costs import collectives

Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"
Run = Callable[..., Ran]


def origins(report: inferometer.Report, name: str) -> set[str]:
    return {op.origin for phase in report.phases.values() for op in phase.ops if op.name == name and op.seconds > 0}


def test_kernels_of_other_devices_are_a_warning(report: Reports) -> None:
    def doubts(**kwargs: Any) -> list[str]:
        return [
            w
            for w in report(MODEL, **kwargs).warnings
            if "are scaled from" in w or "assumed from measurements of one H200" in w
        ]

    assert doubts(gpu="h200") == doubts(gpu="h100-sxm") == doubts(gpu="rtx4090") == []  # of measured architectures
    (doubt,) = doubts(gpu="t4")
    assert (
        doubt.startswith("no GPU like the T4 was measured: kernels are scaled from the L40S (GDDR6, ")
        and "A100-SXM-80GB" in doubt
    )
    assert doubts(gpu="mi300x") == ["kernel efficiencies are assumed from measurements of one H200"]
    assert doubts(gpu="t4", engine="roofline") == doubts(gpu="t4", efficiency=0.5) == []


@pytest.mark.parametrize(
    ("kwargs", "origin"),
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
def test_collectives_say_what_nobody_measured(kwargs: dict[str, Any], origin: str) -> None:
    result = inferometer.analyze("llama-3.1-8b", tensor_parallel_size=4, output_len=2, **kwargs)
    assert origins(result, "all_reduce") == {origin}


def test_an_assumed_collective_is_explained_as_one(run: Run) -> None:
    text = run("analyze", "llama-3.1-8b", "--gpu", "mi300x", "-tp", "4", "--explain", "all_reduce").out
    assert "○ assumed" in text and "the other protocols assumed as in direct" in text
    assert "xgmi (192 of 448 GB/s: 3 of 7 links)" in text  # a mesh: what limits four of eight cards
    assert collectives.origin("all_gather", "nvlink", "hopper", "sglang") == "fitted"  # NCCL's, whoever calls it
    assert collectives.origin("all_reduce", "something-new") == "assumed"
