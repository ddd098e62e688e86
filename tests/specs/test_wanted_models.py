"""Ids that people type: each means its own entry, with its own positions, parameters and precision."""

from __future__ import annotations

import pytest

from inferometer.inference.memory import parameters
from inferometer.network import families
from inferometer.specs import catalog

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
    "Qwen/QwQ-32B": ("qwen2.5-32b", ""),
    "Qwen/Qwen2.5-Coder-32B-Instruct": ("qwen2.5-coder-32b", ""),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": ("qwen3-vl-30b-a3b", ""),
    "zai-org/GLM-4.5": ("glm-4.5", ""),
    "zai-org/GLM-4.5-Air": ("glm-4.5-air", ""),
    "zai-org/GLM-4.6": ("glm-4.6", ""),
    "zai-org/GLM-4.7": ("glm-4.7", ""),
    "zai-org/GLM-4.7-Flash": ("glm-4.7-flash", ""),
    "THUDM/glm-4-9b-chat": ("glm-4-9b-chat", ""),
    "zai-org/GLM-5.2-FP8": ("glm-5.2", "fp8"),
    "nvidia/GLM-5.2-NVFP4": ("glm-5.2", "nvfp4"),
    "MiniMaxAI/MiniMax-M2": ("minimax-m2", ""),
    "MiniMaxAI/MiniMax-M2.1": ("minimax-m2.1", ""),
    "MiniMaxAI/MiniMax-M3-MXFP8": ("minimax-m3", "mxfp8"),
    "mistralai/Ministral-8B-Instruct-2410": ("ministral-8b-2410", ""),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": ("mixtral-8x22b-instruct-v0.1", ""),
    "google/gemma-4-31B-it": ("gemma-4-31b", ""),
    "microsoft/Phi-4-mini-instruct": ("phi-4-mini", ""),
    "microsoft/Phi-3.5-mini-instruct": ("phi-3.5-mini", ""),
    "microsoft/Phi-3.5-MoE-instruct": ("phi-3.5-moe", ""),
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
}

_STATED = "what the publisher states; the page was not opened again"
# name -> (billions of parameters, how near, who says so); names of models round
PUBLISHED: dict[str, tuple[float, float, str]] = {
    "glm-4.5": (355, 0.01, "zai-org/GLM-4.5 README.md: 355 billion"),
    "glm-4.5-air": (106, 0.01, "zai-org/GLM-4.5 README.md: 106 billion"),
    "glm-4.7-flash": (30, 0.02, "zai-org/GLM-4.5 README.md: 30B-A3B"),
    "minimax-m2": (230, 0.01, "MiniMax-AI/MiniMax-M2 README.md: 230 billion"),
    "phi-3.5-mini": (3.8, 0.01, _STATED),
    "phi-4-mini": (3.8, 0.01, _STATED),
    "phi-3.5-moe": (41.9, 0.01, _STATED),
    "granite-3.3-8b": (8.170864640, 0.0001, "its tensors' shapes"),
    "olmo-2-13b": (13.7, 0.01, _STATED),
    "olmo-2-32b": (32.2, 0.01, _STATED),
    "olmoe-1b-7b": (6.92, 0.01, _STATED),
    "ernie-4.5-300b-a47b": (300, 0.01, _STATED),
    "ernie-4.5-21b-a3b": (21.9, 0.01, _STATED),
    "hunyuan-a13b": (80, 0.01, "Tencent-Hunyuan/Hunyuan-A13B README.md: 80 billion"),
    "seed-oss-36b": (36, 0.01, "its name"),
    "ling-mini-2.0": (16.26, 0.01, _STATED),
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
    "zai-org/GLM-4.5": 131_072,
    "zai-org/GLM-4.6": 202_752,
    "zai-org/GLM-4.7": 202_752,
    "microsoft/Phi-3.5-mini-instruct": 131_072,
}


@pytest.mark.parametrize("written", WANTED)
def test_the_id_means_its_entry(written: str) -> None:
    entry = catalog.catalog_entry(written)
    assert entry is not None and (entry.name, entry.quantization) == WANTED[written]


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
