"""The simulator against servers that were measured: eight sets, one command.

    python benchmarks/serving.py                        prints the tables; of the two large sets every tenth run
    python benchmarks/serving.py --every 1              all runs: the tables of docs/accuracy
    python benchmarks/serving.py --write                puts them there
    python benchmarks/serving.py --set h200 --set h100  some sets only
    python benchmarks/serving.py --set silicon --every 10 --rows rows.csv   every tenth run, and all figures as CSV

The measurements are in benchmarks/data; the sets h100 and rtx3090 have no licence to travel with the project and are
compared where INFEROMETER_SHARED names their folder. Nothing here is fitted: queueing is simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import accuracy_page
import numpy as np
from disaggregated import started
from measurements import DATA, closed_loops, elsewhere, measured_model
from recipes import checkpoint, engine, one_length, recipe, unlike
from serving_tables import LABELS, read_rows, table, write_rows

from inferometer.base.errors import InferometerError
from inferometer.serving.metrics import metrics
from inferometer.serving.outcome import Outcome
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace, read_trace
from inferometer.validation.validate import compare

# The runs' profiles have other numbers of prompts under keys that inference-perf did not know then and passed over:
# it went round its default of 10 system prompts with 10 questions each. The configuration it wrote beside run
# 20260217-155451 says so (github.com/inference-sim/training), and so does that run's mean prompt of 591.63 tokens.
GROUPS, QUESTIONS = 10, 10
LIVE = DATA / "h200_live"


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


IN_PROCESS: dict[str, Any] = {  # how the engine was started behind its asynchronous front end
    "frontend": "in-process",
    "engine": "vllm@0.25",
    "host_profile": "h200-vm",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 16384,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": False,
}
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "nemotron-h-8b": {"max_num_seqs": 128},
    "falcon-h1-7b": {"max_num_seqs": 128},
    "granite-4.0-h-small": {"max_num_seqs": 128},
    "olmoe-1b-7b": {"max_model_len": 4096},
}
FP8 = {"quantization": "fp8", "kv_cache_dtype": "fp8"}


def h200() -> Iterator[Case]:
    """vLLM 0.25.1 on one H200, engine in process, open loop."""
    for path in sorted(DATA.glob("h200_first_*.csv")):
        name = path.stem.removeprefix("h200_first_")
        options = {**IN_PROCESS, "gpu_memory_utilization": 0.92, "enable_prefix_caching": True}
        yield Case("h200", name, name.partition("_")[0], "h200", options, ("file", str(path)), _means(path), {})


def own() -> Iterator[Case]:
    """vLLM 0.25.1 on eight more H200s (`benchmarks/data`): in process, by HTTP, and plans of `search -o` as written."""
    for path in sorted(DATA.glob("h200_*_*_*.csv")):
        _, way, model, load = path.stem.split("_", 3)
        if way in ("online", "http"):
            options = {**IN_PROCESS, "frontend": "http" if way == "http" else "in-process"}
            options |= OWN_OPTIONS.get(model, {})
            options |= {**FP8, "enable_prefix_caching": True} if load.startswith("fp8") else {}
            yield Case("own", f"{model} {way} {load}", model, "h200", options, ("file", str(path)), _means(path), {})
        elif way == "plan":  # the engine's own defaults, and the one limit that the written command sets
            options = {"frontend": "http", "engine": "vllm@0.25", "max_num_batched_tokens": 16384}
            options |= FP8 if load.startswith("fp8") else {}
            yield Case("own", f"{model} {way} {load}", model, "h200", options, ("file", str(path)), _means(path), {})


def live() -> Iterator[Case]:
    """One more H200, Llama-3.1-8B: two rates, servers with a fault, agents' sessions with and without CPU memory."""
    faults: dict[str, dict[str, Any]] = {
        "budget512": {"max_num_batched_tokens": 512},
        "smallkv": {"num_gpu_blocks_override": 1664},
        "eager": {"max_cudagraph_capture_size": 0},
        "sessions_on": {"num_gpu_blocks_override": 3072, "kv_offloading_size": 28.0, "enable_prefix_caching": True},
        "sessions_off": {"num_gpu_blocks_override": 3072, "enable_prefix_caching": True},
    }
    for name in ("r4", "r8", "healthy", *faults):
        path = LIVE / f"{name}.csv"
        options = {**IN_PROCESS, "num_gpu_blocks_override": 6144, **faults.get(name, {})}
        requests = LIVE / "sessions.jsonl" if name.startswith("sessions") else path
        yield Case("live", name, "llama-3.1-8b", "h200", options, ("file", str(requests)), _means(path), {})


