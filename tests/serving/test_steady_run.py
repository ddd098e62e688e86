"""Does a queue grow, and was a run long enough to tell?"""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.serving.deployment import ServingOptions
from inferometer.serving.outcome import Outcome
from inferometer.serving.run_warnings import queue_grows, too_short
from inferometer.serving.simulate import simulate
from inferometer.serving.steady_run import CONSECUTIVE, RateRun, RequestSupply, SteadyServer
from inferometer.serving.synthetic import synthetic


def run_at(rate: float, count: int = 1500, **kwargs: object) -> Outcome:
    options = {"input_len": 512, "output_len": 64, **kwargs}
    return simulate("llama-3.1-8b", "h200", trace=synthetic(num_prompts=count, request_rate=rate, **options))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "grows"), [(20, False), (55, False), (62, False), (80, True), (150, True)])
def test_a_queue_grows_beyond_what_is_answered(rate: float, grows: bool) -> None:
    outcome = run_at(rate)  # all at once: 68 requests/s
    assert queue_grows(outcome) is grows


def test_the_longest_answer_is_no_backlog() -> None:
    rng = np.random.default_rng(0)
    outcome = run_at(5.0, 200)
    late = outcome.finished_s.copy()
    late[rng.integers(0, 200)] += 1000.0
    outcome.finished_s = late
    assert not queue_grows(outcome)


def test_requests_at_once_have_no_rate() -> None:
    outcome = run_at(float("inf"), 300)
    assert not queue_grows(outcome) and too_short(outcome)


@pytest.mark.slow
def test_a_run_of_some_latencies_is_too_short() -> None:
    assert too_short(run_at(60.0, 100))
    assert not too_short(run_at(20.0, 400))
    long_answers = run_at(20.0, 400, output_len=2000)
    assert too_short(long_answers) and not queue_grows(long_answers), "the batch still fills up: nothing can be said"


class NoisyServer(SteadyServer):
    """One whose latency grows as the rate does and is at its limit at 24 requests/s; short runs are off by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__([], ServingOptions(), RequestSupply(), {"ttft": 1.0}, 0.9)
        self.parts, self.rng = 1, np.random.default_rng(seed)

    def run_draw(self, rate: float, draw: int, e2el: float, poisson_requests: int = 1500) -> tuple[RateRun, float]:
        """The rate's logarithm, and noise."""
        parts = self.rng.normal(np.log(rate / 24.0), 0.04 * (1500 / poisson_requests) ** 0.5, CONSECUTIVE)
        error, kept = parts.std(ddof=1) / CONSECUTIVE**0.5, np.linspace(-0.09, 0.01, 2000)
        return RateRun(rate, {}, np.exp(parts.mean() + kept), (parts.mean(),), error, 0.9, 1000.0), e2el


def test_two_rates_that_are_hardly_apart_do_not_say_how_steep_latency_is() -> None:
    """By chance one keeps the limits and the other does not: that is no cliff where the highest rate could be."""
    best = [one for one in (NoisyServer(seed).max_rate(20.0) for seed in range(60)) if one]
    inside = [one.low <= 24.0 <= one.high for one in best]
    assert len(best) == 60 and np.mean(inside) > 0.85, np.mean(inside)
    assert np.std([one.run.request_rate / 24.0 for one in best]) < 0.02
