"""Tables of the simulator against measured servers: by run, by engine and GPU, by parts; and every figure as CSV.

table("silicon", "Closed loops …", rows)    # lines of Markdown; rows are those of benchmarks/serving.py
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from measurements import closed_loops
from recipes import was_cold

if TYPE_CHECKING:
    from serving import Row

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
FITTED = ("b200", "gb200")  # systems whose disaggregated runs chose a figure
LOADS = {16: "up to 16 requests in flight", 128: "up to 128", 1024: "up to 1,024", 10**9: "more than 1,024"}
MANY = 40  # runs from which on a set is shown by engine and device, not run by run


def table(name: str, about: str, rows: list[Row]) -> list[str]:
    """The set's runs one by one, or by engine and device where they are many; and the sum."""
    answered = [row for row in rows if row.predicted]
    shown = [m for m in LABELS if any(m in row.case.measured for row in rows)]
    lines = [f"**{name}**: {about}", ""]
    lines += _by_run(rows, shown) if len(rows) <= MANY else _by_engine(rows, shown)
    if name == "disaggregated":
        lines += _answered_by_part(answered, shown)
    if name == "silicon":
        lines += ["", *_by(answered, shown, "part", _warmth)]
    sums = [f"{LABELS[m]} {error_sums(answered, m)}" for m in shown]
    lines += ["", f"{len(answered)} of {len(rows)} runs answered. " + "; ".join(sums) + "."]
    single = [m for m in LABELS if any(m in row.per_request for row in answered)]
    if single:
        each = {m: [row.per_request[m] for row in answered if m in row.per_request] for m in single}
        per = [f"{LABELS[m]} {statistics.fmean(errors):.1%}" for m, errors in each.items()]
        lines.append(f"Mean absolute error request by request: {', '.join(per)}.")
    return [*lines, ""]


def _by_run(rows: list[Row], shown: list[str]) -> list[str]:
    return [
        "| run | " + " | ".join(f"{LABELS[m]} measured | predicted | error" for m in shown) + " |",
        "|---|" + "---:|---:|---:|" * len(shown),
        *(f"| {row.case.name} | " + " | ".join(_cells(row, m) for m in shown) + " |" for row in rows),
    ]


def _by_engine(rows: list[Row], shown: list[str]) -> list[str]:
    return _by(rows, shown, "engine, GPU", lambda row: f"{_engine(row)}, {row.case.gpu}")


def _by(rows: list[Row], shown: list[str], title: str, part_of: Callable[[Row], str]) -> list[str]:
    """A table of medians and biases by parts of the rows."""
    heads = " | ".join(f"{LABELS[m]} median | bias" for m in shown)
    lines = [f"| {title} | runs | answered | {heads} |", "|---|---:|---:|" + "---:|---:|" * len(shown)]
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[part_of(row)].append(row)
    for name, part in sorted(parts.items()):
        counts = f"{len(part)} | {sum(bool(row.predicted) for row in part)}"
        lines.append(f"| {name} | {counts} | " + " | ".join(_middle(part, m) for m in shown) + " |")
    return lines


def _warmth(row: Row) -> str:
    cold = row.case.name in _cold_runs()
    return "measured from the first request on" if cold else "measured after a warm-up"


@cache
def _cold_runs() -> frozenset[str]:
    return frozenset(row["run"] for row in closed_loops() if was_cold(row))


def _engine(row: Row) -> str:
    return str(row.case.options.get("engine")).partition("@")[0]


def _answered_by_part(rows: list[Row], shown: list[str]) -> list[str]:
    """The disaggregated runs that are answered: by model, load, drafts, and whether a constant was fitted on them."""

    def fitted(row: Row) -> str:
        return "systems fitted on (B200, GB200)" if row.case.gpu in FITTED else "systems held out"

    def load(row: Row) -> str:
        return next(name for most, name in LOADS.items() if row.case.build[-1] <= most)

    def drafts(row: Row) -> str:
        return "draft tokens" if "speculative_config" in row.case.options["pools"][1] else "no draft tokens"

    def model(row: Row) -> str:
        return f"{_engine(row)}, {row.case.model.rpartition('/')[2]}"

    lines: list[str] = []
    for part_of in (fitted, model, load, drafts):
        lines += _by(rows, shown, "part", part_of)[0 if not lines else 2 :]
    return ["", *lines]


def _cells(row: Row, metric: str) -> str:
    off = row.error(metric)
    if off is None:
        return f"{row.case.measured.get(metric, float('nan')):,.1f} | – | {row.reason or '–'}"
    return f"{row.case.measured[metric]:,.1f} | {row.predicted[metric]:,.1f} | {off:+.1%}"


def _offs(rows: list[Row], metric: str) -> list[float]:
    return [off for row in rows if (off := row.error(metric)) is not None]


def _middle(rows: list[Row], metric: str) -> str:
    offs = _offs(rows, metric)
    return f"{statistics.median(map(abs, offs)):.1%} | {statistics.median(offs):+.1%}" if offs else "– | –"


def error_sums(rows: list[Row], metric: str) -> str:
    """Mean, median and worst error of a latency, and the bias."""
    offs = _offs(rows, metric)
    if not offs:
        return "–"
    sizes = [abs(off) for off in offs]
    return (
        f"mean error {statistics.fmean(sizes):.1%}, median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}, "
        f"bias {statistics.fmean(offs):+.1%}"
    )


def write_rows(path: str, rows: list[Row]) -> None:
    """All figures, one line per case, for a closer look."""
    keys = sorted({key for row in rows for key in row.case.options})
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        pairs = [f"{word}_{m}_ms" for m in LABELS for word in ("measured", "predicted")]
        ends = [
            *(f"{m}_{word}" for word in ("error", "each") for m in LABELS),
            "peer_ttft_ms",
            "peer_tpot_ms",
            "reason",
            "seconds",
        ]
        writer.writerow(["set", "name", "model", "gpu", *keys, "input_len", "output_len", "concurrency", *pairs, *ends])
        for row in rows:
            case = row.case
            values = [x.get(m) for m in LABELS for x in (case.measured, row.predicted)]
            sizes = (*case.build[1:3], case.build[-1]) if case.build[0] in ("closed", "rounds") else ("", "", "")
            options = [case.options.get(k) for k in keys]
            writer.writerow(
                [
                    case.set,
                    case.name,
                    case.model,
                    case.gpu,
                    *options,
                    *sizes,
                    *values,
                    *(row.error(m) for m in LABELS),
                    *(row.per_request.get(m) for m in LABELS),
                    case.peer.get("ttft"),
                    case.peer.get("tpot"),
                    row.reason,
                    round(row.seconds, 3),
                ]
            )


def read_rows(
    path: str | Path,
) -> Iterator[tuple[tuple[str, str], dict[str, float], dict[str, float], str, float]]:
    """What `write_rows` wrote: set and name, predicted ms, errors request by request, reason, seconds it took."""
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            predicted, each = (
                {m: float(row[column]) for m in LABELS if row.get(column := pattern.format(m))}
                for pattern in ("predicted_{}_ms", "{}_each")
            )
            yield (row["set"], row["name"]), predicted, each, row["reason"], float(row["seconds"])
