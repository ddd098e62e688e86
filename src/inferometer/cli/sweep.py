"""``inferometer sweep``: every combination of values, as one table."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import BadValue
from ..base.files import user_path
from ..specs.arguments import arguments
from ..specs.command_args import SweepPartsArgs
from ..specs.machine_args import TargetArgs
from ..specs.plan_args import PlanArgs
from .options import (
    MODEL_HELP,
    OUTPUT,
    TrainableCommand,
    axis_options,
    axis_values,
    model_argument,
    named,
    options,
    output_option,
    schema_options,
)
from .output import Form, note, progress_bar, show_page, wrote
from .streams import echo

if TYPE_CHECKING:
    from ..sweep.grid import Grid
    from ..sweep.points import Chunk
    from ..sweep.sweep import Digest

_AXES = (
    "Every flag of analyze is an axis. Numbers: 1,2,4 or 16:8000:16 by step or 1:1024:x2 by ratio, or any mix of them "
    "with commas between. Words: bf16,fp8. Any flag may be given more than once; a switch and its --no- form "
    "together try both. MODEL may be a list, too. "
)
_PLAN = [arguments(TargetArgs)["gpu"], *arguments(PlanArgs).values()]
_EXAMPLES = (
    "llama-3.1-70b --gpu h200,h100-sxm -tp 2,4,8 -q bf16,fp8 --batch-size 1:1024:x2 --input-len 4096",
    "llama-3.1-8b --gpu h200 --batch-size 1:256:x2 --input-len 512:8192:512 -o points.parquet",
)


def _training() -> click.Command:
    from .training_commands import training_sweep

    return training_sweep


@click.command(cls=TrainableCommand, training=_training, epilog=_AXES + MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@options(axis_options(_PLAN), schema_options(SweepPartsArgs))
@output_option(
    "--plot",
    metavar="DIR",
    callback=named,
    help="Write plots to DIR: curves along every numeric axis, and the Pareto front.",
)
@options(OUTPUT)
def sweep(model: str, plot: str | None, form: Form, **flags: Any) -> int:
    """Estimate every combination of values, as a table of plans and workloads; infeasible ones are marked.

    The file's name says what -o writes: .csv .json .jsonl .parquet, or a folder, DIR/, of Parquet files
    """
    run = {name: flags.pop(name) for name in arguments(SweepPartsArgs) if name in flags}
    if _names_folder(form) and plot is None:
        return _to_folder(model, form, run, axis_values(flags))
    for name, value in run.items():
        if value:
            raise BadValue(f"`{name}` needs a folder for the results: -o DIR/", field=name)
    from ..sweep.points import chunks, column_kinds
    from ..sweep.sweep import Digest, Sweep, checked_grid
    from ..sweep.writers import TEXT_FORMATS, file_format, write

    output = form.output
    flag = "json" if form.as_json else "csv" if form.as_csv else None
    for_people = form.as_plain or form.as_markdown  # the summary, to wherever it goes
    table_format = file_format(output, flag) if output is not None and not for_people else flag
    axes = axis_values(flags)
    gpu = axes.pop("gpu", arguments(TargetArgs)["gpu"].default)
    grid = checked_grid(model, gpu, to_file=table_format is not None and output is not None and plot is None, **axes)
    digest, began = Digest(grid), time.perf_counter()
    with progress_bar("estimating", grid.points, "points") as reached:
        stream: Iterable[Chunk] = _watched(digest.watch(chunks(grid)), reached)
        if plot is not None:
            kept = Sweep(grid, stream)
            stream = kept.chunks
        if output is not None and table_format is not None:
            write(output, table_format, stream, column_kinds(grid), grid.axes, grid.warnings)
        elif table_format is not None:
            for text in TEXT_FORMATS[table_format](stream, column_kinds(grid), grid.axes, grid.warnings):
                echo(text.decode(), nl=False)
        deque(stream, maxlen=0)
    took = time.perf_counter() - began
    if plot is not None:
        from ..views.plots.curves import write_curves

        wrote(write_curves(kept, plot))
    _report(grid, digest, took, form, table_format)
    return 0 if digest.feasible else 1


def _names_folder(form: Form) -> bool:
    """Whether -o names a folder: one that is there, or ends in a slash."""
    output = form.output or ""
    return output.endswith(("/", os.sep)) or (bool(output) and user_path(output).is_dir())


def _to_folder(model: str, form: Form, run: dict[str, Any], axes: dict[str, Any]) -> int:
    """Parts into a folder."""
    from ..sweep.partitions import sweep_to_folder
    from ..views.text.sweeps import counted

    if form.for_programs or form.as_plain or form.as_markdown:
        raise BadValue("-o DIR/ writes Parquet files: leave out other formats")
    gpu = axes.pop("gpu", arguments(TargetArgs)["gpu"].default)
    if "backend_address" in run:
        run["address"] = run.pop("backend_address")
    began = time.perf_counter()
    with ExitStack() as stack:

        def progress(points: int) -> Callable[[float], None]:
            return stack.enter_context(progress_bar("estimating", points, "points"))

        tally = sweep_to_folder(str(form.output), model, gpu, progress=progress, **run, **axes)
    took = time.perf_counter() - began
    note(f"wrote {form.output}: {counted(tally, took)}")
    for warning in tally.warnings:
        note(f"warning: {warning}")
    if not tally.feasible:
        note(f"infeasible: {'; '.join(list(tally.reasons)[:3])}")
    return 0 if tally.feasible else 1


def _watched(stream: Iterator[Chunk], reached: Callable[[float], None]) -> Iterator[Chunk]:
    for chunk in stream:
        yield chunk
        reached(chunk.start + len(chunk))


def _report(grid: Grid, digest: Digest, took: float, form: Form, table_format: str | None) -> None:
    """The best of it for people; beside a table for programs, a few lines on stderr."""
    from ..views.text.sweeps import counted, summary

    if table_format is None:
        show_page(summary(grid, digest, took), form)
        return
    if form.output is not None:
        note(f"wrote {form.output}: {counted(digest, took)}")
    for warning in grid.warnings:
        note(f"warning: {warning}")
    if not digest.feasible:
        note(f"infeasible: {'; '.join(list(digest.reasons)[:3])}")
