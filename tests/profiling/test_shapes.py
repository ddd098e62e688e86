"""What is measured and what cannot be: shapes from the catalogue in order of worth, and the roofs of devices."""

from __future__ import annotations

import csv
import functools
from collections import Counter

import pytest
from conftest import ROOT

from inferometer.base.errors import UnknownName
from inferometer.costs.kernels import kernel_rows
from inferometer.profiling import campaign, common_sizes, roofline_limits, shape_grid
from inferometer.profiling.microbenchmarks import CASES, KernelBench, Library
from inferometer.specs import catalog

H200 = catalog.hardware("h200")
ROW = {"kind": "linear", "dtype": "bf16", "m": 1, "n": 64, "k": 32}


@functools.cache
def every() -> list[shape_grid.ShapeRow]:
    return shape_grid.all_shapes()


@pytest.mark.slow
def test_shapes_are_those_of_the_catalogue() -> None:
    rows = every()
    assert len(rows) == len({tuple(r.items()) for r in rows})
    assert {r["kind"] for r in rows} == set(CASES)
    assert [tuple(r.items()) for r in shape_grid.all_shapes()] == [tuple(r.items()) for r in rows], (
        "the order is stable"
    )
    assert (6144, 4096) in common_sizes.products()  # qkv_proj of Llama-3.1-8B
    assert (28672, 4096) in common_sizes.products() and (
        28672 // 2,
        4096,
    ) in common_sizes.products()  # whole, and half of it at tp 2
    assert common_sizes.heads()[0] == (32, 8, 128) and {h[2] for h in common_sizes.heads()[:8]} == {
        64,
        80,
        96,
        128,
        192,
        256,
    }
    assert (64, 8, 64, 128) in common_sizes.windows() and (
        16,
        8,
        256,
        4096,
    ) in common_sizes.windows()  # gpt-oss, Gemma 2
    assert (16, 512, 128, 64, 128) in common_sizes.latents()  # DeepSeek-V2-Lite
    assert {"tokens": 1, "hidden": 2048, "inner": 768, "experts": 128, "top_k": 8}.items() <= next(
        r for r in rows if r["kind"] == "moe"
    ).items()
    assert all(r["window"] < r["context"] for r in rows if "window" in r)


def test_shapes_are_written_in_the_profiles_order() -> None:
    for row in every():
        words = list(row)[2:]
        assert words == [key for key in kernel_rows.SHAPE_KEYS[row["kind"]] if key in row], row
        assert all(row[key] != kernel_rows.SHAPE_DEFAULTS[key] for key in words if key in kernel_rows.SHAPE_DEFAULTS)


def test_short_budgets_span_all_kinds() -> None:
    rows = every()
    first = {(r["kind"], r["dtype"]) for r in rows[:450]}
    later = {("chunk_scan", "fp32")}  # another tuning
    assert first == {(r["kind"], r["dtype"]) for r in rows} - later
    early = [r for r in rows[:2000] if r["kind"] == "linear" and r["dtype"] == "bf16"]
    assert {r["m"] for r in early} >= set(shape_grid.ROWS) and len({(r["n"], r["k"]) for r in early}) >= 4
    alone = shape_grid.all_shapes((), "")
    assert not {"all_reduce", "all_to_all"} & {r["kind"] for r in alone}
    assert {r["library"] for r in shape_grid.all_shapes((2,), "gloo") if r["kind"] == "all_gather"} == {"gloo"}


def test_turns_double() -> None:
    long, short = list(range(100)), list(range(100, 103))
    found = list(shape_grid.turns([long, short]))
    assert sorted(found) == list(range(103))
    assert found[: shape_grid.TURN + 3] == [*long[: shape_grid.TURN], *short]


def test_kinds_come_in_the_order_of_their_names_and_may_name_a_format() -> None:
    kinds = campaign.parse_kinds("chunk_scan,moe:mxfp4, prefill_attention:fp8")
    assert kinds == [("chunk_scan", ""), ("moe", "mxfp4"), ("prefill_attention", "fp8")]
    chosen = shape_grid.chosen_shapes(every(), kinds)
    first = [row["kind"] for row in chosen[: 3 * shape_grid.TURN]]
    assert first == [kind for kind, _ in kinds for _ in range(shape_grid.TURN)]
    assert {row["dtype"] for row in chosen if row["kind"] == "moe"} == {"mxfp4"}
    assert all(row["kv_dtype"] == "fp8" for row in chosen if row["kind"] == "prefill_attention")
    assert {(row["new"], row["context"]) for row in chosen if row.get("context")} >= {(8192, 8192), (8192, 65536)}
    tuned = [tuple(row[key] for key in ("value_dim", "chunk")) for row in chosen if row["kind"] == "chunk_scan"]
    assert len({*tuned[: shape_grid.TURN]}) == 1, "a short run tunes one shape"
    with pytest.raises(UnknownName, match="mxfp4"):
        campaign.parse_kinds("moe:mxfp")


