"""Measured against predicted: requests replayed one by one, whole runs of a benchmark, and memory.

validation = validate("llama-2-7b", gpu="rtx3090", measured="chat.csv")
validation.errors["tpot"].mape        # 0.04: 4% off on average
validate("llama-3.1-8b", gpu="h200", measured="vllm-result.json").figures["p99_ttft_ms"].error
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..base.errors import BadFile, BadValue
from ..base.files import input_path
from ..base.result import Result
from ..base.tabular import open_table
from ..base.units import percent, plural
from ..costs.binding import BoundPlan
from ..inference.cache_size import cache_bytes
from ..inference.request import build_request
from ..inference.weights import weight_bytes
from ..serving.metrics import latencies, metrics
from ..serving.outcome import Outcome
from ..serving.simulate import simulate
from ..serving.trace import Trace, check_measured, read_trace
from ..serving.trace_formats import shorten
from ..specs.arguments import check_names, flag, signature
from ..specs.command_args import ServingArgs
from ..specs.keywords import SimulateKwargs

if TYPE_CHECKING:
    from typing import Unpack

MEASURED = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}  # metric -> column, in ms
MIB = 2.0**20
LENGTH_COLUMNS = ("Input_Tokens", "Output_Tokens")
MEMORY_COLUMNS = {
    "weights": "Weights (MB)",
    "kv_prefill": "KV Prefill (MB)",
    "kv_total": "KV Total (MB)",
    "kv_decode_delta": "KV Decode Delta (MB)",
}


class ErrorStatistics(msgspec.Struct, kw_only=True):
    """How far predictions are from measurements: relative errors, 0.05 is 5%; a positive one is too slow."""

    mape: float | None = None  # mean of the absolute errors
    median_ape: float | None = None
    max_ape: float | None = None
    bias: float | None = None  # mean of the errors, signs kept
    pearson_r: float | None = None  # None where one side does not vary
    mean_error: float | None = None  # of the mean, which queues and long requests dominate
    measured_mean_ms: float | None = None
    predicted_mean_ms: float | None = None
    requests: int = 0


class FigureComparison(msgspec.Struct, kw_only=True):
    """A figure of a whole run, as the benchmark reports it and as the simulation gives it."""

    measured: float
    predicted: float
    error: float | None  # relative; a positive one is too large


class Validation(Result, msgspec.Struct, kw_only=True, eq=False, dict=True):
    """A trace, its simulation, and its measurements: ms per request, nan where there is none."""

    trace: Trace
    outcome: Outcome
    measured: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]
    errors: dict[str, ErrorStatistics]
    figures: dict[str, FigureComparison] = {}  # mean_ttft_ms, p99_itl_ms, output_throughput … of a benchmark's result

    def __repr__(self) -> str:
        off = [f"{name} {percent(one.mape)} off" for name, one in self.errors.items() if one.mape is not None]
        if not off:
            off = [f"{name} {one.error:+.1%}" for name, one in self.figures.items() if one.error is not None][:4]
        return f"<Validation of {plural(len(self.trace), 'request')}: {', '.join(off) or 'nothing to compare'}>"

    def relative(self, metric: str) -> np.ndarray:
        """Relative errors of the requests, nan where one of both is missing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            errors: np.ndarray = self.predicted[metric] / self.measured[metric] - 1
        return np.where(np.isfinite(errors), errors, np.nan)


