"""How long a collective takes, as NCCL or an engine's own kernels would run it.

    h200 = catalog.hardware("h200")
    link, kind = h200.links["nvlink"], style("nvlink", h200.architecture)      # kind: 'nvlink-hopper'
    seconds("all_reduce", 64e6, 8, link=link, style=kind)                      # 0.00031
    algorithm("all_reduce", 65536, 8, link=link, style=kind, engine="vllm")    # 'vllm one-shot'

Every algorithm with one of its protocols takes

    start + hops·hop·latency + wire/(bandwidth·efficiency) + own/(bandwidth·copy)

where *hops* messages follow one another, *wire* bytes leave each device and *own* bytes it copies to itself, as the
collective, the algorithm and the ranks have it; start, hop, efficiency and copy are the protocol's figures, by style
of link, in data/collectives.toml. The fastest candidate is taken. On a mesh or a torus the bytes have the links that
lead to the ranks, not all of a device's (`bandwidth`). Between nodes a second such term joins it for the
network: latencies add up, while the bytes of both levels flow at the same time, as NCCL pipelines them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from ..base.errors import UnknownName
from ..base.symbols import Value, ceil_of, log2, maximum_of, minimum_of, scalar, where
from ..specs import catalog
from ..specs.structs import Link, Spec

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")


class Protocol(Spec, frozen=True, kw_only=True):
    """One way to move bytes (NCCL's LL, LL128, Simple; an engine's kernel), as it was measured."""

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
    sharing_exponent: float = 0.0  # n ranks leave each other (2/n)^this of a path that they share
    origin: Literal["fitted", "assumed"] = "fitted"
    source: str = ""


class CollectiveConstants(Spec, frozen=True, kw_only=True):
    """The file: links by name, styles of links, and the kernels that engines bring along."""

    names: dict[str, str]  # a link's name, or name-architecture, -> its style
    styles: dict[str, Style]
    engines: dict[str, dict[str, dict[str, Protocol]]]  # engine -> style -> algorithm
    fused: dict[str, dict[str, dict[str, Protocol]]] = msgspec.field(
        default_factory=dict
    )  # the same where an engine makes one kernel of an all-reduce and the norm behind it
    kernels_of: dict[str, str] = msgspec.field(default_factory=dict)  # unmeasured engine -> the one with its kernels
    borrowed: tuple[str, ...] = ()  # link names that have the style of another kind of link
    unmeasured: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # engine -> styles without a run
    smaller_is_slower: dict[str, str] = msgspec.field(default_factory=dict)  # engine, style, ranks -> what was measured
    source: dict[str, str] = msgspec.field(default_factory=dict)


@functools.cache
def constants() -> CollectiveConstants:
    """data/collectives.toml, read once."""
    return catalog.constants("collectives", CollectiveConstants)


def style(name: str, architecture: str = "", link: Link | None = None) -> str:
    """The style of a link: ``style("nvlink", "hopper")  # 'nvlink-hopper'``

    PCIe without peer-to-peer has one of its own. An unknown link is like PCIe, an unknown mesh like other meshes.
    """
    names = constants().names
    unknown = "pcie" if link is None or not link.peers else "direct"
    known = names.get(f"{name}-{architecture}", names.get(name, unknown))
    return known if link is None or link.peer_to_peer else names.get(f"{known}-host", known)


def bandwidth(link: Link, ranks: Value) -> Value:
    """Bytes/s that each of some ranks of a domain can send: ``bandwidth(mi300x.links["xgmi"], 2)  # 64e9, of 448e9``

    A mesh has a link to each peer, so n ranks use n-1 of them. A slice of a torus has a link along each of its sides,
    and a second one once rings close. Behind a switch any two ranks have all.
    """
    if not link.peers:
        return link.bandwidth
    if link.wraparound:
        sides = minimum_of(ceil_of(log2(maximum_of(ranks, 2))), link.peers / 2)
        links = where(ranks >= link.wraparound, link.peers, sides)
    else:
        links = minimum_of(maximum_of(ranks - 1, 1), link.peers)
    return link.bandwidth * links / link.peers


def distance(link: Link, ranks: Value) -> Value:
    """Mean links between two ranks: 1, but in a torus, where others pass messages on.

    ``distance(tpu_v5e.links["ici"], 16)  # 2.67: along two sides of 4 without a ring, 4/3 each``
    """
    if not link.wraparound:
        return 1.0
    sides = link.peers / 2
    along = ranks ** (1 / sides) / where(ranks >= link.wraparound, 4, 3)
    return maximum_of(1.0, sides * along)


def origin(
    kind: str,
    name: str,
    architecture: str = "",
    engine: str = "",
    *,
    ranks: int = 2,
    link: Link | None = None,
    spans_nodes: bool = False,
) -> str:
    """Where the figures come from: ``origin("all_reduce", "hccs", "ascend")  # 'assumed'``

    Fitted on a link of this kind, or assumed: like another kind of link, like another engine's kernels, the network.
    """
    data, link_style = constants(), style(name, architecture, link)
    if spans_nodes and data.styles["network"].origin == "assumed":
        return "assumed"
    known = f"{name}-{architecture}" if f"{name}-{architecture}" in data.names else name
    if known not in data.names or known in data.borrowed:
        return "assumed"
    kernels = data.engines.get(data.kernels_of.get(engine, engine), {}).get(link_style, {}).values()
    own_kernels = [p for p in kernels if not p.sizes or ranks <= max(map(int, p.sizes))]
    if (
        kind == "all_reduce"
        and own_kernels
        and (engine in data.kernels_of or link_style in data.unmeasured.get(engine, ()))
    ):
        return "assumed"
    return data.styles[link_style].origin


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
    fused: bool = False,
) -> Value:
    """Seconds of one collective; any of ``size``, ``ranks`` and ``per_node`` may be arrays.

    ``size`` is in bytes and means what NCCL's tests mean by it, the whole tensor. all_reduce, broadcast and send_recv:
    what a rank holds. all_gather: what a rank holds afterwards. reduce_scatter: what it held before. all_to_all: all
    that a rank has to give, its own share (1/ranks) included. One rank needs no time, nor does an empty tensor.

    With ``network`` and ``per_node``, more ranks than that span nodes; each device has a network link of its own.
    send_recv is then between neighbours on two nodes. ``engine`` brings its own all-reduce kernels (``vllm``,
    ``trtllm``, ``sglang``); others have NCCL's alone. ``fused``: as between a model's layers, with a norm behind it.
    """
    best: Value = math.inf
    levels = _levels(ranks, link=link, style=style, network=network, per_node=per_node)
    for candidate in _candidates(kind, size, ranks, levels, _kernels(engine, style, fused)):
        best = minimum_of(best, candidate.seconds)
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
    fused: bool = False,
) -> str:
    """What `seconds` chooses: ``'ring LL128'``, ``'switch'``, ``'vllm one-shot'``; ``''`` for one rank."""
    if ranks <= 1 or size <= 0:
        return ""
    levels = _levels(ranks, link=link, style=style, network=network, per_node=per_node)
    return min(
        _candidates(kind, size, ranks, levels, _kernels(engine, style, fused)), key=lambda candidate: candidate.seconds
    ).name


# ------------------------------------------------------------------ algorithms


class _Candidate(NamedTuple):
    """An algorithm with one of its protocols: ``ring LL128``, and its seconds."""

    name: str
    seconds: Value


class _Messages(NamedTuple):
    """What a collective asks of one level: messages in a row, bytes out of each device, bytes to itself."""

    hops: Value
    wire: Value
    own: Value = 0.0


class _Levels(NamedTuple):
    """The ranks of a collective: ``inside`` a node over its link, ``nodes`` of them over the network."""

    style_name: str
    style: Style
    link: Link
    bandwidth: Value  # of the links between the ranks, what they leave each other on a shared path
    inside: Value
    nodes: Value
    spans_nodes: Value
    network: Link | None  # None where there is one node

    def in_node(self, protocol: Protocol, messages: _Messages) -> tuple[Value, Value]:
        """Seconds inside a node: start-up, and the bytes."""
        own = messages.own / (self.link.bandwidth * protocol.copy) if protocol.copy else 0.0
        startup = protocol.start + messages.hops * protocol.hop * self.link.latency
        return startup, messages.wire / (self.bandwidth * protocol.efficiency) + own

    def across(self, in_node: tuple[Value, Value], protocol: Protocol, messages: _Messages) -> Value:
        """Seconds of both levels: the network's start-up comes on top, the bytes of both flow at the same time."""
        startup, moving = in_node
        if self.network is None:
            return startup + moving
        more = protocol.start + messages.hops * protocol.hop * self.network.latency
        sending = messages.wire / (self.network.bandwidth * protocol.efficiency)
        return startup + self.spans_nodes * more + maximum_of(moving, sending)

    def one_node_only(self, protocol: Protocol, messages: _Messages, size: Value, ranks: Value) -> Value:
        """Seconds of a kernel that works inside a node and for some sizes; infinite elsewhere."""
        seconds: Value = sum(self.in_node(protocol, messages))
        usable: Value = not protocol.sizes
        fewer = 1
        for most_ranks, (low, high) in protocol.sizes.items():
            usable = usable | ((ranks > fewer) & (ranks <= int(most_ranks)) & (size >= low) & (size <= high))
            fewer = int(most_ranks)
        if scalar(seconds):
            return seconds if usable and not self.spans_nodes else math.inf
        import numpy as np

        return np.where(usable & np.logical_not(self.spans_nodes), seconds, math.inf)


