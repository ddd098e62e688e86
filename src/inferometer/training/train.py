"""What training costs: ``train("llama-3.1-8b", gpu="h100-sxm", tensor_parallel_size=2, …)`` gives a `TrainReport`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..base.errors import BadValue, UnknownName, check_int, check_positive, is_number
from ..base.symbols import evaluate
from ..base.units import percent, seconds
from ..costs import kernels
from ..costs.binding import step_env
from ..costs.roofline import OpCost
from ..costs.step import Step
from ..inference.analyze import device_info, engine_info, model_info
from ..inference.report import OpRow
from ..inference.request import Request, build_request
from ..inference.workload import TOKENS, numbers
from ..specs.structs import Engine, Plan
from . import iteration
from .iteration import StageTime, StepTime
from .passes import PRECISIONS, RECOMPUTE, Recipe, figures
from .training_memory import StageMemory, fits_with, fullest
from .training_report import Breakdown, TrainMemory, TrainPhase, TrainReport
from .training_setup import Training, illegal, steps_of, training_of

DAY = 86400.0


def train(
    model: str,
    gpu: str = "h100-sxm",
    *,
    engine: str = "megatron",
    global_batch_size: int | None = None,
    micro_batch_size: int = 1,
    seq_len: int | Sequence[int] | str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    sequence_parallel: bool = False,
    enable_expert_parallel: bool = False,
    interleave: int = 1,
    zero: int = 0,
    recompute: str = "none",
    optimizer: str = "adamw",
    precision: str = "bf16",
    grad_dtype: str = "fp32",
    dropout: bool = False,
    overlap: float | None = None,
    tokens: float | None = None,
    attention: str | None = None,
    efficiency: float | str | Mapping[str, float] | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    interconnect: str | None = None,
    routing_skew: float = 0.0,
    hf_token: str | None = None,
) -> TrainReport:
    """Predict one optimizer step; the keywords are the command's long flags with underscores.

    ``train("llama-3.1-8b", gpu="h100-sxm", data_parallel_size=8, zero=1, global_batch_size=64).tokens_per_second``
    """
    _one_of("--precision", precision, PRECISIONS)
    dtype = precision if precision in ("bf16", "fp16", "fp32") else "bf16"
    request = build_request(
        model,
        gpu,
        engine=engine,
        input_len=1,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        sequence_parallel=sequence_parallel,
        enable_expert_parallel=enable_expert_parallel,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        interconnect=interconnect,
        dtype=dtype,
        quantization=precision,
        kv_cache_dtype=dtype,
        attention=attention,
        fusion=False,
        efficiency=efficiency,
        routing_skew=routing_skew,
        hf_token=hf_token,
    )
    usual = 2048 if request.model.kind == "decoder" else request.model.max_position or 256
    _one_of("--recompute", recompute, RECOMPUTE)
    _one_of("--optimizer", optimizer, tuple(figures().optimizers))
    _one_of("--grad-dtype", grad_dtype, ("fp32", "bf16", "fp16"))
    if tokens is not None:
        check_positive("--tokens", tokens, 1e18)
    if overlap is not None and (not is_number(overlap) or not 0 <= overlap <= 1):
        raise BadValue(f"--overlap must be between 0 (none) and 1 (all that fits behind computing), not {overlap!r}")
    micro = check_int("--micro-batch-size", micro_batch_size, most=10**6)
    each = micro * request.plan.data_parallel_size
    batch = each if global_batch_size is None else check_int("--global-batch-size", global_batch_size, most=10**7)
    recipe = Recipe(
        global_batch_size=batch,
        micro_batch_size=micro,
        seq_len=_lengths(usual if seq_len is None else seq_len, request.model.num_layers),
        zero=check_int("--zero", zero, least=0, most=3),  # type: ignore[arg-type]
        recompute=recompute,  # type: ignore[arg-type]
        optimizer=optimizer,
        precision=precision,
        grad_dtype=grad_dtype,
        interleave=check_int("--interleave", interleave, most=1024),
        dropout=dropout,
        overlap=overlap,
        tokens=tokens,
    )
    if batch % each:
        raise BadValue(
            f"--global-batch-size {batch:,} does not divide into micro-batches of {micro} on "
            f"{request.plan.data_parallel_size} data-parallel ranks: give a multiple of {each}"
        )
    return report_of(request, recipe)


def report_of(request: Request, recipe: Recipe) -> TrainReport:
    """The report of a checked request."""
    training = training_of(request, recipe)
    times = iteration.stage_times(training)
    parts, once = iteration.step_time(training, times)
    held, stage = fullest(training)
    usable = request.device.memory * request.plan.gpu_memory_utilization
    banned = illegal(request, recipe, training.micro_batches)
    fits = held.total <= usable
    plan, n = request.plan, training.micro_batches
    worked = recipe.global_batch_size * recipe.length
    needed = iteration.model_flops(training) * n * training.replicas
    done = sum(t.flops for t in times) * n * plan.tensor_parallel_size * training.replicas
    peak = training.bound_plan.env["mlp_peak_flops"] * plan.gpus
    rate = worked / parts.total
    report = TrainReport(
        model=model_info(request),
        device=device_info(request.device),
        engine=engine_info(request.engine),
        plan=_plan(plan),
        recipe=msgspec.to_builtins(recipe),
        feasible=fits and not banned,
        reason=banned or (None if fits else fits_with(request, recipe, held, usable)),
        step_seconds=parts.total,
        roofline_step_seconds=_perfect(training),
        tokens_per_step=worked,
        tokens_per_second=rate,
        tokens_per_second_per_gpu=rate / plan.gpus,
        micro_batches=n,
        model_flops=needed,
        hardware_flops=done,
        model_flops_utilization=needed / (parts.total * peak),
        hardware_flops_utilization=done / (parts.total * peak),
        breakdown=Breakdown(*parts),
        memory=_memory(held, usable, request.device.memory, stage),
        phases=_phases(training, times, once),
        warnings=[*request.warnings, *training.bound_plan.notes, *_warnings(request, recipe)],
    )
    if recipe.tokens:
        spent = recipe.tokens / rate
        report.days, report.gpu_hours = spent / DAY, spent * plan.gpus / 3600
        if request.device.price_per_hour:
            report.cost = report.gpu_hours * request.device.price_per_hour
    report.summary = _summary(parts, report)
    return report


# ------------------------------------------------------------------ request


def _one_of(what: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise UnknownName(what, given, allowed)


def _lengths(value: int | Sequence[int] | str, layers: int) -> int | tuple[int, ...]:
    if isinstance(value, str):
        value = numbers("--seq-len", value)
    if isinstance(value, int) or is_number(value):
        return check_int("--seq-len", value, most=TOKENS)
    found = tuple(check_int("--seq-len", v, most=TOKENS) for v in value)
    if len(found) not in (1, layers):
        raise BadValue(f"--seq-len has {len(found)} numbers for {layers} layers: give one, or one per layer")
    return found if len(found) > 1 else found[0]


def _warnings(request: Request, recipe: Recipe) -> Iterator[str]:
    model, plan = request.model, request.plan
    if model.max_position and recipe.length > model.max_position:
        yield f"{recipe.length:,} tokens are more than the model's {model.max_position:,} positions"
    if recipe.recompute == "selective" and plan.attention == "flash":
        yield "flash attention keeps no scores: --recompute selective runs it twice and saves next to nothing"
    if recipe.zero and plan.data_parallel_size == 1:
        yield "ZeRO shards over data-parallel ranks: with -dp 1 it changes nothing"
    if model.vision is not None:
        yield "the vision tower is left out: this is the language model on text"
    if model.extras:
        yield "multi-token-prediction modules are left out"


def _plan(plan: Plan) -> dict[str, Any]:
    words = (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "sequence_parallel",
        "enable_expert_parallel",
        "nodes",
        "gpus_per_node",
        "interconnect",
        "dtype",
        "attention",
        "routing_skew",
    )
    return {word: getattr(plan, word) for word in words} | {"gpus": plan.gpus}


# ------------------------------------------------------------------ results


def _memory(held: StageMemory, usable: float, capacity: float, stage: int) -> TrainMemory:
    return TrainMemory(*held, held.total, usable, capacity, stage)


def _perfect(training: Training) -> float:
    """The same step at the speed of light."""
    ideal = (kernels.ideal(),)
    stages = tuple(stage._replace(engine=Engine(), sources=ideal) for stage in training.stages)
    fast = training._replace(bound_plan=training.bound_plan._replace(engine=Engine(), sources=ideal), stages=stages)
    return iteration.step_time(fast, iteration.stage_times(fast))[0].total


def _phases(training: Training, times: list[StageTime], once: list[OpCost]) -> dict[str, TrainPhase]:
    slow = max(times, key=lambda t: t.total)
    n = training.micro_batches
    sums = [row for row in once if row.op.kind != "optimizer"]
    found = {word: [_row(training, row, n) for row in rows] for word, rows in slow.rows.items()}
    found["data_parallel"] += [_row(training, row, 1) for row in sums]
    found["optimizer"] = [_row(training, row, 1) for row in once if row.op.kind == "optimizer"]
    return {word: _phase(ops) for word, ops in found.items() if ops}


def _phase(ops: list[OpRow]) -> TrainPhase:
    ops = [op for op in ops if op.seconds or op.flops or op.bytes or op.kind == "all_reduce"]
    total = sum(op.seconds for op in ops)
    for op in ops:
        op.share = op.seconds / total if total else 0.0
    return TrainPhase(total, sum(op.flops for op in ops), sum(op.bytes for op in ops), ops)


def _row(training: Training, row: OpCost, often: int) -> OpRow:
    calls, w = row.count * often, row.work
    steps = steps_of(training.recipe)
    step = steps if isinstance(steps, Step) else steps[(row.block.layers or (0,))[0]]
    names = {**step_env(training.bound_plan, step), **row.block.dims}
    size_of = {k: [float(evaluate(v, names)) for v in vs] for k, vs in row.op.shape.items()}
    took, light = float(row.seconds) * calls, float(row.terms.roofline) * calls
    flops, moved = float(w["flops"]) * calls, float(row.bytes) * calls
    return OpRow(
        name=row.op.name,
        kind=row.op.kind,
        block=row.block.name,
        count=calls,
        shape=size_of,
        flops=flops,
        bytes=moved,
        seconds=took,
        share=0.0,
        bound=row.bound,
        intensity=flops / moved if moved else 0.0,
        efficiency=min(1.0, light / took) if took and light else 1.0,
        origin=str(row.origin),
        formula=row.op.formula,
        load_weight=float(w["weights"]) * calls,
        load_act=float(w["reads"]) * calls,
        store_act=float(w["writes"]) * calls,
        load_kv_cache=float(w["kv_reads"]) * calls,
        store_kv_cache=float(w["kv_writes"]) * calls,
        sent=float(w["sent"]) * calls,
        roofline_seconds=light,
    )


def _summary(parts: StepTime, report: TrainReport) -> str:
    """``A step takes 13.6 s: forward 29%, backward 54% …; 51.9% of peak is the model's own work.``"""
    words = {
        "tp_comm": "tensor-parallel communication",
        "ep_comm": "expert all-to-all",
        "pp_comm": "pipeline sends",
        "dp_comm": "data-parallel communication",
        "pp_bubble": "pipeline bubble",
        "host": "host",
    }
    shares = sorted(((took / parts.total, word) for word, took in parts._asdict().items()), reverse=True)
    told = ", ".join(f"{words.get(word, word)} {percent(share)}" for share, word in shares if share >= 0.005)
    return (
        f"A step takes {seconds(parts.total)}: {told}. The model's own work is "
        f"{percent(report.model_flops_utilization)} of peak FLOP/s."
    )
