"""The search for training layouts: brute force over the same layouts, bounds that hold, reasons, and commands."""

from __future__ import annotations

import itertools
import json
import random
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran

import inferometer
from inferometer.base.errors import BadValue, InferometerError
from inferometer.search.launch.megatron_command import stage_text
from inferometer.search.training_bounds import TrainingBounds, fullest_moment
from inferometer.search.training_space import build_problem, layouts
from inferometer.training.iteration import iteration_time, stage_times
from inferometer.training.pipeline_layout import layout_counts
from inferometer.training.training_memory import fullest_stage

Run = Callable[..., Ran]
STEP = {"global_batch_size": 32, "seq_len": 4096}
NO_OTHER = {"sequence_parallel": False, "tensor_parallel_size": 1, "context_parallel_size": 1, "interleave": 1}
FLAGS = tomllib.loads((Path(__file__).parent / "engine_flags.toml").read_text(encoding="utf-8"))


def brute_force(model: str, gpu: str, num_gpus: int, axes: dict[str, list[Any]], **given: Any) -> list[Any]:
    """`train` for every combination of sizes, those that fit by their step time."""
    reports = []
    for values in itertools.product(*axes.values()):
        try:
            report = inferometer.train(model, gpu, num_gpus=num_gpus, **given, **dict(zip(axes, values, strict=True)))
        except InferometerError:  # sizes that do not make up the GPUs, or the batch
            continue
        if report.feasible:
            reports.append(report)
    return sorted(reports, key=lambda report: report.step_seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "axes"),
    [
        (
            "qwen3-0.6b",
            "h100-sxm:memory=16e9",
            8,
            {
                "tensor_parallel_size": [1, 2],
                "pipeline_parallel_size": [1, 4],
                "interleave": [1, 7],
                "micro_batch_size": [1, 4],
                "recompute": ["none", "full"],
                "zero": [1],
            },
        ),
        (
            "qwen3-30b-a3b",
            "h200",
            16,
            {
                "pipeline_parallel_size": [2, 5, 8],
                "context_parallel_size": [1, 2],
                "expert_model_parallel_size": [1, 8],
                "micro_batch_size": [2],
                "recompute": ["none", "full"],
                "zero": [0, 3],
            },
        ),
    ],
)
def test_the_winner_is_that_of_brute_force(model: str, gpu: str, num_gpus: int, axes: dict[str, list[Any]]) -> None:
    result = inferometer.training_search(model, gpu, num_gpus=num_gpus, **{**NO_OTHER, **axes}, **STEP)
    every = brute_force(model, gpu, num_gpus, axes, **STEP)
    assert result.counts["layouts_too_large"] > 0 and len(every) > 10  # some fit, some do not
    expected = [report.step_seconds for report in every[: len(result.plans)]]
    assert [plan.step_seconds for plan in result.plans] == pytest.approx(expected, rel=1e-12)
    assert result.winner is not None and result.winner.memory_bytes == pytest.approx(every[0].memory.total_bytes)
    front, least = [], float("inf")
    for report in every:  # fastest first
        if report.memory.total_bytes < least * (1 - 1e-12):
            least = report.memory.total_bytes
            front.append(report.step_seconds)
    assert [plan.step_seconds for plan in result.front] == pytest.approx(front, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama-3.1-70b", {"num_gpus": 256, "seq_len": 16384, "global_batch_size": 256}),
        ("deepseek-v3", {"num_gpus": 512, "seq_len": 4096, "global_batch_size": 1024, "zero": [0, 1, 2, 3]}),
        (
            "gemma-3-4b",
            {"num_gpus": 32, "global_batch_size": 64, "recompute_method": "block", "recompute_num_layers": 2},
        ),
        ("llama-3.1-8b", {"num_gpus": 8, "global_batch_size": 32, "lora_rank": 16, "seq_len": 4096}),
        ("deepseek-v3", {"num_gpus": 256, "global_batch_size": 512, "mtp_num_layers": 2, "precision": "fp8-block"}),
        ("gpt-2", {"num_gpus": 16, "global_batch_size": 64, "attention": "eager", "interleave": [1, 2, 3]}),
    ],
)
def test_bounds_hold(model: str, given: dict[str, Any]) -> None:
    """No layout is faster, or needs less, than its bounds say; and they are near enough to be of use."""
    problem = build_problem(model, "h100-sxm", given)
    bounds, legal = TrainingBounds(problem), layouts(problem)[0]
    for layout in random.Random(5).sample(legal, 6):
        training = problem.training(layout)
        seconds = iteration_time(training, stage_times(training))[0].total
        assert bounds.least_seconds(layout) <= seconds
        assert 0.3 * seconds <= bounds.step_seconds(layout) <= seconds, layout
        needed = fullest_stage(training)[0].total
        assert 0.3 * needed <= bounds.memory(layout) <= needed, layout


def test_fullest_moment_of_a_schedule() -> None:
    """The first of 4 ranks keeps 4 micro-batches; of 2 × 2 virtual stages 2 and 3 before it first goes back."""
    assert fullest_moment(0, 4, 1, 32).in_flight == (4,)
    assert fullest_moment(3, 4, 1, 32).in_flight == (1,)
    assert fullest_moment(0, 2, 2, 8) == ((3, 2), 1)


