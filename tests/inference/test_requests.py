"""Requests that once were answered for another question, with a guess, with a traceback, or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Ran, command
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadFile, BadValue, InferometerError, Report, analyze, train
from inferometer.base.units import percent
from inferometer.inference.memory import parameters
from inferometer.inference.speculation import accepted
from inferometer.network import families
from inferometer.network.families.patterns import matches
from inferometer.specs import catalog

Run = Callable[..., Ran]
Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROLES = ("attn", "mlp", "experts", "shared")


def refused(ran: Ran, *words: str) -> None:
    assert ran.code == 2, (ran.code, ran.err, ran.out[:200])
    assert ran.out == "" and ran.err.count("\n") == 1 and ran.err.startswith("inferometer: "), ran.err
    for word in words:
        assert word in ran.err, f"{word!r} is not in {ran.err!r}"


def roles(section: Any, **more: Any) -> dict[str, str]:
    return families.build({**LLAMA, "quantization_config": section, **more}).quantization


# ------------------------------------------------------------------ conversations


def test_the_bound_of_a_conversation_is_a_mean_over_its_turns(report: Reports) -> None:
    talk = report(MODEL, turns="16:128,8192:128")
    first, last = report(MODEL, input_len=16), report(MODEL, input_len=16 + 128 + 8192, prefix_len=16 + 128)
    for word in ("ttft_ms", "tpot_ms"):
        each = [getattr(r.roofline, word) for r in (first, last)]
        assert getattr(talk.roofline, word) == pytest.approx(sum(each) / 2)
        assert getattr(talk.roofline, word) < getattr(talk.metrics, word)


def test_a_share_above_one_shows() -> None:
    assert [percent(x) for x in (0.1234, 0.9999, 1.0, 1.34)] == ["12.3%", "100%", "100%", "134.0%"]


def test_images_come_with_the_first_turn(report: Reports) -> None:
    seen = 36 * 36
    talk = report("qwen2.5-vl-7b", images="1x1008x1008", turns="16:12,32:4")
    assert [t.context for t in talk.turns] == [0, seen + 16 + 12]
    alone = report("qwen2.5-vl-7b", images="1x1008x1008", input_len=16, output_len=12)
    assert talk.turns[0].ttft_ms == pytest.approx(alone.metrics.ttft_ms)
    after = report("qwen2.5-vl-7b", input_len=seen + 28 + 32, prefix_len=seen + 28, output_len=4)
    assert talk.turns[1].ttft_ms == pytest.approx(after.metrics.ttft_ms)
    assert talk.memory.kv_cache_bytes == pytest.approx((seen + 16 + 12 + 32 + 4) * talk.memory.kv_bytes_per_token)


def test_one_turn_is_no_conversation(report: Reports) -> None:
    one = report("qwen2.5-vl-7b", images="1x1008x1008", turns="16:12")
    alone = report("qwen2.5-vl-7b", images="1x1008x1008", input_len=16, output_len=12)
    for ours, theirs in ((one.metrics, alone.metrics), (one.roofline, alone.roofline)):
        assert msgspec.to_builtins(ours) == pytest.approx(msgspec.to_builtins(theirs))


def test_turns_keep_to_the_phase(report: Reports) -> None:
    prompts = report(MODEL, turns="512:128,256:64", phase="prefill")
    assert prompts.metrics.tpot_ms is None and prompts.roofline.tpot_ms is None
    assert all(t.tpot_ms is None for t in prompts.turns) and prompts.metrics.output_throughput is None
    answers = report(MODEL, turns="512:128,256:64", phase="decode")
    assert answers.metrics.ttft_ms is None and answers.metrics.tpot_ms is not None


def test_images_count_against_the_limit(report: Reports) -> None:
    assert "2,448 tokens" in " ".join(report("qwen2.5-vl-7b", images="1x1008x1008", max_model_len=2000).warnings)


# ------------------------------------------------------------------ words that exclude each other


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


def test_diffusion_models_still_run() -> None:
    assert analyze("DiT-XL/2").feasible and analyze("DiT-XL/2", phase="prefill").metrics.tpot_ms is None
    assert train("DiT-XL/2", gpu="h100-sxm").step_seconds > 0


@pytest.mark.parametrize(
    ("args", "words"),
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
def test_flags_without_a_meaning(run: Run, args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    refused(run("analyze", MODEL, *args), words)


@pytest.mark.parametrize("verb", [("train", MODEL), ("show", "engines")])
def test_one_form_and_a_name_for_every_verb(run: Run, verb: tuple[str, str]) -> None:
    refused(run(*verb, "--json", "--csv"), "--json")
    refused(run(*verb, "-o", ""), "--output")


def test_sequences_at_once_count_by_replica() -> None:
    assert analyze(MODEL, batch_size=8, data_parallel_size=2, max_num_seqs=4).feasible
    with pytest.raises(BadValue, match="max-num-seqs"):
        analyze(MODEL, batch_size=9, data_parallel_size=2, max_num_seqs=4)


def test_a_comma_at_the_end_is_no_second_gpu(run: Run) -> None:
    assert run("analyze", MODEL, "--gpu", "h100-sxm,", "--json").json["device"]["name"] == "h100-sxm"


def test_the_limit_is_named_as_it_was_given(report: Reports) -> None:
    assert "1,152 tokens are more than --max-model-len 100" in report(MODEL, max_model_len=100).warnings


def test_one_output_token_has_rates(report: Reports) -> None:
    found = report(MODEL, output_len=1, batch_size=4).metrics
    assert found.ttft_ms and found.e2el_ms == found.ttft_ms and found.tpot_ms is None
    assert found.output_throughput == pytest.approx(4 / (found.ttft_ms / 1e3))
    assert found.cost_per_million_output_tokens and found.joules_per_output_token
    assert report(MODEL, output_len=1, phase="prefill").metrics.output_throughput is None


# ------------------------------------------------------------------ precisions


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia/DeepSeek-R1-NVFP4", "nvfp4"),
        ("nvidia/DeepSeek-R1-FP4", "nvfp4"),
        ("DeepSeek-R1-AWQ", "w4a16"),
        ("DeepSeek-R1-FP8", "fp8-block"),
        ("deepseek-ai/DeepSeek-R1", "fp8-block"),
        ("DeepSeek-R1-BF16", "bf16"),
    ],
)
def test_the_name_says_how_it_is_quantised(report: Reports, name: str, expected: str) -> None:
    found = report(name, gpu="b200", tensor_parallel_size=8)
    assert {role: found.model.quantization[role] for role in ROLES} == dict.fromkeys(ROLES, expected)


def test_a_name_of_the_declared_family_keeps_the_roles(report: Reports) -> None:
    named, plain = report("openai/gpt-oss-120b-MXFP4", gpu="h200"), report("gpt-oss-120b", gpu="h200")
    assert named.model.quantization == plain.model.quantization and plain.model.quantization["attn"] == "bf16"


def test_a_config_on_disk_knows_better_than_its_folder(tmp_path: Path) -> None:
    for name, section, expected in (("net-AWQ", {"quant_method": "fp8"}, "fp8"), ("net-awq-2", None, "w4a16")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": section}))
        assert analyze(str(folder)).model.quantization["mlp"] == expected


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": "8"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "odd"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": "int4"}}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "modelopt", "quant_algo": "W9"},
        {"quant_method": "modelopt", "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "W9"}}},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "awq", "bits": 5},
        {"quant_method": "bitsandbytes"},
        {"quant_method": "torchao"},
        {"quant_method": "hqq"},
        {"quant_method": "eetq"},
        {"bits": 4},
    ],
)
def test_a_quantisation_is_never_guessed(section: dict[str, Any]) -> None:
    with pytest.raises(BadFile, match="take the section out and set -q") as error:
        roles(section)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "section",
    [
        "fp8",
        ["fp8"],
        8,
        {"quant_method": "fp8", "ignore": 5},
        {"quant_method": "compressed-tensors", "config_groups": [5]},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": 5}}},
        {"quant_method": "modelopt", "quantized_layers": 5},
    ],
)
def test_a_section_of_the_wrong_shape_is_named(section: Any) -> None:
    key = next((k for k in ("ignore", "targets", "config_groups", "quantized_layers") if k in str(section)), "")
    with pytest.raises(BadFile, match=key or "quantization_config"):
        roles(section)
    with pytest.raises(BadFile):
        families.build({"text_config": {**LLAMA, "quantization_config": section}, "model_type": "llama"})


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "INT8_SQ"}, "int8"),
        ({"quant_method": "gptq", "bits": 8}, "w8a16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "w8a16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, "w4a16"),
    ],
)
def test_schemes_that_are_known(section: dict[str, Any], expected: str) -> None:
    assert roles(section) == dict.fromkeys(ROLES, expected)


def test_sixteen_bits_are_as_they_were() -> None:
    assert roles({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 16}}}}) == {}


def test_a_class_of_modules_and_some_by_name() -> None:
    int8 = {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}
    four = {"targets": ["re:.*mlp.experts.*"], "weights": {"num_bits": 4, "group_size": 32}}
    found = roles(
        {"quant_method": "compressed-tensors", "config_groups": {"a": int8, "b": four}, "ignore": ["re:.*self_attn.*"]}
    )
    assert found == {"mlp": "int8", "shared": "int8", "experts": "int4-g32"}


def test_meta_keeps_attention_of_the_fp8_405b() -> None:
    kept = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(126) for p in "qkvo"]
    found = roles({"quant_method": "fbgemm_fp8", "modules_to_not_convert": kept})
    assert "attn" not in found and found["mlp"] == "fp8"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "hf", "roofline"])
@pytest.mark.parametrize("model", ["mamba-2.8b", "mamba2-2.7b"])
def test_a_checkpoint_in_fp32(report: Reports, model: str, engine: str) -> None:
    found = report(model, engine=engine)
    wide = engine in ("hf", "roofline")
    assert found.plan["dtype"] == ("fp32" if wide else "bf16")
    assert any("checkpoint is fp32" in w for w in found.warnings) != wide
    kept = report(model, engine=engine, dtype="fp32")
    assert kept.plan["dtype"] == "fp32" and not any("checkpoint is fp32" in w for w in kept.warnings)
    assert kept.memory.weights_bytes == pytest.approx(found.memory.weights_bytes * (1 if wide else 2), rel=1e-3)


def test_a_device_without_bf16_takes_fp16(report: Reports) -> None:
    assert report("mamba-2.8b", gpu="t4").plan["dtype"] == "fp16"


# ------------------------------------------------------------------ methods


def test_the_usual_adapters_of_latent_attention(report: Reports) -> None:
    targets = set(report("deepseek-v3", gpu="b200", tensor_parallel_size=8, lora_rank=8).plan["lora"]["targets"])
    assert targets == {"qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj", "gate_up_proj", "down_proj", "shared_experts"}
    small = set(report("deepseek-v2-lite", lora_rank=8).plan["lora"]["targets"])
    assert {"q_proj", "kv_a_proj"} < small and "experts" not in small


def test_adapters_of_shared_experts_have_a_way_down_for_gate_and_up(report: Reports) -> None:
    words = {"gpu": "b200", "tensor_parallel_size": 8}
    plain = report("deepseek-v3", **words).memory.weights_bytes
    found = report("deepseek-v3", lora_rank=8, lora_targets="shared_experts", **words).memory.weights_bytes
    per_layer = 2 * 7168 + 2 * 2048 / 8 + 2048 / 8 + 7168  # gate and up share no way down; 1/8 of the inner width
    assert found - plain == pytest.approx(58 * 2 * 8 * per_layer)


def test_a_model_without_usual_targets_names_its_own(run: Run) -> None:
    refused(run("analyze", "mamba-2.8b", "--lora-rank", "8"), "--lora-targets", "in_proj", "x_proj")
    assert run("analyze", "mamba-2.8b", "--lora-rank", "8", "--lora-targets", "in_proj", "--json").code == 0


@pytest.mark.parametrize("length", [0, 0.5, 0.99, 4.01, "x", True])
def test_an_acceptance_length_is_possible(length: Any) -> None:
    with pytest.raises(BadValue, match="acceptance_length"):
        analyze(MODEL, speculative_config={"method": "ngram", "acceptance_length": length})


def test_acceptance() -> None:
    assert accepted(0.8, 3) == pytest.approx(2.952) and accepted(1.0, 3) == 4.0
    for length in (1, 4):
        words = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": length}
        assert analyze(MODEL, speculative_config=words).plan["speculation"]["acceptance_length"] == length


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_an_eagle_head_is_not_the_model_s_own_module(method: str) -> None:
    with pytest.raises(BadValue, match="'model'"):
        analyze("deepseek-v3", gpu="h200", tensor_parallel_size=8, speculative_config={"method": method})
    words = {"method": method, "model": "llama-3.2-1b", "acceptance_length": 2.5}
    assert analyze(MODEL, speculative_config=words).plan["speculation"]["method"] == "draft_model"


def test_an_assumed_acceptance_is_a_warning(report: Reports) -> None:
    assert any("assumed" in w and "0.7" in w for w in analyze(MODEL, speculative_config={"method": "ngram"}).warnings)
    told = analyze(MODEL, speculative_config={"method": "ngram", "acceptance_rate": 0.7})
    assert not any("speculative" in w for w in told.warnings)


def test_a_measured_acceptance_is_of_its_own_method() -> None:
    words: dict[str, Any] = {"gpu": "b200", "tensor_parallel_size": 8}
    own = analyze("deepseek-v4-pro", speculative_config={"method": "mtp", "num_speculative_tokens": 2}, **words)
    assert own.plan["speculation"]["source"] == "measured"
    other = analyze("deepseek-v4-pro", speculative_config={"method": "ngram", "num_speculative_tokens": 2}, **words)
    assert other.plan["speculation"]["source"].startswith("assumed")


def test_kernels_of_other_devices_are_a_warning(report: Reports) -> None:
    def doubts(**words: Any) -> list[str]:
        return [w for w in report(MODEL, **words).warnings if "stand in" in w or "assumed from one H200" in w]

    assert doubts(gpu="h200") == doubts(gpu="h100-sxm") == doubts(gpu="rtx4090") == []  # of measured architectures
    assert doubts(gpu="t4") == ["no turing GPU was measured: kernels of the H100-SXM stand in"]
    assert doubts(gpu="mi300x") == ["kernel efficiencies are assumed from one H200"]
    assert doubts(gpu="t4", engine="roofline") == doubts(gpu="t4", efficiency=0.5) == []


# ------------------------------------------------------------------ files and words that broke it


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        '{"hidden_size": ' + "9" * 5000 + "}",
        '{"hidden_size": ' + "9" * 4000 + ', "model_type": "llama"}',
    ],
)
def test_files_that_no_config_is(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = run("analyze", str(path), "--json")
    refused(ran, "config.json")
    assert len(ran.err) < 1000


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert analyze(str(path)).model.layers == 2
    device = tmp_path / "mine.toml"
    device.write_text("memory = 1e9\nmemory_bandwidth = 1e11\n[flops]\nbf16 = 1e12\n", encoding="utf-8-sig")
    assert catalog.hardware(str(device)).memory == 1e9


def test_toml_that_is_too_deep(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text("a = " + "[" * 50_000)
    refused(run("analyze", str(path)), "net.toml")


@pytest.mark.parametrize(
    "name", ["x" * 5000, "./" + "x" * 5000, "a/" + "x" * 5000, "~nosuchuser/x.json", "~nosuchuser"]
)
def test_names_that_no_file_has(run: Run, name: str) -> None:
    ran = run("analyze", name, "--json")
    refused(ran)
    assert len(ran.err) < 500
    for args in (("--gpu", f"{name}.toml"), ("--engine", f"{name}.toml"), ("-o", name)):
        refused(run("analyze", MODEL, "--json", *args))


@pytest.mark.parametrize(
    "words",
    [
        {"overlap": "x"},
        {"overlap": None},
        {"cpu_offload_gb": "x"},
        {"cpu_offload_gb": None},
        {"turns": [5]},
        {"turns": [(1, 2, 3)]},
        {"turns": 5},
        {"turns": []},
        {"engine": 5},
        {"quantization": ["fp8"]},
        {"input_len": {}},
        {"output_len": 10**5000},
        {"lora_rank": 8, "lora_targets": 5},
        {"lora_rank": 8, "lora_targets": []},
        {"lora_rank": 8, "lora_adapters": "x"},
        {"enable_expert_parallel": "x"},
        {"fusion": "x"},
        {"routing_skew": None},
        {"images": 5},
        {"gpu": 5},
        {"dtype": None},
        {"kv_cache_dtype": ["fp8"]},
        {"speculative_config": 5},
        {"speculative_config": "[" * 100_000},
    ],
)
def test_the_python_face_gives_sentences(words: dict[str, Any]) -> None:
    with pytest.raises(InferometerError) as error:
        analyze(MODEL, **words)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("images", [5, (1, 2), "1x2", ("a", 1, 2)])
def test_images_by_hand(images: Any) -> None:
    with pytest.raises(BadValue, match="--images"):
        analyze("qwen2.5-vl-7b", images=images)


def test_a_block_has_the_network_s_width(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(
        'hidden_size = 64\nvocab_size = 100\n[[layers]]\nblocks = [{ block = "mlp", '
        "intermediate_size = 128, hidden_size = 32 }]\n"
    )
    with pytest.raises(BadFile, match="hidden_size 32 is not the network's 64"):
        analyze(str(path))


# ------------------------------------------------------------------ patterns of a config


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*self_attn.*", "model.layers.7.self_attn.q_proj", True),
        (".*lm_head", "model.layers.7.mlp", False),
        (r".*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.7.mlp.up_proj", True),
        (r".*mlp\.(gate|up)_proj", "model.layers.7.mlp.down_proj", False),
        (r"model\.layers\.7$", "model.layers.7.mlp", False),
        (r"model\.layers\.\d+\.mlp", "model.layers.20.mlp.x", True),
        (r"model.layers.[0-4]\..*", "model.layers.7.mlp", False),
        (r".*layers\.(0|7)\.(?:mlp|self_attn)", "model.layers.7.mlp.x", True),
        ("layers", "model.layers", False),
        ("(?!x).*self_attn", "model.layers.7.self_attn", True),
        ("(?!x).*self_attn", "model.layers.7.mlp", False),
        ("[", "model", False),
        ("(" * 5000, "model", False),
    ],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@pytest.mark.parametrize(
    "pattern",
    ["re:(([a-z.0-9_]+)+)+$!", "re:[", "re:" + "(a|b)" * 60, "re:" + "a*" * 5000 + "!", "*" * 5000 + "!", "*a" * 2000],
)
def test_patterns_take_no_time(pattern: str) -> None:
    started = time.perf_counter()
    assert roles({"quant_method": "fp8", "ignore": [pattern]})["mlp"] == "fp8"
    assert time.perf_counter() - started < 5


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([10**4000, "int", "float", "re:.*", "Linear", "fp8", "NVFP4"]),
)
WORDS = st.sampled_from(
    [
        "quant_method",
        "quant_algo",
        "config_groups",
        "weights",
        "num_bits",
        "type",
        "targets",
        "ignore",
        "bits",
        "strategy",
        "group_size",
        "quantized_layers",
        "kv_cache_scheme",
        "g",
        "weight_block_size",
        "modules_to_not_convert",
        "model.layers.1.mlp.up_proj",
    ]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=12
)
KEYS = st.sampled_from(
    [
        *LLAMA,
        "head_dim",
        "sliding_window",
        "layer_types",
        "num_experts",
        "rope_scaling",
        "torch_dtype",
        "text_config",
        "vision_config",
        "max_position_embeddings",
        "tie_word_embeddings",
        "quantization_config",
        "kv_lora_rank",
    ]
)
METHOD = st.sampled_from(["compressed-tensors", "modelopt", "fp8", "gptq", "awq"])


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(KEYS, TREES, max_size=3), section=st.dictionaries(WORDS, TREES, max_size=4), method=METHOD
)
def test_any_config_is_a_network_or_a_sentence(changes: dict[str, Any], section: dict[str, Any], method: str) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": method, **section}, **changes}
    try:
        assert parameters(families.build(config)) >= 0
    except InferometerError as error:
        assert "\n" not in str(error)


# ------------------------------------------------------------------ pages


def test_pages_are_finished() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        assert not [w for w in page.read_text(encoding="utf-8").split() if w.startswith("@") and w.endswith("@")], page
    assert (root / "docs" / "README.md").read_text(encoding="utf-8").count("(training.md)") == 1


def test_turns_say_all_lengths_themselves() -> None:
    for flag in ("--input-len", "--output-len", "--prefix-len"):
        ran = command("analyze", MODEL, "--turns", "512:128", flag, "16")
        assert ran.code == 2 and flag in ran.err and "--turns" in ran.err
