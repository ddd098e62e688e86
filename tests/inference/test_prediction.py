"""Figures of a grid are the figures of its points, and so is what they occupy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import analyze
from inferometer.inference.latency import Prediction, predict
from inferometer.inference.memory import footprint
from inferometer.inference.request import build_request
from inferometer.inference.workload import uniform_batch_shape

MS = ("ttft", "tpot", "e2el")
PLANS = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-8b", {"data_parallel_size": 2, "engine": "trtllm"}),
    ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    ("gpt-oss-120b", {"tensor_parallel_size": 2, "engine": "roofline"}),
    (
        "deepseek-v3",
        {
            "tensor_parallel_size": 8,
            "enable_expert_parallel": True,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "plan"), PLANS)
@settings(max_examples=8, deadline=None)
@given(
    batch=st.lists(st.integers(1, 500), min_size=2, max_size=3, unique=True),
    prompt=st.lists(st.integers(1, 30_000), min_size=2, max_size=3, unique=True),
    answer=st.lists(st.integers(1, 2_000), min_size=2, max_size=3, unique=True),
)
def test_a_grid_is_its_points(model, plan, batch, prompt, answer):
    bound_plan = build_request(model, "h200", **plan).bind()
    axes = np.meshgrid(*(np.array(a, float) for a in (batch, prompt, answer)), indexing="ij", sparse=True)
    batch_shape = uniform_batch_shape(bound_plan, *axes)
    prediction, held = predict(bound_plan, batch_shape), footprint(bound_plan, batch_shape)
    shape = (len(batch), len(prompt), len(answer))
    at = (len(batch) - 1, 0, len(answer) - 1)
    one = analyze(model, "h200", batch_size=batch[at[0]], input_len=prompt[0], output_len=answer[at[2]], **plan)
    for word in Prediction._fields:
        value = float(np.broadcast_to(getattr(prediction, word), shape)[at]) * (1e3 if word in MS else 1)
        alone = getattr(one.metrics, f"{word}_ms" if word in MS else word)
        assert value == pytest.approx(alone or 0.0, rel=1e-9), word
    assert float(np.broadcast_to(held.total, shape)[at]) == pytest.approx(one.memory.total_bytes, rel=1e-9)
