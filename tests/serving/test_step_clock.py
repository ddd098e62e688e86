"""The clock for other simulators: its steps are those of `simulate`, and its adapters fit the interfaces they cite."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadValue, StepClock, simulate, synthetic
from inferometer.serving.step_clock import (
    StepBatch,
    VllmSteps,
    dynamo_profile,
    go_duration,
    install_sglang_predictor,
    llm_d_latencies,
    paced,
    sglang_gpu,
    sglang_plan,
)
from inferometer.serving.step_cost import CompiledCost, FullAttentionCost, WindowedCost


@cache
def clock_of(model: str = "llama-3.1-8b", **plan: Any) -> StepClock:
    return StepClock(model, "h200", **plan)


def test_tables_of_steps_keep_the_saw_tooth_of_tiles() -> None:
    """fp8 products of 2,052 rows work on 2,304, and longer: tables know every number of tokens, none between others."""
    clock = clock_of(quantization="fp8")
    part, whole, more = (clock.step_ms(([(tokens, 0)], [])) for tokens in (2052, 2304, 2560))
    assert part > 1.04 * whole and more > 1.05 * whole
    rounded = clock_of(quantization="bf16")
    assert rounded.step_ms(([(2052, 0)], [])) < rounded.step_ms(([(2304, 0)], []))


@pytest.mark.parametrize(
    ("model", "gpus", "kind"),
    [
        ("llama-3.1-8b", 1, FullAttentionCost),
        ("qwen3-30b-a3b", 1, FullAttentionCost),  # experts
        ("gpt-oss-20b", 1, WindowedCost),  # experts, and windows in every other layer
        ("qwen3-next-80b-a3b", 2, FullAttentionCost),  # experts, and recurrent states in three of four layers
    ],
)
def test_a_step_takes_as_long_as_in_a_simulation(
    model: str, gpus: int, kind: type[CompiledCost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of a run, with all that the engine knew of it, to the last digit but rounding."""
    steps: list[tuple[StepBatch, dict[str, float], float]] = []
    decode, mixed = kind.decode_seconds, kind.mixed_seconds

    def decode_seconds(self: Any, batch: Any) -> float:
        seconds = decode(self, batch)
        steps.append((StepBatch([], [int(c) for c in batch.contexts()]), {}, seconds))
        return seconds

    def mixed_seconds(self: Any, batch: Any, chunks: Any, done: int, thermal: float = 0.0, ahead: float = 0.0) -> float:
        seconds = mixed(self, batch, chunks, done, thermal, ahead)
        contexts = [] if batch is None else [int(c) for c in batch.contexts()]
        state = {"thermal_state": thermal, "ahead": ahead}
        steps.append((StepBatch([(new, cached) for _, new, cached in chunks], contexts, done), state, seconds))
        return seconds

    with monkeypatch.context() as patch:
        patch.setattr(kind, "decode_seconds", decode_seconds)
        patch.setattr(kind, "mixed_seconds", mixed_seconds)
        trace = synthetic(
            num_prompts=24, request_rate=40, input_len="uniform:min=50,max=3000", output_len="uniform:min=5,max=60"
        )
        simulate(model, "h200", trace=trace, fast_forward=False, tensor_parallel_size=gpus)
    clock = clock_of(model, tensor_parallel_size=gpus)
    assert {bool(batch.prefills) for batch, _, _ in steps} == {True, False} and len(steps) > 60
    for batch, state, seconds in steps:
        assert clock.step_ms(batch, **(state if batch.prefills else {})) == pytest.approx(1e3 * seconds, rel=1e-9)


def test_a_batch_has_several_forms() -> None:
    clock = clock_of()
    expected = clock.step_ms(StepBatch(prefills=[(512, 128)], decodes=[1000, 3000]))
    for batch in (
        ([(512, 128)], [1000, 3000]),
        [[[512, 128]], (1000, 3000)],
        {"prefills": [(512, 128)], "decodes": [1000, 3000]},
        ([(512, 128)], np.array([1000, 3000])),
        ([(512, 128)], [1000, 3000], 1),
        (np.array([[512, 128]]), np.array([1000, 3000])),
        (iter([(512, 128)]), [1000, 3000]),
    ):
        assert clock.step_ms(batch) == expected
    assert clock.step_ms(([], [])) == clock.step_ms({}) == clock.step_ms((np.empty((0, 2), int), [])) == 0.0
    assert clock.step_ms(([(512, 128)], [], 0)) < clock.step_ms(([(512, 128)], [], 1))  # no logits


