"""One plan, explained: the main job. ``analyze("llama-3.1-8b", gpu="h200", batch_size=8)`` gives a `Report`."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from . import memory, parallel, phases, profiles
from .cost import OpCost
from .errors import UnknownName
from .evaluate import Setup, bound, prepare, step_rows, step_seconds, tower_rows
from .images import images
from .insight import fits_with, limits
from .report import Memory, Metrics, ModelInfo, OpRow, Phase, Report, Roofline, TurnRow
from .request import Request, request
from .spec import Engine, Workload
from .steps import Group, Images, Step
from .symbols import evaluate as value_of

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
    priced = _phases(setup, talk, phase, decodes)
    held = _memory(setup, talk)
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
        plan=msgspec.to_builtins(asked.plan) | {"gpus": asked.plan.tensor_parallel_size},
        workload=msgspec.to_builtins(work),
        feasible=fits and not illegal,
        reason=reason,
        metrics=metrics,
        roofline=Roofline(bound_metrics.ttft_ms, bound_metrics.tpot_ms),
        memory=held,
        phases=priced,
        turns=turns,
        warnings=[*asked.warnings, *setup.notes],
    )
    report.summary = limits(asked, setup, report)
    return report


class Talk(NamedTuple):
    """A workload as one prompt and one answer: what phases and memory are computed for."""

    batch: int
    sequences: int  # batch × beams
    input_len: int | tuple[int, ...]
    prompt: int  # new tokens of the longest layer, images included
    cached: int
    output_len: int
    images: Images

    @property
    def length(self) -> int:
        """Tokens of a finished sequence."""
        return self.cached + self.prompt + self.output_len


def conversation(setup: Setup, work: Workload) -> Talk:
    """The last turn of a conversation, or the only one."""
    pictures, shown = Images(), work.images
    if shown and setup.model.vision:
        pictures = images(setup.model.vision, shown.height, shown.width, shown.count)
    seen = int(pictures.tokens)
    if work.turns:
        before = sum(t.input_len + t.output_len for t in work.turns[:-1])
        last = work.turns[-1]
        new, cached, output = last.input_len + seen, before, last.output_len
        lengths: int | tuple[int, ...] = last.input_len
    else:
        longest = work.input_len if isinstance(work.input_len, int) else max(work.input_len)
        new, cached, output = longest + seen - work.prefix_len, work.prefix_len, work.output_len
        lengths = work.input_len
    n = work.batch_size
    scaled = Images(*(n * x for x in pictures))
    return Talk(n, n * work.beam_width, lengths, new, cached, output if setup.model.kind == "decoder" else 0, scaled)


def prefill_steps(setup: Setup, talk: Talk) -> list[tuple[Step | list[Step], float]]:
    if isinstance(talk.input_len, tuple):  # token pruning: every layer has a step of its own
        return [([Step((Group(talk.batch, n, 0),)) for n in talk.input_len], 1.0)]
    return list(phases.prefill(talk.batch, talk.prompt, talk.cached, budget=setup.plan.max_num_batched_tokens))


def decode_step(setup: Setup, talk: Talk) -> Step | list[Step]:
    context = talk.cached + talk.prompt
    if isinstance(talk.input_len, tuple):
        return [phases.decode(talk.sequences, n, talk.output_len) for n in talk.input_len]
    return phases.decode(talk.sequences, context, talk.output_len)


def tower_step(talk: Talk) -> Step:
    return Step((), talk.images)


def _step_time(setup: Setup, step: Step | list[Step]) -> float:
    if isinstance(step, Step):
        return float(step_seconds(setup, step))
    return float(sum(row.seconds * row.count for row in step_rows(setup, step)))


def _metrics(setup: Setup, talk: Talk, phase: str, decodes: bool) -> Metrics:
    """TTFT, TPOT and what follows from them."""
    plan, device, e = setup.plan, setup.device, setup.engine
    overhead = e.request_overhead + (e.http_overhead if plan.frontend == "http" else 0.0)
    found = Metrics()
    ttft = 0.0
    if phase != "decode":
        ttft = overhead + sum(_step_time(setup, step) * often for step, often in prefill_steps(setup, talk))
        ttft += float(sum(row.seconds * row.count for row in tower_rows(setup, tower_step(talk))))
        found.ttft_ms = ttft * 1e3
        found.prefill_throughput = talk.batch * talk.prompt / ttft if ttft else None
    if not decodes:
        found.e2el_ms = found.ttft_ms
        return found
    if isinstance(talk.input_len, tuple):
        tpot = _step_time(setup, decode_step(setup, talk))
    else:
        nodes = phases.decode_nodes(setup.model, talk.sequences, talk.cached + talk.prompt, talk.output_len)
        tpot = sum(float(step_seconds(setup, step)) * weight for step, weight in nodes)
    whole = ttft + (talk.output_len - 1) * tpot
    found.tpot_ms, found.e2el_ms = tpot * 1e3, whole * 1e3
    return _rates(found, talk.batch * talk.output_len, talk.batch * (talk.prompt + talk.cached), whole, setup)


def _rates(found: Metrics, produced: int, read: int, whole: float, setup: Setup) -> Metrics:
    gpus = setup.plan.tensor_parallel_size
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
        alone = work.__class__(batch_size=work.batch_size, input_len=context + turn.input_len, prefix_len=context,
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


# ------------------------------------------------------------------ phases


def _phases(setup: Setup, talk: Talk, phase: str, decodes: bool) -> dict[str, Phase]:
    found: dict[str, Phase] = {}
    weights = float(memory.weight_bytes(setup))
    prompt = talk.cached + talk.prompt
    if phase != "decode":
        rows: list[tuple[OpCost, float, dict[str, Any]]] = []
        if talk.images.count:
            env = bound(setup, tower_step(talk))
            rows += [(row, 1.0, env) for row in tower_rows(setup, tower_step(talk))]
        steps = prefill_steps(setup, talk)
        for step, often in steps:
            env = bound(setup, step if isinstance(step, Step) else step[0])
            rows += [(row, often, env) for row in step_rows(setup, step)]
        often = sum(n for _, n in steps)
        largest = steps[0][0] if isinstance(steps[0][0], Step) else max(steps[0][0], key=_tokens)
        found["prefill"] = _phase(setup, rows, often, largest, weights, talk.batch * _cache(setup, talk, prompt))
    if decodes:
        step = decode_step(setup, talk)
        one = step if isinstance(step, Step) else step[0]
        env = bound(setup, one)
        held = _held(setup, talk, max(talk.output_len - 2, 0) // 2 + 1)
        found["decode"] = _phase(setup, [(row, 1.0, env) for row in step_rows(setup, step)], 1.0, one, weights, held)
    return found


def _tokens(step: Step) -> float:
    return float(sum(g.seqs * g.new for g in step.groups))


def _cache(setup: Setup, talk: Talk, length: int) -> float:
    """Cache of one sequence of ``length`` tokens, layer by layer where tokens are pruned."""
    if isinstance(talk.input_len, tuple):
        more = length - talk.prompt - talk.cached
        return float(sum(memory.cache_bytes(setup, n + more, (i,)) for i, n in enumerate(talk.input_len)))
    return float(memory.cache_bytes(setup, length))


def _held(setup: Setup, talk: Talk, answered: int) -> float:
    """Cache of all sequences after some answer tokens; beams share the prompt's."""
    prompt = talk.cached + talk.prompt
    first, whole = _cache(setup, talk, prompt), _cache(setup, talk, prompt + answered)
    return talk.batch * first + talk.sequences * (whole - first)


