"""One plan, explained: the main job. ``analyze("llama-3.1-8b", gpu="h200", batch_size=8)`` gives a `Report`."""

from __future__ import annotations

from typing import Any

import msgspec

from ..base.errors import BadValue, UnknownName
from ..costs import kernels, parallelism
from ..costs.bound_plan import Setup
from ..specs import catalog
from ..specs.structs import Engine, Workload
from . import latency, memory
from .advice import fits_with, limits
from .breakdown import phase_tables
from .latency import Talk, conversation, front_end, prompt_seconds, rated, token_seconds
from .memory import cache_offloaded, memory_table
from .report import Metrics, ModelInfo, Report, Roofline, TurnRow
from .request import Request, request

PHASES = ("prefill", "decode", "all")


def analyze(model: str, gpu: str = "h100-sxm", *, phase: str = "all", **words: Any) -> Report:
    """Predict and explain one plan; the keywords are the command's long flags with underscores.

    ``analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128).metrics.tpot_ms``
    """
    if phase not in PHASES:
        raise UnknownName("--phase", phase, PHASES)
    return report_of(request(model, gpu, **words), phase)


def possible(asked: Request, phase: str) -> None:
    """Refuse a phase that there is none of, or that the request has not."""
    if phase not in PHASES:
        raise UnknownName("--phase", phase, PHASES)
    if phase == "decode" and asked.model.kind != "decoder":
        raise BadValue("--phase decode does not apply to a diffusion model: it has no decode phase")
    work = asked.workload
    if phase == "decode" and (work.turns[-1].output_len if work.turns else work.output_len) < 2:
        raise BadValue("--phase decode needs an answer of at least 2 tokens: the first one comes out of the prefill")


def report_of(asked: Request, phase: str = "all") -> Report:
    """The report of a checked request."""
    possible(asked, phase)
    setup = asked.setup()
    work = asked.workload
    illegal = parallelism.reason(asked.model, asked.plan, asked.device) or latency.draft_reason(setup)
    talk = conversation(setup, work)
    setup = cache_offloaded(setup, talk)
    priced = phase_tables(setup, talk, phase, _decodes(talk, phase))
    held = memory_table(setup, talk)
    metrics, turns = metrics_of(setup, work, phase)
    bound, _ = metrics_of(_perfect(setup), work, phase)
    fits = held.total_bytes <= held.usable_bytes
    reason = illegal or (None if fits else fits_with(asked, setup, held))
    report = Report(
        model=model_info(asked),
        device=_device(asked),
        engine={"name": asked.engine.name, "label": asked.engine.label, "version": asked.engine.version},
        plan={
            **msgspec.to_builtins(asked.plan),
            "gpus": asked.plan.gpus,
            "placement": parallelism.placement(asked.plan, asked.device),
        },
        workload=msgspec.to_builtins(work),
        feasible=fits and not illegal,
        reason=reason,
        metrics=metrics,
        roofline=Roofline(bound.ttft_ms, bound.tpot_ms),
        memory=held,
        phases=priced,
        turns=turns,
        warnings=[*asked.warnings, *doubts(asked), *setup.notes],
    )
    report.summary = limits(asked, setup, report)
    return report


def doubts(asked: Request) -> list[str]:
    """What holds for another device than the one that it was seen on."""
    seen, device = asked.engine.kernels_from, asked.device
    if not seen or asked.efficiency is not None or asked.profile is not None:
        return []
    nearest = next(iter(kernels.relatives(device, asked.engine.profile)), None)
    if nearest is None:
        return [f"kernel efficiencies are assumed from one {seen.upper()}"]
    if catalog.hardware(nearest[0]).architecture != device.architecture:
        return [f"no {device.architecture} GPU was measured: kernels of the {nearest[0].upper()} stand in"]
    return []


def _decodes(talk: Talk, phase: str) -> bool:
    return phase != "prefill" and talk.output_len > 1


def metrics_of(setup: Setup, work: Workload, phase: str = "all") -> tuple[Metrics, list[TurnRow]]:
    """What a user sees, of one prompt and answer or of a conversation with its turns."""
    if not work.turns:
        return _metrics(setup, conversation(setup, work), phase), []
    found = _turns(setup, work, phase)
    rows = [
        TurnRow(turn.input_len, turn.output_len, talk.cached, m.ttft_ms, m.tpot_ms, m.e2el_ms)
        for turn, (talk, m) in zip(work.turns, found, strict=True)
    ]
    return _talk_metrics(setup, found, phase), rows


