"""Our error beside AIConfigurator's on the very same servers, and beside what other tools publish on rows of their own.

    python benchmarks/accuracy.py --write                     makes the tables with all others of docs/accuracy
    python benchmarks/scoreboard.py --rows rows.csv           prints them from what `serving.py --rows` wrote
    python benchmarks/scoreboard.py --rows rows.csv --write   and puts them into the page

A row is compared where both tools answer it. Output tokens/s for each GPU follow from TTFT and TPOT, measured and
predicted alike: C·O / (TTFT + (O-1)·TPOT) / GPUs. Published figures are `data/published.toml`, each with its source.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import accuracy_page
import serving
from serving_tables import error_sums

from inferometer.specs.hosts import host

FIGURES = "rows | mean error | median | p90 | within 10% | within 25% | bias"
OURS, PEER = "inferometer", "AIConfigurator"
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "rate": "tokens/s/GPU"}
PUBLISHED = Path(__file__).resolve().parent / "data" / "published.toml"
PRECISION = re.compile(r"(-Instruct|-FP8|-NVFP4)+$")  # of a checkpoint's name
MANY = 10  # rows of a part from which on a median says something
ONE_IN = 8  # of the aggregated rows, for figures of the host that are chosen anew
LAUNCH, SLOWDOWN = (0.8, 1.0, 1.25), (0.5, 1.0, 2.0)  # factors on the default host's launches, and on its Python


class Compared(NamedTuple):
    """A measured server that both tools answer: relative errors by metric, ours and the other's."""

    mode: str  # aggregated or disaggregated
    model: str
    gpu: str
    engine: str
    ours: dict[str, float]
    peer: dict[str, float]


def gpus(options: dict[str, Any]) -> int:
    """GPUs of a server, or of all pools: ``gpus({"tensor_parallel_size": 4, "data_parallel_size": 2})  # 8``"""
    if "pools" in options:
        return sum(int(pool.get("replicas", 1)) * gpus(pool) for pool in options["pools"])
    sizes = [int(options.get(f"{axis}_parallel_size", 1)) for axis in ("tensor", "pipeline", "data")]
    return sizes[0] * sizes[1] * sizes[2]


def throughput(case: serving.Case, latencies: dict[str, float]) -> float:
    """Output tokens/s for each GPU of a closed loop."""
    _, _, output_len, least, concurrency = case.build
    tokens = output_len * (1 + least) / 2
    seconds = (latencies["ttft"] + (tokens - 1) * latencies["tpot"]) / 1e3
    return float(concurrency * tokens / seconds / gpus(case.options))


def compared(rows: Iterable[serving.Row]) -> list[Compared]:
    """The rows that both tools answer."""
    both = []
    for row in rows:
        case = row.case
        if not all(m in answer for m in ("ttft", "tpot") for answer in (row.predicted, case.peer)):
            continue
        truth = {**case.measured, "rate": throughput(case, case.measured)}
        ours, peer = (
            {m: {**answer, "rate": throughput(case, answer)}[m] / truth[m] - 1 for m in METRICS}
            for answer in (row.predicted, case.peer)
        )
        mode = "disaggregated" if case.set == "disaggregated" else "aggregated"
        model = PRECISION.sub("", case.model.rpartition("/")[2])
        both.append(Compared(mode, model, case.gpu, str(case.options["engine"]).partition("@")[0], ours, peer))
    return both


# ------------------------------------------------------------------ the very same rows


def _nine_in_ten(sizes: list[float]) -> float:
    return sorted(sizes)[int(0.9 * (len(sizes) - 1))]


def figures(offs: list[float]) -> str:
    """Cells of relative errors: mean, median, nine in ten, shares within 10 and 25%, median with its sign."""
    sizes = [abs(off) for off in offs]
    shares = [sum(size <= most for size in sizes) / len(sizes) for most in (0.1, 0.25)]
    return (
        f"{statistics.fmean(sizes):.1%} | {statistics.median(sizes):.1%} | {_nine_in_ten(sizes):.1%} | "
        f"{shares[0]:.0%} | {shares[1]:.0%} | {statistics.median(offs):+.1%}"
    )


