"""Sweeps over training: every row is what `train` says, whatever was shared with the rows before."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran

import inferometer
from inferometer.base.errors import InferometerError

Run = Callable[..., Ran]
AXES: dict[str, Any] = {
    "tensor_parallel_size": [1, 2],
    "pipeline_parallel_size": [1, 2],
    "global_batch_size": "8,16",
    "recompute": "none,full",
    "zero": 1,
    "seq_len": 1024,
}


def test_rows_are_what_train_says() -> None:
    table = inferometer.training_sweep("qwen3-0.6b", "h100-sxm", data_parallel_size=4, **AXES)
    assert len(table) == len(table.points) == 16
    for row in table.points[::3]:
        given = {name: row[name] for name in (*AXES, "data_parallel_size")}
        report = inferometer.train("qwen3-0.6b", "h100-sxm", **given)
        assert row["step_seconds"] == pytest.approx(report.step_seconds, rel=1e-12)
        assert row["total_bytes"] == pytest.approx(report.memory.total_bytes, rel=1e-12)
        assert row["model_flops_utilization"] == pytest.approx(report.model_flops_utilization, rel=1e-12)
        assert (row["feasible"], row["gpus"]) == (report.feasible, report.plan["gpus"])
    best = table.best("tokens_per_second_per_gpu")
    assert best["tokens_per_second_per_gpu"] == max(row["tokens_per_second_per_gpu"] for row in table.feasible)
    assert table.best("step_seconds")["step_seconds"] == min(row["step_seconds"] for row in table.feasible)


def test_points_that_cannot_be_used_have_reasons() -> None:
    """28 layers on 64 stages; a batch of 6 for 4 replicas; a model that does not fit."""
    table = inferometer.training_sweep("qwen3-0.6b", pipeline_parallel_size=[1, 64], global_batch_size=4)
    assert [row["feasible"] for row in table.points] == [True, False]
    assert "needs at least 64 layers" in table.points[1]["reason"] and table.points[1]["step_seconds"] is None
    table = inferometer.training_sweep("qwen3-0.6b", data_parallel_size=4, global_batch_size=[6, 8])
    assert "--global-batch-size 6" in table.points[0]["reason"] and table.points[1]["feasible"]
    table = inferometer.training_sweep("llama-3.1-70b")
    assert "usable per GPU" in table.points[0]["reason"] and table.points[0]["step_seconds"] > 0
    with pytest.raises(InferometerError, match="none of the 1 points"):
        table.best("step_seconds")


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"zero": "0,7"}, "zero must be between 0 and 3"),
        ({"precision": "bf16,foo"}, "unknown precision 'foo'"),
        ({"batch_size": 4}, "unknown axis 'batch_size'"),
        ({"global_batch_size": 6, "data_parallel_size": 4}, "give a multiple of 4"),
        ({"tensor_parallel_size": "1:100000:1", "micro_batch_size": "1:9:1"}, "more than 100,000"),
        ({"seq_len": "many"}, "seq_len takes numbers"),
    ],
)
def test_bad_requests(axes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        inferometer.training_sweep("qwen3-0.6b", **axes)
    assert sentence in str(error.value)


def test_values_with_commas_are_one_value() -> None:
    modules = ["layernorm", "layernorm,mlp"]
    table = inferometer.training_sweep("qwen3-0.6b", recompute="selective", recompute_modules=modules)
    assert table.axes["recompute_modules"] == ("layernorm", "layernorm,mlp")
    assert table.points[0]["total_bytes"] > table.points[1]["total_bytes"]


def test_command_line(run: Run, tmp_path: Path) -> None:
    command = (
        "sweep",
        "qwen3-0.6b",
        "--train",
        "--global-batch-size",
        "4,8",
        "-sp",
        "--no-sequence-parallel",
        "-tp",
        "2",
    )
    ran = run(*command, "--csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert ran.code == 0 and [row["global_batch_size"] for row in rows] == ["4", "4", "8", "8"]
    assert {row["sequence_parallel"] for row in rows} == {"True", "False"}
    document = json.loads(run(*command, "--json").out)
    assert document["schema"] == "inferometer.training_sweep/1" and document["feasible"] == 4
    assert "4 points" in run(*command).out
    file = tmp_path / "points.jsonl"
    assert run(*command, "-o", str(file)).code == 0
    assert [json.loads(line)["gpus"] for line in file.read_text().splitlines()] == [2, 2, 2, 2]
    assert run("sweep", "llama-3.1-70b", "--train", "--json").code == 1
