"""Layouts: which are legal and why one is not, how layers fall into pipeline stages, and where each axis' ranks sit.

Ranks are numbered as engines do: tensor-parallel ranks are neighbours, then data-parallel groups, then pipeline stages;
so tp stays inside a node as long as it fits, and pp is the axis that crosses nodes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import names as s
from ..base.symbols import text
from ..network.graph import Block, Model, layer_range
from ..network.operators import Op, send
from ..specs.structs import Hardware, Link, Plan
from . import collectives

NO_LINK = Link(bandwidth=math.inf, latency=0.0)  # of a device that needs none: `missing_link` refuses plans that do


def layout_env(plan: Plan, model: Model) -> dict[str, float]:
    """The names of a layout that formulas use.

    With expert parallelism the experts are spread over all tp·dp ranks, without it they are sliced over them; tokens of
    different data-parallel ranks meet at the experts (``a2a`` ranks exchange them).
    """
    tp, dp = plan.tensor_parallel_size, plan.data_parallel_size
    moe = any(op.kind == "moe" for block in model.blocks for op in block.ops)
    joined = dp if moe else 1  # replicas of a dense model exchange nothing
    expert_parallel = plan.enable_expert_parallel and moe
    return {
        "tp": tp,
        "dp": joined,
        "ep": tp * joined if expert_parallel else 1,
        "ep_spread": expected_maximum(tp * joined) if expert_parallel else 0.0,
        "moe_tp": 1 if expert_parallel else tp * joined,
        "a2a": tp * joined if joined > 1 else 1,
        "gathered": 0.0 if expert_parallel else 1.0,
        "sp": tp if plan.sequence_parallel else 1,
        "dcp": plan.decode_context_parallel_size,
    }


@cache
def expected_maximum(ranks: int) -> float:
    """The expected largest of so many standard normal values (Blom): ``expected_maximum(8)  # 1.43``"""
    from statistics import NormalDist  # rare, and slow to import

    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def illegal_reason(model: Model, plan: Plan, device: Hardware) -> str:
    """Why a layout cannot be used, as a sentence, or empty: ``"28 attention heads are not divisible by tp 8"``"""
    tp, pp, dcp = plan.tensor_parallel_size, plan.pipeline_parallel_size, plan.decode_context_parallel_size
    available = plan.nodes * plan.gpus_per_node
    if plan.gpus > available:
        return (
            f"tp {tp} × pp {pp} × dp {plan.data_parallel_size} = {plan.gpus} GPUs, but {plan.nodes} × "
            f"{plan.gpus_per_node} = {available} are available"
        )
    if pp > model.num_layers:
        return f"pp {pp} needs at least {pp} layers, but the model has {model.num_layers}"
    if tp % dcp:
        return f"decode context parallel size {dcp} must divide tp {tp}"
    missing = missing_link(model, plan, device)
    if missing:
        return missing.replace("`", "")
    for block in model.blocks:
        if block.stage == "layer":
            reason = _block_reason(block, plan)
            if reason:
                return reason
    return ""


