"""``inferometer validate``: measured against predicted."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..specs.command_args import GoodputArgs, ServingArgs, TrafficArgs
from ..specs.plan_args import EngineArgs
from .options import (
    MODEL_HELP,
    OUTPUT,
    ArgumentOption,
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
    "llama-3.1-8b --gpu h200 --measured measured.csv --diagnose",
    "llama-3.1-8b --gpu h200 --step-log server.log --write-calibration mine.toml",
)
_REPLAY = (
    "max_concurrency",
    "num_gpu_blocks_override",
    "diagnose",
    "plot",
    "write_calibration",
    "force",
    "goodput",
    "requests_out",
    "columns",
    "run",
)
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
    "--step-log",
    metavar="FILE",
    multiple=True,
    help="A server's own record of its steps: a log of vLLM or SGLang, Dynamo's forward-pass metrics, pages of "
    "/metrics. Repeat it for a log in parts.",
)
@click.option(
    "--url",
    cls=ArgumentOption,
    group="Server",
    help="A running server, http://localhost:8000: compare its counters with the prediction, and say why they differ.",
)
@click.option(
    "--watch",
    cls=ArgumentOption,
    group="Server",
    type=float,
    help="Seconds for which its /metrics are read (default: 60).",
)
@click.option(
    "--probe",
    cls=ArgumentOption,
    group="Server",
    is_flag=True,
    default=None,
    help="Send eight short requests one after another, and judge by them instead of by its traffic.",
)
@click.option(
    "--api-key",
    cls=ArgumentOption,
    group="Server",
    envvar="OPENAI_API_KEY",
    secret=True,
    help="API key, if the server requires one; or set OPENAI_API_KEY.",
)
@output_option(
    "--max-concurrency", type=int, help="Requests in flight when the file has no arrival times (closed loop)."
)
@options(schema_options(ServingArgs, only=["num_gpu_blocks_override"]))
@output_option(
    "--diagnose",
    is_flag=True,
    default=None,
    help="Say why the server is not as predicted: try causes in the simulation, and rank them by what they explain.",
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
def validate(
    model: str,
    gpu: str | None,
    measured: str | None,
    memory: str | None,
    step_log: tuple[str, ...],
    url: str | None,
    form: Form,
    **plan: Any,
) -> int:
    """Replay measured requests, compare logged steps or watch a server, and report the prediction's error."""
    replay = {name: plan.pop(name, None) for name in _REPLAY}
    live = {name: plan.pop(name, None) for name in ("watch", "probe", "api_key")}
    _check_server(url, measured, live, replay)
    _check_questions(url or measured, memory, step_log, replay, plan, form.as_csv)
    device = one_gpu("validate", gpu)
    result: dict[str, Any] = {"schema": "inferometer.validate/1"}
    parts: list[Any] = []
    rows: list[dict[str, Any]] = []
    memory_parts: list[Any] = []
    memory_rows = _memory(model, device, memory, plan, memory_parts) if memory is not None else None
    if step_log and replay["diagnose"]:
        from ..serving.step_log import read_step_log

        log = read_step_log(step_log, needs_steps=False)
        replay["server"], step_log = log.server, step_log if log.steps else ()
    if measured is not None:  # after the other file was read: this one may write what was fitted
        rows = _requests(model, device, measured, replay, plan, result, parts)
    if url is not None:
        rows = _server(model, device, url, live, replay, plan, result, parts)
    if step_log:
        step_rows = _steps(model, device, step_log, replay, plan, result, parts)
        rows = rows if (measured or url) is not None else step_rows
    if memory_rows is not None:
        result["memory"] = memory_rows
        if (measured is None and not step_log) or not form.as_csv:
            rows = [*rows, *memory_rows]
    parts += memory_parts

    def text() -> Any:
        from ..views.text.document import Page

        return Page(parts)

    emit(form, json=lambda: result, csv=lambda: table_csv(rows), text=text, warnings=result.get("warnings", ()))
    unwritten = "calibration" in result and not result["calibration"]["written"]
    return 1 if unwritten or ((measured or url) is not None and not result["completed"]) else 0


