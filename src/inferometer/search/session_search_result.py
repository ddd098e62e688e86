"""The result of a search for sessions, as structs that are its JSON (``inferometer.session_search/1``).

result = session_search("llama-3.1-8b", "h200", agents="coding-agent", request_rate=0.05, goodput="ttft:2000")
result.winner.label      result.winner.cost_per_session      result.commands["vllm"]
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..base.units import money, plural
from ..inference.report import JsonResult
from .launch.processes import Launch
from .search_result import PoolSpec, Relaxation

SCHEMA = "inferometer.session_search/1"


class SessionPlan(msgspec.Struct, kw_only=True):
    """Servers alike and a router that were simulated with all sessions."""

    label: str  # 2 × tp1 fp8, KV fp8 + 64 GiB, session_affinity
    gpu: str
    pool: PoolSpec  # its servers
    gpus: int
    router: str  # how requests are routed to them
    holds: bool  # whether enough turns keep every limit
    stopped: bool  # once so many turns were late that it could not hold: then good_share is the most that it can be
    good_share: float  # of the turns that keep every limit
    missed: dict[str, float | None]  # limits that are missed: ms that the share that counts takes
    cost_per_session: float | None  # USD; None without the GPU's price, or where no session ended
    sessions_per_hour: float | None  # that ended, over the run
    duration_s: float  # from the first turn to the end of the last one
    ttft_ms: dict[str, float | None]  # of turns: mean, p50, p90, p99, and the share that counts; empty if stopped
    tpot_ms: dict[str, float | None]
    e2el_ms: dict[str, float | None]
    session_s: dict[str, float | None]  # of whole sessions, tools and people included: mean, p90
    cached_share: float  # of prompt tokens that came from the cache
    tier_shares: dict[str, float]  # of prompt tokens, by the tier that had them
    reason: str = ""  # why it does not hold


class SessionSearch(JsonResult, msgspec.Struct, kw_only=True, dict=True):
    """The plan that serves sessions for least, within the limits of every turn."""

    schema: str = SCHEMA
    model: str
    engine: str
    num_gpus: int
    traffic: str  # of coding-agent sessions, 0.05 new sessions/s
    sessions: int  # that every plan was simulated with
    turns: int
    goodput: dict[str, float]  # limits in ms
    goodput_share: float
    feasible: bool
    reason: str
    winner: SessionPlan | None
    why: list[str]  # sentences
    plans: list[SessionPlan]  # simulated: the winner, others that hold by their cost, then those that do not
    rejections: dict[str, int]  # reason -> servers that cannot be started, or are too slow even when idle
    space: dict[str, Any]
    counts: dict[str, int]  # plans; simulated (and stopped); the same with less memory; dearer by bounds; no better
    commands: dict[str, list[str]]  # lines of a shell: servers of each engine, and the simulation again
    launches: dict[str, Launch] = {}  # the same as processes
    relaxations: list[Relaxation] = []
    seconds: float
    warnings: list[str]

    def __repr__(self) -> str:
        if self.winner is None:
            return f"<SessionSearch {self.model[:60]}: no plan holds>"
        cost = self.winner.cost_per_session
        worth = f", {money(cost)} a session" if cost is not None else ""
        return (
            f"<SessionSearch {self.model[:60]} on {plural(self.winner.gpus, 'GPU')}: {self.winner.label[:90]}{worth}>"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A line for every plan."""
        rows = []
        for plan in self.plans:
            row: dict[str, Any] = msgspec.to_builtins(plan)
            for name in ("ttft_ms", "tpot_ms", "e2el_ms", "session_s"):
                row |= {f"{key}_{name}": value for key, value in row.pop(name).items()}
            row |= {f"{name}_share": share for name, share in row.pop("tier_shares").items()}
            row["missed"] = " ".join(row["missed"])
            rows.append({**row.pop("pool"), **row})
        return rows
