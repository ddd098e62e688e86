"""What sits where and what travels: the contents of every rank, and the bytes over every link in each phase.

    cluster = placement(build_request("llama-3.1-70b", "h200", tensor_parallel_size=8, pipeline_parallel_size=2))
    cluster.ranks[9]                                  # node 1, stage 1, tp 1: attention heads 8 to 15
    cluster.stages[0].memory.weights_bytes            # of each rank of the stage
    cluster.stages[0].flows["decode"][0].links        # {"nvlink": 9175040.0}: bytes that a rank sends in the phase

Ranks are numbered as `costs.parallelism` lays them: tensor-parallel ranks are neighbours, then data-parallel groups,
then pipeline stages. Ranks of one stage differ in what they hold, not in how much: figures stand with the stage.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.symbols import Value, evaluate
from ..base.units import size
from ..costs import parallelism
from ..costs.binding import BoundPlan, stage_plans, step_env, step_rows, tower_rows
from ..costs.roofline import OpCost
from ..costs.step import Group, Step
from ..specs.structs import Hardware, Link, Plan
from . import latency, memory
from .breakdown import phase_tables
from .report import Memory, Phase
from .request import Request
from .speculation import draft_plan
from .weights import weight_bytes
from .workload import BatchShape, batch_shape_of

SCHEMA = "inferometer.cluster/1"
MAX_RANKS = 4096  # that are listed one by one
_PARTS = {"attn": "attention", "embed": "embedding", "shared": "shared experts", "": "norms and others"}


class ClusterLink(msgspec.Struct):
    """A way out of a GPU: ``joins`` says what it leads to (gpus, host, network); PCIe may lead to two of them."""

    name: str
    joins: list[str]
    bandwidth: float  # bytes/s of each GPU, one direction
    latency: float  # s
    topology: str  # between GPUs: switch, mesh, torus, bridge, or host (through its memory)
    note: str = ""  # what keeps ranks from all of it


class Flow(msgspec.Struct):
    """One communication operator of a stage in a phase; bytes and seconds are of one rank, over all its calls."""

    name: str
    kind: str
    block: str
    axis: str  # tp, ep, pp, dcp, or host
    ranks: int  # that take part together
    draft: bool  # of the model that drafts, which a report has in one row
    count: float
    sent: float  # bytes that a rank must send
    links: dict[str, float]  # the same by link: inside the node, and over the network
    seconds: float
    share: float  # of the phase
    bandwidth: float  # bytes/s: sent over seconds, of which `overlap` hides a part
    peak_bandwidth: float  # bytes/s that the link allows a rank at best


class StageContents(msgspec.Struct):
    """What each rank of a pipeline stage holds and sends."""

    stage: int
    layers: list[int]  # the first and the last; [] where there are none
    memory: Memory
    weights: dict[str, float]  # bytes by part of the network: attention, mlp, experts, embedding …
    offloaded_bytes: float  # of its weights, in the host's memory
    kv_blocks: int | None  # that the cache has room for
    kv_blocks_used: float | None  # by this batch at its longest
    attention_heads: int | None  # of the layers; None where they differ or there are none
    kv_heads: int | None
    experts: int | None
    sequences: float  # of each data-parallel rank
    flows: dict[str, list[Flow]]  # by phase


class RankContents(msgspec.Struct):
    """Where a rank sits, and which part of its stage is its own; heads and experts as first and last."""

    rank: int
    node: int
    domain: int  # of the fast link: the node, or the rack where nodes share it
    stage: int
    dp: int
    tp: int
    dcp: int
    heads: list[int] | None = None
    kv_heads: list[int] | None = None
    experts: list[int] | None = None


class PhaseTime(msgspec.Struct):
    """How long a phase takes, and which stage is its slowest: the one that a report's operators are of."""

    seconds: float
    steps: float
    slowest_stage: int


class Placement(msgspec.Struct):
    """A plan's machine: nodes, links, stages and ranks."""

    device: str
    label: str
    num_gpus: int
    nodes: int
    gpus_per_node: int
    gpus_per_domain: int  # that the fast link joins
    gpus_per_board: int  # of the device's own node: less than the domain in a rack
    parallel: dict[str, int]  # tp, dp, pp, dcp, and ep: ranks that share the experts
    experts_sliced: int  # shares that every expert is cut into
    links: list[ClusterLink]
    phases: dict[str, PhaseTime]
    stages: list[StageContents]
    ranks: list[RankContents]
    feasible: bool = True
    reason: str = ""  # why not; of a layout that cannot be used nothing is placed
    schema: str = SCHEMA


