"""The tables of a report: operators of each phase on the slowest pipeline stage, and memory of the fullest GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import memory, timing
from .cost import FIELDS, OpCost
from .evaluate import Setup, bound, stages, step_rows, tower_rows
from .graph import Block
from .operators import Op, Work
from .profiles import Terms
from .report import Memory, OpRow, Phase
from .steps import Group, Images, Step
from .symbols import evaluate
from .talk import Talk, decode_step, mixed_step, prefill_steps, prompt_seconds, tower_step

IDLE = ("host", "wait", "draft")  # kinds of rows that are not a kernel of this stage
Rows = list[tuple[OpCost, float, dict[str, Any]]]


def phase_tables(setup: Setup, talk: Talk, phase: str, decodes: bool) -> dict[str, Phase]:
    """``{"prefill": …, "decode": …}``, or one of them; with chunked prefill a step that mixes both, too."""
    found: dict[str, Phase] = {}
    if phase != "decode":
        found["prefill"] = _prefill(setup, talk)
    if decodes:
        found["decode"] = _decode(setup, talk)
        if setup.plan.enable_chunked_prefill and isinstance(talk.input_len, int):
            found["mixed"] = _mixed(setup, talk)
    return found


def _mixed(setup: Setup, talk: Talk) -> Phase:
    step = mixed_step(setup, talk)
    stage = _slowest(setup, step)
    env = bound(stage, step)
    rows: Rows = [(row, 1.0, env) for row in step_rows(stage, step)]
    return _phase(stage, rows, 1.0, [step], _held(stage, talk, max(talk.output_len - 2, 0) // 2 + 1))


def _prefill(setup: Setup, talk: Talk) -> Phase:
    steps = prefill_steps(setup, talk)
    first = steps[0][0]
    stage = _slowest(setup, first)
    rows: Rows = []
    if talk.images.count:
        env = bound(stage, tower_step(talk))
        rows += [(row, 1.0, env) for row in tower_rows(stages(setup)[0], tower_step(talk))]
    for step, often in steps:
        env = bound(stage, step if isinstance(step, Step) else step[0])
        rows += [(row, often, env) for row in step_rows(stage, step)]
    rows += _waiting("pipeline_fill", prompt_seconds(setup, talk) - _total(rows))
    held = talk.mine * cache_of(stage, talk, talk.context)
    return _phase(stage, rows, sum(often for _, often in steps), prompt_peaks(setup, talk), held)


def _decode(setup: Setup, talk: Talk) -> Phase:
    step = decode_step(setup, talk)
    one = step if isinstance(step, Step) else step[0]
    stage = _slowest(setup, step)
    env = bound(stage, one)
    rotating = float(timing.micro_batches(setup, talk.sequences)) if isinstance(step, Step) else 1.0
    rows: Rows = [(row, rotating, env) for row in step_rows(stage, step)]
    if isinstance(step, Step):
        rows += _waiting("pipeline_wait", float(timing.period(setup, step, rotating)) - _total(rows))
        if setup.plan.speculation is not None:
            guess = timing.guess(setup, talk.sequences / rotating, talk.context, talk.output_len, rotating)
            rows += _waiting("draft", float(guess.draft_seconds))
    held = _held(stage, talk, max(talk.output_len - 2, 0) // 2 + 1)
    return _phase(stage, rows, 1.0, [one], held)


def _slowest(setup: Setup, step: Step | list[Step]) -> Setup:
    """The pipeline stage that holds up the others."""
    parts = stages(setup)
    if len(parts) == 1 or isinstance(step, list):
        return setup
    times = [float(t) for t in timing.stage_seconds(setup, step)]
    return parts[times.index(max(times))]


def _total(rows: Rows) -> float:
    return float(sum(row.seconds * row.count * often for row, often, _ in rows))


def _waiting(name: str, took: float) -> Rows:
    """Time in which this stage does nothing of its own."""
    if took <= 1e-12:
        return []
    op = Op(name, "draft" if name == "draft" else "wait", Work(), {})
    block = Block("pipeline" if name != "draft" else "draft", (op,), {}, stage="head", residual=False)
    row = OpCost(block, op, 1, dict.fromkeys(FIELDS, 0.0), Terms(0.0, 0.0, 0.0, 0.0), "assumed", took)
    return [(row, 1.0, {})]


def cache_of(setup: Setup, talk: Talk, length: int) -> float:
    """Cache of one sequence of ``length`` tokens, layer by layer where tokens are pruned."""
    if isinstance(talk.input_len, tuple):
        more = length - talk.context
        return float(sum(memory.cache_bytes(setup, n + more, (i,)) for i, n in enumerate(talk.input_len)))
    return float(memory.cache_bytes(setup, length))


def _held(setup: Setup, talk: Talk, answered: int) -> float:
    """Cache of a replica's sequences after some answer tokens; beams share the prompt's."""
    first, whole = cache_of(setup, talk, talk.context), cache_of(setup, talk, talk.context + answered)
    return talk.mine * first + talk.sequences * (whole - first)


def _phase(setup: Setup, rows: Rows, steps: float, largest: list[Step], cache: float) -> Phase:
    merged: dict[tuple[int, int], OpRow] = {}
    for row, often, env in rows:
        _merge(merged, row, often, env)
    ops = [op for op in merged.values() if op.seconds > 0 or op.flops > 0 or op.bytes > 0 or op.kind == "all_reduce"]
    total = sum(op.seconds for op in ops)
    for op in ops:
        op.share = op.seconds / total if total else 0.0
        op.intensity = op.flops / op.bytes if op.bytes else 0.0
        op.efficiency = min(1.0, op.roofline_seconds / op.seconds) if op.seconds and op.roofline_seconds else 1.0
    live, weights = _live(setup, largest), float(memory.weight_bytes(setup))
    cache *= 1 - setup.env["kv_offload_share"]
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
    place = next(i for i, op in enumerate(row.block.ops) if op is row.op)
    key = (id(row.block), place)
    if key not in merged:
        names = {**env, **row.block.dims}
        shape = {k: [float(evaluate(v, names)) for v in vs] for k, vs in row.op.shape.items()}
        merged[key] = OpRow(
            name=row.op.name, kind=row.op.kind, block=row.block.name, count=0, shape=shape, flops=0.0, bytes=0.0,
            seconds=0.0, share=0.0, bound=row.op.kind if row.op.kind in IDLE else row.bound, intensity=0.0,
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


def memory_table(setup: Setup, talk: Talk) -> Memory:
    """Of the pipeline stage whose GPUs are fullest; what fits must fit on every stage. All replicas count."""
    parts = [_stage_memory(stage, talk) for stage in stages(setup)]
    fullest = max(parts, key=lambda m: m.total_bytes)
    for word in ("max_batch_size", "max_batch_size_prefill", "max_batch_size_decode"):
        setattr(fullest, word, min(getattr(m, word) for m in parts))
    tokens = [m.max_total_tokens for m in parts if m.max_total_tokens is not None]
    fullest.max_total_tokens = min(tokens) if tokens else None
    return fullest


def prompt_peaks(setup: Setup, talk: Talk) -> list[Step]:
    """The steps of the prompts that may need the most memory: the largest one, and the images'."""
    if isinstance(talk.input_len, tuple):
        largest = Step((Group(talk.mine, max(talk.input_len), 0),))
    else:
        budget = timing.prefill_budget(setup, talk.mine * talk.prompt)
        largest = memory.longest_step(talk.mine, talk.prompt, talk.cached, budget=budget)
    return [largest, tower_step(talk)] if talk.images.count else [largest]


