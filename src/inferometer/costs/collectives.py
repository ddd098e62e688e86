"""How long a collective takes, as NCCL or an engine's own kernels would run it.

    h200 = catalog.hardware("h200")
    link, kind = h200.links["nvlink"], style("nvlink", h200.architecture)      # kind: 'nvlink-hopper'
    seconds("all_reduce", 64e6, 8, link=link, style=kind)                      # 0.00031
    algorithm("all_reduce", 65536, 8, link=link, style=kind, engine="vllm")    # 'vllm one-shot'

Every way of doing it is one line:

    start + hops·hop·latency + wire/(bandwidth·efficiency) + own/(bandwidth·copy)

where *hops* messages follow one another, *wire* bytes leave each device and *own* bytes it copies to itself, as the
collective, the algorithm and the ranks have it; start, hop, efficiency and copy are the protocol's figures, by style
of link, in data/collectives.toml. The fastest way is taken. Between nodes a second such line joins it for the
network: latencies add up, while the bytes of both levels flow at the same time, as NCCL pipelines them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from ..base.errors import UnknownName
from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..specs import catalog
from ..specs.structs import Link, Spec

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")


class Protocol(Spec, frozen=True, kw_only=True):
    """One way to move bytes, as it was measured."""

    start: float = 0.0  # s, whatever the size
    hop: float = 0.0  # per message in a row, in latencies of the link
    efficiency: float = 1.0  # share of the link's bandwidth
    copy: float = 0.0  # rate of a device's copy to itself, in bandwidths of the link; 0: there is none
    sizes: dict[str, tuple[float, float]] = msgspec.field(
        default_factory=dict
    )  # bytes from, to, by ranks up to; {}: all


class Style(Spec, frozen=True, kw_only=True):
    """A kind of link: what NCCL reaches on it."""

    ring: dict[str, Protocol]
    pairs: dict[str, Protocol]  # every rank to every other: all-to-all, send and receive
    tree: dict[str, Protocol] = msgspec.field(default_factory=dict)  # between nodes
    switch: Protocol | None = None  # the switch adds up (NVLS)
    crowd: float = 0.0  # what n ranks leave each other of a shared path: (2/n)^crowd
    origin: Literal["fitted", "assumed"] = "fitted"
    source: str = ""


class CollectiveConstants(Spec, frozen=True, kw_only=True):
    """The file: links by name, styles of links, and the kernels that engines bring along."""

    names: dict[str, str]  # a link's name, or name-architecture, -> its style
    styles: dict[str, Style]
    engines: dict[str, dict[str, dict[str, Protocol]]]  # engine -> style -> algorithm
    alike: dict[str, str] = msgspec.field(default_factory=dict)  # an engine that was not measured -> one that was
    borrowed: tuple[str, ...] = ()  # names whose style was measured on another kind of link
    untried: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # engine -> styles it was not measured on
    source: dict[str, str] = msgspec.field(default_factory=dict)


@functools.cache
def constants() -> CollectiveConstants:
    """data/collectives.toml, read once."""
    return catalog.constants("collectives", CollectiveConstants)


def style(name: str, architecture: str = "") -> str:
    """The style of a link: ``style("nvlink", "hopper")  # 'nvlink-hopper'``; one that nobody knows is like PCIe."""
    names = constants().names
    return names.get(f"{name}-{architecture}", names.get(name, "pcie"))


def origin(kind: str, name: str, architecture: str = "", engine: str = "", *, spans_nodes: bool = False) -> str:
    """Where the figures come from: ``origin("all_reduce", "xgmi", "cdna3")  # 'assumed'``

    Fitted on a link of this kind, or assumed: like another kind of link, like another engine's kernels, the network.
    """
    data, mine = constants(), style(name, architecture)
    if spans_nodes and data.styles["network"].origin == "assumed":
        return "assumed"
    known = f"{name}-{architecture}" if f"{name}-{architecture}" in data.names else name
    if known not in data.names or known in data.borrowed:
        return "assumed"
    own = kind == "all_reduce" and mine in data.engines.get(data.alike.get(engine, engine), {})
    if own and (engine in data.alike or mine in data.untried.get(engine, ())):
        return "assumed"
    return data.styles[mine].origin


def seconds(
    kind: str,
    size: Value,
    ranks: Value,
    *,
    link: Link,
    style: str,
    network: Link | None = None,
    per_node: Value | None = None,
    engine: str = "",
) -> Value:
    """Seconds of one collective; any of ``size``, ``ranks`` and ``per_node`` may be arrays.

    ``size`` is in bytes and means what NCCL's tests mean by it, the whole tensor. all_reduce, broadcast and send_recv:
    what a rank holds. all_gather: what a rank holds afterwards. reduce_scatter: what it held before. all_to_all: all
    that a rank has to give, its own share (1/ranks) included. One rank needs no time, nor does an empty tensor.

    With ``network`` and ``per_node``, more ranks than that span nodes; each device has a network link of its own.
    send_recv is then between neighbours on two nodes. ``engine`` says whose all-reduce kernels are at hand (``vllm``,
    ``trtllm``, ``sglang``); others have NCCL's alone.
    """
    best: Value = math.inf
    for way in _ways(kind, size, ranks, link, style, network, per_node, engine):
        best = minimum_of(best, way.seconds)
    if scalar(best):
        return best if ranks > 1 and size > 0 else 0.0
    import numpy as np

    return np.where(np.greater(ranks, 1) & np.greater(size, 0), best, 0.0)


