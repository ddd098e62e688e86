"""Devices without kernel tables: whose tables serve them, and how those are carried over."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from itertools import permutations
from types import ModuleType

import pytest
from conftest import ROOT
from helpers.plans import bound_plan
from msgspec.structs import replace

from inferometer import analyze
from inferometer.costs.binding import bind, step_rows
from inferometer.costs.kernels.registry import donors, installed, left_out, matrix_units, reach, relative_reach
from inferometer.costs.step import Group, Step
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Hardware, Plan

STEPS = [Step((Group(n, 1.0, c, decode=True),)) for n, c in ((1.0, 512.0), (32.0, 4096.0), (200.0, 1000.0))] + [
    Step((Group(1.0, n, 0.0),)) for n in (100.0, 1024.0, 8192.0)
]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module("left_out_gpu")


def nearest(gpu: str, engine: str = "vllm") -> list[str]:
    return [donor.device.name for donor in donors(catalog.hardware(gpu), engine)]


def test_donors_are_chosen_by_what_the_hardware_is() -> None:
    assert nearest("rtx4090")[0] == nearest("rtx5090")[0] == nearest("t4")[0] == "l40s"
    assert nearest("h800")[:2] == ["h100-sxm", "h200"] and nearest("b300")[0] == "b200"
    assert nearest("rtx3090")[:2] == ["l40s", "a100-sxm-80gb"], "GDDR, then the same architecture"
    assert nearest("a30")[0] == "a100-sxm-80gb" and nearest("mi300x") == nearest("tpu-v5e") == []
    assert nearest("rtx5090")[-1] == "b200", "a GDDR card of the Blackwell generation is not a small B200"
    assert matrix_units(catalog.hardware("rtx5090")) == 0 and matrix_units(catalog.hardware("b300")) == 2
    assert donors(catalog.hardware("h20"), "trtllm")[0].engines[0] == "trtllm"
    assert set(installed()) == {"a100-sxm-80gb", "b200", "h100-sxm", "h200", "l40s"}


def test_a_card_with_other_memory_has_other_donors() -> None:
    card = catalog.hardware("rtx5090")
    with_hbm = replace(card, memory_kind="hbm3e")
    assert donors(card, "vllm")[0].device.name == "l40s" and donors(with_hbm, "vllm")[0].device.name == "b200"


def test_shares_of_the_peaks_come_from_memory_and_power() -> None:
    shares = {name: reach(catalog.hardware(name)) for name in ("h100-sxm", "a100-sxm-80gb", "a40", "l4", "rtx3090")}
    assert shares["h100-sxm"] == (0.803, 0.88)
    assert shares["a100-sxm-80gb"] == pytest.approx((0.867, 0.79), abs=1e-3)
    assert shares["a40"].flops == pytest.approx(300 / (2.5e-12 * 149.7e12)) and shares["a40"].memory == 0.8
    assert shares["l4"].flops < 0.5 < shares["rtx3090"].flops, "72 W do not feed the FLOP/s of an L4"
    assert relative_reach(catalog.hardware("mi300x")) == pytest.approx((0.637, 1.0))


def test_products_of_an_mi300x_reach_what_was_measured() -> None:
    """668 TFLOP/s is the best that anybody timed (stas00's table); a prompt's products do not beat it."""
    rows = step_rows(bound_plan("llama-3.1-8b", "mi300x"), STEPS[-1])
    product = next(row for row in rows if row.op.name == "gate_up_proj")
    assert product.origin == "assumed"
    assert 500e12 < product.work["flops"] / product.seconds < 668e12


def seconds_of(device: Hardware, model: str, step: Step, kinds: frozenset[str] | None = None, **plan: str) -> float:
    graph = families.build(catalog.model(model).config)
    rows = step_rows(bind(graph, device, catalog.engine("vllm"), Plan(**plan)), step)  # type: ignore[arg-type]
    kernels = [row for row in rows if row.op.kind != "host" and (kinds is None or row.op.kind in kinds)]
    return float(sum(row.seconds * row.count for row in kernels))


@pytest.mark.parametrize(("equal", "donor"), [("h800", "h100-sxm"), ("a800-sxm-80gb", "a100-sxm-80gb")])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_a_device_equal_to_a_donor_has_its_figures(equal: str, donor: str, model: str) -> None:
    for step in STEPS:
        took = [seconds_of(catalog.hardware(name), model, step) for name in (equal, donor)]
        assert took[0] == pytest.approx(took[1], rel=1e-9)


def _generation(device: Hardware) -> tuple[str, int]:
    return device.architecture, matrix_units(device)


def _dominates(a: Hardware, b: Hardware) -> bool:
    """Whether a device is as good as another of its generation in every figure that kernels depend on."""
    pairs = [
        (a.memory_bandwidth, b.memory_bandwidth),
        (a.compute_units * a.clock, b.compute_units * b.clock),
        *zip(reach(a), reach(b), strict=True),
        *((a.flops.get(name, 0.0), value) for name, value in b.flops.items()),
    ]
    return a.name != b.name and _generation(a) == _generation(b) and all(x >= y for x, y in pairs)


PLANS: dict[str, dict[str, str]] = {"llama-3.1-8b": {}, "qwen3-30b-a3b": {"quantization": "fp8"}}


@pytest.mark.slow
def test_a_device_that_dominates_another_of_its_generation_is_never_slower() -> None:
    devices = [catalog.hardware(name) for name in catalog.names("hardware")]
    nvidia = [device for device in devices if device.vendor == "NVIDIA" and "bf16" in device.flops]
    curves = {"h200", "rtx4090"}  # measured at the very shapes on one machine: no surface repeats that to the digit
    took = cache(lambda name, model, at: seconds_of(catalog.hardware(name), model, STEPS[at], **PLANS[model]))
    checked = 0
    for better, worse in permutations(nvidia, 2):
        if (
            not _dominates(better, worse)
            or {better.name, worse.name} & curves
            or {better.name, worse.name} <= set(installed())
        ):
            continue
        for model in PLANS:
            for at in range(1, len(STEPS), 2):
                fast, slow = (took(device.name, model, at) for device in (better, worse))
                assert fast <= slow * (1 + 1e-9), (better.name, worse.name, model, STEPS[at])
                checked += 1
    assert checked > 50


def test_the_origin_names_the_donors() -> None:
    ops = {
        gpu: next(row for row in step_rows(bound_plan("llama-3.1-8b", gpu), STEPS[0]) if row.op.name == "gate_up_proj")
        for gpu in ("h20", "rtx5090")
    }
    assert ops["h20"].origin == "fitted" and ops["rtx5090"].origin == "assumed"
    warning = next(text for text in analyze("llama-3.1-8b", "rtx5090").warnings if "are scaled from" in text)
    assert "L40S (GDDR6, " in warning and "octaves away)" in warning and "B200" not in warning
    assert not any("are scaled from" in text for text in analyze("llama-3.1-8b", "h20").warnings)


# ------------------------------------------------------------------ GPUs left out: a little above what the page shows

DECODE = {"a100-sxm-80gb": 0.08, "h100-sxm": 0.05, "h200": 0.06, "b200": 0.11, "l40s": 0.05, "rtx4090": 0.04}
PREFILL = {"a100-sxm-80gb": 0.10, "h100-sxm": 0.05, "h200": 0.10, "b200": 0.14, "l40s": 0.06, "rtx4090": 0.12}


@pytest.mark.slow
def test_whole_steps_of_gpus_left_out(benchmark: ModuleType) -> None:
    groups = benchmark.grouped(list(benchmark.comparisons()), "gpu", "phase")
    errors = {key: benchmark.median_error(values) for key, values in groups.items()}
    for gpu in benchmark.GPUS:
        assert errors[gpu, "decode"] < DECODE[gpu] <= 0.12, gpu
        assert errors[gpu, "prefill"] < PREFILL[gpu], gpu


def test_two_gpus_left_out_are_met(benchmark: ModuleType) -> None:
    """A subset for quick runs: an L40S and an A100 without their tables, which a data sheet alone misses by a third."""
    rows = list(benchmark.comparisons(("a100-sxm-80gb", "l40s"), ("llama-3.1-8b", "mixtral-8x7b-v0.1 tp2")))
    for (gpu, phase), values in benchmark.grouped(rows, "gpu", "phase").items():
        own, _, light = values
        assert benchmark.median_error(values) < (0.08 if phase == "decode" else 0.13), (gpu, phase)
        assert benchmark.median_error([own, light]) > 0.15, "the roofline is no prediction"


def test_left_out_hides_a_gpu_from_its_relatives_too() -> None:
    with left_out("h100-sxm"):
        assert nearest("h800") == ["h200", "b200", "a100-sxm-80gb", "l40s"]
    assert nearest("h800")[0] == "h100-sxm"
