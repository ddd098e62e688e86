"""``quantization_config``: the precision of each role, never guessed; patterns of module names; broken configs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadFile, InferometerError
from inferometer.inference.weights import parameters
from inferometer.network import families
from inferometer.network.families import quantization
from inferometer.network.families.quantization import matches

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


def roles(section: Any, **more: Any) -> dict[str, str]:
    return families.build({**LLAMA, "quantization_config": section, **more}).quantization


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
    by_role = roles(
        {"quant_method": "compressed-tensors", "config_groups": {"a": int8, "b": four}, "ignore": ["re:.*self_attn.*"]}
    )
    assert by_role == {"mlp": "int8", "shared": "int8", "experts": "int4-g32"}


def test_meta_keeps_attention_of_the_fp8_405b() -> None:
    kept = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(126) for p in "qkvo"]
    by_role = roles({"quant_method": "fbgemm_fp8", "modules_to_not_convert": kept})
    assert "attn" not in by_role and by_role["mlp"] == "fp8"


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


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    pattern=st.lists(
        st.sampled_from(["a", "b*", ".", ".*", r"\.", r"\d+", "[a-b0]?", "(a|b0)", "(?:|b*|(a|0).)", "0$", "^a"]),
        max_size=8,
    ).map("".join),
    name=st.text("ab0.", max_size=8),
)
def test_patterns_mean_what_they_mean_to_python(pattern: str, name: str) -> None:
    assert quantization.compiled(pattern) is not None
    assert matches(pattern, name) is bool(re.match(pattern, name))


@pytest.mark.parametrize(
    "pattern",
    ["(([a-z.0-9_]+)+)+$!", "[", "(a|b)" * 60, "a*" * 499 + "!", "(a*|.*)" * 100 + "!", "a*" * 5000 + "!"],
)
def test_matching_takes_one_step_for_each_character_of_a_pattern(pattern: str, monkeypatch: Any) -> None:
    """An engine that backtracks would not end in a lifetime."""
    steps = 0

    def counted(*args: Any) -> int:
        nonlocal steps
        steps += 1
        return advance(*args)

    advance = quantization.advance
    monkeypatch.setattr(quantization, "advance", counted)
    assert not matches(pattern, "model.layers.7.self_attn.q_proj" * 10)
    assert steps <= min(len(pattern), quantization.MAX_PATTERN_LENGTH)
    assert roles({"quant_method": "fp8", "ignore": [f"re:{pattern}"]})["mlp"] == "fp8"


@pytest.mark.parametrize("pattern", ["*" * 5000 + "!", "*a" * 2000])
def test_wildcards_of_any_length_are_read(pattern: str) -> None:
    assert roles({"quant_method": "fp8", "ignore": [pattern]})["mlp"] == "fp8"


@pytest.mark.slow
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