def placement(request: Request) -> Placement:
    """What sits where and what travels: ``placement(build_request("llama-3.1-8b", "h200")).stages[0].memory``"""
    plan, bound_plan = request.plan, request.bind()
    layout = parallelism.layout_env(plan, request.model)
    cluster = Placement(
        device=request.device.name,
        label=request.device.label or request.device.name,
        num_gpus=plan.gpus,
        nodes=plan.nodes,
        gpus_per_node=plan.gpus_per_node,
        gpus_per_domain=parallelism.gpus_per_link_domain(plan, request.device),
        gpus_per_board=min(plan.gpus_per_node, request.device.gpus_per_node),
        parallel={
            "tp": plan.tensor_parallel_size,
            "dp": plan.data_parallel_size,
            "pp": plan.pipeline_parallel_size,
            "dcp": plan.decode_context_parallel_size,
            "ep": int(layout["ep"]),
        },
        experts_sliced=int(layout["moe_tp"]),
        links=_links(plan, request.device),
        phases={},
        stages=[],
        ranks=[],
        reason=parallelism.illegal_reason(request.model, plan, request.device),
    )
    if cluster.reason:
        cluster.feasible = False
        return cluster
    batch_shape = batch_shape_of(bound_plan, request.workload)
    bound_plan = memory.cache_offloaded(bound_plan, batch_shape)
    tables = phase_tables(bound_plan, batch_shape, "all", batch_shape.output_len > 1)
    parts = stage_plans(bound_plan)
    cluster.phases = {name: _phase_time(parts, table) for name, table in tables.items()}
    cluster.stages = _stages(bound_plan, batch_shape, cluster.phases)
    fullest = max((stage.memory for stage in cluster.stages), key=lambda held: held.total_bytes)
    if fullest.total_bytes > fullest.usable_bytes:
        cluster.feasible = False
        needed, usable = size(fullest.total_bytes), size(fullest.usable_bytes)
        cluster.reason = f"the fullest GPU needs {needed}, but {usable} are usable"
    cluster.ranks = [_rank(cluster, number) for number in range(min(plan.gpus, MAX_RANKS))]
    return cluster


# ------------------------------------------------------------------ what sits where


def _phase_time(stages: tuple[BoundPlan, ...], table: Phase) -> PhaseTime:
    """The stage whose operators a table has is known by the layers in the names of its blocks."""
    names = {op.block for op in table.ops}
    of_table = (
        number
        for number, stage in enumerate(stages)
        if any(block.name in names for block in stage.model.blocks if block.stage == "layer")
    )
    return PhaseTime(table.seconds, table.steps, next(of_table, 0))


def _stages(bound_plan: BoundPlan, batch_shape: BatchShape, phases: dict[str, PhaseTime]) -> list[StageContents]:
    """What every stage holds and sends; stages of equal layers are worked out once."""
    parts = stage_plans(bound_plan)
    contents: list[StageContents] = []
    first_of: dict[tuple[object, ...], int] = {}
    for number, part in enumerate(parts):
        blocks = part.model.blocks
        key: tuple[object, ...] = (number == 0, number == len(parts) - 1, *((id(b.ops), b.count) for b in blocks))
        if isinstance(batch_shape.input_len, tuple):  # every layer has its own tokens
            key = (number,)
        first = first_of.setdefault(key, number)
        if first == number:
            contents.append(_stage(bound_plan, number, batch_shape, phases))
            continue
        names = {old.name: new.name for old, new in zip(parts[first].model.blocks, blocks, strict=True)}
        flows = {
            phase: [msgspec.structs.replace(flow, block=names.get(flow.block, flow.block)) for flow in of_phase]
            for phase, of_phase in contents[first].flows.items()
        }
        contents.append(msgspec.structs.replace(contents[first], stage=number, layers=_layers(part), flows=flows))
    return contents


def _layers(stage: BoundPlan) -> list[int]:
    """The first and the last layer of a stage."""
    layers = [layer for block in stage.model.blocks if block.stage == "layer" for layer in block.layers]
    return [min(layers), max(layers)] if layers else []


