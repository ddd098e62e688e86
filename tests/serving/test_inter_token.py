"""Gaps between tokens, against an oracle that steps one by one and writes down every token of every request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferometer.serving.engine import EngineCore
from inferometer.serving.inter_token import MAX_LENGTHS, InterTokenLatencies
from inferometer.serving.metrics import metrics
from inferometer.serving.pipeline import PipelineBatch, PipelineEngine, StepInFlight
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace

BIN = 0.01  # relative, what percentiles may be off: runs of steps count by their mean, and some steps jump by as much
ITL = [f"{word}_itl_ms" for word in ("mean", "median", "std", "p90", "p99")]
CHAT: dict[str, Any] = {"input_len": "lognormal:mean=300,std=300,max=2000", "output_len": "lognormal:mean=80,std=80"}


class Oracle:
    """Looks at an engine after every step: a request with more tokens than before had an event at this time."""

    def __init__(self, trace: Trace) -> None:
        self.output_len = trace.output_tokens.tolist()
        self.last: dict[int, tuple[int, float]] = {}  # request -> tokens so far, and when the last ones came
        self.gaps: list[float] = []
        self.latest: dict[
            int, list[tuple[int, int]]
        ] = {}  # engine -> requests of its last look, and their gaps' places

    def late(self, engine: EngineCore, seconds: float) -> None:
        """The tokens of an engine's last step were seen later than the step ended."""
        for i, place in self.latest.pop(engine.number, ()):
            tokens, now = self.last[i]
            self.last[i] = (tokens, now + seconds)
            if place >= 0:
                self.gaps[place] += seconds

    def look(self, engine: EngineCore, now: float) -> None:
        """Compare every request's tokens with what they were."""
        table = engine.table
        if max(table.remaining_tokens) == 1 < max(self.output_len):
            return  # a replica that only prefills
        batches = [one.batch for one in engine.batches] if isinstance(engine, PipelineEngine) else [engine.batch]
        left = {i: 0 for i in self.last if table.finished_s[i] == table.finished_s[i]}
        for batch in batches:
            left |= {e & (1 << batch.id_bits) - 1: (e >> batch.id_bits) - batch.clock for e in batch.finish_heap}
        latest = self.latest[engine.number] = []
        for i, remaining in left.items():
            tokens = self.output_len[i] - remaining
            before, last = self.last.get(i, (0, now))
            if tokens > before > 0:
                self.gaps.append(now - last)
            if tokens > before:
                self.last[i] = (tokens, now)
                latest.append((i, len(self.gaps) - 1 if before else -1))


def watched(monkeypatch: pytest.MonkeyPatch, model: str, gpu: str, trace: Trace, **options: Any) -> list[float]:
    """Every gap of a run that is taken step by step, in ms."""
    oracle = Oracle(trace)
    step, land, show_results = EngineCore._step, PipelineEngine._land, EngineCore.show_results

    def watched_step(self: EngineCore, until: float) -> bool:
        result = step(self, until)
        if not isinstance(self, PipelineEngine):
            oracle.look(self, self.now)
        return result

    def watched_results(self: EngineCore, late: float) -> None:
        oracle.late(self, late)
        show_results(self, late)

    def watched_land(self: PipelineEngine, current: PipelineBatch, flight: StepInFlight) -> None:
        land(self, current, flight)
        oracle.look(self, current.ready)

    with monkeypatch.context() as patch:
        patch.setattr(EngineCore, "_step", watched_step)
        patch.setattr(EngineCore, "show_results", watched_results)
        patch.setattr(PipelineEngine, "_land", watched_land)
        simulate(model, gpu, trace=trace, **{**options, "fast_forward": False})
    return [gap * 1e3 for gap in oracle.gaps]


