"""``inferometer train``: what training costs."""

from __future__ import annotations

from typing import Any

import click

from .options import MODEL_HELP, OUTPUT, TRAINING, one_gpu, options
from .output import deliver, show_rich


@click.command(epilog=MODEL_HELP)
@click.argument("model")
@options(TRAINING)
@click.option("--all-ops", is_flag=True, help="Show operators with next to no time, too.")
@options(OUTPUT)
def train(model: str, all_ops: bool, as_json: bool, as_csv: bool, output: str | None, **words: Any) -> int:
    """What training costs: step time, memory, utilization, days and dollars, every operator forward and back."""
    from ..training.train import train as priced

    report = priced(model, one_gpu("train", words.pop("gpu")), **words)
    if as_json or as_csv:
        deliver(report.to_json() if as_json else report.to_csv(), output)
        for warning in report.warnings:
            click.echo(f"warning: {warning}", err=True)
        if not report.feasible:
            click.echo(f"infeasible: {report.reason}", err=True)
    else:
        from ..views.text.training import training

        show_rich(training(report, all_ops), output)
    return 0 if report.feasible else 1
