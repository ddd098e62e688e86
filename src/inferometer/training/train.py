"""What training costs: ``train("llama-3.1-8b", gpu="h100-sxm", tensor_parallel_size=2, …)`` gives a `TrainReport`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..base.errors import BadValue, UnknownName, check_fraction
from ..base.result import keep, kept
from ..base.units import percent, plural, seconds
from ..costs import kernels
from ..costs.binding import step_env
from ..costs.roofline import OpCost
from ..costs.step import Step
from ..inference.analyze import device_info, engine_info, model_info
from ..inference.breakdown import add_calls, empty_row, finish_rows
from ..inference.report import OpRow
from ..inference.request import Request, build_request
from ..inference.workload import parse_lengths
from ..specs.arguments import checked, flag, signature
from ..specs.structs import Engine, Plan
from ..specs.train_args import TrainArgs
from .iteration import IterationTime, StageTime, iteration_time, model_flops, slowest_rank, stage_times
from .passes import CP_COMM_TYPES, CUDA_GRAPHS, PRECISIONS, RECOMPUTE, Recipe, training_constants
from .pipeline_layout import layout_counts
from .recompute import RECOMPUTE_MODULES
from .trained_model import with_adapters, with_mtp
from .training_memory import StageMemory, fits_with, fullest_of, stage_memories
from .training_report import Breakdown, TrainMemory, TrainPhase, TrainReport
from .training_run import run_fields, training_run
from .training_setup import Training, bind_training, illegal_reason, micro_batch_steps
from .training_timeline import StepTimeline, step_timeline, train_stages

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import TrainKwargs

_LAYOUT = (  # arguments of `analyze` that training has, too: the machine and the layout
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "sequence_parallel",
    "enable_expert_parallel",
    "attention",
    "efficiency",
    "nodes",
    "gpus_per_node",
    "interconnect",
    "routing_skew",
    "assume_decoder",
    "hf_token",
)


@signature(TrainArgs)
def train(model: str, gpu: str = "h100-sxm", **kwargs: Unpack[TrainKwargs]) -> TrainReport:
    """Predict one optimizer step; the keywords are the command's long flags with underscores.

    ``train("llama-3.1-8b", gpu="h100-sxm", data_parallel_size=8, zero=1, global_batch_size=64).tokens_per_second``
    """
    return report_of(*build_training(model, gpu, kwargs))


def build_training(model: str, gpu: str, kwargs: Mapping[str, Any]) -> tuple[Request, Recipe]:
    """The keywords of `train`, checked: ``build_training("llama-3.1-8b", "h100-sxm", {"zero": 1})[1].zero  # 1``"""
    args = with_num_gpus(checked(TrainArgs, kwargs))
    _check_choice("precision", args.precision, PRECISIONS)
    request = _trained_model(_build_request(model, gpu, args, kwargs), args)
    _check_engine(request)
    _check_choice("recompute", args.recompute, RECOMPUTE)
    _check_choice("cp_comm_type", args.cp_comm_type, CP_COMM_TYPES)
    _check_choice("optimizer", args.optimizer, tuple(training_constants().optimizers))
    _check_choice("cuda_graph_impl", args.cuda_graph_impl, CUDA_GRAPHS)
    if args.moe_flex_dispatcher_backend is not None:
        _check_choice("moe_flex_dispatcher_backend", args.moe_flex_dispatcher_backend, ("deepep", "hybridep"))
    _check_choice("grad_dtype", args.grad_dtype, ("fp32", "bf16", "fp16"))
    if args.overlap is not None:
        check_fraction("overlap", args.overlap, "0 (none) and 1 (all that compute can hide)")
    return request, _recipe(args, request)


