"""Our errors beside another tool's, and the first page of docs/accuracy.md."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

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
