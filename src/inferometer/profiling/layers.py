"""``profile MODEL``: the layers of a Hugging Face model, timed over lengths and written in LLM-Profile's columns.

A length is measured with all its repeats or not at all, and its rows are written as soon as it is done. The shortest
and the longest come first, then the middles between them: a short budget already spans the range.
"""

from __future__ import annotations

import copy
import math
import re
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue, InferometerError, UnknownName, abbreviate, check_int
from ..base.files import user_path
from ..specs.arguments import flag
from . import hf_model
from . import scaling_factors as calibration
from .layer_csv import MODES, LayerRows, Length, Seconds, planned_lengths
from .layer_parts import LLM_PROFILE_PARTS, PartTimer
from .machine import processor
from .timer import Forward, KernelClock, Log, OnProgress, OutOfTime, WallClock, parse_duration, progress_lines

SAME = ("device", "dtype", "attention", "weights", "num_layers")  # rows that differ in these are not of one file
LAYERS_SHARE = 0.6  # of a budget is for the layers where the whole model is run afterwards


class Repeats(NamedTuple):
    """How often a length is run, and until when."""

    warmup: int
    repeat: int
    deadline: float = math.inf  # on the monotonic clock


def folder_label(name: str) -> str:
    """A device's name as the name of a folder: ``label("NVIDIA GeForce RTX 3090")  # 'RTX-3090'``"""
    bare = re.sub(r"\((R|TM)\)|@.*|\b(NVIDIA|AMD|Intel|GeForce|Instinct|CPU|Processor)\b", " ", name, flags=re.I)
    return "-".join(re.findall(r"[\w.+]+", bare)) or "unknown"


def _folder_name(text: str) -> str:
    if not re.fullmatch(r"[\w.+ -]*[\w+-][\w.+ -]*", text):
        raise BadValue(f"`hardware` names a folder, so it must be a plain name such as H200, not {abbreviate(text)}")
    return text.strip()