def _recipe(args: TrainArgs, request: Request) -> Recipe:
    """How the model is trained, as the arguments have it."""
    seq_len = _default_length(request) if args.seq_len is None else args.seq_len
    each = args.micro_batch_size * args.data_parallel_size
    batch = each if args.global_batch_size is None else args.global_batch_size
    pipeline_layout = _pipeline_layout(args, request)
    _check_batches(args, batch, each)
    if isinstance(seq_len, int) and seq_len % args.packed_sequences:
        raise BadValue(f"`packed_sequences` {args.packed_sequences} does not divide `seq_len` {seq_len:,} evenly")
    return Recipe(
        global_batch_size=batch,
        micro_batch_size=args.micro_batch_size,
        seq_len=parse_lengths(seq_len, request.model.num_layers, "seq_len"),
        zero=args.zero,  # type: ignore[arg-type]
        **_recompute(args, request),
        optimizer=args.optimizer,
        precision=args.precision,
        grad_dtype=args.grad_dtype,
        interleave=_virtual_stages(args, request, pipeline_layout),
        pipeline_layout=pipeline_layout,
        first_stage_layers=args.decoder_first_pipeline_num_layers,
        last_stage_layers=args.decoder_last_pipeline_num_layers,
        account_for_embedding=args.account_for_embedding_in_pipeline_split,
        account_for_loss=args.account_for_loss_in_pipeline_split,
        context_parallel_size=args.context_parallel_size,
        cp_comm_type=args.cp_comm_type,  # type: ignore[arg-type]
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        reduce_every_microbatch=args.reduce_every_microbatch,
        dropout=args.dropout,
        cross_entropy_loss_fusion=args.cross_entropy_loss_fusion,
        mtp_num_layers=args.mtp_num_layers,
        lora_rank=args.lora_rank,
        lora_targets=_names(args.lora_targets),
        fp8_param_gather=args.fp8_param_gather,
        cpu_offloading_num_layers=args.cpu_offloading_num_layers,
        packed_sequences=args.packed_sequences,
        cuda_graph_impl=args.cuda_graph_impl,
        moe_flex_dispatcher_backend=args.moe_flex_dispatcher_backend,
        overlap_moe_expert_parallel_comm=args.overlap_moe_expert_parallel_comm,
        use_transformer_engine_op_fuser=args.use_transformer_engine_op_fuser,
        overlap=args.overlap,
        **cast(dict[str, Any], run_fields(args)),
    )


def _check_engine(request: Request) -> None:
    """Refuse an engine whose kernels are those of inference: it has none for a loss."""
    if request.engine.kernels and "loss" not in request.engine.kernels:
        raise BadValue(
            f"`engine` {request.engine.name} serves models and does not train them: give megatron or roofline",
            field="engine",
        )


def _check_batches(args: TrainArgs, batch: int, each: int) -> None:
    """Refuse sequences and batches that do not divide, and weights in formats that the products do not have."""
    if args.fp8_param_gather and args.precision in ("bf16", "fp16", "fp32"):
        raise BadValue(f"`fp8_param_gather` is for 8- and 4-bit products, not for `precision` {args.precision}")
    if batch % each:
        raise BadValue(
            f"`global_batch_size` {batch:,} cannot be split into micro-batches of {args.micro_batch_size} on "
            f"{args.data_parallel_size} data-parallel ranks: give a multiple of {each}"
        )


