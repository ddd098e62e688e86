"""Ids that people type: each means its own entry, with its own positions, parameters and precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer import analyze
from inferometer.base.errors import BadFile, UnknownName
from inferometer.costs.step import image_tokens
from inferometer.inference.weights import parameters
from inferometer.network import families
from inferometer.specs import catalog

ROLES = ("attn", "mlp", "experts", "shared")

# id -> (entry, the precision that its name declares)
WANTED: dict[str, tuple[str, str]] = {
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-r1", ""),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek-v3", ""),
    "deepseek-ai/DeepSeek-V3.1-Terminus": ("deepseek-v3.1", ""),
    "deepseek-ai/DeepSeek-V3.2-Exp": ("deepseek-v3.2", ""),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": ("qwen2.5-32b", ""),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": ("llama-3.3-70b", ""),
    "Qwen/Qwen3-4B-Instruct-2507": ("qwen3-4b-2507", ""),
    "Qwen/Qwen3-4B-Instruct-2507-FP8": ("qwen3-4b-2507", "fp8"),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b-2507", ""),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b-a22b-2507", ""),
    "Qwen/Qwen3-235B-A22B-Thinking-2507": ("qwen3-235b-a22b-2507", ""),
    "Qwen/Qwen3.5-397B-A17B-FP8": ("qwen3.5-397b-a17b", "fp8"),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": ("qwen3.5-397b-a17b", "nvfp4"),
    "Qwen/Qwen3.5-9B": ("qwen3.5-9b", ""),
    "Qwen/Qwen3.5-4B": ("qwen3.5-4b", ""),
    "Qwen/Qwen3.5-2B": ("qwen3.5-2b", ""),
    "Qwen/Qwen3.5-0.8B": ("qwen3.5-0.8b", ""),
    "Qwen/Qwen2.5-VL-32B-Instruct": ("qwen2.5-vl-32b", ""),
    "Qwen/QwQ-32B": ("qwen2.5-32b", ""),
    "Qwen/Qwen2.5-Coder-32B-Instruct": ("qwen2.5-coder-32b", ""),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": ("qwen3-vl-30b-a3b", ""),
    "zai-org/GLM-4.5": ("glm-4.5", ""),
    "zai-org/GLM-4.5-Air": ("glm-4.5-air", ""),
    "zai-org/GLM-4.6": ("glm-4.6", ""),
    "zai-org/GLM-4.7": ("glm-4.7", ""),
    "zai-org/GLM-4.7-Flash": ("glm-4.7-flash", ""),
    "zai-org/GLM-4-32B-0414": ("glm-4-32b-0414", ""),
    "THUDM/glm-4-9b-chat": ("glm-4-9b-chat", ""),
    "zai-org/GLM-5.2-FP8": ("glm-5.2", "fp8"),
    "nvidia/GLM-5.2-NVFP4": ("glm-5.2", "nvfp4"),
    "MiniMaxAI/MiniMax-M2": ("minimax-m2", ""),
    "MiniMaxAI/MiniMax-M2.1": ("minimax-m2.1", ""),
    "MiniMaxAI/MiniMax-M3-MXFP8": ("minimax-m3", "mxfp8"),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi-k2-0905", ""),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ("mistral-small-3.1-24b", ""),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": ("mistral-small-3.2-24b", ""),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": ("mistral-large-3-675b", ""),
    "mistralai/Ministral-3-8B-Instruct-2512": ("ministral-3-8b", ""),
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": ("ministral-3-8b", "bf16"),
    "mistralai/Ministral-3-14B-Instruct-2512": ("ministral-3-14b", ""),
    "mistralai/Devstral-Small-2507": ("devstral-small-2507", ""),
    "mistralai/Pixtral-12B-2409": ("pixtral-12b", ""),
    "mistralai/Ministral-8B-Instruct-2410": ("ministral-8b-2410", ""),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": ("mixtral-8x22b-instruct-v0.1", ""),
    "google/gemma-4-31B-it": ("gemma-4-31b", ""),
    "microsoft/Phi-4-mini-instruct": ("phi-4-mini", ""),
    "microsoft/Phi-3.5-mini-instruct": ("phi-3.5-mini", ""),
    "microsoft/Phi-3.5-MoE-instruct": ("phi-3.5-moe", ""),
    "meta-llama/Llama-Guard-3-8B": ("llama-guard-3-8b", ""),
    "ibm-granite/granite-3.3-8b-instruct": ("granite-3.3-8b", ""),
    "allenai/OLMo-2-1124-13B": ("olmo-2-13b", ""),
    "allenai/OLMo-2-0325-32B": ("olmo-2-32b", ""),
    "allenai/OLMoE-1B-7B-0924": ("olmoe-1b-7b", ""),
    "baidu/ERNIE-4.5-300B-A47B-PT": ("ernie-4.5-300b-a47b", ""),
    "baidu/ERNIE-4.5-21B-A3B-PT": ("ernie-4.5-21b-a3b", ""),
    "tencent/Hunyuan-A13B-Instruct": ("hunyuan-a13b", ""),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": ("seed-oss-36b", ""),
    "inclusionAI/Ling-mini-2.0": ("ling-mini-2.0", ""),
    "tiiuae/Falcon3-7B-Instruct": ("falcon3-7b", ""),
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": ("llama-3.1-nemotron-70b", ""),
    "nvidia/Nemotron-4-340B-Instruct": ("nemotron-4-340b", ""),
    "HuggingFaceTB/SmolLM3-3B": ("smollm3-3b", ""),
    "EleutherAI/pythia-12b": ("pythia-12b", ""),
    "bigcode/starcoder2-7b": ("starcoder2-7b", ""),
    "amd/Kimi-K2.5-MXFP4": ("kimi-k2.5", "mxfp4"),
    "mistralai/Codestral-22B-v0.1": ("codestral-22b-v0.1", ""),
    "01-ai/Yi-1.5-34B-Chat": ("yi-1.5-34b", ""),
    "xai-org/grok-2": ("grok-2", ""),
    "swiss-ai/Apertus-70B-Instruct-2509": ("apertus-70b", ""),
}

# ids whose config could not be opened anywhere public: left out rather than guessed
LEFT_OUT = (
    "mistralai/Devstral-2-123B-Instruct-2512",  # its layers and heads are public, the width of its MLP is not
    "CohereLabs/c4ai-command-r-plus-08-2024",
)

_STATED = "what the publisher states; the page was not opened again"
# name -> (billions of parameters, how near, who says so); names of models round
PUBLISHED: dict[str, tuple[float, float, str]] = {
    "glm-4.5": (355, 0.01, "zai-org/GLM-4.5 README.md: 355 billion"),
    "glm-4.5-air": (106, 0.01, "zai-org/GLM-4.5 README.md: 106 billion"),
    "glm-4.7-flash": (30, 0.02, "zai-org/GLM-4.5 README.md: 30B-A3B"),
    "mistral-small-3.1-24b": (24.01, 0.001, _STATED),
    "ministral-3-8b": (8.4 + 0.4, 0.02, _STATED),
    "ministral-3-14b": (14, 0.01, "vllm-project/recipes models/mistralai/Ministral-3-14B-Instruct-2512.yaml: 14B"),
    "mistral-large-3-675b": (
        675,
        0.01,
        "vllm-project/recipes models/mistralai: 675B",
    ),
    "pixtral-12b": (12.7, 0.01, _STATED),
    "devstral-small-2507": (24, 0.02, "its name"),
    "qwen3.5-0.8b": (0.8, 0.07, "its name; the vision tower is 0.1 B"),
    "qwen3.5-2b": (2, 0.07, "its name"),
    "qwen3.5-4b": (4.2, 0.09, "its name; the vision tower is 0.3 B"),
    "qwen3.5-9b": (9, 0.05, "its name; the vision tower is 0.5 B"),
    "qwen2.5-vl-32b": (33.45, 0.001, _STATED),
    "glm-4-32b-0414": (32.57, 0.001, "a llama.cpp log of GLM-Z1-32B-0414: model params = 32.57 B"),
    "codestral-22b-v0.1": (22.2, 0.01, _STATED),
    "grok-2": (269, 0.01, "sgl-project/sglang-jax docs: ~269B"),
    "apertus-70b": (70.6, 0.01, _STATED),
    "minimax-m2": (230, 0.01, "MiniMax-AI/MiniMax-M2 README.md: 230 billion"),
    "phi-3.5-mini": (3.8, 0.01, _STATED),
    "phi-4-mini": (3.8, 0.01, _STATED),
    "phi-3.5-moe": (41.9, 0.01, _STATED),
    "granite-3.3-8b": (8.170864640, 0.0001, "its tensors' shapes"),
    "olmo-2-13b": (13.7, 0.01, _STATED),
    "olmo-2-32b": (32.2, 0.01, _STATED),
    "olmoe-1b-7b": (6.9, 0.01, "allenai/OLMoE README.md: 6.9 billion"),
    "ernie-4.5-300b-a47b": (300, 0.01, _STATED),
    "ernie-4.5-21b-a3b": (21.9, 0.01, _STATED),
    "hunyuan-a13b": (80, 0.01, "Tencent-Hunyuan/Hunyuan-A13B README.md: 80 billion"),
    "seed-oss-36b": (36, 0.01, "vllm-project/recipes models/ByteDance-Seed/Seed-OSS-36B-Instruct.yaml: 36B"),
    "ling-mini-2.0": (16, 0.02, "inclusionAI/Ling-V2 README.md: 16B"),
    "falcon3-7b": (7.46, 0.01, _STATED),
    "nemotron-4-340b": (341, 0.01, _STATED),
    "smollm3-3b": (3.075098624, 0.0001, _STATED),
    "pythia-12b": (11.846, 0.001, _STATED),
    "starcoder2-7b": (7.17, 0.01, _STATED),
    "ministral-8b-2410": (8.02, 0.01, _STATED),
}

POSITIONS = {
    "Qwen/Qwen3-4B": 40_960,
    "Qwen/Qwen3-4B-Instruct-2507": 262_144,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 262_144,
    "Qwen/Qwen3-235B-A22B-Thinking-2507": 262_144,
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": 262_144,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32_768,
    "Qwen/QwQ-32B": 131_072,
    "THUDM/glm-4-9b": 8_192,
    "THUDM/glm-4-9b-chat": 131_072,
    "moonshotai/Kimi-K2-Instruct": 131_072,
    "moonshotai/Kimi-K2-Instruct-0905": 262_144,
    "mistralai/Mistral-Small-24B-Instruct-2501": 32_768,
    "mistralai/Devstral-Small-2507": 131_072,
    "zai-org/GLM-4.5": 131_072,
    "zai-org/GLM-4.6": 202_752,
    "zai-org/GLM-4.7": 202_752,
    "microsoft/Phi-3.5-mini-instruct": 131_072,
}


_BF16_ATTENTION = {"attn": "bf16", "mlp": "nvfp4", "experts": "nvfp4", "shared": "bf16"}
PRECISIONS: dict[str, dict[str, str]] = {  # as the checkpoint's own config declares them
    "Qwen/Qwen3.5-397B-A17B-FP8": dict.fromkeys(ROLES, "fp8-block"),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": _BF16_ATTENTION,
    "zai-org/GLM-5.2-FP8": dict.fromkeys(ROLES, "fp8-block"),
    "nvidia/GLM-5.2-NVFP4": _BF16_ATTENTION,
    "MiniMaxAI/MiniMax-M3-MXFP8": dict.fromkeys(ROLES, "mxfp8"),
    "nvidia/MiniMax-M3-NVFP4": {**dict.fromkeys(ROLES, "mxfp8"), "experts": "nvfp4"},
    "amd/Kimi-K2.5-MXFP4": {**dict.fromkeys(ROLES, "mxfp4"), "attn": "bf16"},
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": dict.fromkeys(ROLES, "fp8-block"),
    "mistralai/Ministral-3-14B-Instruct-2512": dict.fromkeys(ROLES, "fp8"),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": dict.fromkeys(ROLES, "fp8-block"),
}


@pytest.mark.parametrize("written", PRECISIONS)
def test_a_checkpoint_keeps_the_precision_of_each_role(written: str) -> None:
    found = analyze(written, gpu="b300:memory=4e12", input_len=16, output_len=2)
    assert {role: found.model.quantization[role] for role in ROLES} == PRECISIONS[written]


def test_a_name_in_16_bits_undoes_the_quantisation() -> None:
    small = analyze("mistralai/Ministral-3-8B-Instruct-2512", gpu="h200")
    large = analyze("mistralai/Ministral-3-8B-Instruct-2512-BF16", gpu="h200")
    assert 1.6 < large.memory.weights_bytes / small.memory.weights_bytes < 2


def test_kimi_in_mxfp4_is_as_large_as_its_checkpoint() -> None:
    found = analyze("amd/Kimi-K2.5-MXFP4", gpu="b300:memory=4e12", input_len=16, output_len=2)
    assert found.memory.weights_bytes / 2**30 == pytest.approx(523, rel=0.01)


@pytest.mark.parametrize("written", WANTED)
def test_the_id_means_its_entry(written: str) -> None:
    entry = catalog.catalog_entry(written)
    assert entry is not None and (entry.name, entry.quantization) == WANTED[written]


def test_what_is_left_out_is_not_taken_for_another() -> None:
    assert [written for written in LEFT_OUT if catalog.catalog_entry(written)] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    billions, slack, source = PUBLISHED[name]
    model = families.build(catalog.model(name).config, name)
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=slack), source
    assert not model.warnings


@pytest.mark.parametrize("written", POSITIONS)
def test_a_longer_context_is_its_own(written: str) -> None:
    assert families.build(catalog.model(written).config).max_position == POSITIONS[written]


def test_an_entry_like_another_differs_in_what_it_says() -> None:
    plain, longer = catalog.model("qwen3-4b"), catalog.model("qwen3-4b-2507")
    assert {**plain.config, "max_position_embeddings": 262_144} == longer.config
    assert longer.hf_id == "Qwen/Qwen3-4B-Instruct-2507" and plain.hf_id == "Qwen/Qwen3-4B"


def test_no_source_is_a_memory() -> None:
    assert not [name for name in catalog.names("models") if "memory" in catalog.model(name).source]


def test_an_entry_like_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.toml").write_text('source = "s"\nlike = "yours"\n')
    monkeypatch.setattr(catalog, "DATA", tmp_path)
    with pytest.raises(UnknownName, match="model that mine is like 'yours'"):
        catalog._model_data("mine")


def test_a_quarter_of_smollm3_does_not_rotate() -> None:
    model = families.build(catalog.model("smollm3-3b").config)
    assert [b.count for b in model.blocks if any(op.name == "rope" for op in b.ops)] == [27]


def test_hunyuan_may_list_a_size_for_every_layer() -> None:
    config = catalog.model("hunyuan-a13b").config
    listed = {**config, "moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32}
    assert parameters(families.build(listed)) == parameters(families.build(config))
    with pytest.raises(BadFile, match="'moe_topk' must be the same for every layer"):
        families.build({**listed, "moe_topk": [8] * 31 + [4]})


@pytest.mark.parametrize(
    ("name", "side", "tokens"), [("mistral-small-3.1-24b", 1540, 55 * 55), ("pixtral-12b", 1024, 64 * 64)]
)
def test_pixtral_keeps_the_resolution(name: str, side: int, tokens: int) -> None:
    vision = families.build(catalog.model(name).config).vision
    assert vision is not None and image_tokens(vision, side, side) == (tokens * vision.merge**2, tokens)
    assert image_tokens(vision, side, side // 2)[1] == pytest.approx(tokens / 2, rel=0.02), "of any shape"
