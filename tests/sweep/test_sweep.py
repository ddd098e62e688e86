"""A sweep is many analyses in one table: the same figures, nothing dropped, whatever the pieces, threads and files."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from conftest import Ran
from hypothesis import given
from hypothesis import strategies as st

from inferometer import BadFile, BadValue, InferometerError, Sweep, UnknownName, sweep
from inferometer.base.pareto import pareto_front
from inferometer.cli.commands import app
from inferometer.inference.analyze import analyze
from inferometer.specs.arguments import arguments
from inferometer.specs.plan_args import PlanArgs
from inferometer.sweep.grid import Grid
from inferometer.sweep.points import METRICS, Chunk, boxes, chunks
from inferometer.sweep.sweep import Digest, spread
from inferometer.sweep.writers import write
from inferometer.views.plots.curves import selected_lines, write_curves

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"
MTP = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.8}
REPORTED = [name for name in METRICS if not name.endswith(("_bytes", "_per_user"))]
BYTES = [name for name in METRICS if name.endswith("_bytes")]

# dense, overrides and prefixes; families and engines; layouts and precisions; experts and drafts; beams and adapters;
# images; conversations; diffusion; offload; use cases and efficiencies; links that a device lacks; one workload; meshes
# so large that steps of equally many tokens are priced once
CASES: list[tuple[str, dict[str, Any]]] = [
    (
        MODEL,
        {
            "gpu": "h200,a100-sxm-80gb:memory=94e9,power=300",
            "batch_size": [1, 3, 300],
            "input_len": "1,777,40000",
            "output_len": [1, 2, 300],
            "prefix_len": [0, 512],
        },
    ),
    (
        "llama-3.1-8b,mamba2-2.7b,gemma-3-27b",
        {"batch_size": [1, 64], "input_len": [100, 9000], "engine": "vllm,roofline,hf"},
    ),
    (
        "llama-3.1-70b",
        {
            "gpu": "h200",
            "tensor_parallel_size": [1, 2, 3],
            "pipeline_parallel_size": [1, 2],
            "batch_size": [1, 64],
            "quantization": "bf16,fp8",
            "kv_cache_dtype": ["auto", "fp8"],
        },
    ),
    (
        "deepseek-v3",
        {
            "gpu": "h200",
            "tensor_parallel_size": 8,
            "data_parallel_size": [1, 2],
            "batch_size": [1, 65],
            "enable_expert_parallel": [False, True],
            "speculative_config": [MTP, None],
        },
    ),
    (
        "llama-2-7b",
        {"beam_width": [1, 4], "batch_size": [1, 7], "lora_rank": [8, 16], "lora_targets": "qkv_proj,o_proj"},
    ),
    (
        "qwen2.5-vl-7b",
        {"images": ["1x896x896", "2x448x448"], "batch_size": [1, 5, 9], "input_len": [10, 1000], "output_len": [1, 20]},
    ),
    (MODEL, {"turns": ["512:128,256:64", "100:10"], "batch_size": [1, 2000, 16]}),
    ("DiT-XL/2", {"gpu": "a6000", "batch_size": [1, 8, 64], "engine": "hf,vllm", "frontend": ["in-process", "http"]}),
    ("llama-3.1-70b", {"gpu": "h200", "cpu_offload_gb": [0, 20, 160], "batch_size": [1, 32]}),
    (MODEL, {"usecase": "chatbot,code", "efficiency": [0.5, "flops=0.7,hbm=0.8,intra=0.9,inter=0.9"]}),
    (
        MODEL,
        {
            "gpu": "h200,l40s",
            "interconnect": ["nvlink", "pcie"],
            "tensor_parallel_size": 2,
            "max_num_batched_tokens": "512:8192:x4",
        },
    ),
    (MODEL, {"gpu": "h200", "batch_size": 1, "overlap": "0:1:0.5", "tensor_parallel_size": 2}),
    (
        "gemma-3-27b",
        {
            "gpu": "h200",
            "batch_size": "1:64:1",
            "input_len": "64:6400:64",
            "overlap": 0.5,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
        },
    ),
    (
        "deepseek-v3",
        {
            "gpu": "h200",
            "batch_size": "1:640:10",
            "input_len": "37:6400:64",
            "tensor_parallel_size": 4,
            "data_parallel_size": 2,
            "speculative_config": MTP,
        },
    ),
    (
        "qwen3-next-80b-a3b",
        {"gpu": "h200", "batch_size": "1:64:1", "input_len": "100:30000:300", "prefix_len": [0, 99]},
    ),
]


def close(a: Any, b: Any, rel: float) -> bool:
    """Whether two cells are alike: numbers nearly, anything else as it is."""
    return a == (pytest.approx(b, rel=rel) if isinstance(b, float) else b)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "axes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_points_are_what_analyze_says(model: str, axes: dict[str, Any]) -> None:
    table = sweep(model, **axes)
    rows, points = list(table.rows()), list(product(*table.axes.values()))
    assert len(rows) == len(points) == len(table)
    for at in random.Random(len(rows)).sample(range(len(rows)), min(8, len(rows))):
        row, arguments = rows[at], dict(zip(table.axes, points[at], strict=True))
        try:
            one = analyze(**arguments)
        except InferometerError:
            assert not row["feasible"] and row["reason"], arguments
            continue
        assert (row["feasible"], row["reason"] is None) == (one.feasible, one.feasible), arguments
        for names, figures in ((REPORTED, one.metrics), (BYTES, one.memory)):
            for name in names:
                assert close(row[name], getattr(figures, name), 1e-9), (name, arguments)
        tpot = one.metrics.tpot_ms
        assert close(row["output_throughput_per_user"], tpot and 1e3 / tpot, 1e-9)
        plan = {
            "gpus": one.plan["gpus"],
            "engine": one.engine["name"],
            "quantization": one.plan["quantization"],
            "kv_cache_dtype": one.plan["kv_cache_dtype"],
            "batch_size": one.workload["batch_size"],
        }
        assert {name: row[name] for name in plan} == plan


# ------------------------------------------------------------------ what cannot be used


def reasons(table: Sweep) -> dict[str, int]:
    return {text or "": table.columns["reason"].tolist().count(text) for text in set(table.columns["reason"])}


def test_infeasible_points_are_marked_and_not_dropped() -> None:
    table = sweep(
        "llama-3.1-70b",
        gpu="h200",
        tensor_parallel_size=[1, 3, 4],
        batch_size=[1, 512, 4096],
        input_len=[2048, 100],
        prefix_len=[0, 100],
    )
    assert len(table) == 36
    said = reasons(table)
    assert said["64 attention heads are not divisible by tp 3"] == 12
    assert (
        sum(n for text, n in said.items() if ("than --max-num-seqs 1,024: they would not all run at once") in text) == 6
    )
    assert said["--prefix-len must be shorter than the input"] == 6
    assert sum(n for text, n in said.items() if "needs more memory than the 138 GB" in text) > 0
    assert sum(said.values()) == 36 and said[""] == table.columns["feasible"].sum()
    illegal = table.columns["tensor_parallel_size"] == 3
    assert not np.isnan(table.columns["total_bytes"]).any(), "memory of what is illegal can be computed, and is there"
    lost = table.columns["input_len"] <= table.columns["prefix_len"]
    assert (
        np.isnan(table.columns["ttft_ms"][lost]).all() and not np.isnan(table.columns["ttft_ms"][illegal & ~lost]).any()
    )
    full = table.columns["total_bytes"] > table.columns["usable_bytes"]
    assert not table.columns["feasible"][full].any()


def test_a_combination_that_is_refused_is_marked_and_a_mistake_is_an_error() -> None:
    table = sweep(MODEL, gpu=["h200", "l40s"], interconnect="nvlink")
    assert table.columns["feasible"].tolist() == [True, False]
    assert "unknown --interconnect 'nvlink'" in table.columns["reason"][1] and np.isnan(table.columns["ttft_ms"][1])
    for axes, error, sentence in [
        ({"gpu": "h200,h10"}, UnknownName, "unknown GPU 'h10'; did you mean"),
        ({"engine": ["vllm", "vlm"]}, UnknownName, "unknown engine 'vlm'"),
        ({"quantization": "bf16,fp9"}, UnknownName, "'fp9'"),
        ({"tensor_parallel_size": [1, 0]}, BadValue, "tensor_parallel_size must be between 1"),
        ({"interconnect": ["nvlink", "string"]}, UnknownName, "unknown interconnect 'string'"),
        ({"gpu": "l40s", "interconnect": "nvlink"}, BadValue, "unknown interconnect 'nvlink'"),
        ({"batch_size": [1, 0]}, BadValue, "batch_size must be between 1 and 10,000,000, not 0"),
        ({"input_len": "1:2000000000:x10"}, BadValue, "input_len must be between 1 and 100,000,000"),
        ({"prefix_len": [-1]}, BadValue, "prefix_len must be between 0"),
        ({"batchsize": [1]}, UnknownName, "unknown axis 'batchsize'; did you mean batch_size"),
        ({"phase": "decode"}, UnknownName, "unknown axis 'phase'"),
        ({"enable_expert_parallel": "yes"}, BadValue, "enable_expert_parallel must be True, False"),
        ({"profile": "nowhere.csv"}, BadFile, "nowhere.csv"),
        ({"output_len": []}, BadValue, "output_len has no values"),
        ({"efficiency": []}, BadValue, "efficiency has no values"),
        ({"turns": "1:2", "input_len": [1, 2]}, BadValue, "turns sets all lengths"),
    ]:
        with pytest.raises(error) as caught:
            sweep(MODEL, **axes)
        assert sentence in str(caught.value), axes
    with pytest.raises(UnknownName, match="unknown model"):
        sweep("llama-3.1-8b,lama-9b")
    for axes in ({"output_len": [1, 2]}, {"prefix_len": [0, 7]}):
        with pytest.raises(BadValue, match="does not apply to a diffusion model"):
            sweep("DiT-XL/2", **axes)
    assert sweep(MODEL, usecase="chatbot", prefix_len="0:9000:100").columns["feasible"].sum() > 1
    assert sweep(MODEL, input_len=1, prefix_len=[0, 5]).columns["feasible"].tolist() == [True, False]


def test_a_grid_that_is_too_large_is_refused_with_its_count() -> None:
    with pytest.raises(BadValue, match=r"has 16,000,000 points, more than the.*FILE\.parquet"):
        sweep(MODEL, batch_size="1:4000:1", input_len="1:4000:1")
    with pytest.raises(BadValue, match="has 64,000,000,000 points, more than 1,000,000,000"):
        sweep(MODEL, batch_size="1:4000:1", input_len="1:4000:1", output_len="1:4000:1")


# ------------------------------------------------------------------ pieces


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 60))
def test_boxes_are_runs_of_rows(sizes: list[int], most: int) -> None:
    rows = np.arange(math.prod(sizes)).reshape(sizes)
    cut = [rows[box].ravel() for box in boxes(tuple(sizes), most)]
    assert np.concatenate(cut).tolist() == list(range(rows.size))
    assert all(len(part) <= most for part in cut)


@pytest.mark.slow
def test_chunks_and_threads_do_not_matter() -> None:
    axes = {
        "gpu": "h200,h100-sxm",
        "tensor_parallel_size": [1, 3],
        "batch_size": "1:2000:x7",
        "input_len": "10:9000:x5",
        "output_len": [1, 100],
        "prefix_len": [0, 30],
        "data_parallel_size": 2,
    }
    whole = sweep(MODEL, **axes)
    for threads, most in ((1, 7), (2, 64), (5, 1)):
        grid = Grid(MODEL, **axes)
        parts = list(chunks(grid, threads, most))
        assert [p.start for p in parts] == np.cumsum([0, *map(len, parts[:-1])]).tolist() and len(parts) > 4
        cut = Sweep(grid, parts)
        assert set(cut.columns) == set(whole.columns)
        for name, values in whole.columns.items():
            if whole.kinds[name] == "float":
                np.testing.assert_allclose(cut.columns[name], values, rtol=1e-12)
            else:
                assert cut.columns[name].tolist() == values.tolist(), name


@pytest.mark.slow
def test_types_are_worked_out_by_one_thread_at_a_time() -> None:
    """The library that reads data crashes where two threads meet a type for the first time; ours do not."""
    code = (
        "import sys, threading, msgspec\n"
        "from inferometer.base.files import convert, decode_json\n"
        "sys.setswitchinterval(1e-6)\n"
        "for _ in range(1500):\n"
        "    inner = msgspec.defstruct('I', [('a', int), ('b', dict[str, tuple[str, ...]])])\n"
        "    outer = msgspec.defstruct('O', [(f'f{k}', dict[str, inner]) for k in range(6)])\n"
        "    data, gate = {f'f{k}': {'q': {'a': 1, 'b': {}}} for k in range(6)}, threading.Barrier(4)\n"
        "    def go(way):\n"
        "        gate.wait()\n"
        "        convert(data, outer, '') if way % 2 else decode_json(msgspec.json.encode(data), outer)\n"
        "    threads = [threading.Thread(target=go, args=[way]) for way in range(4)]\n"
        "    [t.start() for t in threads], [t.join() for t in threads]\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


# ------------------------------------------------------------------ tables and files


@pytest.fixture(scope="module")
def table() -> Sweep:
    return sweep(
        MODEL,
        gpu=["h200", "l40s"],
        interconnect=["pcie", "nvlink"],
        batch_size="1:512:x8",
        input_len=[64, 8000],
        output_len=[1, 64],
        prefix_len=[0, 64],
        enable_expert_parallel=False,
        max_num_seqs=256,
    )


def test_columns_rows_and_cubes_are_one_table(table: Sweep) -> None:
    rows = list(table.rows())
    assert list(rows[0]) == list(table.columns) and len(rows) == len(table) == 128
    for name, values in table.columns.items():
        said = [None if value is None else value for value in (row[name] for row in rows)]
        have = [None if v is None or v == "" or v != v else v for v in values.tolist()]
        assert said == have, name
    cube = table.cube("batch_size")
    assert cube.shape == (1, 2, 1, 2, 1, 4, 2, 2, 2) and (cube == np.array([1, 8, 64, 512]).reshape(4, 1, 1, 1)).all()
    assert table.columns["batch_size"].dtype == np.int64 and table.columns["feasible"].dtype == bool
    with pytest.raises(UnknownName, match="did you mean tpot_ms"):
        table.columns["tpot"]


def test_the_best_point(table: Sweep) -> None:
    usable = [row for row in table.rows() if row["feasible"]]
    assert table.best("output_throughput_per_gpu") in usable
    for name, choose in (
        ("output_throughput_per_gpu", max),
        ("tpot_ms", min),
        ("total_bytes", min),
        ("cost_per_million_output_tokens", min),
        ("output_throughput_per_user", max),
    ):
        known = [row[name] for row in usable if row[name] is not None]
        assert table.best(name)[name] == choose(known)
    with pytest.raises(UnknownName, match="figure"):
        table.best("speed")
    with pytest.raises(BadValue, match="is feasible"):
        sweep("llama-3.1-70b", gpu="l4").best("ttft_ms")


def test_files_hold_the_table(table: Sweep, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = list(table.rows())
    arrow = parquet.read_table(table.to_parquet(tmp_path / "x.parquet"))
    assert arrow.to_pylist() == rows and arrow.schema.names == list(table.columns)
    assert (
        str(arrow.schema.field("gpu").type).startswith("dictionary")
        and arrow.schema.field("batch_size").type == "int64"
    )

    with table.to_csv(tmp_path / "x.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows)
    for line, row in zip(read, rows, strict=True):
        for name, value in row.items():
            text = line[name]
            if isinstance(value, bool):
                assert text == ("true" if value else "false")
            else:
                assert close(text if isinstance(value, str) else float(text) if text else None, value, 1e-6), name
    data = json.loads(table.to_json(tmp_path / "x.json").read_text())
    assert data["schema"] == "inferometer.sweep/1" and data["axes"]["batch_size"] == [1, 8, 64, 512]
    assert (data["points"], data["feasible"]) == (128, sum(row["feasible"] for row in rows))
    lines = [json.loads(line) for line in table._to(tmp_path / "x.jsonl", "jsonl").read_text().splitlines()]
    assert lines == data["rows"] and all(close(a[n], b[n], 1e-6) for a, b in zip(lines, rows, strict=True) for n in b)


def test_a_run_that_breaks_leaves_what_was_there(table: Sweep, tmp_path: Path) -> None:
    def broken() -> Iterator[Chunk]:
        yield table.chunks[0]
        raise KeyboardInterrupt

    for form in ("csv", "json", "parquet"):
        target = tmp_path / f"kept.{form}"
        target.write_text("what the user had")
        with pytest.raises(KeyboardInterrupt):
            write(target, form, broken(), table.kinds, table.axes)
        assert target.read_text() == "what the user had"
    assert sorted(os.listdir(tmp_path)) == ["kept.csv", "kept.json", "kept.parquet"], "no temporary file stays behind"
    with pytest.raises(BadFile, match="is a folder"):
        table.to_csv(tmp_path)
    with pytest.raises(BadFile, match="No such file or directory"):
        table.to_csv(tmp_path / "no" / "x.csv")


# ------------------------------------------------------------------ what people read


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40))
def test_the_front_is_what_no_other_beats(points: list[tuple[int, int]]) -> None:
    x, y = np.array(points, float).T
    kept = pareto_front(x, y).tolist()
    assert [x[i] for i in kept] == sorted({x[i] for i in kept}, reverse=True), "x falls, and no point comes twice"
    for i, (a, b) in enumerate(points):
        beaten = any(c >= a and d >= b and (c, d) != (a, b) for c, d in points)
        assert beaten != any(points[k] == (a, b) for k in kept), i


def test_the_digest_counts_everything_and_keeps_the_front() -> None:
    axes = {"gpu": "h200,h100-sxm", "tensor_parallel_size": [1, 2, 4], "batch_size": "1:4096:x2"}
    grid = Grid("llama-3.1-70b", **axes)
    digest = Digest(grid)
    table = Sweep(grid, digest.watch(chunks(grid, most=9)))
    rows = [row for row in table.rows() if row["feasible"]]
    assert (digest.points, digest.feasible) == (len(table), len(rows))
    assert digest.reasons == {text: n for text, n in reasons(table).items() if text}
    (front,) = digest.fronts.values()
    x, y = (np.array([row[f"output_throughput_per_{who}"] for row in rows]) for who in ("user", "gpu"))
    assert [spot.row["batch_size"] for spot in front] == [rows[i]["batch_size"] for i in pareto_front(x, y)]
    several = Digest(Grid(MODEL, gpu="h200", batch_size=[1, 8], input_len="16:3200:16"))
    for chunk in chunks(Grid(MODEL, gpu="h200", batch_size=[1, 8], input_len="16:3200:16")):
        several.add(chunk)
    shown = several.table()
    assert len(shown) == 12 and shown[0]["input_len"] == 16 and shown[-1]["input_len"] == 3200
    assert all(row["batch_size"] == 8 for row in shown), "more sequences get more out of a GPU"
    assert spread([1, 2, 3, 4, 5], 3) == [1, 3, 5]


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    table = sweep(
        "llama-3.1-70b",
        gpu="h200,h100-sxm",
        tensor_parallel_size=[8, 2],
        batch_size="1:512:x8",
        input_len="128:32768:x4",
        quantization="bf16,fp8",
    )
    lines = selected_lines(table, "batch_size")
    assert len(lines.lines) == 8 and lines.held == {"input_len": "input 2,048"}, "the rest is named"
    assert {line.name for line in lines.lines} == {
        f"{g} · tp {t} · {q}" for g in ("h200", "h100-sxm") for t in (8, 2) for q in ("bf16", "fp8")
    }
    assert table.cube("input_len")[lines.lines[0].at].tolist() == [2048] * 4
    made = write_curves(table, tmp_path)
    assert [path.name for path in made] == ["tensor_parallel_size.png", "batch_size.png", "input_len.png", "front.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in made)
    nothing = sweep("llama-3.1-70b,DiT-XL/2", gpu="l4", batch_size=[1, 2])
    assert [path.name for path in write_curves(nothing, tmp_path / "none")] == ["batch_size.png", "front.png"]


# ------------------------------------------------------------------ the command


def test_every_word_of_a_request_is_an_axis() -> None:
    ours, theirs = (app.get_command(click.Context(app), name) for name in ("sweep", "analyze"))
    assert ours is not None and theirs is not None
    flags = {p.name: set(p.opts) for p in ours.params}
    assert {"model", "gpu", *arguments(PlanArgs)} <= set(flags)
    assert all(set(p.opts) == flags[p.name] for p in theirs.params if p.name in flags), "under the same flags"
    switches = [name for name, argument in arguments(PlanArgs).items() if argument.kind == "switch"]
    assert switches and all(f"no_{name}" in flags for name in switches)


@pytest.mark.slow
def test_the_command_prints_the_table(run: Run, tmp_path: Path) -> None:
    args = (
        "sweep",
        MODEL,
        "--gpu",
        "h200,h100-sxm:memory=94e9,power=700",
        "-tp",
        "1,2",
        "--batch-size",
        "1:64:x8",
        "-q",
        "bf16",
        "-q",
        "fp8",
        "--hf-token",
        "s3cret",
    )
    ran = run(*args, "--csv")
    rows = list(csv.DictReader(ran.out.splitlines()))
    assert (ran.code, len(rows)) == (0, 24) and "s3cret" not in ran.out + ran.err
    assert {row["gpu"] for row in rows} == {"h200", "h100-sxm:memory=94e9,power=700"}
    data = run(*args, "--json").json
    assert [row["tpot_ms"] for row in data["rows"]] == [float(row["tpot_ms"]) for row in rows]
    shown = run(*args)
    assert shown.code == 0 and "24 points, 24 feasible" in shown.out and "tok/s/GPU" in shown.out
    for name in ("t.csv", "t.json", "t.jsonl", "t.parquet"):
        saved = run(*args, "-o", str(tmp_path / name))
        assert (saved.code, saved.out) == (0, "") and "24 points" in saved.err
    assert (tmp_path / "t.csv").read_text() == ran.out and json.loads((tmp_path / "t.json").read_text()) == data
    assert sorted(os.listdir(tmp_path)) == ["t.csv", "t.json", "t.jsonl", "t.parquet"]


def test_a_switch_and_its_opposite_try_both(run: Run) -> None:
    args = ("sweep", "qwen3-30b-a3b", "--gpu", "h200", "-dp", "2", "--json", "--enable-expert-parallel")
    assert [row["enable_expert_parallel"] for row in run(*args).json["rows"]] == [True]
    both = run(*args, "--no-enable-expert-parallel", "--no-fusion").json["rows"]
    assert [(row["enable_expert_parallel"], row["fusion"]) for row in both] == [(False, False), (True, False)]


def test_a_figure_next_to_nothing_is_written_as_it_is(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran = run("sweep", "phi-2", "--routing-skew", "0,1e-320", "--json")
    assert [row["routing_skew"] for row in json.loads(ran.out)["rows"]] == [0.0, 1e-320]


def test_nothing_that_works_is_exit_1(run: Run) -> None:
    ran = run("sweep", "llama-3.1-70b", "--gpu", "l4,t4", "--batch-size", "1,2")
    assert ran.code == 1 and "4 points, 0 feasible" in ran.out and "needs more memory" in ran.out
    ran = run("sweep", "llama-3.1-70b", "--gpu", "l4", "--json")
    assert ran.code == 1 and not ran.json["rows"][0]["feasible"] and "infeasible: needs more memory" in ran.err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--gpu", "h10"], "unknown GPU 'h10'; did you mean"),
        (["--batch-size", ""], "--batch-size has no values"),
        (["--batch-size", "1:8"], "has no step"),
        (["--batch-size", "8:1:1"], "runs backwards"),
        (["--input-len", "1:1e15:1"], "has 1,000,000,000,000,000 values"),
        (["--batch-size", "1:4000:1", "--input-len", "1:4000:1"], "has 16,000,000 points"),
        (["--batch-size", "1:4000:1", "--input-len", "1:4000:1", "-o", "x.csv", "--plot", "d"], "without --plot"),
        (["--batch-size", "1:1e6:1", "--input-len", "1:1e6:1", "-o", "x.csv"], "has 1,000,000,000,000 points"),
        (["--batchsize", "1"], "--batchsize"),
        (["--tensor-parallel-size", "two"], "--tensor-parallel-size takes numbers"),
        (["-o", "x.xlsx"], "use .csv, .json, .jsonl, .ndjson, .parquet"),
        (["--json", "-o", "x.csv"], "--json and 'x.csv' are two formats of one table"),
        (["--json", "--csv"], "two formats of one result"),
        (["-o", "no/x.csv"], "No such file or directory"),
        (["--overlap", "0:2:1"], "--overlap must be between 0"),
    ],
)
def test_bad_input_is_one_sentence(args: list[str], sentence: str, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("sweep", MODEL, *args)
    assert ran.code == 2 and sentence in ran.err and not ran.out and ran.err.count("\n") == 1
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_a_cold_process() -> None:
    code = "from inferometer.cli import main; main(['sweep', 'llama-3.1-8b', '--batch-size', '1:8:x2', '--csv'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 5 and not ran.stderr
