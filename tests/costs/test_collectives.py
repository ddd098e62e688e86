"""The collective model: its properties, its choices, and the error table of docs/accuracy/collectives.md."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
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


def _shipped_links() -> dict[tuple[str, Link], str]:
    """Every kind of link that a device of the catalogue has inside a node: (style, link) -> a device with it."""
    every = {}
    for name in catalog.names("hardware"):
        device = catalog.hardware(name)
        for link_name, link in device.links.items():
            if link_name != "network":
                every[collectives.style(link_name, device.architecture, link), link] = f"{name} {link_name}"
    return every


def _curve(kind: str, engine: str, style: str, link: Link, fused: bool) -> np.ndarray:
    """Seconds by ranks (rows: GROUPS) and message sizes (columns: MESSAGES)."""
    took = collectives.seconds(kind, MESSAGES, GROUPS[:, None], link=link, style=style, engine=engine, fused=fused)
    return np.broadcast_to(took, (GROUPS.size, MESSAGES.size))


GROUPS = np.array([2.0, 3, 4, 5, 6, 8, 16, 64])
MESSAGES = np.unique(np.concatenate([2.0 ** np.arange(3, 34, 0.25), 2.0 ** np.arange(10, 30) - 2]))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("engine", ["", "vllm", "trtllm", "sglang"])
@pytest.mark.parametrize("kind", collectives.KINDS)
def test_laws_of_every_link_in_the_catalogue(kind: str, engine: str, fused: bool) -> None:
    """More bytes are never faster, a wider link is never slower, and nothing beats the links that ranks have."""
    least = np.array([[bound(kind, size, int(n), 1.0) for size in MESSAGES] for n in GROUPS])
    for (style, link), where in _shipped_links().items():
        took = _curve(kind, engine, style, link, fused)
        falls = took[:, 1:] < took[:, :-1] * (1 - 1e-9)
        kernels = collectives.constants().kernels_of.get(engine, engine)
        for group in GROUPS[falls.any(axis=1)]:
            assert not fused and f"{kernels} {style} {group:g}" in _excused(), (where, kind, engine, group)
        wider = msgspec.structs.replace(link, bandwidth=link.bandwidth * 1.3)
        assert (_curve(kind, engine, style, wider, fused) <= took * (1 + 1e-9)).all(), (where, kind, engine)
        of_pair = collectives.bandwidth(link, 2) if kind == "send_recv" else collectives.bandwidth(link, GROUPS)
        roof = np.broadcast_to(of_pair, GROUPS.shape)[:, None]
        assert (took >= least / roof * (1 - 1e-9)).all(), (where, kind, engine)
        if not link.peers:  # a switch that adds up spares bytes: 1.5 times the message with 2 ranks, 1.02 with 64
            assert (took[1:] >= took[:-1] * 0.66).all(), (where, kind, engine)


def _excused() -> set[str]:
    """Where a measured row is slower than a larger one, with all numbers of ranks that use its limits."""
    listed = collectives.constants().smaller_is_slower
    return {f"{key.rpartition(' ')[0]} {n}" for key in listed for n in range(5, 9)}


def test_what_is_excused_was_measured_and_is_needed() -> None:
    for key, source in collectives.constants().smaller_is_slower.items():
        engine, style, ranks = key.split()
        assert "µs" in source or " us " in source
        link = next(link for (name, link) in _shipped_links() if name == style)
        took = collectives.seconds("all_reduce", MESSAGES, float(ranks), link=link, style=style, engine=engine)
        assert (np.diff(took) < 0).any(), key


def test_between_layers_no_engine_takes_its_slower_kernel() -> None:
    device = catalog.hardware("b200")
    link = device.links["nvlink"]
    alone, between = (
        [
            collectives.seconds("all_reduce", s, 8, link=link, style="nvlink-blackwell", engine="vllm", fused=fused)
            for s in (128 * KIB, 256 * KIB, 512 * KIB, MIB)
        ]
        for fused in (False, True)
    )
    assert alone[1] > alone[3] and alone[1] == pytest.approx(25.8e-6, rel=0.05)  # measured: two stages
    assert between == sorted(between) and between[0] == alone[0] and between[3] == pytest.approx(alone[3], rel=0.01)


def test_a_mesh_gives_ranks_the_links_between_them() -> None:
    xgmi = Link(bandwidth=448e9, latency=3e-6, peers=7)
    assert [collectives.bandwidth(xgmi, n) for n in (1, 2, 4, 8, 16)] == [64e9, 64e9, 192e9, 448e9, 448e9]
    assert collectives.bandwidth(NODE, 2) == NODE.bandwidth
    pair = [collectives.seconds("send_recv", 1e9, n, link=xgmi, style="xgmi") for n in (2, 8)]
    assert pair[0] == pair[1] >= 1e9 / 64e9
    torus = Link(bandwidth=200e9, peers=4, wraparound=256)
    assert [collectives.bandwidth(torus, n) for n in (2, 4, 8, 16, 256)] == [50e9, 100e9, 100e9, 100e9, 200e9]
    cube = Link(bandwidth=600e9, peers=6, wraparound=64)
    assert [collectives.bandwidth(cube, n) for n in (2, 4, 8, 64)] == [100e9, 200e9, 300e9, 600e9]
    assert collectives.distance(torus, 4) == pytest.approx(4 / 3)  # of 2 x 2: two at 1 link, one at 2
    assert collectives.distance(xgmi, 8) == 1.0 and collectives.distance(torus, 256) == 8.0


@pytest.mark.parametrize(
    ("gpu", "ranks", "size", "busbw"),
    [
        ("mi300x", 2, 4096 * MIB, 47.7e9),  # stas00/ml-engineering, network/README.md
        ("mi300x", 8, 4096 * MIB, 312.9e9),
        ("mi300x", 8, 8 * MIB, 161.1e9),  # crickett-hpe/hpc-ai-envs pull request 30
        ("gaudi3", 8, 256 * MIB, 513.0e9),  # docs.habana.ai, Collectives_Performance
        ("h200", 4, 8192 * MIB, 363.3e9),  # stas00: a node that no figure was fitted to
        ("h200", 8, 8192 * MIB, 473.1e9),
        ("b200", 4, 8192 * MIB, 673.2e9),
        ("b200", 8, 8192 * MIB, 838.0e9),
        ("rtx5090", 4, 4096 * MIB, 35e9),  # NVIDIA/nccl issue 1639
        ("rtx5090", 8, 4096 * MIB, 28e9),
    ],
)
def test_public_bus_bandwidths_are_met(gpu: str, ranks: int, size: float, busbw: float) -> None:
    device = catalog.hardware(gpu)
    link = device.links[device.interconnect]
    style = collectives.style(device.interconnect, device.architecture, link)
    took = collectives.seconds("all_reduce", size, ranks, link=link, style=style)
    assert 2 * (ranks - 1) / ranks * size / took == pytest.approx(busbw, rel=0.07)


def test_without_peer_to_peer_messages_go_through_the_host() -> None:
    through = catalog.hardware("rtx4090").links["pcie"]
    direct = msgspec.structs.replace(through, peer_to_peer=True)
    assert not through.peer_to_peer
    assert (
        collectives.style("pcie", "ada", through) == "pcie-host" and collectives.style("pcie", "ada", direct) == "pcie"
    )
    for n in (2, 4, 8):
        for size in (8.0, 64 * KIB, 2 * MIB):
            host, peer = (
                collectives.seconds("all_reduce", size, n, link=link, style=collectives.style("pcie", "ada", link))
                for link in (through, direct)
            )
            assert host > peer * 1.05, (n, size)
    smallest = collectives.seconds("all_reduce", 8.0, 8, link=through, style="pcie-host")
    assert smallest == pytest.approx(41e-6, rel=0.05)  # NVIDIA/nccl issue 1530: 40.1 and 42.1 us
    assert collectives.algorithm("all_reduce", 16 * KIB, 2, link=through, style="pcie-host", engine="vllm") == "ring LL"


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
    for style, n in (("pcie", 4), ("pcie-host", 2), ("direct", 8), ("nvlink-hopper", 16)):
        way = collectives.algorithm("all_reduce", 16 * KIB, n, link=NODE, style=style, engine="vllm")
        assert way == "ring LL", (style, n)
    ways = [
        collectives.algorithm("all_reduce", s, 8, link=NODE, style="nvlink-ampere", engine="vllm")
        for s in (32 * KIB, 2 * MIB, 64 * MIB)
    ]
    assert ways == ["vllm one-shot", "vllm two-shot", "ring Simple"]
    assert collectives.algorithm("all_reduce", 16 * KIB, 2, link=NODE, style="pcie", engine="vllm") == "vllm one-shot"
    plain = collectives.seconds("all_reduce", 32 * KIB, 8, **HOPPER)
    assert collectives.seconds("all_reduce", 32 * KIB, 8, engine="sglang", **HOPPER) < plain / 2
    assert collectives.seconds("all_reduce", 32 * KIB, 8, engine="hf", **HOPPER) == plain


def test_every_link_of_every_device_has_a_style() -> None:
    known = collectives.constants()
    for name in catalog.names("hardware"):
        device = catalog.hardware(name)
        for link in device.links:
            assert link in known.names, (name, link)
            assert collectives.style(link, device.architecture, device.links[link]) in known.styles
    assert collectives.style("nvlink", "volta") == "nvlink-ampere"
    assert collectives.style("carrier-pigeon") == "pcie"
    assert collectives.style("carrier-pigeon", link=Link(bandwidth=1e9, peers=3)) == "direct"
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
def benchmark_module() -> Iterator[ModuleType]:
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    module = importlib.import_module("collectives")
    yield module
    sys.path.remove(folder)


def test_the_page_says_what_the_code_gives(benchmark_module: ModuleType) -> None:
    assert benchmark_module.written() == benchmark_module.report(), "run benchmarks/collectives.py --write"


def test_unseen_rows_are_within_the_aim(benchmark_module: ModuleType) -> None:
    """Median error of messages from 64 KiB up, per collective, GPU and library; old NCCL and the odd machine apart."""
    checked = 0
    for rows in benchmark_module.read():
        if rows.source == "nccl 2.23" or rows.style:
            continue
        large = (rows.size >= 64 * KIB) & ~rows.seen
        error = np.abs(benchmark_module.predict(rows) / rows.seconds - 1)[large]
        assert np.median(error) <= 0.15, (rows.kind, rows.gpu, rows.source)
        checked += error.size
    assert checked > 900
