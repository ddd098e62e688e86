"""Measuring: shapes come from the catalogue, campaigns resume and stay within their budget, kernels really run."""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command

from inferometer.measure import grid, run
from inferometer.measure.kernels import CASES

HAS_TORCH = importlib.util.find_spec("torch") is not None
ROWS: list[dict[str, Any]] = [{"kind": "linear", "dtype": "bf16", "m": m, "n": 64, "k": 32} for m in (1, 2, 4)]


def test_shapes_are_those_of_the_catalogue() -> None:
    rows = grid.everything()
    assert len(rows) == len({tuple(r.items()) for r in rows})
    assert {r["kind"] for r in rows} == set(CASES)
    assert (6144, 4096) in grid.products()  # qkv_proj of Llama-3.1-8B
    assert (28672, 4096) in grid.products() and (28672 // 2, 4096) in grid.products()  # whole, and half of it at tp 2
    assert (32, 8, 128) in grid.heads()
    assert {"tokens": 1, "hidden": 2048, "inner": 768, "experts": 128, "top_k": 8}.items() <= next(
        r for r in rows if r["kind"] == "moe"
    ).items()


def test_the_shipped_rows_are_below_no_roof() -> None:
    """No kernel beats the device: 4.8 TB/s and 989 TFLOP/s, with a little for clocks."""
    counts: Counter[str] = Counter()
    with (ROOT / "benchmarks" / "data" / "h200_kernels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            shape = {k: int(v) for k, v in (piece.split("=") for piece in row["shape"].split())}
            counts[row["kind"]] += 1
            if row["kind"] == "linear" and row["dtype"] == "bf16":
                m, n, k = shape["m"], shape["n"], shape["k"]
                assert float(row["seconds"]) >= max(2 * n * k / 4.8e12, 2.0 * m * n * k / 989.4e12) * 0.98, row
    assert counts["linear"] > 10_000 and counts["decode_attention"] > 1_000


class Counted:
    """Stands in for the clock: one second a call, and a list of what was timed."""

    def __init__(self) -> None:
        self.timed = 0

    def __call__(self, torch: Any, calls: Any, device: str) -> float:
        self.timed += 1
        return 1.0


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(run.clock, "seconds", counted)
    monkeypatch.setattr(run, "bench", lambda device: run.Bench(None, device, None, {}))
    monkeypatch.setitem(CASES, "linear", lambda bench, **sizes: _fails_at_four(**sizes))
    return counted


def _fails_at_four(**sizes: Any) -> Any:
    from inferometer.measure.kernels import Ready

    if sizes["m"] == 4:
        raise RuntimeError("no kernel for this shape")
    return Ready([lambda: None], "test")


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path, clocked: Counted) -> None:
    path = tmp_path / "k.csv"
    assert run.measure(ROWS[:1], path, budget=60)["measured"] == 1
    counts = run.measure(ROWS, path, budget=60)
    assert counts == {"measured": 1, "kept": 1, "failed": 1, "left": 0}
    assert clocked.timed == 2
    assert list(run.done(path)) == [("linear", "bf16", "m=1 n=64 k=32"), ("linear", "bf16", "m=2 n=64 k=32")]


def test_a_campaign_without_time_measures_nothing(tmp_path: Path, clocked: Counted) -> None:
    assert run.measure(ROWS, tmp_path / "k.csv", budget=-1)["left"] == 3
    assert clocked.timed == 0


def test_profile_says_what_it_needs(tmp_path: Path) -> None:
    ran = command("profile", "-o", str(tmp_path / "k.csv"))
    assert ran.code == 2 and "--kernels" in ran.err
    ran = command("profile", "--kernels", "--budget", "soon", "-o", str(tmp_path / "k.csv"))
    assert ran.code == 2 and "10m" in ran.err
    if not HAS_TORCH:
        ran = command("profile", "--kernels", "--budget", "1s", "-o", str(tmp_path / "k.csv"))
        assert ran.code == 2 and "PyTorch" in ran.err


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_kernels_run_on_a_cpu(tmp_path: Path) -> None:
    more: list[dict[str, Any]] = [
        {"kind": "norm", "dtype": "bf16", "m": 2, "n": 64},
        {"kind": "activation", "dtype": "bf16", "m": 2, "n": 64},
        {"kind": "prefill_attention", "dtype": "bf16", "seqs": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "new": 8,
         "context": 8},
    ]  # fmt: skip
    rows = [*ROWS, *more]
    path = tmp_path / "cpu.csv"
    assert run.measure(rows, path, budget=60, device="cpu")["measured"] == len(rows)
    assert all(seconds > 0 for seconds in run.done(path).values())