def h100() -> Iterator[Case]:
    """vLLM 0.15.1 on H100, over HTTP; the requests are built from the load generator's settings."""
    path = elsewhere("measured/vllm015_h100.json")
    for e in json.loads(path.read_text(encoding="utf-8"))["experiments"] if path else ():
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
    path, model = DATA / "rtx4090_online_llama-3.1-8b.csv", "meta-llama/Llama-3.1-8B"
    options = {
        "frontend": "in-process",
        "engine": "vllm@0.19",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks_override": 2588,
        "block_size": 16,
    }
    yield Case("rtx4090", "RTX4090_Llama-3.1-8B", model, "rtx4090", options, ("file", str(path)), _means(path), {})


def rtx3090() -> Iterator[Case]:
    """Llama-2-7B in fp16 on an RTX 3090, one request at a time."""
    path = elsewhere("measured/rtx3090/llama2-7b_tp1_chat.csv")
    if path is None:
        return
    options = {"frontend": "in-process", "dtype": "fp16", "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    yield Case("rtx3090", path.stem, "llama-2-7b", "rtx3090", options, ("file", str(path)), _means(path), {})


def silicon() -> Iterator[Case]:
    """Closed loops on servers of five kinds: TensorRT-LLM, SGLang and vLLM, dense and mixtures."""
    for row in closed_loops():
        if row["disaggregated"] == "1":
            continue
        options = {
            "frontend": "http",
            "engine": engine(row),
            "tensor_parallel_size": int(row["tensor_parallel_size"]),
            "pipeline_parallel_size": int(row["pipeline_parallel_size"]),
            "quantization": row["quantization"],
            "data_parallel_size": int(row["data_parallel_size"]),
            "enable_expert_parallel": int(row["expert_parallel_size"]) > 1,
        }
        least = 1.0 if one_length(row) else 0.8  # of the nominal lengths
        build = ("closed", int(row["input_len"]), int(row["output_len"]), least, int(row["max_concurrency"]))
        truth, peer = _latencies(row), _latencies(row, "aiconfigurator_")
        options |= recipe(row)
        if unlike(row):
            build = ("unknown", unlike(row))
        served = checkpoint(row)
        if served != row["model"]:
            options["quantization"] = None  # as its config.json has it, layer by layer
        yield Case("silicon", row["run"], served, row["gpu"], options, build, truth, peer)


FEW = 64  # requests under way up to which a disaggregated row is simulated whole, with all its prompts
ONE_IN = 4  # of the rows with more, which take a minute each, and three rounds of prompts


def disaggregated() -> Iterator[Case]:
    """Closed loops on servers that prefill and decode on different GPUs."""
    rows = [row for row in closed_loops() if row["disaggregated"] == "1"]
    options, crowded = started(rows), 0
    for row in rows:
        given, concurrency = options[row["run"]], int(row["max_concurrency"] or 0)
        if isinstance(given, dict) and concurrency > FEW:
            crowded += 1
            given = (
                given
                if crowded % ONE_IN == 1 % ONE_IN
                else f"over {FEW} requests under way: one in {ONE_IN} is simulated"
            )
        elif isinstance(given, dict) and not concurrency:
            given = "no load is given"
        truth, peer = _latencies(row), _latencies(row, "aiconfigurator_")
        build: tuple[Any, ...] = (
            ("unknown", given)
            if isinstance(given, str)
            else (
                "closed" if concurrency <= FEW else "rounds",
                int(row["input_len"]),
                int(row["output_len"]),
                1.0 if one_length(row) else 0.8,
                concurrency,
            )
        )
        options_of = {"engine": engine(row)} if isinstance(given, str) else given
        yield Case("disaggregated", row["run"], row["model"], row["gpu"], options_of, build, truth, peer)


def _latencies(row: Mapping[str, str], tool: str = "") -> dict[str, float]:
    """ms of a closed loop as measured, or as a tool predicts them, to the nanosecond as the file has them."""
    return {m: round(1e3 * float(row[f"{tool}{m}_s"]), 6) for m in ("ttft", "tpot") if row[f"{tool}{m}_s"]}


SETS: dict[str, Callable[[], Iterator[Case]]] = {
    "h200": h200,
    "own": own,
    "live": live,
    "h100": h100,
    "rtx4090": rtx4090,
    "rtx3090": rtx3090,
    "silicon": silicon,
    "disaggregated": disaggregated,
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
    return _closed(*rest, rounds=3 if kind == "rounds" else 10), rest[-1]


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


def _closed(given: int, made: int, least: float, many: int, rounds: int) -> Trace:
    """A closed loop: ``rounds`` times as many prompts as are under way, of ``least`` to 1.0 of the nominal lengths."""
    rng = np.random.default_rng(0)
    count = rounds * many
    return Trace(
        input_tokens=rng.integers(max(1, int(least * given)), given + 1, count),
        output_tokens=rng.integers(max(1, int(least * made)), made + 1, count),
        arrival_s=np.zeros(count),
        source="closed loop",
    )


def run(case: Case) -> Row:
    """Simulate a case; one that cannot be is a row with its reason."""
    start = time.perf_counter()
    if case.build[0] == "unknown":
        return Row(case, {}, {}, case.build[1], 0.0)
    trace, limit = requests(case.build)
    try:
        outcome = simulate(measured_model(case.model), case.gpu, trace=trace, max_concurrency=limit, **case.options)
    except InferometerError as error:
        return Row(case, {}, {}, str(error), time.perf_counter() - start)
    means = metrics(outcome)
    if case.build[0] == "rounds":
        means |= _ten_rounds(outcome, limit or 1)
    ours = {m: means[f"mean_{m}_ms"] for m in LABELS if means[f"mean_{m}_ms"] is not None}
    reason = outcome.reason or (
        "" if means["completed"] else str(next(iter(outcome.rejected.values()), "nothing was served"))
    )
    errors = compare(trace, outcome).errors if trace.measured else {}
    each = {m: e.mape for m, e in errors.items() if e.mape is not None}
    return Row(case, ours, each, reason, time.perf_counter() - start)


def _ten_rounds(outcome: Outcome, many: int) -> dict[str, float]:
    """Means over ten rounds of requests from three: the first come at once, the last runs dry, eight are between."""
    ttft = outcome.first_token_s - outcome.arrival_s
    tpot = (outcome.finished_s - outcome.first_token_s) / np.maximum(outcome.output_tokens - 1, 1)
    weights = np.repeat([0.1, 0.8, 0.1], many) / many
    return {
        f"mean_{name}_ms": 1e3 * float(np.nansum(values * weights) / weights[~np.isnan(values)].sum())
        for name, values in (("ttft", ttft), ("tpot", tpot))
    }


# ------------------------------------------------------------------ tables


LARGE = ("silicon", "disaggregated")  # sets of which ``--every`` takes a part


def section(name: str, rows: list[Row]) -> str:
    """What stands between the page's markers."""
    return "\n".join(table(name, SETS[name].__doc__ or "", rows)).rstrip("\n")


def answers(cases: list[Case], processes: int = 2) -> list[Row]:
    """All cases simulated, in as many processes; runs that two lists have are simulated once."""
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        alike[repr((case.model, case.gpu, case.options, case.build))].append(case)
    each = [same[0] for same in alike.values()]
    if processes > 1 and len(each) > 1:
        with ProcessPoolExecutor(processes) as pool:
            rows = list(pool.map(run, each, chunksize=2))
    else:
        rows = [run(case) for case in each]
    return [row._replace(case=case) for row, same in zip(rows, alike.values(), strict=True) for case in same]


def chosen_cases(names: list[str], every: int) -> list[Case]:
    """The cases of some sets; of the two large ones every so many."""
    return [
        case for name in names for number, case in enumerate(SETS[name]()) if name not in LARGE or number % every == 0
    ]


def saved(*paths: str | Path) -> list[Row]:
    """What ``--rows`` wrote into some files, without simulating anything again."""
    cases = {(case.set, case.name): case for case in chosen_cases(list(SETS), 1)}
    return [
        Row(cases[key], predicted, each, reason, seconds)
        for path in paths
        for key, predicted, each, reason, seconds in read_rows(path)
        if key in cases
    ]


def main() -> None:
    """Simulate the chosen sets, print the tables, and write them with ``--write``."""
    parser = argparse.ArgumentParser(description="The simulator against servers that were measured.")
    parser.add_argument("--set", action="append", choices=list(SETS), help="some sets only")
    parser.add_argument(
        "--every", type=int, help="of the two large sets, every so many runs  [default: 10; --write: 1]"
    )
    parser.add_argument("--rows", help="all figures as CSV")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    every = given.every or (1 if given.write else 10)
    names = given.set or list(SETS)
    start = time.perf_counter()
    rows = answers(chosen_cases(names, every), given.processes)
    page = accuracy_page.read()
    for name in names:
        text = section(name, [row for row in rows if row.case.set == name])
        print(text)
        page = accuracy_page.put(page, f"serving-{name}", text)
    print(f"{len(rows)} runs in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if given.rows:
        write_rows(given.rows, rows)
    if given.write:
        if every != 1:
            sys.exit("--write takes all rows: leave --every away")
        accuracy_page.save(page)


if __name__ == "__main__":
    main()
