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
from . import hf
from .layer_csv import LayerRows, Length, Seconds
from .parts import Parts
from .timer import WallClock

STEPS = (1, 4, 16)  # decode steps after the prompt: answers of 2, 5 and 17 tokens


class Grid(NamedTuple):
    """Where the whole model is run: prompts of these lengths, each with answers of a few lengths."""

    layers: int | None  # None: all that fit
    inputs: tuple[int, ...]
    repeat: int


class Point(NamedTuple):
    """One run of the whole model: its phase, its length, how long it took and what its rows add up to."""

    phase: str
    input: int
    steps: int
    measured: float
    summed: float


def grid(layers: int | None, least: int, most: int, step: int, repeat: int) -> Grid:
    """``grid(None, 128, 1024, 128, 3).inputs  # (128, 256, …, 1024)``"""
    if layers is not None:
        check_int("--scaling-num-layers", layers)
    check_int("--scaling-input-min", least)
    check_int("--scaling-input-max", most)
    if most < least:
        raise BadValue(f"--scaling-input-max must be at least --scaling-input-min, {least:,}, not {most:,}")
    return Grid(
        layers,
        tuple(range(least, most + 1, check_int("--scaling-input-step", step))),
        check_int("--scaling-repeat", repeat),
    )


def check_covered(asked: Grid, lengths: Iterable[Length], verb: str) -> None:
    """Refuse a grid that the rows of a phase do not reach around: nothing is guessed beyond what was measured."""
    have = list(lengths)
    last = asked.inputs[-1]
    wanted = {"prefill": (asked.inputs[0], last), "decode": (asked.inputs[0], last + STEPS[-1] - 1)}
    for phase, (low, high) in wanted.items():
        found = (
            [n.input for n in have if not n.kv_cache]
            if phase == "prefill"
            else [n.kv_cache for n in have if n.input == 1]
        )
        if not found or min(found) > low or max(found) < high:
            reach = f"from {min(found):,} to {max(found):,}" if found else "none at all"
            raise BadValue(
                f"--calibrate needs {phase} rows from {low:,} to {high:,} tokens, but the file {verb} "
                f"{reach}; give a longer --{phase}-max, --mode both or a shorter --scaling-input-max"
            )


def covered(asked: Grid, lengths: Iterable[Length]) -> bool:
    """Whether the rows of both phases reach around the grid."""
    try:
        check_covered(asked, lengths, "has")
    except BadValue:
        return False
    return True


def summed(rows: Mapping[int, Seconds], layers: Mapping[str, int], length: int) -> float:
    """What a model's parts add up to at a length, each as often as the model has it; between lengths, linearly.

    ``summed(table.phase("decode"), {"q_proj": 32, "lm_head": 1}, 300)``
    """
    import numpy as np

    have = sorted(rows)
    return sum(
        number * float(np.interp(length, have, [rows[n].get(part, 0.0) for n in have]))
        for part, number in layers.items()
    )


def fitted(points: Iterable[Point], phase: str) -> dict[str, Any]:
    """The factor of a phase, the median over its points, and how far off the scaled sums still are."""
    mine = [point for point in points if point.phase == phase]
    factor = statistics.median(point.measured / point.summed for point in mine)
    errors = [abs(factor * point.summed / point.measured - 1) for point in mine]
    return {"factor": factor, "mean_error": statistics.fmean(errors), "max_error": max(errors), "points": len(mine)}


def run(
    asked: Grid,
    check: hf.Checkpoint,
    table: LayerRows,
    device: str,
    sketch: tuple[Any, Any],
    deadline: float,
    say: Callable[[str], None],
    progress: Callable[[int, int, str], None],
) -> dict[str, Any] | None:
    """Run the whole model over the grid, write the scaled rows, and say the factors; None where there was no time."""
    torch, _ = hf.libraries()
    fit = hf.layers_that_fit(*sketch, hf.free_bytes(torch, device))
    layers = asked.layers or fit
    if not layers:
        raise BadValue(f"not one layer of {check.name} fits the memory here beside its embedding and head")
    say(
        f"calibrating with {layers} of {check.layers} layers"
        + ("" if asked.layers or layers == check.layers else ", which is what fits here")
    )
    built = hf.build(check, layers, device)
    with torch.no_grad():
        with Parts(torch, built.model, built.layers, WallClock()) as parts:
            number = parts.layers_with(lambda: built.run(built.tokens(2)))
        points: list[Point] = []
        for done, new in enumerate(asked.inputs):
            progress(done, len(asked.inputs), f"whole model, input {new:,}")
            if time.monotonic() > deadline:
                say(f"the budget ended the calibration after {done} of {len(asked.inputs)} inputs")
                break
            points += _points(built, table, number, new, asked.repeat)
        else:
            progress(len(asked.inputs), len(asked.inputs), "done")
    if not points:
        return None
    found: dict[str, Any] = {phase: fitted(points, phase) for phase in ("prefill", "decode")}
    path = table.path.with_suffix(".scaled.csv")
    table.scaled(path, {phase: found[phase]["factor"] for phase in found})
    say(f"wrote {path}")
    return {"file": str(path), "num_layers": layers, "inputs": sorted({point.input for point in points}), **found}


def _points(built: hf.Built, table: LayerRows, number: Mapping[str, int], new: int, repeat: int) -> list[Point]:
    """A prompt and an answer, run greedily: the first time to warm up, then for the clock."""
    runs = [_run(built, new) for _ in range(repeat + 1)][1:]
    took = [statistics.median(times) for times in zip(*runs, strict=True)]
    contexts = table.phase("decode")
    found = [Point("prefill", new, 0, took[0], summed(table.phase("prefill"), number, new))]
    for place, steps in enumerate(STEPS, 1):
        rows = sum(summed(contexts, number, new + step) for step in range(steps))
        found.append(Point("decode", new, steps, took[place], rows))
    return found


def _run(built: hf.Built, new: int) -> list[float]:
    """Wall seconds of a prompt, then of the first 1, 4 and 16 decode steps after it.

    Logits are computed for every token of the prompt, because that is what the row of lm_head at its length is of.
    """
    tokens = built.tokens(new)
    built.settle()
    began = time.perf_counter()
    found = built.run(tokens)
    token = found.logits[:, -1:].argmax(-1)
    built.settle()
    times = [time.perf_counter() - began]
    began = time.perf_counter()
    for step in range(1, STEPS[-1] + 1):
        found = built.run(token, hf.kept(found))
        token = found.logits[:, -1:].argmax(-1)
        if step in STEPS:
            built.settle()
            times.append(time.perf_counter() - began)
    return times