@pytest.mark.parametrize(
    "batch",
    [
        ([(0, 5)], []),
        ([(5, -1)], []),
        ([], [0]),
        ([], [200_000]),
        ([(512, 131_000)], []),
        ([(512,)], []),
        [(512, 0)],
        7,
        {"prefill": []},
        ([], ["a"]),
        ([(1, 2)], [], 3),
    ],
)
def test_what_is_no_batch_is_one_sentence(batch: Any) -> None:
    with pytest.raises(BadValue, match=r"a batch is \(prefills, decodes\).*131,072 tokens"):
        clock_of().step_ms(batch)


@pytest.mark.parametrize("batch", [([], []), ([], [100]), ([(100, 0)], [])])
@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"ahed": 1.0}, "not ahed"),
        ({"ahead": float("nan")}, "ahead must be a number of seconds, not nan"),
        ({"thermal_state": 2}, "thermal_state must be a number from 0 to 1, not 2"),
        ({"thermal_state": "hot"}, "thermal_state must be a number from 0 to 1, not 'hot'"),
    ],
)
def test_what_is_no_state_is_refused_with_every_batch(batch: Any, state: Any, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        clock_of().step_ms(batch, **state)


def test_plans_without_steps_are_refused() -> None:
    with pytest.raises(BadValue, match="not ahed"):
        clock_of().step_ms(([(5, 0)], []), ahed=1.0)
    with pytest.raises(BadValue, match="not divisible by tp 3"):
        StepClock("llama-3.1-8b", "h200", tensor_parallel_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(2, 4000), st.integers(0, 9000)), max_size=3),
)
def test_more_work_never_takes_less_time(decodes: list[int], prefills: list[tuple[int, int]]) -> None:
    clock = clock_of()
    before = clock.step_ms((prefills, decodes))
    assert clock.step_ms((prefills, [context + 512 for context in decodes])) >= before * (1 - 1e-6)
    assert clock.step_ms(([*prefills, (4000, 0)], decodes)) > before


def test_stages_of_a_pipeline_add_up() -> None:
    clock, batch = clock_of(pipeline_parallel_size=2), ([(700, 0)], [900] * 8)
    each = clock.stage_ms(batch)
    assert len(each) == 2 and min(each) > 0 and sum(each) == pytest.approx(clock.step_ms(batch))


# ------------------------------------------------------------------ SGLang's simulator


@dataclass
class ScheduleRequest:
    """sglang_simulator/time_predictor/base.py at ed45db8."""

    extend_length: int = 0
    past_kv_length: int = 0


@dataclass
class ScheduleBatch:
    """The same; ``forward_mode`` is that of pull request 36069."""

    reqs: list[ScheduleRequest] = field(default_factory=list)
    forward_mode: str | None = None


