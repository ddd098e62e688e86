"""``inferometer validate``: measured against predicted."""

from __future__ import annotations

from typing import Any

import click

from ..base.errors import BadValue
from ..serving.synthetic import file_name
from .options import ENGINE, MACHINE, METHODS, MODEL_HELP, NUMBERS, OUTPUT, named, one_gpu, options
from .output import deliver, show_rich, table_csv


@click.command(epilog=MODEL_HELP)
@click.argument("model")
@click.option("--measured", metavar="FILE", help="Requests with TTFT, TPOT, E2E in ms; or a folder with a chat.csv.")
@click.option("--memory", metavar="FILE", help="Measured weights and KV cache in MiB, as CSV.")
@click.option("--max-concurrency", type=int, help="Replay in a closed loop of so many, if there are no arrivals.")
@click.option("--plot", metavar="DIR", callback=named, help="Write errors, values, scatter and breakdown there.")
@click.option("--write-calibration", metavar="FILE", callback=named, help="Fit a correction, for --calibration.")
@click.option("--goodput", multiple=True, metavar="METRIC:MS", help="What a good request keeps: ttft:500,tpot:50.")
@click.option("--requests-out", metavar="FILE", callback=named, help="One CSV row per request, as simulated.")
@options(MACHINE, METHODS, NUMBERS, ENGINE, OUTPUT)
def validate(
    model: str,
    measured: str | None,
    memory: str | None,
    as_json: bool,
    as_csv: bool,
    output: str | None,
    gpu: str,
    **words: Any,
) -> int:
    """Replay measured requests and say how far the prediction is off, one by one and over all."""
    keys = ("max_concurrency", "plot", "write_calibration", "goodput", "requests_out")
    ways = {key: words.pop(key) for key in keys}
    _possible(measured, memory, ways, words)
    device = one_gpu("validate", gpu)
    result: dict[str, Any] = {"schema": "inferometer.validate/1"}
    parts: list[Any] = []
    rows: list[dict[str, Any]] = []
    if measured is not None:
        rows = _requests(model, device, measured, ways, words, result, parts)
    if memory is not None:
        rows += _memory(model, device, memory, words, result, parts) if measured is None or not as_csv else []
    if as_json:
        import msgspec

        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        deliver(table_csv(rows), output)
    else:
        from rich.console import Group

        show_rich(Group(*parts), output)
    for warning in result.get("warnings", ()) if as_json or as_csv else ():
        click.echo(f"warning: {warning}", err=True)
    return 1 if measured is not None and not result["completed"] else 0


def _possible(measured: str | None, memory: str | None, ways: dict[str, Any], words: dict[str, Any]) -> None:
    if measured is None and memory is None:
        raise BadValue("validate needs --measured FILE, --memory FILE or both")
    for key in ("plot", "write_calibration", "requests_out", "goodput", "max_concurrency"):
        if measured is None and ways[key]:
            raise BadValue(f"--{key.replace('_', '-')} needs --measured FILE")
    if ways["write_calibration"] is not None and words["calibration"] is not None:
        raise BadValue("--write-calibration fits what is not calibrated yet: leave --calibration away")


def _requests(
    model: str,
    gpu: str,
    measured: str,
    ways: dict[str, Any],
    words: dict[str, Any],
    result: dict[str, Any],
    parts: list[Any],
) -> list[dict[str, Any]]:
    """Latencies: fills the result and what is shown; gives a row per request and metric."""
    import msgspec

    from ..serving.metrics import metrics, parse_goodput
    from ..serving.simulate import run_header
    from ..serving.trace import read_trace
    from ..validation.validate import measured_latencies, measured_metrics
    from ..validation.validate import validate as compare
    from ..views.text.serving import header
    from ..views.text.validation import comparison

    goals = parse_goodput(ways["goodput"])
    trace = read_trace(measured)
    measured_latencies(trace)
    labels = run_header(model, gpu, words, f"of {file_name(trace.source)}", len(trace))

    def replay(calibration: Any = words["calibration"]) -> Any:
        again = {**words, "calibration": calibration}
        return compare(model, gpu, measured=trace, max_concurrency=ways["max_concurrency"], **again)

    found = replay()
    result |= labels | metrics(found.outcome, goals) | {"goodput": goals or None}
    result |= {"errors": msgspec.to_builtins(found.errors), "measured": measured_metrics(found)}
    parts.append(comparison(header(labels), found, labels["warnings"]))
    if ways["write_calibration"] is not None:
        result["calibration"] = _calibration(found, replay, labels, ways["write_calibration"], parts)
    if ways["plot"] is not None:
        from ..views.text.validation import write_validation

        for path in write_validation(found, ways["plot"], header(labels)):
            click.echo(f"wrote {path}", err=True)
    if ways["requests_out"] is not None:
        from ..views.files import rows_csv, write

        click.echo(f"wrote {write(ways['requests_out'], rows_csv(found.outcome))}", err=True)
    given, made = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    return [
        {
            "request_id": i,
            "input_tokens": given[i],
            "output_tokens": made[i],
            "metric": metric,
            "measured_ms": m,
            "predicted_ms": p,
            "error": e,
        }
        for metric in found.errors
        for i, (m, p, e) in enumerate(
            zip(
                found.measured[metric].tolist(),
                found.predicted[metric].tolist(),
                found.relative(metric).tolist(),
                strict=True,
            )
        )
    ]


def _calibration(found: Any, replay: Any, labels: dict[str, Any], path: str, parts: list[Any]) -> dict[str, Any]:
    """Fit, write and tell: how far each figure moved, and which error is left."""
    import msgspec

    from ..specs.calibration import as_toml
    from ..validation.fit_calibration import fit_calibration, with_provenance
    from ..views.files import write
    from ..views.text.validation import calibration_table

    made = with_provenance(fit_calibration(replay, found), labels["model"], labels["gpu"], labels["engine_name"])
    click.echo(f"wrote {write(path, as_toml(made))}", err=True)
    parts.append(calibration_table(made))
    built: dict[str, Any] = msgspec.to_builtins(made)
    return built


def _memory(
    model: str, gpu: str, path: str, words: dict[str, Any], result: dict[str, Any], parts: list[Any]
) -> list[dict[str, Any]]:
    """Weights and cache: fills the result and what is shown; gives a row per amount."""
    import msgspec

    from ..validation.validate import validate_memory
    from ..views.text.validation import memory_table

    held = validate_memory(model, gpu, measured=path, **words)
    rows: list[dict[str, Any]] = msgspec.to_builtins(held)
    result["memory"] = rows
    parts.append(memory_table(held))
    return rows
