"""``inferometer analyze``: the main job."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from .options import ENGINE, MACHINE, METHODS, MODEL_HELP, NUMBERS, OUTPUT, WORKLOAD, named, one_gpu, options
from .output import deliver, show_rich


@click.command(epilog=MODEL_HELP)
@click.argument("model")
@options(WORKLOAD, MACHINE, METHODS, NUMBERS, ENGINE)
@click.option("--phase", default="all", help="prefill, decode or all.")
@click.option("--explain", metavar="OP", help="One operator: formulas, values put in, origin of its efficiency.")
@click.option(
    "--plot", metavar="DIR", callback=named, help="Write distributions, roofline, memory and the structure graph there."
)
@click.option("--html", metavar="FILE", callback=named, help="Write a page with the report inside; opens in a browser.")
@click.option("--all-ops", is_flag=True, help="Show operators with next to no time, too.")
@options(OUTPUT)
def analyze(
    model: str,
    explain: str | None,
    plot: str | None,
    html: str | None,
    all_ops: bool,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    phase: str,
    **words: Any,
) -> int:
    """What one plan does, and why: latency, throughput, memory, cost, every operator."""
    import msgspec

    from ..inference.analyze import check_phase, report_of
    from ..inference.request import build_request

    others = {"--csv": as_csv, "--plot": plot is not None, "--html": html is not None}
    if explain is not None and any(others.values()):
        other = next(flag for flag, given in others.items() if given)
        raise BadValue(f"--explain is text or --json; it cannot be combined with {other}")
    gpu = one_gpu("analyze", words.pop("gpu"))
    asked = build_request(model, gpu, **words)
    check_phase(asked, phase)
    if explain is not None:
        from ..inference.explain import explain as why

        found = why(asked, explain, phase)
        if as_json:
            deliver(msgspec.json.format(msgspec.json.encode(found), indent=1), output)
        else:
            from ..views.text import terminal

            show_rich(terminal.explanation(found), output)
        return 0
    report = report_of(asked, phase)
    if plot is not None:
        from ..views.plots.roofline import write_plots

        for path in write_plots(report, plot, asked.model):
            click.echo(f"wrote {path}", err=True)
    if html is not None:
        from ..views.files import write
        from ..web.page_plan import PagePlan, command
        from ..web.single import page
        from .options import controls

        line = command("analyze", PagePlan(model, gpu, {**words, "hf_token": None}, model))
        click.echo(f"wrote {write(html, page(asked, report, line, controls()))}", err=True)
    if as_json:
        deliver(report.to_json(), output)
    elif as_csv:
        deliver(report.to_csv(), output)
    else:
        from ..views.text import terminal

        show_rich(terminal.analysis(report, all_ops), output)
    if as_json or as_csv:
        for warning in report.warnings:
            click.echo(f"warning: {warning}", err=True)
        if not report.feasible:
            click.echo(f"infeasible: {report.reason}", err=True)
    return 0 if report.feasible else 1