@pytest.fixture
def sglang_simulator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The parts of the simulator that the adapter touches, under their names."""

    class InferTimePredictor:
        def __init__(self, model: Any, hw: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("the adapter has its own")

        def predict_infer_time(self, batch: ScheduleBatch) -> float:
            raise NotImplementedError

    class ConfigManager:
        raw: ClassVar[dict[str, Any]] = {}

        @classmethod
        def _get_raw_config(cls) -> dict[str, Any]:
            return cls.raw

        @classmethod
        def get_inference_time_predictor(cls, model: Any, hw: Any, sched_config: Any) -> Any:
            raise ValueError(f"Unknown predictor name: {cls.raw['predictor']['name']}")

    names = ("", ".simulation", ".simulation.manager", ".simulation.manager.config", ".time_predictor")
    for name in (*names, ".time_predictor.base"):
        monkeypatch.setitem(sys.modules, f"sglang_simulator{name}", ModuleType(f"sglang_simulator{name}"))
    sys.modules["sglang_simulator.simulation.manager.config"].ConfigManager = ConfigManager  # type: ignore[attr-defined]
    base = sys.modules["sglang_simulator.time_predictor.base"]
    base.InferTimePredictor = InferTimePredictor  # type: ignore[attr-defined]
    return SimpleNamespace(manager=ConfigManager, base=InferTimePredictor)


def test_sglangs_simulator_takes_the_predictor(sglang_simulator: Any) -> None:
    """As `C_SchedulerHook` asks: a batch of prompts, then decode steps; seconds, and metrics that are flushed."""
    manager = sglang_simulator.manager
    install_sglang_predictor()
    model = SimpleNamespace(model_path="meta-llama/Llama-3.1-8B-Instruct")
    hw = SimpleNamespace(name="NVIDIA H200", vendor="NVIDIA", device_alias=["H200", "h200_sxm"])
    config = SimpleNamespace(tp_size=1, dp_size=1, pp_size=1, ep_size=1, data_type=None, kv_cache_data_type=None)
    manager.raw = {"predictor": {"name": "aiconfigurator"}}
    with pytest.raises(ValueError, match="aiconfigurator"):
        manager.get_inference_time_predictor(model, hw, config)
    manager.raw = {"predictor": {"name": "inferometer"}}
    predictor = manager.get_inference_time_predictor(model, hw, config)
    assert isinstance(predictor, sglang_simulator.base) and predictor.clock.gpu == "h200"
    clock, clocked = clock_of(engine="sglang"), []
    prompts = [ScheduleRequest(512, 0), ScheduleRequest(300, 64)]
    for step in range(20):
        requests = [*(prompts if step == 0 else ()), *(ScheduleRequest(1, 400 + step + k) for k in range(8))]
        seconds = predictor.predict_infer_time(ScheduleBatch(requests, None if step % 2 else "MIXED"))
        prefills = [(512, 0), (300, 64)] if step == 0 else []
        assert seconds == pytest.approx(clock.step_ms((prefills, [400 + step + k for k in range(8)])) / 1e3)
        clocked.append(seconds)
    assert predictor.predict_infer_time(ScheduleBatch()) == 0.0
    assert predictor.get_metrics() == {"inferometer_steps": 21, "inferometer_seconds": pytest.approx(sum(clocked))}
    predictor.reset_metrics()
    assert predictor.get_metrics() == {"inferometer_steps": 0, "inferometer_seconds": 0.0}


def test_sglangs_layout_and_precision_become_a_plan() -> None:
    fp8 = SimpleNamespace(value="FP8_TENSOR")
    config = SimpleNamespace(tp_size=8, dp_size=4, pp_size=2, ep_size=8, data_type=fp8, kv_cache_data_type=None)
    plan = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 4}
    assert sglang_plan(config) == {**plan, "enable_expert_parallel": True, "quantization": "fp8"}
    assert sglang_gpu(SimpleNamespace(name="NVIDIA H20", vendor="NVIDIA", device_alias=["H20"])) == "h20"


# ------------------------------------------------------------------ vLLM's scheduler output


def scheduler_output(new: list[Any], cached: list[tuple[str, int, int]], scheduled: dict[str, int], **more: Any) -> Any:
    """vllm/v1/core/sched/output.py at a014e35: those of its fields that say what a step computes."""
    ids, computed, outputs = zip(*cached, strict=True) if cached else ((), (), ())
    rows = SimpleNamespace(req_ids=list(ids), num_computed_tokens=list(computed), num_output_tokens=list(outputs))
    fields = {"scheduled_spec_decode_tokens": {}, "finished_req_ids": set(), **more}
    return SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=rows,
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        **fields,
    )


def new_request(name: str, prompt: int, computed: int = 0) -> Any:
    ids = list(range(prompt))
    return SimpleNamespace(
        req_id=name, prompt_token_ids=ids, prefill_token_ids=None, prompt_embeds=None, num_computed_tokens=computed
    )


def test_vllms_scheduler_output_is_a_batch() -> None:
    steps = VllmSteps(clock_of())
    first = scheduler_output([new_request("a", 600), new_request("b", 900, 64)], [], {"a": 600, "b": 400})
    assert steps.batch(first) == ([(600, 0), (400, 64)], [], 1)  # b's prompt goes on
    second = scheduler_output([], [("a", 600, 1), ("b", 464, 0)], {"a": 1, "b": 436})
    assert steps.batch(second) == ([(436, 464)], [600], 1)
    drafted = scheduler_output([], [("a", 601, 2)], {"a": 4}, scheduled_spec_decode_tokens={"a": [1, 2, 3]})
    assert steps.batch(drafted) == ([], [601], 0)
    resumed = scheduler_output([], [("a", 0, 5)], {"a": 300}, finished_req_ids={"b"})
    assert steps.batch(resumed) == ([(300, 0)], [], 0) and set(steps.prompt_len) == {"a"}
    assert steps.step_ms(second) == clock_of().step_ms(([(436, 464)], [600]))


def test_a_simulated_forward_lasts_as_long_as_its_step() -> None:
    slept: list[float] = []
    execute = paced(lambda output, *more: (output, more), clock_of(), slept.append)
    step = scheduler_output([new_request("a", 4096)], [], {"a": 4096})
    assert execute(step, None) == (step, (None,))
    execute(scheduler_output([], [], {}))
    assert len(slept) == 1 and 0 < slept[0] <= clock_of().step_ms(([(4096, 0)], [])) / 1e3


# ------------------------------------------------------------------ llm-d-inference-sim


def seconds_of(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(ns|us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_llm_ds_formulas_come_near_the_clock() -> None:
    """pkg/llm-d-inference-sim/latencies.go at eec055a: perTokenCalculator and getCurrLoadFactor."""
    clock = clock_of()
    keys = llm_d_latencies(clock, input_len=2048, max_num_seqs=64)
    assert keys["latency-calculator"] == "per-token" and keys["max-num-seqs"] == 64
    overhead, per_token, between = (
        seconds_of(keys[key]) for key in ("prefill-overhead", "prefill-time-per-token", "inter-token-latency")
    )
    for prompt in (512, 1024, 2048):
        assert overhead + prompt * per_token == pytest.approx(clock.step_ms(([(prompt, 0)], [])) / 1e3, rel=0.12)
    for running in (1, 64):
        factor = 1 + (keys["time-factor-under-load"] - 1) * (running - 1) / 63
        assert between * factor == pytest.approx(clock.step_ms(([], [2112] * running)) / 1e3, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"input_len": 0}, "input_len must be a whole number from 1 to 131,072, not 0"),
        ({"input_len": 10.5}, "input_len must be a whole number"),
        ({"input_len": "long"}, "input_len must be a whole number"),
        ({"max_num_seqs": -1}, "max_num_seqs must be a whole number"),
        ({"input_len": 131_072}, "together"),
    ],
)
def test_sizes_that_no_request_has_are_refused(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        llm_d_latencies(clock_of(), **sizes)
    if "max_num_seqs" in sizes:
        with pytest.raises(BadValue, match=says):
            dynamo_profile(clock_of(), **sizes)


def test_dynamos_mocker_comes_near_the_clock_between_its_points() -> None:
    """lib/mocker/src/common/perf_model.rs at 0894f5c: straight lines for prompts, bilinear for decode."""
    clock = clock_of(max_model_len=8192)
    arrays = dynamo_profile(clock, max_num_seqs=256)
    assert all(array.dtype == float for array in arrays.values())
    totals, contexts, itl = (arrays[f"decode_{name}"] for name in ("active_kv_tokens", "context_length", "itl"))
    assert itl.shape == (len(totals), len(contexts)) and (np.diff(totals) > 0).all() and (np.diff(contexts) > 0).all()
    for prompt in (300, 513, 700, 1500, 6000):  # CUDA graphs end at 512
        line = np.interp(prompt, arrays["prefill_isl"], arrays["prefill_ttft_ms"])
        assert line == pytest.approx(clock.step_ms(([(prompt, 0)], [])), rel=0.06)
    for num_seqs, context in ((1, 700), (40, 1500), (200, 3000)):
        columns = [np.interp(num_seqs * context, totals, column) for column in itl.T]
        between = np.interp(context, contexts, columns)
        assert between == pytest.approx(clock.step_ms(([], [context] * num_seqs)), rel=0.06)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-9, 1e4))
def test_go_durations_are_read_back(seconds: float) -> None:
    assert seconds_of(go_duration(seconds)) == pytest.approx(seconds, rel=1e-3, abs=1e-9)
