"""The collective model: its properties, its choices, and the error table of docs/accuracy.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.base.errors import UnknownName
from inferometer.costs import collectives
from inferometer.specs import catalog
from inferometer.specs.structs import Link

STYLES = sorted(collectives.constants().styles)
NODE = Link(bandwidth=450e9, latency=2e-6)
NETWORK = Link(bandwidth=50e9, latency=8e-6)
HOPPER: dict[str, Any] = {"link": NODE, "style": "nvlink-hopper"}
KIB, MIB = 2**10, 2**20

kinds = st.sampled_from(collectives.KINDS)
styles = st.sampled_from(STYLES)
engines = st.sampled_from(["", "vllm", "trtllm", "sglang"])
sizes = st.floats(1, 1e10)
ranks = st.integers(2, 64)


def bound(kind: str, size: float, n: int, bandwidth: float) -> float:
    """Seconds that no algorithm can beat; a switch that adds up spares an all-reduce nearly half of its bytes."""
    factor = {"all_reduce": min(2 * (n - 1) / n, (n + 1) / n), "send_recv": 1.0, "broadcast": 1.0}
    return size * factor.get(kind, (n - 1) / n) / bandwidth


@given(kinds, sizes, styles, engines)
def test_one_rank_needs_no_time(kind: str, size: float, style: str, engine: str) -> None:
    assert collectives.seconds(kind, size, 1, link=NODE, style=style, engine=engine) == 0.0
    assert collectives.seconds(kind, 0.0, 8, link=NODE, style=style, engine=engine) == 0.0


@given(kinds, sizes, st.floats(1, 100), ranks, styles)
def test_more_bytes_never_take_less(kind: str, size: float, factor: float, n: int, style: str) -> None:
    less, more = (collectives.seconds(kind, s, n, link=NODE, style=style) for s in (size, size * factor))
    assert 0 < less <= more * (1 + 1e-12)


@given(sizes, st.floats(1, 100), st.integers(2, 8), st.sampled_from(["nvlink-ampere", "nvlink-hopper"]))
def test_engine_kernels_are_monotone_where_they_start_at_zero(size: float, factor: float, n: int, style: str) -> None:
    for engine in ("vllm", "trtllm"):
        less, more = (
            collectives.seconds("all_reduce", s, n, link=NODE, style=style, engine=engine)
            for s in (size, size * factor)
        )
        assert less <= more * (1 + 1e-12)


@given(kinds, sizes, ranks, styles, engines, st.floats(1, 10))
def test_more_bandwidth_is_never_slower(kind: str, size: float, n: int, style: str, engine: str, factor: float) -> None:
    wide = Link(bandwidth=NODE.bandwidth * factor, latency=NODE.latency)
    narrow = collectives.seconds(kind, size, n, link=NODE, style=style, engine=engine)
    assert collectives.seconds(kind, size, n, link=wide, style=style, engine=engine) <= narrow * (1 + 1e-12)
    fast = Link(bandwidth=NETWORK.bandwidth * factor, latency=NETWORK.latency)
    there = [
        collectives.seconds(kind, size, n, link=NODE, style=style, network=net, per_node=8) for net in (NETWORK, fast)
    ]
    assert there[1] <= there[0] * (1 + 1e-12)


@given(kinds, sizes, ranks, styles, engines)
def test_never_below_the_bandwidth_bound(kind: str, size: float, n: int, style: str, engine: str) -> None:
    took = collectives.seconds(kind, size, n, link=NODE, style=style, engine=engine)
    assert took >= bound(kind, size, n, NODE.bandwidth)


@given(kinds, sizes, st.integers(2, 16), st.sampled_from([2, 4, 8]))
def test_nodes_cost_more_than_one_and_no_less_than_the_network_allows(
    kind: str, size: float, nodes: int, per_node: int
) -> None:
    across = collectives.seconds(kind, size, nodes * per_node, network=NETWORK, per_node=per_node, **HOPPER)
    share = per_node / (nodes * per_node) if kind == "all_to_all" else 1.0  # what stays in the node
    assert across >= collectives.seconds(kind, size * share, per_node, **HOPPER) * (0 if kind == "send_recv" else 1)
    rail = {"all_reduce": 2 * (nodes - 1) / nodes / per_node, "all_to_all": (nodes - 1) / nodes}
    rail |= {"send_recv": 1.0, "broadcast": 1 / per_node}
    least = size * rail.get(kind, (nodes - 1) / nodes / per_node) / NETWORK.bandwidth
    assert across >= least


@given(kinds, sizes, ranks)
def test_a_network_that_is_not_crossed_costs_nothing(kind: str, size: float, n: int) -> None:
    alone = collectives.seconds(kind, size, n, **HOPPER)
    assert collectives.seconds(kind, size, n, network=NETWORK, per_node=64, **HOPPER) == alone


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", collectives.KINDS)
@pytest.mark.parametrize("engine", ["", "vllm", "trtllm"])
def test_arrays_give_what_numbers_give(kind: str, style: str, engine: str) -> None:
    size, n = (a.ravel() for a in np.meshgrid([0.0, *np.geomspace(1, 1e9, 11)], [1.0, 2, 4, 6, 8, 12, 32]))
    for more in ({}, {"network": NETWORK, "per_node": 8}, {"network": NETWORK, "per_node": np.full(n.shape, 4.0)}):
        every = collectives.seconds(kind, size, n, link=NODE, style=style, engine=engine, **more)
        for i in range(size.size):
            one = {k: float(v[i]) if isinstance(v, np.ndarray) else v for k, v in more.items()}
            alone = collectives.seconds(kind, float(size[i]), float(n[i]), link=NODE, style=style, engine=engine, **one)
            assert isinstance(alone, float) and every[i] == pytest.approx(alone, rel=1e-12)


def test_protocols_change_with_the_size() -> None:
    def way(kind: str, size: float, n: int, **more: Any) -> str:
        return collectives.algorithm(kind, size, n, **HOPPER, **more)

    assert [way("all_reduce", s, 8) for s in (4 * KIB, 256 * KIB, 16 * MIB, 512 * MIB)] == [
        "ring LL",
        "ring LL128",
        "ring Simple",
        "switch",
    ]
    assert [way("all_to_all", s, 8) for s in (4 * KIB, 4 * MIB)] == ["pairs LL", "pairs Simple"]
    assert [way("all_reduce", s, 8, engine="vllm") for s in (64 * KIB, 4 * MIB)] == ["vllm one-shot", "vllm switch"]
    assert way("all_reduce", 512 * MIB, 8, engine="vllm") == "switch"  # beyond the engine's limit it is NCCL's
    assert way("all_reduce", 64 * KIB, 1) == ""
    crossing: dict[str, Any] = {"network": NETWORK, "per_node": 8}
    assert way("all_reduce", 4 * KIB, 64, **crossing) == "tree LL"
    assert way("all_reduce", 1024 * MIB, 64, **crossing) == "ring Simple"
    assert way("all_reduce", 4 * KIB, 16, engine="vllm", **crossing) == "ring LL"  # no engine kernel leaves a node


def test_engine_kernels_need_a_fully_connected_node_and_few_ranks() -> None:
    for style, n in (("pcie", 4), ("direct", 8), ("nvlink-hopper", 16)):
        way = collectives.algorithm("all_reduce", 16 * KIB, n, link=NODE, style=style, engine="vllm")
        assert way == "ring LL", (style, n)
    ways = [
        collectives.algorithm("all_reduce", s, 8, link=NODE, style="nvlink-ampere", engine="vllm")
        for s in (32 * KIB, 2 * MIB, 64 * MIB)
    ]
    assert ways == ["vllm one-shot", "vllm two-shot", "ring Simple"]
    plain = collectives.seconds("all_reduce", 32 * KIB, 8, **HOPPER)
    assert collectives.seconds("all_reduce", 32 * KIB, 8, engine="sglang", **HOPPER) < plain / 2
    assert collectives.seconds("all_reduce", 32 * KIB, 8, engine="hf", **HOPPER) == plain


def test_every_link_of_every_device_has_a_style() -> None:
    known = collectives.constants()
    for name in catalog.names("hardware"):
        device = catalog.hardware(name)
        for link in device.links:
            assert link in known.names, (name, link)
            assert collectives.style(link, device.architecture) in known.styles
    assert collectives.style("nvlink", "volta") == "nvlink-ampere"
    assert collectives.style("carrier-pigeon") == "pcie"
    assert all(style.source for style in known.styles.values())


def test_shares_of_a_link_are_shares() -> None:
    known = collectives.constants()
    protocols = [p for s in known.styles.values() for t in (s.ring, s.pairs, s.tree) for p in t.values()]
    protocols += [s.switch for s in known.styles.values() if s.switch]
    protocols += [p for e in known.engines.values() for t in e.values() for p in t.values()]
    assert all(0 < p.efficiency <= 1 and p.start >= 0 and p.hop >= 0 and p.copy >= 0 for p in protocols)


def test_unknown_names_are_sentences() -> None:
    with pytest.raises(UnknownName, match="all_reduce"):
        collectives.seconds("allreduce", 1.0, 2, **HOPPER)
    with pytest.raises(UnknownName, match="nvlink-hopper"):
        collectives.seconds("all_reduce", 1.0, 2, link=NODE, style="nvlink-hoper")


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "collectives.py"
    spec = importlib.util.spec_from_file_location("benchmark_collectives", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.tables() is None:
        pytest.skip("the measured tables are not at hand (INFEROMETER_SHARED)")
    pytest.importorskip("pyarrow", reason="pyarrow reads the measured tables")
    return module


def test_the_page_says_what_the_code_gives(benchmark_module: ModuleType) -> None:
    assert benchmark_module.written() == benchmark_module.report(benchmark_module.tables()), (
        "run benchmarks/collectives.py --write"
    )


def test_unseen_rows_are_within_the_aim(benchmark_module: ModuleType) -> None:
    """Median error of messages from 64 KiB up, per collective, GPU and library; old NCCL and the odd machine apart."""
    checked = 0
    for rows in benchmark_module.read(benchmark_module.tables()):
        if rows.source == "nccl 2.23" or rows.style:
            continue
        large = (rows.size >= 64 * KIB) & ~rows.seen
        error = np.abs(benchmark_module.predict(rows) / rows.seconds - 1)[large]
        assert np.median(error) <= 0.15, (rows.kind, rows.gpu, rows.source)
        checked += error.size
    assert checked > 900
