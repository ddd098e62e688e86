"""Speculative decoding: acceptance, methods, and what a draft model costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran
from helpers.plans import bound_plan

import inferometer
from inferometer import BadValue, Report, analyze
from inferometer.inference import speculation
from inferometer.inference.speculation import accepted
from inferometer.specs import catalog
from inferometer.specs.structs import Speculation

Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"
Run = Callable[..., Ran]


def drafted(model: str, **kwargs: Any) -> inferometer.Report:
    spec = {"model": model, "num_speculative_tokens": 4, "acceptance_rate": 0.7}
    return inferometer.analyze("llama-3.1-70b", gpu="h200", tensor_parallel_size=8, speculative_config=spec, **kwargs)


def draft_seconds(report: inferometer.Report) -> float:
    return next(op.seconds for op in report.phases["decode"].ops if op.name == "draft")


@pytest.mark.parametrize("length", [0, 0.5, 0.99, 4.01, "x", True])
def test_an_acceptance_length_is_possible(length: Any) -> None:
    with pytest.raises(BadValue, match="acceptance_length"):
        analyze(MODEL, speculative_config={"method": "ngram", "acceptance_length": length})


def test_acceptance() -> None:
    assert accepted(0.8, 3) == pytest.approx(2.952) and accepted(1.0, 3) == 4.0
    for length in (1, 4):
        config = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": length}
        assert analyze(MODEL, speculative_config=config).plan["speculation"]["acceptance_length"] == length


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_an_eagle_head_is_not_the_model_s_own_module(method: str) -> None:
    with pytest.raises(BadValue, match="'model'"):
        analyze("deepseek-v3", gpu="h200", tensor_parallel_size=8, speculative_config={"method": method})
    config = {"method": method, "model": "llama-3.2-1b", "acceptance_length": 2.5}
    assert analyze(MODEL, speculative_config=config).plan["speculation"]["method"] == "draft_model"


def test_an_assumed_acceptance_is_a_warning(report: Reports) -> None:
    assert any("assumed" in w and "0.7" in w for w in analyze(MODEL, speculative_config={"method": "ngram"}).warnings)
    given = analyze(MODEL, speculative_config={"method": "ngram", "acceptance_rate": 0.7})
    assert not any("speculative" in w for w in given.warnings)


def test_a_measured_acceptance_is_of_its_own_method() -> None:
    kwargs: dict[str, Any] = {"gpu": "b200", "tensor_parallel_size": 8}
    own = analyze("deepseek-v4-pro", speculative_config={"method": "mtp", "num_speculative_tokens": 2}, **kwargs)
    assert own.plan["speculation"]["source"] == "measured"
    other = analyze("deepseek-v4-pro", speculative_config={"method": "ngram", "num_speculative_tokens": 2}, **kwargs)
    assert other.plan["speculation"]["source"].startswith("assumed")


def test_efficiency_is_the_drafters_too() -> None:
    slow, fast = (drafted("llama-3.2-1b", efficiency=x) for x in (0.25, 1.0))
    waiting = catalog.engine("vllm").step_overhead * 4
    assert draft_seconds(slow) - waiting > 2 * (draft_seconds(fast) - waiting)  # links keep their latency


def test_a_draft_keeps_its_own_quantisation() -> None:
    plain, small = drafted("llama-3.2-1b"), drafted("meta-llama/Llama-3.2-1B-FP8")
    assert small.memory.weights_bytes < plain.memory.weights_bytes - 0.3 * 2 * 1.2e9 / 8
    assert draft_seconds(small) < draft_seconds(plain)


def test_only_decoders_draft(run: Run) -> None:
    spec = '{"model": "DiT-XL/2", "num_speculative_tokens": 2}'
    ran = run("analyze", "llama-3.1-70b", "--gpu", "h200", "-tp", "8", "--speculative-config", spec)
    assert ran.code == 2 and "only a decoder can draft" in ran.err and "Traceback" not in ran.err


def test_a_layout_must_suit_the_draft() -> None:
    result = drafted("qwen2.5-0.5b")  # 14 heads
    assert not result.feasible and "qwen2.5-0.5b cannot draft here: 14 attention heads do not divide by tp 8" in (
        result.reason or ""
    )


def test_a_network_file_can_draft_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    text = """hidden_size = 512
vocab_size = 32000
[[layers]]
repeat = {}
blocks = [
  {{ block = "gqa", num_attention_heads = 8, num_key_value_heads = 8, head_dim = 64 }},
  {{ block = "mlp", intermediate_size = 2048 }},
]
"""
    path.write_text(text.format(4), encoding="utf-8")
    first = draft_seconds(drafted(str(path)))
    path.write_text(text.format(40), encoding="utf-8")
    os.utime(path, (1, 1))
    assert draft_seconds(drafted(str(path))) > 3 * first


def test_a_draft_is_built_once() -> None:
    spec = Speculation(model="llama-3.2-1b", acceptance_length=2.0)
    target = bound_plan("llama-3.1-8b", speculation=spec)
    first = speculation.draft_plan(target)
    assert speculation.draft_plan(target).model is first.model
    own = bound_plan("deepseek-v3", speculation=Speculation(method="mtp", acceptance_length=1.8))
    assert speculation.draft_plan(own).model is speculation.draft_plan(own).model
