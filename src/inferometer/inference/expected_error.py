"""How far predictions of a kind were off where something was measured: a band for every answer.

    expected_errors(request)["tpot"].p80      # 0.057: four in five such runs were within a factor of 1.057

A class is what a prediction has in common with measured runs: load, engine, GPU, network, bits of the weights, one GPU
or more, and of a static batch whether its steps wait for the host: machines with the same GPU differ most in that.
`class_chain` goes from the narrowest to the widest; the first of which enough was measured gives the band.
`benchmarks/bands.py` makes the data, and judges it on models and GPUs that made no band.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from ..base.cache import cache_by_identity
from ..base.units import percent
from ..costs import kernels
from ..costs.binding import HOST
from ..network.graph import RECURRENT, Model
from ..specs import catalog
from .report import ExpectedError, Phase
from .request import Request
from .weights import parameters

HOST_SHARE = 0.15  # of a step, from which on the host, not the kernels, decides its time
SMALL = 2e9  # parameters below which the host decides the time of most steps
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
LOADS = {"static": "static batches", "online": "servers under load", "disaggregated": "disaggregated servers"}
TABLES = {
    "own": "GPUs with kernel tables",
    "near": "GPUs predicted without kernel tables of their own",
    "far": "GPUs predicted without kernel tables of their generation",
    "none": "devices predicted without any kernel table",
}
NOT_THIS_GPU = "no such run was measured on this GPU"


class PredictionTraits(NamedTuple):
    """What decides how well a prediction is known."""

    engine: str  # vllm, sglang …
    gpu: str
    tables: str  # own, near, far, none: whose kernel tables serve the GPU
    network: str  # dense, mixture, hybrid, small
    bits: str  # of the weights that most of the time goes to: 16-bit, 8-bit, 4-bit
    gpus: str  # one, many


class ErrorClass(NamedTuple):
    """One class: its key in the data, and in words."""

    key: str
    label: str
    note: str = ""  # of one that only stands in for what was not measured


def traits_of(request: Request) -> PredictionTraits:
    """``traits_of(request)  # PredictionTraits(engine='vllm', gpu='h200', tables='own', network='dense', …)``"""
    network = network_kind(request.model)
    role = "experts" if network != "dense" and "experts" in request.roles else "mlp"
    bits = catalog.precision(request.roles.get(role, request.plan.dtype)).bits
    return PredictionTraits(
        request.engine.name,
        request.device.name,
        tables_of(request),
        network,
        "16-bit" if bits >= 16 else "8-bit" if bits > 4.5 else "4-bit",
        "many" if request.plan.gpus > 1 else "one",
    )


@cache_by_identity(64)
def network_kind(model: Model) -> str:
    """Dense, a mixture of experts, a hybrid that has recurrent layers (Mamba, gated delta), or small whatever it is."""
    if parameters(model) < SMALL:
        return "small"
    kinds = {op.kind for block in model.blocks for op in block.ops}
    return "hybrid" if kinds & RECURRENT else "mixture" if "moe" in kinds else "dense"


def tables_of(request: Request) -> str:
    """Whose kernel tables serve the device: its own, those of its generation, of another one, or none."""
    device = request.nominal_device or request.device
    if device.name in kernels.installed():
        return "own"
    donors = kernels.donors(device, request.engine.profile)
    return "none" if not donors else "near" if donors[0].same_generation else "far"


@lru_cache(1024)
def class_chain(traits: PredictionTraits, metric: str, load: str, waits: bool = False) -> tuple[ErrorClass, ...]:
    """The classes of a prediction, narrowest first, and at the end those that stand in where too little was measured.

    ``class_chain(traits, "tpot", "online")[0].key  # 'tpot/online/vllm/h200/mixture/8-bit/many'``
    """
    t = traits
    engine = (catalog.engine(t.engine).label if t.engine in catalog.names("engines") else "") or t.engine
    gpu, bits = (t.gpu, f"{engine} on {t.gpu}"), (t.bits, f"{t.bits} weights")
    count = (t.gpus, "one GPU" if t.gpus == "one" else "several GPUs")
    network, by_engine = (t.network, t.network), (t.engine, engine)
    name = (t.engine, "")  # which the GPU's words have already
    tables = (t.tables, TABLES[t.tables])
    note = "" if t.tables == "own" else NOT_THIS_GPU

    def one(load: str, *parts: tuple[str, str], note: str = "") -> ErrorClass:
        host = "-host" if waits and load == "static" else ""
        key = "/".join((metric + host, load, *(part for part, _ in parts)))
        labels = [label for _, label in parts if label] or ["all engines and GPUs"]
        waiting = ", steps that wait for the host" if host else ""
        return ErrorClass(key, f"{', '.join(labels)}: {LOADS[load]}{waiting}", note)

    servers = (
        one("online", name, gpu, network, bits, count),
        one("online", name, gpu, network, bits),
        one("online", name, gpu, network),
        one("online", name, gpu),
        one("online", by_engine, tables, network, note=note),
        one("online", by_engine, tables, note=note),
        one("online", tables, note=note),
        one("online"),
    )
    if load == "online":
        return servers
    if load == "static":
        own = [one("static", name, gpu, count, network, bits), one("static", name, gpu, count, network)]
        if t.network != "small":  # what large ones show does not hold for the host's time
            lent = "near" if t.tables == "own" else t.tables
            own += [
                one("static", name, gpu, count),
                one("static", by_engine, (lent, TABLES[lent]), count, note=NOT_THIS_GPU),
            ]
    else:
        own = [one(load, name, gpu), one(load, by_engine), one(load)]
    note = f"too few runs of {LOADS[load]} like this one were measured"
    return (*own, *(server._replace(note=note) for server in servers))


