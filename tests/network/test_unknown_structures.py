"""What is no plain decoder is refused, by its keys or its name, and computed as one only when that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, refused

from inferometer import analyze, sweep, train
from inferometer.base.errors import BadFile, BadValue
from inferometer.inference.weights import parameters
from inferometer.network.families import build
from inferometer.specs import catalog

PLAIN: dict[str, Any] = {
    "model_type": "never-seen",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
STRANGE: dict[str, Any] = {
    "attn_layer_period": 8,
    "attn_layer_indices": [3],
    "attn_type_list": [0, 1, 0, 1, 0, 1, 0, 1],
    "mamba_d_state": 16,
    "ssm_state_size": 128,
    "linear_num_key_heads": 16,
    "linear_attn_config": {"kda_layers": [1]},
    "layer_types": ["full_attention"] * 7 + ["mamba"],
    "layers_block_type": ["recurrent"] * 8,
    "block_types": ["recurrent", "attention"],
    "hybrid_override_pattern": "M-M*",
    "cross_attention_layers": [3],
    "is_encoder_decoder": True,
    "decoder_layers": 8,
    "num_kv_shared_layers": 4,
    "layer_group_size": 8,
}
HARMLESS: dict[str, Any] = {
    "attn_layer_indices": None,
    "mamba_d_state": 0,
    "is_encoder_decoder": False,
    "layer_types": ["full_attention"] * 8,
    "mlp_layer_types": ["dense"] * 8,
    "layer_norm_eps": 1e-5,
    "block_size": 4096,
    "num_decoder_tokens": 7,
}


@pytest.mark.parametrize("key", STRANGE)
def test_a_structural_key_that_is_not_understood_is_an_error_that_names_it(key: str) -> None:
    with pytest.raises(BadValue, match=f"'{key}' (is|has) .* `?assume_decoder`? treats it") as error:
        build({**PLAIN, key: STRANGE[key]})
    assert error.value.field == "model"


@pytest.mark.parametrize("key", STRANGE)
def test_assume_decoder_computes_it_with_a_warning(key: str) -> None:
    model = build({**PLAIN, key: STRANGE[key]}, assume_decoder=True)
    assert parameters(model) == parameters(build(PLAIN))
    (note,) = model.warnings
    assert "check the parameter count" in note and repr(key) in note


@pytest.mark.parametrize("key", HARMLESS)
def test_keys_that_change_nothing_are_no_error(key: str) -> None:
    model = build({**PLAIN, key: HARMLESS[key]})
    assert [w.endswith("check the parameter count") for w in model.warnings] == [True]


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "t5", "whisper", "modernbert", "deberta-v2"])
def test_encoders_are_refused_by_their_type(kind: str) -> None:
    with pytest.raises(BadValue, match=f"'model_type' is '{kind}', an encoder"):
        build({**PLAIN, "model_type": kind})


def test_a_known_family_does_not_read_over_layer_types_that_it_does_not_know() -> None:
    with pytest.raises(BadFile, match=r"'layer_types' may have .*, not 'linear_attention'"):
        build({**PLAIN, "model_type": "qwen3", "layer_types": ["linear_attention"] * 8})


NAMES = {
    "BAAI/bge-m3": "an encoder-only embedding model",
    "Qwen/Qwen3-Embedding-8B": "an embedding model",
    "nomic-ai/nomic-embed-text-v1.5": "an embedding model",
    "Qwen/Qwen3-Reranker-8B": "a reranker",
    "openai/whisper-large-v3": "a speech model",
    "FacebookAI/xlm-roberta-large": "encoder-only",
    "google-bert/bert-base-uncased": "encoder-only",
    "google/flan-t5-xl": "an encoder-decoder model",
}


@pytest.mark.parametrize("name", NAMES)
def test_other_kinds_of_models_are_refused_by_name_without_a_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_download", lambda *_: pytest.fail("asked the network"))
    with pytest.raises(BadValue, match=f"'{name}' is {NAMES[name]}"):
        catalog.model(name)


@pytest.mark.parametrize(
    "name", ["org/embedded-llama", "org/bert4rec", "org/whisperer-7b", "org/smart5-7b", "org/Bartleby"]
)
def test_a_name_that_only_looks_alike_is_not_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_download", lambda repo, _: catalog.ModelEntry(repo, PLAIN, repo))
    assert catalog.model(name).name == name


def test_no_name_of_the_catalogue_is_refused() -> None:
    for name in catalog.names("models"):
        catalog._refuse_other_kinds(name)


@pytest.fixture
def strange(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN, "attn_layer_period": 8}))
    return str(tmp_path)


def test_every_command_knows_the_flag(strange: str) -> None:
    assert "which is left out" in " ".join(analyze(strange, assume_decoder=True).warnings)
    assert "which is left out" in " ".join(train(strange, assume_decoder=True).warnings)
    assert len(sweep(strange, assume_decoder=True, batch_size=[1, 2])) == 2
    with pytest.raises(BadValue, match="attn_layer_period"):
        train(strange)


@pytest.mark.parametrize("command", ["analyze", "sweep", "simulate", "search", "train"])
def test_the_command_line_says_the_flag_and_ends_with_2(run: Callable[..., Ran], strange: str, command: str) -> None:
    more = ("--request-rate", "1") if command == "search" else ()
    refused(run(command, strange, *more), "'attn_layer_period' is 8", "--assume-decoder")
    assert "--assume-decoder" in run(command, "--help").out
