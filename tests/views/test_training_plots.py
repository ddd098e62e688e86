"""Pictures of a training step: its parts, the schedule of its passes, memory over time."""

from __future__ import annotations

import msgspec
import pytest
from matplotlib.colors import to_hex

import inferometer
from inferometer.base.errors import BadValue
from inferometer.training.train import timeline_of
from inferometer.views.plots.palette import GRID
from inferometer.views.plots.training import memory_over_time, peak_text, schedule, training_step


def test_the_step_of_a_training_is_its_parts_and_its_memory() -> None:
    report = inferometer.train("llama-3.1-8b", gpu="h100-sxm", data_parallel_size=8, zero=1)
    upper, lower = training_step(report).axes
    assert sum(bar.get_width() for bar in upper.patches) == pytest.approx(report.step_seconds, rel=1e-6)
    widths = [bar.get_width() for bar in upper.patches]
    assert widths == sorted(widths, reverse=True)
    m = report.memory
    assert [line.get_xdata()[0] for line in lower.lines] == [m.usable_bytes, m.capacity_bytes]
    limits = [text.get_position()[1] for text in lower.texts if text.get_text().startswith(("usable", "capacity"))]
    assert limits[0] != limits[1], "near limits stand one above the other"


@pytest.mark.parametrize(("batch", "virtual"), [(8, 1), (8, 4), (200, 1)])
def test_the_schedule_of_a_step_has_every_second_in_its_place(batch: int, virtual: int) -> None:
    report = inferometer.train(
        "smollm2-360m", gpu="h100-sxm", pipeline_parallel_size=2, interleave=virtual, global_batch_size=batch
    )
    (axes,) = schedule(report).axes
    areas, width = [0.0, 0.0], axes.get_xlim()[1]
    for bars in axes.collections:
        drawn = to_hex(bars.get_facecolor()[0]) != GRID
        for box in (path.get_extents() for path in bars.get_paths()):
            areas[int(box.y0 + 0.421)] += drawn * box.width * box.height / 0.84
    ends = report.step_seconds - report.breakdown.pp_bubble
    fold = timeline_of(report).fold
    left_out = (fold.to_s - fold.from_s) if fold else 0.0
    busy = max(stage.busy_seconds for stage in report.stages)
    slow = [stage.busy_seconds for stage in report.stages].index(busy)
    assert areas[slow] == pytest.approx(ends - left_out, rel=0.02)
    assert width == pytest.approx((report.step_seconds - left_out) * (1.05 if fold else 1))
    texts = [text.get_text() for text in axes.texts]
    if fold:
        assert f"{fold.micro_batches:,} more" in "".join(texts)
    else:
        assert texts.count("7") == 4 or virtual > 1, "forward and backward of two stages"
    assert sum("idle" in text for text in texts) == 2


def test_memory_over_time_ends_at_what_the_stage_keeps_and_reaches_its_peak() -> None:
    report = inferometer.train(
        "smollm2-360m", gpu="h100-sxm", pipeline_parallel_size=4, global_batch_size=8, recompute="selective"
    )
    upper, lower = memory_over_time(report).axes
    own = report.stages[report.memory.stage]
    tops = [collection.get_paths()[0].get_extents().y1 for collection in upper.collections]
    assert max(tops) == pytest.approx(own.total_bytes)
    widths = [0.0] * 4
    for bar in lower.patches:
        widths[round(bar.get_y() + 0.38)] += bar.get_width()
    assert widths == pytest.approx([stage.total_bytes for stage in report.stages])
    assert peak_text(own).startswith("At the peak 4 micro-batches are kept")


def test_a_schedule_needs_what_train_returned() -> None:
    report = inferometer.train("gpt2")
    copied = msgspec.convert(report.to_dict(), type(report))
    assert training_step(copied)
    with pytest.raises(BadValue, match="a copy has no model"):
        schedule(copied)