def _check_questions(
    measured: str | None,
    memory: str | None,
    step_log: tuple[str, ...],
    replay: dict[str, Any],
    plan: dict[str, Any],
    as_csv: bool,
) -> None:
    if measured is None and memory is None and not step_log:
        raise BadValue("validate needs `measured` FILE, `step_log` FILE, `memory` FILE or several of them, or `url`")
    if measured is not None and step_log and replay["write_calibration"] is not None:
        raise BadValue("`write_calibration` is fitted to `measured` FILE or to `step_log` FILE, not to both")
    if replay["force"] and replay["write_calibration"] is None:
        raise BadValue("`force` needs `write_calibration` FILE")
    for name in (
        "plot",
        "diagnose",
        "write_calibration",
        "requests_out",
        "goodput",
        "max_concurrency",
        "num_gpu_blocks_override",
        "columns",
        "run",
    ):
        if measured is None and replay[name] and not (name == "write_calibration" and step_log):
            raise BadValue(f"`{name}` needs `measured` FILE")
    if replay["diagnose"] and as_csv:
        raise BadValue("`diagnose` has no rows: leave it out, or --csv")
    if replay["write_calibration"] is not None and plan.get("calibration") is not None:
        raise BadValue("`write_calibration` fits uncalibrated predictions: leave out `calibration`")


def _check_server(url: str | None, measured: str | None, live: dict[str, Any], replay: dict[str, Any]) -> None:
    if url is None:
        for name in ("watch", "probe"):
            if live[name] is not None:
                raise BadValue(f"`{name}` needs `url`")
        return
    if measured is not None:
        raise BadValue("give `measured` FILE or `url`, not both")
    if live["probe"] and live["watch"] is not None:
        raise BadValue("`probe` judges by its own requests: leave out `watch`")
    if live["watch"] is not None and not 1 <= live["watch"] <= 86400:
        raise BadValue(f"`watch` must be from 1 to 86,400 s, not {live['watch']:g}")
    for name in ("write_calibration", "columns", "run"):
        if replay[name] is not None:
            raise BadValue(f"`{name}` does not go with `url`")


def _server(
    model: str,
    gpu: str,
    url: str,
    live: dict[str, Any],
    replay: dict[str, Any],
    plan: dict[str, Any],
    result: dict[str, Any],
    parts: list[Any],
) -> list[dict[str, Any]]:
    """A running server beside its prediction: fills the result and what is shown; gives rows."""
    from ..bench.server_watch import known_figures, probe_server, watch_server
    from ..serving.metrics import parse_goodput

    if live["probe"]:
        seen = probe_server(url, model, live["api_key"])
    else:
        seen = watch_server(url, live["watch"] or 60.0, live["api_key"])
    replay = {**replay, "diagnose": True, "server": seen.statistics}
    goals = parse_goodput(replay["goodput"] or ())
    compared = _one_run(model, gpu, seen.trace, goals, replay, plan, result, parts)
    result["server"] = known_figures(seen.statistics)
    return _rows(compared) if compared.errors else _figure_rows(compared)


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
    from ..validation.measured_notes import measured_notes
    from ..validation.validate import measured_frontend, measured_latencies, measured_metrics
    from ..validation.validate import validate as compare
    from ..views.text.serving import header
    from ..views.text.validation import comparison

    measured_latencies(trace)
    blocks = replay["num_gpu_blocks_override"]
    plan = {"frontend": measured_frontend(trace), **plan}
    load = filter(None, (file_name(trace.source), trace.run.label if trace.run is not None else ""))
    labels = run_header(model, gpu, plan, f"of {', '.join(load)}", len(trace))
    labels["warnings"] += trace.notes
    plan |= {} if blocks is None else {"num_gpu_blocks_override": blocks}

    def simulated(calibration: Any = None) -> Any:
        corrected = {**plan, **({} if calibration is None else {"calibration": calibration})}
        return compare(model, gpu, measured=trace, max_concurrency=replay["max_concurrency"], **corrected)

    compared = simulated()
    labels["warnings"] += measured_notes(compared)
    result |= labels | metrics(compared.outcome, goals) | {"goodput": goals or None}
    result |= {"errors": msgspec.to_builtins(compared.errors), "measured": measured_metrics(compared)}
    result |= {"figures": msgspec.to_builtins(compared.figures)}
    parts.append(comparison(header(labels), compared, labels["warnings"]))
    if replay["diagnose"]:
        result["diagnosis"] = _diagnosis(compared, trace, (model, gpu), replay, plan, labels, parts)
    if replay["write_calibration"] is not None:
        result["calibration"] = _calibration(compared, simulated, labels, replay, parts)
    _write_files(compared, replay, header(labels))
    return compared


