"""Layouts: which are legal and why one is not, how layers fall into pipeline stages, and where each axis' ranks sit.

Ranks are numbered as engines do: tensor-parallel ranks are neighbours, then data-parallel groups, then pipeline stages;
so tp stays inside a node as long as it fits, and pp is the axis that crosses nodes first.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import names as s
from ..base.symbols import text
from ..network.graph import Block, Model, layer_range
from ..network.operators import send
from ..specs.structs import Hardware, Link, Plan


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
        "moe_tp": 1 if expert_parallel else tp * joined,
        "a2a": tp * joined if joined > 1 else 1,
        "gathered": 0.0 if expert_parallel else 1.0,
        "sp": tp if plan.sequence_parallel else 1,
        "dcp": plan.decode_context_parallel_size,
    }


def illegal_reason(model: Model, plan: Plan, device: Hardware) -> str:
    """Why a layout cannot be used, as a sentence; empty if it can: ``"28 attention heads do not divide by tp 8"``"""
    tp, pp, dcp = plan.tensor_parallel_size, plan.pipeline_parallel_size, plan.decode_context_parallel_size
    available = plan.nodes * plan.gpus_per_node
    if plan.gpus > available:
        return (
            f"tp {tp} × pp {pp} × dp {plan.data_parallel_size} = {plan.gpus} GPUs, but {plan.nodes} × "
            f"{plan.gpus_per_node} = {available} are there"
        )
    if pp > model.num_layers:
        return f"pp {pp} needs at least {pp} layers, but the model has {model.num_layers}"
    if tp % dcp:
        return f"decode context parallel {dcp} must divide tp {tp}"
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
        return f"{int(heads)} attention heads do not divide by tp {tp}"
    if kv and kv % tp and tp % kv:
        return f"{int(kv)} KV heads neither divide by tp {tp} nor can be replicated over it"
    if kv and dcp > 1 and dcp > max(1, tp // kv):
        shared = max(1, int(tp // kv))
        return f"decode context parallel {dcp} is more than the {shared} ranks that share a KV head at tp {tp}"
    ranks = tp * plan.data_parallel_size
    if experts and plan.enable_expert_parallel and experts < ranks:
        return f"{int(experts)} experts are fewer than the {ranks} ranks of tp {tp} × dp {plan.data_parallel_size}"
    for name in ("intermediate_size", "moe_intermediate_size", "linear_num_value_heads", "mamba_num_heads", "d_inner"):
        size = d.get(name)
        shards = tp if name != "moe_intermediate_size" else (1 if plan.enable_expert_parallel else ranks)
        if size and size % shards:
            return f"{name} {int(size)} does not divide by {shards}"
    return ""


@cache_by_identity(64)
def pipeline_stages(model: Model, pp: int) -> tuple[Model, ...]:
    """A model cut into pipeline stages: layers as evenly as they go, embedding first, head last, sends between.

    Layers left over go to the stages before the last one, from the back: the last stage has the head, and the first
    one gets an extra layer only when all stages between them have.
    """
    if pp == 1:
        return (model,)
    per, rest = divmod(model.num_layers, pp)
    counts = [per] * pp
    for i in range(rest):  # rest < pp: never as far back as -1 - pp
        counts[-2 - i] += 1
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
            elif block.stage == "head" and stage == pp - 1:
                blocks.append(_with_own_table(block))
            elif block.stage != "head" and stage == 0:
                blocks.append(block)
        if stage < pp - 1:
            blocks.append(_send_block(model))
        stages.append(msgspec.structs.replace(model, blocks=tuple(blocks), num_layers=count))
    return tuple(stages)


def _with_own_table(block: Block) -> Block:
    """A head that shares the embedding's table needs a copy of it on a stage of its own."""
    ops = []
    for op in block.ops:
        if op.name == "lm_head" and text(op.work.stored) == "0":
            table = op.dims["n"] * op.dims["k"] * s.head_weight_bytes
            op = msgspec.structs.replace(op, work=msgspec.structs.replace(op.work, stored=table))
        ops.append(op)
    return msgspec.structs.replace(block, ops=tuple(ops))


def _send_block(model: Model) -> Block:
    """Hidden state and residual go to the next stage, each tensor-parallel rank sending its share."""
    op = send("send_to_next_stage", 2 * s.hidden_size / s.tp)
    return Block("pipeline", (op,), {"hidden_size": model.sizes["hidden_size"]}, stage="head", residual=False)


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
        if self.ranks <= self.per_node:
            return self.link.bandwidth
        if self.scattered:
            return min(self.link.bandwidth, self.network.bandwidth / (1 - self.per_node / self.ranks))
        return min(self.link.bandwidth, self.network.bandwidth * self.per_node)


def places(plan: Plan, device: Hardware) -> dict[str, Place]:
    """For each axis (tp, ep, pp, dcp) the links that its collectives run over."""
    name = plan.interconnect or device.interconnect
    link = device.links.get(name) or Link(bandwidth=16e9)
    network = device.links.get("network") or Link(bandwidth=25e9, latency=1e-5, devices=65536)
    domain = _domain(plan, device, name, link)
    tp, dp, dcp = plan.tensor_parallel_size, plan.data_parallel_size, plan.decode_context_parallel_size
    crosses = plan.pipeline_parallel_size * tp * dp > domain
    return {
        "tp": Place(name, link, min(tp, domain), network, tp),
        "dcp": Place(name, link, min(dcp, domain), network, dcp),
        "ep": Place(name, link, min(tp * dp, domain), network, tp * dp, scattered=True),
        "pp": Place("network", network, 2, network) if crosses else Place(name, link, 2, network),
    }


def _domain(plan: Plan, device: Hardware, name: str, link: Link) -> int:
    """GPUs that the fast link joins: those of a node, or of a rack where the nodes of a rack share it (NVL72).

    Where the plan gives nodes another number of GPUs than the device's own, the network is between them; PCIe never
    leaves a node.
    """
    standard_node = plan.gpus_per_node == device.gpus_per_node
    rack = standard_node and link.devices > plan.gpus_per_node and name != "pcie"
    return link.devices if rack else plan.gpus_per_node


def gpus_per_nvlink_domain(device: Hardware, used: int) -> int:
    """GPUs of the device's own node, or up to ``used`` of the rack whose nodes share the fast link (NVL72)."""
    link = device.links.get(device.interconnect)
    return max(device.gpus_per_node, min(link.devices, used) if link and link.devices <= 1024 else 1)


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
            texts[axis] = f"{number} ranks on {place.name}{between}"
    if plan.pipeline_parallel_size > 1:
        name = by_axis["pp"].name
        where = "over the network" if name == "network" else f"on {name}"
        texts["pp"] = f"{plan.pipeline_parallel_size} stages {where}"
    return texts
