"""The simulator against servers that were measured: five sets, one command.

    python benchmarks/serving.py                        prints the tables; of the silicon set every tenth run
    python benchmarks/serving.py --every 1              all runs: the tables of docs/accuracy.md
    python benchmarks/serving.py --write                puts them there
    python benchmarks/serving.py --set h200 --set h100  some sets only
    python benchmarks/serving.py --set silicon --every 10 --rows rows.csv   every tenth run, and all figures as CSV

The measurements are not part of this repository; they are looked for in the folder that INFEROMETER_SHARED names
(default: ``shared`` beside the repository). Nothing here is fitted: queueing is simulated.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from recipes import engine, one_length, recipe

from inferometer.base.errors import InferometerError
from inferometer.serving.metrics import metrics
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace, read_trace
from inferometer.validation.validate import compare

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("INFEROMETER_SHARED", ROOT.parent / "shared"))
MEASURED = SHARED / "measured"
PAGE = ROOT / "docs" / "accuracy.md"
LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
# The runs' profiles have other numbers of prompts under keys that inference-perf did not know then and passed over:
# it went round its default of 10 system prompts with 10 questions each. The configuration it wrote beside run
# 20260217-155451 says so (github.com/inference-sim/training), and so does that run's mean prompt of 591.63 tokens.
GROUPS, QUESTIONS = 10, 10


class Case(NamedTuple):
    """One measured run: what to simulate, and the mean latencies that were measured, in ms."""

    set: str
    name: str
    model: str
    gpu: str
    options: dict[str, Any]
    build: tuple[Any, ...]  # what the requests are made from: small, so that it can go to another process
    measured: dict[str, float]
    peer: dict[str, float]  # what another tool predicts


class Row(NamedTuple):
    """A case and what the simulation gave for it, or why it gave nothing."""

    case: Case
    predicted: dict[str, float]
    per_request: dict[str, float]  # mean absolute relative error over the requests, where they were measured singly
    reason: str
    seconds: float

    def error(self, metric: str) -> float | None:
        """Relative error of the mean; None where one side is missing."""
        truth, ours = self.case.measured.get(metric), self.predicted.get(metric)
        return None if not truth or ours is None else ours / truth - 1


# ------------------------------------------------------------------ the sets


def h200() -> Iterator[Case]:
    """vLLM 0.25.1 on one H200, engine in process, open loop."""
    for path in sorted((MEASURED / "h200_vllm").glob("*_r*.csv")):
        options = {
            "frontend": "in-process",
            "engine": "vllm@0.25",
            "host_profile": "h200-vm",
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "max_model_len": 16384,
            "gpu_memory_utilization": 0.92,
        }
        yield Case("h200", path.stem, path.stem.split("_")[0], "h200", options, ("file", str(path)), _means(path), {})


def own() -> Iterator[Case]:
    """vLLM 0.25.1 on two other H200s (`benchmarks/data`): online in process, and by HTTP as `bench` saw it."""
    for path in sorted((ROOT / "benchmarks" / "data").glob("h200_*_*_*.csv")):
        _, way, model, load = path.stem.split("_", 3)
        if way in ("online", "http"):
            options = {
                "frontend": "http" if way == "http" else "in-process",
                "engine": "vllm@0.25",
                "host_profile": "h200-vm",
                "max_num_seqs": 256,
                "max_num_batched_tokens": 8192,
                "max_model_len": 16384,
                "gpu_memory_utilization": 0.9,
                "enable_prefix_caching": False,
            }
            yield Case("own", f"{model} {way} {load}", model, "h200", options, ("file", str(path)), _means(path), {})


def h100() -> Iterator[Case]:
    """vLLM 0.15.1 on H100, over HTTP; the requests are built from the load generator's settings."""
    for e in json.loads((MEASURED / "vllm015_h100.json").read_text(encoding="utf-8"))["experiments"]:
        load, seen = e["workload"], e["measured"]["overall"]
        model = e["model"].replace("-FP8-dynamic", "")
        options = {
            "frontend": "http",
            "engine": "vllm@0.15",
            "tensor_parallel_size": e["tp"],
            "max_num_seqs": e["max_num_seqs"],
            "max_num_batched_tokens": e["max_num_batched_tokens"],
            "block_size": e["block_size"],
            "num_gpu_blocks_override": e["total_gpu_kv_blocks"],
            "quantization": "fp8" if e["precision"] == "FP8" else None,
            "dtype": "fp16" if e["precision"] == "FP16" else "auto",
        }
        shape = (
            "shared",
            load["system_prompt_len"],
            load["question_len"],
            load["output_len"],
            tuple((s["rate_rps"], s["duration_s"]) for s in load["stages"]),
            e["block_size"],
        )
        # where an event carried several tokens the gap between events is not the one between tokens
        itl = seen["itl_mean_ms"]
        if e["derived"]["implied_output_tokens"] < 0.9 * load["output_len"]:
            itl = (seen["e2e_mean_ms"] - seen["ttft_mean_ms"]) / (load["output_len"] - 1)
        truth = {"ttft": seen["ttft_mean_ms"], "itl": itl, "e2el": seen["e2e_mean_ms"]}
        name = f"{e['id']} {model.rpartition('/')[2]} tp{e['tp']} {load['name']}"
        yield Case("h100", name, model, "h100-sxm", options, shape, truth, {})


