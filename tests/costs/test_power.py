"""Watts from activity, and what a power cap does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferometer
from inferometer import InferometerError
from inferometer.costs.kernels.source import Terms
from inferometer.costs.power import Activity, least_cap, power_model
from inferometer.specs.catalog import hardware

share = st.floats(0.0, 1.0)
DEVICES = ("h100-sxm", "h200", "l4", "mi300x")


def model_of(device: str, cap: float = 1.0) -> Any:
    """Under a cap that is a share between the lowest and none."""
    spec = hardware(device)
    return power_model(spec, least_cap(spec) + cap * (spec.power - least_cap(spec)))


@given(st.sampled_from(DEVICES), share, share, share, share, share)
def test_watts_are_between_idle_and_the_cap_and_work_takes_energy(device, cap, busy, compute, memory, more):
    model = model_of(device, cap)
    one = Activity(1.0, busy, compute, memory)
    watts = model.watts(one)
    assert model.idle <= watts <= model.limit
    for field in ("busy", "compute", "memory"):
        other = one._replace(**{field: getattr(one, field) + more})
        assert model.watts(other) >= watts * (1 - 1e-12)
    longer = one._replace(seconds=1.0 + more)
    assert model.watts(longer) * longer.seconds >= watts * (1 - 1e-12)


@given(st.sampled_from(DEVICES), share, share, share, share)
def test_a_lower_cap_is_never_faster_and_the_devices_own_power_is_no_cap(device, compute, memory, high, low):
    terms = Terms(compute, memory, 0.0, 0.0)
    low, high = sorted((low, high))
    slow, fast = (model_of(device, cap).slowdown(terms, 1.0) for cap in (low, high))
    assert slow >= fast * (1 - 1e-12) and fast >= 1 - 1e-12
    assert model_of(device).slowdown(terms, 1.0) == pytest.approx(1.0)


def test_a_cap_slows_prompts_not_decoding_and_says_so():
    plan: dict[str, Any] = {"gpu": "h100", "batch_size": 16, "input_len": 1024, "output_len": 64}
    free, own, capped = (inferometer.analyze("llama-3.1-8b", **plan, power_cap=w) for w in (None, 700, 350))
    assert own.metrics == free.metrics
    assert capped.metrics.ttft_ms > 1.15 * free.metrics.ttft_ms
    assert free.metrics.tpot_ms < capped.metrics.tpot_ms < 1.05 * free.metrics.tpot_ms
    assert capped.metrics.watts_per_gpu < 350 < free.metrics.watts_per_gpu
    assert capped.metrics.joules_per_output_token < free.metrics.joules_per_output_token
    sentence = next(w for w in capped.warnings if "power cap of 350 W" in w)
    assert "TTFT +" in sentence and "J per output token -" in sentence
    assert any("changes nothing" in warning for warning in own.warnings)


def test_waiting_for_the_host_takes_fewer_watts_than_computing():
    small, large = (
        inferometer.analyze(name, gpu="h100", batch_size=1, input_len=16, output_len=64).metrics.watts_per_gpu
        for name in ("qwen3-0.6b", "llama-3.1-8b")
    )
    assert small < 0.9 * large


def test_a_cap_that_no_clock_can_keep_is_refused():
    with pytest.raises(InferometerError, match="at least 193 W for h100-sxm, not 150"):
        inferometer.analyze("llama-3.1-8b", gpu="h100", power_cap=150)
