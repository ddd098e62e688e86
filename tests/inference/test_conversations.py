"""Conversations (``--turns``): each turn finds the earlier ones in the cache; figures are means over the turns."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from conftest import command

from inferometer import Report

Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"


def test_the_bound_of_a_conversation_is_a_mean_over_its_turns(report: Reports) -> None:
    talk = report(MODEL, turns="16:128,8192:128")
    first, last = report(MODEL, input_len=16), report(MODEL, input_len=16 + 128 + 8192, prefix_len=16 + 128)
    for word in ("ttft_ms", "tpot_ms"):
        each = [getattr(r.roofline, word) for r in (first, last)]
        assert getattr(talk.roofline, word) == pytest.approx(sum(each) / 2)
        assert getattr(talk.roofline, word) < getattr(talk.metrics, word)


def test_images_come_with_the_first_turn(report: Reports) -> None:
    seen = 36 * 36
    talk = report("qwen2.5-vl-7b", images="1x1008x1008", turns="16:12,32:4")
    assert [t.context for t in talk.turns] == [0, seen + 16 + 12]
    alone = report("qwen2.5-vl-7b", images="1x1008x1008", input_len=16, output_len=12)
    assert talk.turns[0].ttft_ms == pytest.approx(alone.metrics.ttft_ms)
    after = report("qwen2.5-vl-7b", input_len=seen + 28 + 32, prefix_len=seen + 28, output_len=4)
    assert talk.turns[1].ttft_ms == pytest.approx(after.metrics.ttft_ms)
    assert talk.memory.kv_cache_bytes == pytest.approx((seen + 16 + 12 + 32 + 4) * talk.memory.kv_bytes_per_token)


def test_one_turn_is_no_conversation(report: Reports) -> None:
    one = report("qwen2.5-vl-7b", images="1x1008x1008", turns="16:12")
    alone = report("qwen2.5-vl-7b", images="1x1008x1008", input_len=16, output_len=12)
    for ours, theirs in ((one.metrics, alone.metrics), (one.roofline, alone.roofline)):
        assert msgspec.to_builtins(ours) == pytest.approx(msgspec.to_builtins(theirs))


def test_turns_keep_to_the_phase(report: Reports) -> None:
    prompts = report(MODEL, turns="512:128,256:64", phase="prefill")
    assert prompts.metrics.tpot_ms is None and prompts.roofline.tpot_ms is None
    assert all(t.tpot_ms is None for t in prompts.turns) and prompts.metrics.output_throughput is None
    answers = report(MODEL, turns="512:128,256:64", phase="decode")
    assert answers.metrics.ttft_ms is None and answers.metrics.tpot_ms is not None


def test_turns_say_all_lengths_themselves() -> None:
    for flag in ("--input-len", "--output-len", "--prefix-len"):
        ran = command("analyze", MODEL, "--turns", "512:128", flag, "16")
        assert ran.code == 2 and flag in ran.err and "--turns" in ran.err
