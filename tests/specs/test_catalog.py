"""Names: every GPU, model, engine and precision that people write resolves, tuned and quantised variants included."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from inferometer import Report, analyze
from inferometer.base.errors import BadFile, UnknownName
from inferometer.network import families
from inferometer.specs import catalog

GPUS = [
    "v100-sxm-32gb",
    "t4",
    "a10",
    "a6000",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-80gb",
    "l4",
    "l40s",
    "h20",
    "h100-sxm",
    "h100-pcie",
    "h200",
    "h800",
    "gh200",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "rtx3090",
    "rtx4090",
    "rtx5090",
    "rtx-pro-6000",
    "mi210",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "gaudi3",
]
ALIASES = {
    "H100": "h100-sxm",
    "nvidia_H100": "h100-sxm",
    "nvidia_A100": "a100-sxm-40gb",
    "A100": "a100-sxm-80gb",
    "RTX4090_GPU": "rtx4090",
    "H200": "h200",
    "A6000": "a6000",
    "V100": "v100-sxm-32gb",
    "RTX3090": "rtx3090",
    "MI300X": "mi300x",
}
PRECISIONS = [
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp8-block",
    "int8",
    "w8a16",
    "w4a16",
    "int4",
    "mxfp4",
    "nvfp4",
    "int2",
]
WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "awq": "w4a16", "gptq": "w4a16", "FP8": "fp8"}

# what is written -> the entry it means, and the precision its name declares
MODELS = {
    "llama-3.1-8b": ("llama-3.1-8b", ""),
    "Llama-3.1-8B": ("llama-3.1-8b", ""),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", ""),
    "meta-llama/Meta-Llama-3.1-70B-Instruct": ("llama-3.1-70b", ""),
    "meta-llama/Llama-2-7b-chat-hf": ("llama-2-7b", ""),
    "lmsys/vicuna-7b-v1.5": ("llama-2-7b", ""),
    "codellama/CodeLlama-34b-Instruct-hf": ("codellama-34b", ""),
    "openai/gpt-oss-120b": ("gpt-oss-120b", ""),
    "deepseek-ai/DeepSeek-R1": ("deepseek-r1", ""),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek-v3", ""),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": ("deepseek-v2-lite", ""),
    "google/gemma-3-27b-it": ("gemma-3-27b", ""),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b-v0.1", ""),
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", "fp8"),
    "Qwen/Qwen3-30B-A3B": ("qwen3-30b-a3b", ""),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": ("llama-3.3-70b", "nvfp4"),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": ("qwen2.5-7b", "w4a16"),
    "Qwen/Qwen2-72B-Instruct-GPTQ-Int4": ("qwen2-72b", "w4a16"),
    "Qwen/Qwen2-72B-Instruct-GPTQ-Int8": ("qwen2-72b", "w8a16"),
    "DiT-XL/2": ("dit-xl-2", ""),
    "llava-onevision-qwen2-0.5b-ov": ("llava-onevision-qwen2-0.5b-ov", ""),
    "facebook/opt-125m": ("opt-125m", ""),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpus_of_the_contract(name: str) -> None:
    assert catalog.hardware(name).name == name


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_of_gpus(alias: str) -> None:
    assert catalog.hardware(alias).name == ALIASES[alias]


@pytest.mark.parametrize("written", MODELS)
def test_models_by_name_and_id(written: str) -> None:
    entry = catalog.model(written)
    assert (entry.name, entry.quantization) == MODELS[written]


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_id_and_alias_of_an_entry_means_that_entry(name: str) -> None:
    data = tomllib.loads((catalog.DATA / "models" / f"{name}.toml").read_text(encoding="utf-8"))
    assert data["source"]
    for written in (name, *data.get("ids", ()), *data.get("aliases", ())):
        found = catalog.catalog_entry(written)
        assert found is not None and found.name == name, f"{written} means {found and found.name}"


@pytest.mark.parametrize("name", PRECISIONS)
def test_precisions_of_the_contract(name: str) -> None:
    found = catalog.precision(name)
    assert found.name == name and found.source and 0 < found.bits <= 32 and found.bytes >= found.bits / 8


def test_words_of_other_tools_for_precisions() -> None:
    assert {word: catalog.precision(word).name for word in WORDS} == WORDS
    assert catalog.precision("nvfp4").bytes == (4 + 8 / 16) / 8, "a scale of 8 bits for every 16 weights"


def test_a_quantised_name_is_the_entry_with_that_precision() -> None:
    plain, small = analyze("Qwen/Qwen3-8B", gpu="h200"), analyze("Qwen/Qwen3-8B-AWQ", gpu="h200")
    assert small.model.name == plain.model.name and small.plan["quantization"] == "w4a16"
    assert 0.3 < small.memory.weights_bytes / plain.memory.weights_bytes < 0.4
    again = analyze("Qwen/Qwen3-8B", gpu="h200", quantization="awq")
    assert again.memory.weights_bytes == small.memory.weights_bytes
    assert analyze("Qwen/Qwen3-8B-AWQ", gpu="h200", quantization="bf16").plan["quantization"] == "bf16"


def test_a_checkpoint_that_declares_its_quantisation_has_that_one() -> None:
    plain, small = analyze("Qwen/Qwen3-30B-A3B", gpu="h200"), analyze("Qwen/Qwen3-30B-A3B-FP8", gpu="h200")
    assert small.model.name == plain.model.name and small.plan["quantization"] == "fp8-block"
    assert 0.5 < small.memory.weights_bytes / plain.memory.weights_bytes < 0.55
    assert analyze("Qwen/Qwen3-30B-A3B-FP8", gpu="h200", quantization="bf16").plan["quantization"] == "bf16"


def test_engines_of_the_contract() -> None:
    assert {"vllm", "sglang", "trtllm", "hf", "roofline"} <= set(catalog.names("engines"))
    for name in catalog.names("engines"):
        engine = catalog.engine(name)
        for kind, kernel in engine.kernels.items():
            assert 0 < kernel.flops <= 1 and 0 < kernel.hbm <= 1 and 0 < kernel.link <= 1, (name, kind)
            assert kernel.fixed >= 0 and kernel.source, (name, kind)
        for key in (
            "step_overhead",
            "step_floor",
            "launch",
            "graph_sizes",
            "request_overhead",
            "http_overhead",
            "memory_reserve",
        ):
            assert not getattr(engine, key) or key in engine.source, f"{name}: {key} has no source"


def test_no_two_entries_claim_the_same_name() -> None:
    for folder in ("hardware", "models"):
        claims: Counter[str] = Counter()
        for name in catalog.names(folder):
            data = tomllib.loads((catalog.DATA / folder / f"{name}.toml").read_text(encoding="utf-8"))
            claims.update({catalog.normalized(w) for w in (name, *data.get("aliases", ()), *data.get("ids", ()))})
        assert not [word for word, often in claims.items() if often > 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_analyses_somewhere(name: str) -> None:
    decoder = families.build(catalog.model(name).config).kind == "decoder"
    found = analyze(name, gpu="b300:memory=2e12", input_len=256, output_len=16 if decoder else None)
    if decoder:
        assert found.feasible and found.metrics.tpot_ms and found.metrics.tpot_ms < 1000
    assert found.metrics.ttft_ms and found.phases["prefill"].seconds > 0


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(UnknownName, match="unknown GPU 'h10'; did you mean h100"):
        catalog.hardware("h10")
    with pytest.raises(UnknownName, match=r"did you mean llama-3\.1-8b"):
        catalog.model("lama-3.1-8b")


Reports = Callable[..., Report]
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


def test_engines_have_no_figures_that_nothing_reads() -> None:
    for name in catalog.names("engines"):
        assert not {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"} & set(
            catalog.engine(name).kernels
        ), name


@pytest.mark.parametrize(
    ("look_up", "field"),
    [
        (lambda: catalog.hardware("h1000"), "gpu"),
        (lambda: catalog.hardware("h200:speed=3"), "gpu"),
        (lambda: catalog.engine("vlm"), "engine"),
        (lambda: catalog.model("lama"), "model"),
        (lambda: catalog.usecase("chat-bto"), "usecase"),
        (lambda: catalog.precision("fp9", "quantization"), "quantization"),
        (lambda: catalog.plain_dtype("fp9"), "dtype"),
    ],
)
def test_an_unknown_name_says_which_argument_it_is(look_up: Callable[[], object], field: str) -> None:
    with pytest.raises(UnknownName) as caught:
        look_up()
    assert caught.value.field == field


def test_an_alias_means_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engines").mkdir()
    for name in ("one", "two"):
        (tmp_path / "engines" / f"{name}.toml").write_text('aliases = ["both"]\n')
    monkeypatch.setattr(catalog, "DATA", tmp_path)
    catalog._aliases.cache_clear()
    try:
        with pytest.raises(BadFile, match="'both' is a name of one already"):
            catalog.registered_name("engines", "both")
    finally:
        catalog._aliases.cache_clear()


def test_a_token_reaches_hugging_face(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokens = []

    def download(repo: str, file: str, *, token: str | None, local_files_only: bool) -> str:
        tokens.append(token)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(catalog, "_reachable", lambda url: True)
    monkeypatch.setenv("HF_TOKEN", "from the environment")
    assert catalog.model("nobody/gated-draft", "given").source == "nobody/gated-draft"
    catalog.model("nobody/gated-draft")
    assert tokens == ["given", "from the environment"]
