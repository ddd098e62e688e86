"""A small part of the campaign of `tools/fuzz.py`, and its laws: each of them sees what it is for."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Ran

from inferometer.cli.commands import COMMANDS as COMMAND_NAMES

sys.path.append(str(ROOT / "tools"))

import fuzz
from fuzzing import laws
from fuzzing.cases import VERBS, case
from fuzzing.tally import Tally
from fuzzing.values import options

Run = Callable[..., Ran]
MEASURED = "arrival_s,input_tokens,output_tokens,TTFT,TPOT,E2E\n0,100,10,20,8,92\n0.1,200,20,30,8,182\n"


@pytest.mark.slow
def test_a_slice_of_the_campaign() -> None:
    """The same cases every time, without processes and without searches: those have the campaign."""
    checked: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    number = -1
    while outcomes.total() < 250:
        number += 1
        drawn = case(2026, number)
        if drawn.way in ("cli", "api") and drawn.verb not in ("search", "sensitivity", "bench"):
            _, verdict = fuzz.one(drawn, checked)
            outcomes[verdict.outcome] += 1
            assert verdict.outcome in ("feasible", "infeasible", "refused"), (drawn.name, verdict)
    assert outcomes["refused"] > 100 and outcomes["feasible"] > 10 and outcomes["infeasible"] > 3
    assert checked["one-sentence"] > 100 and checked["phases-add-up"] > 20


def test_a_case_is_a_seed_and_a_number() -> None:
    assert [case(3, n) for n in range(200)] == [case(3, n) for n in range(200)]
    assert len({tuple(case(3, n).argv) for n in range(200)}) > 100


def test_every_flag_of_a_command_is_drawn() -> None:
    """Flags come from the commands themselves: a new one needs no line in the campaign."""
    assert {"batch_size", "explain", "gpu", "phase"} <= set(options("analyze"))
    assert options("simulate")["max_num_seqs"].argument is not None
    assert {"num_gpus", "interleave"} <= set(options("search --train"))
    assert {verb.partition(" ")[0] for verb in VERBS} | {"web", "mock"} == set(COMMAND_NAMES), (
        "servers have tests of their own"
    )


def test_counts_add_up(tmp_path: Path) -> None:
    one, two = Tally(), Tally()
    one.count("cli", "train", "refused", 0.5, "1:1")
    two.count("cli", "train", "feasible", 1.5, "1:2")
    two.add(json.loads(json.dumps(one.to_dict())))
    two.write(tmp_path / "counts.json")
    data = json.loads((tmp_path / "counts.json").read_text())
    assert (data["inputs"], data["answered"], data["cpu_seconds"]) == (2, 1, 2.0)
    assert "| train | 1 | 1 | 2 |" in (tmp_path / "counts.md").read_text()


# ------------------------------------------------------------------ laws: an answer keeps them, a wrong one does not

COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze": ("qwen3-0.6b", "--gpu", "h200", "--batch-size", "3", "-tp", "2"),
    "train": ("qwen3-0.6b", "--gpu", "h200"),
    "simulate": ("qwen3-0.6b", "--gpu", "h200", "--num-prompts", "3", "--output-len", "5"),
    "validate": ("qwen3-0.6b", "--gpu", "h200", "--measured", "measured.csv"),
    "sweep": ("qwen3-0.6b", "--gpu", "h200", "--batch-size", "1,2"),
    "search": ("qwen3-0.6b", "--num-gpus", "1", "--goodput", "ttft:900", "--request-rate", "1", "--output-len", "4"),
}
WRONG: list[tuple[str, str, tuple[Any, ...], Any]] = [  # verb, law, where, what stands there
    ("analyze", "numbers-are-numbers", ("metrics", "ttft_ms"), -1.0),
    ("analyze", "numbers-are-numbers", ("memory", "weights_bytes"), 1e301),
    ("analyze", "no-operator-beats-its-roofline", ("phases", "prefill", "ops", 3, "roofline_seconds"), 9.0),
    ("analyze", "no-phase-beats-its-roofline", ("roofline", "tpot_ms"), 1e6),
    ("analyze", "phases-add-up", ("phases", "decode", "ops", 0, "seconds"), 1.0),
    ("analyze", "bytes-add-up", ("phases", "decode", "load_weight"), 1.0),
    ("analyze", "memory-adds-up", ("memory", "overhead_bytes"), 0.0),
    ("analyze", "memory-adds-up", ("memory", "usable_bytes"), 1.0),
    ("analyze", "infeasible-for-a-reason", ("infeasibility",), {"kind": "memory"}),
    ("analyze", "latencies-add-up", ("metrics", "e2el_ms"), 1.0),
    ("analyze", "exit-code", ("feasible",), False),
    ("train", "steps-are-possible", ("step_seconds",), 1e-9),
    ("train", "steps-are-possible", ("model_flops_utilization",), 1.5),
    ("train", "memory-adds-up", ("memory", "optimizer_bytes"), 0.0),
    ("simulate", "requests-are-conserved", ("completed",), 2),
    ("simulate", "requests-are-conserved", ("total_output_tokens",), 14),
    ("simulate", "percentiles-are-ordered", ("p90_ttft_ms",), 1e9),
    ("simulate", "first-tokens-come-before-the-last", ("mean_ttft_ms",), 1e9),
    ("simulate", "caches-hold-what-they-hold", ("max_kv_cache_usage",), 1.1),
    ("validate", "errors-are-of-all-rows", ("errors", "ttft", "requests"), 3),
    ("validate", "errors-are-of-all-rows", ("errors", "tpot", "mape"), None),
    ("sweep", "rows-are-the-grid", ("points",), 3),
    ("sweep", "rows-are-the-grid", ("rows", 0, "reason"), "too large"),
    ("search", "the-winner-is-a-plan", ("winner", "gpus"), 7),
    ("search", "no-plan-that-holds-is-better", ("winner", "simulated", "output_throughput_per_gpu"), 1e-3),
]


@pytest.fixture(scope="module")
def answers(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A result of each verb."""
    measured = tmp_path_factory.mktemp("measured") / "measured.csv"
    measured.write_text(MEASURED)
    return {
        verb: run(verb, *(str(measured) if arg == "measured.csv" else arg for arg in args), "--json").json
        for verb, args in COMMANDS.items()
    }


@pytest.mark.slow
def test_answers_keep_the_laws(answers: dict[str, Any]) -> None:
    assert {verb: laws.broken_laws(verb, answer, 0) for verb, answer in answers.items()} == {v: [] for v in answers}


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "law", "where", "value"), WRONG)
def test_a_law_sees_what_it_is_for(
    answers: dict[str, Any], verb: str, law: str, where: tuple[Any, ...], value: Any
) -> None:
    wrong = copy.deepcopy(answers[verb])
    place = wrong
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    assert law in {text.partition(":")[0] for text in laws.broken_laws(verb, wrong, 0)}


@pytest.mark.slow
def test_two_results_that_do_not_agree(answers: dict[str, Any]) -> None:
    slower = copy.deepcopy(answers["analyze"])
    slower["metrics"]["tpot_ms"] *= 1.1
    assert list(laws.never_slower(answers["analyze"], slower)) and not list(
        laws.never_slower(slower, answers["analyze"])
    )
    row = answers["sweep"]["rows"][0]
    assert list(laws.row_is_analysis({**row, "ttft_ms": 1.0}, answers["analyze"]))
