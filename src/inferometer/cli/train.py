"""``inferometer train``: what training costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..base.errors import BadValue
from ..specs.arguments import arguments
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

if TYPE_CHECKING:
    from ..training.training_report import TrainReport

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
@output_option("--html", metavar="FILE", callback=named, help="Write the report as one HTML page.")
@options(OUTPUT)
def train(
    model: str,
    gpu: str | None,
    all_ops: bool,
    timeline: bool,
    plot: str | None,
    html: str | None,
    form: Form,
    **recipe: Any,
) -> int:
    """Predict training: step time, memory, utilization, days and cost; every operator, forward and backward."""
    from ..training.train import timeline_of
    from ..training.train import train as estimate

    if timeline and not form.as_json:
        raise BadValue("--timeline adds to the JSON: give --json, too")
    device = one_gpu("train", gpu)
    report = estimate(model, device, **recipe)
    if timeline:
        report.timeline = timeline_of(report)
    if plot is not None:
        from ..views.plots.training import write_training

        wrote(write_training(report, plot))

    if html is not None:
        wrote([_page(report, html, model, device, recipe)])

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


def _page(report: TrainReport, path: str, model: str, gpu: str, recipe: dict[str, Any]) -> Any:
    """The report as a page of its own, with the command that made it."""
    import msgspec

    from ..training.train import timeline_of
    from ..views.files import write
    from ..web.page_plan import PagePlan, command
    from ..web.single import training_page

    defaults = {name: argument.default for name, argument in arguments(TrainArgs).items()}
    given = {name: value for name, value in recipe.items() if value != defaults.get(name) and name != "hf_token"}
    line = command("train", PagePlan(model, gpu, {}, model), given)
    return write(path, training_page(msgspec.structs.replace(report, timeline=timeline_of(report)), line))
