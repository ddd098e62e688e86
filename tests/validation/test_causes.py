"""What may be wrong with a server: levels that its load can feel, counters that rule out or show, and the gap."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from inferometer.base.errors import BadValue
from inferometer.serving.metrics import latencies
from inferometer.serving.metrics_page import ServerStatistics
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.specs.structs import Calibration
from inferometer.validation.causes import CauseKind, cause_kinds, merged
from inferometer.validation.doctor import diagnose
from inferometer.validation.latency_gap import StepErrors, as_change, gap, latency_logs
from inferometer.validation.validate import Validation, compare

MODEL, GPU = "llama-3.1-8b", "h200"
TRAFFIC = synthetic(num_prompts=24, request_rate=8.0, input_len="uniform:min=100,max=6000", output_len=40, seed=2)
OUTCOME = simulate(MODEL, GPU, trace=TRAFFIC, frontend="in-process")


def validation(slower: float = 1.0, change: dict[str, Any] | None = None) -> Validation:
    """Measured latencies that are so many times the predicted ones, beside a simulation with a change."""
    seen = latencies(OUTCOME)
    trace = msgspec.structs.replace(
        TRAFFIC, measured={"TTFT": seen["ttft"] * slower, "TPOT": seen["tpot"] * slower}, source="made up"
    )
    outcome = simulate(MODEL, GPU, trace=TRAFFIC, frontend="in-process", **change) if change else OUTCOME
    return compare(trace, outcome)


def kinds(server: ServerStatistics | None = None, **plan: Any) -> dict[str, CauseKind]:
    return {kind.name: kind for kind in cause_kinds(validation(1.2), MODEL, GPU, plan, server)}


def test_levels_are_below_what_the_load_needs() -> None:
    tried = kinds()
    planned = OUTCOME.kv_cache_tokens * float(OUTCOME.series["kv_used"].max())
    longest = int((TRAFFIC.input_tokens + TRAFFIC.output_tokens).max())
    cache = tried["kv_cache"]
    assert cache.levels and all(longest <= level * 16 < planned for level in cache.levels)
    assert cache.change(0.0)["num_gpu_blocks_override"] * 16 >= longest, "one request must fit"
    assert tried["token_budget"].levels == (4096, 2048, 1024, 512, 256)
    peak = float(OUTCOME.series["running"].max())
    assert all(1 <= level < peak for level in tried["sequences"].levels)
    assert "prefix_cache" not in tried, "the requests share nothing"


def test_what_a_plan_does_without_is_no_cause() -> None:
    without = {"max_cudagraph_capture_size": 0, "max_prefill_cudagraph_capture_size": 0, "async_scheduling": False}
    assert {"eager", "scheduling"} <= set(kinds()) and not {"eager", "scheduling"} & set(kinds(**without))
    assert kinds(max_num_batched_tokens=512)["token_budget"].levels == (256,)


def test_the_largest_step_bounds_the_token_budget() -> None:
    seen = ServerStatistics(seconds=60.0, largest_step_tokens=2048.0)
    budget = kinds(seen)["token_budget"]
    assert budget.levels == (4096, 2048) and not budget.contradicted
    assert budget.shown is not None and budget.shown.level == 2048
    longer = int((TRAFFIC.input_tokens > 1.5 * 2048).sum())
    assert f"{longer} of 24 prompts are over 1.5 times as long" in budget.shown.sentence
    cached = msgspec.structs.replace(seen, prefix_cache_hit_rate=0.5)
    assert kinds(cached)["token_budget"].shown is None, "parts of the prompts came from the cache"
    large = ServerStatistics(seconds=60.0, largest_step_tokens=8192.0)
    assert kinds(large)["token_budget"].contradicted == "it computed a step of 8,192 tokens"


def test_counters_rule_out_and_show() -> None:
    idle = ServerStatistics(seconds=60.0, kv_cache_usage=0.2, preemptions=0.0, queue_ms=0.1, enforce_eager=False)
    assert {name for name, kind in kinds(idle).items() if kind.contradicted} == {"eager", "kv_cache", "sequences"}
    small = ServerStatistics(seconds=60.0, kv_cache_tokens=16_000.0, preemptions=4.0, enforce_eager=True)
    tried = kinds(small)
    assert tried["eager"].shown is not None and tried["kv_cache"].shown is not None
    assert tried["kv_cache"].shown.level == 1000 and "holds 16,000 tokens" in tried["kv_cache"].shown.sentence
    assert (
        kinds(ServerStatistics(seconds=60.0, kv_cache_tokens=OUTCOME.kv_cache_tokens * 0.9))["kv_cache"].shown is None
    )


def test_first_tokens_that_are_all_late_are_said() -> None:
    assert kinds()["front_end"].predicted.startswith("9 of 10 first tokens come at least ")
    on_time = {kind.name: kind for kind in cause_kinds(validation(0.9), MODEL, GPU, {}, None)}
    assert on_time["front_end"].predicted == ""


def test_changes_join() -> None:
    both = merged({"calibration": Calibration(host=2.0, request=0.01)}, {"calibration": Calibration(host=1.5)})
    assert both["calibration"].host == 3.0 and both["calibration"].request == 0.01
    assert merged({"max_num_seqs": 4}, {"calibration": Calibration(host=2.0)}).keys() == {"max_num_seqs", "calibration"}
    assert kinds()["token_budget"].rounded(1001.0) == 1008 and kinds()["token_budget"].rounded(5.0) == 64


def test_gap_is_a_mean_logarithm() -> None:
    same, off = validation(), validation(1.1)
    assert gap(latency_logs(same, same)) == 0.0
    assert gap(latency_logs(off, off)) == pytest.approx(math.log(1.1))
    off.predicted["ttft"] = np.full(24, np.nan)  # most requests are lost
    assert gap(latency_logs(off, off)) == pytest.approx((2 * math.log(1.1) + 1.5) / 3)


@pytest.mark.slow
def test_step_errors_that_are_usual_are_found() -> None:
    seen = latencies(simulate(MODEL, GPU, trace=TRAFFIC, frontend="in-process", calibration=Calibration(decode=1.04)))
    trace = msgspec.structs.replace(TRAFFIC, measured={"TTFT": seen["ttft"], "TPOT": seen["tpot"]}, source="made up")

    def replay(change: dict[str, Any]) -> Validation:
        return compare(trace, simulate(MODEL, GPU, trace=TRAFFIC, frontend="in-process", **change))

    before = replay({})
    errors, left = StepErrors(replay, before, 1.0).fit(latency_logs(before, before))
    assert errors["decode"] == pytest.approx(math.log(1.04), abs=0.011)
    assert left < gap(latency_logs(before, before)) / 3, "24 requests, whose effects hardly add up"
    narrow, _ = StepErrors(replay, before, 0.1).fit(latency_logs(before, before))
    assert narrow["decode"] == pytest.approx(0.008), "a calibrated machine is allowed less"
    assert as_change({"decode": 0.0, "request": 0.0}) == {}
    assert as_change({"host": math.log(2.0)})["calibration"] == Calibration(host=2.0)


def test_requests_of_which_none_completes_have_no_diagnosis() -> None:
    """Nor do measurements without TTFT and TPOT: there is nothing to explain, and no server is called healthy by it."""
    nothing = validation(change={"max_model_len": 16})
    assert gap(latency_logs(nothing, nothing)) > 1, "lost requests are no good fit"
    for before in (nothing, compare(msgspec.structs.replace(nothing.trace, measured={"E2E": np.ones(24)}), OUTCOME)):
        with pytest.raises(BadValue, match="a diagnosis needs measured TTFT or TPOT of requests that the simulation"):
            diagnose(lambda _: nothing, before, MODEL, GPU, {})


def test_step_errors_of_a_simulation_that_completes_nothing() -> None:
    """Where a cause rejects every request, the usual errors of step times explain nothing of it."""
    before, nothing = validation(1.2), validation(change={"max_model_len": 16})
    errors, left = StepErrors(lambda _: before, before, 1.0).fit(latency_logs(before, nothing))
    assert not any(errors.values()) and left > 1
