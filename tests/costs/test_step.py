"""Steps as sums: pairs under every mask against counting them, and prefills that add up whatever the chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.costs.binding import bind, step_seconds
from inferometer.costs.roofline import EqualTokens
from inferometer.costs.step import (
    Group,
    Step,
    cache_entries,
    decode,
    decode_quadrature,
    entries_read,
    prefill,
    query_key_pairs,
)
from inferometer.inference.request import build_request
from inferometer.network import families
from inferometer.network.graph import Span
from inferometer.specs import catalog
from inferometer.specs.structs import Plan

FULL = {"": Span()}
SETUP = bind(
    families.build(catalog.model("llama-3.1-8b").config), catalog.hardware("h200"), catalog.engine("vllm"), Plan()
)


def seen(span: Span, position: int) -> set[int]:
    """The positions that a query sees, itself included, counted one by one."""
    if span.kind == "chunk":
        return set(range(position // int(span.size) * int(span.size), position + 1))
    if span.kind == "window":
        return set(range(max(0, position + 1 - int(span.size)), position + 1))
    return set(range(position + 1))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["full", "window", "chunk"]), st.integers(1, 40), st.integers(0, 60), st.integers(1, 60))
def test_pairs_and_entries_are_what_counting_gives(kind: str, size: int, cached: int, new: int) -> None:
    span = Span() if kind == "full" else Span(kind, size)  # type: ignore[arg-type]
    queries = [seen(span, position) for position in range(cached, cached + new)]
    sums = Step((Group(1, new, cached),)).sums({"": span})
    assert sums["prefill_qk"] == sum(len(q) for q in queries)
    assert sums["prefill_kv"] == len(set().union(*queries)), "what a step reads of the cache, each entry once"
    assert sums["prefill_dense"] == new * (cached + new)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 200))
def test_a_top_k_query_sees_at_most_k(size: int, n: int) -> None:
    span = Span("top_k", size)
    assert query_key_pairs(span, n) == sum(min(position + 1, size) for position in range(n))
    assert entries_read(span, n - 1, 1) == min(n, size) and cache_entries(span, n) == n, "all are kept, few are read"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 50))
def test_a_compressed_cache_has_fewer_entries(ratio: int, blocks: int) -> None:
    span, n = Span(ratio=ratio), ratio * blocks
    assert cache_entries(span, n) == entries_read(span, n - 1, 1) == blocks
    exact = sum((position + 1) / ratio for position in range(n))
    assert query_key_pairs(span, n) == pytest.approx(exact)
    narrow = Span("top_k", 3, ratio)
    assert query_key_pairs(narrow, n) <= query_key_pairs(span, n) and entries_read(narrow, n - 1, 1) == min(blocks, 3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["window", "top_k", "chunk"]), st.integers(1, 5000), st.integers(1, 5000))
def test_narrow_attention_is_never_more_work(kind: str, size: int, n: int) -> None:
    span = Span(kind, size)  # type: ignore[arg-type]
    assert query_key_pairs(span, n) <= query_key_pairs(Span(), n) and cache_entries(span, n) <= n
    if size >= n:
        assert query_key_pairs(span, n) == query_key_pairs(Span(), n)
        assert entries_read(span, n - 1, 1) == entries_read(Span(), n - 1, 1) == n


workloads = {
    "batch": st.integers(1, 64),
    "new": st.integers(1, 9000),
    "cached": st.integers(0, 3000),
    "budget": st.integers(1, 9000),
}


@settings(max_examples=200, deadline=None)
@given(**workloads)
def test_chunks_add_up_to_the_prompts(batch: int, new: int, cached: int, budget: int) -> None:
    steps = prefill(batch, new, cached, budget=budget)
    sums = [(step.sums(FULL), often) for step, often in steps]

    def added(key: str) -> float:
        return float(sum(found[key] * often for found, often in sums))

    assert added("tokens") == pytest.approx(batch * new)
    assert added("logits") == pytest.approx(batch), "one row of logits a prompt"
    assert added("prefill_qk") == pytest.approx(batch * (new * cached + new * (new + 1) / 2))
    assert sum(often for _, often in steps) == math.ceil(batch * new / budget)
    for step, _ in steps:
        assert sum(g.seqs * g.new for g in step.groups) <= budget * (1 + 1e-9)
        assert all(cached <= g.cached + 1e-6 and g.cached + g.new <= cached + new + 1e-6 for g in step.groups if g.seqs)


@settings(max_examples=25, deadline=None)
@given(**workloads)
def test_linear_work_does_not_depend_on_the_chunks(batch: int, new: int, cached: int, budget: int) -> None:
    from inferometer.costs.binding import step_rows

    def flops(limit: int) -> float:
        rows = [
            (row, often) for step, often in prefill(batch, new, cached, budget=limit) for row in step_rows(SETUP, step)
        ]
        return float(sum(row.work["flops"] * row.count * often for row, often in rows if row.op.kind == "linear"))

    assert flops(budget) == pytest.approx(flops(10**9))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*workloads.values()), min_size=1, max_size=4))
def test_a_million_prefills_are_one_call(points: list[tuple[int, int, int, int]]) -> None:
    batch, new, cached, budget = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    together = sum(step_seconds(SETUP, step) * often for step, often in prefill(batch, new, cached, budget=budget))
    alone = [sum(step_seconds(SETUP, s) * n for s, n in prefill(b, q, c, budget=k)) for b, q, c, k in points]
    assert together == pytest.approx(alone, rel=1e-9)


@pytest.mark.slow
def test_the_mean_step_of_an_answer_is_the_mean_of_its_steps() -> None:
    for model in ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b"):
        network = families.build(catalog.model(model).config)
        bound_plan = bind(network, catalog.hardware("h200"), catalog.engine("roofline"), Plan())
        each = [float(step_seconds(bound_plan, decode(4, 1000 + i, 2))) for i in range(0, 999, 2)]
        mean = sum(
            float(step_seconds(bound_plan, step)) * weight for step, weight in decode_quadrature(network, 4, 1000, 1000)
        )
        assert mean == pytest.approx(sum(each) / len(each), rel=2e-3), model


def test_a_prompt_is_cut_where_the_budget_ends() -> None:
    """Three prompts of 1,000 tokens, 2,048 a step: two and a head of 48, then the other 952 of the third."""
    (full, often), (last, once) = prefill(3, 1000, budget=2048)
    assert often == once == 1
    assert full.groups == (Group(2, 1000, 0, 1), Group(1, 48, 0, 0)) and last.groups == (Group(1, 952, 48, 1),)
    assert full.sums({})["tokens"] == 2048 and last.sums({})["logits"] == 1


def test_full_steps_without_a_rest_are_all_there_is() -> None:
    ((step, often),) = prefill(8, 1024, budget=2048)
    assert often == 4 and step.groups[0] == Group(2, 1024, 0, 1) and step.sums({})["tokens"] == 2048


@pytest.mark.parametrize("model", ["gpt-oss-20b", "deepseek-v3", "granite-4.0-h-tiny"])
def test_steps_that_differ_in_context_alone_share_what_depends_on_their_tokens(model: str) -> None:
    plan = build_request(model, "h200", tensor_parallel_size=2).bind()
    shared: EqualTokens = {}
    for context in (100, 5000, 70_000):
        step = Step((Group(8, 1, context, 1, True),))
        assert step_seconds(plan, step, shared) == pytest.approx(step_seconds(plan, step), rel=1e-12)
    assert len(shared) == 1
    assert step_seconds(plan, Step((Group(99, 1, 100, 1, True),)), shared) > 0 and len(shared) == 2