def _stage(bound_plan: BoundPlan, number: int, batch_shape: BatchShape, phases: dict[str, PhaseTime]) -> StageContents:
    stage = stage_plans(bound_plan)[number]
    held = memory.stage_memory(stage, batch_shape)
    block_bytes = held.kv_bytes_per_token * stage.plan.block_size
    kept = weights_by_part(stage)
    draft = float(memory.drafter(stage, 0)[0])
    share = float(stage.env["offload_share"])
    flows = {name: _flows(bound_plan, number, batch_shape, name, time.seconds) for name, time in phases.items()}
    return StageContents(
        stage=number,
        layers=_layers(stage),
        memory=held,
        weights={
            **{part: amount * (1 - share) for part, amount in kept.items()},
            **({"draft": draft} if draft else {}),
        },
        offloaded_bytes=sum(kept.values()) * share,
        kv_blocks=int(held.kv_capacity_bytes // block_bytes) if block_bytes else None,
        kv_blocks_used=held.kv_cache_bytes / block_bytes if block_bytes else None,
        attention_heads=_common_size(stage, "num_attention_heads"),
        kv_heads=_common_size(stage, "num_key_value_heads"),
        experts=_common_size(stage, "num_experts"),
        sequences=float(batch_shape.sequences),
        flows=flows,
    )


def weights_by_part(stage: BoundPlan) -> dict[str, float]:
    """Weight bytes of a GPU by part of the network, largest first: ``{"experts": 20.4e9, "attention": 11.4e9, …}``

    ``padding`` is what the engine keeps besides: tables of rotary positions, and blocks of memory larger than tensors.
    """
    amounts: dict[str, float] = {}
    for block in stage.model.blocks:
        env = {**stage.env, **block.dims}
        for op in block.ops:
            stored = float(evaluate(op.work.stored, env)) * block.count
            if stored:
                part = "vision" if block.stage == "vision" else _PARTS.get(op.role, op.role)
                amounts[part] = amounts.get(part, 0.0) + stored
    share = float(stage.env["offload_share"])
    if share < 1:
        padding = float(weight_bytes(stage)) / (1 - share) - sum(amounts.values())
        amounts |= {"padding": padding} if padding > 1 else {}
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))


def _common_size(stage: BoundPlan, name: str) -> int | None:
    """A size that all layers of a stage that have it agree on."""
    sizes = {int(block.dims[name]) for block in stage.model.blocks if block.stage == "layer" and name in block.dims}
    return sizes.pop() if len(sizes) == 1 else None