def answer_peaks(setup: Setup, talk: Talk) -> list[Step]:
    """The last step of the answers, if there are any."""
    if talk.output_len < 2:
        return []
    spec = setup.plan.speculation
    new = spec.num_speculative_tokens + 1 if spec else 1
    each = talk.sequences / timing.micro_batches(setup, talk.sequences)
    return [Step((Group(each, new, max(talk.length - new, 0), new, True),))]


def _live(setup: Setup, steps: list[Step]) -> float:
    return max((float(memory.activation_bytes(setup, step)) for step in steps), default=0.0)


def cache_offloaded(setup: Setup, talk: Talk) -> Setup:
    """The setup with its share of the cache in host memory: what --cpu-offload-gb leaves when all weights are there."""
    room = setup.env.get("host_cache_bytes", 0.0)
    if not room:
        return setup
    cache = max(_held(stage, talk, talk.output_len) for stage in stages(setup))
    return setup._replace(env={**setup.env, "kv_offload_share": min(1.0, room / cache) if cache else 0.0})


def _stage_memory(setup: Setup, talk: Talk) -> Memory:
    engine, replicas = setup.engine, setup.plan.data_parallel_size
    more_weights, more_cache = _drafter(setup, talk)
    weights = float(memory.weight_bytes(setup)) + more_weights
    away = setup.env["kv_offload_share"]
    cache = _held(setup, talk, talk.output_len) * (1 - away) + talk.sequences * more_cache
    per_prompt, per_sequence = cache_of(setup, talk, talk.context), cache_of(setup, talk, talk.length) + more_cache
    each = per_prompt + talk.beams * (per_sequence - per_prompt)  # beams share the prompt's
    reserved = _live(setup, [memory.profiling_step(setup)]) if engine.profile_run else 0.0

    def prompts(batch: int) -> float:
        return max(reserved, _live(setup, prompt_peaks(setup, _scaled(talk, batch))))

    def answers(batch: int) -> float:
        return max(reserved, _live(setup, answer_peaks(setup, _scaled(talk, batch))))

    def both(batch: int) -> float:
        return max(prompts(batch), answers(batch))

    live, usable = both(talk.mine), setup.device.memory * setup.plan.gpu_memory_utilization
    room = usable - weights - engine.memory_reserve + setup.env.get("host_cache_bytes", 0.0)
    limit, per_token = setup.plan.max_model_len or talk.length, float(memory.kv_bytes_per_token(setup))
    # an engine that profiles sizes its cache by that run alone
    tokens = memory.max_total_tokens(setup, room - (reserved or live), limit) if per_token else None
    return Memory(
        weights_bytes=weights,
        kv_cache_bytes=cache,
        activation_bytes=live,
        overhead_bytes=engine.memory_reserve,
        total_bytes=weights + live + engine.memory_reserve + cache,
        capacity_bytes=setup.device.memory,
        usable_bytes=usable,
        kv_bytes_per_token=per_token,
        max_batch_size=_most(room, each, both) * replicas,
        max_batch_size_prefill=_most(room, per_prompt, prompts) * replicas,
        max_batch_size_decode=_most(room, each, answers) * replicas,
        max_total_tokens=_whole_blocks(setup, tokens) if tokens is not None and tokens < 1e18 else None,
    )


