"""One factor for the host of a machine: how much of the errors of engine steps it explains, and what it leaves.

    python benchmarks/machines.py            prints the tables of docs/accuracy/hosts.md and engine-steps.md
    python benchmarks/machines.py --write    puts them there

Hosts of one kind of machine differ. The rows of benchmarks/data/h200_static*.csv are of seven machines with one H200.
Each step is predicted with every host time multiplied by some factors: launches, Python, a request's own time. The
factor that meets a machine's other models best predicts a model's own rows, as measuring the host would.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from typing import NamedTuple

import accuracy_page
import accuracy_summary
import engine_steps
import msgspec
import numpy as np

from inferometer.costs.binding import BoundPlan, step_seconds
from inferometer.costs.step import Group, Step
from inferometer.inference import latency

FACTORS = (0.5, 0.56, 0.63, 0.71, 0.8, 0.9, 1.0, 1.12, 1.25, 1.4, 1.6, 2.0)
AS_SHIPPED = FACTORS.index(1.0)
MATTERS = 1.15  # a step that the host makes longer by this factor at least is one that it sets the pace of
UNSEEN = "6"  # the machine of models that no figure was chosen on
SCALED = ("step_floor", "step_floor_per_sequence", "step_floor_per_state_group", "request_overhead")


class Rated(NamedTuple):
    """A step or a first token: ln(predicted / measured) at each factor."""

    machine: str
    model: str
    kind: str  # of the step, as in `accuracy_summary.KINDS`
    off: tuple[float, ...]
    waits: bool  # for the host


def with_host(s: BoundPlan, factor: float) -> BoundPlan:
    """The same setup with a host that takes so many times as long."""
    e = s.engine
    seconds = {name: getattr(e, name) * factor for name in SCALED}
    launch = {kind: each * factor for kind, each in e.launch.items()}
    return s._replace(engine=msgspec.structs.replace(e, launch=launch, **seconds))


def rated() -> list[Rated]:
    """All steps, and all first tokens of prompts of one step."""
    rows = []
    for path in engine_steps.SETS.values():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                model = engine_steps.NAMES.get(row["model"], row["model"])
                if row.get("routing") == "dummy" or (path == engine_steps.FIRST and model == "deepseek-v2-lite"):
                    continue  # untrained routers choose few experts
                cache_dtype = row.get("kv_cache_dtype") or "auto"
                precision = row["precision"] + (f", {cache_dtype} cache" if cache_dtype != "auto" else "")
                plan = engine_steps.bound_plan(model, precision)
                rows += _rated(plan, row, engine_steps.machine_of(path, row), f"{model} {precision}")
    return rows


def _rated(plan: BoundPlan, row: dict[str, str], machine: str, model: str) -> list[Rated]:
    batch, length = float(row["batch"]), float(row["input_len"])
    hosts = [with_host(plan, factor) for factor in (*FACTORS, 1e-3)]
    rows = []

    def add(kind: str, seconds: list[float], measured: float) -> None:
        waits = seconds[AS_SHIPPED] > MATTERS * seconds[-1]
        rows.append(Rated(machine, model, kind, tuple(float(np.log(one / measured)) for one in seconds[:-1]), waits))

    if row["decode_step_ms"]:
        step = Step((Group(batch, 1.0, float(row["decode_context"]) - 1, 1, True),))
        measured = float(row["decode_step_ms"]) / 1e3 - engine_steps.PACKING.get(row["model"], 0.0)
        add("decode", [float(step_seconds(one, step)) for one in hosts], measured)
    if row["last_ttft_ms"] and row["prefill_steps"] == "1":
        steps = latency.budgeted_prefill(plan, batch, length)
        took = [float(latency.pipelined_seconds(one, steps)) + one.engine.request_overhead for one in hosts]
        add("long" if batch * length > 512 else "short", took, float(row["last_ttft_ms"]) / 1e3)
    return rows


def best(rows: list[Rated]) -> int:
    """The factor that meets rows best, an index of `FACTORS`: ``best([])`` is the host as shipped."""
    if not rows:
        return AS_SHIPPED
    means = [statistics.fmean(abs(row.off[i]) for row in rows) for i in range(len(FACTORS))]
    return min(range(len(FACTORS)), key=lambda i: (means[i], abs(i - AS_SHIPPED)))


def _error(rows: list[Rated], factors: list[int]) -> str:
    if not rows:
        return "–"
    off = [np.expm1(row.off[i]) for row, i in zip(rows, factors, strict=True)]
    return f"{statistics.fmean(abs(x) for x in off):.1%}, bias {statistics.fmean(off):+.1%} ({len(off)})"


def lent_factors(rows: list[Rated]) -> dict[str, int]:
    """For each model of a machine the factor that its other models say, an index of `FACTORS`."""
    waiting = [row for row in rows if row.waits]
    return {model: best([row for row in waiting if row.model != model]) for model in {row.model for row in rows}}


def unseen(rows: list[Rated]) -> str:
    """Models that no figure was chosen on, by kind of network and step, with the factor of the others beside them."""
    rows = [row for row in rows if row.machine == UNSEEN]
    lent = lent_factors(rows)
    lines = ["| prediction | host as shipped | factor of the other models |", "|---|---|---|"]
    for network in ("dense", "mixture", "hybrid"):
        for kind, label in accuracy_summary.KINDS.items():
            some = [r for r in rows if r.kind == kind and accuracy_summary.network_kind(r.model.split()[0]) == network]
            if some:
                cells = [_error(some, [AS_SHIPPED] * len(some)), _error(some, [lent[row.model] for row in some])]
                lines.append(f"| {network}: {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(every: list[Rated]) -> str:
    """A line a machine: the factor of all its rows, and each model's errors with the factor of its other models."""
    by_machine: dict[str, list[Rated]] = defaultdict(list)
    for row in every:
        by_machine[row.machine].append(row)
    lines = [
        "| machine | host, times as shipped | steps that wait for the host: as shipped | factor of its other models |"
        " all other steps: as shipped | factor of its other models |",
        "|---|---:|---|---|---|---|",
    ]
    factors = []
    for machine, rows in sorted(by_machine.items()):
        waiting = [row for row in rows if row.waits]
        factors.append(FACTORS[best(waiting)])
        lent = lent_factors(rows)
        cells = [machine, f"{factors[-1]:g}"]
        for some in (waiting, [row for row in rows if not row.waits]):
            cells += [_error(some, [AS_SHIPPED] * len(some)), _error(some, [lent[row.model] for row in some])]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(f"| **median** | {statistics.median(factors):g} | | | | |")
    return "\n".join(lines)


def sections() -> dict[str, str]:
    """What stands between the page's markers, by name."""
    every = rated()
    return {"machines": report(every), "machines-unseen": unseen(every)}


def main() -> None:
    """Print the table, and write it with ``--write``."""
    parser = argparse.ArgumentParser(description="One factor for the host of a machine.")
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy/hosts.md")
    given = parser.parse_args()
    tables = sections()
    print("\n\n".join(tables.values()))
    if given.write:
        accuracy_page.write(**tables)


if __name__ == "__main__":
    main()
