"""Our errors beside another tool's, the first page of docs/accuracy.md, and what the README says of both."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("accuracy")
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_summary_says_what_the_tables_say(benchmarks: ModuleType) -> None:
    page = benchmarks.accuracy_page.read()
    for name, text in benchmarks.summary(page).items():
        assert benchmarks.accuracy_page.stands(page, name) == text, "python benchmarks/accuracy.py --write --summary"
    runs = benchmarks.scoreboard.ours_on(page, "rtx4090")
    assert runs.startswith("rtx4090, 1 run: TTFT "), "one run has no median"
    assert (ROOT / "docs" / "img" / "accuracy.png").stat().st_size < 100e3


def test_both_tools_are_judged_on_the_same_rows(benchmarks: ModuleType) -> None:
    serving, scoreboard = benchmarks.serving, benchmarks.scoreboard
    layout = {"engine": "vllm@0.19", "tensor_parallel_size": 4, "data_parallel_size": 2}
    pools = {"engine": "sglang", "pools": [{"replicas": 2, "tensor_parallel_size": 4}, {"data_parallel_size": 8}]}

    def row(options: dict[str, object], predicted: dict[str, float], peer: dict[str, float]) -> object:
        kind = "disaggregated" if "pools" in options else "silicon"
        build = ("closed", 1000, 101, 1.0, 32)
        case = serving.Case(kind, "a", "x/Qwen3-32B-FP8", "b200", options, build, {"ttft": 1000.0, "tpot": 10.0}, peer)
        return serving.Row(case, predicted, {}, "", 0.0)

    both = {"ttft": 900.0, "tpot": 12.0}
    rows = [row(layout, both, {"ttft": 500.0, "tpot": 10.0}), row(pools, both, both), row(layout, both, {})]
    one, other = scoreboard.compared([*rows, row(layout, {}, both)])
    assert (one.mode, one.model, one.engine, other.mode) == ("aggregated", "Qwen3-32B", "vllm", "disaggregated")
    assert one.ours["ttft"] == pytest.approx(-0.1) and one.peer["ttft"] == pytest.approx(-0.5)
    assert one.ours["rate"] == pytest.approx(2.0 / 2.1 - 1), "TTFT + 100 TPOT"
    assert scoreboard.gpus(layout) == 8 and scoreboard.gpus(pools) == 16
    assert scoreboard.throughput(rows[0].case, both) == pytest.approx(32 * 101 / 2.1 / 8)
    assert scoreboard.figures([0.05, -0.2, 0.3]) == "18.3% | 20.0% | 20.0% | 33% | 67% | +5.0%"
    assert "| aggregated, model Qwen3-32B | 1 | 10.0% / 10.0% | 50.0% / 50.0% |" in scoreboard.by_parts([one, other])


# ------------------------------------------------------------------ closed loops, and the README


@pytest.fixture(scope="module")
def loops(benchmarks: ModuleType) -> dict[str, list[Any]]:
    """Every closed loop with its prediction in benchmarks/data/predictions.csv."""
    listed = importlib.import_module("band_rows").listed
    return {name: listed(benchmarks.serving.SETS[name]()) for name in ("silicon", "disaggregated")}


def figures(text: str) -> list[float]:
    """All numbers of a text's tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [float(number.replace(",", "")) for line in lines for number in re.findall(r"[+-]?\d[\d,]*\.?\d*", line)]


@pytest.mark.slow
def test_tables_of_closed_loops_follow_from_the_predictions(
    benchmarks: ModuleType, loops: dict[str, list[Any]]
) -> None:
    """All runs, as the file has them (four digits); some are simulated again below, all of them before a release."""
    every = [*loops["silicon"], *loops["disaggregated"]]
    tables = {f"serving-{name}": benchmarks.serving.section(name, rows) for name, rows in loops.items()}
    tables |= benchmarks.scoreboard.sections(every)
    runs, ours = benchmarks.ranking.runs(), {row.case.name: row.predicted for row in loops["silicon"]}
    tables["ranking"] = benchmarks.ranking.report([(run, ours[run.case.name]) for run in runs])
    page = benchmarks.accuracy_page.read()
    for name, text in tables.items():
        stated = figures(benchmarks.accuracy_page.stands(page, name))
        assert len(stated) > 80
        off = [(a, b) for a, b in zip(figures(text), stated, strict=True) if abs(a - b) > allowed(b)]
        assert not off, f"{name}: make accuracy"