@signature(ServingArgs)
def validate(
    model: str,
    gpu: str = "h100-sxm",
    *,
    measured: str | Path | Trace | None = None,
    columns: str | Mapping[str, str] | None = None,
    run: int | None = None,
    **kwargs: Unpack[SimulateKwargs],
) -> Validation:
    """Replay measured requests and compare; the keywords are those of `simulate`.

    ``validate("llama-3.1-8b", gpu="h200", measured="measured.csv").errors["tpot"].mape``

    Requests with an ``arrival_s`` arrive then; others run one at a time. Latency is measured at the engine, unless
    ``frontend="http"``. The result of a benchmark is replayed under its load (``max_concurrency``, if it had
    one), measured at its client. ``columns`` and ``run`` are as for `read_trace`.
    """
    check_names(ServingArgs, kwargs, *SimulateKwargs.__annotations__, "measured")
    if measured is None:
        raise BadValue("`validate` needs `measured`: a file, or what `read_trace` made of one")
    trace = measured if isinstance(measured, Trace) else read_trace(measured, columns=columns, run=run)
    load = trace.run
    if not any((times > 0).any() for times in measured_latencies(trace).values()) and not (load and load.metrics):
        names = ", ".join(trace.measured)
        raise BadFile(f"{trace.source} has no measurements: {names} are empty or 0 in every row")
    options: dict[str, Any] = {"frontend": measured_frontend(trace), **kwargs}
    if load is not None and options.get("max_concurrency") is None:
        options["max_concurrency"] = load.max_concurrency
        if load.closed_loop:  # moments follow from the answers
            trace = msgspec.structs.replace(trace, arrival_s=None)
    return compare(trace, simulate(model, gpu, trace=trace, **options))


def measured_frontend(trace: Trace) -> str:
    """Where the clock of the measurements stood: ``measured_frontend(read_trace("vllm-result.json"))  # 'http'``"""
    return "http" if trace.at_client else "in-process"


def compare(trace: Trace, outcome: Outcome) -> Validation:
    """What was measured beside what a simulation of the same requests gave."""
    measured, ours = measured_latencies(trace), latencies(outcome)
    predicted = {metric: ours[metric] for metric in measured}
    errors = {metric: error_statistics(predicted[metric], measured[metric]) for metric in measured}
    return Validation(
        trace=trace,
        outcome=outcome,
        measured=measured,
        predicted=predicted,
        errors=errors,
        figures=_compare_figures(trace, outcome),
    )


def _compare_figures(trace: Trace, outcome: Outcome) -> dict[str, FigureComparison]:
    if trace.run is None:
        return {}
    predicted = metrics(outcome)
    return {
        name: FigureComparison(measured=seen, predicted=ours, error=ours / seen - 1 if seen > 0 else None)
        for name, seen in trace.run.metrics.items()
        if (ours := predicted.get(name)) is not None
    }


def measured_latencies(trace: Trace) -> dict[str, np.ndarray]:
    """TTFT, TPOT and end-to-end latency in ms as measured; one that the file lacks follows from the other two.

    Empty for a benchmark that reports figures of the whole run only.
    """
    columns = trace.measured
    check_measured(columns, trace.source)
    gaps = trace.output_tokens - 1
    times = {metric: columns[column] for metric, column in MEASURED.items() if column in columns}
    with np.errstate(divide="ignore", invalid="ignore"):
        if "tpot" not in times and {"ttft", "e2el"} <= set(times):
            times["tpot"] = (times["e2el"] - times["ttft"]) / gaps
        elif "e2el" not in times and {"ttft", "tpot"} <= set(times):
            times["e2el"] = times["ttft"] + np.where(gaps > 0, times["tpot"] * gaps, 0.0)
    if not times and trace.run is not None and not trace.run.metrics:
        raise BadFile(f"{trace.source} has no measurements: none of mean_ttft_ms, mean_tpot_ms, p99_ttft_ms and so on")
    if not times and trace.run is None:
        raise BadFile(
            f"{trace.source} has no measurements: at least one of the columns TTFT, TPOT, E2E (ms); one of another "
            f"name or unit is named with {flag('columns')} ttft_s=NAME"
        )
    if "tpot" in times:  # an output of one token has none, whatever the file says
        times["tpot"] = np.where(gaps > 0, times["tpot"], np.nan)
    return {metric: times[metric] for metric in MEASURED if metric in times}


def error_statistics(predicted: np.ndarray, measured: np.ndarray) -> ErrorStatistics:
    """Over the requests that have both: ``error_statistics(np.array([11.0]), np.array([10.0])).mape  # 0.1``"""
    both = np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)
    p, m = predicted[both], measured[both]
    if not len(p):
        return ErrorStatistics()
    off = p / m - 1
    varied = len(p) > 1 and p.std() > 1e-12 * abs(p.mean()) and m.std() > 1e-12 * abs(m.mean())
    return ErrorStatistics(
        mape=float(np.abs(off).mean()),
        median_ape=float(np.median(np.abs(off))),
        max_ape=float(np.abs(off).max()),
        bias=float(off.mean()),
        pearson_r=float(np.corrcoef(p, m)[0, 1]) if varied else None,
        mean_error=float(p.mean() / m.mean() - 1),
        measured_mean_ms=float(m.mean()),
        predicted_mean_ms=float(p.mean()),
        requests=len(p),
    )