# ------------------------------------------------------------------ the roof


@pytest.mark.slow
def test_the_shipped_rows_are_below_no_roof() -> None:
    """No kernel beats the device, with a little for clocks; the weights and caches of these rows rotated."""
    roof, counts = roofline_limits.DeviceLimits(H200.memory_bandwidth, H200), Counter[str]()
    with (ROOT / "benchmarks" / "data" / "h200_kernels.csv").open(newline="") as file:
        for number, line in enumerate(csv.DictReader(file)):
            if number % 7:  # one in seven: all take seconds
                continue
            shape = {k: int(v) for k, v in (piece.split("=") for piece in line["shape"].split())}
            row = {"kind": line["kind"], "dtype": line["dtype"], **shape}
            counts[line["kind"]] += 1
            cold = shape["n"] * shape["k"] * catalog.precision(line["dtype"]).bytes if line["kind"] == "linear" else 0.0
            assert not roof.refuses(row, float(line["seconds"]), cold), line
            assert roof.refuses(row, roof.least(row, cold) * 0.9, cold) or not roof.least(row, cold)
    assert counts["linear"] > 1_000 and counts["decode_attention"] > 100


def test_the_roof_counts_what_must_be_fetched_and_computed() -> None:
    roof = roofline_limits.DeviceLimits(H200.memory_bandwidth, H200)
    small = {"kind": "linear", "dtype": "bf16", "m": 1, "n": 4096, "k": 4096}
    assert roof.least(small, 2 * 4096**2) == pytest.approx(2 * 4096**2 / 4.8e12)
    assert roof.least({**small, "m": 8192}) == pytest.approx(2 * 8192 * 4096**2 / 989.4e12)
    assert roof.least({**small, "m": 8192, "dtype": "fp8"}) == pytest.approx(2 * 8192 * 4096**2 / 1978.9e12)
    assert roof.least({"kind": "launch", "dtype": "bf16", "kernels": 64}) == 0
    assert roofline_limits.DeviceLimits().least({**small, "m": 8192}, 1e12) == 0, "nothing is known of this device"


@pytest.mark.parametrize(
    ("name", "memory", "found"),
    [
        ("NVIDIA H200", 150_109_880_320, "h200"),
        ("NVIDIA H100 80GB HBM3", 85e9, "h100-sxm"),
        ("NVIDIA H100 PCIe", 85e9, "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", 85e9, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 42.3e9, "a100-sxm-40gb"),
        ("NVIDIA L40S", 47.7e9, "l40s"),
        ("NVIDIA GeForce RTX 4090", 25.3e9, "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", 51e9, "rtx-6000-ada"),
        ("Tesla V100-SXM2-32GB", 34e9, "v100-sxm-32gb"),
        ("NVIDIA B200", 191e9, "b200"),
        ("NVIDIA H200", 80e9, None),  # a slice of one: its peaks are others
        ("Nobody's GPU", 80e9, None),
    ],
)
def test_devices_are_known_by_their_drivers_names(name: str, memory: float, found: str | None) -> None:
    device = roofline_limits.catalogue_device(name, memory)
    assert (device.name if device else None) == found


def test_a_strange_device_is_held_to_what_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = KernelBench(pytest.importorskip("torch", reason="PyTorch is not installed"), "cpu", Library(), 1e4)
    monkeypatch.setattr(roofline_limits, "COPY", 1 << 22)
    rate = roofline_limits.copy_bandwidth(cpu)
    assert 1e8 < rate < 1e13
    monkeypatch.setattr(roofline_limits, "copy_bandwidth", lambda where: 1e12)
    monkeypatch.setattr(KernelBench, "gpu", True)
    found = roofline_limits.device_limits(cpu, {"device": "Nobody's GPU", "memory": 8e10})
    assert found == roofline_limits.DeviceLimits(1e12 / roofline_limits.REACH, None)
    assert found.refuses(ROW, 1e-6, cold=2e6) and not found.refuses(ROW, 2e-6, cold=2e6)
    known = roofline_limits.device_limits(cpu, {"device": "NVIDIA H200", "memory": 1.5e11}).device
    assert known is not None and known.name == "h200"