def test_all_layouts_use_all_gpus() -> None:
    problem = build_problem("llama-3.1-8b", "h100-sxm", {"num_gpus": 24, "global_batch_size": 48, "seq_len": 8192})
    legal, rejected = layouts(problem)
    every = [*legal, *(one.layout for one in rejected)]
    assert len(set(every)) == len(every) > 100
    assert all(one.tp * one.cp * one.pp * one.dp == 24 for one in every)
    assert {one.tp for one in every} == {1, 2, 4, 8} and {one.dp for one in every} >= {1, 3, 12}
    assert all(48 % (one.dp * one.micro_batch_size) == 0 for one in legal)
    assert {one.kind for one in rejected} >= {"the global batch does not divide into micro-batches"}


@pytest.mark.slow
def test_what_is_given_is_kept() -> None:
    result = inferometer.training_search(
        "llama-3.1-8b", num_gpus=16, tensor_parallel_size=4, zero="1", recompute="full", micro_batch_size=[2], **STEP
    )
    assert result.winner is not None
    assert result.winner.arguments["tensor_parallel_size"] == 4 and result.space["tp"] == [4]
    assert {plan.arguments["recompute"] for plan in result.plans} == {"full"}
    report = inferometer.train("llama-3.1-8b", **STEP, **result.winner.arguments)
    assert report.step_seconds == pytest.approx(result.winner.step_seconds, rel=1e-12)
    assert report.model_flops_utilization == pytest.approx(result.winner.model_flops_utilization)