def in_ms(gaps: list[float]) -> dict[str, float]:
    """As ``vllm bench serve`` sums gaps up."""
    p90, p99 = np.percentile(gaps, (90, 99))
    return dict(zip(ITL, (np.mean(gaps), np.median(gaps), np.std(gaps), p90, p99), strict=True))


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "at once": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 150, **CHAT}, {"max_num_seqs": 32}),
    "one length": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 40, "input_len": 100, "output_len": 300}, {}),
    "a long answer": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 1, "input_len": 64, "output_len": 4000}, {}),
    "uncontended": ("llama-2-7b", "a100-sxm-80gb", {"num_prompts": 100, "request_rate": 5, **CHAT}, {}),
    "synchronous": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 80, "request_rate": 20, **CHAT},
        {"async_scheduling": False},
    ),
    "preempted": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 60, **CHAT}, {"num_gpu_blocks_override": 300}),
    "prompts first": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 80, "request_rate": 30, **CHAT},
        {"engine": "sglang"},
    ),
    "prompts first, preempted": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 60, **CHAT},
        {"engine": "sglang", "num_gpu_blocks_override": 4000},
    ),
    "static": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 40, **CHAT}, {"scheduler": "static", "max_num_seqs": 8}),
    "stop tokens": ("llama-3.1-8b", "h100-sxm", {"num_prompts": 60, "request_rate": 20, **CHAT}, {"stops": "token"}),
    "two stages": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 60, "request_rate": 20, **CHAT},
        {"pipeline_parallel_size": 2},
    ),
    "two stages, preempted": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 40, **CHAT},
        {"pipeline_parallel_size": 2, "num_gpu_blocks_override": 300},
    ),
    "disaggregated": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 60, "request_rate": 20, **CHAT},
        {"prefill_replicas": 1, "decode_replicas": 2},
    ),
    "two replicas": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 80, "request_rate": 20, **CHAT},
        {"data_parallel_size": 2, "router": "least_loaded"},
    ),
    "windows": ("gpt-oss-20b", "h100-sxm", {"num_prompts": 50, "request_rate": 20, **CHAT}, {}),
    "speculation": (
        "llama-3.1-8b",
        "h100-sxm",
        {"num_prompts": 50, "request_rate": 20, **CHAT},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": 2.3}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_gap_is_counted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, gpu, traffic, options = CASES[name]
    trace = synthetic(**traffic)
    outcome = simulate(model, gpu, trace=trace, **options)
    gaps = watched(monkeypatch, model, gpu, trace, **options)
    assert outcome.gaps is not None and outcome.gaps.counts.sum() == len(gaps) > 0
    assert (outcome.preemptions.sum() > 0) == ("preempted" in name)
    summary, expected = metrics(outcome), in_ms(gaps)
    for key in ITL:
        print(key, summary[key], expected[key])
    for key in ITL:
        assert summary[key] == pytest.approx(expected[key], rel=BIN if key != "mean_itl_ms" else 1e-9, abs=2e-3), key


@pytest.mark.slow
def test_p99_is_the_step_with_prompts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 requests at once: 3% of all steps compute some 8,000 tokens of prompts, and all sequences wait for them."""
    trace = synthetic(num_prompts=3000, input_len=256, output_len=256)
    options = {"max_num_seqs": 256}
    outcome = simulate("llama-3.1-8b", "h100-sxm", trace=trace, **options)
    summary = metrics(outcome)
    expected = in_ms(watched(monkeypatch, "llama-3.1-8b", "h100-sxm", trace, **options))
    assert {key: summary[key] for key in ITL} == pytest.approx(expected, rel=BIN)
    assert summary["p99_itl_ms"] > 8 * summary["median_itl_ms"] > 7 * summary["p90_itl_ms"]
    assert summary["p99_tpot_ms"] < 1.5 * summary["median_tpot_ms"]


def test_mean_is_that_of_tpot_weighted_by_tokens() -> None:
    outcome = simulate("llama-3.1-8b", "h100-sxm", trace=synthetic(num_prompts=100, request_rate=10, **CHAT))
    gaps = outcome.output_tokens - 1
    tpot = (outcome.finished_s - outcome.first_token_s)[gaps > 0] / gaps[gaps > 0]
    summary = metrics(outcome)
    assert summary["mean_itl_ms"] == pytest.approx(np.average(tpot, weights=gaps[gaps > 0]) * 1e3, rel=1e-12)
    assert outcome.gaps is not None and outcome.gaps.counts.sum() == gaps.sum()
    assert np.average(outcome.gaps.seconds, weights=outcome.gaps.counts) * 1e3 == pytest.approx(
        summary["mean_itl_ms"], rel=1e-4
    )


def test_a_live_server_keeps_its_own_gaps() -> None:
    outcome = simulate("llama-3.1-8b", "h100-sxm", trace=synthetic(num_prompts=5, input_len=9, output_len=9))
    assert metrics(outcome, gaps_ms=np.array([1.0, 2.0, 9.0]))["median_itl_ms"] == 2.0


def test_very_many_lengths_are_rounded_to_two_thousandths() -> None:
    gaps, seconds = InterTokenLatencies(), np.geomspace(1e-4, 100, 2 * MAX_LENGTHS)
    for value in seconds.tolist():
        gaps.add(value, 1)
    gaps.compact()
    histogram = gaps.histogram()
    assert len(histogram.seconds) < MAX_LENGTHS / 4 and histogram.counts.sum() == len(seconds)
    rounded = np.repeat(histogram.seconds, histogram.counts.astype(int))
    np.testing.assert_allclose(rounded, seconds, rtol=2e-3, atol=1e-6)
