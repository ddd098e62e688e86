"""The result of an analysis: plain structs that are also the JSON contract (schema ``inferometer.analyze/1``).

report = inferometer.analyze("llama-3.1-8b", gpu="h200")
report.metrics.tpot_ms        report.phases["decode"].ops[0].name        report.to_dict()        report.to_csv()
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..base.result import ComparableResult, Result, views
from ..base.units import milliseconds, size
from ..specs.structs import ServerCommand

SCHEMA = "inferometer.analyze/1"


class ModelInfo(msgspec.Struct):
    """Which network it is."""

    name: str
    family: str
    params: int
    active_params: int
    layers: int
    dtype: str
    quantization: dict[str, str]  # role -> precision of its weights
    computed_as: dict[str, str]  # role -> precision whose kernels the engine runs
    max_position: int | None
    source: str
    kind: str = "decoder"  # answers with tokens; or diffusion: with images
    vision: bool = False  # whether it reads images


class Metrics(msgspec.Struct):
    """What a user of the deployment sees; null where a kind of model or a phase has no such figure."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    prefill_throughput: float | None = None
    output_throughput: float | None = None
    total_token_throughput: float | None = None
    output_throughput_per_gpu: float | None = None
    cost_per_million_output_tokens: float | None = None
    joules_per_output_token: float | None = None
    watts_per_gpu: float | None = None  # mean, of each
    image_latency_ms: float | None = None  # of a diffusion model: all denoising steps; ttft_ms is one of them
    images_per_second: float | None = None
    cost_per_thousand_images: float | None = None
    joules_per_image: float | None = None


class Roofline(msgspec.Struct):
    """The same plan at the speed of light."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Memory(msgspec.Struct):
    """Bytes on the fullest GPU."""

    weights_bytes: float
    kv_cache_bytes: float
    activation_bytes: float
    overhead_bytes: float
    total_bytes: float
    capacity_bytes: float
    usable_bytes: float
    kv_bytes_per_token: float  # of a short sequence, and of what drafts
    kv_capacity_bytes: float  # left for the cache: room for max_total_tokens, of sequences as long as they may be
    max_batch_size: int
    max_batch_size_prefill: int
    max_batch_size_decode: int
    max_total_tokens: int | None


class OpRow(msgspec.Struct):
    """One operator of a phase; figures are totals over its ``count`` calls on one GPU."""

    name: str
    kind: str
    block: str
    count: float
    shape: dict[str, list[float]]
    flops: float
    bytes: float
    seconds: float
    share: float
    bound: str
    intensity: float
    efficiency: float
    origin: str
    formula: str
    load_weight: float = 0.0
    load_act: float = 0.0
    store_act: float = 0.0
    load_kv_cache: float = 0.0
    store_kv_cache: float = 0.0
    sent: float = 0.0
    roofline_seconds: float = 0.0


class OtherStagesRow(msgspec.Struct):
    """What the other pipeline stages do while this one waits: an operator by name, all its calls on all of them."""

    name: str
    bound: str
    seconds: float
    share: float  # of the phase


class Phase(msgspec.Struct):
    """Totals of a phase under LLM-Viewer's names, and its operators; of one GPU of the slowest pipeline stage."""

    seconds: float
    OPs: float
    memory_access: float
    load_weight: float
    load_act: float
    store_act: float
    load_kv_cache: float
    store_kv_cache: float
    inference_time: float
    memory_consumption: float
    memory_consumption_tmp_act: float
    memory_consumption_weight: float
    memory_consumption_kv_cache: float
    steps: float
    ops: list[OpRow]
    other_stages: list[OtherStagesRow] = []


class TurnRow(msgspec.Struct):
    """One turn of a conversation."""

    input_len: int
    output_len: int
    context: int
    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None


class TierRow(msgspec.Struct):
    """A tier of the KV cache of a replica, and what a hit there makes of TTFT; the GPU is the first."""

    name: str  # gpu, cpu, disk or shared
    size_bytes: float  # of a replica; of a shared store: of all
    node_bytes: float  # of all replicas on a node
    tokens: int | None  # room for so many, of sequences as long as these
    load_ms: float | None  # until the cached prefixes of the batch are on the GPU; null without --prefix-len
    ttft_ms: float | None  # with the prefixes there


def as_dict(report: msgspec.Struct) -> dict[str, Any]:
    """A report as plain dicts and lists, ``schema`` first."""
    data = msgspec.to_builtins(report)
    return {"schema": data.pop("schema"), **data}


