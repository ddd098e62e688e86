"""Bands of expected error: that they hold on models that made none, and that an answer gets the right one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from zlib import crc32

import pytest

from inferometer import analyze
from inferometer.inference.expected_error import error_sentences, expected_errors, traits_of
from inferometer.inference.request import build_request

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_80_percent_band_holds_80_percent_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """In four parts by model: each figure against bands that have no run of its model."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bands = __import__("bands")
    rows = sys.modules["band_rows"].read()
    every = bands.points(rows)
    part = {model: str(crc32(model.encode()) % 4) for model in {row.model for row in rows}}
    judged = [one for one in bands.judged(every, lambda point: (part[point.row.model],)) if not one.point.row.hidden]
    assert len(judged) > 4000
    assert not any(one.point.row.chosen for one in judged)
    assert 0.75 <= bands.coverage(judged) <= 0.85
    assert bands.coverage(judged, 0) < bands.coverage(judged) < bands.coverage(judged, 2)
    shipped = json.loads(bands.DATA.read_text(encoding="utf-8"))
    assert shipped == bands.error_data(rows), "run benchmarks/bands.py --write"


def test_an_answer_has_the_band_of_its_class() -> None:
    """Seen shapes on the measured GPU are narrow; short prompts, other GPUs and servers are wider and say why."""
    report = analyze("llama-3.1-8b", "h200", batch_size=4, input_len=1024)
    band = report.expected_error["tpot"]
    assert band.p50 < band.p80 < band.p90 < 0.2 and band.rows >= 20 and not band.note
    assert report.to_dict()["expected_error"]["tpot"]["class"] == (
        "vLLM on h200, one GPU, dense, 16-bit weights: static batches"
    )
    short = analyze("llama-3.1-8b", "h200", input_len=128).expected_error
    assert short["ttft"].p80 > report.expected_error["ttft"].p80 and "wait for the host" in short["ttft"].kind
    assert "wait for the host" not in short["tpot"].kind  # its steps are replayed as one graph
    other = expected_errors(build_request("llama-3.1-8b", "rtx5090"))
    assert other["tpot"].p80 > band.p80 and "no such run was measured" in other["tpot"].note
    served = expected_errors(build_request("llama-3.1-8b", "h200"), "online")
    assert served["ttft"].p80 > report.expected_error["ttft"].p80 and "servers" in served["ttft"].kind
    assert any("(p50)" in text and " runs" in text for text in error_sentences(served))


@pytest.mark.parametrize(
    "model, gpu, keywords, traits",
    [
        ("qwen3-30b-a3b", "h100-sxm", {"quantization": "fp8"}, ("own", "mixture", "8-bit", "one")),
        ("nemotron-nano-9b-v2", "b300", {"tensor_parallel_size": 2}, ("near", "hybrid", "16-bit", "many")),
        ("gpt-oss-20b", "mi300x", {}, ("none", "mixture", "4-bit", "one")),
        ("qwen3-0.6b", "h200", {}, ("own", "small", "16-bit", "one")),
    ],
)
def test_traits(model: str, gpu: str, keywords: dict[str, object], traits: tuple[str, ...]) -> None:
    assert traits_of(build_request(model, gpu, **keywords))[2:] == traits  # type: ignore[arg-type]


@pytest.mark.slow
def test_bands_are_for_new_machines_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """On static batches neither of whose model and machine made the band; few groups stretch what they share."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bands = __import__("bands")
    every = [point for point in bands.points(sys.modules["band_rows"].read()) if bands.static(point)]
    assert 0.75 <= bands.coverage(list(bands.judged(every, bands.model_and_machine))) <= 0.9
    assert bands._stretch(4.0) == pytest.approx(1.5332 / 1.28155, rel=1e-3)
    one = next(point for point in every if not point.row.chosen)
    group = bands.spread([one._replace(off=0.1), one._replace(off=0.12), one._replace(off=0.14)])
    assert group.weight.sum() == 1 and group.shift == pytest.approx(0.12)
    assert group.of_new_group()[0] > 0.12


def test_what_nothing_is_comparable_to_has_no_band() -> None:
    assert analyze("llama-3.1-8b", "h200", efficiency=0.5).expected_error == {}
