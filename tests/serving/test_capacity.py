"""The highest rate that holds, and where simulations run."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from inferometer.base.errors import BadValue, UnknownName
from inferometer.base.parallel_map import parallel_map
from inferometer.serving.capacity import CapacityQuestion, capacity_and_summarize, find_capacity
from inferometer.serving.metrics import good_requests, latencies
from inferometer.serving.simulate import simulate
from inferometer.serving.steady_run import RequestSupply
from inferometer.serving.synthetic import scale_to_rate, synthetic
from inferometer.serving.trace import Trace

GOALS = {"ttft": 400.0, "tpot": 25.0}


def some(count: int = 150) -> Trace:
    return synthetic(num_prompts=count, request_rate=10, input_len=300, output_len=60, seed=3)


def test_a_trace_can_go_to_other_processes() -> None:
    """Long simulations do: machines that are busy enough met this with any trace."""
    case = CapacityQuestion.of("llama-2-7b", "h200", GOALS, 0.9, 0.02, {}, {"trace": some(20)}).case
    assert pickle.loads(pickle.dumps(case)).supply.trace.input_tokens.tolist() == [300] * 20


@pytest.mark.slow
def test_the_rate_that_is_found_holds_and_a_little_more_does_not() -> None:
    trace = some()
    capacity = find_capacity("llama-2-7b", "a100-sxm-80gb", trace=trace, goodput=GOALS, jobs=1, precision=0.02)
    assert 0 < capacity.request_rate <= capacity.highest
    assert 0 < capacity.request_rate_low <= capacity.request_rate <= capacity.request_rate_high
    assert capacity.request_rate_high < 1.1 * capacity.request_rate_low and capacity.seeds == 3
    shares = []
    for factor in (0.97, 1.05):
        again = RequestSupply(trace=trace).requests(5000, factor * capacity.request_rate)
        outcome = simulate("llama-2-7b", "a100-sxm-80gb", trace=again)
        shares.append(good_requests(latencies(outcome), GOALS)[500:-500].mean())
    assert shares[0] >= 0.9 > shares[1]
    tried = [one.request_rate for one in capacity.tried]
    assert tried == sorted(tried) and len(set(tried)) == len(tried)
    assert any(one.request_rate == capacity.request_rate and one.holds and one.seeds == 3 for one in capacity.tried)


@pytest.mark.slow
def test_how_many_requests_are_given_does_not_matter() -> None:
    """50 or 10,000 requests have one capacity, and it is what a saturated server answers where limits are loose."""
    rates = []
    for count in (50, 1000, 10_000):
        plan = {"num_prompts": count, "input_len": 512, "output_len": 64}
        limits = {"ttft": 1e6, "tpot": 1e4}
        result = capacity_and_summarize("llama-3.1-8b", "h200", limits, {"jobs": 1}, {}, plan)
        rates.append(result["request_rate"])
    assert rates[0] == rates[1] == rates[2] == result["highest"]
    saturated = simulate("llama-3.1-8b", "h200", trace=synthetic(num_prompts=10_000, input_len=512, output_len=64))
    assert rates[0] == pytest.approx(10_000 / saturated.duration_s, rel=0.03)


def test_a_promise_that_single_requests_break_has_no_rate() -> None:
    capacity = find_capacity("llama-2-7b", "a100-sxm-80gb", trace=some(20), goodput={"ttft": 1.0}, jobs=1)
    assert capacity.request_rate == 0.0 and not any(one.holds for one in capacity.tried)


def test_a_plan_that_does_not_fit_has_no_rate() -> None:
    capacity = find_capacity("llama-3.1-70b", "rtx3090", trace=some(5), goodput=GOALS, jobs=1)
    assert capacity.request_rate == capacity.highest == 0.0 and not capacity.tried


def test_stretched_arrivals_keep_their_shape() -> None:
    trace = some(50)
    twice = scale_to_rate(trace, 20.0)
    assert trace.arrival_s is not None and twice.arrival_s is not None
    assert (len(trace) - 1) / np.ptp(twice.arrival_s) == pytest.approx(20.0)
    assert np.corrcoef(trace.arrival_s, twice.arrival_s)[0, 1] == pytest.approx(1.0)
    none = Trace(input_tokens=trace.input_tokens, output_tokens=trace.output_tokens)
    made = scale_to_rate(none, 5.0, seed=1).arrival_s
    assert made is not None and (made == scale_to_rate(none, 5.0, seed=1).arrival_s).all() and (np.diff(made) > 0).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"goodput": {}}, "goodput"),
        ({"goodput": {"ttft": -1}}, "positive"),
        ({"share": 0}, "share"),
        ({"max_concurrency": 4}, "max_concurrency"),
        ({"jobs": 0}, "jobs"),
        ({"trace": some(1)}, "two requests"),
    ],
)
def test_what_has_no_capacity_is_said(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        find_capacity("llama-2-7b", **{"trace": some(5), "goodput": GOALS, **options})  # type: ignore[arg-type]


def test_names_that_do_not_exist_are_said() -> None:
    with pytest.raises(UnknownName, match="ttft"):
        find_capacity("llama-2-7b", trace=some(5), goodput={"tft": 5})
    with pytest.raises(UnknownName, match="dask"):
        parallel_map(abs, [-1], backend="dusk")


@pytest.mark.slow
def test_processes_and_this_process_agree() -> None:
    assert parallel_map(abs, [-3, 2, -1], jobs=2) == parallel_map(abs, [-3, 2, -1], jobs=1) == [3, 2, 1]


@pytest.mark.slow
def test_a_real_dask_cluster_finds_the_same_rate() -> None:
    distributed = pytest.importorskip("distributed", reason="a cluster of Dask needs dask[distributed]")
    trace, options = some(60), {"goodput": GOALS, "precision": 0.1}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        there = find_capacity(
            "llama-2-7b",
            "a100-sxm-80gb",
            trace=trace,
            backend="dask",
            jobs=2,
            address=cluster.scheduler_address,
            **options,
        )  # type: ignore[arg-type]
    here = find_capacity("llama-2-7b", "a100-sxm-80gb", trace=trace, jobs=2, **options)  # type: ignore[arg-type]
    assert there == here and there.request_rate > 0
