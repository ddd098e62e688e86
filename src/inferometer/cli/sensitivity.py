"""``inferometer sensitivity``: what moves a plan, and what a target, a model or a use case needs of a machine."""

from __future__ import annotations

from typing import Any

import click

from .options import ENGINE, MACHINE, METHODS, MODEL_HELP, NUMBERS, OUTPUT, WORKLOAD, named, options
from .output import deliver, show_rich, table_csv

QUESTIONS = [
    click.option(
        "--target",
        multiple=True,
        metavar="METRIC:VALUE",
        help="The value of each figure alone that reaches it: tpot:20 (ms), ttft, e2el, throughput, cost, energy.",
    ),
    click.option("--size", is_flag=True, help="The smallest platform (GPUs × layout) that fits and keeps --target."),
    click.option("--compare", metavar="MODEL,…", help="Other models on this machine: what is lost, what keeps it."),
    click.option("--compare-usecases", is_flag=True, help="What each use case of the catalogue asks of the machine."),
    click.option("--plot", metavar="DIR", callback=named, help="Write the answer as pictures there."),
]


@click.command(epilog=MODEL_HELP)
@click.argument("model", required=False)
@options(QUESTIONS, WORKLOAD, MACHINE, METHODS, NUMBERS, ENGINE, OUTPUT)
def sensitivity(
    model: str | None,
    target: tuple[str, ...],
    plot: str | None,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    **words: Any,
) -> int:
    """What moves latency, throughput and cost: every figure of the machine, 10% up and down."""
    from ..sensitivity.sensitivity import sensitivity as looked

    found = looked(model, target=target or None, curves=plot is not None, **words)
    if plot is not None:
        from ..views.plots.tornado import write_pictures

        for path in write_pictures(found, plot):
            click.echo(f"wrote {path}", err=True)
    if as_json or as_csv:
        deliver(found.to_json() if as_json else table_csv(found.rows()), output)
        for warning in found.warnings:
            click.echo(f"warning: {warning}", err=True)
        if not found.feasible:
            click.echo(f"infeasible: {found.reason}", err=True)
    else:
        from ..views.text.sensitivity import sensitivity as shown

        show_rich(shown(found), output)
    return 0 if found.feasible else 1
