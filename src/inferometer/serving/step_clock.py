"""Milliseconds of engine steps for other simulators: the tables of `simulate`, behind a small API that stays as it is.

clock = StepClock("llama-3.1-8b", "h200")
clock.step_ms(([(512, 0)], [1024, 2048]))       # a prompt of 512 tokens, while two sequences decode
clock.step_ms(StepBatch(prefills=[(256, 4096)], decodes=[300] * 64, num_completed=0))       # a chunk in mid-prompt

A batch is what one forward pass computes: chunks of prompts as ``(new tokens, tokens before them)``, and the context of
every sequence that decodes, in tokens. A tuple, a list, a dict with these keys or a `StepBatch` will do. A step is
estimated from tables that fill up as steps are met: the first ones take some ms each, later ones microseconds.

Four simulators take the clock as it is:

    SglangPredictor         SGLang's simulator: its `InferTimePredictor`, and `install_sglang_predictor` to name it
    VllmSteps               vLLM: the milliseconds of a `SchedulerOutput`; `paced` makes a forward pass last as long
    llm_d_latencies         llm-d-inference-sim: the constants of its configuration that come nearest
    dynamo_profile          Dynamo's mocker: the arrays of its profile data
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import BadValue, abbreviate
from ..costs import parallelism
from ..costs.binding import BoundPlan, stage_plans
from ..inference import speculation
from ..inference.request import Request, build_request
from .step_cost import Chunk, StepCost, step_cost

Chunks = Sequence[tuple[int, int]]
MOST_SEQS = 1 << 20  # sequences of a step
_STATE = {
    "thermal_state": (0.0, 1.0, "a number from 0 to 1"),
    "ahead": (-1e9, 1e9, "a number of seconds"),
}


class StepBatch(NamedTuple):
    """One forward pass: ``StepBatch(prefills=[(512, 0)], decodes=[1024, 2048])``"""

    prefills: Chunks = ()  # (new tokens, tokens of the prompt before them: cached, or computed in earlier steps)
    decodes: Sequence[int] = ()  # tokens in the KV cache of every sequence that decodes
    num_completed: int | None = None  # prompts that end in this step, so that a token comes out; None: all of them


class ContextList:
    """The sequences that decode in a step, from a list: ``ContextList([1024, 2048]).total_context()  # 3072``"""

    __slots__ = ("num_seqs", "total", "values")

    def __init__(self, values: Sequence[int]) -> None:
        self.values, self.num_seqs, self.total = values, len(values), sum(values)

    def total_context(self) -> int:
        """Tokens before this step, of all sequences together."""
        return self.total

    def contexts(self) -> np.ndarray:
        """Tokens before this step, of every sequence: (num_seqs,)."""
        return np.array(self.values, float)

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps: (steps,)."""
        return np.arange(first, first + steps) * 1.0


class StepClock:
    """How long steps take on a model, a GPU and a plan: ``StepClock("llama-3.1-8b", "h200", quantization="fp8")``

    Further keywords are those of `analyze` without its workload. With ``data_parallel_size`` a step is one rank's,
    while all ranks have the same load; with ``pipeline_parallel_size`` it passes through all stages (`stage_ms`).
    """

    def __init__(self, model: str, gpu: str = "h100-sxm", **plan: Any) -> None:
        request = build_request(model, gpu=gpu, **plan)
        bound_plan = step_plan(request)
        reason = parallelism.illegal_reason(request.model, request.plan, request.device) or speculation.draft_reason(
            bound_plan
        )
        if request.model.kind != "decoder" or reason:
            raise BadValue(reason or f"{request.model.name} is a {request.model.kind} model: it has no decode steps")
        self.model, self.gpu = request.model.name, request.device.name
        self.plan, self.engine = request.plan, request.engine
        self.max_model_len = request.plan.max_model_len or 2**20
        self.warnings = (*request.warnings, *bound_plan.notes)
        self.stages = compiled_stages(bound_plan, self.max_model_len)

    def step_ms(self, batch: StepBatch | Sequence[Any] | Mapping[str, Any], **state: float) -> float:
        """Milliseconds of one step: ``clock.step_ms(([(512, 0)], [1024, 2048]))``

        Two keywords say what `simulate` knows of the step before: ``thermal_state``, how far the chip is throttled
        (0 to 1), and ``ahead``, the seconds by which the host is free to launch the step before the device is.
        """
        if state:
            _check_state(state)
        prefills, contexts, num_completed = self._checked(batch)
        try:
            if not prefills:
                if not contexts.num_seqs:
                    return 0.0
                hot = 1 + self.stages[0].cooling * state.get("thermal_state", 0.0)
                return 1e3 * hot * sum([stage.decode_seconds(contexts) for stage in self.stages])
            chunks: list[Chunk] = [(0, new, cached) for new, cached in prefills]
            completed = len(chunks) if num_completed is None else num_completed
            return 1e3 * sum([stage.mixed_seconds(contexts, chunks, completed, **state) for stage in self.stages])
        except (IndexError, TypeError, ValueError, AttributeError):
            raise self._refused(batch) from None

    def stage_ms(self, batch: StepBatch | Sequence[Any] | Mapping[str, Any]) -> list[float]:
        """Milliseconds of a step on each pipeline stage: ``clock.stage_ms(([], [1024]))``"""
        stages, each = self.stages, []
        try:
            for stage in stages:
                self.stages = [stage]
                each.append(self.step_ms(batch))
        finally:
            self.stages = stages
        return each

    def _checked(self, batch: Any) -> tuple[Chunks, ContextList, int | None]:
        """The parts of a batch; what would silently give a wrong time is refused."""
        try:
            if isinstance(batch, dict):
                batch = StepBatch(**batch)
            prefills, decodes = batch[0], batch[1]
            num_completed = batch[2] if len(batch) > 2 else None
            limit = self.max_model_len
            if not isinstance(prefills, list | tuple):
                prefills = prefills.tolist() if isinstance(prefills, np.ndarray) else list(prefills)
            for new, cached in prefills:
                if new < 1 or cached < 0 or new + cached > limit:
                    raise ValueError
            if num_completed is not None and not 0 <= num_completed <= len(prefills):
                raise ValueError
            contexts = ContextList(decodes.tolist() if isinstance(decodes, np.ndarray) else decodes)
            # looking at every context would take longer than the step's own look-up: their mean is looked at
            if not contexts.num_seqs <= contexts.total <= contexts.num_seqs * limit:
                raise ValueError
        except (IndexError, KeyError, TypeError, ValueError):
            raise self._refused(batch) from None
        return prefills, contexts, num_completed

    def _refused(self, batch: Any) -> BadValue:
        return BadValue(
            "a batch is (prefills, decodes): chunks of prompts as (new tokens from 1 on, tokens before them), and the "
            f"contexts of decoding sequences from 1 token on, all up to max_model_len ({self.max_model_len:,} tokens), "
            f"such as ([(512, 0)], [1024, 2048]); given: {abbreviate(batch)}",
            field="batch",
        )


def _check_state(state: Mapping[str, Any]) -> None:
    """Refuse what is no state of the step before, where it would change nothing, too."""
    for name, value in state.items():
        if name not in _STATE:
            raise BadValue(f"step_ms takes thermal_state and ahead beside the batch, not {name}")
        least, most, what = _STATE[name]
        try:
            makes_sense = least <= value <= most
        except (TypeError, ValueError):
            makes_sense = False
        if not makes_sense:
            raise BadValue(f"{name} must be {what}, not {abbreviate(value)}")


def _whole_number(name: str, value: Any, most: int) -> int:
    """A number of tokens or sequences: ``_whole_number("input_len", 1024, 131072)``"""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise BadValue(f"`{name}` must be a whole number from 1 to {most:,}, not {abbreviate(value)}", field=name)
    return int(value)


def step_plan(request: Request) -> BoundPlan:
    """The plan whose steps are estimated one by one: sequences have all lengths."""
    bound_plan = request.bind()
    return bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})


def compiled_stages(bound_plan: BoundPlan, longest: int) -> list[StepCost]:
    """The tables of every pipeline stage, for sequences of up to ``longest`` tokens."""
    return [step_cost(stage, longest) for stage in stage_plans(bound_plan)]


# ------------------------------------------------------------------ SGLang's simulator

# tools/sglang-simulator/src/sglang_simulator of sgl-project/sglang at ed45db8, 21 August 2026, the head of pull request
# 33824: time_predictor/base.py (`InferTimePredictor`, `ScheduleBatch`), simulation/manager/config.py
# (`ConfigManager.get_inference_time_predictor`) and simulation/sglang/scheduler.py (`C_SchedulerHook`, which asks).
# Pull request 36069 adds ``forward_mode`` to the batch and takes no negative seconds: both hold here, too.
SGLANG_PREDICTOR = "inferometer"
_SGLANG_SIZES = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
}
_SGLANG_TYPES = {"FP8": "fp8", "INT8": "int8", "FP4": "nvfp4", "INT4": "int4"}


class SglangPredictor:
    """``SglangPredictor(model, hw, config, gpu="h200")``: an `InferTimePredictor` whose seconds are a `StepClock`'s.

    ``model``, ``hw`` and ``config`` are the simulator's own `ModelInfo`, `AcceleratorInfo` and `SchedulerConfig`, which
    say the layout and the precision. Keywords are those of `StepClock`, and win.
    """

    def __init__(self, model: Any, hw: Any, config: Any, *, gpu: str | None = None, **plan: Any) -> None:
        self.model, self.hw, self.config = model, hw, config
        name = plan.pop("model", None) or model.model_path
        given = {"engine": "sglang", **sglang_plan(config), **plan}
        self.clock = StepClock(name, gpu or sglang_gpu(hw), **given)
        self.reset_metrics()

    def predict_infer_time(self, batch: Any) -> float:
        """Seconds of a `ScheduleBatch`: one new token after others is a sequence that decodes, all else a prompt."""
        prefills, decodes = [], []
        for request in batch.reqs:
            new, cached = request.extend_length, request.past_kv_length
            if new == 1 and cached:
                decodes.append(cached)
            else:
                prefills.append((new, cached))
        seconds = self.clock.step_ms((prefills, decodes)) / 1e3
        self.steps += 1
        self.seconds += seconds
        return seconds

    def get_metrics(self) -> dict[str, float]:
        """Steps and their seconds since the last flush, for the simulator's metrics.json."""
        return {"inferometer_steps": self.steps, "inferometer_seconds": self.seconds}

    def reset_metrics(self) -> None:
        """The simulator has written its metrics."""
        self.steps, self.seconds = 0, 0.0