def _diagnosis(
    compared: Any,
    trace: Any,
    target: tuple[str, str],
    replay: dict[str, Any],
    plan: dict[str, Any],
    labels: dict[str, Any],
    parts: list[Any],
) -> dict[str, Any]:
    """Why the server is not as predicted: fills what is shown."""
    import msgspec

    from ..specs.calibration import calibration
    from ..validation.causes import merged
    from ..validation.doctor import diagnose
    from ..validation.validate import validate as compare
    from ..views.text.diagnosis import diagnosis_page

    model, gpu = target
    given = dict(plan)
    if given.get("calibration") is not None:
        given["calibration"] = calibration(given["calibration"])

    def simulated(change: dict[str, Any]) -> Any:
        options = merged(given, change)
        device = options.pop("gpu", gpu)
        return compare(model, device, measured=trace, max_concurrency=replay["max_concurrency"], **options)

    bands = labels.get("expected_error") or {}
    tolerance = {metric: bands[metric]["p50"] for metric in ("ttft", "tpot") if metric in bands}
    made = diagnose(simulated, compared, model, gpu, plan, replay.get("server"), tolerance)
    parts.append(diagnosis_page(made))
    built: dict[str, Any] = msgspec.to_builtins(made)
    return built


def _write_files(compared: Any, replay: dict[str, Any], title: str) -> None:
    """Pictures and rows, each where its flag was given."""
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

    from ..validation.fit_calibration import fit_calibration, with_provenance
    from ..views.text.validation import calibration_table

    fit = fit_calibration(simulated, compared)
    calibration = with_provenance(fit, labels)
    why: list[str] = []
    written = _save_calibration(calibration, fit.objection(), replay, why)
    parts.append(calibration_table(calibration, why[0] if why else ""))
    labels["warnings"] += why
    built: dict[str, Any] = msgspec.to_builtins(calibration)
    return built | {"written": written}


def _steps(
    model: str,
    gpu: str,
    step_log: tuple[str, ...],
    replay: dict[str, Any],
    plan: dict[str, Any],
    result: dict[str, Any],
    parts: list[Any],
) -> list[dict[str, Any]]:
    """Logged steps beside predicted ones, and a calibration from them: fills the result and what is shown."""
    import msgspec

    from ..serving.simulate import run_header
    from ..serving.step_log import read_step_log
    from ..serving.traffic import file_name
    from ..validation.fit_steps import compare_steps, described, fit_steps
    from ..views.text.diagnosis import step_page

    log = read_step_log(step_log)
    labels = run_header(model, gpu, plan, "", len(log))
    warnings = [*labels.pop("warnings"), *log.notes, *result.pop("warnings", ())]
    if log.engine and log.engine != labels["engine_name"]:
        warnings.append(f"the log is one of {log.engine}, but the plan is one of {labels['engine_name']}")
    elif log.version and log.version != labels["engine_version"]:
        planned = f"{labels['engine_version']}: --engine {log.engine}@{log.version}"
        warnings.append(f"the log is one of {labels['engine']} {log.version}, but the plan is one of {planned}")
    ranks = plan.get("tensor_parallel_size") or 1
    if log.tensor_parallel_size not in (0, ranks):
        warnings.append(f"the log says tensor_parallel_size={log.tensor_parallel_size}, but the plan has {ranks}")
    path, made, classes = replay["write_calibration"], None, None
    if path is None:
        classes = compare_steps(model, gpu, log, plan)
    else:
        fit = fit_steps(model, gpu, log, plan)
        made, classes = described(fit, log, labels), fit.classes
        written = _save_calibration(made, fit.objection(), replay, warnings)
        result["calibration"] = msgspec.to_builtins(made) | {"written": written}
    rows: list[dict[str, Any]] = [{"class": name, **msgspec.to_builtins(one)} for name, one in classes.items()]
    result |= {name: labels[name] for name in ("model", "gpu", "engine", "engine_version") if name not in result}
    result |= {"step_log": {"kind": log.kind, "lines": len(log), "classes": rows}, "warnings": warnings}
    engine = f"{labels['engine']} {labels['engine_version']}".strip()
    title = " · ".join((labels["model"], labels["quantization"], labels["machine"], engine, file_name(log.source)))
    parts.append(step_page(title, log.kind, classes, made, warnings))
    return rows


def _save_calibration(made: Any, objection: str, replay: dict[str, Any], warnings: list[str]) -> bool:
    """Write it if it helps, or by ``force``; else a warning says why not."""
    from ..specs.calibration import as_toml
    from ..views.files import write

    path = replay["write_calibration"]
    written = not objection or bool(replay["force"])
    if written:
        wrote([write(path, as_toml(made))])
    elif objection:
        objection += f"; {path} was not written; use --force to write it anyway"
    warnings += [objection] if objection else []
    return written


def _memory(model: str, gpu: str, path: str, plan: dict[str, Any], parts: list[Any]) -> list[dict[str, Any]]:
    """Weights and cache: fills what is shown; gives a row per amount."""
    import msgspec

    from ..validation.validate import validate_memory
    from ..views.text.validation import memory_table

    held = validate_memory(model, gpu, measured=path, **plan)
    rows: list[dict[str, Any]] = msgspec.to_builtins(held)
    parts.append(memory_table(held))
    return rows