def _levels(ranks: Value, *, link: Link, style: str, network: Link | None, per_node: Value | None) -> _Levels:
    data = constants()
    if style not in data.styles:
        raise UnknownName("style of link", style, data.styles)
    in_node = data.styles[style]
    inside: Value = ranks if per_node is None or network is None else minimum_of(ranks, per_node)
    nodes: Value = 1.0 if per_node is None or network is None else ceil_of(ranks / inside)
    spans_nodes = nodes > 1
    if scalar(nodes) and not spans_nodes:
        network = None
    share = 1.0 if not in_node.sharing_exponent else minimum_of(1.0, (2 / inside) ** in_node.sharing_exponent)
    return _Levels(
        style_name=style,
        style=in_node,
        link=link,
        bandwidth=bandwidth(link, inside) * share,
        inside=inside,
        nodes=nodes,
        spans_nodes=spans_nodes,
        network=network,
    )


def _kernels(engine: str, style: str, fused: bool) -> dict[str, Protocol]:
    """The all-reduce kernels that an engine brings along: ``{"vllm one-shot": Protocol(…), …}``"""
    data = constants()
    owner = data.kernels_of.get(engine, engine)
    own = data.fused.get(owner, {}).get(style) if fused else None
    own = data.engines.get(owner, {}).get(style, {}) if own is None else own
    return {f"{engine} {algorithm}": protocol for algorithm, protocol in own.items()}