def sglang_plan(config: Any) -> dict[str, Any]:
    """The keywords of a plan that SGLang's `SchedulerConfig` says: ``{"tensor_parallel_size": 4, …}``

    Its ``tp_size`` are all GPUs of a server, of which ``dp_size`` groups attend by themselves.
    """
    plan = {ours: getattr(config, theirs) for theirs, ours in _SGLANG_SIZES.items() if getattr(config, theirs, 1) > 1}
    if plan.get("data_parallel_size"):
        plan["tensor_parallel_size"] = max(1, config.tp_size // config.dp_size)
    if getattr(config, "ep_size", 1) > 1:
        plan["enable_expert_parallel"] = True
    weights = getattr(config, "data_type", None)
    cache = getattr(config, "kv_cache_data_type", None)
    for keyword, data_type in (("quantization", weights), ("kv_cache_dtype", cache)):
        named = str(getattr(data_type, "value", data_type)).removesuffix("_TENSOR")
        if named in _SGLANG_TYPES:
            plan[keyword] = _SGLANG_TYPES[named]
    return plan


def sglang_gpu(hw: Any) -> str:
    """The catalogue's name of the simulator's accelerator: an alias that it knows, or its name without the vendor."""
    from ..specs.catalog import hardware

    names = [*getattr(hw, "device_alias", ()), str(hw.name).removeprefix(f"{hw.vendor} ")]
    for name in names:
        try:
            return hardware(name.lower().replace("_", "-").replace(" ", "-")).name
        except BadValue:
            continue
    return str(names[-1])  # refused by `StepClock`, with the nearest names


def install_sglang_predictor() -> None:
    """Let SGLang's simulator know ``"predictor": {"name": "inferometer", "gpu": "h200", …}`` in its configuration.

    Its list of predictors is closed, so calls of its `ConfigManager` go through ours: call this before the scheduler
    starts, in the process that runs it (a ``sitecustomize.py`` will do). Other names go to the simulator's own code.
    """
    from importlib import import_module

    manager: Any = import_module("sglang_simulator.simulation.manager.config").ConfigManager
    base: Any = import_module("sglang_simulator.time_predictor.base").InferTimePredictor
    original = manager.get_inference_time_predictor
    predictor = type("InferometerTimePredictor", (SglangPredictor, base), {})

    def get_inference_time_predictor(cls: Any, model: Any, hw: Any, sched_config: Any) -> Any:
        options = dict(cls._get_raw_config().get("predictor", {}))
        if options.pop("name", None) != SGLANG_PREDICTOR:
            return original(model, hw, sched_config)
        return predictor(model, hw, sched_config, **options)

    manager.get_inference_time_predictor = classmethod(get_inference_time_predictor)


# ------------------------------------------------------------------ vLLM's simulated forward


class VllmSteps:
    """``VllmSteps(clock).step_ms(scheduler_output)``: the milliseconds of what vLLM has scheduled for one step.

    Fields as in vllm/v1/core/sched/output.py at a014e35 (22 August 2026, after 0.28.0rc2): `SchedulerOutput` with
    ``scheduled_new_reqs``, ``scheduled_cached_reqs``, ``num_scheduled_tokens`` and ``scheduled_spec_decode_tokens``.
    """

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.prompt_len: dict[str, int] = {}  # tokens to be there before a request's next token comes out

    def batch(self, scheduler_output: Any) -> StepBatch:
        """The step's chunks and contexts."""
        scheduled, prefills, decodes, completed = scheduler_output.num_scheduled_tokens, [], [], 0
        drafted = scheduler_output.scheduled_spec_decode_tokens
        for request_id in scheduler_output.finished_req_ids:
            self.prompt_len.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            tokens = new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids
            self.prompt_len[new.req_id] = len(tokens) if tokens is not None else new.prompt_embeds.shape[0]
            prefills.append((scheduled[new.req_id], new.num_computed_tokens))
            completed += sum(prefills[-1]) >= self.prompt_len[new.req_id]
        cached = scheduler_output.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True)
        for request_id, num_computed, num_output in rows:
            num_new = scheduled[request_id]
            if num_output and num_new <= 1 + len(drafted.get(request_id, ())):
                decodes.append(num_computed)
                continue
            prefills.append((num_new, num_computed))
            target = self.prompt_len.get(request_id, 0) + num_output
            completed += num_new + num_computed >= target
        return StepBatch(prefills, decodes, completed)

    def step_ms(self, scheduler_output: Any) -> float:
        """Milliseconds of the step."""
        return self.clock.step_ms(self.batch(scheduler_output))


