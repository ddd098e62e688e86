"""Ranks wait for the one whose experts were chosen most: the formula against routing by chance."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from inferometer.base.symbols import evaluate
from inferometer.costs.parallelism import layout_env
from inferometer.network import families
from inferometer.network.operators import experts
from inferometer.specs import catalog
from inferometer.specs.structs import Plan


@cache
def layout(ranks: int) -> dict[str, float]:
    model = families.build(catalog.model("deepseek-v3").config)
    return layout_env(Plan(tensor_parallel_size=ranks, enable_expert_parallel=True), model)


def touched(tokens: int, ranks: int, *, count: int = 256, top_k: int = 8) -> float:
    """Experts of the slowest rank that some token chose, by the formula."""
    op = experts("experts", 64, 64, count=count, top_k=top_k)
    return float(evaluate(op.dims["touched"], {**layout(ranks), "moe_tokens": tokens, "routing_skew": 0.0}))


@pytest.mark.parametrize(("tokens", "ranks"), [(1, 4), (8, 2), (8, 8), (32, 4), (32, 8), (100, 8)])
def test_the_slowest_rank_is_what_chance_makes_it(tokens: int, ranks: int) -> None:
    rng = np.random.default_rng(0)
    most = []
    for _ in range(100):
        chosen = np.unique(np.argsort(rng.random((tokens, 256)), axis=1)[:, :8])
        most.append(np.bincount(chosen // (256 // ranks), minlength=ranks).max())
    assert touched(tokens, ranks) == pytest.approx(np.mean(most), rel=0.06)


def test_more_tokens_never_touch_fewer_experts() -> None:
    counts = [touched(tokens, 8) for tokens in range(1, 600, 7)]
    assert counts == sorted(counts) and max(counts) <= 32


def test_a_rank_alone_waits_for_no_other() -> None:
    assert touched(32, 1) == pytest.approx(256 * (1 - (1 - 8 / 256) ** 32))
