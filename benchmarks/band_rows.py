"""Predicted beside measured, with what decides the class of each row: benchmarks/data/predictions.csv.

write(predictions())                 # one in four of the closed loops is simulated: minutes
write(predictions("rows.csv"))       # takes the rows that `benchmarks/serving.py --rows` wrote instead
read()[0].traits.engine

Engine steps and simulated servers as docs/accuracy.md compares them; and some of both predicted once more without the
kernel tables of their GPU, of its generation, and of every GPU, which says how well a GPU without tables is met.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import engine_steps
import serving
from measurements import OPTIONAL, closed_loops, measured_model

from inferometer.costs.kernels.registry import left_out
from inferometer.inference.expected_error import HOST_SHARE, METRICS, PredictionTraits, traits_of
from inferometer.inference.request import Request, build_request
from inferometer.inference.weights import parameters
from inferometer.specs.arguments import arguments
from inferometer.specs.plan_args import PlanArgs

ROWS = Path(__file__).parent / "data" / "predictions.csv"
HOPPER, BLACKWELL = ("h100-sxm", "h200"), ("b200",)
EVERY = ("a100-sxm-80gb", "b200", "h100-sxm", "h200", "l40s", "rtx4090")
ONE_IN = 4  # of the closed loops are simulated where no file of rows is given
ONE_IN_HIDDEN = 12  # of them are predicted again without tables
ONE_IN_STEPS = 3  # of the engine's steps, too
ANSWER = 128  # tokens of the answers that a static batch's E2E is of
PLAN = frozenset(arguments(PlanArgs))
OWN_MACHINES = {  # by parts of a run's name
    **dict.fromkeys(("ernie", "nemotron-h", "fp8-r20"), "11"),
    "phi-3.5": "16",
    **dict.fromkeys(("falcon-h1", "olmoe"), "17"),
    **dict.fromkeys(("granite-4.0-h", "qwen3-235b"), "18"),
    "same_r4": "3",
    "online": "3",
    "http": "2",
    "fp8-trace": "5",
    "plan": "4",
}
_process = ExitStack()  # what a process of its own leaves out as long as it lives


class Prediction(NamedTuple):
    """One measured run: what it is, and ms that were measured and predicted; None where there is no such figure."""

    load: str
    traits: PredictionTraits
    model: str  # the network, whatever its checkpoint's name
    machine: str  # that it was measured on, or the list that it comes from
    chosen: bool  # a constant was chosen with it
    waits: bool  # a static batch whose steps wait for the host
    hidden: bool  # predicted without kernel tables that there are
    measured: dict[str, float]
    predicted: dict[str, float]


HEAD = [
    "load",
    *PredictionTraits._fields,
    "model",
    "machine",
    "chosen",
    "waits",
    "hidden",
    *(f"{w}_{m}_ms" for m in METRICS for w in ("measured", "predicted")),
]


def write(rows: Iterable[Prediction], path: Path = ROWS) -> None:
    """Four digits of each figure, in an order of its own, so that a change shows."""
    lines = sorted(
        [
            [row.load, *row.traits, row.model, row.machine, *(str(int(x)) for x in (row.chosen, row.waits, row.hidden))]
            + [f"{x[m]:.4g}" if m in row.measured else "" for m in METRICS for x in (row.measured, row.predicted)]
            for row in rows
        ]
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *lines])


def read(path: Path = ROWS) -> list[Prediction]:
    """The rows of the file: ``read()[0].traits.engine``"""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Prediction(
                row["load"],
                PredictionTraits(*(row[name] for name in PredictionTraits._fields)),
                row["model"],
                row["machine"],
                *(row[name] == "1" for name in ("chosen", "waits", "hidden")),
                *(
                    {m: float(row[f"{word}_{m}_ms"]) for m in METRICS if row[f"{word}_{m}_ms"]}
                    for word in ("measured", "predicted")
                ),
            )
            for row in csv.DictReader(file)
        ]


def listed(cases: Iterable[serving.Case]) -> list[serving.Row]:
    """Closed loops with what the file says of them, so that nothing is simulated: ``listed(serving.silicon())``"""
    known = {
        (row.load, row.traits.gpu, *(row.measured.get(m) for m in ("ttft", "tpot"))): row.predicted
        for row in read()
        if not row.hidden
    }
    rows = []
    for case in cases:
        load = "disaggregated" if case.set == "disaggregated" else "online"
        key = (load, case.gpu, *(float(f"{case.measured[m]:.4g}") for m in ("ttft", "tpot")))
        ours = known.get(key, {}) if case.build[0] != "unknown" else {}
        rows.append(serving.Row(case, {m: ours[m] for m in ("ttft", "tpot") if m in ours}, {}, "", 0.0))
    return rows


def network_name(request: Request) -> str:
    """``llama 8.0B``: checkpoints of one network in several formats are one model."""
    return f"{request.model.family} {parameters(request.model) / 1e9:.1f}B"


# ------------------------------------------------------------------ steps of the engine


def step_rows() -> Iterator[Prediction]:
    """Static batches on H200s, with the tables of the GPU, without them, and so on."""
    for hidden in ((), ("h200",), HOPPER):  # with no table at all it is the GPU that the engine's constants are of
        with left_out(*hidden):
            for path in engine_steps.SETS.values():
                for machine in engine_steps.machines(path):
                    for key, parts in engine_steps.rows(path, machine).items():
                        yield from list(_steps(machine, key, parts, bool(hidden)))[:: ONE_IN_STEPS if hidden else 1]


def _steps(machine: str, key: tuple[str, ...], parts: engine_steps.Rows, hidden: bool) -> Iterator[Prediction]:
    """The rows of one model; a batch whose prompts and steps were both timed has an E2E, too."""
    if key[0] == "deepseek-v2-lite" and parts.keys() == {"decode"}:
        return  # untrained routers choose few experts
    bound = engine_steps.bound_plan.__wrapped__(*key)
    request = engine_steps.measured_request(*key)
    what, name = traits_of(request), network_name(request)
    times: dict[str, dict[tuple[float, float], _Timed]] = defaultdict(dict)
    for kind, part in parts.items():
        metric, activity = "tpot" if kind == "decode" else "ttft", engine_steps.activity(bound, kind, part)
        ours = activity.seconds + (0.0 if kind == "decode" else bound.engine.request_overhead)
        waiting = activity.busy < (1 - HOST_SHARE) * activity.seconds
        chosen = not hidden and engine_steps.chosen_on(machine, key[0], kind)
        for batch, length, seconds, took, waits in zip(*part, ours, waiting, strict=True):
            times[metric][batch, length] = one = _Timed(seconds * 1e3, float(took) * 1e3, bool(waits), chosen)
            yield one.row(what, name, machine, hidden, metric)
    for (batch, context), step in times["tpot"].items():
        first = next((t for (b, n), t in times["ttft"].items() if b == batch and 0 < context - n < 64), None)
        if first is not None:
            more = ANSWER - 1
            whole = step._replace(
                measured=first.measured + more * step.measured, predicted=first.predicted + more * step.predicted
            )
            yield whole.row(what, name, machine, hidden, "e2el")


class _Timed(NamedTuple):
    """ms of a step or a first token."""

    measured: float
    predicted: float
    waits: bool
    chosen: bool

    def row(self, what: PredictionTraits, name: str, machine: str, hidden: bool, metric: str) -> Prediction:
        both = {metric: self.measured}, {metric: self.predicted}
        return Prediction("static", what, name, machine, self.chosen, self.waits, hidden, *both)


# ------------------------------------------------------------------ servers


def request_of(case: serving.Case) -> Request:
    """The plan of a case; of disaggregated ones, that of their decode pool."""
    options = {**case.options, **(case.options.get("pools") or [{}])[-1]}
    gpu = options.pop("gpu", case.gpu)
    return build_request(measured_model(case.model), gpu, **{k: v for k, v in options.items() if k in PLAN})


def server_row(case: serving.Case, predicted: dict[str, float], hidden: bool) -> Prediction:
    """A simulated case as a row."""
    request = request_of(case)
    sides = [dict(case.measured), dict(predicted)]
    for side in sides:
        side.setdefault("tpot", side.get("itl", 0.0))
        if "e2el" not in case.measured:  # the loops' own answers have their lengths
            side["e2el"] = side["ttft"] + (case.build[2] - 1) * side["tpot"]
    load = "disaggregated" if case.set == "disaggregated" else "online"
    both = [m for m in METRICS if all(side.get(m) for side in sides)]
    measured, ours = ({m: side[m] for m in both} for side in sides)
    what, name, machine = traits_of(request), network_name(request), _machine(case)
    return Prediction(load, what, name, machine, False, False, hidden, measured, ours)


def _machine(case: serving.Case) -> str:
    """The list that a public run comes from, or which H200 it was (benchmarks/data/README.md)."""
    if case.set in ("silicon", "disaggregated"):
        return _lists()[case.name].partition("-")[0]
    if case.set != "own":
        return {"h200": "first", "live": "11"}.get(case.set, case.set)
    return next(machine for part, machine in OWN_MACHINES.items() if part in case.name)


@cache
def _lists() -> dict[str, str]:
    return {row["run"]: row["source"] for row in closed_loops()}


def read_serving(path: str) -> Iterator[Prediction]:
    """The rows that `benchmarks/serving.py --rows` wrote."""
    names = [name for name in serving.SETS if name not in OPTIONAL]
    cases = {(case.set, case.name): case for name in names for case in serving.SETS[name]()}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ours = {m: float(row[f"predicted_{m}_ms"]) for m in serving.LABELS if row[f"predicted_{m}_ms"]}
            if ours and (row["set"], row["name"]) in cases:
                yield server_row(cases[row["set"], row["name"]], ours, False)


def hidden_for(gpu: str) -> list[tuple[str, ...]]:
    """What is left out to see a GPU without tables: its own, those of its generation, all."""
    same = HOPPER if gpu in HOPPER else BLACKWELL
    alone = [(gpu,)] if len(same) > 1 else []
    return [*alone, same, *([EVERY] if gpu != "h200" else [])]  # the engine's constants are an H200's


def _hide(devices: tuple[str, ...]) -> None:
    _process.enter_context(left_out(*devices))


def _run(case: serving.Case) -> tuple[serving.Case, dict[str, float], PredictionTraits]:
    return case, serving.run(case).predicted, traits_of(request_of(case))


def simulated(cases: list[serving.Case], hidden: tuple[str, ...], processes: int) -> Iterator[Prediction]:
    """Cases simulated in processes that do not see some tables; what gives no answer is no row."""
    with ProcessPoolExecutor(processes, initializer=_hide, initargs=(hidden,)) as pool:
        for case, ours, what in pool.map(_run, cases, chunksize=2):
            if ours:
                yield server_row(case, ours, bool(hidden))._replace(traits=what)


def server_rows(path: str | None, processes: int) -> Iterator[Prediction]:
    """All servers, from a file or simulated; and some without tables."""
    loops = list(serving.silicon())
    if path:
        yield from read_serving(path)
    else:
        others = [case for name in ("h200", "own", "live", "rtx4090") for case in serving.SETS[name]()]
        yield from simulated([*others, *loops[::ONE_IN]], (), processes)
    by_hidden: dict[tuple[str, ...], list[serving.Case]] = defaultdict(list)
    for case in loops[::ONE_IN_HIDDEN]:
        for hidden in hidden_for(case.gpu):
            by_hidden[hidden].append(case)
    for hidden, cases in by_hidden.items():
        yield from simulated(cases, hidden, processes)


def predictions(rows: str | None = None, processes: int = 2) -> list[Prediction]:
    """Everything anew; ``rows``: what `benchmarks/serving.py --every 1 --rows FILE` wrote."""
    return [*step_rows(), *server_rows(rows, processes)]
