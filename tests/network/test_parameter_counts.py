"""Parameters against what the authors publish: totals to 1%, those that a token uses to 3%."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from inferometer.inference.weights import active_parameters, parameters, parameters_by_op
from inferometer.network import families
from inferometer.specs import catalog

# billions, by catalogue name; modules for multi-token prediction are stored apart and not counted
TOTAL = {
    "llama-2-7b": 6.738,
    "llama-3.1-8b": 8.030,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "qwen2-0.5b": 0.494,
    "qwen2.5-7b": 7.616,
    "qwen3-0.6b": 0.596,
    "qwen3-8b": 8.191,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.1,
    "mixtral-8x7b-v0.1": 46.70,
    "mixtral-8x22b-v0.1": 140.6,
    "deepseek-v2-lite": 15.71,
    "deepseek-v3": 671.0,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.8,
    "kimi-k2": 1026,
    "qwen3-coder-480b-a35b": 480.2,
    "llama-4-scout-17b-16e": 107.8,
    "exaone-4.0-32b": 32.0,
    "k-exaone-236b-a23b": 236,
    "olmo-3-1025-7b": 7.30,
    "olmo-3-1125-32b": 32.2,
    "hy3-preview": 295,
    "longcat-flash-chat": 560,
    "nvidia-nemotron-nano-9b-v2": 8.89,
    "qwen3-coder-next": 79.7,
    "step-3.5-flash": 196.8,
    "mimo-v2.5-pro": 1020,
    "c4ai-command-r7b-12-2024": 8.03,
    "c4ai-command-a-03-2025": 111,
    "llama-3.2-11b-vision": 10.67 - 0.895,  # 10.67 with the vision tower and its projection
    "llama-3.2-90b-vision": 88.59 - 0.920,
    "gemma-4-e2b": 5.1 - 0.15 - 0.305,  # without towers of 150 M and 305 M
    "gemma-4-e4b": 7.94 - 0.15 - 0.305,
    "gemma-3n-e4b": 7.85 - 0.30 - 0.68,
    "kimi-vl-a3b": 16.4,
    "internvl3-8b": 7.94,
    "internvl3-38b": 38.4,
    "internvl3-78b": 78.4,
    "qwen3-omni-30b-a3b": 30.53,  # its thinker's language model
    "minicpm-v-4_5": 8.19,  # its language model
    "phi-4-multimodal": 3.84,  # its language model, Phi-4-mini
    "opt-125m": 0.125,
    "DiT-XL/2": 0.675,
}
ACTIVE = {  # as their publishers count: with the input embedding
    "qwen3-30b-a3b": 3.3,  # vllm-project/recipes models/Qwen/Qwen3-30B-A3B.yaml
    "qwen3-235b-a22b": 22,
    "mixtral-8x7b-v0.1": 12.9,  # arXiv 2401.04088
    "deepseek-v3": 37,  # arXiv 2412.19437
    "llama-4-scout-17b-16e": 17,
    "qwen3-coder-480b-a35b": 35,
    "kimi-k2": 32,  # MoonshotAI/Kimi-K2 README.md
    "ling-mini-2.0": 1.4,  # inclusionAI/Ling-V2 README.md
    "olmoe-1b-7b": 1.3,  # allenai/OLMoE README.md
    "hunyuan-a13b": 13,  # Tencent-Hunyuan/Hunyuan-A13B README.md
    "glm-4.5": 32,  # zai-org/GLM-4.5 README.md; ours has the embedding of 0.8 B besides
    "longcat-flash-chat": 27.9,  # 27 on average, without the embedding: a third of the chosen experts compute nothing
    "k-exaone-236b-a23b": 23.6,  # 23 by its name; with the embedding
    "mimo-v2.5-pro": 42,
}


@pytest.mark.parametrize("name", TOTAL)
def test_total(name: str) -> None:
    model = families.build(catalog.model(name).config)
    assert parameters(model) / 1e9 == pytest.approx(TOTAL[name], rel=0.01)
    assert sum(parameters_by_op(model).values()) == pytest.approx(parameters(model))


@pytest.mark.parametrize("name", ACTIVE)
def test_active(name: str) -> None:
    active = active_parameters(families.build(catalog.model(name).config)) / 1e9
    assert active == pytest.approx(ACTIVE[name], rel=0.055 if name == "glm-4.5" else 0.03)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-0.6b", "qwen2-vl-7b", "gemma-3-27b"])
def test_all_of_a_dense_model_is_active(name: str) -> None:
    model = families.build(catalog.model(name).config)
    assert active_parameters(model) == parameters(model)


def test_a_token_multiplies_by_all_but_the_input_embedding() -> None:
    model = families.build(catalog.model("llama-3.1-8b").config)
    assert parameters(model) - parameters(model, "active") == 128256 * 4096
    tied = families.build(catalog.model("qwen3-0.6b").config)
    assert parameters(tied) == parameters(tied, "active"), "a tied head multiplies by the embedding's weights"


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_entry_builds_and_has_the_parameters_it_states(name: str) -> None:
    model = families.build(catalog.model(name).config, name)
    stated = tomllib.loads((catalog.DATA / "models" / f"{name}.toml").read_text(encoding="utf-8")).get("params")
    assert not [note for note in model.warnings if "left out" not in note], model.warnings  # towers may be
    assert parameters(model) >= active_parameters(model) > 0 and parameters(model, "active") > 0
    if stated:
        assert parameters(model) == pytest.approx(stated, rel=0.01)


@pytest.mark.slow
def test_every_reference_config_loads_as_its_own_family(shared: Path) -> None:
    files = sorted((shared / "reference" / "hf_configs").glob("*.json"))
    assert len(files) >= 107
    for path in files:
        model = families.build(catalog.read_json(path), path.name)
        assert not model.warnings, (path.name, model.warnings)
        assert parameters(model) > 1e8, path.name
        assert model.num_layers and model.spans, path.name
