"""Flags that exclude each other or have no meaning for a model: one sentence that names the flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, refused

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"


@pytest.mark.parametrize(
    ("flag", "more"),
    [
        ("--prefix-len", ("3",)),
        ("--speculative-config", ('{"method": "ngram"}',)),
        ("--pipeline-parallel-size", ("2",)),
        ("--micro-batches", ("2",)),
        ("--turns", ("8:8",)),
        ("--enable-chunked-prefill", ()),
    ],
)
def test_lengths_per_layer_stand_alone(run: Run, flag: str, more: tuple[str, ...]) -> None:
    ran = run("analyze", MODEL, "--input-len", ",".join(["64"] * 32), flag, *more, "--json")
    refused(ran, f"per-layer lengths cannot be combined with {flag}")


def test_lengths_per_layer_without_images(run: Run) -> None:
    ran = run("analyze", "qwen2.5-vl-7b", "--input-len", ",".join(["64"] * 28), "--images", "1x28x28")
    refused(ran, "per-layer lengths cannot be combined with --images")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--turns", "1:2"),
        ("--beam-width", "1"),
        ("--speculative-config", "{}"),
        ("--output-len", "5"),
        ("--prefix-len", "2"),
        ("--images", "1x8x8"),
        ("--phase", "decode"),
        ("--usecase", "chatbot"),
    ],
)
def test_what_a_diffusion_model_has_not(run: Run, flag: str, value: str) -> None:
    refused(run("analyze", "DiT-XL/2", flag, value, "--json"), flag, "does not apply to a diffusion model")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--lora-targets", "qkv_proj"), "--lora-rank"),
        (("--lora-adapters", "4"), "--lora-rank"),
        (("--speculative-config", ""), "--speculative-config"),
        (("-o", ""), "--output"),
        (("--plot", ""), "--plot"),
        (("--plot", " "), "--plot"),
        (("--explain", "o_proj", "--csv"), "--csv"),
        (("--explain", "o_proj", "--plot", "x"), "--plot"),
        (("--json", "--csv"), "--json"),
        (("--csv", "--json"), "--csv"),
        (("--phase", "decode", "--output-len", "1"), "at least 2"),
        (("--phase", "decode", "--turns", "8:1"), "at least 2"),
        (("--max-num-seqs", "1", "--batch-size", "4"), "--max-num-seqs 1"),
        (("--max-num-seqs", "7", "--batch-size", "2", "--beam-width", "4"), "--max-num-seqs 7"),
        (("--kv-cache-dtype", "w4a16"), "int8"),
        (("--kv-cache-dtype", "nvfp4"), "fp8"),
        (("--norm-dtype", "int4"), "fp32"),
        (("--gpu", "h200:compute_units=1.5"), "whole number, not 1.5"),
        (("--gpu", "h100:memory=80"), "SI units"),
        (("--gpu", "h100:memory_bandwidth=3.35"), "SI units"),
        (("--gpu", "h100:flops.bf16=989"), "SI units"),
    ],
)
def test_flags_without_a_meaning(run: Run, args: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    refused(run("analyze", MODEL, *args), expected)


@pytest.mark.parametrize("verb", [("train", MODEL), ("show", "engines")])
def test_one_form_and_a_name_for_every_verb(run: Run, verb: tuple[str, str]) -> None:
    refused(run(*verb, "--json", "--csv"), "--json")
    refused(run(*verb, "-o", ""), "--output")


def test_a_comma_at_the_end_is_no_second_gpu(run: Run) -> None:
    assert run("analyze", MODEL, "--gpu", "h100-sxm,", "--json").json["device"]["name"] == "h100-sxm"
