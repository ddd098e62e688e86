"""Estimates of all servers, as arrays with the axes ``[server, token_budget, seqs, load]``.

Two things make a row: how many sequences the memory holds, of every stage and for every limit that the engine may be
started with (`kv_capacities`), and how fast the server is at every load (`steady_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..costs.binding import BoundPlan
from ..costs.power import idle_watts
from ..costs.step import Group, Step
from ..inference import memory
from ..inference.cache_size import cache_bytes
from ..inference.memory import drafter
from ..inference.weights import weight_bytes
from ..network.graph import Block
from ..serving.kv_cache import kv_transfer_seconds
from ..specs.structs import Engine
from .objective import Traffic
from .space import Problem, Server
from .steady_state import LoadGrid, SteadyState, distinct_stages, load_grid, single_layer, steady_states


class Shortfall(NamedTuple):
    """Bytes that one request needs on the fullest GPU, which are more than the engine may use."""

    needed_bytes: float
    usable_bytes: float

    def __str__(self) -> str:
        needed, usable = self.needed_bytes / 1e9, self.usable_bytes / 1e9
        return f"needs {needed:.1f} GB of {usable:.1f} GB usable per GPU"


class KVCapacity(NamedTuple):
    """How many sequences fit beside the weights, and the bytes of the fullest GPU with one of them."""

    max_seqs: np.ndarray  # [token_budget, seqs]
    decode_seqs: float  # on a rank of a decode pool, with the engine's own limits
    needed_bytes: float
    usable_bytes: float

    @property
    def shortfall(self) -> Shortfall | None:
        """What is missing where not even one request fits; None if one does."""
        return None if (self.max_seqs >= 1).any() else Shortfall(self.needed_bytes, self.usable_bytes)


class BlockBytes(NamedTuple):
    """Bytes on one GPU of one layer of a block, or of all layers of a stage."""

    kv_cache: Any  # [length] of one sequence at each of the lengths
    peak: memory.Peak  # [token_budget, seqs] of activations in the largest step


class StageBytes:
    """Bytes of any stage of a layout: ``StageBytes(bound_plan, lengths, largest_step).total(stage.bound_plan)``"""

    def __init__(self, bound_plan: BoundPlan, lengths: np.ndarray, largest_step: Step) -> None:
        self.bound_plan, self.lengths, self.largest_step = bound_plan, lengths, largest_step
        self._layer_bytes: dict[int, BlockBytes] = {}  # by the identity of a block's operators

    def total(self, stage: BoundPlan) -> BlockBytes:
        """KV cache of all layers of a stage, and the highest peak of activations among them."""
        kv_cache, peak = np.zeros(len(self.lengths)), memory.Peak()
        for block in stage.model.blocks:
            key = id(block.ops)
            if key not in self._layer_bytes:
                self._layer_bytes[key] = self._of_layer(block, stage)
            layer = self._layer_bytes[key]
            kv_cache, peak = kv_cache + block.count * layer.kv_cache, peak.joined(layer.peak)
        return BlockBytes(kv_cache, peak)

    def _of_layer(self, block: Block, stage: BoundPlan) -> BlockBytes:
        model = msgspec.structs.replace(stage.model, blocks=(single_layer(block),))
        layer = self.bound_plan._replace(model=model)
        return BlockBytes(
            kv_cache=cache_bytes(layer, self.lengths), peak=memory.activation_peak(layer, self.largest_step)
        )


class _Reserved(NamedTuple):
    """Bytes of a GPU that are not the target model's KV cache, and of the draft model's KV cache."""

    engine: Engine
    memory: float
    draft_weights: float
    draft_cache: float  # of one sequence


def memory_shares(server: Server, token_budgets: Sequence[int]) -> np.ndarray:
    """Shares of memory that an engine takes under each token budget, where its rules look at that [token_budget, 1]."""
    request = server.request
    rules = request.ruled_engine.when if request.ruled_engine is not None else ()
    if not any(isinstance(rule.set.get("memory_utilization"), str) for rule in rules):  # no formula
        return np.full((len(token_budgets), 1), request.plan.gpu_memory_utilization)
    shares = [request.replan(request.plan, max_num_batched_tokens=n).plan.gpu_memory_utilization for n in token_budgets]
    return np.array(shares)[:, None]


def kv_capacities(
    bound_plans: list[BoundPlan],
    loads: LoadGrid,
    traffic: Traffic,
    max_num_seqs: tuple[int, ...],
    shares: list[np.ndarray],
) -> list[KVCapacity]:
    """Of one layout at several depths of pipeline: bytes of a block are counted once for all.

    ``shares``: for each depth, of memory that the engine takes under each token budget (`memory_shares`).
    """
    engine, plan = bound_plans[0].engine, bound_plans[0].plan
    shared = float(traffic.prefix_len if engine.prefix_caching else 0)
    lengths = np.array([traffic.input_len + traffic.output_len / 2, float(traffic.max_len), shared])
    seqs = np.array(max_num_seqs, float)
    stage_bytes = StageBytes(bound_plans[0], lengths, _largest_step(engine.profile_run, loads, seqs))
    draft_weights, draft_cache = drafter(bound_plans[0], lengths[0])
    reserved = _Reserved(
        engine=engine,
        memory=bound_plans[0].device.memory,
        draft_weights=float(draft_weights),
        draft_cache=float(draft_cache),
    )
    own_limits = (  # nearest values of the axes to the engine's own limits
        np.abs(loads.token_budgets - plan.max_num_batched_tokens).argmin(),
        np.abs(seqs - plan.max_num_seqs).argmin(),
    )
    capacities = []
    for bound_plan, share in zip(bound_plans, shares, strict=True):
        max_seqs, needed, usable = np.full((loads.token_budgets.size, seqs.size), np.inf), 0.0, np.inf
        for stage in distinct_stages(bound_plan):
            stage_seqs, stage_needed, stage_usable = _stage_capacity(
                stage_bytes.total(stage.bound_plan),
                float(weight_bytes(stage.bound_plan)),
                reserved,
                np.broadcast_to(share, max_seqs.shape),
            )
            max_seqs = np.minimum(max_seqs, stage_seqs)
            if stage_needed > needed:
                needed, usable = stage_needed, stage_usable
        capacities.append(KVCapacity(max_seqs, float(max_seqs[own_limits]), needed, usable))
    return capacities


def _stage_capacity(
    stage: BlockBytes, weights: float, reserved: _Reserved, share: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Sequences that one stage's GPUs hold [token_budget, seqs], the fewest bytes that they need for one, and of how
    many.

    The first sequence may be the longest; every other has mean length, half of its answer written, and shares the
    prefix.
    """
    mean, longest, prefix = stage.kv_cache
    weights += reserved.draft_weights
    aside = reserved.engine.memory_reserve + np.broadcast_to(stage.peak.bytes, share.shape)
    usable = memory.usable_share(reserved.engine, reserved.memory, share, weights, aside)
    left = usable - weights - aside - longest - reserved.draft_cache
    per_sequence = max(mean - prefix + reserved.draft_cache, 1.0)
    max_seqs = np.where(left >= 0, 1 + (left - prefix) // per_sequence, 0)
    nearest = np.unravel_index(left.argmax(), left.shape)  # the limits under which one request comes nearest to fitting
    return max_seqs, float((weights + aside)[nearest] + longest), float(usable[nearest])


def _largest_step(profile_run: bool, loads: LoadGrid, seqs: np.ndarray) -> Step:
    """The step for which an engine keeps memory for activations, by limits [token_budget, seqs].

    An engine with a profile run sets aside what ``max_num_batched_tokens`` in ``max_num_seqs`` sequences need; others
    are as large as the last chunk of a prompt.
    """
    token_budget = loads.token_budgets[:, None]
    if profile_run:
        rows = np.minimum(token_budget, seqs[None, :])
        return Step((Group(rows, token_budget / rows, 0, 1),))
    chunk = np.minimum(token_budget, loads.new_tokens) + 0 * seqs[None, :]
    return Step((Group(token_budget / chunk, chunk, loads.new_tokens - chunk, 1),))


class ServerTable(NamedTuple):
    """One row per server that holds a request. Seconds, requests/s."""

    servers: list[Server]
    loads: LoadGrid
    max_num_batched_tokens: np.ndarray  # [token_budget]
    max_num_seqs: np.ndarray  # [seqs]
    gpus: np.ndarray  # [server]
    decoding: np.ndarray  # [server, load] sequences that decode on a rank
    base_ttft: np.ndarray  # [server, token_budget, load] without queueing behind other prompts
    queue_seconds: np.ndarray  # [server, token_budget, load] that queueing, where a rank's arrivals are Poisson
    utilization: np.ndarray  # [server, token_budget, load] of the budget for prompts
    tpot: np.ndarray  # [server, token_budget, load]
    request_rate: np.ndarray  # [server, token_budget, load] of the whole server; 0 where prompts cannot keep up
    fits: np.ndarray  # [server, token_budget, seqs, load] whether memory and limits admit the load
    prefill_seconds: np.ndarray  # [server, token_budget] a prompt on a server of a prefill pool
    prefill_rate: np.ndarray  # [server, token_budget] prompts/s of such a server
    decode_tpot: np.ndarray  # [server, load] between two tokens on a server of a decode pool
    decode_rate: np.ndarray  # [server, load] requests/s of such a server, 0 where they do not fit
    kv_transfer_seconds: np.ndarray  # [server] of a prompt's KV cache over this side's links
    watts: np.ndarray  # [server, token_budget, load] of a GPU, mean; 0 if its power is not known
    prefill_watts: np.ndarray  # [server, token_budget] of a GPU of a prefill pool that always has prompts
    decode_watts: np.ndarray  # [server, load] of a GPU of a decode pool
    idle_watts: np.ndarray  # [server] of a GPU

    @property
    def points(self) -> int:
        """Loads of limits of servers that are estimated."""
        return int(self.request_rate.size * len(self.max_num_seqs))

    def served(self) -> np.ndarray:
        """Loads that some limit admits and prompts keep up with [server, token_budget, load]."""
        served: np.ndarray = self.fits.any(2) & (self.request_rate > 0)
        return served

    def per_device(self, figure: str) -> np.ndarray:
        """A figure of each server's GPU [server]: ``table.per_device("price_per_hour")``"""
        return np.array([getattr(server.request.device, figure) for server in self.servers])


def estimate_servers(
    servers: Sequence[Server], problem: Problem, progress: Callable[[int], None] | None = None
) -> tuple[ServerTable | None, list[Shortfall | None]]:
    """The table of all servers that hold a request (None if none does), and what each of the others lacks.

    Servers that differ in the depth of their pipeline only share the work.
    """
    space, traffic = problem.space, problem.traffic
    engine, plan = servers[0].request.engine, servers[0].request.plan
    loads = load_grid(traffic, engine, plan, space.max_num_batched_tokens, max(space.max_num_seqs))
    rows: dict[int, dict[str, Any]] = {}
    seen: dict[Any, Any] = {}  # kernels that several layouts have
    shortfalls: list[Shortfall | None] = [None] * len(servers)
    done = 0
    for members in _families(servers):
        bound_plans = [servers[number].bind() for number in members]
        shares = [memory_shares(servers[number], space.max_num_batched_tokens) for number in members]
        capacities = kv_capacities(bound_plans, loads, traffic, space.max_num_seqs, shares)
        fitting = [bound_plan for bound_plan, one in zip(bound_plans, capacities, strict=True) if one.shortfall is None]
        states = iter(steady_states(fitting, loads, seen) if fitting else ())
        for number, bound_plan, capacity in zip(members, bound_plans, capacities, strict=True):
            shortfalls[number] = capacity.shortfall
            if capacity.shortfall is None:
                transfer = _kv_transfer_seconds(servers[number], bound_plan, traffic)
                row = _row(servers[number], capacity, next(states), space.max_num_seqs)
                rows[number] = {**row, "kv_transfer_seconds": transfer}
        done += len(members)
        if progress is not None:
            progress(done)
    return (_table(servers, rows, loads, problem) if rows else None), shortfalls


def _table(
    servers: Sequence[Server], rows: dict[int, dict[str, Any]], loads: LoadGrid, problem: Problem
) -> ServerTable:
    """The rows of some servers by their number, stacked column by column in the servers' order."""
    numbers = sorted(rows)
    return ServerTable(
        servers=[servers[number] for number in numbers],
        loads=loads,
        max_num_batched_tokens=np.array(problem.space.max_num_batched_tokens),
        max_num_seqs=np.array(problem.space.max_num_seqs),
        gpus=np.array([servers[number].layout.gpus for number in numbers]),
        **{name: np.stack([rows[number][name] for number in numbers]) for name in rows[numbers[0]]},
    )


def _families(servers: Sequence[Server]) -> list[list[int]]:
    """Numbers of servers that differ in their pipeline depth only."""
    families: dict[tuple[object, ...], list[int]] = {}
    for number, server in enumerate(servers):
        tp, _, dp, ep = server.layout
        families.setdefault((server.kind, tp, dp, ep), []).append(number)
    return list(families.values())


def _row(
    server: Server, capacity: KVCapacity, state: SteadyState, max_num_seqs: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """The columns of one server: a rank's steady state times its data-parallel ranks, and the loads that fit."""
    dp, seqs = server.layout.dp, np.array(max_num_seqs, float)
    decoding = state.decoding[None, None, :]
    fits = (decoding <= capacity.max_seqs[:, :, None]) & (decoding <= seqs[None, :, None])  # [token_budget, seqs, load]
    decode_fits = state.decoding <= min(capacity.decode_seqs, seqs.max())
    return {
        "decoding": state.decoding,
        "base_ttft": state.base_ttft,
        "queue_seconds": state.queue_seconds,
        "utilization": state.utilization,
        "tpot": state.tpot,
        "request_rate": state.request_rate * dp,
        "fits": fits,
        "prefill_seconds": state.prefill_seconds,
        "prefill_rate": state.prefill_rate * dp,
        "decode_tpot": state.decode_tpot,
        "decode_rate": state.decode_rate * dp * decode_fits,
        "watts": state.watts,
        "prefill_watts": state.prefill_watts,
        "decode_watts": state.decode_watts,
        "idle_watts": np.array(idle_watts(server.request.device)),
    }


def _kv_transfer_seconds(server: Server, bound_plan: BoundPlan, traffic: Traffic) -> float:
    """Seconds that one side of a KV transfer needs, as the simulator has it; not of what is never disaggregated."""
    if not server.can_transfer:
        return 0.0
    return kv_transfer_seconds(bound_plan, bound_plan, np.array([round(traffic.input_len)]))[0]
