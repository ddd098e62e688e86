"""Ctrl-C in the middle of a simulation: what had finished by then is kept, and said in one sentence.

Ctrl-C is a KeyboardInterrupt, raised here at a known step of the loop: no test waits for a clock.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from conftest import Ran

from inferometer.serving import deployment
from inferometer.serving.capacity import Capacity, find_capacity
from inferometer.serving.outcome import Interrupted, Outcome, Recorder
from inferometer.serving.simulate import simulate
from inferometer.serving.steady_run import SteadyServer
from inferometer.serving.synthetic import synthetic

Command = Callable[..., Ran]
MODEL = "qwen3-0.6b"


def interrupt_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, interrupted when it is called for the so manieth time."""
    calls = itertools.count(1)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return interrupted


def test_simulate_keeps_the_requests_that_had_finished(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("what was there before")
    monkeypatch.setattr(Recorder, "sample", interrupt_at(200, Recorder.sample))
    load = ("--num-prompts", "2000", "--request-rate", "20", "--input-len", "100", "--output-len", "3")
    ran = run("simulate", MODEL, *load, "--json", "--requests-out", str(rows))
    with rows.open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert (ran.code, ran.out) == (130, "") and {row["status"] for row in kept} == {"done"} and 0 < len(kept) < 2000
    assert all(float(row["E2E"]) >= float(row["TTFT"]) > 0 for row in kept)
    assert ran.err == f"interrupted: {len(kept):,} of 2,000 requests had ended; their rows are in {rows}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"], "no temporary file is left"


def test_find_capacity_prints_the_rates_that_were_tried(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteadyServer, "run_draw", interrupt_at(3, SteadyServer.run_draw))
    load = ("--num-prompts", "60", "--input-len", "100", "--output-len", "30", "--goodput", "ttft:30")
    ran = run("simulate", MODEL, *load, "--find-capacity", "--jobs", "1", "--json")
    result = json.loads(ran.out)
    assert ran.code == 130 and result["interrupted"] is True and result["tried"] and "completed" not in result
    assert ran.err == f"interrupted: {len(result['tried'])} rates tried, search not finished\n"


def test_what_had_finished_is_what_finishes_without_interruption() -> None:
    trace = synthetic(num_prompts=3000, request_rate=200, input_len=300, output_len=20, seed=1)
    whole = simulate(MODEL, "h200", trace=trace)
    with pytest.raises(Interrupted) as caught:
        simulate(MODEL, "h200", trace=trace, progress=interrupt_at(4, lambda done, total: None))
    part = caught.value.result
    assert isinstance(part, Outcome) and isinstance(caught.value, KeyboardInterrupt)
    assert 0 < part.done.sum() < len(trace) == whole.done.sum()
    for name in ("arrival_s", "first_token_s", "finished_s"):
        assert (getattr(part, name)[part.done] == getattr(whole, name)[part.done]).all()
    assert part.duration_s == pytest.approx(np.nanmax(part.finished_s) - part.arrival_s[0])


@pytest.mark.slow
def test_a_search_that_is_stopped_tells_the_highest_rate_that_held() -> None:
    trace = synthetic(num_prompts=60, request_rate=10, input_len=300, output_len=60, seed=3)
    options: dict[str, Any] = {"trace": trace, "goodput": {"ttft": 400.0, "tpot": 25.0}, "jobs": 1}
    with pytest.raises(Interrupted) as caught:
        find_capacity("llama-2-7b", "a100-sxm-80gb", progress=interrupt_at(4, lambda done, total: None), **options)
    part, whole = caught.value.result, find_capacity("llama-2-7b", "a100-sxm-80gb", **options)
    assert isinstance(part, Capacity) and 0 < part.request_rate < 1.1 * whole.request_rate
    assert part.request_rate == max(one.request_rate for one in part.tried if one.holds)
    assert 0 < len(part.tried) < len(whole.tried)
    assert {one.request_rate for one in part.tried} < {one.request_rate for one in whole.tried}


def test_where_nothing_had_finished_the_file_stays(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(deployment, "_run", stopped)
    kept = tmp_path / "kept.csv"
    kept.write_text("mine")
    ran = run("simulate", MODEL, "--num-prompts", "5", "--requests-out", str(kept))
    assert (ran.code, ran.out) == (130, "") and kept.read_text() == "mine"
    assert ran.err == "interrupted: 0 of 5 requests had ended; nothing was written\n"
