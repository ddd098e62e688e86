"""Flags that exclude each other or have no meaning for a model: one sentence that names the flag."""

from __future__ import annotations

import json
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


@pytest.mark.slow
def test_lengths_per_layer_count_the_tokens_of_images(run: Run) -> None:
    """576 tokens of a LLaVA image and 64 of text; half of the image's are dropped after two layers."""
    image = ("analyze", "llava-1.5-7b", "--images", "1x336x336", "--json")
    plain, same, pruned = (
        json.loads(run(*image, "--input-len", lengths).out)
        for lengths in ("64", ",".join(["640"] * 32), ",".join(["640"] * 2 + ["352"] * 30))
    )
    numbers = [key for key, value in plain["metrics"].items() if value is not None]
    assert [same["metrics"][key] for key in numbers] == pytest.approx([plain["metrics"][key] for key in numbers])
    assert same["memory"]["kv_cache_bytes"] == plain["memory"]["kv_cache_bytes"]
    token = plain["memory"]["kv_bytes_per_token"]
    assert plain["memory"]["kv_cache_bytes"] - pruned["memory"]["kv_cache_bytes"] == 288 * 30 / 32 * token
    before, after = (
        {(op["block"], op["name"]): op for op in each["phases"]["prefill"]["ops"]} for each in (plain, pruned)
    )
    tower = [key for key in before if key[0].startswith("vision")]
    assert tower and all(before[key]["seconds"] == after[key]["seconds"] for key in tower)
    product = ("layers.0-31", "gate_up_proj")
    assert after[product]["flops"] / before[product]["flops"] == pytest.approx((2 * 640 + 30 * 352) / (32 * 640))


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