def _candidates(
    kind: str, size: Value, ranks: Value, levels: _Levels, kernels: dict[str, Protocol]
) -> Iterator[_Candidate]:
    """Every algorithm that can run a collective."""
    if kind not in KINDS:
        raise UnknownName("collective", kind, KINDS)
    if kind == "send_recv":
        yield from _send_recv(size, levels)
    elif kind == "all_to_all":
        yield from _all_to_all(size, ranks, levels)
    else:
        yield from _rings_and_trees(kind, size, levels)
    if kind == "all_reduce":
        yield from _all_reduce_kernels(size, ranks, levels, kernels)


def _send_recv(size: Value, levels: _Levels) -> Iterator[_Candidate]:
    """One message: to a neighbour on the other node where there is one, else inside the node."""
    levels = levels._replace(bandwidth=minimum_of(levels.bandwidth, bandwidth(levels.link, 2)))
    for name, protocol in levels.style.pairs.items():
        in_node = levels.in_node(protocol, _Messages(1.0, size * (1.0 - levels.spans_nodes)))
        between = _Messages(1.0, size * levels.spans_nodes)
        yield _Candidate(f"pairs {name}", levels.across(in_node, _network().pairs[name], between))


def _all_to_all(size: Value, ranks: Value, levels: _Levels) -> Iterator[_Candidate]:
    """A message from every rank to every other: to those of its node, and to those beyond."""
    each = size / ranks
    beyond = ranks - levels.inside
    for name, protocol in levels.style.pairs.items():
        wire = each * (levels.inside - 1) * distance(levels.link, levels.inside)
        if name == "LL":  # each peer has a channel of its own; all of them share a link that is half full of flags
            wire = maximum_of(each, wire * 2 * protocol.efficiency)
        in_node = levels.in_node(protocol, _Messages(levels.inside - 1, wire, each))
        between = _Messages(beyond, each * beyond)
        yield _Candidate(f"pairs {name}", levels.across(in_node, _network().pairs[name], between))


def _rings_and_trees(kind: str, size: Value, levels: _Levels) -> Iterator[_Candidate]:
    """A ring inside every node; between nodes a ring, or a tree where the collective has one."""
    inside, nodes = levels.inside, levels.nodes
    passes = 2 if kind == "all_reduce" else 1  # an all-reduce is a reduce-scatter and an all-gather
    broadcast = kind == "broadcast"
    part = 1.0 if broadcast else (inside - 1) / inside
    rail = size / inside * (levels.spans_nodes if broadcast else (nodes - 1) / nodes)  # bytes of each network link
    shapes = {"ring": (_network().ring, nodes - 1)}
    if levels.network is not None and kind in ("all_reduce", "broadcast"):
        shapes["tree"] = (_network().tree, log2(nodes))
    for name, protocol in levels.style.ring.items():
        messages = _Messages(passes * (inside - 1), passes * part * size, 0.0 if broadcast else size / inside)
        in_node = levels.in_node(protocol, messages)
        for shape, (protocols, hops) in shapes.items():
            between = _Messages(passes * hops, passes * rail)
            yield _Candidate(f"{shape} {name}", levels.across(in_node, protocols[name], between))


def _all_reduce_kernels(
    size: Value, ranks: Value, levels: _Levels, kernels: dict[str, Protocol]
) -> Iterator[_Candidate]:
    """What adds up inside a node without a ring: the switch (NVLS), and the kernels that engines bring along."""
    inside = levels.inside
    messages = {
        "one-shot": _Messages(inside - 1, size * (inside - 1)),
        "two-shot": _Messages(inside - 1, 2 * size * (inside - 1) / inside),
        "switch": _Messages(inside, size * (inside + 1) / inside),
    }
    switch = levels.style.switch
    if switch is not None:
        yield _Candidate("switch", levels.one_node_only(switch, messages["switch"], size, ranks))
    for name, protocol in kernels.items():
        algorithm = name.rpartition(" ")[2]
        yield _Candidate(name, levels.one_node_only(protocol, messages[algorithm], size, ranks))


def _network() -> Style:
    """The style of the network between nodes."""
    return constants().styles["network"]
