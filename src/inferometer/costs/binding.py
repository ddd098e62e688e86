"""A model on a device under an engine: binds every name of the formulas, and estimates steps.

bound_plan = bind(model, hardware("h200"), engine("vllm"), Plan())
step_seconds(bound_plan, Step((Group(8, 1, 1024, decode=True),)))      # floats, or arrays of a million points
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.symbols import Env, Value, maximum_of, scalar, where
from ..network.adapters import with_lora, with_offload
from ..network.graph import RECURRENT, Block, Model
from ..network.operators import WORK_FIELDS, Op, Work
from ..specs.structs import Engine, Hardware, Plan
from . import host, kernels, parallelism, power, precision, roofline
from .kernels import KernelProfile, Source, Terms
from .power import Activity
from .roofline import EqualTokens, OpCost
from .step import Step

SIXTEEN = {"bf16", "fp16"}
KEPT_CLOCKS = {"hot_seconds": 0.0, "cooling": 0.0}
HOST = Op("host_overhead", "host", Work(), {})
_HOST_BLOCK = Block("engine", (HOST,), {}, stage="head", residual=False)


class BoundPlan(NamedTuple):
    """Everything of a request but its steps, bound to the names that formulas use."""

    model: Model
    device: Hardware
    engine: Engine
    plan: Plan
    env: dict[str, Value]
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()
    hf_token: str | None = None  # for the config of a draft model

    @property
    def text(self) -> tuple[Block, ...]:
        """The blocks of every step."""
        return tuple(b for b in self.model.blocks if b.stage != "vision")

    @property
    def tower(self) -> tuple[Block, ...]:
        """The blocks that run once per image."""
        return tuple(b for b in self.model.blocks if b.stage == "vision")


def bind(
    model: Model,
    device: Hardware,
    engine: Engine,
    plan: Plan,
    *,
    roles: dict[str, str] | None = None,
    efficiency: dict[str, float] | None = None,
    norm_dtype: str = "",
    profile: KernelProfile | None = None,
    nominal_device: Hardware | None = None,
    hf_token: str | None = None,
) -> BoundPlan:
    """Bind hardware, precision and layout to the names that formulas use.

    Where figures of a device were changed, ``nominal_device`` is the device as its data sheet has it. The kernels keep
    their ratios to that device's roofline: a better figure then never makes anything slower, and a small change never
    swaps the profile of one related device for another's.
    """
    roles = roles or precision.precision_by_role(model, plan.dtype, plan.quantization)
    computed = precision.computed_as(engine, model, device, roles)
    env, notes = precision.bind(
        model, device, dtype=plan.dtype, roles=computed, kv_cache_dtype=plan.kv_cache_dtype, norm_dtype=norm_dtype
    )
    places = parallelism.places(plan, device)
    env |= _link_env(places, device)
    env |= {
        "memory_bandwidth": device.memory_bandwidth,
        **parallelism.layout_env(plan, model),
        "routing_skew": plan.routing_skew,
        "eager": 1.0 if plan.attention == "eager" else 0.0,
        "unfused": 0.0 if plan.fusion else 1.0,
        "overlap": plan.overlap,
        "side_stream_tokens": engine.side_stream_tokens if efficiency is None else 0,
        "throttle": device.throttle if engine.profile and efficiency is None else 0.0,
        "throttle_after": device.throttle_after,
        "uniform_lengths": 1.0,  # the sequences of a step have one length; 0 where they differ, as in a simulation
        "fp8_ds_mla": float(
            plan.kv_cache_dtype == "fp8" and bool({device.architecture, device.name} & {*engine.fp8_ds_mla})
        ),
        "offload_share": 0.0,
        "kv_offload_share": 0.0,  # of the workload's cache: bound where that is known
    }
    if plan.lora:
        model = with_lora(model, plan.lora)
    if plan.cpu_offload_bytes:
        stored = roofline.weight_sum(model.blocks, env, "stored") / plan.pipeline_parallel_size
        env["offload_share"] = min(1.0, plan.cpu_offload_bytes / stored)
        env["host_cache_bytes"] = max(0.0, plan.cpu_offload_bytes - stored)  # what is left of the budget
        model = with_offload(model)
    runs_as, rounding = precision.formats(device, computed, plan.dtype), kernels.rounding(engine, device)
    if env["throttle"]:
        env |= _falling_clocks(model, device, plan, env) if {*runs_as.values()} <= SIXTEEN else KEPT_CLOCKS
    state = {8: "fp8", 16: "bf16"}.get(int(model.state_bits), "fp32")
    formats = kernels.Formats(runs_as, plan.kv_cache_dtype, rounding, state, engine.row_tiles)
    answers = kernels.sources(engine, efficiency, places, nominal_device or device, formats, profile, device)
    answers = power.capped(answers, device, plan.power_cap)
    engine = host.with_cache_launches(engine, rounded=bool(env["kv_bytes"] < env["act_bytes"]))
    return BoundPlan(model, device, engine, plan, env, answers, tuple(notes), hf_token)


def _falling_clocks(model: Model, device: Hardware, plan: Plan, env: Env) -> Env:
    """What decode steps lose to the power limit: in long answers, and while the heat of prompts lasts.

    The latter was seen with dense models alone: experts and recurrent layers do not keep the matrix units as busy.
    """
    kinds = {op.kind for block in model.blocks for op in block.ops}
    dense = not ({"moe"} | RECURRENT) & kinds
    return {
        "hot_seconds": _hot_seconds(model, device, plan, env),
        "cooling": device.throttle_memory if dense else 0.0,
    }


def _hot_seconds(model: Model, device: Hardware, plan: Plan, env: Env) -> float:
    """Seconds of a decode step for each of its tokens within which falling clocks are felt in full.

    Matrix units are then as busy as the device's ``throttle_decode``, a share of their peak. Of 16-bit products: with
    8-bit ones no step of up to 512 sequences was seen to lose time.
    """
    active = float(roofline.weight_sum(model.blocks, env, "active"))
    ranks = plan.tensor_parallel_size * plan.pipeline_parallel_size
    peak = next(device.flops[name] for name in ("bf16", "fp16", *device.flops) if name in device.flops)
    return 2 * active / (ranks * peak * device.throttle_decode)


def _link_env(places: dict[str, parallelism.Place], device: Hardware) -> dict[str, Value]:
    """Bandwidth and latency of every axis' link, and of the one to the host."""
    host_link = parallelism.host_link(device) or parallelism.NO_LINK
    env = {f"{axis}_bandwidth": place.bandwidth for axis, place in places.items()}
    env |= {f"{axis}_latency": place.link.latency for axis, place in places.items()}
    return {**env, "host_bandwidth": host_link.bandwidth, "host_latency": host_link.latency}


