"""``inferometer analyze``: the main job."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from .options import MODEL_HELP, OUTPUT, Command, model_argument, named, one_gpu, options, output_option, plan_options
from .output import Form, emit, quiet, table_csv, wrote

_EXAMPLES = (
    "llama-3.1-8b --gpu h200 --batch-size 8 --input-len 1024 --output-len 128",
    "deepseek-v3 --gpu h200 -dp 32 --enable-expert-parallel --batch-size 256",
    "llama-3.1-8b --explain down_proj",
    "'vllm serve Qwen/Qwen3-32B -tp 2 --enforce-eager' --gpu h200 --batch-size 32",
)


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@options(plan_options())
@output_option("--phase", default="all", help="Phases to show: prefill, decode or all.")
@output_option(
    "--explain",
    metavar="OP",
    help="Explain one operator: its formulas, their values, and the origin of its efficiency.",
)
@output_option("--cluster", is_flag=True, help="Show what each GPU holds, and what travels over each link.")
@output_option(
    "--plot",
    metavar="DIR",
    callback=named,
    help="Write plots to DIR: distributions, roofline, memory and structure graph.",
)
@output_option("--html", metavar="FILE", callback=named, help="Write the report as one HTML page.")
@output_option("--all-ops", is_flag=True, help="Also show operators that take next to no time.")
@options(OUTPUT)
def analyze(
    model: str,
    gpu: str | None,
    explain: str | None,
    cluster: bool,
    plot: str | None,
    html: str | None,
    all_ops: bool,
    phase: str,
    form: Form,
    **plan: Any,
) -> int:
    """Predict one plan and explain it: latency, throughput, memory, cost and every operator."""
    from ..inference.analyze import check_phase, report_of
    from ..inference.request import build_request

    others = {"--csv": form.as_csv, "--plot": plot is not None, "--html": html is not None}
    if explain is not None and any(others.values()):
        other = next(flag for flag, given in others.items() if given)
        raise BadValue(f"--explain writes text or --json; it cannot be combined with {other}")
    if cluster and (explain or plot or html):
        raise BadValue("--cluster is a separate view; it cannot be combined with --explain, --plot or --html")
    device = one_gpu("analyze", gpu)
    request = build_request(model, device, **plan)
    check_phase(request, phase)
    if explain is not None:
        return _explain(request, explain, phase, form)
    if cluster:
        return _cluster(request, phase, form)
    report = report_of(request, phase)
    _explain_command(request, report)
    if plot is not None:
        from ..views.plots.analysis import write_plots

        wrote(write_plots(report, plot, request.model))
    if html is not None:
        wrote([_page(request, report, html, model, device, plan)])
    emit(
        form,
        json=report.to_json,
        csv=report.to_csv,
        text=lambda: _text(report, all_ops),
        warnings=report.warnings,
        infeasible=report.reason,
    )
    return 0 if report.feasible else 1


def _explain_command(request: Any, report: Any) -> None:
    """Where the plan was read from a server's command: its flags, and which of them are worth changing."""
    command = click.get_current_context().meta.get("inferometer.server_command")
    if command is None:
        return
    from ..inference.advice import worthwhile_changes
    from ..search.launch.served_model import spelled_change

    report.server_command = command
    plan = report.plan
    if report.feasible and request.model.kind == "decoder" and not request.workload.turns:
        report.tried = worthwhile_changes(request, lambda change: spelled_change(command.engine, change, plan))


def _explain(request: Any, operator: str, phase: str, form: Form) -> int:
    """One operator: its formulas with the values put in."""
    from ..inference.explain import explain

    explanations = explain(request, operator, phase)

    def text() -> Any:
        from ..views.text import terminal

        return terminal.explanation(explanations)

    emit(form, json=lambda: explanations, csv=str, text=text)
    return 0


def _cluster(request: Any, phase: str, form: Form) -> int:
    """What sits where and what travels; as CSV, a row for each rank."""
    from ..inference.placement import placement

    placed = placement(request)
    if phase != "all":
        placed.phases = {name: time for name, time in placed.phases.items() if name == phase}
        for stage in placed.stages:
            stage.flows = {name: flows for name, flows in stage.flows.items() if name == phase}

    def text() -> Any:
        from ..views.text import cluster

        return cluster.cluster(placed)

    def rows() -> str:
        from ..views.text.cluster import rank_rows

        return table_csv(rank_rows(placed), ("rank",))

    emit(form, json=lambda: placed, csv=rows, text=text, warnings=request.warnings, infeasible=placed.reason or None)
    return 0 if placed.feasible else 1


def _text(report: Any, all_ops: bool) -> Any:
    from ..views.text import terminal

    if quiet():
        report.summary = f"{report.summary.partition('. ')[0].rstrip('.')}."  # what limits, without what would help
    return terminal.analysis(report, all_ops)


def _page(request: Any, report: Any, path: str, model: str, gpu: str, plan: dict[str, Any]) -> Any:
    """The report as a page of its own, with the command that made it."""
    from ..views.files import write
    from ..web.catalogue import controls
    from ..web.page_plan import PagePlan, command
    from ..web.single import page

    line = command("analyze", PagePlan(model, gpu, {**plan, "hf_token": None}, model))
    return write(path, page(request, report, line, controls()))
