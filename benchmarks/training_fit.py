"""Refits of training's kernel figures with a model or a GPU left out, and the errors of what was left out.

python benchmarks/training_fit.py          # a minute: writes data/training_left_out.csv, which training_runs.py shows

All figures start from what is known without any of the runs (PRIOR), each within about a third. One Gauss-Newton step
from the figures in data/training.toml, with the rows that are left out taken away; they are then predicted exactly.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import training_runs
from training_runs import DATA, LABELS, Run

from inferometer.inference.request import Request
from inferometer.training import iteration, passes, training_kernels, training_memory
from inferometer.training.passes import Recipe, TrainingConstants
from inferometer.training.train import build_training

SPREAD = 0.35  # of a prior, in logarithms
NOISE = 0.07  # of a run
PRIOR = {  # of GEMMs, passes and collectives timed alone; 1 where nothing says that experts with biases are slower
    "blackwell.bf16": 0.91e-12,
    "blackwell.fp8": 0.44e-12,
    "blackwell.fp4": 0.24e-12,
    "hopper.bf16": 1.1e-12,
    "hopper.fp8": 0.6e-12,
    "both.memory": 0.67,
    "both.casts": 0.6,
    "blackwell.scan_backward": 0.15,
    "hopper.scan_backward": 0.15,
    "host.operator": 30e-6,
    "host.mixture": 0.8e-3,
    "host.expert": 0.1e-3,
    "overlap.ep": 0.6,
}
BASE = passes.training_constants()
_constants = [BASE]  # what the package reads while a point is tried


class Known(NamedTuple):
    """Runs that ask the same question, with the mean of their seconds."""

    model: str
    gpu: str
    question: tuple[Request, Recipe]
    seconds: float
    runs: int


def value(constants: TrainingConstants, name: str) -> float:
    """A figure by its name: ``value(BASE, "host.operator")``"""
    group, _, field = name.partition(".")
    if group in ("host", "overlap"):
        return float(getattr(getattr(constants, group), field))
    kernels = constants.kernels["blackwell" if group == "both" else group]
    return float(kernels.joules_per_flop[field] if field in kernels.joules_per_flop else getattr(kernels, field))


def with_values(values: dict[str, float]) -> TrainingConstants:
    """The package's constants with other figures."""
    kernels = dict(BASE.kernels)
    groups: dict[str, dict[str, float]] = {"host": {}, "overlap": {}}
    for name, figure in values.items():
        group, _, field = name.partition(".")
        if group in groups:
            groups[group][field] = figure
            continue
        for architecture in ("blackwell", "hopper") if group == "both" else (group,):
            old = kernels[architecture]
            if field in old.joules_per_flop:
                new: dict[str, Any] = {"joules_per_flop": {**old.joules_per_flop, field: figure}}
            elif field == "scan_backward":  # forward and backward move together
                new = {field: figure, "scan": figure * old.scan / old.scan_backward}
            else:
                new = {field: min(figure, 1.0)}
            kernels[architecture] = msgspec.structs.replace(old, **new)
    groups["overlap"]["ep"] = min(groups["overlap"]["ep"], 0.95)
    parts = {name: msgspec.structs.replace(getattr(BASE, name), **fields) for name, fields in groups.items()}
    return msgspec.structs.replace(BASE, kernels=kernels, **parts)


def known_runs() -> list[Known]:
    """All runs that are asked for, equal ones together; SimuMax's are of the B200, Meta's of the H100."""
    together: dict[str, list[Run]] = {}
    for run in [*training_runs.bridge_runs(), *training_runs.simumax_runs()]:
        if not run.left_out:
            together.setdefault(f"{run.model} {run.gpu} {sorted(run.arguments.items())}", []).append(run)
    known = []
    for runs in together.values():
        first, mean = runs[0], sum(run.seconds for run in runs) / len(runs)
        base = first.name.partition(",")[0] if "/" in first.model else first.model
        known.append(Known(base, first.gpu, build_training(first.model, first.gpu, first.arguments), mean, len(runs)))
    for published, arguments in training_runs.llama_runs():
        question = build_training("llama-3.1-405b", "h100-sxm", arguments)
        seconds = training_runs.step_seconds(*question) * training_runs.llama_utilization(arguments) / published["mfu"]
        known.append(Known("llama-3.1-405b", "h100-sxm", question, seconds, 1))
    return known


def errors(values: dict[str, float], known: Iterable[Known]) -> np.ndarray:
    """Logarithms of predicted over published seconds."""
    _constants[0] = with_values(values)
    return np.array([math.log(training_runs.step_seconds(*one.question) / one.seconds) for one in known])


def refits(known: list[Known]) -> list[tuple[str, int, float]]:
    """What was left out, its runs, and their mean error."""
    names = list(PRIOR)
    at = {name: value(BASE, name) for name in names}
    start = errors(at, known)
    slopes = np.array([(errors({**at, name: at[name] * 1.1}, known) - start) / math.log(1.1) for name in names]).T
    runs = np.array([one.runs for one in known], dtype=float)
    weights = np.sqrt(runs / np.maximum(np.abs(start), NOISE)) / math.sqrt(NOISE)  # far ones count less
    away = np.array([math.log(at[name] / PRIOR[name]) for name in names])
    rows: list[tuple[str, int, float]] = []
    for label, key in (("all models", lambda one: one.model), ("all gpus", lambda one: one.gpu)):
        rows += _left_out(known, key, label, names, at, start, slopes, weights, away)
    return rows


def _left_out(
    known: list[Known],
    key: Callable[[Known], str],
    label: str,
    names: list[str],
    at: dict[str, float],
    start: np.ndarray,
    slopes: np.ndarray,
    weights: np.ndarray,
    away: np.ndarray,
) -> list[tuple[str, int, float]]:
    rows, total, count = [], 0.0, 0
    for group in sorted({key(one) for one in known}):
        kept = np.array([key(one) != group for one in known])
        left = np.vstack([weights[kept, None] * slopes[kept], np.eye(len(names)) / SPREAD])
        right = -np.concatenate([weights[kept] * start[kept], away / SPREAD])
        step = np.linalg.lstsq(left, right, rcond=None)[0]
        values = {name: at[name] * math.exp(move) for name, move in zip(names, step, strict=True)}
        out = [one for one in known if key(one) == group]
        sizes = np.abs(np.expm1(errors(values, out)))
        runs = [one.runs for one in out]
        rows.append((group, sum(runs), float(np.average(sizes, weights=runs))))
        total, count = total + float(np.dot(sizes, runs)), count + sum(runs)
    return [*rows, (label, count, total / count)]


def main() -> None:
    """Refit, and write what was left out."""
    for module in (passes, training_kernels, iteration, training_memory):
        module.training_constants = lambda: _constants[0]  # type: ignore[attr-defined]
    rows = refits(known_runs())
    with (DATA / "training_left_out.csv").open("w", encoding="utf-8", newline="") as file:
        file.write("# Written by benchmarks/training_fit.py: errors of runs that were left out of the fit.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("left_out", "runs", "error"))
        writer.writerows((LABELS.get(name, name), runs, f"{error:.4f}") for name, runs, error in rows)
    for name, runs, error in rows:
        print(f"{LABELS.get(name, name):<28} {runs:>4} {error:.1%}")


if __name__ == "__main__":
    main()
