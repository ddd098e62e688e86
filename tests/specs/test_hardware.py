"""Hardware files: figures that can be true, each with its source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from inferometer import analyze
from inferometer.base.errors import BadValue, UnknownName
from inferometer.specs import catalog
from inferometer.specs.structs import Hardware


@pytest.fixture(params=catalog.names("hardware"))
def device(request: pytest.FixtureRequest) -> Hardware:
    return catalog.hardware(request.param)


def test_every_figure_has_a_source(device: Hardware) -> None:
    written = tomllib.loads((catalog.DATA / "hardware" / f"{device.name}.toml").read_text(encoding="utf-8"))
    figures = [k for k, v in written.items() if isinstance(v, int | float) and k != "gpus_per_node"]
    for key in ("memory", "memory_bandwidth", "flops", *figures, *(f"links.{link}" for link in device.links)):
        assert device.source.get(key), f"{device.name}: no source for {key}"


def test_sources_name_something(device: Hardware) -> None:
    for key, source in device.source.items():
        assert len(source) >= 10 and not re.search(r"from memory|undated|as last known", source), (device.name, key)
    if device.price_per_hour:
        assert re.search(r"\b20\d\d-[01]\d", device.source["price_per_hour"]), device.name
    assert device.source["memory_kind"]


def test_devices_that_others_are_derived_from_have_all_figures(device: Hardware) -> None:
    if device.vendor in ("NVIDIA", "AMD"):
        assert device.compute_units > 1 and device.clock and device.power and device.cache


# Dense fp16 FLOP per clock of an SM, with fp32 accumulation; GeForce cards and some export or cloud models have half.
FLOP_PER_CLOCK = {"volta": 1024, "turing": 1024, "ampere": 1024, "ada": 1024, "hopper": 4096, "blackwell": 8192}


def test_nvidia_peaks_are_those_of_their_sms_and_clock(device: Hardware) -> None:
    rate = FLOP_PER_CLOCK.get(device.architecture)
    if rate is None or device.name == "h20":  # its tensor peaks are capped
        return
    peak = device.flops.get("bf16") or device.flops["fp16"]
    of_rate = peak / (device.compute_units * device.clock * rate)
    assert any(of_rate == pytest.approx(share, rel=0.03) for share in (2, 1, 1 / 2, 1 / 8, 1 / 16)), of_rate


def test_corrected_figures() -> None:
    """Figures that popular tables have wrong, or that an earlier version had."""
    gib = 2**30
    b200, gaudi3, h100 = (catalog.hardware(name) for name in ("b200", "gaudi3", "h100"))
    assert b200.memory == pytest.approx(178.35 * gib, rel=1e-4)
    assert h100.memory == pytest.approx(79.11 * gib, rel=1e-4)
    assert gaudi3.flops["bf16"] == gaudi3.flops["fp8"] == 1677e12 and gaudi3.clock == 1.6e9
    assert catalog.hardware("b300").flops["int8"] == 153.5e12
    reach = {
        name: catalog.hardware(name).reach_flops for name in ("h100", "mi300x", "mi355x", "gaudi2", "a100", "gb200")
    }
    assert reach == {"h100": 1.0, "mi300x": 0.637, "mi355x": 0.774, "gaudi2": 1.21, "a100": 1.08, "gb200": 0.908}


def test_figures_are_in_si_units_and_plausible(device: Hardware) -> None:
    assert 4e9 <= device.memory <= 2e12 and 5e10 <= device.memory_bandwidth <= 4e13
    assert all(1e11 <= value <= 5e16 for value in device.flops.values()), device.flops
    assert 1 <= device.compute_units <= 20000 and 10 <= device.power <= 3000
    assert 0 <= device.price_per_hour < 100
    assert device.label and device.vendor and device.interconnect in device.links
    for link in device.links.values():
        assert 1e9 <= link.bandwidth <= 4e12 and 0 < link.latency < 1e-3 and link.devices >= 1
        assert not link.wraparound or link.peers % 2 == 0  # a torus has two links along each side
        assert not link.peers or link.wraparound or link.devices <= 2 * link.peers  # a mesh reaches most of its domain
    assert device.cache < 2e9 and 0 <= device.clock < 1e10


def test_the_kind_of_memory_is_known_and_fits_its_bandwidth(device: Hardware) -> None:
    """A figure in the wrong unit, or a card filed under its sibling's memory, is outside of what its kind can do."""
    slowest, fastest = {"hbm": (0.8e12, 3e13), "gdd": (0.25e12, 2e12), "lpd": (5e10, 0.9e12), "ddr": (5e10, 0.7e12)}[
        device.memory_kind[:3]
    ]
    assert slowest <= device.memory_bandwidth <= fastest