def measured_metrics(validation: Validation) -> dict[str, Any]:
    """The measured run under the names of ``vllm bench serve``; empty without TTFT and end-to-end latency."""
    if validation.trace.run is not None:
        return dict(validation.trace.run.metrics)
    if not {"ttft", "e2el"} <= set(validation.measured):
        return {}
    outcome, arrival = validation.outcome, validation.outcome.arrival_s
    if validation.trace.arrival_s is None:  # one after another, as fast as they ended then
        arrival = np.concatenate([[0.0], np.cumsum(validation.measured["e2el"])[:-1] / 1e3])
    seen = msgspec.structs.replace(
        outcome,
        arrival_s=arrival,
        first_token_s=arrival + validation.measured["ttft"] / 1e3,
        finished_s=arrival + validation.measured["e2el"] / 1e3,
        rejected={},
        output_tokens=validation.trace.output_tokens,
    )
    last = float(np.nanmax(seen.finished_s)) if np.isfinite(seen.finished_s).any() else 0.0
    return metrics(msgspec.structs.replace(seen, duration_s=last))


# ------------------------------------------------------------------ memory


class MemoryComparison(msgspec.Struct, kw_only=True):
    """One measured amount of memory beside the predicted one, bytes of one GPU."""

    what: str  # a key of MEMORY_COLUMNS
    input_tokens: int
    output_tokens: int
    measured_bytes: float
    predicted_bytes: float
    error: float


def validate_memory(
    model: str, gpu: str = "h100-sxm", *, measured: str | Path, **kwargs: Any
) -> list[MemoryComparison]:
    """Weights and KV cache against a table of measurements, in which MB are MiB."""
    path = input_path(str(measured))
    with open_table(path) as table:
        names = table.names
        lacking = [name for name in LENGTH_COLUMNS if name not in names]
        columns = {what: column for what, column in MEMORY_COLUMNS.items() if column in names}
        if lacking or not columns:
            raise BadFile(
                f"{path} has the columns {shorten(names)}; measured memory has {', '.join(LENGTH_COLUMNS)} and "
                f"some of {', '.join(MEMORY_COLUMNS.values())}"
            )
        chunks = list(table.chunks((*LENGTH_COLUMNS, *columns.values())))
    bound_plan = build_request(model, gpu, **kwargs).bind()
    comparisons: list[MemoryComparison] = []
    for rows in chunks:
        lengths = [rows.numbers(name, whole=True, most=10**8).tolist() for name in LENGTH_COLUMNS]
        amounts = {what: rows.numbers(column, most=1e9).tolist() for what, column in columns.items()}
        for at, (input_tokens, output_tokens) in enumerate(zip(*lengths, strict=True)):
            predicted = _predicted_memory(bound_plan, input_tokens, output_tokens)
            for what in columns:
                measured_bytes = amounts[what][at] * MIB
                comparison = MemoryComparison(
                    what=what,
                    input_tokens=input_tokens,
                    output_tokens=output_tokens,
                    measured_bytes=measured_bytes,
                    predicted_bytes=predicted[what],
                    error=predicted[what] / measured_bytes - 1 if measured_bytes else float("nan"),
                )
                comparisons.append(comparison)
    if not comparisons:
        raise BadFile(f"{path} has a header but no measurements")
    return comparisons


def _predicted_memory(bound_plan: BoundPlan, input_tokens: int, output_tokens: int) -> dict[str, float]:
    after_prefill = float(cache_bytes(bound_plan, input_tokens))
    at_the_end = float(cache_bytes(bound_plan, input_tokens + output_tokens))
    return {
        "weights": float(weight_bytes(bound_plan)),
        "kv_prefill": after_prefill,
        "kv_total": at_the_end,
        "kv_decode_delta": at_the_end - after_prefill,
    }