def stage_plans(bound_plan: BoundPlan) -> tuple[BoundPlan, ...]:
    """The same plan for each pipeline stage's part of the model."""
    models = parallelism.pipeline_stages(bound_plan.model, bound_plan.plan.pipeline_parallel_size)
    return tuple(bound_plan._replace(model=model) for model in models)


def step_env(bound_plan: BoundPlan, step: Step) -> dict[str, Value]:
    """All names of a step: hardware, precision, layout and the step's sums."""
    sums, dp = step.sums(bound_plan.model.spans), bound_plan.env["dp"]
    # tokens of all ranks at the experts: each has this step's, unless so many of them have prompts
    prompt_ranks = bound_plan.env.get("prompt_ranks")
    moe_tokens = sums["tokens"] * dp
    if prompt_ranks is not None:
        moe_tokens = sums["decode_tokens"] * dp + sums["prefill_tokens"] * prompt_ranks
    return {**bound_plan.env, **sums, "moe_tokens": moe_tokens}


def padded_env(bound_plan: BoundPlan, env: dict[str, Value]) -> dict[str, Value]:
    """The names of a step as the engine runs it: its tokens padded to what was captured as a graph."""
    tokens = host.padded_tokens(bound_plan.engine, env["tokens"], env["prefill_tokens"])
    if tokens is env["tokens"]:
        return env
    moe_tokens = tokens * env["dp"]  # ranks pad to the same graph
    if "prompt_ranks" in env:
        moe_tokens = where(tokens > env["tokens"], moe_tokens, env["moe_tokens"])
    return {**env, "tokens": tokens, "moe_tokens": moe_tokens}


def step_seconds(bound_plan: BoundPlan, step: Step, equal_tokens: EqualTokens | None = None) -> Value:
    """Seconds of one step, engine included; ``equal_tokens`` as of `kernel_work`."""
    return step_activity(bound_plan, step, equal_tokens).seconds


def step_activity(bound_plan: BoundPlan, step: Step, equal_tokens: EqualTokens | None = None) -> Activity:
    """Seconds of one step, and what a GPU does in them: ``step_activity(bound_plan, step).busy``"""
    env = step_env(bound_plan, step)
    work = roofline.kernel_work(
        bound_plan.text, padded_env(bound_plan, env), bound_plan.sources, equal_tokens=equal_tokens
    )
    added = host.host_seconds(bound_plan.model, bound_plan.engine, env, work.seconds)
    factor = calibration_factor(bound_plan, env)
    return Activity((work.seconds + added) * factor, work.busy * factor, work.compute, work.memory)


