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
    joined = dp if moe else 1  # replicas of a dense model never speak to each other
    spread = plan.enable_expert_parallel and moe
    return {
        "tp": tp,
        "dp": joined,
        "ep": tp * joined if spread else 1,
        "moe_tp": 1 if spread else tp * joined,
        "a2a": tp * joined if joined > 1 else 1,
        "gathered": 0.0 if spread else 1.0,
        "sp": tp if plan.sequence_parallel else 1,
        "dcp": plan.decode_context_parallel_size,
    }


def illegal_reason(model: Model, plan: Plan, device: Hardware) -> str:
    """Why a layout cannot be used, as a sentence; empty if it can: ``"28 attention heads do not divide by tp 8"``"""
    tp, pp, dcp = plan.tensor_parallel_size, plan.pipeline_parallel_size, plan.decode_context_parallel_size
    room = plan.nodes * plan.gpus_per_node
    if plan.gpus > room:
        return (
            f"tp {tp} × pp {pp} × dp {plan.data_parallel_size} = {plan.gpus} GPUs, but {plan.nodes} × "
            f"{plan.gpus_per_node} = {room} are there"
        )
    if pp > model.num_layers:
        return f"pp {pp} needs at least {pp} layers, but the model has {model.num_layers}"
    if tp % dcp:
        return f"decode context parallel {dcp} must divide tp {tp}"
    for block in model.blocks:
        if block.stage == "layer":
            found = _block_reason(block, plan)
            if found:
                return found
    return ""


def _block_reason(block: Block, plan: Plan) -> str:
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
    for word in ("intermediate_size", "moe_intermediate_size", "linear_num_value_heads", "mamba_num_heads"):
        size = d.get(word)
        split = tp if word != "moe_intermediate_size" else (1 if plan.enable_expert_parallel else ranks)
        if size and size % split:
            return f"{word} {int(size)} does not divide by {split}"
    return ""


@cache_by_identity(64)
def pipeline_stages(model: Model, pp: int) -> tuple[Model, ...]:
    """A model cut into pipeline stages: layers as evenly as they go, embedding first, head last, sends between.

    Where layers do not divide, the last stage (it has the head) gets none of the rest, nor the first if that can be.
    """
    if pp == 1:
        return (model,)
    per, rest = divmod(model.num_layers, pp)
    counts = [per] * pp
    for i in range(rest):
        counts[-2 - i if pp > 1 else -1] += 1
    found, start = [], 0
    for stage, count in enumerate(counts):
        mine = set(range(start, start + count))
        start += count
        blocks: list[Block] = []
        for block in model.blocks:
            if block.stage == "layer":
                layers = tuple(i for i in block.layers if i in mine)
                if layers:
                    name = f"{block.name.rpartition('.')[0] or block.name}.{layer_range(list(layers))}"
                    blocks.append(msgspec.structs.replace(block, layers=layers, name=name))
            elif block.stage == "head" and stage == pp - 1:
                blocks.append(_own_head(block))
            elif block.stage != "head" and stage == 0:
                blocks.append(block)
        if stage < pp - 1:
            blocks.append(_handover(model))
        found.append(msgspec.structs.replace(model, blocks=tuple(blocks), num_layers=count))
    return tuple(found)


def _own_head(block: Block) -> Block:
    """A head that shares the embedding's table needs a copy of it on a stage of its own."""
    ops = []
    for op in block.ops:
        if op.name == "lm_head" and text(op.work.stored) == "0":
            table = op.dims["n"] * op.dims["k"] * s.head_weight_bytes
            op = msgspec.structs.replace(op, work=msgspec.structs.replace(op.work, stored=table))
        ops.append(op)
    return msgspec.structs.replace(block, ops=tuple(ops))


def _handover(model: Model) -> Block:
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
    """Neighbours that the fast link joins: those of a node, or of a rack where usual boxes share it (NVL72).

    Who says that nodes have another number of GPUs than usual has the network between them; PCIe never leaves a box.
    """
    usual = plan.gpus_per_node == device.gpus_per_node
    return link.devices if usual and link.devices > plan.gpus_per_node and name != "pcie" else plan.gpus_per_node


def gpus_per_nvlink_domain(device: Hardware, used: int) -> int:
    """GPUs of a usual node: what the fast link joins, where that is more than one box (NVL72)."""
    link = device.links.get(device.interconnect)
    return max(device.gpus_per_node, min(link.devices, used) if link and link.devices <= 1024 else 1)


def placement_summary(plan: Plan, device: Hardware) -> dict[str, str]:
    """Where each axis runs, in words: ``{"tp": "8 ranks on nvlink", "pp": "6 stages over the network"}``"""
    found: dict[str, str] = {}
    at = places(plan, device)
    ranks = {"tp": plan.tensor_parallel_size, "dcp": plan.decode_context_parallel_size, "ep": 1, "pp": 1}
    if plan.data_parallel_size > 1 or plan.enable_expert_parallel:
        ranks["ep"] = plan.tensor_parallel_size * plan.data_parallel_size
    for axis, number in ranks.items():
        if number > 1:
            place = at[axis]
            wide = number > place.per_node
            found[axis] = f"{number} ranks on {place.name}" + (
                f", {place.per_node:g} a node, network between" if wide else ""
            )
    if plan.pipeline_parallel_size > 1:
        name = at["pp"].name
        where = "over the network" if name == "network" else f"on {name}"
        found["pp"] = f"{plan.pipeline_parallel_size} stages {where}"
    return found
