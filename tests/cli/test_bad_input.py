"""Bad requests: one sentence that repeats what was given and says what is allowed, exit code 2, nothing on stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, refused

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"


@pytest.mark.parametrize(
    ("flag", "given", "expected"),
    [
        ("--gpu", "h10", "h100"),
        ("--gpu", "zzz", "a100"),
        ("--engine", "vlm", "vllm"),
        ("--engine", "zzz", "sglang"),
        ("-q", "fp9", "fp8"),
        ("-q", "zzz", "bf16"),
        ("--dtype", "bf17", "bf16"),
        ("--dtype", "fp8", "-q"),
        ("--kv-cache-dtype", "zzz", "fp8"),
        ("--norm-dtype", "zzz", "fp32"),
        ("--usecase", "chatbto", "chatbot"),
        ("--usecase", "zzz", "summarization"),
        ("--explain", "qkv_prj", "qkv_proj"),
        ("--explain", "zzz", "attention"),
        ("--interconnect", "zzz", "nvlink"),
        ("--phase", "zzz", "prefill"),
        ("--attention", "zzz", "eager"),
        ("--frontend", "zzz", "http"),
        ("--efficiency", "zzz=0.5", "hbm"),
        ("--speculative-config", '{"zzz": 1}', "method"),
        ("--lora-targets", "zzz", "qkv_proj"),
    ],
)
def test_unknown_names_get_the_nearest_or_the_list(run: Run, flag: str, given: str, expected: str) -> None:
    more = ("--lora-rank", "8") if flag == "--lora-targets" else ()
    refused(run("analyze", MODEL, flag, given, *more, "--json"), given.strip('{}": 1').partition("=")[0], expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lama-3.1-8b", "llama-3.1-8b"),
        ("zzz", "config.json"),
        ("", "empty"),
        ("nobody/llama-3.1-9b", "nobody/llama-3.1-9b"),
        ("./nothing/here", "nothing/here"),
        ("nothing.json", "nothing.json"),
        ("nothing.toml", "nothing.toml"),
        ("a/b/c", "a/b/c"),
    ],
)
def test_unknown_models(run: Run, given: str, expected: str) -> None:
    refused(run("analyze", given, "--json"), expected)


@pytest.mark.parametrize(
    "flag",
    [
        "--engine",
        "-q",
        "--dtype",
        "--kv-cache-dtype",
        "--norm-dtype",
        "--usecase",
        "--explain",
        "--interconnect",
        "--phase",
        "--attention",
        "--frontend",
        "--efficiency",
        "--turns",
        "--input-len",
        "--gpu",
        "--batch-size",
        "-o",
    ],
)
def test_an_empty_word_is_not_a_default(run: Run, flag: str) -> None:
    refused(run("analyze", MODEL, flag, "", "--json"))


WHOLE = [
    "--batch-size",
    "--input-len",
    "--output-len",
    "--beam-width",
    "-tp",
    "-pp",
    "-dp",
    "-dcp",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--block-size",
    "--gpus-per-node",
    "--nodes",
    "--lora-rank",
]


@pytest.mark.parametrize("flag", WHOLE)
@pytest.mark.parametrize("given", ["0", "-1", "abc", "1.5", "1e30", "99999999999999999999", "nan", "inf"])
def test_counts_are_positive_whole_numbers(run: Run, flag: str, given: str) -> None:
    ran = run("analyze", MODEL, flag, given, "--json")
    refused(ran)
    assert given in ran.err.replace(",", ""), ran.err


@pytest.mark.parametrize("flag", ["--prefix-len", "--micro-batches"])
@pytest.mark.parametrize("given", ["-1", "abc", "1.5", "99999999999999999999"])
def test_counts_that_may_be_zero(run: Run, flag: str, given: str) -> None:
    assert run("analyze", MODEL, flag, "0", "--json").code == 0
    refused(run("analyze", MODEL, flag, given, "--json"))


@pytest.mark.parametrize(
    ("flag", "good"),
    [
        ("--gpu-memory-utilization", "0.5"),
        ("--efficiency", "0.5"),
        ("--routing-skew", "0.5"),
        ("--cpu-offload-gb", "1"),
    ],
)
@pytest.mark.parametrize("given", ["-0.1", "abc", "1e30", "nan", "inf"])
def test_shares_and_amounts(run: Run, flag: str, good: str, given: str) -> None:
    assert run("analyze", MODEL, flag, good, "--json").code == 0
    refused(run("analyze", MODEL, flag, given, "--json"), flag)


@pytest.mark.parametrize(
    "given",
    [
        "0",
        "1.1",
        "flops=0",
        "flops=1.1",
        "flops=",
        "flops",
        "flops=0.5,hbm=x",
        "=0.5",
        ",",
        "hbm=nan",
        "intra=inf",
        "inter=-1",
        "flops=1e-320",
        "1e-300",
    ],
)
def test_efficiency_is_in_zero_to_one(run: Run, given: str) -> None:
    refused(run("analyze", MODEL, "--efficiency", given, "--json"), "efficiency")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("zzz=1", "zzz"),
        ("memory=abc", "abc"),
        ("memory=-1", "-1"),
        ("memory=0", "0"),
        ("memory=inf", "inf"),
        ("memory=nan", "nan"),
        ("memory", "memory"),
        ("memory=", "memory"),
        ("memory_bandwith=1", "memory_bandwidth"),
        ("flops=1", "flops.fp8"),
        ("flops.bf16=0", "flops.bf16"),
        ("flops.bf61=1e15", "flops.bf16"),
        ("links.zzz.bandwidth=1", "links"),
        ("links.nvlink.latency=-1", "latency"),
        ("links.nvlink.latency=nan", "latency"),
        ("links.nvlink.devices=0", "devices"),
        ("power=-5", "power"),
        ("price_per_hour=nan", "price_per_hour"),
        ("gpus_per_node=0", "gpus_per_node"),
        ("name=5", "name"),
        ("compute_units=1.5", "compute_units"),
        ("interconnect=zzz", "nvlink"),
        ("memory.x=3", "memory.x"),
        ("source.memory=3", "source"),
        ("label=3", "label"),
        ("aliases=3", "aliases"),
        (":", ":"),
    ],
)
def test_figures_of_a_gpu(run: Run, given: str, expected: str) -> None:
    refused(run("analyze", MODEL, "--gpu", f"h100-sxm:{given}", "--json"), expected)


def test_one_gpu_type_at_a_time(run: Run) -> None:
    refused(run("analyze", MODEL, "--gpu", "h100-sxm,h200", "--json"), "one")


@pytest.mark.parametrize(
    "given", ["1", "1:2:3", "1:", ":1", "0:1", "1:0", "-1:1", "a:b", "1:2,", "1:2;3:4", "99999999999:1"]
)
def test_turns(run: Run, given: str) -> None:
    refused(run("analyze", MODEL, "--turns", given, "--json"), "--turns")


@pytest.mark.parametrize("given", ["1", "1x2", "0x8x8", "1x0x8", "ax8x8", "1x99999999x8", "-1x8x8", "1x8x8x8"])
def test_images(run: Run, given: str) -> None:
    refused(run("analyze", "qwen2.5-vl-7b", "--images", given, "--json"), "--images")


def test_images_need_eyes(run: Run) -> None:
    refused(run("analyze", MODEL, "--images", "1x896x896", "--json"), "vision")


def test_lengths_per_layer_must_be_one_per_layer(run: Run) -> None:
    refused(run("analyze", MODEL, "--input-len", "8,8,8", "--json"), "3", "32 layers")
    refused(run("analyze", MODEL, "--input-len", ",".join(["8"] * 31 + ["0"]), "--json"), "--input-len")
    refused(run("analyze", MODEL, "--input-len", "8,,8", "--json"), "8,,8")


def test_a_prefix_is_shorter_than_its_prompt(run: Run) -> None:
    refused(run("analyze", MODEL, "--prefix-len", "1024", "--json"), "1,024")


@pytest.mark.parametrize(
    "args",
    [
        ("analyze",),
        ("zzz",),
        ("show",),
        ("show", "zzz"),
        ("analyze", MODEL, "--zzz", "1"),
        ("analyze", MODEL, "another"),
        ("analyze", MODEL, "--batch-size"),
    ],
)
def test_words_that_are_no_command(run: Run, args: tuple[str, ...]) -> None:
    refused(run(*args))


@pytest.mark.parametrize("kind", ["models", "hardware", "engines", "precisions", "usecases", "families"])
def test_show_knows_what_it_has(run: Run, kind: str) -> None:
    refused(run("show", kind, "zzz", "--json"), "zzz", "allowed")


def test_output_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    refused(run("analyze", MODEL, "--json", "-o", str(tmp_path)), str(tmp_path), "folder")
    refused(run("analyze", MODEL, "--json", "-o", str(tmp_path / "no" / "x.json")), "x.json")
    refused(run("analyze", MODEL, "--csv", "-o", str(tmp_path / "no" / "x.csv")), "x.csv")
    refused(run("analyze", MODEL, "-o", str(tmp_path / "no" / "x.txt")), "x.txt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["9" * 5000, "a" * 70000])
def test_a_refusal_does_not_repeat_pages(run: Run, value: str) -> None:
    ran = run("analyze", "gpt2", "--max-num-seqs", value)
    refused(ran, "--max-num-seqs")
    assert len(ran.err) < 400


@pytest.mark.parametrize("verb", ["analyze", "train"])
def test_more_stages_than_layers(run: Run, verb: str) -> None:
    """Infeasible, and no dearer than as many stages as there are layers."""
    ran = run(verb, "gpt2", "-pp", "65535", "--json")
    assert ran.code == 1 and "needs at least 65535 layers, but the model has 12" in ran.json["reason"]


def test_a_flag_as_the_value_of_another(run: Run) -> None:
    refused(run("train", "gpt2", "--gpu", "--config"), "--config")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("analyze --efficiency 1e-320", "from 1e-06 to 1, not 1e-320"),
        ("analyze --efficiency flops=1e-300", "--efficiency flops must be"),
        ("train --efficiency hbm=1e-300", "--efficiency hbm must be"),
        ("sweep --efficiency 1e-300", "from 1e-06 to 1"),
        ("simulate --request-rate 1e-320", "from 1e-09, or inf"),
        ("simulate --request-rate 5 --burstiness 1e-300", "--burstiness must be"),
        ("search --num-gpus 1 --request-rate 1e-320", "from 1e-09, or max"),
    ],
)
def test_figures_beyond_reason_are_refused(run: Run, args: str, expected: str) -> None:
    verb, *flags = args.split()
    refused(run(verb, MODEL, *flags), expected)


@pytest.mark.parametrize(
    "args",
    [("--config", "\x00"), ("--profile", "\n"), ("--trace", "\x00"), ("--calibration", "a\nb"), ("--config", "\ud800")],
)
def test_names_of_files_that_are_none(run: Run, args: tuple[str, str]) -> None:
    refused(run("simulate", "gpt2", *args))


@pytest.mark.parametrize("figure", ["links.nvlink.bandwidth=5e-324", "clock=1e-320", "power=1e-320"])
def test_figures_that_leave_the_range_of_numbers(run: Run, figure: str) -> None:
    refused(run("analyze", "gpt2", "-tp", "2", "--gpu", f"h100-sxm:{figure}"), figure.partition("=")[0])
