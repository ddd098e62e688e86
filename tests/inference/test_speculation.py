"""Speculative decoding: what is estimated, and with which token a draft model's config is fetched."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.inference import latency, speculation
from inferometer.inference.request import build_request
from inferometer.inference.workload import batch_shape_of
from inferometer.specs import catalog

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.6}


def test_time_per_token_estimates_a_speculative_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request = build_request("llama-3.1-8b", "h200", speculative_config=NGRAM)
    bound_plan, calls = request.bind(), []
    real = latency.speculative_step
    monkeypatch.setattr(latency, "speculative_step", lambda *args: calls.append(args) or real(*args))
    latency.decode_seconds(bound_plan, batch_shape_of(bound_plan, request.workload))
    assert len(calls) == 1
    latency.decode_step(bound_plan, batch_shape_of(bound_plan, request.workload))
    assert len(calls) == 1, "the step alone is a shape: nothing is estimated for it"


def test_a_draft_model_is_fetched_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: dict[str, str | None] = {}
    real = catalog.model

    def model(name: str, token: str | None = None, **more: Any) -> Any:
        tokens[name] = token
        return real(name)

    monkeypatch.setattr(catalog, "model", model)
    speculation._draft_model.cache_clear()
    request = build_request(
        "llama-3.1-70b",
        "h200",
        tensor_parallel_size=4,
        speculative_config={"model": "llama-3.2-1b", "num_speculative_tokens": 2},
        hf_token="hf_secret",
    )
    speculation.draft_plan(request.bind())
    assert tokens == {"llama-3.1-70b": "hf_secret", "llama-3.2-1b": "hf_secret"}