def _metrics(setup: Setup, talk: Talk, phase: str) -> Metrics:
    """TTFT, TPOT and what follows from them."""
    found = Metrics()
    whole = 0.0
    if phase != "decode":
        whole = float(front_end(setup, talk.batch * talk.context)) + float(prompt_seconds(setup, talk))
        found.ttft_ms = whole * 1e3
        found.prefill_throughput = talk.batch * talk.prompt / whole if whole else None
    if _decodes(talk, phase):
        tpot = float(token_seconds(setup, talk))
        found.tpot_ms = tpot * 1e3
        whole += (talk.output_len - 1) * tpot
    found.e2el_ms = whole * 1e3 if whole else None
    if phase == "prefill" or not talk.output_len or not whole:
        return found
    return _rates(found, setup, talk.batch * talk.output_len, talk.batch * talk.context, whole)


def _rates(found: Metrics, setup: Setup, produced: int, read: int, whole: float) -> Metrics:
    """What follows from the time of it all: rates, cost, energy."""
    rates = rated(setup, whole, 0.0, whole, 0, produced, read)
    found.output_throughput, found.total_token_throughput = rates.output_throughput, rates.total_token_throughput
    found.output_throughput_per_gpu = rates.output_throughput_per_gpu
    found.cost_per_million_output_tokens = rates.cost_per_million_output_tokens
    found.joules_per_output_token = rates.joules_per_output_token
    return found


def _turns(setup: Setup, work: Workload, phase: str) -> list[tuple[Talk, Metrics]]:
    """Each turn of a conversation over the context that grew before it; images come with the first."""
    found: list[tuple[Talk, Metrics]] = []
    context = 0
    for turn in work.turns:
        alone = Workload(
            batch_size=work.batch_size,
            input_len=context + turn.input_len,
            prefix_len=context,
            output_len=turn.output_len,
            beam_width=work.beam_width,
            images=None if found else work.images,
        )
        talk = conversation(setup, alone)
        found.append((talk, _metrics(setup, talk, phase)))
        context = talk.length
    return found


def _talk_metrics(setup: Setup, turns: list[tuple[Talk, Metrics]], phase: str) -> Metrics:
    """A conversation's figures: mean wait, mean time per token, and the sum of its turns."""
    found = Metrics()
    batch = turns[0][0].batch
    whole = sum(m.e2el_ms or 0.0 for _, m in turns) / 1e3
    found.e2el_ms = whole * 1e3
    waits = [m.ttft_ms for _, m in turns if m.ttft_ms is not None]
    steps = [(m.tpot_ms, talk.output_len - 1) for talk, m in turns if m.tpot_ms is not None]
    read = batch * sum(talk.prompt for talk, _ in turns)
    if waits:
        found.ttft_ms, found.prefill_throughput = sum(waits) / len(waits), read / (sum(waits) / 1e3)
    if steps:
        found.tpot_ms = sum(ms * n for ms, n in steps) / sum(n for _, n in steps)
    if phase == "prefill":
        return found
    return _rates(found, setup, batch * sum(talk.output_len for talk, _ in turns), read, whole)


def _perfect(setup: Setup) -> Setup:
    """The same plan at the speed of light."""
    return setup._replace(engine=Engine(), sources=(kernels.ideal(),), env={**setup.env, "throttle": 0.0})


# ------------------------------------------------------------------ names


def model_info(asked: Request) -> ModelInfo:
    """Which network a request is about, and how large it is."""
    m = asked.model
    return ModelInfo(
        name=m.name,
        family=m.family,
        params=round(memory.parameters(m)),
        active_params=round(memory.parameters(m, "active")),
        layers=m.num_layers,
        dtype=asked.plan.dtype,
        quantization=asked.roles,
        max_position=m.max_position or None,
        source=asked.source,
    )


def _device(asked: Request) -> dict[str, Any]:
    data = msgspec.to_builtins(asked.device)
    return {k: v for k, v in data.items() if k not in ("source", "aliases")}
