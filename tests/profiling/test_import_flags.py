"""What must not be used is flagged and nothing else: the host's floors, and what no device can do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.foreign_tables import aic, table, take
from hypothesis import given
from hypothesis import strategies as st

from inferometer.costs.kernels.kernel_rows import SHAPE_DEFAULTS, SHAPE_KEYS, shape_cells, unflagged
from inferometer.profiling import quality, roofline_limits
from inferometer.specs import catalog


def products(time: Any, dtype: str, kernel: str) -> list[dict[str, Any]]:
    """Products of 96 shapes whose roofs on an H200 span 0.02 µs to 3 ms, timed by a function of the roof."""
    rows = []
    for m in (1, 16, 256, 4096):
        for n in (128, 512, 2048, 8192):
            for k in (128, 256, 1024, 2048, 8192, 32768):
                word = {"bfloat16": "bf16", "fp8_block": "fp8-block"}[dtype]
                roof = float(
                    roofline_limits.least_seconds("linear", word, {"m": m, "n": n, "k": k}, catalog.hardware("h200"))
                )
                rows.append({"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": 1e3 * time(roof)})
    return aic("gemm", *rows, kernel=kernel)


def test_a_floor_of_the_host_is_flagged_and_a_kernel_is_not(tmp_path: Path) -> None:
    kernel = products(lambda roof: 3e-6 + 1.5 * roof, "bfloat16", "graph")
    slow = products(lambda roof: 40e-6 + 1.5 * roof, "fp8_block", "slow")  # takes long to start, but it is its own time
    host = products(lambda roof: max(50e-6, 3e-6 + 1.5 * roof), "fp8_block", "eager")
    rows, counts, said = take(table(tmp_path / "t.csv", kernel + slow))
    assert counts["floor"] == 0 and not any("!" in source for _, _, source in rows.values())
    _, counts, said = take(table(tmp_path / "t.csv", kernel + host))
    expected = sum(row["latency"] < 0.075 for row in host)
    assert 40 < counts["floor"] == expected < len(host)
    with (tmp_path / "out.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            hidden = "eager" in row["source"] and float(row["seconds"]) < 75e-6
            assert row["source"].endswith(" !floor") == hidden, row
    assert any("!floor" in line and "pile up at 50 µs" in line for line in said)


def test_a_floor_shows_beside_another_way_of_timing(tmp_path: Path) -> None:
    sizes = [(ranks, 2**p) for ranks in (2, 4, 8) for p in range(7, 29)]

    def took(ranks: int, elements: int) -> float:
        return 5e-3 + elements * 2 / 200e9 * 1e3  # ms

    shape = [{"allreduce_dtype": "bfloat16", "num_gpus": r, "message_size": s, "latency": took(r, s)} for r, s in sizes]
    late = []
    for row in shape:  # a host that takes another, slower way for some sizes: not one flat figure
        host = 0.036 if row["num_gpus"] > 2 and row["message_size"] > 2**16 else 0.021
        late.append(row | {"latency": max(host, 1.1 * row["latency"])})
    path = table(
        tmp_path / "t.csv", aic("all_reduce", *shape, kernel="graph") + aic("all_reduce", *late, kernel="eager")
    )
    take(path)
    with (tmp_path / "out.csv").open(newline="") as file:
        marked = {(r["shape"], "eager" in r["source"]) for r in csv.DictReader(file) if r["source"].endswith(" !floor")}
    wanted = {
        (f"bytes={2 * a['message_size']} ranks={a['num_gpus']} library=vllm", True)
        for a, b in zip(shape, late, strict=True)
        if b["latency"] > 1.3 * a["latency"]
    }
    assert marked == wanted and len(wanted) > 30


def test_what_beats_the_roof_is_flagged(tmp_path: Path) -> None:
    roof = 1e3 * float(
        roofline_limits.least_seconds("linear", "bf16", {"m": 1, "n": 8192, "k": 8192}, catalog.hardware("h200"))
    )
    assert roof == pytest.approx(1e3 * (8192 * 8192 + 2 * 8192) * 2 / 4.8e12)
    shape = {"gemm_dtype": "bfloat16", "m": 1, "n": 8192, "k": 8192}
    rows = aic("gemm", shape | {"latency": 0.97 * roof}, kernel="fast")
    rows += aic("gemm", shape | {"latency": 0.99 * roof}, kernel="fair")
    _, counts, said = take(table(tmp_path / "t.csv", rows))
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert counts["roof"] == 1 and "fast !roof" in lines[1] and lines[2].endswith("fair")
    assert any("faster than h200 can be" in line for line in said)
    assert take(table(tmp_path / "t.csv", [row | {"device": ""} for row in rows]), output="x.csv")[1]["roof"] == 0
    assert take(table(tmp_path / "t.csv", [row | {"device": ""} for row in rows]), "h100-sxm", "y.csv")[1]["roof"] == 2


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 50))
def test_roofs_count_the_pairs_under_a_window(new: int, cached: int, window: int) -> None:
    dims = {"seqs": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "new": new, "context": new + cached, "window": window}
    device = catalog.hardware("h200:memory_bandwidth=1e20,flops.bf16=1e9")
    pairs = sum(min(cached + i, window or cached + i) for i in range(1, new + 1))
    assert float(roofline_limits.least_seconds("prefill_attention", "bf16", dims, device)) == pytest.approx(
        4 * pairs / 1e9
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "dims", "seconds"),
    [
        (
            "decode_attention",
            "bf16",
            {"seqs": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "context": 1000},
            4 * 128 * (1000 * 8 * 2 * 2 + 32 * 2 * 2) / 4.8e12,
        ),
        (
            "decode_attention",
            "bf16",
            {"seqs": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "context": 1000, "kv_dtype": "fp8"},
            4 * 128 * (1000 * 8 * 2 * 1 + 32 * 2 * 2) / 4.8e12,
        ),
        (
            "moe",
            "bf16",
            {"tokens": 1, "hidden": 2048, "inner": 768, "experts": 128, "top_k": 8},
            (8 * 3 * 2048 * 768 * 2 + 2048 * 4) / 4.8e12,
        ),
        (
            "moe",
            "bf16",
            {"tokens": 4096, "hidden": 2048, "inner": 768, "experts": 32, "top_k": 8, "ep": 4},
            2 * 4096 * 2 * 3 * 2048 * 768 / 989.4e12,
        ),
        ("all_reduce", "bf16", {"bytes": 450e6, "ranks": 8}, 1e-3),
        ("all_gather", "bf16", {"bytes": 450e6, "ranks": 8}, 7 / 8 * 1e-3),
        ("linear", "w4a16", {"m": 4096, "n": 4096, "k": 4096}, 2 * 4096**3 / 989.4e12),
        ("linear", "fp8", {"m": 4096, "n": 4096, "k": 4096}, 2 * 4096**3 / 1978.9e12),
    ],
)
def test_roofs(kind: str, dtype: str, dims: dict[str, Any], seconds: float) -> None:
    assert float(roofline_limits.least_seconds(kind, dtype, dims, catalog.hardware("h200"))) == pytest.approx(
        seconds, rel=1e-6
    )


def test_every_kind_that_works_has_a_roof() -> None:
    device = catalog.hardware("h200")
    for kind, keys in SHAPE_KEYS.items() - {("launch", ("kernels",)), ("graph_replay", ("kernels",))}:
        dims = {key: np.array([SHAPE_DEFAULTS.get(key, 64)] * 3) for key in keys}
        took = roofline_limits.least_seconds(kind, "bf16", dims, device)
        assert took.shape == (3,) and (took > 0).all(), kind


def test_groups_that_are_too_small_are_left_alone() -> None:
    seconds, roof = np.full(20, 50e-6), np.geomspace(1e-8, 20e-6, 20)
    assert not quality.at_host_floor("linear", ["bf16"] * 20, ["x"] * 20, ["s"] * 20, seconds, roof)[0].any()
    more = np.tile(seconds, 3), np.geomspace(1e-8, 20e-6, 60)
    assert quality.at_host_floor("linear", ["bf16"] * 60, ["x"] * 60, ["s"] * 60, *more)[0].all()
    assert not quality.at_host_floor("rope", ["bf16"] * 60, ["x"] * 60, ["s"] * 60, *more)[
        0
    ].any()  # eager: eight kernels


def test_shapes_are_cells_in_a_fixed_order() -> None:
    assert shape_cells("norm", {"n": [64, 64], "m": [1, 8]}) == ["m=1 n=64", "m=8 n=64"]
    dims = {"tokens": [1], "hidden": [2], "inner": [3], "experts": [4], "top_k": [5], "skew": [0.0], "ep": [1]}
    assert shape_cells("moe", dims) == ["tokens=1 hidden=2 inner=3 experts=4 top_k=5"]
    assert unflagged("vllm 0.24.0 !floor !roof") == "vllm 0.24.0"
