"""Load over time: windows, the fewest replicas in each, and what static and autoscaled deployments come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.base.errors import InferometerError
from inferometer.inference.request import build_request
from inferometer.search import search as search_module
from inferometer.search.day_plan import WindowSizer, default_target, varies, window_width, windows
from inferometer.search.objective import Objective
from inferometer.search.search import search
from inferometer.search.search_result import LoadWindow
from inferometer.serving.deployment import ServingOptions
from inferometer.serving.replica_pool import build_pool
from inferometer.serving.trace import Trace

MODEL, GPU = "llama-3.1-8b", "l40s"


def requests(rates: list[float], width: float = 100.0, seed: int = 0, lengths: tuple[int, int] = (600, 40)) -> Trace:
    """Poisson arrivals at one rate after the other, each for so many seconds."""
    rng = np.random.default_rng(seed)
    times = [
        start * width + np.sort(rng.uniform(0, width, rng.poisson(rate * width))) for start, rate in enumerate(rates)
    ]
    arrival = np.concatenate(times)
    return Trace(
        input_tokens=np.full(len(arrival), lengths[0]),
        output_tokens=np.full(len(arrival), lengths[1]),
        arrival_s=arrival - arrival[0],
        source="day.csv",
    )


def sizer_for(trace: Trace, slo: dict[str, float]) -> WindowSizer:
    pool = build_pool(build_request(MODEL, GPU, frontend="http"), 1, trace)
    return WindowSizer(trace, [("both", pool)], 1, Objective("throughput", slo, 0.9), ServingOptions())


# ------------------------------------------------------------------ windows


def test_windows_hold_every_request_once() -> None:
    trace = Trace(
        input_tokens=np.arange(1, 6), output_tokens=np.full(5, 2), arrival_s=np.array([5.0, 6.0, 14.9, 36.0, 40.0])
    )
    spans = windows(trace, 10.0)
    assert [(one.start_s, one.duration_s, one.first, one.last) for one in spans] == [
        (0.0, 10.0, 0, 3),
        (10.0, 10.0, 3, 3),
        (20.0, 10.0, 3, 3),
        (30.0, 5.0, 3, 5),
    ]


def test_windows_are_as_wide_as_requests_are_rare() -> None:
    assert window_width(requests([10.0] * 36)) == 60.0  # an hour of 36,000 requests
    assert window_width(requests([0.2] * 360)) == 900.0  # ten hours of 7,200: 180 in a quarter of an hour
    assert window_width(requests([0.01] * 864)) == 43200.0


def test_a_load_varies_if_it_is_no_chance() -> None:
    even, day = requests([5.0] * 40), requests([2.0, 8.0] * 20)
    assert not varies(even, 100.0) and varies(day, 100.0)
    assert not varies(requests([2.0, 8.0]), 100.0)  # too short to be a day


@pytest.mark.slow
def test_the_fewest_replicas_are_those_of_a_plain_loop() -> None:
    trace = requests([4.0, 40.0, 90.0, 12.0], width=40.0)
    sizer = sizer_for(trace, {"ttft": 0.4, "tpot": 0.06})
    sized = sizer.sized(windows(trace, 40.0))
    for span, window in zip(windows(trace, 40.0), sized, strict=True):
        rows = slice(span.first, span.last)
        assert window.replicas == next(n for n in range(1, 20) if sizer.run(rows, n).good >= 0.9)
        assert window.holds and window.good >= 0.9 and window.gpus == window.replicas
    assert sized[2].replicas > sized[1].replicas > sized[0].replicas


def test_a_window_without_requests_needs_nothing_and_one_without_hope_says_so() -> None:
    trace = requests([3.0, 0.0, 3.0], width=30.0)
    sizer = sizer_for(trace, {"ttft": 0.4})
    assert [one.replicas for one in sizer.sized(windows(trace, 30.0))] == [1, 0, 1]
    hopeless = sizer_for(trace, {"ttft": 0.001}).size(windows(trace, 30.0)[0])
    assert not hopeless.holds and hopeless.replicas == 1 and hopeless.good == 0.0


@pytest.mark.slow
def test_longer_prompts_need_more_replicas_at_the_same_rate() -> None:
    """Not the rate alone: lengths vary with the hour, too."""
    short, long = requests([12.0], lengths=(200, 40)), requests([12.0], lengths=(3000, 40))
    needed = [sizer_for(one, {"ttft": 1.0}).size(windows(one, 100.0)[0], 1).replicas for one in (short, long)]
    assert needed[0] < needed[1]


def test_the_target_is_a_little_below_what_busy_replicas_hold() -> None:
    def window(replicas: int, concurrency: float, holds: bool = True) -> LoadWindow:
        more = {"start_s": 0.0, "duration_s": 60.0, "requests": 1, "request_rate": 1.0, "input_len": 1.0}
        return LoadWindow(
            **more,  # type: ignore[arg-type]
            output_len=1.0,
            replicas=replicas,
            gpus=replicas,
            good=1.0,
            holds=holds,
            concurrency=concurrency,
        )

    night, noon = window(1, 90.0), [window(3, 50.0), window(3, 75.0), window(2, 45.0), window(3, 999.0, False)]
    assert default_target([night, *noon, window(0, 0.0)]) == pytest.approx(0.8 * 30.0)
    assert default_target([window(1, 0.2)]) == 1.0


# ------------------------------------------------------------------ a day in a search


@pytest.fixture(scope="module")
def found() -> Any:
    """A quiet time, a busy one, and a quiet one again, of five minutes each."""
    trace = requests([4.0] * 3 + [30.0] * 3 + [4.0] * 3, width=100.0, seed=3)
    space: dict[str, Any] = {"mode": "aggregated", "quantization": "bf16", "kv_cache_dtype": "auto"}
    space |= {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "max_num_batched_tokens": 2048}
    return search(
        MODEL,
        GPU,
        num_gpus=8,
        trace=trace,
        goodput="ttft:1000,tpot:60",
        window=100,
        finalists=1,
        autoscale={"startup": 30},
        max_num_seqs=256,
        **space,
    )


@pytest.mark.slow
def test_a_day_costs_what_its_hours_cost(found: Any) -> None:
    day = found.day
    by_name = {policy.name.partition(" (")[0]: policy for policy in day.policies}
    peak, bound = by_name["static, for the peak"], by_name["lower bound"]
    for policy in day.policies:
        assert policy.cost == pytest.approx(policy.gpu_hours * day.price_per_hour)
        assert policy.mean_replicas * day.gpus_per_replica * day.span_s / 3600 == pytest.approx(policy.gpu_hours)
        assert bound.gpu_hours <= policy.gpu_hours + 1e-9 or policy.good < found.goodput_share
    assert peak.gpu_hours == pytest.approx(day.peak.replicas * day.span_s / 3600)
    needed = sum(one.replicas * one.duration_s for one in day.windows) / 3600
    assert bound.gpu_hours == pytest.approx(needed)
    assert by_name["scheduled, a start-up ahead"].gpu_hours < peak.gpu_hours
    assert peak.good >= by_name["autoscaled"].good  # what reacts is late
    assert day.startup_s == 30.0 and by_name["autoscaled"].peak_replicas <= day.max_replicas == day.peak.replicas


@pytest.mark.slow
def test_the_windows_held_one_after_the_other_hold(found: Any) -> None:
    """Sized apart, simulated in sequence with what each leaves to the next."""
    bound = found.day.policies[-1]
    assert bound.name == "lower bound" and bound.good >= found.goodput_share
    assert [one.replicas for one in found.day.windows] == bound.replicas
    assert max(bound.replicas) > min(bound.replicas) == 1


@pytest.mark.slow
def test_an_autoscaler_has_no_more_gpus_than_there_are(found: Any) -> None:
    assert found.day.max_replicas <= 8 and not found.day.notes
    trace = requests([4.0] * 3 + [30.0] * 3, width=100.0, seed=3)
    one = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "max_num_batched_tokens": 2048, "max_num_seqs": 256}
    few = search(
        MODEL,
        GPU,
        num_gpus=found.winner.gpus,
        trace=trace,
        goodput="ttft:1000,tpot:60",
        goodput_share=0.5,
        window=100,
        finalists=1,
        mode="aggregated",
        quantization="bf16",
        kv_cache_dtype="auto",
        **one,  # type: ignore[arg-type]
    ).day
    assert few is not None and few.max_replicas <= found.winner.gpus
    assert bool(few.notes) == (few.peak.gpus > found.winner.gpus)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"window": -1.0}, "window must be from 1 to 1e7 seconds"),
        ({"window": 60.0, "request_rate": "max"}, "needs a trace with arrivals"),
        ({"autoscale": "tarjet=1"}, "did you mean target"),
    ],
)
def test_windows_and_autoscalers_that_make_no_sense(kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        search(MODEL, GPU, num_gpus=1, trace=requests([3.0]), goodput="ttft:500", **kwargs)
    assert sentence in str(error.value).replace("`", "")


@pytest.fixture
def _searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search in several forms, by the width of its windows."""
    made: dict[Any, Any] = {}
    searched = search_module.search_with_table

    def search_once(*args: Any, **arguments: Any) -> Any:
        key = arguments.get("window")
        if key not in made:
            made[key] = searched(*args, **arguments)
        return made[key]

    monkeypatch.setattr(search_module, "search_with_table", search_once)


@pytest.mark.slow
@pytest.mark.usefixtures("_searched_once")
def test_the_command_shows_a_day(run: Callable[..., Any], tmp_path: Path) -> None:
    trace = requests([3.0, 12.0, 3.0], width=60.0)
    assert trace.arrival_s is not None
    rows = "".join(f"{time:.3f},600,40\n" for time in trace.arrival_s)
    (tmp_path / "day.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    command = ("search", MODEL, "--gpu", GPU, "--num-gpus", "2", "--trace", str(tmp_path / "day.csv"), "-tp", "1")
    limits = ("--goodput", "ttft:1000", "--window", "60", "--mode", "aggregated", "-q", "bf16")
    shown = run(*command, *limits, "--plot", str(tmp_path / "out"))
    assert "in 3 windows of 1 min" in shown.out and "lower bound" in shown.out and "GPU-hours" in shown.out
    assert (tmp_path / "out" / "day.png").stat().st_size > 20_000
    day = json.loads(run(*command, *limits, "--json").out)["day"]
    assert len(day["windows"]) == 3 and day["policies"][-1]["name"] == "lower bound"
    assert json.loads(run(*command, *limits[:2], *limits[4:], "--json").out)["day"] is None  # too short for a day