def _block_reason(block: Block, plan: Plan) -> str:
    """Why one block's heads, experts or widths cannot be split as a layout asks."""
    tp, dcp = plan.tensor_parallel_size, plan.decode_context_parallel_size
    d = block.dims
    heads, kv, experts = d.get("num_attention_heads"), d.get("num_key_value_heads"), d.get("num_experts")
    if heads and heads % tp:
        return f"{int(heads)} attention heads are not divisible by tp {tp}"
    if kv and kv % tp and tp % kv:
        return f"{int(kv)} KV heads can be neither divided nor replicated across tp {tp}"
    if kv and dcp > 1 and dcp > max(1, tp // kv):
        shared = max(1, int(tp // kv))
        return f"decode context parallel size {dcp} exceeds the {shared} ranks that share a KV head at tp {tp}"
    ranks = tp * plan.data_parallel_size
    if experts and plan.enable_expert_parallel and experts < ranks:
        return f"{int(experts)} experts are fewer than the {ranks} ranks of tp {tp} × dp {plan.data_parallel_size}"
    for name in ("intermediate_size", "moe_intermediate_size", "linear_num_value_heads", "mamba_num_heads", "d_inner"):
        size = d.get(name)
        shards = tp if name != "moe_intermediate_size" else (1 if plan.enable_expert_parallel else ranks)
        if size and size % shards:
            return f"{name} {int(size)} is not divisible by {shards}"
    return ""


@cache_by_identity(64)
def pipeline_stages(model: Model, pp: int) -> tuple[Model, ...]:
    """A model cut into pipeline stages: layers as evenly as they go, embedding first, head last, sends between.

    Layers left over go to the stages before the last one, from the back: the last stage has the head, and the first
    one gets an extra layer only when all stages between them have. There are no more stages than layers: a layout that
    wants more is refused by `illegal_reason`, and what is shown beside that is of as many as can be.
    """
    pp = min(pp, max(model.num_layers, 1))
    per, rest = divmod(model.num_layers, pp)
    counts = [per] * pp
    for i in range(rest):  # rest < pp: never as far back as -1 - pp
        counts[-2 - i] += 1
    return cut_layers(model, counts)


def cut_layers(model: Model, counts: Sequence[int]) -> tuple[Model, ...]:
    """A model cut into stages of so many layers: ``cut_layers(model, [7, 8, 8, 7])``; embedding first, head last."""
    if len(counts) == 1:
        return (model,)
    stages, start = [], 0
    for stage, count in enumerate(counts):
        of_stage = range(start, start + count)
        start += count
        blocks: list[Block] = []
        for block in model.blocks:
            if block.stage == "layer":
                layers = tuple(i for i in block.layers if i in of_stage)
                if layers:
                    name = f"{block.name.rpartition('.')[0] or block.name}.{layer_range(list(layers))}"
                    blocks.append(msgspec.structs.replace(block, layers=layers, name=name))
            elif block.stage == "head" and stage == len(counts) - 1:
                blocks.append(_with_own_table(block))
            elif block.stage != "head" and stage == 0:
                blocks.append(block)
        if stage < len(counts) - 1:
            blocks.append(_send_block(model))
        stages.append(msgspec.structs.replace(model, blocks=tuple(blocks), num_layers=count))
    return tuple(stages)


def _with_own_table(block: Block) -> Block:
    """A head that shares the embedding's table needs a copy of it on a stage of its own."""
    return msgspec.structs.replace(block, ops=_ops_with_own_table(block.ops))


@cache_by_identity(64)
def _ops_with_own_table(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Operators of a head with its own table; the same tuple every time, so that its costs are known again."""
    own = []
    for op in ops:
        if op.name == "lm_head" and text(op.work.stored) == "0":
            table = op.dims["n"] * op.dims["k"] * s.head_weight_bytes
            op = msgspec.structs.replace(op, work=msgspec.structs.replace(op.work, stored=table))
        own.append(op)
    return tuple(own)


def _send_block(model: Model) -> Block:
    """Hidden state and residual go to the next stage, each tensor-parallel rank sending its share."""
    return Block("pipeline", _send_ops(), {"hidden_size": model.sizes["hidden_size"]}, stage="head", residual=False)


@cache
def _send_ops() -> tuple[Op, ...]:
    return (send("send_to_next_stage", 2 * s.hidden_size / s.tp),)


class Place(NamedTuple):
    """Where the ranks of an axis sit: over which link, how many to a node, and the network between nodes."""

    name: str
    link: Link
    per_node: float
    network: Link
    ranks: int = 1
    scattered: bool = False  # every rank sends to every other (all-to-all): nothing is added up on the way

    @property
    def spans_nodes(self) -> bool:
        """Whether its ranks sit on more than one node."""
        return self.name == "network" or self.ranks > self.per_node

    @property
    def bandwidth(self) -> float:
        """Bytes/s that a rank can send at best: across nodes the network is shared, or adds up what a node sends."""
        inside = min(self.ranks, self.per_node)
        link = float(collectives.bandwidth(self.link, inside))
        if self.scattered:
            link /= collectives.distance(self.link, inside)
        if self.ranks <= self.per_node:
            return link
        if self.scattered:
            return min(link, self.network.bandwidth / (1 - self.per_node / self.ranks))
        return min(link, self.network.bandwidth * self.per_node)


def places(plan: Plan, device: Hardware) -> dict[str, Place]:
    """For each axis (tp, ep, pp, dcp) the links that its collectives run over."""
    tp, dp, dcp = plan.tensor_parallel_size, plan.data_parallel_size, plan.decode_context_parallel_size
    stages = place(plan, device, plan.pipeline_parallel_size * tp * dp)
    network = stages.network
    return {
        "tp": place(plan, device, tp),
        "dcp": place(plan, device, dcp),
        "ep": place(plan, device, tp * dp, scattered=True),
        "pp": stages._replace(per_node=2, ranks=1) if not stages.spans_nodes else Place("network", network, 2, network),
    }


def place(plan: Plan, device: Hardware, ranks: int, *, stride: int = 1, scattered: bool = False) -> Place:
    """Where so many ranks sit of which every ``stride``-th GPU is one: ``place(plan, device, 4, stride=8).per_node``"""
    name, link = _joining(plan, device, ranks * stride)
    domain = _domain(plan, device, name, link)
    network = device.links.get("network") or NO_LINK
    return Place(name, link, max(1, min(ranks, domain // stride)), network, ranks, scattered)


def _joining(plan: Plan, device: Hardware, ranks: int) -> tuple[str, Link]:
    """The link between some ranks: the plan's, or PCIe where that one joins fewer of a node (bridges between cards)."""
    name = plan.interconnect or device.interconnect
    link = device.links.get(name)
    if link is None:
        return name, NO_LINK
    pcie, in_node = device.links.get("pcie"), min(ranks, plan.gpus_per_node, device.gpus_per_node)
    return ("pcie", pcie) if pcie and link.devices < in_node else (name, link)


def host_link(device: Hardware) -> Link | None:
    """The link to the host's memory, if the device has one: ``host_link(catalog.hardware("gb200"))  # NVLink-C2C``"""
    return device.links.get(host_link_name(device))


def host_link_name(device: Hardware) -> str:
    """What that link is called; empty if there is none: ``host_link_name(catalog.hardware("gb200"))  # 'c2c'``"""
    return next((name for name in ("c2c", "pcie", "host") if name in device.links), "")


def network_link(device: Hardware) -> Link | None:
    """What leaves a machine, if anything does: the network, or else what joins the devices."""
    return device.links.get("network") or device.links.get(device.interconnect)


def missing_link(model: Model, plan: Plan, device: Hardware, *, replicas_meet: bool = False) -> str:
    """Which link a layout needs and the device's file lacks, as a sentence; empty if it has all.

    ``"my-chip.toml has no link; `tensor_parallel_size` 2 needs one: add [links.NAME] with bandwidth"``

    Replicas meet at a model's experts, and where they are trained.
    """
    if plan.cpu_offload_bytes and host_link(device) is None:
        return (
            f"{device.name}.toml has no link to its host; `cpu_offload_gb` needs one: add [links.pcie] with bandwidth"
        )
    axes = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp"}
    if replicas_meet or layout_env(plan, model)["dp"] > 1:
        axes["data_parallel_size"] = "ep"
    by_axis = places(plan, device)
    for argument, axis in axes.items():
        size, place = getattr(plan, argument), by_axis[axis]
        if size > 1 and place.spans_nodes and place.network is NO_LINK:
            return (
                f"{device.name}.toml has no network; `nodes` {plan.nodes} needs one: add [links.network] with bandwidth"
            )
        if size > 1 and place.link is NO_LINK and place.per_node > 1:
            return f"{device.name}.toml has no link; `{argument}` {size} needs one: add [links.NAME] with bandwidth"
    return ""


def _domain(plan: Plan, device: Hardware, name: str, link: Link) -> int:
    """GPUs that the fast link joins: those of a node, or of a rack where the nodes of a rack share it (NVL72).

    Where the plan gives nodes another number of GPUs than the device's own, the network is between them; PCIe never
    leaves a node.
    """
    standard_node = plan.gpus_per_node == device.gpus_per_node
    rack = standard_node and link.devices > plan.gpus_per_node and name != "pcie"
    return link.devices if rack else plan.gpus_per_node


def gpus_per_link_domain(plan: Plan, device: Hardware) -> int:
    """GPUs that the plan's fast link joins: a node's, or a rack's: ``gpus_per_link_domain(plan, gb200)  # 72``"""
    name = plan.interconnect or device.interconnect
    link = device.links.get(name)
    return plan.gpus_per_node if link is None else _domain(plan, device, name, link)


def gpus_per_nvlink_domain(device: Hardware, used: int) -> int:
    """GPUs of the device's own node, or up to ``used`` of the rack whose nodes share the fast link (NVL72)."""
    link = device.links.get(device.interconnect)
    return max(device.gpus_per_node, min(link.devices, used) if link and link.devices <= 1024 else 1)


def link_limit(place: Place) -> str:
    """What keeps ranks from the whole link, as text: ``" (64 of 448 GB/s: 1 of 7 links)"``; empty if nothing does."""
    link = place.link
    if not link.peer_to_peer:
        return " (through the host's memory)"
    if not link.peers:
        return ""
    part = float(collectives.bandwidth(link, min(place.ranks, place.per_node))) / link.bandwidth
    if part >= 1:
        return ""
    used = f"{part * link.bandwidth / 1e9:.3g} of {link.bandwidth / 1e9:.3g} GB/s"
    return f" ({used}: {round(part * link.peers)} of {link.peers} links)"


def placement_summary(plan: Plan, device: Hardware) -> dict[str, str]:
    """Where each axis runs, as text: ``{"tp": "8 ranks on nvlink", "pp": "6 stages over the network"}``"""
    texts: dict[str, str] = {}
    by_axis = places(plan, device)
    ranks = {"tp": plan.tensor_parallel_size, "dcp": plan.decode_context_parallel_size, "ep": 1, "pp": 1}
    if plan.data_parallel_size > 1 or plan.enable_expert_parallel:
        ranks["ep"] = plan.tensor_parallel_size * plan.data_parallel_size
    for axis, number in ranks.items():
        if number > 1:
            place = by_axis[axis]
            between = f", {place.per_node:g} a node, network between" if number > place.per_node else ""
            texts[axis] = f"{number} ranks on {place.name}{between}{link_limit(place)}"
    if plan.pipeline_parallel_size > 1:
        name = by_axis["pp"].name
        where = "over the network" if name == "network" else f"on {name}"
        texts["pp"] = f"{plan.pipeline_parallel_size} stages {where}"
    return texts
