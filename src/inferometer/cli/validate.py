"""``inferometer validate``: measured against predicted."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..specs.command_args import GoodputArgs, TrafficArgs
from ..specs.plan_args import EngineArgs
from .options import (
    MODEL_HELP,
    OUTPUT,
    Command,
    model_argument,
    named,
    one_gpu,
    options,
    output_option,
    plan_options,
    schema_options,
)
from .output import Form, emit, table_csv, wrote

_EXAMPLES = (
    "llama-3.1-8b --gpu h200 --measured measured.csv --plot pictures",
    "llama-3.1-8b --gpu h200 --measured measured.csv --write-calibration mine.toml",
)
_REPLAY = ("max_concurrency", "plot", "write_calibration", "force", "goodput", "requests_out", "columns", "run")
_OF_ONE_RUN = ("plot", "write_calibration", "requests_out")


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument()
@output_option(
    "--measured",
    metavar="FILE",
    help="Measured requests with TTFT, TPOT, E2E in ms, or a result of vllm bench "
    "serve, SGLang, GuideLLM, AIPerf, genai-perf.",
)
@options(schema_options(TrafficArgs, only=["columns", "run"]))
@output_option("--memory", metavar="FILE", help="Measured weights and KV cache in MiB, as CSV.")
@output_option(
    "--max-concurrency", type=int, help="Requests in flight when the file has no arrival times (closed loop)."
)
@output_option(
    "--plot", metavar="DIR", callback=named, help="Write plots to DIR: errors, values, scatter and breakdown."
)
@output_option(
    "--write-calibration", metavar="FILE", callback=named, help="Fit a correction and write it, for --calibration."
)
@output_option("--force", is_flag=True, default=None, help="Write the calibration even if it does not help.")
@options(schema_options(GoodputArgs))
@output_option("--requests-out", metavar="FILE", callback=named, help="Write one CSV row per simulated request.")
@options(plan_options(EngineArgs), OUTPUT)
def validate(model: str, gpu: str | None, measured: str | None, memory: str | None, form: Form, **plan: Any) -> int:
    """Replay measured requests and report the prediction's error, per request and overall."""
    replay = {name: plan.pop(name, None) for name in _REPLAY}
    _check_questions(measured, memory, replay, plan)
    device = one_gpu("validate", gpu)
    result: dict[str, Any] = {"schema": "inferometer.validate/1"}
    parts: list[Any] = []
    rows: list[dict[str, Any]] = []
    memory_parts: list[Any] = []
    memory_rows = _memory(model, device, memory, plan, memory_parts) if memory is not None else None
    if measured is not None:  # after the other file was read: this one may write what was fitted
        rows = _requests(model, device, measured, replay, plan, result, parts)
    if memory_rows is not None:
        result["memory"] = memory_rows
        rows += memory_rows if measured is None or not form.as_csv else []
    parts += memory_parts

    def text() -> Any:
        from ..views.text.document import Page

        return Page(parts)

    emit(form, json=lambda: result, csv=lambda: table_csv(rows), text=text, warnings=result.get("warnings", ()))
    unwritten = "calibration" in result and not result["calibration"]["written"]
    return 1 if unwritten or (measured is not None and not result["completed"]) else 0


def _check_questions(measured: str | None, memory: str | None, replay: dict[str, Any], plan: dict[str, Any]) -> None:
    if measured is None and memory is None:
        raise BadValue("validate needs `measured` FILE, `memory` FILE or both")
    if replay["force"] and replay["write_calibration"] is None:
        raise BadValue("`force` needs `write_calibration` FILE")
    for name in ("plot", "write_calibration", "requests_out", "goodput", "max_concurrency", "columns", "run"):
        if measured is None and replay[name]:
            raise BadValue(f"`{name}` needs `measured` FILE")
    if replay["write_calibration"] is not None and plan.get("calibration") is not None:
        raise BadValue("`write_calibration` fits uncalibrated predictions: leave out `calibration`")


def _requests(
    model: str,
    gpu: str,
    measured: str,
    replay: dict[str, Any],
    plan: dict[str, Any],
    result: dict[str, Any],
    parts: list[Any],
) -> list[dict[str, Any]]:
    """Latencies of every run of the file: fills the result and what is shown; gives rows."""
    from ..serving.metrics import parse_goodput
    from ..serving.trace import read_runs, read_trace

    goals = parse_goodput(replay["goodput"] or ())
    if replay["run"] is not None:
        traces = [read_trace(measured, columns=replay["columns"], run=replay["run"])]
    else:
        traces = read_runs(measured, columns=replay["columns"])
    if len(traces) == 1:
        compared = _one_run(model, gpu, traces[0], goals, replay, plan, result, parts)
        return _rows(compared) if compared.errors else _figure_rows(compared)
    for name in _OF_ONE_RUN:
        if replay[name] is not None:
            raise BadValue(f"`{name}` needs one run, but {measured!r} has {len(traces)}: choose one with `run`")
    runs: list[dict[str, Any]] = [{"run": number} for number in range(1, len(traces) + 1)]
    rows: list[dict[str, Any]] = []
    for run, trace in zip(runs, traces, strict=True):
        compared = _one_run(model, gpu, trace, goals, replay, plan, run, parts)
        rows += [{"run": run["run"], **row} for row in _figure_rows(compared)]
    result |= {"runs": runs, "completed": sum(run["completed"] for run in runs)}
    result["warnings"] = list(dict.fromkeys(warning for run in runs for warning in run["warnings"]))
    return rows


