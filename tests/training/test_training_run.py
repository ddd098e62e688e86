"""A whole training run: goodput under failures against a simulation, and the figures that follow from it."""

from __future__ import annotations

import math
import random

import pytest

import inferometer
from inferometer.training.training_run import FailureModel


def simulated_goodput(model: FailureModel, interval: float, segments: int) -> float:
    """Seconds of work over seconds that pass, with failures drawn one by one from an exponential law."""
    draw, clock = random.Random(7), 0.0
    next_failure = draw.expovariate(1 / model.mtbf)
    for _ in range(segments):
        needed = interval + model.checkpoint
        while clock + needed > next_failure:  # work and checkpoint are lost; then a restart, perhaps several
            clock, needed = next_failure, model.restart + interval + model.checkpoint
            next_failure = clock + draw.expovariate(1 / model.mtbf)
            while clock + model.restart > next_failure:
                clock = next_failure
                next_failure = clock + draw.expovariate(1 / model.mtbf)
        clock += needed
    return segments * interval / clock


@pytest.mark.parametrize(
    ("model", "interval"),
    [
        (FailureModel(10_000, 60, 600), 1000.0),
        (FailureModel(3_000, 120, 900), 700.0),
        (FailureModel(500, 5, 50), 400.0),
    ],
)
def test_goodput_is_that_of_a_simulation(model: FailureModel, interval: float) -> None:
    assert model.goodput(interval) == pytest.approx(simulated_goodput(model, interval, 40_000), rel=0.02)


def test_the_optimal_interval_is_the_best() -> None:
    for mtbf, checkpoint in ((10_000.0, 60.0), (100_000.0, 5.0), (2_000.0, 300.0)):
        model = FailureModel(mtbf, checkpoint, 600)
        best = max(model.goodput(mtbf * x / 2000) for x in range(1, 4000))
        assert model.goodput(model.optimal_interval) == pytest.approx(best, rel=1e-3)
        young = math.sqrt(2 * checkpoint * mtbf)
        assert model.goodput(model.optimal_interval) >= model.goodput(young) * (1 - 1e-6)
    assert FailureModel(10.0, 60.0, 1.0).optimal_interval == 10.0  # checkpoints take longer than the machine runs


def test_days_and_dollars_of_a_run() -> None:
    layout = {"gpu": "h100-sxm", "num_gpus": 16, "zero": 1, "recompute": "full", "global_batch_size": 64}
    plain = inferometer.train("llama-3.1-8b", tokens=1e12, **layout)
    fails = inferometer.train("llama-3.1-8b", tokens=1e12, gpu_mtbf=5000, node_mtbf=20_000, **layout)
    assert plain.run is not None and fails.run is not None
    assert plain.plan["data_parallel_size"] == 16
    assert (plain.run.goodput, plain.run.failures, plain.run.checkpoint_interval_s) == (1.0, 0.0, None)
    assert plain.days == pytest.approx(1e12 / plain.tokens_per_second / 86400)
    assert plain.cost == pytest.approx(plain.days * 24 * 16 * plain.device["price_per_hour"])
    assert fails.run.mtbf_hours == pytest.approx(1 / (16 / 5000 + 2 / 20_000))  # rates of GPUs and nodes add up
    assert fails.days == pytest.approx(plain.days / fails.run.goodput)
    given = inferometer.train("llama-3.1-8b", tokens=1e12, gpu_mtbf=5000, checkpoint_interval=60, **layout)
    assert given.run is not None and given.run.goodput < fails.run.goodput  # a checkpoint of a minute every minute
    with pytest.raises(inferometer.BadValue, match="checkpoint_interval must be a number from 1 to"):
        inferometer.train("llama-3.1-8b", tokens=1e12, checkpoint_interval=1e-300)
    with pytest.raises(inferometer.BadValue, match="must be tp 3 × pp 1 × cp 1 = 3 GPUs times"):
        inferometer.train("llama-3.1-8b", num_gpus=16, tensor_parallel_size=3)
