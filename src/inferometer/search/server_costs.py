"""How many sequences a server's memory holds: of every stage, for every limit that its engine may be started with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..costs.binding import BoundPlan
from ..costs.step import Group, Step
from ..inference.memory import drafter
from ..serving.deployment import ReplicaPool, kv_transfer_seconds
from .objective import Traffic
from .space import Server, Space
from .steady_state import Load, Sizes, distinct, load, steady


class Room(NamedTuple):
    """Sequences that fit beside the weights, and what the fullest GPU would have to hold for one."""

    sequences: np.ndarray  # by token budget and --max-num-seqs
    answering: float  # on a rank that only answers, with the engine's own limits
    needed: float  # bytes
    usable: float

    @property
    def reason(self) -> str:
        """Why not even one request fits; empty if one does."""
        if (self.sequences >= 1).any():
            return ""
        return f"needs {self.needed / 1e9:.1f} GB of the {self.usable / 1e9:.1f} GB per GPU that it may use"


def rooms(setups: list[BoundPlan], load: Load, traffic: Traffic, sequences: tuple[int, ...]) -> list[Room]:
    """Of one layout at several depths of pipeline: bytes of a block are counted once for all."""
    engine, plan = setups[0].engine, setups[0].plan
    shared = float(traffic.prefix_len if engine.prefix_caching else 0)
    lengths = np.array([traffic.input_len + traffic.output_len / 2, float(traffic.longest), shared])
    budget, seqs = np.array(load.budgets)[:, None], np.array(sequences, float)[None, :]
    if engine.profile_run:  # it sets aside what its largest step needs
        rows = np.minimum(budget, seqs)
        largest = Step((Group(rows, budget / rows, 0, 1),))
    else:
        piece = np.minimum(budget, load.prompt) + 0 * seqs
        largest = Step((Group(budget / piece, piece, load.prompt - piece, 1),))
    sizes = Sizes(setups[0], lengths, largest)
    more_weights, more_cache = drafter(setups[0], lengths[0])
    usable = setups[0].device.memory * plan.gpu_memory_utilization
    found = []
    for bound_plan in setups:
        fit, need = np.full((budget.size, seqs.size), np.inf), 0.0
        for stage in distinct(bound_plan):
            weights, (mean, longest, prefix), live = sizes.stage(stage.bound_plan)
            fixed = weights + more_weights + engine.memory_reserve + np.broadcast_to(live, fit.shape)
            left = usable - fixed - longest - more_cache  # one that comes in must have room for all of itself
            each = max(mean - prefix + more_cache, 1.0)
            fit = np.minimum(fit, np.where(left >= 0, 1 + (left - prefix) // each, 0))
            need = max(need, float((fixed + longest).min()))
        usual = fit[
            np.abs(load.budgets - plan.max_num_batched_tokens).argmin(), np.abs(seqs[0] - plan.max_num_seqs).argmin()
        ]
        found.append(Room(fit, float(usual), need, usable))
    return found


# ------------------------------------------------------------------ prices
# All servers, priced: arrays over servers, token budgets, limits of sequences and loads.


class Prices(NamedTuple):
    """One row per server; then budgets (t), limits of sequences (s) and loads (n). Seconds, requests/s."""

    servers: list[Server]
    load: Load
    budgets: np.ndarray
    sequences: np.ndarray
    gpus: np.ndarray
    decoding: np.ndarray  # [v, n] sequences that decode on a rank
    ttft: np.ndarray  # [v, t, n] but for the wait behind other prompts
    queue: np.ndarray  # [v, t, n] that wait, where a rank's requests come at random
    used: np.ndarray  # [v, t, n] share of the room for prompts that is used
    tpot: np.ndarray  # [v, t, n]
    rate: np.ndarray  # [v, t, n] of the whole server; 0 where prompts cannot keep up
    fits: np.ndarray  # [v, t, s, n]
    alone: np.ndarray  # [v, t] a prompt on a server that only reads
    reading: np.ndarray  # [v, t] prompts/s of such a server
    gap: np.ndarray  # [v, n] between two tokens on one that only answers
    writing: np.ndarray  # [v, n] requests/s of such a server, 0 where they do not fit
    handed: np.ndarray  # [v] seconds that this side needs to hand over the cache of a prompt

    @property
    def points(self) -> int:
        """Loads of limits of servers that were priced."""
        return int(self.rate.shape[0] * self.rate.shape[1] * len(self.sequences) * self.rate.shape[2])


def prices(
    servers: Sequence[Server], space: Space, traffic: Traffic, progress: Callable[[int], None] | None = None
) -> tuple[Prices | None, list[str]]:
    """All servers that hold a request, priced, and why each of the others does not (empty for those that do).

    Servers that differ in the depth of their pipeline only share the work.
    """
    asked = servers[0].request
    found = load(traffic, asked.engine, asked.plan, space.budgets, max(space.sequences))
    families: dict[tuple[object, ...], list[int]] = {}
    for number, server in enumerate(servers):
        tp, _, dp, ep = server.layout
        families.setdefault((server.kind, tp, dp, ep), []).append(number)
    seqs = np.array(space.sequences, float)
    rows: dict[int, tuple[np.ndarray, ...]] = {}
    lacks = [""] * len(servers)
    for done, members in enumerate(families.values()):
        setups = [servers[number].bind() for number in members]
        room = rooms(setups, found, traffic, space.sequences)
        large = [number for number, one in zip(members, room, strict=True) if one.reason]
        kept = [bound_plan for bound_plan, one in zip(setups, room, strict=True) if not one.reason]
        results = iter(steady(kept, found) if kept else ())
        for number, bound_plan, one in zip(members, setups, room, strict=True):
            lacks[number] = one.reason
            if number not in large:
                dp, s = servers[number].layout.dp, next(results)
                at_once = s.decoding[None, None, :]
                fits = (at_once <= one.sequences[:, :, None]) & (at_once <= seqs[None, :, None])
                room_to_answer = s.decoding <= min(one.answering, seqs.max())
                handed = (
                    _handed(bound_plan, traffic) if servers[number].layout.pp == 1 else 0.0
                )  # stages hand over nothing
                rows[number] = (
                    s.decoding,
                    s.ttft,
                    s.queue,
                    s.used,
                    s.tpot,
                    s.rate * dp,
                    fits,
                    s.alone,
                    s.reading * dp,
                    s.gap,
                    s.writing * dp * room_to_answer,
                    np.array(handed),
                )
        if progress is not None:
            progress(done + 1)
    priced = sorted(rows)
    if not priced:
        return None, lacks
    columns = [np.stack([rows[number][column] for number in priced]) for column in range(len(rows[priced[0]]))]
    gpus = np.array([servers[number].layout.gpus for number in priced])
    able = [servers[number] for number in priced]
    return Prices(able, found, np.array(space.budgets), np.array(space.sequences), gpus, *columns), lacks


def _handed(bound_plan: BoundPlan, traffic: Traffic) -> float:
    """Seconds that one side of a handover needs, as the simulator has it."""
    side = ReplicaPool(bound_plan, 1, [], 0, 0, "", ())
    return kv_transfer_seconds(side, side, np.array([round(traffic.input_len)]))[0]
