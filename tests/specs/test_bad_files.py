"""Files that are broken or lack something: the sentence names the file and the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, refused

from inferometer import analyze
from inferometer.specs import catalog

Run = Callable[..., Ran]
SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
HARDWARE = "memory = 80e9\nmemory_bandwidth = 3e12\n[flops]\nbf16 = 1e15\n"


@pytest.fixture
def config(run: Run, tmp_path: Path) -> Callable[..., Ran]:
    """``config(hidden_size=0)``: analyses the small config with something changed; None takes a key away."""

    def analysed(**changes: Any) -> Ran:
        data = {k: v for k, v in {**SMALL, **changes}.items() if v is not None}
        (tmp_path / "config.json").write_text(json.dumps(data))
        return run("analyze", str(tmp_path), "--gpu", "h200", "--json")

    return analysed


def test_the_small_config_is_fine(config: Callable[..., Ran]) -> None:
    ran = config()
    assert (ran.code, ran.err) == (0, "") and ran.json["model"]["layers"] == 2


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "3", '"x"', "{}", "\x00", "<html>"])
def test_what_is_not_a_config(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    refused(run("analyze", str(path), "--json"), "config.json")
    refused(run("analyze", str(tmp_path), "--json"), "config.json")


def test_bytes_that_are_no_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00{")
    refused(run("analyze", str(tmp_path), "--json"), "config.json")


def test_a_folder_without_a_config(run: Run, tmp_path: Path) -> None:
    refused(run("analyze", str(tmp_path), "--json"), str(tmp_path), "config.json")
    refused(run("analyze", str(tmp_path / "missing"), "--json"), "missing")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "opt", "unheard-of"])
def test_a_missing_size_is_named(config: Callable[..., Ran], key: str, family: str) -> None:
    refused(config(**{"model_type": family, key: None}), key)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "head_dim",
    ],
)
@pytest.mark.parametrize("value", ["x", "64", -1, 0, 1.5, 1e30, 10**30, True, [1], {"a": 1}])
def test_a_size_is_a_positive_whole_number(config: Callable[..., Ran], key: str, value: Any) -> None:
    refused(config(**{key: value}), key)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_json_that_is_no_number(run: Run, tmp_path: Path, word: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL).replace('"hidden_size": 64', f'"hidden_size": {word}'))
    refused(run("analyze", str(tmp_path), "--json"), "hidden_size")


def test_null_is_missing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "hidden_size": None}))
    refused(run("analyze", str(tmp_path), "--json"), "hidden_size")


def test_a_network_of_a_million_layers_is_refused_quickly(config: Callable[..., Ran]) -> None:
    refused(config(num_hidden_layers=1_000_000), "1,000,000", "10,000")


def test_heads_that_do_not_divide(config: Callable[..., Ran]) -> None:
    refused(config(num_attention_heads=5, num_key_value_heads=5), "64", "5", "head_dim")
    refused(config(num_key_value_heads=3), "4", "3")
    assert config(num_attention_heads=5, num_key_value_heads=5, head_dim=16).code == 0


def test_lists_per_layer_are_as_long_as_the_network(config: Callable[..., Ran]) -> None:
    refused(config(sliding_window=16, layer_types=["sliding_attention"]), "layer_types", "1", "2")
    refused(config(sliding_window=16, layer_types="sliding"), "layer_types")
    refused(config(sliding_window="x"), "sliding_window")


def test_experts_that_cannot_be_chosen(config: Callable[..., Ran]) -> None:
    sparse = {"model_type": "qwen3_moe", "moe_intermediate_size": 32}
    refused(config(**sparse, num_experts=4, num_experts_per_tok=8), "8", "4")
    refused(config(**sparse, num_experts=4), "num_experts_per_tok")
    assert config(**sparse, num_experts=8, num_experts_per_tok=4).code == 0


def test_an_unheard_of_family_is_read_and_says_so(config: Callable[..., Ran]) -> None:
    for family in ("unheard-of", None):
        ran = config(model_type=family)
        assert ran.code == 0 and "check the parameter count" in ran.err and ran.json["warnings"]
    assert "unheard-of" in config(model_type="unheard-of").err


def test_lengths_beyond_the_models_are_a_warning(config: Callable[..., Ran], run: Run) -> None:
    ran = run("analyze", "llama-2-7b", "--input-len", "5000", "--json")
    assert ran.code == 0 and "5,128" in ran.err and "4,096" in ran.err and ran.json["warnings"]
    ran = run("analyze", "llama-3.1-8b", "--max-model-len", "1000", "--json")
    assert ran.code == 0 and "1,152" in ran.err and "1,000" in ran.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory = [", "TOML"),
        ("", "memory"),
        ("memory = 80e9\n", "memory_bandwidth"),
        ("memory = 80e9\nmemory_bandwidth = 3e12\n", "flops"),
        (f"colour = 3\n{HARDWARE}", "colour"),
        (HARDWARE.replace("80e9", "'big'"), "memory"),
        (HARDWARE.replace("80e9", "-1.0"), "memory"),
        (HARDWARE.replace("80e9", "0"), "memory"),
        (HARDWARE.replace("80e9", "nan"), "memory"),
        (HARDWARE.replace("3e12", "inf"), "bandwidth"),
        (HARDWARE.replace("bf16 = 1e15", ""), "bf16"),
        (HARDWARE.replace("bf16", "zzz"), "bf16"),
        (HARDWARE.replace("1e15", "-1e15"), "bf16"),
        (f"power = -1.0\n{HARDWARE}", "power"),
        ("memory = 80e9\nmemory_bandwidth = 3e12\nflops = 3\n", "flops"),
        (f"{HARDWARE}[links.nvlink]\nlatency = 1e-6\n", "bandwidth"),
        (f"{HARDWARE}[links.nvlink]\nbandwidth = 1e9\n[links.mesh]\nbandwidth = 1e9\n", "nvlink"),
        (f"interconnect = 'mash'\n{HARDWARE}[links.mesh]\nbandwidth = 1e9\n", "mesh"),
        (f"{HARDWARE}[links.mesh]\nbandwidth = 1e9\npeers = -1\n", "peers"),
        (f"{HARDWARE}[links.mesh]\nbandwidth = 1e9\npeer_to_peer = 2\n", "peer_to_peer"),
    ],
)
def test_a_hardware_file(run: Run, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    refused(run("analyze", "llama-3.1-8b", "--gpu", str(path), "--json"), "mine", expected)


@pytest.mark.parametrize(
    ("links", "arguments", "expected"),
    [
        ("", ("-tp", "2"), ("mine.toml has no link", "--tensor-parallel-size 2", "[links.NAME]")),
        ("", ("-pp", "2"), ("mine.toml has no link", "--pipeline-parallel-size 2")),
        ("network", ("-tp", "2"), ("mine.toml has no link", "--tensor-parallel-size 2")),
        ("mesh", ("-tp", "16"), ("mine.toml has no network", "--nodes 2", "[links.network]")),
        ("mesh", ("-pp", "2", "--gpus-per-node", "1"), ("mine.toml has no network", "--nodes 2")),
        ("mesh", ("--cpu-offload-gb", "4"), ("mine.toml has no link to its host", "--cpu-offload-gb", "[links.pcie]")),
    ],
)
def test_no_link_is_invented(
    run: Run, tmp_path: Path, links: str, arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HARDWARE + "".join(f"[links.{name}]\nbandwidth = 1e11\n" for name in links.split()))
    refused(run("analyze", "qwen3-0.6b", "--gpu", str(path), "--json", *arguments), *expected)
    assert run("analyze", "qwen3-0.6b", "--gpu", str(path), "-dp", "2", "--json").code == 0  # replicas need none


def test_an_only_link_joins_the_devices_whatever_its_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{HARDWARE}[links.carrier-pigeon]\nbandwidth = 1e11\n[links.network]\nbandwidth = 1e10\n")
    plan = run("analyze", "qwen3-0.6b", "--gpu", str(path), "-tp", "2", "--json").json["plan"]
    assert plan["placement"] == {"tp": "2 ranks on carrier-pigeon"}


@pytest.mark.slow
def test_a_search_leaves_out_what_needs_a_link(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HARDWARE)
    ran = run("search", "qwen3-0.6b", "--gpu", str(path), "--num-gpus", "2", "--request-rate", "1", "--json")
    assert ran.code == 0 and {pool["tensor_parallel_size"] for plan in ran.json["plans"] for pool in plan["pools"]} == {
        1
    }
    assert any("has no link" in reason for reason in ran.json["rejections"])


def test_a_hardware_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    refused(run("analyze", "llama-3.1-8b", "--gpu", str(tmp_path / "no.toml"), "--json"), "no.toml")
    refused(run("analyze", "llama-3.1-8b", "--gpu", f"{tmp_path}/", "--json"), str(tmp_path))


def test_an_engine_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for text, expected in (
        ("x = [", "TOML"),
        ("speed = 3\n", "speed"),
        ("step_overhead = 'x'\n", "step_overhead"),
        ("[kernels.linear]\nflops = 'x'\n", "flops"),
    ):
        path.write_text(text)
        refused(run("analyze", "llama-3.1-8b", "--engine", str(path), "--json"), "mine", expected)
    refused(run("analyze", "llama-3.1-8b", "--engine", str(tmp_path / "no.toml"), "--json"), "no.toml")
    path.write_text("step_overhead = 1e-3\n")
    assert run("analyze", "llama-3.1-8b", "--engine", str(path), "--json").json["engine"]["name"] == "mine"


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