def _phase(setup: Setup, rows: list[tuple[OpCost, float, dict[str, Any]]], steps: float, largest: Step,
           weights: float, cache: float) -> Phase:  # fmt: skip
    merged: dict[tuple[int, int], OpRow] = {}
    for row, often, env in rows:
        _merge(merged, row, often, env)
    ops = [op for op in merged.values() if op.seconds > 0 or op.flops > 0 or op.bytes > 0 or op.kind == "all_reduce"]
    total = sum(op.seconds for op in ops)
    for op in ops:
        op.share = op.seconds / total if total else 0.0
        op.intensity = op.flops / op.bytes if op.bytes else 0.0
        op.efficiency = min(1.0, op.roofline_seconds / op.seconds) if op.seconds and op.roofline_seconds else 1.0
    live = float(memory.activation_bytes(setup, largest))
    sums = {f: sum(getattr(op, f) for op in ops) for f in
            ("load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache")}  # fmt: skip
    return Phase(
        seconds=total,
        OPs=sum(op.flops for op in ops),
        memory_access=sum(sums.values()),
        **sums,
        inference_time=total,
        memory_consumption=weights + cache + live,
        memory_consumption_tmp_act=live,
        memory_consumption_weight=weights,
        memory_consumption_kv_cache=cache,
        steps=steps,
        ops=ops,
    )


