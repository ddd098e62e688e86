"""``profile MODEL --calibrate``: how much longer the whole model takes than the sum of its layers' rows.

Rows are of kernels or layers alone; the model also adds residuals, fills its cache and waits for Python. One factor for
prefill and one for decode scale the rows to what the clock on the wall shows, and what is left is the residual error.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..base.errors import BadValue, check_int
from ..specs.arguments import flag
from . import hf_model
from .layer_csv import LayerRows, Length, Seconds
from .layer_parts import PartTimer
from .timer import WallClock

WORTHLESS = 0.2  # mean error from which on scaled rows say nothing
STEPS = (1, 4, 16)  # decode steps after the prompt: answers of 2, 5 and 17 tokens


class CalibrationGrid(NamedTuple):
    """Where the whole model is run: prompts of these lengths, each with answers of a few lengths."""

    layers: int | None  # None: all that fit
    inputs: tuple[int, ...]
    repeat: int
    force: bool  # write scaled rows even if their factors are worthless


class CalibrationPoint(NamedTuple):
    """One run of the whole model: its phase, its length, how long it took and what its rows add up to."""

    phase: str
    input: int
    steps: int
    measured: float
    summed: float


class WholeModel(NamedTuple):
    """Runs of a model with so many layers."""

    layers: int
    points: list[CalibrationPoint]


def calibration_grid(
    layers: int | None, least: int, most: int, step: int, repeat: int, force: bool = False
) -> CalibrationGrid:
    """``grid(None, 128, 1024, 128, 3).inputs  # (128, 256, …, 1024)``"""
    if layers is not None:
        check_int("scaling_num_layers", layers)
    check_int("scaling_input_min", least)
    check_int("scaling_input_max", most)
    if most < least:
        raise BadValue(f"`scaling_input_max` must be at least `scaling_input_min`, {least:,}, not {most:,}")
    return CalibrationGrid(
        layers,
        tuple(range(least, most + 1, check_int("scaling_input_step", step))),
        check_int("scaling_repeat", repeat),
        force,
    )


class Uncovered(NamedTuple):
    """A phase with rows that do not reach around the calibration grid: the tokens they need to span, and do span."""

    phase: str
    needed: tuple[int, int]
    measured: tuple[int, int] | None  # None: no rows at all


def uncovered(grid: CalibrationGrid, lengths: Iterable[Length]) -> Uncovered | None:
    """The first phase with rows that do not reach around the grid; None if both do: ``uncovered(grid, table.rows)``"""
    rows = list(lengths)
    first, last = grid.inputs[0], grid.inputs[-1]
    tokens = {
        "prefill": ((first, last), [length.input for length in rows if not length.kv_cache]),
        "decode": ((first, last + STEPS[-1] - 1), [length.kv_cache for length in rows if length.input == 1]),
    }
    for phase, (needed, measured) in tokens.items():
        if not measured or min(measured) > needed[0] or max(measured) < needed[1]:
            return Uncovered(phase, needed, (min(measured), max(measured)) if measured else None)
    return None


def check_covered(grid: CalibrationGrid, lengths: Iterable[Length], verb: str) -> None:
    """Refuse a grid that the rows of a phase do not reach around: nothing is extrapolated beyond what was measured."""
    missing = uncovered(grid, lengths)
    if missing is None:
        return
    (low, high), measured = missing.needed, missing.measured
    reach = f"from {measured[0]:,} to {measured[1]:,}" if measured else "none at all"
    raise BadValue(
        f"`calibrate` needs {missing.phase} rows from {low:,} to {high:,} tokens, but the file {verb} {reach}; give a "
        f"longer `{missing.phase}_max`, `mode` both or a shorter `scaling_input_max`"
    )


def sum_of_parts(rows: Mapping[int, Seconds], layers: Mapping[str, int], length: int) -> float:
    """What a model's parts add up to at a length, each as often as the model has it; between lengths, linearly.

    ``summed(table.phase("decode"), {"q_proj": 32, "lm_head": 1}, 300)``
    """
    import numpy as np

    have = sorted(rows)
    return sum(
        number * float(np.interp(length, have, [rows[n].get(part, 0.0) for n in have]))
        for part, number in layers.items()
    )


