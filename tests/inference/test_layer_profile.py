"""Layers that `profile MODEL` timed are used as they are: ``--profile H200/tiny.csv``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer import BadFile, Report, analyze

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
MICROSECONDS = {"o_proj": 321, "down_proj": 654}


def layers(folder: Path, name: str = "tiny.csv", *, factor: int = 1) -> Path:
    rows = [
        f"H200,tiny,{layer},{tokens},0,{seconds * 1000 * factor}"
        for layer, seconds in MICROSECONDS.items()
        for tokens in (1, 64)
    ]
    path = folder / name
    path.write_text("\n".join(["hardware,model,layer_name,input,kv_cache,latency(ns)", *rows, ""]))
    return path


def seconds_of(report: Report, operator: str) -> float:
    op = next(op for op in report.phases["prefill"].ops if op.name == operator)
    assert op.origin == "measured"
    return op.seconds / op.count


def test_a_profile_of_layers_is_read_as_kernels(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    options = {"input_len": 64, "output_len": 2}
    # a model that no catalogue has: sizes are those of the model that is analyzed
    report = analyze(str(model), "h200", profile=str(layers(tmp_path)), **options)
    for layer, seconds in MICROSECONDS.items():
        assert seconds_of(report, layer) == pytest.approx(seconds * 1e-6, rel=1e-3)
    # with the record beside it: the sizes, the format and the device that were measured
    record = {"model": "tiny", "config": CONFIG, "dtype": "bfloat16", "device": "NVIDIA A100-SXM4-80GB"}
    (tmp_path / "tiny.json").write_text(json.dumps(record))
    report = analyze("llama-3.1-8b", "h200", profile=str(tmp_path / "tiny.csv"), **options)
    assert all(op.origin != "measured" or op.name != "o_proj" for op in report.phases["prefill"].ops), "another size"
    assert any("A100" in warning for warning in report.warnings)
    # rows that --calibrate scaled belong to the same record
    scaled = layers(tmp_path, "tiny.scaled.csv", factor=2)
    report = analyze(str(model), "h200", profile=str(scaled), **options)
    assert seconds_of(report, "o_proj") == pytest.approx(2 * 321e-6, rel=1e-3)


def test_a_profile_without_a_usable_layer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("hardware,model,layer_name,input,kv_cache,latency(ns)\nH200,tiny,softmax,4,0,5000\n")
    with pytest.raises(BadFile, match=r"no layer that is a single kernel.*eager attention"):
        analyze("llama-3.1-8b", "h200", profile=str(path))
    path.write_text("hardware,model,layer_name,input,latency(ns)\nH200,tiny,softmax,4,5000\n")
    with pytest.raises(BadFile, match="lacks the column 'kv_cache'"):
        analyze("llama-3.1-8b", "h200", profile=str(path))


def test_a_model_that_makes_images_has_no_vocabulary_and_still_takes_layers(tmp_path: Path) -> None:
    assert analyze("dit-b-4", "h200", profile=str(layers(tmp_path))).feasible