def _merge(merged: dict[tuple[int, int], OpRow], row: OpCost, often: float, env: dict[str, Any]) -> None:
    """Add the calls of one step to an operator's row."""
    calls = row.count * often
    place = row.block.ops.index(row.op)
    key = (id(row.block), place)
    if key not in merged:
        names = {**env, **row.block.dims}
        shape = {k: [float(value_of(v, names)) for v in vs] for k, vs in row.op.shape.items()}
        merged[key] = OpRow(
            name=row.op.name, kind=row.op.kind, block=row.block.name, count=0, shape=shape, flops=0.0, bytes=0.0,
            seconds=0.0, share=0.0, bound=row.bound if row.op.kind != "host" else "host", intensity=0.0,
            efficiency=1.0, origin=str(row.origin), formula=row.op.formula,
        )  # fmt: skip
    op, w = merged[key], row.work
    op.count += calls
    op.flops += float(w["flops"]) * calls
    op.bytes += float(row.bytes) * calls
    op.load_weight += float(w["weights"]) * calls
    op.load_act += float(w["reads"]) * calls
    op.store_act += float(w["writes"]) * calls
    op.load_kv_cache += float(w["kv_reads"]) * calls
    op.store_kv_cache += float(w["kv_writes"]) * calls
    op.sent += float(w["sent"]) * calls
    op.seconds += float(row.seconds) * calls
    op.roofline_seconds += float(row.terms.roofline) * calls


# ------------------------------------------------------------------ memory and names


def _memory(setup: Setup, talk: Talk) -> Memory:
    step = memory.largest_step(setup, talk.batch, talk.prompt, talk.cached)
    held = memory.footprint(setup, batch=0, new=talk.prompt, length=1, step=step)
    cache = _held(setup, talk, talk.output_len)
    per_prompt, per_sequence = _cache(setup, talk, talk.cached + talk.prompt), _cache(setup, talk, talk.length)
    one = 0.0 if setup.engine.profile_run else float(memory.activation_bytes(setup, Step((Group(1, talk.prompt, 0),))))
    room = float(held.room) + (0.0 if setup.engine.profile_run else float(held.activations))
    most_prefill = _count(room, per_prompt + one)
    most_decode = _count(room, per_sequence)
    limit = setup.plan.max_model_len or talk.length
    tokens = memory.max_total_tokens(setup, held.room, limit) if per_sequence else None
    return Memory(
        weights_bytes=float(held.weights),
        kv_cache_bytes=cache,
        activation_bytes=float(held.activations),
        overhead_bytes=float(held.overhead),
        total_bytes=float(held.weights + held.activations + held.overhead) + cache,
        capacity_bytes=setup.device.memory,
        usable_bytes=float(held.usable),
        kv_bytes_per_token=float(memory.kv_bytes_per_token(setup)),
        max_batch_size=most_decode if setup.engine.profile_run else min(most_prefill, most_decode),
        max_batch_size_prefill=most_prefill,
        max_batch_size_decode=most_decode,
        max_total_tokens=int(tokens) if tokens is not None else None,
    )


def _count(room: float, each: float) -> int:
    return max(0, int(room // each)) if each > 0 else (10**9 if room > 0 else 0)


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