@pytest.mark.slow
def test_nothing_fits_and_what_would() -> None:
    result = inferometer.training_search("llama-3.1-70b", "l4", num_gpus=8, tensor_parallel_size=8, **STEP)
    assert not result.feasible and result.winner is None
    assert "the nearest is tp8" in result.reason and "usable per GPU" in result.reason
    assert set(result.rejections) == {"does not fit in memory"}
    more = next(one for one in result.relaxations if one.change.startswith("--num-gpus"))
    wider = inferometer.training_search(
        "llama-3.1-70b", "l4", num_gpus=int(more.change.split()[1]), tensor_parallel_size=8, **STEP
    )
    assert wider.feasible


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "needs global_batch_size"),
        ({"global_batch_size": 8, "seq_len": [1024, 2048]}, "must be one number"),
        ({"global_batch_size": 8, "recompute": "some"}, "allowed: full, none, selective"),
        ({"global_batch_size": 8, "tensor_parallel_size": 0}, "tensor_parallel_size must be"),
        ({"global_batch_size": 8, "pipeline_model_parallel_layout": "Ett|ttL"}, "unknown argument"),
        ({"global_batch_size": 8, "num_gpus": 9, "nodes": 1}, "exceeds what 1 node of 8 GPUs have"),
        ({"global_batch_size": 8, "recompute": "none", "recompute_modules": "mlp"}, "is for recompute selective"),
    ],
)
def test_bad_requests(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        inferometer.training_search("qwen3-0.6b", **given)
    assert sentence in str(error.value)


def test_no_layout_of_given_sizes() -> None:
    result = inferometer.training_search("qwen3-0.6b", num_gpus=8, tensor_parallel_size=3, global_batch_size=8)
    assert "tp × cp × pp × dp must be 8" in result.reason and not result.plans
    with pytest.raises(BadValue):
        inferometer.training_search("qwen3-0.6b", num_gpus=8, global_batch_size=8, zero=4)


# ------------------------------------------------------------------ the command that starts the winner


def megatron(model: str, **given: Any) -> dict[str, list[str]]:
    """The flags of pretrain_gpt.py and their values; all of them exist."""
    result = inferometer.training_search(model, **given)
    line = result.commands["megatron-lm"][-1]
    words = shlex.split(line)
    at = words.index("pretrain_gpt.py")
    values: dict[str, list[str]] = {}
    for word in words[at + 1 :]:
        if word.startswith("--"):
            assert word in FLAGS["pretrain_gpt.py"]["flags"].split(), word
            assert word not in values, f"{word} twice"
            values[word] = []
        else:
            values[list(values)[-1]].append(word)
    start = {word for word in words[:at] if word.startswith("--")}
    assert start <= set(FLAGS["torchrun"]["flags"].split())
    return values


def test_megatron_command_of_a_dense_model() -> None:
    flags = megatron(
        "llama-3.1-70b",
        num_gpus=64,
        tensor_parallel_size=8,
        sequence_parallel=True,
        pipeline_parallel_size=4,
        interleave=5,
        context_parallel_size=1,
        micro_batch_size=1,
        recompute="selective",
        recompute_modules="layernorm,mlp",
        global_batch_size=64,
        seq_len=8192,
    )
    expected = {
        "--tensor-model-parallel-size": ["8"],
        "--sequence-parallel": [],
        "--pipeline-model-parallel-size": ["4"],
        "--num-virtual-stages-per-pipeline-rank": ["5"],
        "--global-batch-size": ["64"],
        "--recompute-modules": ["layernorm", "mlp"],
        "--num-layers": ["80"],
        "--ffn-hidden-size": ["28672"],
        "--num-query-groups": ["8"],
        "--normalization": ["RMSNorm"],
        "--swiglu": [],
        "--tokenizer-model": ["meta-llama/Meta-Llama-3.1-70B"],
    }
    assert expected.items() <= flags.items()
    assert "--num-experts" not in flags and "--pipeline-model-parallel-layout" not in flags


def test_megatron_command_of_a_mixture() -> None:
    """61 layers on 16 stages are written out; Megatron-LM's experts would follow tensor parallelism otherwise."""
    flags = megatron(
        "deepseek-v3",
        gpu="b200",
        num_gpus=256,
        pipeline_parallel_size=16,
        tensor_parallel_size=2,
        expert_model_parallel_size=16,
        micro_batch_size=1,
        global_batch_size=256,
        precision="fp8-block",
        recompute="full",
    )
    layout = flags["--pipeline-model-parallel-layout"][0]
    assert sum(layout_counts(layout, 61, 16)) == 61
    assert flags["--moe-layer-freq"] == ["[0]*3+[1]*58"] and flags["--expert-tensor-parallel-size"] == ["1"]
    assert flags["--fp8-recipe"] == ["blockwise"] and flags["--qk-pos-emb-head-dim"] == ["64"]
    assert flags["--recompute-method"] == ["uniform"] and flags["--recompute-num-layers"] == ["1"]


def test_models_that_megatron_lm_has_no_flags_for() -> None:
    result = inferometer.training_search("mamba-2.8b", num_gpus=1, global_batch_size=1, micro_batch_size=1)
    assert result.feasible and result.commands["megatron-lm"][0].startswith("# Megatron-LM: pretrain_gpt.py has no")


@pytest.mark.parametrize("counts", [(1, 1), (1, 2, 2, 2, 1), (4, 3, 4, 3), (0, 5, 5, 0), (61, 0)])
def test_stage_text_is_read_back(counts: tuple[int, ...]) -> None:
    assert layout_counts(stage_text(counts), sum(counts), len(counts)) == counts


# ------------------------------------------------------------------ the command line

SMALL = ("search", "--train", "qwen3-0.6b", "--num-gpus", "8", "--global-batch-size", "16", "-tp", "1,2", "-pp", "1")
SMALL += ("--zero", "1", "--micro-batch-size", "1,2")


@pytest.mark.slow
def test_forms(run: Run, tmp_path: Path) -> None:
    text = run(*SMALL, "--tokens", "1e11")
    assert text.code == 0 and "▶ tp1·dp8" in text.out and "Pareto front" in text.out and "pretrain_gpt.py" in text.out
    data = json.loads(run(*SMALL, "--json").out)
    assert data["schema"] == "inferometer.training_search/1" and data["winner"] == data["plans"][0]
    table = run(*SMALL, "--csv").out.splitlines()
    assert len(table) == 1 + data["counts"]["layouts"] and table[0].startswith("tp,sp,cp,pp,virtual_stages,dp")
    assert "| layout" in run(*SMALL, "--markdown").out
    config = tmp_path / "search.toml"
    config.write_text('train = true\nmodel = "qwen3-0.6b"\nnum-gpus = 1\nglobal-batch-size = 2\n', encoding="utf-8")
    assert json.loads(run("search", "--config", str(config), "--json").out)["num_gpus"] == 1


def test_the_printed_command_says_the_same(run: Run) -> None:
    data = json.loads(run(*SMALL, "--json").out)
    words = shlex.split(data["commands"]["inferometer"][0])
    report = json.loads(run(*words[1:], "--json").out)
    assert report["step_seconds"] == pytest.approx(data["winner"]["step_seconds"], rel=1e-12)


def test_infeasible_and_refused(run: Run) -> None:
    ran = run(
        "search", "--train", "llama-3.1-70b", "--gpu", "l4", "--num-gpus", "8", "--global-batch-size", "8", "-tp", "8"
    )
    assert ran.code == 1 and "Changes that would work" in ran.out
    ran = run("search", "--train", "llama-3.1-70b", "--goodput", "ttft:500")
    assert ran.code == 2 and "--goodput" in ran.err
    assert "--micro-batch-size" in run("search", "--train", "--help").out


def test_bounds_hold_where_layers_are_offloaded() -> None:
    """What goes to the host's memory is not in the bound of memory, and its copies are not in that of time."""
    given = {"num_gpus": 8, "global_batch_size": 32, "cpu_offloading_num_layers": 2, "pipeline_parallel_size": [1, 2]}
    problem = build_problem("llama-3.1-8b", "h100-sxm", given)
    bounds, legal = TrainingBounds(problem), layouts(problem)[0]
    for layout in random.Random(6).sample(legal, 4):
        training = problem.training(layout)
        assert bounds.step_seconds(layout) <= iteration_time(training, stage_times(training))[0].total
        assert bounds.memory(layout) <= fullest_stage(training)[0].total
