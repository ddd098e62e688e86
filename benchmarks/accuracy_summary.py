"""The first page of docs/accuracy.md: engine steps by kind of model, and one line for everything else that was judged.

    steps_by_kind()      # Markdown: dense, mixtures and hybrids, each by how the figures were chosen
    servers(page)        # one line for each set of servers, out of the tables that the page has
    others(page)         # kernels, GPUs without tables, ranking, memory, training

All but the steps are read off the page itself, so the summary never says anything else than the tables below it.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import accuracy_page
import engine_steps
import numpy as np
from measurements import measured_config

from inferometer.network import families

KINDS = {
    "decode": "decode step",
    "long": "TTFT, over 512 tokens",
    "short": "TTFT, up to 512",
    "many": "TTFT, several steps",
}
JUDGED = {  # how the rows of a table of steps judge; a table that is not named here is shown as unseen
    "steps-shared": "seen",
    "steps-left-out": "model left out",
    "steps-own": "other machines",
    "steps-more": "other machines",
    "steps-weak": "other machines",
    "steps-between": "other machines",
}
ORDER = ("seen", "model left out", "other machines", "unseen")
UNTRAINED = ("steps-shared", "deepseek-v2-lite")  # its dummy routers choose few experts: not a prediction of ours
LINES = Path(__file__).resolve().parent / "data" / "accuracy_lines.toml"
Table = dict[str, Any]


@cache
def network_kind(model: str) -> str:
    """``network_kind("mixtral-8x7b-v0.1")  # "mixture"``"""
    kinds = {op.kind for block in families.build(measured_config(model)).blocks for op in block.ops}
    return "hybrid" if kinds & {"scan", "state_update"} else "mixture" if "moe" in kinds else "dense"


def step_errors() -> Iterator[tuple[str, str, dict[str, np.ndarray]]]:
    """Tables of steps, models, and their relative errors by kind of row."""
    for name, path in engine_steps.SETS.items():
        for key, parts in sorted(engine_steps.rows(path).items()):
            if (name, key[0]) != UNTRAINED:
                yield name, key[0], engine_steps.errors(engine_steps.bound_plan(*key), parts)
    for key, errors in engine_steps.left_out().items():
        yield "steps-left-out", key[0], errors


def steps_by_kind() -> str:
    """Mean and median error, bias and rows of every kind of model and step, by how its figures were chosen."""
    offs: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    for name, model, errors in step_errors():
        for kind, off in errors.items():
            offs[network_kind(model), kind, JUDGED.get(name, "unseen")].append(off)
    shown = [judged for judged in ORDER if any(key[2] == judged for key in offs)]
    lines = [f"| prediction | {' | '.join(shown)} |", "|---|" + "---|" * len(shown)]
    for network in ("dense", "mixture", "hybrid"):
        for kind, label in KINDS.items():
            cells = [_cell(offs.get((network, kind, judged))) for judged in shown]
            if set(cells) != {"–"}:
                lines.append(f"| {network}, {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(parts: list[np.ndarray] | None) -> str:
    if not parts:
        return "–"
    off = np.concatenate(parts)
    return f"{np.abs(off).mean():.1%} / {np.median(np.abs(off)):.1%}, {off.mean():+.1%} ({off.size})"


# ------------------------------------------------------------------ out of the page's own tables


def _lines() -> dict[str, Any]:
    return tomllib.loads(LINES.read_text(encoding="utf-8"))


def servers(page: str) -> str:
    """One line a set of servers: mean and median error and bias of each latency."""
    lines = ["| prediction | judged | runs | TTFT | TPOT or ITL | E2E | weak where |", "|---|---|---:|---|---|---|---|"]
    for name, line in _lines()["servers"].items():
        text = accuracy_page.stands(page, f"serving-{name}")
        runs = re.search(r"^(\d+) of \d+ runs answered", text, re.M)
        pattern = r"(\w+) mean error ([\d.]+%), median ([\d.]+%), worst [\d.]+%, bias ([+-][\d.]+%)"
        sums = {metric: f"{mean} / {median}, {bias}" for metric, mean, median, bias in re.findall(pattern, text)}
        if runs is not None:
            cells = [sums.get("TTFT", "–"), sums.get("TPOT", sums.get("ITL", "–")), sums.get("E2E", "–")]
            cells = [line["prediction"], line["judged"], runs[1], *cells, line["limits"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def others(page: str) -> str:
    """Everything else that a table of the page judges."""
    tables = {table["name"]: table for table in accuracy_page.tables(page)}
    lines = ["| prediction | judged | rows | error | weak where |", "|---|---|---:|---|---|"]
    for line in _lines()["others"]:
        table = tables.get(line["table"])
        for what, count, error in _figures(line, table) if table else ():
            lines.append(f"| {what} | {line['judged']} | {count:,} | {error} | {line['limits']} |")
    return "\n".join(lines)


def _figures(line: dict[str, Any], table: Table) -> Iterator[tuple[str, int, str]]:
    """What is predicted, how many rows were compared, and their errors."""
    heads, what = table["columns"], line["prediction"]
    rows = [row for row in table["rows"] if "only" not in line or line["only"] in row[:2]]
    if "errors" in line:
        for at in (i for i, head in enumerate(heads) if head == "error"):
            values = [value for row in rows if (value := _number(row[at])) is not None]
            quantity = heads[at - 2].partition(" measured")
            name = f"{what}: {quantity[0]}" if quantity[1] else what
            yield name, len(values), _signed(values)
        return
    weights = [int(row[heads.index(line["rows"])].replace(",", "")) for row in rows]
    if "cells" in line:
        yield what, sum(weights), "; ".join(f"{head} {rows[0][heads.index(head)]}" for head in line["cells"])
        return
    first = heads.index(line["medians"][0])
    cells = []
    for at, head in enumerate(line["medians"], first):
        pairs = [(v, w) for row, w in zip(rows, weights, strict=True) if (v := _number(row[at])) is not None]
        middle = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
        size = head.rpartition(": ")[2].replace("median error", "")
        cells.append(f"{size} {middle:.1f}%".strip())
    yield what, sum(weights), "median: " + ", ".join(cells)


def _signed(values: list[float]) -> str:
    sizes = np.abs(values)
    return f"{sizes.mean():.2f}% / {np.median(sizes):.2f}%, {np.mean(values):+.2f}%"


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "").rstrip("%"))
    except ValueError:
        return None