def with_num_gpus(args: TrainArgs) -> TrainArgs:
    """The arguments with the data-parallel size that a given number of GPUs leaves."""
    if args.num_gpus is None:
        return args
    each = args.tensor_parallel_size * args.pipeline_parallel_size * args.context_parallel_size
    if args.num_gpus % each or args.data_parallel_size not in (1, args.num_gpus // each):
        raise BadValue(
            f"`num_gpus` {args.num_gpus:,} must be tp {args.tensor_parallel_size} × pp {args.pipeline_parallel_size} "
            f"× cp {args.context_parallel_size} = {each:,} GPUs times the data-parallel size: give a multiple"
        )
    return msgspec.structs.replace(args, data_parallel_size=args.num_gpus // each)


def _recompute(args: TrainArgs, request: Request) -> dict[str, Any]:
    """The recipe's fields of recomputation; modules that are given make it selective."""
    modules = _names(args.recompute_modules)
    for module in modules:
        _check_choice("recompute_modules", module, RECOMPUTE_MODULES)
    latent = any(op.name == "kv_b_proj" for block in request.model.blocks for op in block.ops)
    if "mla_up_proj" in modules and not latent:
        raise BadValue(f"`recompute_modules` mla_up_proj: {request.model.name} has no multi-head latent attention")
    mode = "selective" if modules and args.recompute == "none" else args.recompute
    if modules and mode == "full":
        raise BadValue("`recompute_modules` is for `recompute` selective; full recomputes whole layers")
    method, layers = args.recompute_method, args.recompute_num_layers
    if (method or layers is not None) and mode != "full":
        raise BadValue("`recompute_method` and `recompute_num_layers` are for `recompute` full")
    if layers is not None and method is None:
        raise BadValue("`recompute_num_layers` needs `recompute_method`: uniform or block")
    if method == "uniform" and layers == 0:
        raise BadValue("`recompute_num_layers` of uniform must be at least 1, not 0")
    return {
        "recompute": mode,
        "recompute_modules": modules,
        "recompute_method": method,
        "recompute_num_layers": layers,
    }


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names that are given as a text with commas, or one by one."""
    given = given or ()
    return tuple(name.strip() for name in (given.split(",") if isinstance(given, str) else given))


def _trained_model(request: Request, args: TrainArgs) -> Request:
    """The request with what is trained beside its layers, or instead of their weights."""
    model = with_mtp(request.model, args.mtp_num_layers)
    if args.lora_rank is not None:
        model = with_adapters(model, args.lora_rank, _names(args.lora_targets))
    elif args.lora_targets is not None:
        raise BadValue("`lora_targets` needs `lora_rank`: give both, or neither to train all weights")
    return request._replace(model=model)


def _pipeline_layout(args: TrainArgs, request: Request) -> tuple[int, ...]:
    """The layers of every virtual stage where they are written out."""
    text = args.pipeline_model_parallel_layout
    return layout_counts(text, request.model.num_layers, request.plan.pipeline_parallel_size) if text else ()


def _virtual_stages(args: TrainArgs, request: Request, pipeline_layout: tuple[int, ...]) -> int:
    """Virtual stages of a pipeline rank: those of a layout that is written out, or as many as are given."""
    if not pipeline_layout:
        return args.interleave
    written = len(pipeline_layout) // request.plan.pipeline_parallel_size
    if args.interleave not in (1, written):
        raise BadValue(
            f"`interleave` {args.interleave} contradicts `pipeline_model_parallel_layout`, "
            f"which has {plural(written, 'virtual stage')} per rank"
        )
    return written


def _check_choice(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise UnknownName(f"`{name}`", given, allowed)


def _build_request(model: str, gpu: str, args: TrainArgs, given: Mapping[str, Any]) -> Request:
    """The machine and layout as a request of inference, which knows how to check and bind them."""
    dtype = args.precision if args.precision in ("bf16", "fp16", "fp32") else "bf16"
    shared = {name: value for name, value in given.items() if name in _LAYOUT}
    shared["data_parallel_size"] = args.data_parallel_size * args.context_parallel_size  # they hold the same weights
    fixed: dict[str, Any] = {
        "input_len": 1,
        "dtype": dtype,
        "quantization": args.precision,
        "kv_cache_dtype": dtype,
        "fusion": False,
    }
    return build_request(model, gpu, **{**shared, "engine": args.engine, **fixed})


def _default_length(request: Request) -> int:
    return 2048 if request.model.kind == "decoder" else request.model.max_position or 256


def report_of(request: Request, recipe: Recipe) -> TrainReport:
    """The report of a checked request."""
    training = bind_training(request, recipe)
    times = stage_times(training)
    parts, once = iteration_time(training, times)
    memories = stage_memories(training)
    held, stage = fullest_of(memories)
    usable = request.device.memory * request.plan.gpu_memory_utilization
    illegal = illegal_reason(request, recipe, training.micro_batches)
    fits = held.total <= usable
    plan, n = request.plan, training.micro_batches
    tokens_per_step = recipe.global_batch_size * recipe.length
    needed_flops = model_flops(training) * n * training.layout.dp
    done_flops = sum(t.flops for t in times) * n * plan.tensor_parallel_size * training.layout.replicas
    peak_flops = training.bound_plan.env["mlp_peak_flops"] * plan.gpus
    rate = tokens_per_step / parts.total
    report = TrainReport(
        model=model_info(request),
        device=device_info(request.device),
        engine=engine_info(request.engine),
        plan=_plan_info(plan) | training.layout.plan_info(),
        recipe=msgspec.to_builtins(recipe),
        feasible=fits and not illegal,
        reason=illegal or (None if fits else fits_with(request, recipe, held, usable)),
        step_seconds=parts.total,
        roofline_step_seconds=_roofline_seconds(training),
        tokens_per_step=tokens_per_step,
        tokens_per_second=rate,
        tokens_per_second_per_gpu=rate / plan.gpus,
        micro_batches=n,
        model_flops=needed_flops,
        hardware_flops=done_flops,
        model_flops_utilization=needed_flops / (parts.total * peak_flops),
        hardware_flops_utilization=done_flops / (parts.total * peak_flops),
        breakdown=Breakdown(*parts),
        memory=_memory(held, usable, request.device.memory, stage),
        stages=train_stages(training, times, memories, _passes_end(training, times, parts)),
        phases=_phases(training, times, once),
        warnings=[*request.warnings, *training.bound_plan.notes, *_warnings(request, recipe)],
    )
    report.run = training_run(recipe, plan, request.device, rate)
    if report.run is not None:
        report.days, report.gpu_hours, report.cost = report.run.days, report.run.gpu_hours, report.run.cost
    report.summary = _summary(parts, report)
    return keep(report, request=request, recipe=recipe)


def timeline_of(report: TrainReport) -> StepTimeline:
    """Every pass of the step that a report is of: ``timeline_of(train("llama-3.1-70b", …)).stages[0].passes``"""
    request = kept(report, "request")
    if request is None:
        raise BadValue("the timeline needs a report that `train` returned: a copy has no model")
    return step_timeline(bind_training(request, kept(report, "recipe")))


def _passes_end(training: Training, times: list[StageTime], parts: IterationTime) -> float:
    """When the last pass of all stages ends."""
    slow = training.chunks(slowest_rank(training, times))
    return training.micro_batches * sum(times[i].total for i in slow) + parts.pp_bubble


def _warnings(request: Request, recipe: Recipe) -> Iterator[str]:
    model, plan = request.model, request.plan
    if model.max_position and recipe.length > model.max_position:
        yield f"{recipe.length:,} tokens exceed the model's {model.max_position:,} positions"
    if "core_attn" in recipe.modules and plan.attention == "flash":
        yield "flash attention stores no scores: recomputing core_attn runs it twice and saves almost no memory"
    if recipe.zero and plan.data_parallel_size == 1:
        yield "ZeRO shards over data-parallel ranks: with -dp 1 it has no effect"
    if recipe.reduce_every_microbatch and recipe.zero < 2:
        yield f"{flag('reduce_every_microbatch')} changes nothing without {flag('zero')} 2 or 3"
    if plan.pipeline_parallel_size == 1 and (recipe.first_stage_layers, recipe.last_stage_layers) != (None, None):
        yield "layers of the first and the last stage change nothing with -pp 1"
    is_mixture = any(op.kind == "moe" for block in model.blocks for op in block.ops)
    if not is_mixture and (recipe.expert_model_parallel_size > 1 or recipe.expert_tensor_parallel_size):
        yield "the model has no experts: -ep and -etp change nothing"
    if recipe.context_parallel_size > 1 and any(op.kind == "chunk_scan" for b in model.blocks for op in b.ops):
        yield "what context-parallel ranks exchange for recurrent layers is not counted"
    if model.vision is not None:
        yield "the vision tower is left out: only the language model is trained, on text"
    if model.extras:
        yield "multi-token-prediction modules are left out"


def _plan_info(plan: Plan) -> dict[str, Any]:
    fields = (
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
    return {field: getattr(plan, field) for field in fields} | {"gpus": plan.gpus}


# ------------------------------------------------------------------ results


def _memory(held: StageMemory, usable: float, capacity: float, stage: int) -> TrainMemory:
    return TrainMemory(*held, held.total, usable, capacity, stage)


def _roofline_seconds(training: Training) -> float:
    """The same step at the speed of light."""
    ideal = (kernels.ideal(),)
    stages = tuple(stage._replace(engine=Engine(), sources=ideal) for stage in training.stages)
    fast = training._replace(bound_plan=training.bound_plan._replace(engine=Engine(), sources=ideal), stages=stages)
    return iteration_time(fast, stage_times(fast))[0].total


def _phases(training: Training, times: list[StageTime], once: list[OpCost]) -> dict[str, TrainPhase]:
    """The passes of all micro-batches on the slowest stage, then what runs once in a step."""
    n, slow = training.micro_batches, training.chunks(slowest_rank(training, times))
    rows = {
        name: [_op_row(training, cost, n) for index in slow for cost in times[index].rows[name]]
        for name in times[slow[0]].rows
    }
    rows["data_parallel"] += [_op_row(training, cost, 1) for cost in once if cost.op.kind != "optimizer"]
    rows["optimizer"] = [_op_row(training, cost, 1) for cost in once if cost.op.kind == "optimizer"]
    return {name: _phase(ops) for name, ops in rows.items() if ops}


def _phase(rows: list[OpRow]) -> TrainPhase:
    ops, total = finish_rows(rows)
    return TrainPhase(total, sum(op.flops for op in ops), sum(op.bytes for op in ops), ops)


def _op_row(training: Training, cost: OpCost, often: int) -> OpRow:
    """The row of an operator that runs ``often`` in each of its layers, shaped as in the first of them."""
    steps = micro_batch_steps(training.recipe)
    step = steps if isinstance(steps, Step) else steps[(cost.block.layers or (0,))[0]]
    row = empty_row(cost, step_env(training.bound_plan, step))
    add_calls(row, cost, cost.count * often)
    return row


def _summary(parts: IterationTime, report: TrainReport) -> str:
    """``A step takes 13.6 s: forward 29%, backward 54% …; model FLOPs utilization (MFU) is 51.9%.``"""
    labels = {
        "tp_comm": "tensor-parallel communication",
        "cp_comm": "context-parallel communication",
        "ep_comm": "expert all-to-all",
        "pp_comm": "pipeline sends",
        "dp_comm": "data-parallel communication",
        "pp_bubble": "pipeline bubble",
        "host": "host",
    }
    shares = sorted(((took / parts.total, name) for name, took in parts._asdict().items()), reverse=True)
    text = ", ".join(f"{labels.get(name, name)} {percent(share)}" for share, name in shares if share >= 0.005)
    return (
        f"A step takes {seconds(parts.total)}: {text}. Model FLOPs utilization (MFU) is "
        f"{percent(report.model_flops_utilization)}."
    )