def fit_factor(points: Iterable[CalibrationPoint], phase: str) -> dict[str, Any]:
    """The factor of a phase, the median over its points, and how far off the scaled sums still are."""
    chosen = [point for point in points if point.phase == phase]
    factor = statistics.median(point.measured / point.summed for point in chosen)
    errors = [abs(factor * point.summed / point.measured - 1) for point in chosen]
    return {"factor": factor, "mean_error": statistics.fmean(errors), "max_error": max(errors), "points": len(chosen)}


def calibrate(
    grid: CalibrationGrid,
    check: hf_model.Checkpoint,
    table: LayerRows,
    device: str,
    sketch: tuple[Any, Any],
    deadline: float,
    say: Callable[[str], None],
    progress: Callable[[int, int, str], None],
) -> WholeModel:
    """Run the whole model over the grid, as far as there is time."""
    torch, _ = hf_model.load_libraries()
    fit = hf_model.layers_that_fit(*sketch, hf_model.free_bytes(torch, device))
    layers = grid.layers or fit
    if not layers:
        raise BadValue(f"not even one layer of {check.name} fits in memory here, beside its embedding and head")
    say(
        f"calibrating with {layers} of {check.layers} layers"
        + ("" if grid.layers or layers == check.layers else ", which is all that fits here")
    )
    built = hf_model.build(check, layers, device)
    with torch.no_grad():
        with PartTimer(torch, built.model, built.layers, WallClock()) as parts:
            number = parts.layers_with(lambda: built.run(built.tokens(2)))
        points: list[CalibrationPoint] = []
        for done, new in enumerate(grid.inputs):
            progress(done, len(grid.inputs), f"whole model, input {new:,}")
            if time.monotonic() > deadline:
                say(f"the time budget ended the calibration after {done} of {len(grid.inputs)} inputs")
                break
            points += _points(built, table, number, new, grid.repeat)
        else:
            progress(len(grid.inputs), len(grid.inputs), "done")
    return WholeModel(layers, points)


def write_scaled(table: LayerRows, whole: WholeModel, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the scaled rows, and give the factors; not where a factor leaves them worthless, unless by ``force``."""
    factors: dict[str, Any] = {phase: fit_factor(whole.points, phase) for phase in ("prefill", "decode")}
    path = table.path.with_suffix(".scaled.csv")
    noisy = [f"{phase} {fit['mean_error']:.0%}" for phase, fit in factors.items() if fit["mean_error"] > WORTHLESS]
    if noisy:
        say(
            f"warning: scaled rows are off by {' and '.join(noisy)} on average, so these factors are worthless: "
            "measure again on an idle machine"
            + ("" if force else f"; {path} was not written, {flag('force')} writes it")
        )
    written = force or not noisy
    if written:
        table.scaled(path, {phase: factors[phase]["factor"] for phase in factors})
        say(f"wrote {path}")
    inputs = sorted({point.input for point in whole.points})
    return {"file": str(path) if written else None, "num_layers": whole.layers, "inputs": inputs, **factors}


def _points(
    built: hf_model.Built, table: LayerRows, number: Mapping[str, int], new: int, repeat: int
) -> list[CalibrationPoint]:
    """A prompt and an answer, run greedily: the first time to warm up, then for the clock."""
    runs = [_run(built, new) for _ in range(repeat + 1)][1:]
    took = [statistics.median(times) for times in zip(*runs, strict=True)]
    contexts = table.phase("decode")
    points = [CalibrationPoint("prefill", new, 0, took[0], sum_of_parts(table.phase("prefill"), number, new))]
    for place, steps in enumerate(STEPS, 1):
        rows = sum(sum_of_parts(contexts, number, new + step) for step in range(steps))
        points.append(CalibrationPoint("decode", new, steps, took[place], rows))
    return points


def _run(built: hf_model.Built, new: int) -> list[float]:
    """Wall seconds of a prompt, then of the first 1, 4 and 16 decode steps after it.

    Logits are computed for every token of the prompt, because that is what the row of lm_head at its length is of.
    """
    tokens = built.tokens(new)
    built.settle()
    began = time.perf_counter()
    output = built.run(tokens)
    token = output.logits[:, -1:].argmax(-1)
    built.settle()
    times = [time.perf_counter() - began]
    began = time.perf_counter()
    for step in range(1, STEPS[-1] + 1):
        output = built.run(token, hf_model.kept_cache(output))
        token = output.logits[:, -1:].argmax(-1)
        if step in STEPS:
            built.settle()
            times.append(time.perf_counter() - began)
    return times