def _rank(cluster: Placement, number: int) -> RankContents:
    tp, dp, dcp = (cluster.parallel[axis] for axis in ("tp", "dp", "dcp"))
    in_stage = number % (tp * dp)
    stage = cluster.stages[number // (tp * dp)]
    own = in_stage % tp
    return RankContents(
        rank=number,
        node=number // cluster.gpus_per_node,
        domain=number // cluster.gpus_per_domain,
        stage=stage.stage,
        dp=in_stage // tp,
        tp=own,
        dcp=own % dcp,
        heads=shard(stage.attention_heads, own, tp),
        kv_heads=shard(stage.kv_heads, own, tp),
        experts=shard(stage.experts, in_stage, cluster.parallel["ep"]) if cluster.parallel["ep"] > 1 else None,
    )


def shard(total: int | None, rank: int, ranks: int) -> list[int] | None:
    """The first and last of some things that a rank has, none left over: ``shard(8, 5, 16)  # [2, 2]``

    Where they do not divide, the first ranks have one more; with more ranks than things, neighbours share one.
    """
    if not total:
        return None
    if ranks > total:
        return [rank * total // ranks] * 2
    each, rest = divmod(total, ranks)
    first = rank * each + min(rank, rest)
    return [first, first + each - (rank >= rest)]


# ------------------------------------------------------------------ what travels


class _Calls(NamedTuple):
    """An operator of a step, how often the step runs, and the names that its formulas use."""

    row: OpCost
    often: float
    env: dict[str, Value]
    draft: bool = False


def _flows(bound_plan: BoundPlan, number: int, batch_shape: BatchShape, phase: str, took: float) -> list[Flow]:
    """The communication of a stage in a phase, with what its images and its draft model send."""
    by_axis = parallelism.places(bound_plan.plan, bound_plan.device)
    host = parallelism.host_link_name(bound_plan.device)
    flows: dict[tuple[bool, int, int], Flow] = {}
    for calls in _calls(bound_plan, number, batch_shape, phase):
        row, sent = calls.row, float(calls.row.work["sent"])
        if not row.op.axis or not sent:
            continue
        place = next(i for i, op in enumerate(row.block.ops) if op is row.op)  # a block may have two of one name
        flow = flows.setdefault((calls.draft, id(row.block), place), _flow(calls, bound_plan.env))
        times = float(row.count) * calls.often
        flow.count += times
        flow.sent += sent * times
        flow.seconds += float(row.seconds) * times
    for flow in flows.values():
        flow.share = flow.seconds / took if took else 0.0
        flow.bandwidth = flow.sent / flow.seconds if flow.seconds else 0.0
        shares = {host: 1.0} if flow.axis == "host" else _shares(flow, by_axis[flow.axis])
        flow.links = {name: flow.sent * share for name, share in shares.items()}
    return list(flows.values())


def _flow(calls: _Calls, links: dict[str, Value]) -> Flow:
    """A communication operator before its calls are added."""
    op, block = calls.row.op, calls.row.block
    return Flow(
        name=op.name,
        kind=op.kind,
        block=block.name,
        axis=op.axis,
        ranks=round(float(evaluate(op.dims["ranks"], {**calls.env, **block.dims}))),
        draft=calls.draft,
        count=0.0,
        sent=0.0,
        links={},
        seconds=0.0,
        share=0.0,
        bandwidth=0.0,
        peak_bandwidth=float(links[f"{op.axis}_bandwidth"]),
    )


def _shares(flow: Flow, place: parallelism.Place) -> dict[str, float]:
    """The share of what a rank sends by link, as the model of collectives has it.

    Across nodes the ranks of a node add up their part first, so that a rank sends its 1/inside of it over the network;
    of an exchange of tokens, all that is for ranks elsewhere.
    """
    if place.name == "network" or flow.ranks <= place.per_node:
        return {place.name: 1.0}
    ranks, inside = flow.ranks, place.per_node
    beyond = ranks - inside if flow.kind == "all_to_all" else -(-ranks // inside) - 1
    outside = beyond / (ranks - 1)
    return {place.name: 1 - outside, "network": outside} if outside < 1 else {"network": 1.0}


def _calls(bound_plan: BoundPlan, number: int, batch_shape: BatchShape, phase: str) -> list[_Calls]:
    """Every operator of a stage in a phase; images are the first stage's, drafts the last one's."""
    stages = stage_plans(bound_plan)
    stage, spec = stages[number], bound_plan.plan.speculation
    calls: list[_Calls] = []
    for step, often in _steps(bound_plan, batch_shape, phase):
        first = step if isinstance(step, Step) else step[0]
        env = step_env(stage, first)
        calls += [_Calls(row, often, env) for row in step_rows(stage, step)]
        drafts = phase == "decode" and spec is not None and spec.method != "ngram" and isinstance(step, Step)
        if drafts and spec is not None and number == len(stages) - 1:
            group, small = first.groups[0], draft_plan(bound_plan)
            one = Step((Group(group.seqs, 1, group.cached, 1, True),))
            env, times = step_env(small, one), float(spec.num_speculative_tokens)
            calls += [_Calls(row, times, env, draft=True) for row in step_rows(small, one)]
    if phase == "prefill" and number == 0 and batch_shape.images.count:
        images = latency.vision_step(batch_shape)
        calls += [_Calls(row, 1.0, step_env(stage, images)) for row in tower_rows(stage, images)]
    return calls


def _steps(bound_plan: BoundPlan, batch_shape: BatchShape, phase: str) -> list[tuple[Step | list[Step], float]]:
    """The steps of a phase and how often each runs, as a report's tables have them."""
    if phase == "prefill":
        return latency.prefill_steps(bound_plan, batch_shape)
    if phase == "mixed":
        return [(latency.mixed_step(bound_plan, batch_shape), 1.0)]
    step = latency.decode_step(bound_plan, batch_shape)
    return [(step, float(latency.micro_batches(bound_plan, batch_shape.sequences)) if isinstance(step, Step) else 1.0)]


def _links(plan: Plan, device: Hardware) -> list[ClusterLink]:
    """What leaves a GPU of the plan: to the others of its node, to the host, to other nodes."""
    by_axis, tp = parallelism.places(plan, device), plan.tensor_parallel_size
    sizes = {"tp": tp, "ep": tp * plan.data_parallel_size, "pp": plan.pipeline_parallel_size}
    between = {by_axis[axis].name: by_axis[axis] for axis, size in sizes.items() if size > 1}
    joins: dict[str, list[str]] = {}
    for name in (plan.interconnect or device.interconnect, *(name for name in between if name != "network")):
        joins.setdefault(name, ["gpus"])
    joins.setdefault(parallelism.host_link_name(device), []).append("host")
    joins.setdefault("network", []).append("network")
    return [
        _link(name, leads_to, device.links[name], between) for name, leads_to in joins.items() if name in device.links
    ]


def _link(name: str, joins: list[str], link: Link, between: dict[str, parallelism.Place]) -> ClusterLink:
    topology, note = "", ""
    if "gpus" in joins:
        topology = "torus" if link.wraparound else "mesh" if link.peers else "bridge" if link.devices <= 2 else "switch"
        topology = topology if link.peer_to_peer else "host"
        note = parallelism.link_limit(between[name]).strip(" ()") if name in between else ""
    return ClusterLink(name, joins, link.bandwidth, link.latency, topology, note)