def test_an_unknown_kind_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'memory = 80e9\nmemory_bandwidth = 2e12\nmemory_kind = "hbm3x"\n[flops]\nbf16 = 1e14\n', encoding="utf-8"
    )
    with pytest.raises(UnknownName, match="hbm3"):
        catalog.hardware(str(path))


def test_fewer_bits_are_never_slower(device: Hardware) -> None:
    flops = device.flops
    assert flops.keys() & {"bf16", "fp16"} or "fp32" in flops
    for wide, narrow in (
        ("fp64", "bf16"),
        ("fp32", "fp16"),
        ("tf32", "bf16"),
        ("bf16", "fp8"),
        ("fp16", "int8"),
        ("fp8", "fp4"),
        ("int8", "int4"),
    ):
        cut = narrow == "int8" and device.name in ("b300", "gb300", "rubin")  # they have hardly any int8 units
        if wide in flops and narrow in flops and not cut:
            assert flops[wide] <= flops[narrow] * 1.01, (wide, narrow)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *(
            (name, name)
            for name in ("a10g", "l20", "h200-nvl", "mi350x", "mi308x", "rtx-pro-5000", "rtx-pro-6000-maxq")
        ),
        *(
            (name, name)
            for name in ("jetson-thor", "m4-pro", "m5", "m5-max", "trainium3", "ascend-910c", "rubin", "mi455x")
        ),
        *((name, name) for name in ("radeon-r9700", "strix-halo", "gh200-144gb", "h100-sxm-94gb")),
        ("RTX 5080", "rtx5080"),
        ("A10G", "a10g"),
        ("DGX Spark", "gb10"),
        ("GB10", "gb10"),
        ("M3 Ultra", "m3-ultra"),
        ("trn2", "trainium2"),
        ("inf2", "inferentia2"),
        ("Arc Pro B60", "arc-b60"),
        ("RX 7900 XTX", "rx7900xtx"),
        ("Ryzen AI Max+ 395", "strix-halo"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("Jetson AGX Thor", "jetson-thor"),
        ("Vera Rubin", "rubin"),
    ],
)
def test_names_that_users_type(spelling: str, name: str) -> None:
    assert catalog.hardware(spelling).name == name


@pytest.mark.parametrize("name", ["groq", "cerebras-wse3", "sambanova-sn40l"])
def test_chips_without_a_memory_roofline_are_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        catalog.hardware(name)


def test_memory_in_the_name_is_the_memory(device: Hardware) -> None:
    stated = [
        int(word.removesuffix("gb")) for word in device.name.split("-") if word.endswith("gb") and word[:-2].isdigit()
    ]
    for number in stated:
        assert number * 1e9 * 0.93 <= device.memory <= number * 2**30 * 1.02


def test_flops_are_dense() -> None:
    """The figures that data sheets print next to a sparsity footnote, halved."""
    dense = {
        "h100-sxm": 989.4e12,
        "h200": 989.4e12,
        "a100-sxm-80gb": 312e12,
        "l40s": 362e12,
        "b200": 2.25e15,
        "rtx4090": 165.2e12,
        "mi300x": 1307e12,
    }
    for name, bf16 in dense.items():
        assert catalog.hardware(name).flops["bf16"] == pytest.approx(bf16, rel=0.03), name


def test_every_device_runs_a_small_model(device: Hardware) -> None:
    found = analyze("qwen3-0.6b", gpu=device.name, input_len=128, output_len=8)
    assert found.feasible, found.reason
    assert found.metrics.tpot_ms and 0.05 < found.metrics.tpot_ms < 200


def test_what_the_best_kernels_reach_is_a_share() -> None:
    with pytest.raises(BadValue, match="reach_flops must be zero or more"):
        catalog.hardware("h100-sxm:reach_flops=5e-324")


@pytest.mark.parametrize("figure", ["throttle=12", "throttle_decode=400"])
def test_falling_clocks_are_shares(figure: str) -> None:
    with pytest.raises(BadValue, match="is a share, or seconds: at most 10"):
        catalog.hardware(f"h200:{figure}")


@pytest.mark.parametrize("name", ["throttle_after", "throttle_decode"])
@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "1e-300"])
def test_falling_clocks_need_a_time_and_a_number_of_sequences(name: str, value: str) -> None:
    """Both divide: nothing of either was an internal error, and nan an answer without a number."""
    with pytest.raises(BadValue, match=f"{name} must be"):
        catalog.hardware(f"h200:{name}={value}")