def paced(
    execute_model: Callable[..., Any], clock: StepClock, sleep: Callable[[float], None] = time.sleep
) -> Callable[..., Any]:
    """``runner.execute_model = paced(runner.execute_model, clock)``: every step lasts as long as it would on the GPU.

    vLLM's simulated forward (pull request 47922 at e59cbe6, 6 August 2026: `SimulatedCPUModelRunner.execute_model` in
    vllm/v1/worker/simulated/model_runner.py) returns at once and takes no latencies: this is the seam that it leaves.
    """
    steps = VllmSteps(clock)

    def execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        seconds = steps.step_ms(scheduler_output) / 1e3 if scheduler_output.total_num_scheduled_tokens else 0.0
        result = execute_model(scheduler_output, *args, **kwargs)
        left = began + seconds - time.perf_counter()
        if left > 0:
            sleep(left)
        return result

    return execute


# ------------------------------------------------------------------ llm-d-inference-sim


def llm_d_latencies(
    clock: StepClock, *, input_len: int = 1024, output_len: int = 128, max_num_seqs: int | None = None
) -> dict[str, Any]:
    """The latency keys of llm-d-inference-sim's configuration that come nearest to a clock, for requests of a length.

    ``llm_d_latencies(clock, input_len=2048)["prefill-time-per-token"]  # '21.9us'``. Write them to its YAML file, which
    JSON is, too. Keys as in pkg/common/config.go, formulas as in pkg/llm-d-inference-sim/latencies.go at eec055a
    (20 August 2026, after v0.10.2): a first token takes ``prefill-overhead`` and ``prefill-time-per-token`` of every
    token that is not cached, the others ``inter-token-latency``; all of it grows along a straight line, from one
    request to ``time-factor-under-load`` at ``max-num-seqs`` of them.
    """
    seqs = min(clock.plan.max_num_seqs, 256) if max_num_seqs is None else max_num_seqs
    seqs, longest = _whole_number("max_num_seqs", seqs, MOST_SEQS), clock.max_model_len
    input_len = _whole_number("input_len", input_len, longest)
    output_len = _whole_number("output_len", output_len, longest)
    if input_len + output_len > longest:
        raise BadValue(
            f"`input_len` and `output_len` may have {longest:,} tokens together (max_model_len), "
            f"not {input_len + output_len:,}",
            field="input_len",
        )
    lengths = sorted({ceil(input_len * part / 8) for part in range(1, 9)})
    seconds = [clock.step_ms(([(new, 0)], ())) / 1e3 for new in lengths]
    per_token, overhead = np.polyfit(lengths, seconds, 1) if len(lengths) > 1 else (seconds[0] / lengths[0], 0.0)
    if overhead < 0:  # a straight line through the origin, which their durations can say
        per_token, overhead = float(np.dot(lengths, seconds) / np.dot(lengths, lengths)), 0.0
    context = input_len + output_len // 2
    alone, full = (clock.step_ms(((), [context] * count)) for count in (1, seqs))
    return {
        "latency-calculator": "per-token",
        "prefill-overhead": go_duration(overhead),
        "prefill-time-per-token": go_duration(per_token),
        "inter-token-latency": go_duration(alone / 1e3),
        "time-factor-under-load": round(max(1.0, full / alone), 3),
        "max-num-seqs": seqs,
    }


