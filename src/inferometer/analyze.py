"""One plan, explained: the main job. ``analyze("llama-3.1-8b", gpu="h200", batch_size=8)`` gives a `Report`."""

from __future__ import annotations

from typing import Any

import msgspec

from . import memory, parallel, profiles
from .errors import UnknownName
from .evaluate import Setup, prepare
from .insight import fits_with, limits
from .report import Metrics, ModelInfo, Report, Roofline, TurnRow
from .request import Request, request
from .spec import Engine, Workload
from .tables import memory_table, phase_tables
from .talk import Talk, conversation, prompt_seconds, token_seconds

PHASES = ("prefill", "decode", "all")


def analyze(model: str, gpu: str = "h100-sxm", *, phase: str = "all", **words: Any) -> Report:
    """Predict and explain one plan; the keywords are the command's long flags with underscores.

    ``analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128).metrics.tpot_ms``
    """
    if phase not in PHASES:
        raise UnknownName("--phase", phase, PHASES)
    return report_of(request(model, gpu, **words), phase)


def report_of(asked: Request, phase: str = "all") -> Report:
    """The report of a checked request."""
    setup = prepare(asked.model, asked.device, asked.engine, asked.plan, roles=asked.roles,
                    efficiency=asked.efficiency, norm_dtype=asked.norm_dtype)  # fmt: skip
    work = asked.workload
    illegal = parallel.reason(asked.model, asked.plan, asked.device)
    talk = conversation(setup, work)
    decodes = asked.model.kind == "decoder" and phase != "prefill" and talk.output_len > 1
    priced = phase_tables(setup, talk, phase, decodes)
    held = memory_table(setup, talk)
    metrics, bound_metrics = _metrics(setup, talk, phase, decodes), _metrics(_perfect(setup), talk, phase, decodes)
    turns = _turns(setup, work)
    if turns:
        metrics = _talk_metrics(setup, work, turns)
    fits = held.total_bytes <= held.usable_bytes
    reason = illegal or (None if fits else fits_with(asked, setup, held))
    report = Report(
        model=_model_info(asked),
        device=_device(asked),
        engine={"name": asked.engine.name, "label": asked.engine.label, "version": asked.engine.version},
        plan={**msgspec.to_builtins(asked.plan), "gpus": asked.plan.gpus,
              "placement": parallel.placement(asked.plan, asked.device)},
        workload=msgspec.to_builtins(work),
        feasible=fits and not illegal,
        reason=reason,
        metrics=metrics,
        roofline=Roofline(bound_metrics.ttft_ms, bound_metrics.tpot_ms),
        memory=held,
        phases=priced,
        turns=turns,
        warnings=[*asked.warnings, *setup.notes],
    )  # fmt: skip
    report.summary = limits(asked, setup, report)
    return report


def _metrics(setup: Setup, talk: Talk, phase: str, decodes: bool) -> Metrics:
    """TTFT, TPOT and what follows from them."""
    plan, e = setup.plan, setup.engine
    overhead = e.request_overhead + (e.http_overhead if plan.frontend == "http" else 0.0)
    found = Metrics()
    ttft = 0.0
    if phase != "decode":
        ttft = overhead + prompt_seconds(setup, talk)
        found.ttft_ms = ttft * 1e3
        found.prefill_throughput = talk.batch * talk.prompt / ttft if ttft else None
    if not decodes:
        found.e2el_ms = found.ttft_ms
        return found
    tpot = token_seconds(setup, talk)
    whole = ttft + (talk.output_len - 1) * tpot
    found.tpot_ms, found.e2el_ms = tpot * 1e3, whole * 1e3
    return _rates(found, talk.batch * talk.output_len, talk.batch * (talk.prompt + talk.cached), whole, setup)


def _rates(found: Metrics, produced: int, read: int, whole: float, setup: Setup) -> Metrics:
    gpus = setup.plan.gpus
    rate = produced / whole if whole else 0.0
    found.output_throughput, found.total_token_throughput = rate, (produced + read) / whole if whole else 0.0
    found.output_throughput_per_gpu = rate / gpus
    if setup.device.price_per_hour and rate:
        found.cost_per_million_output_tokens = setup.device.price_per_hour * gpus / 3600 / rate * 1e6
    if setup.device.power and rate:
        found.joules_per_output_token = setup.device.power * gpus / rate
    return found


def _turns(setup: Setup, work: Workload) -> list[TurnRow]:
    """Each turn of a conversation over the context that grew before it."""
    rows, context = [], 0
    for turn in work.turns:
        alone = Workload(batch_size=work.batch_size, input_len=context + turn.input_len, prefix_len=context,
                         output_len=turn.output_len, beam_width=work.beam_width)  # fmt: skip
        m = _metrics(setup, conversation(setup, alone), "all", turn.output_len > 1)
        rows.append(TurnRow(turn.input_len, turn.output_len, context, m.ttft_ms or 0.0, m.tpot_ms, m.e2el_ms or 0.0))
        context += turn.input_len + turn.output_len
    return rows


def _talk_metrics(setup: Setup, work: Workload, turns: list[TurnRow]) -> Metrics:
    """A conversation's figures: mean wait, mean time per token, and the sum of its turns."""
    whole = sum(t.e2el_ms for t in turns) / 1e3
    steps = [(t.tpot_ms, t.output_len - 1) for t in turns if t.tpot_ms is not None]
    answered = sum(n for _, n in steps)
    found = Metrics(
        ttft_ms=sum(t.ttft_ms for t in turns) / len(turns),
        tpot_ms=sum(ms * n for ms, n in steps) / answered if answered else None,
        e2el_ms=whole * 1e3,
    )
    read = work.batch_size * sum(t.input_len for t in turns)
    found.prefill_throughput = read / (sum(t.ttft_ms for t in turns) / 1e3)
    return _rates(found, work.batch_size * sum(t.output_len for t in turns), read, whole, setup)


def _perfect(setup: Setup) -> Setup:
    """The same plan at the speed of light."""
    return setup._replace(engine=Engine(), sources=(profiles.ideal(),))


# ------------------------------------------------------------------ names


def _model_info(asked: Request) -> ModelInfo:
    m = asked.model
    return ModelInfo(
        name=m.name, family=m.family, params=round(memory.parameters(m)),
        active_params=round(memory.parameters(m, "active")), layers=m.num_layers, dtype=asked.plan.dtype,
        quantization=asked.roles, max_position=m.max_position or None, source=asked.source,
    )  # fmt: skip


def _device(asked: Request) -> dict[str, Any]:
    data = msgspec.to_builtins(asked.device)
    return {k: v for k, v in data.items() if k not in ("source", "aliases")}
