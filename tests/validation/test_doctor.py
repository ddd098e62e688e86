"""The doctor: faults that are put into a simulated server on purpose are named first, and a healthy one is healthy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import Ran

from inferometer.serving.metrics import latencies
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.specs.structs import Calibration
from inferometer.validation.doctor import Diagnosis, diagnose
from inferometer.validation.validate import validate

Command = Callable[..., Ran]
MODEL, GPU = "llama-3.1-8b", "h200"
TALK = synthetic(
    num_prompts=40,
    request_rate=6.0,
    input_len="lognormal:mean=1500,std=1200,max=8000",
    output_len="lognormal:mean=120,std=60",
    seed=3,
)
SHARED = synthetic(num_prompts=40, request_rate=6.0, input_len=3000, prefix_len=2500, output_len=60, seed=3)
FAULTS: dict[str, tuple[Trace, dict[str, Any]]] = {
    "eager": (TALK, {"max_cudagraph_capture_size": 0, "max_prefill_cudagraph_capture_size": 0}),
    "host": (TALK, {"calibration": Calibration(host=3.0)}),
    "clocks": (TALK, {"gpu": "h200:flops.bf16=5.5e14"}),
    "kv_cache": (TALK, {"num_gpu_blocks_override": 700}),
    "token_budget": (TALK, {"max_num_batched_tokens": 256, "max_num_seqs": 256}),
    "sequences": (TALK, {"max_num_seqs": 4}),
    "front_end": (TALK, {"calibration": Calibration(request=0.06)}),
    "scheduling": (TALK, {"async_scheduling": False}),
    "prefix_cache": (SHARED, {"enable_prefix_caching": False}),
}


def measured(trace: Trace, fault: dict[str, Any], noise: float = 0.03) -> Trace:
    """What a client would have seen of a server with a fault, with noise on every request."""
    rng = np.random.default_rng(7)
    outcome = simulate(MODEL, trace=trace, frontend="in-process", **{"gpu": GPU, **fault})
    seen = {name: ms * np.exp(rng.normal(0, noise, len(trace))) for name, ms in latencies(outcome).items()}
    return msgspec.structs.replace(trace, measured={"TTFT": seen["ttft"], "TPOT": seen["tpot"]}, source="made up")


def diagnosed(trace: Trace, fault: dict[str, Any], **more: Any) -> Diagnosis:
    seen = measured(trace, fault)

    def replay(change: dict[str, Any]) -> Any:
        return validate(MODEL, measured=seen, **{"gpu": GPU, **change})

    return diagnose(replay, replay({}), MODEL, GPU, {}, **more)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_first(fault: str) -> None:
    found_out = diagnosed(*FAULTS[fault])
    assert not found_out.healthy and found_out.causes, found_out
    first = found_out.causes[0]
    assert first.name == fault, [(cause.name, cause.share) for cause in found_out.causes]
    assert first.share > 0.5 and first.evidence
    assert sum(cause.share for cause in found_out.causes) + found_out.unexplained == pytest.approx(1.0)


def test_a_healthy_server_is_called_healthy() -> None:
    result = diagnosed(TALK, {})
    assert result.healthy and not result.causes and result.unexplained == 1.0