def rows_activity(rows: list[OpCost]) -> Activity:
    """The same of a table of operators: ``rows_activity(step_rows(bound_plan, step))``"""
    seconds = sum(row.seconds * row.count for row in rows)
    waiting = sum(row.seconds * row.count for row in rows if row.op.kind == HOST.kind)
    linked = sum(row.seconds * row.count for row in rows if row.op.kind in kernels.LINKED)
    waiting += (1 - power.power_constants().linked) * linked
    compute, memory = (sum(getattr(row.terms, name) * row.count for row in rows) for name in ("compute", "memory"))
    return Activity(seconds, seconds - waiting, compute, memory)


def calibration_factor(bound_plan: BoundPlan, sums: Env) -> Value:
    """The factor that a calibration puts on a step's seconds: prompts' and answers' tokens have one each.

    Steps that have both, and decode steps that are launched kernel by kernel, have a further one.
    """
    engine, has_prompts = bound_plan.engine, sums["prefill_tokens"] > 0
    factor: Value = engine.prefill_factor
    if engine.prefill_factor != engine.decode_factor:
        share = sums["prefill_tokens"] / maximum_of(sums["tokens"], 1)  # 0 of a step without tokens among an array's
        factor = engine.decode_factor + (engine.prefill_factor - engine.decode_factor) * share
    if engine.mixed_factor != 1:
        factor = factor * where(has_prompts & (sums["decode_tokens"] > 0), engine.mixed_factor, 1.0)
    if engine.eager_factor != 1:
        eager = host.without_graphs(engine, sums["tokens"], has_prompts)
        factor = factor * where(eager & (sums["prefill_tokens"] == 0), engine.eager_factor, 1.0)
    return factor


def step_rows(bound_plan: BoundPlan, steps: Step | list[Step]) -> list[OpCost]:
    """Every operator of a step, and the engine's own time as a last row.

    A list has one step per layer (token pruning): each layer is estimated with its own tokens, then summed.
    """
    per_layer = not isinstance(steps, Step)
    envs = [step_env(bound_plan, step) for step in ([steps] if isinstance(steps, Step) else steps)]
    rows: list[OpCost] = []
    for block in bound_plan.text:
        if per_layer and block.layers:
            import numpy as np

            by_layer = {k: np.array([envs[i][k] for i in block.layers], dtype=float) for k in envs[0]}  # (layers,)
            rows += [_mean_over_layers(row) for row in roofline.op_costs(block, by_layer, bound_plan.sources)]
        else:
            env = envs[-1] if block.stage == "head" else envs[0]
            rows += _padded_rows(bound_plan, block, env)
    rows = _overlapped(rows, envs[0])
    kernel_seconds = sum(row.seconds * row.count for row in rows)
    added = host.host_seconds(bound_plan.model, bound_plan.engine, envs[0], kernel_seconds)
    rows = [*rows, _host_row(added)]
    factor = calibration_factor(bound_plan, envs[0])
    return rows if scalar(factor) and factor == 1 else [row._replace(seconds=row.seconds * factor) for row in rows]


def _padded_rows(bound_plan: BoundPlan, block: Block, env: dict[str, Value]) -> list[OpCost]:
    """A block's operators: the work of the step itself, the seconds of the step as it is padded."""
    rows, padded = roofline.op_costs(block, env, bound_plan.sources), padded_env(bound_plan, env)
    if padded is env or padded["tokens"] == env["tokens"]:
        return rows
    as_run = roofline.op_costs(block, padded, bound_plan.sources)
    return [row._replace(seconds=run.seconds, origin=run.origin) for row, run in zip(rows, as_run, strict=True)]


def _overlapped(rows: list[OpCost], env: Env) -> list[OpCost]:
    """Communication shortened by what runs behind computing."""
    communicating = sum(row.seconds * row.count for row in rows if row.op.axis)
    computing = sum(row.seconds * row.count for row in rows if not row.op.axis)
    overlapped = roofline.overlapped_seconds(env, computing, communicating)
    if not overlapped:
        return rows
    left = 1 - overlapped / communicating
    return [row._replace(seconds=row.seconds * left) if row.op.axis else row for row in rows]


def tower_rows(bound_plan: BoundPlan, step: Step) -> list[OpCost]:
    """The vision tower's operators for the images of a step."""
    env = step_env(bound_plan, step)
    return [row for block in bound_plan.tower for row in roofline.op_costs(block, env, bound_plan.sources)]


def _mean_over_layers(row: OpCost) -> OpCost:
    """Rows that differ by layer, as one mean call of each layer."""
    import numpy as np

    def mean(value: Value) -> float:
        return float(np.mean(np.broadcast_to(value, row.count)))

    work = {f: mean(row.work[f]) for f in WORK_FIELDS}
    return row._replace(work=work, terms=Terms(*map(mean, row.terms)), seconds=mean(row.seconds))


def _host_row(seconds: Value) -> OpCost:
    zero = dict.fromkeys(WORK_FIELDS, 0.0)
    return OpCost(_HOST_BLOCK, HOST, 1, zero, Terms(0.0, 0.0, 0.0, 0.0), "assumed", seconds)