def algorithm(
    kind: str,
    size: float,
    ranks: float,
    *,
    link: Link,
    style: str,
    network: Link | None = None,
    per_node: float | None = None,
    engine: str = "",
) -> str:
    """The way that `seconds` takes: ``'ring LL128'``, ``'switch'``, ``'vllm one-shot'``; ``''`` for one rank."""
    if ranks <= 1 or size <= 0:
        return ""
    return min(_ways(kind, size, ranks, link, style, network, per_node, engine), key=lambda way: way.seconds).name


# ------------------------------------------------------------------ the ways


class _Way(NamedTuple):
    name: str
    seconds: Value


class _Course(NamedTuple):
    """What a collective asks of one level: messages in a row, bytes out of each device, bytes to itself."""

    hops: Value
    wire: Value
    own: Value = 0.0


def _ways(
    kind: str,
    size: Value,
    ranks: Value,
    link: Link,
    style: str,
    network: Link | None,
    per_node: Value | None,
    engine: str,
) -> Iterator[_Way]:
    if kind not in KINDS:
        raise UnknownName("collective", kind, KINDS)
    data = constants()
    if style not in data.styles:
        raise UnknownName("style of link", style, data.styles)
    near = data.styles[style]
    inside: Value = ranks if per_node is None or network is None else minimum_of(ranks, per_node)
    nodes: Value = 1.0 if per_node is None or network is None else _ceil(ranks / inside)
    far = data.styles["network"]
    across = nodes > 1
    if scalar(nodes) and not across:
        network = None
    share = 1.0 if not near.crowd else minimum_of(1.0, (2 / inside) ** near.crowd)
    free = link.bandwidth * share

    def cost(protocol: Protocol, course: _Course) -> tuple[Value, Value]:
        own = course.own / (link.bandwidth * protocol.copy) if protocol.copy else 0.0
        fixed = protocol.start + course.hops * protocol.hop * link.latency
        return fixed, course.wire / (free * protocol.efficiency) + own

    def joined(fixed: Value, moving: Value, protocol: Protocol, course: _Course) -> Value:
        """A level of the node and one of the network: the start-up costs add up, the bytes flow together."""
        if network is None:
            return fixed + moving
        further = protocol.start + course.hops * protocol.hop * network.latency
        return fixed + across * further + maximum_of(moving, course.wire / (network.bandwidth * protocol.efficiency))

    if kind in ("all_to_all", "send_recv"):
        beyond = ranks - inside
        for name, protocol in near.pairs.items():
            if kind == "send_recv":  # to a neighbour on the other side, where there is one
                fixed, moving = cost(protocol, _Course(1.0, size * (1.0 - across)))
                yield _Way(f"pairs {name}", joined(fixed, moving, far.pairs[name], _Course(1.0, size * across)))
                continue
            each = size / ranks
            out = each * (inside - 1)
            if name == "LL":  # each peer has a channel of its own; all of them share a link that is half full of flags
                out = maximum_of(each, out * 2 * protocol.efficiency)
            fixed, moving = cost(protocol, _Course(inside - 1, out, each))
            yield _Way(f"pairs {name}", joined(fixed, moving, far.pairs[name], _Course(beyond, each * beyond)))
        return

    turns = 2 if kind == "all_reduce" else 1
    part = 1.0 if kind == "broadcast" else (inside - 1) / inside
    rail = size / inside * (across if kind == "broadcast" else (nodes - 1) / nodes)
    for name, protocol in near.ring.items():
        fixed, moving = cost(
            protocol, _Course(turns * (inside - 1), turns * part * size, 0.0 if kind == "broadcast" else size / inside)
        )
        between = {"ring": (far.ring, nodes - 1), "tree": (far.tree, _log2(nodes))}
        for shape, (protocols, hops) in between.items():
            if shape == "ring" or (network is not None and kind in ("all_reduce", "broadcast")):
                course = _Course(turns * hops, turns * rail)
                yield _Way(f"{shape} {name}", joined(fixed, moving, protocols[name], course))
    if kind != "all_reduce":
        return
    once = _Course(inside, size * (inside + 1) / inside)
    if near.switch is not None:
        yield _Way("switch", _only(sum(cost(near.switch, once)), near.switch, size, ranks, across))
    kernels = data.engines.get(data.alike.get(engine, engine), {}).get(style, {})
    courses = {
        "one-shot": _Course(inside - 1, size * (inside - 1)),
        "two-shot": _Course(inside - 1, 2 * size * (inside - 1) / inside),
        "switch": once,
    }
    for name, protocol in kernels.items():
        yield _Way(f"{engine} {name}", _only(sum(cost(protocol, courses[name])), protocol, size, ranks, across))


def _only(took: Value, protocol: Protocol, size: Value, ranks: Value, across: Value) -> Value:
    """The time where the protocol is used at all; elsewhere it never ends."""
    holds: Value = not protocol.sizes
    before = 1
    for most_ranks, (low, high) in protocol.sizes.items():
        holds = holds | ((ranks > before) & (ranks <= int(most_ranks)) & (size >= low) & (size <= high))
        before = int(most_ranks)
    if scalar(took):
        return took if holds and not across else math.inf
    import numpy as np

    return np.where(holds & np.logical_not(across), took, math.inf)


def _ceil(value: Value) -> Value:
    if scalar(value):
        return float(math.ceil(value))
    import numpy as np

    return np.ceil(value)


def _log2(value: Value) -> Value:
    if scalar(value):
        return math.log2(value)
    import numpy as np

    return np.log2(value)
