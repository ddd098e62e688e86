"""What a search found, as structs that are the JSON: plans with their figures, the front, rejections, commands."""

from __future__ import annotations

from typing import Any

import msgspec

from .plan_simulation import Trial


class Pool(msgspec.Struct, kw_only=True, frozen=True):
    """Servers alike, each on its own GPUs."""

    role: str  # both, prefill, decode
    replicas: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    quantization: str
    kv_cache_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int

    @property
    def gpus(self) -> int:
        """GPUs of one of the servers."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def layout(self) -> str:
        """``tp4·pp2``"""
        sizes = {"tp": self.tensor_parallel_size, "pp": self.pipeline_parallel_size, "dp": self.data_parallel_size}
        words = [f"{name}{size}" for name, size in sizes.items() if size > 1] or ["tp1"]
        return "·".join([*words, *(["ep"] if self.enable_expert_parallel else [])])


class Figures(msgspec.Struct, kw_only=True, frozen=True):
    """What a plan does at one rate of requests."""

    request_rate: float
    output_throughput: float  # tokens/s
    output_throughput_per_gpu: float  # of the GPUs that were given, or with a rate of those that are used
    output_throughput_per_user: float
    ttft_ms: float  # means
    tpot_ms: float
    e2el_ms: float
    cost_per_million_output_tokens: float | None
    joules_per_output_token: float | None


class Candidate(msgspec.Struct, kw_only=True):
    """A plan: what runs where, what its means say, and what the simulation says."""

    gpu: str
    mode: str  # aggregated, disaggregated
    pools: list[Pool]
    gpus: int
    idle_gpus: int
    priced: Figures
    simulated: Figures | None = None
    trial: Trial | None = None
    simulations: int = 0
    verdict: str = ""  # wins, holds (what was promised), beaten (where it would be as good), fails, misses
    reason: str = ""  # why it is not the winner, where that takes a sentence

    @property
    def label(self) -> str:
        """``8 × tp2 fp8, KV fp8``"""
        first, *rest = self.pools
        if not rest:
            return f"{first.replicas} × {first.layout} {precision(first)}"
        return f"{first.replicas} × {first.layout} → {rest[0].replicas} × {rest[0].layout} {precision(first)}"


def precision(pool: Pool) -> str:
    """Weights and cache in words: ``fp8, KV bf16``"""
    return f"{pool.quantization}, KV {pool.kv_cache_dtype}"


class Relaxation(msgspec.Struct, kw_only=True, frozen=True):
    """One change that would make a plan possible, found by trying it."""

    change: str
    plan: str
    simulated: bool  # whether the simulator has confirmed it


class Search(msgspec.Struct, kw_only=True):
    """The result of a search."""

    schema: str = "inferometer.search/1"
    model: str
    engine: str
    num_gpus: int
    objective: str
    goodput: dict[str, float]  # limits in ms
    goodput_share: float
    workload: dict[str, Any]
    feasible: bool
    reason: str
    winner: Candidate | None
    why: list[str]  # sentences
    margin: dict[str, float]  # of the winner: to each limit, and to the runner-up; shares
    plans: list[Candidate]  # the best ones, simulated: the winner, those that hold, those that are beaten
    rejected: list[Candidate]  # the best-looking ones that are not possible
    rejections: dict[str, int]  # reason -> plans
    front: list[dict[str, Any]]
    space: dict[str, Any]
    counts: dict[str, int]
    commands: dict[str, list[str]]
    relaxations: list[Relaxation]
    seconds: dict[str, float]
    warnings: list[str]