def _one_run(
    model: str,
    gpu: str,
    trace: Any,
    goals: dict[str, float],
    replay: dict[str, Any],
    plan: dict[str, Any],
    result: dict[str, Any],
    parts: list[Any],
) -> Any:
    """One trace, or one run of a benchmark: fills the result and what is shown."""
    import msgspec

    from ..serving.metrics import metrics
    from ..serving.simulate import run_header
    from ..serving.traffic import file_name
    from ..validation.validate import measured_frontend, measured_latencies, measured_metrics
    from ..validation.validate import validate as compare
    from ..views.text.serving import header
    from ..views.text.validation import comparison

    measured_latencies(trace)
    plan = {"frontend": measured_frontend(trace), **plan}
    load = f", {trace.run.label}" if trace.run is not None else ""
    labels = run_header(model, gpu, plan, f"of {file_name(trace.source)}{load}", len(trace))
    labels["warnings"] += trace.notes

    def simulated(calibration: Any = None) -> Any:
        corrected = {**plan, **({} if calibration is None else {"calibration": calibration})}
        return compare(model, gpu, measured=trace, max_concurrency=replay["max_concurrency"], **corrected)

    compared = simulated()
    result |= labels | metrics(compared.outcome, goals) | {"goodput": goals or None}
    result |= {"errors": msgspec.to_builtins(compared.errors), "measured": measured_metrics(compared)}
    result |= {"figures": msgspec.to_builtins(compared.figures)}
    parts.append(comparison(header(labels), compared, labels["warnings"]))
    if replay["write_calibration"] is not None:
        result["calibration"] = _calibration(compared, simulated, labels, replay, parts)
    _write_files(compared, replay, header(labels))
    return compared


def _write_files(compared: Any, replay: dict[str, Any], title: str) -> None:
    """Pictures and rows, each where it was asked for."""
    if replay["plot"] is not None:
        from ..views.text.validation import write_validation

        wrote(write_validation(compared, replay["plot"], title))
    if replay["requests_out"] is not None:
        from ..views.files import rows_csv, write

        wrote([write(replay["requests_out"], rows_csv(compared.outcome))])


def _rows(compared: Any) -> list[dict[str, Any]]:
    """One row per request and metric."""
    trace = compared.trace
    input_tokens, output_tokens = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    rows = []
    for metric in compared.errors:
        columns = (compared.measured[metric], compared.predicted[metric], compared.relative(metric))
        for i, (measured, predicted, error) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            rows.append(
                {
                    "request_id": i,
                    "input_tokens": input_tokens[i],
                    "output_tokens": output_tokens[i],
                    "metric": metric,
                    "measured_ms": measured,
                    "predicted_ms": predicted,
                    "error": error,
                }
            )
    return rows


def _figure_rows(compared: Any) -> list[dict[str, Any]]:
    """One row per figure of a run."""
    return [
        {"metric": key, "measured": figure.measured, "predicted": figure.predicted, "error": figure.error}
        for key, figure in compared.figures.items()
    ]


def _calibration(
    compared: Any, simulated: Any, labels: dict[str, Any], replay: dict[str, Any], parts: list[Any]
) -> dict[str, Any]:
    """Fit and tell: how far each figure moved, and which error is left; written if it helps, or by ``force``."""
    import msgspec

    from ..specs.calibration import as_toml
    from ..validation.fit_calibration import fit_calibration, with_provenance
    from ..views.files import write
    from ..views.text.validation import calibration_table

    path = replay["write_calibration"]
    fit = fit_calibration(simulated, compared)
    calibration = with_provenance(fit, labels)
    objection = fit.objection()
    written = not objection or bool(replay["force"])
    if written:
        wrote([write(path, as_toml(calibration))])
    elif objection:
        objection += f"; {path} was not written; use --force to write it anyway"
    parts.append(calibration_table(calibration, objection))
    labels["warnings"] += [objection] if objection else []
    built: dict[str, Any] = msgspec.to_builtins(calibration)
    return built | {"written": written}


def _memory(model: str, gpu: str, path: str, plan: dict[str, Any], parts: list[Any]) -> list[dict[str, Any]]:
    """Weights and cache: fills what is shown; gives a row per amount."""
    import msgspec

    from ..validation.validate import validate_memory
    from ..views.text.validation import memory_table

    held = validate_memory(model, gpu, measured=path, **plan)
    rows: list[dict[str, Any]] = msgspec.to_builtins(held)
    parts.append(memory_table(held))
    return rows
