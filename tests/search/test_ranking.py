"""Layouts ranked by us and by what was measured: the arithmetic, and the page that shows it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def ranking() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("ranking")
    sys.path.remove(str(ROOT / "benchmarks"))


def test_regret_and_rank_of_a_choice(ranking: ModuleType) -> None:
    plans = [
        ranking.Plan(("a",), 100.0, 5.0, 1.0),
        ranking.Plan(("b",), 80.0, 7.0, 2.0),
        ranking.Plan(("c",), 50.0, 1.0, 3.0),
    ]
    assert ranking.regret(plans, lambda plan: plan.ours) == pytest.approx(100 / 80 - 1)
    assert ranking.regret(plans, lambda plan: plan.measured) == 0
    assert ranking.spearman(plans) == pytest.approx(0.5)
    assert ranking.spearman([plan._replace(ours=plan.measured) for plan in plans]) == pytest.approx(1.0)
    assert ranking.spearman([plan._replace(ours=-plan.measured) for plan in plans]) == pytest.approx(-1.0)
    assert ranking.ranks([5.0, 1.0, 5.0]) == [1.5, 0, 1.5]


def test_groups_differ_in_their_layout_only(ranking: ModuleType) -> None:
    runs = ranking.runs()
    groups = ranking.groups([(run, run.case.measured) for run in runs])  # nothing is simulated here
    assert len(groups) > 100 and all(
        len({plan.layout for plan in plans}) == len(plans) > 1 for plans in groups.values()
    )
    assert all(ranking.regret(plans, lambda plan: plan.ours) == 0 for plans in groups.values())
    assert len(ranking.groups([(run, run.case.measured) for run in runs], strict=False)) > len(groups)


def test_the_page_is_what_the_code_gives(ranking: ModuleType) -> None:
    if not os.environ.get("INFEROMETER_SLOW_TESTS"):
        pytest.skip(
            "tests/validation has the table from saved predictions; INFEROMETER_SLOW_TESTS=1 simulates them again"
        )
    page = ranking.accuracy_page.read()
    text = ranking.report(ranking.answers(ranking.runs(), 2))
    assert ranking.accuracy_page.stands(page, "ranking") == text, "python benchmarks/ranking.py --write"