def _scaled(talk: Talk, batch: int) -> Talk:
    """The same talk of another number of sequences on this replica."""
    return talk._replace(mine=batch, images=Images(*(x * batch / talk.mine for x in talk.images)))


def _drafter(setup: Setup, talk: Talk) -> tuple[float, float]:
    """Weights, and cache per sequence, of the model that drafts."""
    spec = setup.plan.speculation
    if spec is None or spec.method == "ngram":
        return 0.0, 0.0
    drafter = timing.draft_setup(setup)
    if spec.method == "mtp":  # embedding and head are the model's own
        only = tuple(b for b in drafter.model.blocks if b.stage == "mtp")
        drafter = drafter._replace(model=timing.only(drafter.model, only))
    return float(memory.weight_bytes(drafter)), float(memory.cache_bytes(drafter, talk.length))


def _most(room: float, each: float, live: Callable[[int], float]) -> int:
    """The largest batch whose caches and activations fit: found by halving, because activations stop growing."""
    free = room - live(1)
    low, high = 0, max(0, min(10**9, int(free // each))) if each > 0 else 10**9 if free >= 0 else 0
    if high and high * each + live(high) <= room:  # the usual case: activations that do not depend on it
        return high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle * each + live(middle) <= room else (low, middle - 1)
    return low


def _whole_blocks(setup: Setup, tokens: float) -> int:
    """Engines hand out the cache in blocks; a rest that is less than one is no use."""
    block = setup.plan.block_size if setup.engine.profile_run else 1
    return int(tokens // block) * block