def whole(both: list[Compared]) -> str:
    """All rows: both tools, metric by metric."""
    lines = [
        f"| servers | prediction | tool | {FIGURES} |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for mode in ("aggregated", "disaggregated"):
        part = [one for one in both if one.mode == mode]
        for metric, label in METRICS.items() if part else ():
            for tool in (OURS, PEER):
                offs = [(one.ours if tool == OURS else one.peer)[metric] for one in part]
                lines.append(f"| {mode} | {label} | {tool} | {len(part)} | {figures(offs)} |")
    nearer = {
        metric: statistics.fmean(abs(one.ours[metric]) < abs(one.peer[metric]) for one in both) for metric in METRICS
    }
    share = ", ".join(f"{label} {nearer[metric]:.0%}" for metric, label in METRICS.items())
    return "\n".join([*lines, "", f"Rows on which {OURS} is the nearer of the two: {share}."])


PARTS: dict[str, Callable[[Compared], str]] = {
    "model": lambda one: one.model,
    "GPU": lambda one: one.gpu,
    "engine": lambda one: one.engine,
}


def by_parts(both: list[Compared]) -> str:
    """By model, GPU and engine: median and mean of both tools."""
    heads = " | ".join(f"{label}: {OURS} | {PEER}" for label in METRICS.values())
    lines = [f"| part | rows | {heads} |", "|---|---:|" + "---:|" * 2 * len(METRICS)]
    behind: list[str] = []
    for mode in ("aggregated", "disaggregated"):
        for title, part_of in PARTS.items():
            parts: dict[str, list[Compared]] = defaultdict(list)
            for one in both:
                if one.mode == mode:
                    parts[part_of(one)].append(one)
            lines += [f"| {mode}, {title} {name} | {_pairs(part)} |" for name, part in sorted(parts.items())]
            behind += [
                f"{METRICS[metric]} of {name} ({mode}, {len(part)} rows)"
                for name, part in sorted(parts.items())
                for metric in METRICS
                if len(part) >= MANY and _median(part, metric, PEER) < _median(part, metric, OURS)
            ]
    return "\n".join(
        [*lines, "", f"Parts of {MANY} rows or more where {PEER} is nearer: {'; '.join(behind) or 'none'}."]
    )


def _median(part: list[Compared], metric: str, tool: str) -> float:
    return statistics.median(abs((one.ours if tool == OURS else one.peer)[metric]) for one in part)


def _pairs(part: list[Compared]) -> str:
    sizes = [
        [abs(off[m]) for off in tool] for m in METRICS for tool in zip(*((o.ours, o.peer) for o in part), strict=True)
    ]
    return " | ".join([str(len(part)), *(f"{statistics.median(x):.1%} / {statistics.fmean(x):.1%}" for x in sizes)])


# ------------------------------------------------------------------ the host's figures without the model


class Tried(NamedTuple):
    """A row under every factor on the host's figures: errors by metric, and the other tool's."""

    model: str
    engine: str
    errors: dict[tuple[float, float], dict[str, float]]
    peer: dict[str, float]


def _tried(case: serving.Case) -> Tried:
    errors, peer = {}, {}
    for launch in LAUNCH:
        for slowdown in SLOWDOWN:
            profile = f"server:launch={host().launch * launch},slowdown={host().slowdown * slowdown}"
            row = serving.run(case._replace(options={**case.options, "host_profile": profile}))
            if one := compared([row]):
                errors[launch, slowdown], peer = one[0].ours, one[0].peer
    model = PRECISION.sub("", case.model.rpartition("/")[2])
    return Tried(model, str(case.options["engine"]).partition("@")[0], errors, peer)


def left_out(processes: int = 2) -> str:
    """Figures of the host that serve an engine's other models best, judged on the model itself; one row in eight."""
    cases = [case for case in serving.silicon() if len(case.peer) == 2][::ONE_IN]
    with ProcessPoolExecutor(processes) as pool:
        rows = [row for row in pool.map(_tried, cases, chunksize=2) if (1.0, 1.0) in row.errors]
    offs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        others = [one for one in rows if one.engine == row.engine and one.model != row.model]
        best = min(row.errors, key=lambda factors: _miss(others, factors)) if others else (1.0, 1.0)
        for metric in METRICS:
            offs[metric, f"{OURS}, as shipped"].append(row.errors[1.0, 1.0][metric])
            offs[metric, f"{OURS}, model left out"].append(row.errors[best][metric])
            offs[metric, PEER].append(row.peer[metric])
    lines = [
        f"| prediction | tool, figures of the host | {FIGURES} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (metric, chosen), part in offs.items():
        lines.append(f"| {METRICS[metric]} | {chosen} | {len(part)} | {figures(part)} |")
    return "\n".join(lines)


def _miss(rows: list[Tried], factors: tuple[float, float]) -> float:
    """Median errors of TTFT and TPOT under some factors, added."""
    seen = [row.errors[factors] for row in rows if factors in row.errors]
    return sum(statistics.median(abs(errors[metric]) for errors in seen) for metric in ("ttft", "tpot"))


# ------------------------------------------------------------------ published on other rows


def published(page: str) -> str:
    """What others publish, on their rows; beside it ours on the set that is most like them, from the page's tables."""
    lines = ["| tool | on | published | source | ours, on |", "|---|---|---|---|---|"]
    for one in tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["published"]:
        ours = ours_on(page, one["set"]) if one.get("set") else one.get("ours", "–")
        lines.append(f"| {one['tool']} | {one['on']} | {one['error']} | {one['source']} ({one['date']}) | {ours} |")
    return "\n".join(lines)


def ours_on(page: str, name: str) -> str:
    """The sum of a set as the page has it: ``ours_on(page, "h100")  # "h100, 13 runs: TTFT 6.5% mean, …"``"""
    text = accuracy_page.stands(page, "scoreboard" if name == "inferencex" else f"serving-{name}")
    runs = re.search(r"^(?:InferenceX: )?(\d+) of \d+ runs answered.*", text, re.M)
    if runs is None:
        return "–"
    sums = re.findall(r"(TTFT|TPOT|ITL|E2E) mean error ([\d.]+%), median ([\d.]+%)", runs[0])
    one = runs[1] == "1"
    errors = [f"{m} {mean}" if one else f"{m} {mean} mean, {median} median" for m, mean, median in sums]
    return f"{name}, {runs[1]} run{'' if one else 's'}: {'; '.join(errors)}"


def inferencex(rows: Iterable[serving.Row]) -> str:
    """The sum of InferenceX' aggregated rows, whether the other tool answers them or not."""
    names = {row["run"] for row in serving.closed_loops() if row["source"].startswith("inferencex")}
    part = [row for row in rows if row.case.set == "silicon" and row.case.name in names]
    answered = [row for row in part if row.predicted]
    sums = "; ".join(f"{METRICS[metric]} {error_sums(answered, metric)}" for metric in ("ttft", "tpot"))
    return f"InferenceX: {len(answered)} of {len(part)} runs answered. {sums}."


def sections(rows: Iterable[serving.Row]) -> dict[str, str]:
    """Tables by the name of their markers, of the rows that both tools answer."""
    every = list(rows)
    both = compared(every)
    if not both:
        return {}
    return {"scoreboard": f"{whole(both)}\n\n{inferencex(every)}", "scoreboard-parts": by_parts(both)}


def main() -> None:
    """Tables from saved rows; with ``--left-out`` the host's figures chosen anew, which is simulated."""
    parser = argparse.ArgumentParser(description="Our error beside AIConfigurator's, on the same servers.")
    parser.add_argument("--rows", action="append", default=[], help="what `serving.py --rows` wrote")
    parser.add_argument("--left-out", action="store_true", help="the host's figures chosen without each model, too")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy")
    given = parser.parse_args()
    page = accuracy_page.read()
    tables = sections(serving.saved(*given.rows)) if given.rows else {}
    tables |= {"scoreboard-left-out": left_out()} if given.left_out else {}
    for name, text in [*tables.items(), ("published", published(page))]:
        print(f"## {name}\n{text}\n")
        page = accuracy_page.put(page, name, text)
    if given.write:
        accuracy_page.save(page)


if __name__ == "__main__":
    main()
