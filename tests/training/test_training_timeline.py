"""A step over time: passes of every stage, the bytes while they run, what a fold leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ran

from inferometer import BadValue, train
from inferometer.training.train import timeline_of
from inferometer.training.training_report import TrainReport
from inferometer.training.training_timeline import StageTimeline, StepTimeline

LAYOUTS: dict[str, dict[str, Any]] = {
    "one stage": {"global_batch_size": 4, "recompute": "full"},
    "1F1B": {"pipeline_parallel_size": 4, "global_batch_size": 8, "data_parallel_size": 1},
    "uneven": {"pipeline_parallel_size": 4, "global_batch_size": 6, "decoder_first_pipeline_num_layers": 5},
    "interleaved": {"pipeline_parallel_size": 4, "interleave": 4, "global_batch_size": 8, "tensor_parallel_size": 2},
    "folded": {"pipeline_parallel_size": 2, "global_batch_size": 200, "data_parallel_size": 2, "zero": 1},
    "folded, interleaved": {"pipeline_parallel_size": 2, "interleave": 4, "global_batch_size": 60},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest) -> tuple[TrainReport, StepTimeline]:
    report = train("smollm2-360m", gpu="h100-sxm", **LAYOUTS[request.param])
    return report, timeline_of(report)


def busy(stage: StageTimeline) -> float:
    return sum(end - start for start, end in zip(stage.passes.start_s, stage.passes.end_s, strict=True))


def test_it_is_the_step_of_the_report(made: tuple[TrainReport, StepTimeline]) -> None:
    report, timeline = made
    assert timeline.step_seconds == pytest.approx(report.step_seconds)
    slow = max(report.stages, key=lambda stage: stage.busy_seconds)
    assert slow.idle_seconds == pytest.approx(report.breakdown.pp_bubble, abs=1e-9)
    ends = [stage.busy_seconds + stage.idle_seconds for stage in report.stages]
    assert ends == pytest.approx([timeline.passes_end_s] * len(ends))
    for stage, own in zip(timeline.stages, report.stages, strict=True):
        each = sum(part.total for part in (*stage.forward, *stage.backward))
        assert each * timeline.micro_batches == pytest.approx(own.busy_seconds)
        if timeline.fold is None:
            assert busy(stage) == pytest.approx(own.busy_seconds)


def test_its_peak_is_the_memory_of_the_stage(made: tuple[TrainReport, StepTimeline]) -> None:
    report, timeline = made
    for stage, own in zip(timeline.stages, report.stages, strict=True):
        assert max(stage.passes.memory_bytes) == pytest.approx(own.total_bytes, rel=1e-12)
        kept = sum(n * each for n, each in zip(own.in_flight, own.microbatch_bytes, strict=True))
        assert kept == pytest.approx(own.activation_bytes)
        assert own.total_bytes == pytest.approx(sum(getattr(own, f"{name}_bytes") for name in (
            "weights", "gradients", "optimizer", "activation", "working", "buffers", "overhead"
        )))  # fmt: skip
    assert sum(stage.layers for stage in report.stages) == report.model.layers
    fullest = report.stages[report.memory.stage]
    assert fullest.total_bytes == report.memory.total_bytes == max(stage.total_bytes for stage in report.stages)


def test_passes_follow_each_other(made: tuple[TrainReport, StepTimeline]) -> None:
    _, timeline = made
    fold, n = timeline.fold, timeline.micro_batches
    for stage in timeline.stages:
        p = stage.passes
        for i in range(1, len(p.start_s)):
            assert p.start_s[i] >= p.end_s[i - 1] - 1e-9 or (fold and p.start_s[i - 1] < fold.from_s < p.end_s[i - 1])
        keys = set(zip(p.microbatch, p.chunk, p.backward, strict=True))
        assert len(keys) == len(p.microbatch) and {0, n - 1} <= set(p.microbatch) <= set(range(n))
        if fold is None:
            assert len(keys) == 2 * n * timeline.virtual_stages
        else:
            assert len(keys) < 2 * n * timeline.virtual_stages
            assert not any(
                fold.from_s < start and end < fold.to_s for start, end in zip(p.start_s, p.end_s, strict=True)
            )


def test_a_fold_leaves_out_what_repeats() -> None:
    """What is left out takes as long as its micro-batches take on the slowest stage."""
    report = train("smollm2-360m", gpu="h100-sxm", **LAYOUTS["folded"])
    fold = timeline_of(report).fold
    assert fold is not None
    slow = max(report.stages, key=lambda stage: stage.busy_seconds)
    each = slow.busy_seconds / report.micro_batches
    assert fold.to_s - fold.from_s == pytest.approx(fold.micro_batches * each, rel=0.01)


def test_the_timeline_is_in_the_json_where_it_is_asked_for(run: Callable[..., Ran]) -> None:
    line = ("train", "smollm2-360m", "-pp", "2", "--global-batch-size", "4", "--json")
    plain, full = run(*line).json, run(*line, "--timeline").json
    assert plain["timeline"] is None and len(plain["stages"]) == 2
    assert len(full["timeline"]["stages"][1]["passes"]["start_s"]) == 2 * 4
    refused = run("train", "smollm2-360m", "--timeline")
    assert refused.code == 2 and "--json" in refused.err
    with pytest.raises(BadValue, match="a copy"):
        timeline_of(TrainReport(**{name: getattr(train("gpt2"), name) for name in TrainReport.__struct_fields__}))
