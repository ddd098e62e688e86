"""``inferometer train``: what training costs."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..specs.train_args import TrainArgs
from .options import (
    GPU,
    MODEL_HELP,
    OUTPUT,
    Command,
    model_argument,
    named,
    one_gpu,
    options,
    output_option,
    schema_options,
)
from .output import Form, emit, wrote

_EXAMPLES = (
    "llama-3.1-8b --gpu h100-sxm -dp 8 --zero 1 --recompute full --seq-len 4096 --global-batch-size 64",
    "llama-3.1-70b --gpu h100-sxm -tp 8 -pp 4 -dp 4 -sp --zero 1 --global-batch-size 256 --seq-len 8192",
)


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@options(GPU, schema_options(TrainArgs))
@output_option("--all-ops", is_flag=True, help="Also show operators that take next to no time.")
@output_option("--timeline", is_flag=True, help="Add every pass of every stage, with its memory, to --json.")
@output_option(
    "--plot",
    metavar="DIR",
    callback=named,
    help="Write plots to DIR: time by part, the schedule, and memory over time.",
)
@options(OUTPUT)
def train(
    model: str, gpu: str | None, all_ops: bool, timeline: bool, plot: str | None, form: Form, **recipe: Any
) -> int:
    """Predict training: step time, memory, utilization, days and cost; every operator, forward and backward."""
    from ..training.train import timeline_of
    from ..training.train import train as estimate

    if timeline and not form.as_json:
        raise BadValue("--timeline adds to the JSON: give --json, too")
    report = estimate(model, one_gpu("train", gpu), **recipe)
    if timeline:
        report.timeline = timeline_of(report)
    if plot is not None:
        from ..views.plots.training import write_training

        wrote(write_training(report, plot))

    def text() -> Any:
        from ..views.text.training import training

        return training(report, all_ops)

    emit(
        form,
        json=report.to_json,
        csv=report.to_csv,
        text=text,
        warnings=report.warnings,
        infeasible=report.reason,
    )
    return 0 if report.feasible else 1