def profile_model(
    model: str,
    *,
    num_layers: int = 1,
    device: str = "cuda",
    hardware: str | None = None,
    mode: str = "both",
    warmup: int = 10,
    repeat: int = 100,
    prefill_max: int = 2048,
    decode_max: int = 2048,
    step: int | None = None,
    budget: str | None = None,
    hf_token: str | None = None,
    calibrate: bool = False,
    scaling_num_layers: int | None = None,
    scaling_input_min: int = 128,
    scaling_input_max: int = 1024,
    scaling_input_step: int = 128,
    scaling_repeat: int = 3,
    force: bool = False,
    output: str = ".",
    say: Log = print,
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Measure what the file lacks, and say what came of it: ``profile_model("qwen3-0.6b", device="cpu")["counts"]``"""
    seconds = math.inf if budget is None else parse_duration(budget)
    if mode not in MODES:
        raise UnknownName("`mode`", mode, MODES)
    repeats = Repeats(check_int("warmup", warmup, least=0, most=10**6), check_int("repeat", repeat, most=10**6))
    inputs = (scaling_input_min, scaling_input_max, scaling_input_step)
    grid = calibration.calibration_grid(scaling_num_layers, *inputs, scaling_repeat, force) if calibrate else None
    check = hf_model.checkpoint(model, hf_token)
    _check_layers(check, num_layers=num_layers, scaling_num_layers=scaling_num_layers or 1)
    longest_prompt = check_int("prefill_max", prefill_max, most=10**7)
    longest_context = check_int("decode_max", decode_max, least=0, most=10**7)
    if step is not None:
        check_int("step", step)
    torch, _ = hf_model.load_libraries()
    hf_model.check_device(torch, device)
    device_name = str(torch.cuda.get_device_name()) if device == "cuda" else processor()
    table = _table(output, _folder_name(hardware) if hardware is not None else folder_label(device_name), check.name)
    outline = hf_model.outline(check, check.layers)
    todo = _planned(check, outline[0], mode, (longest_prompt, longest_context), step, say)
    _check_kinds(check, outline[1], num_layers, grid, [*todo, *table.rows], say)
    return _run(
        check,
        table,
        todo,
        outline,
        device=device,
        device_name=device_name,
        num_layers=num_layers,
        repeats=repeats,
        seconds=seconds,
        grid=grid,
        say=say,
        progress=progress or progress_lines(say, "lengths"),
    )


def _run(
    check: hf_model.Checkpoint,
    table: LayerRows,
    todo: list[Length],
    outline: tuple[Any, Any],
    *,
    device: str,
    device_name: str,
    num_layers: int,
    repeats: Repeats,
    seconds: float,
    grid: calibration.CalibrationGrid | None,
    say: Log,
    progress: OnProgress,
) -> dict[str, Any]:
    """Build the first layers, measure them, and calibrate where there is a grid."""
    built = hf_model.build(check, num_layers, device)
    say(
        f"{check.name}: {num_layers} of {check.layers} layers with {built.weights} in {built.dtype}, "
        f"{built.attention} attention, on {device_name}" + (f"; {check.remark}" if check.remark else "")
    )
    how = {
        "device": device_name,
        "dtype": built.dtype,
        "attention": built.attention,
        "weights": built.weights,
        "num_layers": num_layers,
    }
    record = {"model": check.name, **how, **_versions(built), "warmup": repeats.warmup, "repeat": repeats.repeat}
    same = (*SAME, "threads") if device == "cpu" else SAME  # a CPU is as fast as the threads that it may use
    table.describe({**record, "config": check.config}, same)
    began = time.monotonic()  # the budget is for measuring: loading libraries and a model takes what it takes
    until = began + seconds * (1.0 if grid is None else LAYERS_SHARE)
    counts = _measure(built, table, todo, repeats._replace(deadline=until), say, progress)
    del built  # the whole model may need its memory
    own_names = _say_rows(table, counts, say)
    scaled = None
    if grid is not None and counts["left"] and calibration.uncovered(grid, table.rows):
        say("not calibrated: the time budget ended before enough rows were measured; run it again to continue")
    elif grid is not None:
        calibration.check_covered(grid, table.rows, "has")
        points = calibration.calibrate(grid, check, table, device, outline, began + seconds, say, progress)
        scaled = calibration.write_scaled(table, points, grid.force, say) if points.points else None
    return {
        "schema": "inferometer.profile/1",
        "file": str(table.path),
        "hardware": table.hardware,
        "model": check.name,
        "layers": check.layers,
        **how,
        "counts": counts,
        "own_names": own_names,
        "rows": sum(map(len, table.rows.values())),
        "longest": _longest(table),
        "calibration": scaled,
    }


def _check_layers(check: hf_model.Checkpoint, **numbers: int) -> None:
    for name, given in numbers.items():
        if check_int(name, given) > check.layers:
            raise BadValue(f"`{name}` is {given:,}, but {check.name} has {check.layers:,} layers")


def _planned(
    check: hf_model.Checkpoint, model: Any, mode: str, longest: tuple[int, int], step: int | None, say: Log
) -> list[Length]:
    """The lengths to measure, up to the longest prompt and context and the model's positions."""
    positions = hf_model.positions(model)
    if positions is not None and max(longest[0], longest[1] + 1) > positions:
        say(f"{check.name} has {positions:,} positions: longer lengths are skipped")
    return planned_lengths(mode, *longest, step, positions)


def _check_kinds(
    check: hf_model.Checkpoint,
    layers: Any,
    num_layers: int,
    grid: calibration.CalibrationGrid | None,
    lengths: list[Length],
    say: Log,
) -> None:
    """Refuse a calibration that the rows could not serve; say what is not measured where layers differ."""
    kinds = hf_model.layers_of_every_kind(layers)
    if grid is not None:
        if num_layers < kinds:
            raise BadValue(
                f"`calibrate` needs rows of every kind of layer: the first {kinds} layers of {check.name} "
                f"have them all; give `num_layers` {kinds}"
            )
        calibration.check_covered(grid, lengths, "would have")
    elif num_layers < kinds:
        say(f"the layers of {check.name} differ: {flag('num_layers')} {kinds} would measure every kind")


def _say_rows(table: LayerRows, counts: dict[str, int], say: Log) -> list[str]:
    """Say what came of it; the parts that keep a name of their own."""
    own_names = sorted({part for rows in table.rows.values() for part in rows} - LLM_PROFILE_PARTS)
    if own_names:
        say(f"parts unknown to LLM-Profile keep their own names: {', '.join(own_names)}")
    say(f"{table.path}: {', '.join(f'{number:,} {name}' for name, number in counts.items() if number)}")
    return own_names


def _table(output: str, hardware: str, model: str) -> LayerRows:
    folder = user_path(output)
    if folder.exists() and not folder.is_dir():
        raise BadFile(f"{folder} is a file; -o names the folder that profiles are written to")
    return LayerRows(folder / hardware / f"{model}.csv", hardware, model)


def _versions(built: hf_model.Built) -> dict[str, Any]:
    """What rows are worth depends on it."""
    torch, transformers = hf_model.load_libraries()
    return {
        "clock": "kernels" if built.device == "cuda" else "wall",
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _longest(table: LayerRows) -> dict[str, Any]:
    """The rows at the longest prompt and at the longest context, for people."""
    phases = {phase: table.phase(phase) for phase in ("prefill", "decode")}
    return {phase: {"length": max(rows), "seconds": rows[max(rows)]} for phase, rows in phases.items() if rows}


def _measure(
    built: hf_model.Built, table: LayerRows, todo: list[Length], repeats: Repeats, say: Log, progress: OnProgress
) -> dict[str, int]:
    counts = {"measured": 0, "kept": sum(length in table.rows for length in todo), "failed": 0, "left": 0}
    clock = KernelClock(built.torch) if built.device == "cuda" else WallClock()
    with built.torch.no_grad(), PartTimer(built.torch, built.model, built.layers, clock) as parts:
        for number, length in enumerate(todo):
            text = f"input {length.input:,} after {length.kv_cache:,}"
            progress(number, len(todo), text)
            if length in table.rows:
                continue
            try:
                table.add(length, _timed(built, parts, length, repeats))
                counts["measured"] += 1
            except OutOfTime:
                counts["left"] = sum(later not in table.rows for later in todo[number:])
                break
            except InferometerError:
                raise
            except Exception as error:  # out of memory, or what a model's own code raises: other lengths may do
                counts["failed"] += 1
                say(f"{text}: {' '.join(str(error).split())[:160]}")
        else:
            progress(len(todo), len(todo), "")
    return counts


def _timed(built: hf_model.Built, parts: PartTimer, length: Length, repeats: Repeats) -> Seconds:
    """Median seconds of every part that did something."""
    if time.monotonic() > repeats.deadline:
        raise OutOfTime
    tokens, cache = built.tokens(length.input), built.filled(length.kv_cache)

    def forwards(number: int) -> Iterator[Forward]:
        for _ in range(number):
            if time.monotonic() > repeats.deadline:
                raise OutOfTime
            again = copy.deepcopy(cache)  # a pass adds to its cache
            built.settle()
            yield partial(built.run, tokens, again)

    for forward in forwards(repeats.warmup):
        forward()
    built.settle()
    passes = parts.record(forwards(repeats.repeat))
    names = dict.fromkeys(name for one in passes for name in one)
    medians = {name: statistics.median(one.get(name, 0.0) for one in passes) for name in names}
    return {name: seconds for name, seconds in medians.items() if seconds > 0}
