"""Ctrl-C in the middle of a simulation: what had ended by then is kept, and said in one sentence."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from conftest import Ran

from inferometer.serving import deployment_run
from inferometer.serving.capacity import Capacity, find_capacity
from inferometer.serving.outcome import Interrupted, Outcome
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic

Command = Callable[..., Ran]
MODEL = "qwen3-0.6b"
MANY = 1_000_000  # requests: half a minute of work


def stopped(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What is left of a process after Ctrl-C, pressed again where Python lost it (in a callback of its own)."""
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    pytest.fail("it does not stop")


def cut(args: list[str], enough: Callable[[str], bool]) -> tuple[str, str]:
    """What a run says that is sent SIGINT: later and later, until it had something to show by then."""
    for patience in (1.5, 3.0, 6.0, 12.0, 24.0):
        process = subprocess.Popen(
            [sys.executable, "-m", "inferometer", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(patience)
        out, err = stopped(process)
        if "Exception ignored" not in err and enough(err):
            assert process.returncode == 130 and "Traceback" not in err
            return out, err
    pytest.fail(f"nothing came of {args} in {patience:g} s: {err}")


@pytest.mark.slow
def test_simulate_keeps_the_requests_that_had_ended(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("what was there before")
    out, err = cut(
        [
            "simulate",
            MODEL,
            "--num-prompts",
            str(MANY),
            "--request-rate",
            "20",
            "--input-len",
            "100",
            "--output-len",
            "3",
            "--requests-out",
            str(rows),
            "--json",
        ],
        lambda _: "before" not in rows.read_text()[:30],
    )
    with rows.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert out == "" and {row["status"] for row in found} == {"done"} and 0 < len(found) < MANY
    assert all(float(row["E2E"]) >= float(row["TTFT"]) > 0 for row in found)
    assert err == f"interrupted: {len(found):,} of {MANY:,} requests had ended; their rows are in {rows}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"], "no temporary file is left"


@pytest.mark.slow
def test_find_capacity_prints_the_rates_that_were_tried() -> None:
    out, err = cut(
        [
            "simulate",
            MODEL,
            "--num-prompts",
            "60000",
            "--input-len",
            "100",
            "--output-len",
            "30",
            "--find-capacity",
            "--goodput",
            "ttft:30",
            "--jobs",
            "1",
            "--json",
        ],
        lambda err: "interrupted: 0" not in err and "interrupted" in err,
    )
    found = json.loads(out)
    assert found["interrupted"] is True and found["tried"] and "completed" not in found
    assert err == f"interrupted: {len(found['tried'])} rates were tried, and the search was not over\n"


def stop_at(number: int) -> Callable[[int, int], None]:
    """A progress that is interrupted when it is told for the so manieth time."""
    calls = itertools.count(1)

    def told(done: int, total: int) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt

    return told


def test_what_had_ended_is_what_ends_without_interruption() -> None:
    trace = synthetic(num_prompts=3000, request_rate=200, input_len=300, output_len=20, seed=1)
    whole = simulate(MODEL, "h200", trace=trace)
    with pytest.raises(Interrupted) as caught:
        simulate(MODEL, "h200", trace=trace, progress=stop_at(5))
    part = caught.value.found
    assert isinstance(part, Outcome) and isinstance(caught.value, KeyboardInterrupt)
    assert 0 < part.done.sum() < len(trace) == whole.done.sum()
    for name in ("arrival_s", "first_token_s", "finished_s"):
        assert (getattr(part, name)[part.done] == getattr(whole, name)[part.done]).all()
    assert part.duration_s == pytest.approx(np.nanmax(part.finished_s) - part.arrival_s[0])


def test_a_search_that_is_stopped_tells_the_highest_rate_that_held() -> None:
    trace = synthetic(num_prompts=60, request_rate=10, input_len=300, output_len=60, seed=3)
    words: dict[str, Any] = {"trace": trace, "goodput": {"ttft": 400.0, "tpot": 25.0}, "jobs": 1}
    with pytest.raises(Interrupted) as caught:
        find_capacity("llama-2-7b", "a100-sxm-80gb", progress=stop_at(2), **words)
    part, whole = caught.value.found, find_capacity("llama-2-7b", "a100-sxm-80gb", **words)
    assert isinstance(part, Capacity) and 0 < part.request_rate <= whole.request_rate
    assert 0 < len(part.tried) < len(whole.tried)
    assert {one.request_rate for one in part.tried} < {one.request_rate for one in whole.tried}


def test_where_nothing_had_ended_the_file_stays(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(deployment_run, "_run", stopped)
    kept = tmp_path / "kept.csv"
    kept.write_text("mine")
    ran = run("simulate", MODEL, "--num-prompts", "5", "--requests-out", str(kept))
    assert (ran.code, ran.out) == (130, "") and kept.read_text() == "mine"
    assert ran.err == "interrupted: 0 of 5 requests had ended; nothing was written\n"