def rtx4090() -> Iterator[Case]:
    """vLLM 0.19.0 on an RTX 4090: an overloaded queue with KV pressure."""
    path = MEASURED / "llmservingsim" / "RTX4090_Llama-3.1-8B.csv"
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    options = {
        "frontend": "in-process",
        "engine": "vllm@0.19",
        "max_num_seqs": about["max_num_seqs"],
        "max_num_batched_tokens": about["max_num_batched_tokens"],
        "num_gpu_blocks_override": about["kv_cache"]["num_gpu_blocks"],
        "block_size": about["kv_cache"]["block_size"],
    }
    yield Case("rtx4090", path.stem, about["model"], "rtx4090", options, ("file", str(path)), _means(path), {})


def rtx3090() -> Iterator[Case]:
    """Llama-2-7B in fp16 on an RTX 3090, one request at a time."""
    path = MEASURED / "rtx3090" / "llama2-7b_tp1_chat.csv"
    options = {"frontend": "in-process", "dtype": "fp16", "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    yield Case("rtx3090", path.stem, "llama-2-7b", "rtx3090", options, ("file", str(path)), _means(path), {})


GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200"}


def silicon() -> Iterator[Case]:
    """Closed loops on servers of five kinds: TensorRT-LLM, SGLang and vLLM, dense and mixtures."""
    with (MEASURED / "silicon_e2e.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["mode"] != "agg":
                continue
            options = {
                "frontend": "http",
                "engine": engine(row),
                "tensor_parallel_size": int(row["tp_size"]),
                "pipeline_parallel_size": int(row["pp_size"]),
                "quantization": row["quantization"],
                "data_parallel_size": int(row["attention_dp_size"]),
                "enable_expert_parallel": int(float(row["moe_ep_size"] or 1)) > 1,
            }
            least = 1.0 if one_length(row) else 0.8  # of the nominal lengths
            build = ("closed", int(row["isl"]), int(row["osl"]), least, int(float(row["silicon_concurrency"])))
            truth = {"ttft": float(row["silicon_ttft_ms"]), "tpot": float(row["silicon_tpot_ms"])}
            peer = {m: float(row[f"aic_{m}_ms"]) for m in ("ttft", "tpot") if row[f"aic_{m}_ms"]}
            yield Case(
                "silicon", row["id"], row["model_path"], GPUS[row["system"]], options | recipe(row), build, truth, peer
            )


SETS: dict[str, Callable[[], Iterator[Case]]] = {
    "h200": h200,
    "own": own,
    "h100": h100,
    "rtx4090": rtx4090,
    "rtx3090": rtx3090,
    "silicon": silicon,
}


def _means(path: Path) -> dict[str, float]:
    seen = read_trace(path).measured
    columns = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
    return {metric: float(np.nanmean(seen[column])) for metric, column in columns.items()}


# ------------------------------------------------------------------ requests


def requests(build: tuple[Any, ...]) -> tuple[Trace, int | None]:
    """The requests of a case, and how many of them are under way at most."""
    kind, *rest = build
    if kind == "file":
        return read_trace(rest[0]), None
    if kind == "shared":
        return _shared(*rest), None
    return _closed(*rest), rest[-1]


def _shared(system: int, question: int, output: int, stages: tuple[tuple[float, float], ...], size: int) -> Trace:
    """A load generator that goes round a fixed list of prompts: from the second round on, each is in the cache,
    unless answers have filled it meanwhile.

    Its "constant" rate has exponential gaps, scaled so that a stage lasts as long as it should.
    """
    rng = np.random.default_rng(0)
    arrival, start = [], 0.0
    for rate, lasts in stages:
        gaps = rng.exponential(1 / rate, int(rate * lasts))
        arrival.append(start + np.cumsum(gaps) * (lasts / gaps.sum()))
        start += lasts + 60.0  # the stage before has ended by then
    times = np.concatenate(arrival)
    order = rng.permutation(GROUPS * QUESTIONS)  # prompts are shuffled once
    heads, length = system // size, (system + question) // size
    prompts = [
        np.concatenate([np.arange(heads) + (p // QUESTIONS) * heads, 10**6 + p * length + np.arange(length - heads)])
        for p in order.tolist()
    ]
    count = len(times)
    return Trace(
        input_tokens=np.full(count, system + question),
        output_tokens=np.full(count, output),
        arrival_s=times,
        blocks=tuple(prompts[i % len(prompts)] for i in range(count)),
        block_tokens=size,
        source="load generator",
    )


def _closed(given: int, made: int, least: float, many: int) -> Trace:
    """A closed loop: ten times as many prompts as are under way, of ``least`` to 1.0 of the nominal lengths."""
    rng = np.random.default_rng(0)
    count = 10 * many
    return Trace(
        input_tokens=rng.integers(max(1, int(least * given)), given + 1, count),
        output_tokens=rng.integers(max(1, int(least * made)), made + 1, count),
        arrival_s=np.zeros(count),
        source="closed loop",
    )


def run(case: Case) -> Row:
    """Simulate a case; one that cannot be is a row with its reason."""
    start = time.perf_counter()
    trace, limit = requests(case.build)
    try:
        outcome = simulate(case.model, case.gpu, trace=trace, max_concurrency=limit, **case.options)
    except InferometerError as error:
        return Row(case, {}, {}, str(error), time.perf_counter() - start)
    means = metrics(outcome)
    ours = {m: means[f"mean_{m}_ms"] for m in LABELS if means[f"mean_{m}_ms"] is not None}
    reason = outcome.reason or (
        "" if means["completed"] else str(next(iter(outcome.rejected.values()), "nothing was served"))
    )
    errors = compare(trace, outcome).errors if trace.measured else {}
    each = {m: e.mape for m, e in errors.items() if e.mape is not None}
    return Row(case, ours, each, reason, time.perf_counter() - start)


# ------------------------------------------------------------------ tables


MANY = 40  # runs from which on a set is shown by engine and device, not run by run


def table(name: str, rows: list[Row]) -> list[str]:
    """The set's runs one by one, or by engine and device where they are many; and the sum."""
    answered = [row for row in rows if row.predicted]
    shown = [m for m in LABELS if any(m in row.case.measured for row in rows)]
    lines = [f"**{name}**: {SETS[name].__doc__ or ''}", ""]
    lines += _by_run(rows, shown) if len(rows) <= MANY else _by_engine(rows, shown)
    sums = [f"{LABELS[m]} {_summary(answered, m)}" for m in shown]
    lines += ["", f"{len(answered)} of {len(rows)} runs answered. " + "; ".join(sums) + "."]
    single = [m for m in LABELS if any(m in row.per_request for row in answered)]
    if single:
        per = [f"{LABELS[m]} {statistics.fmean(row.per_request[m] for row in answered):.1%}" for m in single]
        lines.append(f"Mean absolute error request by request: {', '.join(per)}.")
    if any(row.case.peer for row in rows):
        lines.append(_peers(rows))
    return [*lines, ""]


def _by_run(rows: list[Row], shown: list[str]) -> list[str]:
    return [
        "| run | " + " | ".join(f"{LABELS[m]} measured | predicted | error" for m in shown) + " |",
        "|---|" + "---:|---:|---:|" * len(shown),
        *(f"| {row.case.name} | " + " | ".join(_cells(row, m) for m in shown) + " |" for row in rows),
    ]


def _by_engine(rows: list[Row], shown: list[str]) -> list[str]:
    heads = " | ".join(f"{LABELS[m]} median | bias" for m in shown)
    lines = [f"| engine, GPU | runs | answered | {heads} |", "|---|---:|---:|" + "---:|---:|" * len(shown)]
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        name = str(row.case.options.get("engine")).partition("@")[0]
        parts[f"{name}, {row.case.gpu}"].append(row)
    for name, part in sorted(parts.items()):
        counts = f"{len(part)} | {sum(bool(row.predicted) for row in part)}"
        lines.append(f"| {name} | {counts} | " + " | ".join(_middle(part, m) for m in shown) + " |")
    return lines


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


def _summary(rows: list[Row], metric: str) -> str:
    offs = _offs(rows, metric)
    if not offs:
        return "–"
    sizes = [abs(off) for off in offs]
    return (
        f"mean error {statistics.fmean(sizes):.1%}, median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}, "
        f"bias {statistics.fmean(offs):+.1%}"
    )


def _peers(rows: list[Row]) -> str:
    """Medians on the rows that the other tool answers, too."""
    sentences = []
    both = [row for row in rows if row.case.peer and row.predicted]
    for metric in ("ttft", "tpot"):
        rated = [row for row in both if metric in row.case.peer]
        if rated:
            theirs = statistics.median(abs(r.case.peer[metric] / r.case.measured[metric] - 1) for r in rated)
            ours = statistics.median(abs(off) for off in _offs(rated, metric))
            sentences.append(f"{LABELS[metric]} {ours:.1%} (AIConfigurator {theirs:.1%})")
    return f"Medians on the {len(both)} rows that AIConfigurator answers, too: {', '.join(sentences)}."


def write_rows(path: str, rows: list[Row]) -> None:
    """All figures, one line per case, for a closer look."""
    keys = sorted({key for row in rows for key in row.case.options})
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        pairs = [f"{word}_{m}_ms" for m in LABELS for word in ("measured", "predicted")]
        ends = [*(f"{m}_error" for m in LABELS), "peer_ttft_ms", "peer_tpot_ms", "reason", "seconds"]
        writer.writerow(["set", "name", "model", "gpu", *keys, "input_len", "output_len", "concurrency", *pairs, *ends])
        for row in rows:
            case = row.case
            values = [x.get(m) for m in LABELS for x in (case.measured, row.predicted)]
            sizes = (*case.build[1:3], case.build[-1]) if case.build[0] == "closed" else ("", "", "")
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
                    case.peer.get("ttft"),
                    case.peer.get("tpot"),
                    row.reason,
                    round(row.seconds, 3),
                ]
            )


def section(name: str, rows: list[Row]) -> str:
    """What stands between the page's markers."""
    return f"<!-- serving-{name}:begin -->\n" + "\n".join(table(name, rows)) + f"<!-- serving-{name}:end -->"


def put(page: str, name: str, text: str) -> str:
    """The page with a set's section in its place; a page without one gets it at its end."""
    begin, end = f"<!-- serving-{name}:begin -->", f"<!-- serving-{name}:end -->"
    if begin not in page:
        return f"{page.rstrip()}\n\n{text}\n"
    before, _, rest = page.partition(begin)
    return before + text + rest.partition(end)[2]


def main() -> None:
    """Simulate the chosen sets, print the tables, and write them with ``--write``."""
    parser = argparse.ArgumentParser(description="The simulator against servers that were measured.")
    parser.add_argument("--set", action="append", choices=list(SETS), help="some sets only")
    parser.add_argument("--every", type=int, help="of the silicon set, every so many runs  [default: 10; --write: 1]")
    parser.add_argument("--rows", help="all figures as CSV")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if not MEASURED.is_dir():
        print(f"No server is compared: {MEASURED} is not there; INFEROMETER_SHARED names another folder")
        return
    every = given.every or (1 if given.write else 10)
    names = given.set or list(SETS)
    cases = [
        case for name in names for number, case in enumerate(SETS[name]()) if name != "silicon" or number % every == 0
    ]
    start = time.perf_counter()
    if given.processes > 1 and len(cases) > 1:
        with ProcessPoolExecutor(given.processes) as pool:
            rows = list(pool.map(run, cases, chunksize=max(1, min(8, len(cases) // (4 * given.processes)))))
    else:
        rows = [run(case) for case in cases]
    page = PAGE.read_text(encoding="utf-8")
    for name in names:
        text = section(name, [row for row in rows if row.case.set == name])
        print(text)
        page = put(page, name, text)
    print(f"{len(rows)} runs in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if given.rows:
        write_rows(given.rows, rows)
    if given.write:
        if every != 1:
            sys.exit("--write takes all rows: leave --every away")
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