def go_duration(seconds: float) -> str:
    """Seconds as Go writes them: ``go_duration(0.0123)  # '12.3ms'``; to a nanosecond, which is Go's unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{round(seconds / size, 3):g}{unit}"
    return f"{round(seconds * 1e9)}ns"


# ------------------------------------------------------------------ Dynamo's mocker

MOCKER_LENGTHS = tuple(n for k in range(6, 20) for n in (2**k, 3 * 2 ** (k - 1)))  # tokens of prompts and contexts
MOCKER_SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def dynamo_profile(clock: StepClock, *, max_num_seqs: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of Dynamo's mocker: ``np.savez("profile.npz", **dynamo_profile(clock))``, its --planner-profile-data.

    Names and axes as in lib/mocker/src/common/perf_model.rs of ai-dynamo/dynamo at 0894f5c: a prompt step by its new
    tokens, on straight lines; a decode step by the contexts of all its sequences together and their mean, bilinear. It
    adds the two for a step that has both, and lets no decode step take less than 1 ms.
    """
    seqs = clock.plan.max_num_seqs if max_num_seqs is None else _whole_number("max_num_seqs", max_num_seqs, MOST_SEQS)
    longest, engine = min(clock.max_model_len, 2**20), clock.engine
    graph = engine.graph_tokens if engine.prefill_graph_tokens is None else engine.prefill_graph_tokens
    lengths = [n for n in MOCKER_LENGTHS if n < longest] + [longest]
    totals = sorted({n * count for n in lengths for count in MOCKER_SEQS if count <= seqs} | {seqs * longest})
    decode = np.array([[_mean_decode_ms(clock, total / n, n, seqs) for n in lengths] for total in totals])
    prompts = sorted({*lengths, *(n for n in (graph, graph + 1) if 0 < n < longest)})  # larger ones have no graphs
    return {
        "prefill_isl": np.array(prompts, float),
        "prefill_ttft_ms": np.array([clock.step_ms(([(n, 0)], ())) for n in prompts]),
        "decode_active_kv_tokens": np.array(totals, float),
        "decode_context_length": np.array(lengths, float),
        "decode_itl": decode,
    }


def _mean_decode_ms(clock: StepClock, num_seqs: float, context: int, most: int) -> float:
    """Of so many sequences, between two whole numbers of them, on a straight line."""
    num_seqs = min(max(num_seqs, 1.0), float(most))
    low = int(num_seqs)
    few, more = (clock.step_ms(((), [context] * count)) for count in (low, min(low + 1, most)))
    return few + (num_seqs - low) * (more - few)