@cache
def error_classes() -> dict[str, Any]:
    """Quantiles by class: p50, p80, p90, bias, rows, models."""
    classes: dict[str, Any] = catalog.accuracy("expected_errors")["classes"]
    return classes


@lru_cache(1024)
def _banded(traits: PredictionTraits, load: str, waiting: frozenset[str], more: str) -> dict[str, ExpectedError]:
    classes = error_classes()
    errors = {}
    for metric in METRICS:
        chain = class_chain(traits, metric, load, metric in waiting)
        chosen = next((one for one in chain if one.key in classes), None)
        if chosen is None:
            continue
        p50, p80, p90, bias, rows, models = classes[chosen.key]
        notes = [text for text in (chosen.note, more) if text]
        errors[metric] = ExpectedError(
            p50=p50, p80=p80, p90=p90, bias=bias, rows=rows, models=models, kind=chosen.label, note="; ".join(notes)
        )
    if "e2el" in errors:  # a rate is so many tokens in that time
        errors["output_throughput"] = errors["e2el"]
    return errors


def waits_for_host(phases: Mapping[str, Phase]) -> frozenset[str]:
    """The metrics of a static batch that the host decides: ``waits_for_host(report.phases)  # {'ttft'}``"""
    slow = {
        name
        for name, phase in phases.items()
        if sum(row.seconds for row in phase.ops if row.kind == HOST.kind) > HOST_SHARE * phase.seconds
    }
    of_phase = {"prefill": {"ttft"}, "decode": {"tpot", "e2el"}}  # most of an answer's time is its steps
    return frozenset(metric for name, metrics in of_phase.items() if name in slow for metric in metrics)


def expected_errors(
    request: Request, load: str = "static", waiting: frozenset[str] = frozenset()
) -> dict[str, ExpectedError]:
    """The band of each metric: ``{"ttft": …, "tpot": …, "e2el": …, "output_throughput": …}``

    ``waiting``: those of a static batch that the host decides, `waits_for_host`.
    Empty where nothing is comparable: a diffusion model, and efficiencies that a user gave.
    """
    if request.model.kind != "decoder" or request.efficiency is not None:
        return {}
    changed = request.nominal_device is not None and request.nominal_device is not request.device
    more = "the GPU's specifications were changed" if changed else ""
    if request.profile is not None:
        more = "without your profile or calibration"
    return _banded(traits_of(request), load, waiting, more)


def error_sentences(errors: Mapping[str, ExpectedError]) -> list[str]:
    """``["TTFT ±1.8% (p50), ±7.6% (p90) on 143 such runs; TPOT … (vLLM on h200, dense: static batches)"]``

    One sentence for each class that TTFT and TPOT are in.
    """
    by_class: dict[tuple[str, str], list[str]] = {}
    for metric in ("ttft", "tpot"):
        if metric in errors:
            band = errors[metric]
            text = f"{METRICS[metric]} {share_text(band.p50)} (p50), {share_text(band.p90)} (p90) on {band.rows:,} runs"
            by_class.setdefault((band.kind, band.note), []).append(text)
    return [f"{'; '.join(texts)} ({kind}{f'; {note}' if note else ''})" for (kind, note), texts in by_class.items()]


def share_text(share: float) -> str:
    """``±8%``; from a factor of two on ``a factor of 2.4``"""
    return f"±{percent(share)}" if share < 1 else f"a factor of {1 + share:.1f}"
