"""``inferometer sensitivity``: what moves a plan, and what a target, a model or a use case needs of a machine."""

from __future__ import annotations

from typing import Any

import click

from ..specs.command_args import SensitivityArgs
from .options import (
    MODEL_HELP,
    OUTPUT,
    TrainableCommand,
    model_argument,
    named,
    options,
    output_option,
    plan_options,
    schema_options,
)
from .output import Form, emit_result, wrote

_EXAMPLES = (
    "llama-3.1-8b --gpu h200 --batch-size 8 --plot pictures",
    "llama-3.1-8b --gpu h200 --batch-size 8 --target tpot:4,ttft:300",
    "llama-3.1-70b --gpu h200 --batch-size 32 --size",
)


def _training() -> click.Command:
    from .training_commands import training_sensitivity

    return training_sensitivity


@click.command(cls=TrainableCommand, training=_training, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument(required=False)
@options(schema_options(SensitivityArgs), plan_options())
@output_option("--plot", metavar="DIR", callback=named, help="Write plots to DIR.")
@options(OUTPUT)
def sensitivity(model: str | None, plot: str | None, form: Form, **arguments: Any) -> int:
    """Show which hardware figures drive latency, throughput and cost: each one is moved 10% up and down."""
    from ..sensitivity.sensitivity import sensitivity as evaluate

    result = evaluate(model, curves=plot is not None, **arguments)
    if plot is not None:
        from ..views.plots.tornado import write_pictures

        wrote(write_pictures(result, plot))

    def text() -> Any:
        from ..views.text.sensitivity import sensitivity as shown

        return shown(result)

    return emit_result(form, result, text)
