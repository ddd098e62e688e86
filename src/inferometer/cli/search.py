"""``inferometer search``: which deployment to run on some GPUs, and how to start it."""

from __future__ import annotations

import os
from typing import Any

import click

from ..base.errors import BadValue
from ..base.files import user_path
from ..specs.arguments import arguments
from ..specs.command_args import CapacityArgs, SearchArgs, SessionSearchArgs, TrafficArgs
from .options import (
    FORMS,
    GPU,
    MODEL_HELP,
    TrainableCommand,
    model_argument,
    named,
    options,
    output_option,
    schema_options,
)
from .output import Form, as_json, emit, emit_result, progress_bar, table_csv, wrote

_EXAMPLES = (
    "llama-3.1-70b --gpu h200 --num-gpus 16 --input-len 4000 --output-len 500 --goodput ttft:500,tpot:50",
    "llama-3.1-8b --gpu h200 --agents coding-agent --request-rate 0.05 --goodput ttft:2000",
    "llama-3.1-8b --gpu h200,l40s --num-gpus 4 --request-rate 20 --goodput ttft:300,tpot:30 --objective cost",
)
_SESSIONS = tuple(arguments(SessionSearchArgs))


def _training() -> click.Command:
    from .training_commands import training_search

    return training_search


@click.command(cls=TrainableCommand, training=_training, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@options(
    GPU,
    schema_options(TrafficArgs, only=["trace", "columns", "run", "num_prompts"]),
    schema_options(SessionSearchArgs),
    schema_options(SearchArgs),
    schema_options(CapacityArgs, only=["backend_address"]),
)
@output_option("--plot", metavar="DIR", callback=named, help="Write plots to DIR: Pareto front, and load over time.")
@options(FORMS)
@output_option(
    "-o",
    "--output",
    metavar="FILE",
    callback=named,
    help="Write to a file instead; to a folder: also scripts and manifests.",
)
def search(
    model: str,
    plot: str | None,
    backend_address: str | None,
    num_prompts: int | None,
    trace: str | None,
    columns: str | None,
    run: int | None,
    form: Form,
    **given: Any,
) -> int:
    """Estimate every legal plan on your GPUs, simulate the best ones, and recommend one, with reasons and commands."""
    from ..search.search import search_with_table

    if trace is None and num_prompts is not None:
        raise BadValue("`num_prompts` applies to a `trace` only: a search simulates as many requests as it needs")
    for name, value in (("columns", columns), ("run", run)):
        if trace is None and value is not None:
            raise BadValue(f"`{name}` applies to a `trace` file only")
    given["trace"] = _requests(trace, num_prompts, columns, run)
    if any(given.get(name) is not None for name in _SESSIONS) or _has_sessions(given["trace"]):
        return _session_search(model, plot, form, given)
    with progress_bar("searching", None, "steps") as reached:
        steps = [0]

        def step(stage: str, done: int) -> None:
            steps[0] += 1
            reached(steps[0])

        result, table, rejected = search_with_table(model, address=backend_address, progress=step, **given)
    if plot is not None and table is not None:
        from ..views.plots.timeline import write_day
        from ..views.text.search import header, write_front

        wrote([*write_front(result, table, plot), *write_day(result, plot, header(result))])

    def csv() -> str:
        from ..search.explanation import PLAN_COLUMNS, plan_rows

        return table_csv(plan_rows(table, rejected), PLAN_COLUMNS)

    def text() -> Any:
        from ..views.text.search import shown

        return shown(result)

    if names_folder(form):
        if result.feasible:
            wrote(_write_plan(result, table, str(form.output)))
        form = form._replace(output=None)
    emit(form, json=lambda: result, csv=csv, text=text, infeasible=None if result.feasible else result.reason)
    return 0 if result.feasible else 1


def _has_sessions(trace: Any) -> bool:
    """Whether turns of a trace wait for others."""
    return (
        trace is not None and trace.sessions is not None and trace.after is not None and bool((trace.after >= 0).any())
    )


def _session_search(model: str, plot: str | None, form: Form, given: dict[str, Any]) -> int:
    """The plan that serves sessions for least."""
    from ..search.session_search import session_search

    if plot is not None:
        raise BadValue("`plot` draws the loads of a search for requests: a search for sessions has none", field="plot")
    with progress_bar("searching", None, "steps") as reached:
        steps = [0]

        def step(stage: str, done: int) -> None:
            steps[0] += 1
            reached(steps[0])

        result = session_search(model, progress=step, **given)

    def text() -> Any:
        from ..views.text.search import sessions_shown

        return sessions_shown(result)

    return emit_result(form, result, text)


def names_folder(form: Form) -> bool:
    """Whether -o names a folder: without --json and --csv, one that is there, ends in a slash or has no suffix."""
    if form.output is None or form.for_programs:
        return False
    path = user_path(form.output)
    if form.output == "-" or (path.exists() and not path.is_dir()):  # a FIFO, /dev/stdout
        return False
    return path.is_dir() or form.output.endswith(("/", os.sep)) or not path.suffix


def _write_plan(result: Any, table: Any, folder: str) -> list[Any]:
    """Scripts, manifests, benchmark and result."""
    from ..search.launch.bench_command import needs_file, num_prompts, request_lines
    from ..search.launch.launch_folder import MARK, folder_files
    from ..views.files import write_folder

    traffic, winner = table.problem.traffic, result.winner
    metrics = winner.simulated or winner.priced
    count = num_prompts(metrics.request_rate, winner.priced.e2el_ms / 1e3)
    requests = request_lines(traffic, metrics.request_rate, count) if needs_file(traffic) else None
    return write_folder(folder, folder_files(result, as_json(result).decode(), requests), MARK)


def _requests(path: str | None, most: int | None, columns: str | None, run: int | None) -> Any:
    """The requests of a trace, or its first ones."""
    if path is None:
        return None
    from ..base.errors import check_int
    from ..serving.trace import first_requests, read_trace

    trace = read_trace(path, columns=columns, run=run)
    return first_requests(trace, check_int("num_prompts", most)) if most is not None else trace