def allowed(stated: float) -> float:
    """What four digits may change: a share of runs, in whole percents, by one."""
    return 1.0 if stated == int(stated) and stated <= 100 else max(0.15, 0.005 * abs(stated))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silicon", "disaggregated"])
def test_some_closed_loops_are_simulated_again(benchmarks: ModuleType, loops: dict[str, list[Any]], name: str) -> None:
    """A quick run of every kind of GPU and engine gives what benchmarks/data/predictions.csv says."""
    quick = [row for row in loops[name] if row.predicted and row.case.build[-1] <= 8 and row.case.build[2] <= 1024]
    chosen = {(row.case.gpu, row.case.options["engine"].partition("@")[0]): row for row in quick}
    assert len(chosen) >= 5
    for row in chosen.values():
        ours = benchmarks.serving.run(row.case).predicted
        assert {m: ours[m] for m in row.predicted} == pytest.approx(row.predicted, rel=0.01), row.case


def test_the_readme_says_what_the_pages_say(benchmarks: ModuleType) -> None:
    """Every error of its table, and how many runs it is of."""
    page = benchmarks.accuracy_page.read()
    cells = {row[0]: row for table in benchmarks.accuracy_page.tables(page) for row in table["rows"]}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    def error(cell: str, kind: str) -> str:
        mean, median = re.match(r"([\d.]+%) / ([\d.]+%)", cell).groups()  # type: ignore[union-attr]
        return str({"mean": mean, "median": median}[kind])

    tokens, weights = (error(cells[f"memory of a GPU: {what}"][3], "mean") for what in ("KV tokens", "weights"))
    assert f"KV-cache room {tokens}, weights {weights} (mean)" in readme
    dense, mixture = cells["dense, decode step"], cells["mixture, decode step"]
    seen, unseen = ([error(row[column], "mean") for row in (dense, mixture)] for column in (1, 4))
    assert f"dense {unseen[0]}, mixtures of experts {unseen[1]} on unseen steps; {seen[0]} and {seen[1]} on" in readme
    steps = [sum(int(row[column].rpartition("(")[2][:-1]) for row in (dense, mixture)) for column in (1, 4)]
    assert f"{steps[0]} steps" in readme and f"{steps[1]} steps on eight other machines" in readme
    for name, what in (
        ("closed loops, 5 GPUs × 3 engines", "public runs on H100, H200, B200, B300 and GB200"),
        ("closed loops, disaggregated", "public runs"),
    ):
        runs, ttft, tpot = int(cells[name][2]), error(cells[name][3], "median"), error(cells[name][4], "median")
        assert f"TTFT {ttft}, TPOT {tpot} (median)" in readme and f"{runs:,} {what}" in readme
    decode, prompts = (cells[f"kernels of {phase}, GPU without tables"][3] for phase in ("decode steps", "prompts"))
    assert f"all kernels of a decode step {decode[8:]}, of a prompt {prompts[8:]} (median)" in readme
    compared = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
    pairs = re.findall(r"\| (\d+) cases: ([\d,]+) quantities the same", compared)
    same = sum(int(number.replace(",", "")) for _, number in pairs)
    assert f"{same:,} values in {sum(int(count) for count, _ in pairs)} cases" in readme


def test_every_file_of_measurements_is_described() -> None:
    """Whose it is and how it was taken; and they stay small."""
    folder = ROOT / "benchmarks" / "data"
    patterns = re.findall(r"`([\w./*<>-]+)`", (folder / "README.md").read_text(encoding="utf-8"))
    names = [re.sub(r"<\w+>", "*", pattern) for pattern in patterns if "." in pattern or pattern.endswith("/")]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    for path in files:
        name = path.relative_to(folder).as_posix()
        assert any(fnmatch(name, pattern) or (pattern[-1] == "/" and name.startswith(pattern)) for pattern in names), (
            name
        )
    assert sum(path.stat().st_size for path in files) < 8e6
