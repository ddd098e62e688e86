"""What moves a training step: laws of elasticities, targets that are kept, and the command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest
from conftest import Ran

import inferometer
from inferometer.base.errors import InferometerError

Run = Callable[..., Ran]
STEP = {"data_parallel_size": 8, "zero": 1, "global_batch_size": 16, "seq_len": 2048}


def test_laws() -> None:
    """More of a speed never takes longer; all speeds at once take their whole share; unused figures move nothing."""
    result = inferometer.training_sensitivity("llama-3.1-8b", tensor_parallel_size=2, **STEP)
    report = inferometer.train("llama-3.1-8b", tensor_parallel_size=2, **STEP)
    assert result.metrics.step_seconds == pytest.approx(report.step_seconds, rel=1e-12)
    assert result.metrics.model_flops_utilization == pytest.approx(report.model_flops_utilization, rel=1e-12)
    for key, figure in result.figures.items():
        change = figure.up.change["step_seconds"]
        assert change is not None
        slower = "latency" in key or figure.of == "engine"
        assert change >= -1e-12 if slower else change <= 1e-12, key
        elasticity, rate = figure.up.elasticity["step_seconds"], figure.up.elasticity["tokens_per_second"]
        assert elasticity == pytest.approx(-(rate or 0.0), abs=1e-9)
    everything = result.figures["speeds"].up.elasticity["step_seconds"]
    assert everything is not None and -1.0001 < everything < -0.1
    assert result.figures["links.nvlink.bandwidth"].used and not result.figures["links.pcie.bandwidth"].used
    assert "depends most on" in result.summary
    power = result.figures["power"]  # long products of an H100 draw all that they may
    assert power.used and power.up.change["step_seconds"] < -0.01


def test_network_counts_where_replicas_span_nodes() -> None:
    one = inferometer.training_sensitivity("llama-3.1-8b", **STEP)
    two = inferometer.training_sensitivity("llama-3.1-8b", tensor_parallel_size=8, **{**STEP, "data_parallel_size": 2})
    assert not one.figures["links.network.bandwidth"].used and two.figures["links.network.bandwidth"].used


@pytest.mark.slow
def test_a_target_is_kept_with_its_solution() -> None:
    limit = 0.97 * inferometer.train("llama-3.1-8b", **STEP).step_seconds
    result = inferometer.training_sensitivity("llama-3.1-8b", target={"step": limit, "mfu": 0.01}, **STEP)
    solution = result.targets["step"].figures["memory_bandwidth"]
    assert solution.status == "reached" and solution.value is not None
    faster = inferometer.train("llama-3.1-8b", f"h100-sxm:memory_bandwidth={solution.value!r}", **STEP)
    assert faster.step_seconds == pytest.approx(limit, rel=1e-3)
    assert result.targets["mfu"].holds
    unreachable = inferometer.training_sensitivity("llama-3.1-8b", target={"step": 1e-6}, **STEP)
    assert not unreachable.feasible and "no single figure" in str(unreachable.reason)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"target": "tpot:4"}, "target metric 'tpot'"),
        ({"target": "step"}, "pairs such as step:5"),
        ({"target": "days:3"}, "needs tokens"),
        ({"zero": 9}, "zero must be between"),
    ],
)
def test_bad_requests(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        inferometer.training_sensitivity("llama-3.1-8b", **given)  # type: ignore[arg-type]
    assert sentence in str(error.value)


@pytest.mark.slow
def test_command_line(run: Run) -> None:
    command = ("sensitivity", "--train", "qwen3-0.6b", "--tokens", "1e9", "--target", "days:30")
    ran = run(*command)
    assert ran.code == 0 and "The run ≤ 30" in ran.out and "change in %" in ran.out
    rows = list(csv.DictReader(io.StringIO(run(*command, "--csv").out)))
    assert {row["figure"] for row in rows} >= {"flops", "memory_bandwidth", "memory", "speeds"}
    document = json.loads(run(*command, "--json").out)
    assert document["schema"] == "inferometer.training_sensitivity/1" and document["targets"]["days"]["holds"]
    assert run("sensitivity", "--train", "llama-3.1-70b").code == 1