def as_json(report: msgspec.Struct) -> bytes:
    """A report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(as_dict(report)), indent=1)


class JsonResult(Result):
    """A result that is a struct with a ``schema``: its JSON is the struct."""

    __slots__ = ()

    def to_dict(self: Any) -> dict[str, Any]:
        """As plain dicts and lists, ``schema`` first."""
        return as_dict(self)

    def to_json(self: Any) -> bytes:
        """As indented JSON."""
        return as_json(self)


def op_rows(phases: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Operators of all phases as rows of a table, shapes as text."""
    rows = []
    for phase, data in phases.items():
        for op in data.ops:
            row = msgspec.to_builtins(op)
            del row["shape"]
            row["shape"] = " ".join(f"{k}={'x'.join(f'{v:g}' for v in vs)}" for k, vs in op.shape.items())
            rows.append({"phase": phase, **row})
    return rows


def ops_csv(phases: Mapping[str, Any]) -> str:
    """Operators of all phases as CSV, one line each."""
    import csv

    out = io.StringIO()
    keys = ["phase", *(f for f in OpRow.__struct_fields__ if f != "shape"), "shape"]
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(op_rows(phases))
    return out.getvalue()


class Infeasibility(msgspec.Struct, kw_only=True):
    """Why a plan cannot run, as data: ``reason`` is the same in words."""

    kind: str  # memory, or layout
    reason: str
    problem: str = ""  # the reason without its remedies
    needed_bytes: float | None = None  # per GPU
    available_bytes: float | None = None
    remedies: list[dict[str, Any]] = []  # changes that make it fit, each tried: {"tensor_parallel_size": 2}


class ExpectedError(msgspec.Struct, frozen=True, kw_only=True):
    """A band: ``p80`` = 0.1 says that four in five such runs took between predicted / 1.1 and predicted · 1.1."""

    p50: float
    p80: float
    p90: float
    bias: float  # median of predicted / measured - 1
    rows: int  # measured runs
    models: int  # that they are of
    kind: str = msgspec.field(name="class")  # what these runs have in common with this one
    note: str = ""  # where they are not quite such runs


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one flag of a server's command, tried: what it does to each figure, 0.1 is 10% more."""

    flags: str  # as the engine spells them
    change: dict[str, Any]  # as arguments of a plan
    gpus: int  # that it takes in all
    ttft: float | None  # relative change of TTFT
    tpot: float | None  # of TPOT
    output_throughput_per_gpu: float | None  # of output tokens/s per GPU
    note: str = ""  # what the change assumes


class Report(ComparableResult, JsonResult, msgspec.Struct, dict=True):
    """Everything an analysis says of a plan."""

    model: ModelInfo
    device: dict[str, Any]
    engine: dict[str, Any]
    plan: dict[str, Any]
    workload: dict[str, Any]
    feasible: bool
    reason: str | None
    metrics: Metrics
    roofline: Roofline
    memory: Memory
    phases: dict[str, Phase]
    summary: str = ""
    turns: list[TurnRow] = []
    kv_tiers: list[TierRow] = []  # where the plan has tiers below the GPU
    warnings: list[str] = []
    infeasibility: Infeasibility | None = None
    expected_error: dict[str, ExpectedError] = {}  # of ttft, tpot, e2el, output_throughput, where runs are comparable
    server_command: ServerCommand | None = None  # the server's command that the plan was read from
    tried: list[TriedChange] = []  # changes of that command that are worth it, the best first
    schema: str = SCHEMA

    def __repr__(self) -> str:
        m, memory = self.metrics, self.memory
        waits = {"TTFT": m.ttft_ms, "TPOT": m.tpot_ms}
        if self.model.kind == "diffusion":
            waits = {"step": m.ttft_ms, "image": m.image_latency_ms}
        figures = [f"{name} {milliseconds(value)}" for name, value in waits.items() if value is not None]
        held = f"{size(memory.total_bytes)} of {size(memory.usable_bytes)}"
        verdict = "" if self.feasible else "infeasible, "
        return (
            f"<Report {self.model.name[:80]} on {self.plan['gpus']} × {self.device['name'][:40]}: "
            f"{verdict}{', '.join([*figures, held])}>"
        )

    def plot(self, kind: str = "", path: str | Path | None = None, *, phase: str = "") -> Any:
        """A matplotlib figure, which a notebook shows: ``report.plot("distribution", phase="prefill")``

        ``roofline``, ``distribution`` (where a ``phase`` spends FLOPs, bytes and time), ``memory``, ``structure``. With
        ``path``, the picture is also written (.png, .svg, .pdf).
        """
        return views().figure(self, kind, path, **({"phase": phase} if phase else {}))

    def explain(self, operator: str, phase: str = "all") -> Any:
        """Why an operator takes as long as it does: ``report.explain("down_proj", phase="decode")``

        A sequence of `Explanation` that shows itself: formulas, the values put in, the origin of the efficiency.
        """
        return views().explain(self, operator, phase)

    def to_csv(self) -> str:
        """One line per operator and phase."""
        return ops_csv(self.phases)
