"""``inferometer sensitivity``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

Run = Callable[..., Ran]


def test_json_is_keyed_by_the_hardware_file(run: Run) -> None:
    data = run("sensitivity", "llama-3.1-8b", "--gpu", "h200", "-tp", "2", "--json").json
    assert data["schema"] == "inferometer.sensitivity/1" and next(iter(data)) == "schema"
    shown = run("show", "hardware", "h200", "--json").json
    for key, figure in data["figures"].items():
        place = shown if figure["of"] == "hardware" and key not in ("speeds", "flops") else None
        for word in key.split(".") if place is not None else ():
            place = place[word]
        assert place is None or place == figure["value"], key
    assert {
        "flops",
        "flops.bf16",
        "memory_bandwidth",
        "memory",
        "clock",
        "links.nvlink.bandwidth",
        "links.nvlink.latency",
        "launch",
        "step_overhead",
    } <= set(data["figures"])
    one = data["figures"]["memory_bandwidth"]
    assert one["up"]["factor"] == 1.1 and -1 <= one["up"]["elasticity"]["tpot_ms"] < -0.5
    assert data["figures"]["links.pcie.bandwidth"]["used"] is False


@pytest.mark.slow
def test_the_table_for_people(run: Run) -> None:
    ran = run("sensitivity", "llama-3.1-8b", "--gpu", "h200", "--batch-size", "8", "--target", "tpot:4", "ttft:300")
    assert ran.code == 0
    commas = run("sensitivity", "llama-3.1-8b", "--gpu", "h200", "--batch-size", "8", "--target", "tpot:4,ttft:300")
    assert commas.out == ran.out
    for words in (
        "TPOT depends most on memory bandwidth",
        "baseline",
        "nvlink bandwidth, latency",
        "unused",
        "TPOT ≤ 4 ms",
        "no: ",
        "met until ",
    ):
        assert words in " ".join(ran.out.split()), words


@pytest.mark.parametrize(
    ("args", "first", "rows"),
    [
        (["llama-3.1-8b", "--target", "tpot:4"], "figure", 17),
        (["llama-3.1-70b", "--size"], "gpu", 2),
        (["llama-2-7b", "--compare", "llama-2-13b", "--batch-size", "8"], "name", 2),
        (["llama-3.1-8b", "--compare-usecases"], "name", 7),
    ],
)
def test_csv_has_a_row_each(run: Run, args: list[str], first: str, rows: int) -> None:
    ran = run("sensitivity", *args, "--csv")
    assert ran.code == 0, ran.err
    table = list(csv.DictReader(io.StringIO(ran.out)))
    assert len(table) == rows and next(iter(table[0])) == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--target", "tpot:4"], {"tornado.png", "curves.png"}),
        (["--output-len", "1"], {"tornado.png", "curves.png"}),
        (["--size", "--target", "tpot:4"], {"size.png"}),
        (["--compare", "llama-2-13b"], {"compare.png"}),
        (["--compare-usecases"], {"usecases.png"}),
    ],
)
def test_pictures(run: Run, tmp_path: Path, args: list[str], names: set[str]) -> None:
    ran = run("sensitivity", "llama-3.1-8b", "--gpu", "h200", *args, "--plot", tmp_path)
    assert ran.code == 0, ran.err
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("dit-xl-2", ["--gpu", "a6000"]),
        ("dit-xl-2", ["--gpu", "a6000", "--compare", "dit-s-2"]),
        ("llama-3.1-8b", ["--turns", "512:128,256:64"]),
        ("llama-3.1-8b", ["--output-len", "1"]),
        ("qwen2.5-vl-7b", ["--images", "2x672x1008"]),
        ("opt-125m", ["--input-len", "64,64,64,64,32,32,32,32,16,16,16,16"]),
        ("opt-125m", ["--input-len", "64,64,64,64,32,32,32,32,16,16,16,16", "--size"]),
        (
            "deepseek-v3",
            ["-tp", "8", "--gpu", "h200", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
        ),
        ("mamba-2.8b", ["--gpu", "epyc-9654"]),
    ],
)
def test_every_kind_of_request_is_looked_at(run: Run, model: str, words: list[str]) -> None:
    ran = run("sensitivity", model, *words)
    assert ran.code == 0, ran.err
    assert "nan" not in ran.out and "None" not in ran.out


@pytest.mark.slow
def test_infeasible_is_a_result(run: Run) -> None:
    ran = run("sensitivity", "llama-3.1-70b", "--gpu", "h100-sxm", "--json")
    assert ran.code == 1 and "infeasible: needs" in ran.err
    assert ran.json["feasible"] is False and ran.json["figures"]["memory_bandwidth"]["up"]["change"]["tpot_ms"] < -0.05
    ran = run("sensitivity", "llama-3.1-8b", "--target", "tpot:0.001")
    assert ran.code == 1 and "no single figure" in ran.out
    ran = run("sensitivity", "llama-3.1-8b", "--size", "--target", "tpot:0.001")
    assert ran.code == 1 and "no platform of up to 128" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "needs a MODEL"),
        (["llama-3.1-8b", "--target", "tpt:20"], "unknown --target metric 'tpt'; did you mean tpot?"),
        (["llama-3.1-8b", "--target", "tpot:-3"], "--target tpot must be a positive number"),
        (["llama-3.1-8b", "--target", "tpot:nan"], "--target tpot must be a positive number"),
        (["llama-3.1-8b", "--target", "tpot:fast"], "--target tpot must be a number, not 'fast'"),
        (["llama-3.1-8b", "--target", "tpot"], "pairs such as tpot:20"),
        (["llama-3.1-8b", "--target", ","], "pairs such as tpot:20"),
        (["llama-3.1-8b", "--target", "tpot:5", "--target", "tpot:6"], "sets tpot twice: 5 and 6"),
        (["llama-3.1-8b", "--output-len", "1", "--target", "tpot:5"], "has no TPOT"),
        (["dit-xl-2", "--target", "tpot:5"], "has no TPOT"),
        (["llama-3.1-8b", "--gpu", "h200:price_per_hour=0", "--target", "cost:5"], "h200:price_per_hour=2.5"),
        (["llama-3.1-8b", "--size", "--compare", "llama-2-7b"], "--size and --compare are two questions"),
        (["llama-3.1-8b", "--size", "-tp", "2"], "cannot be combined with --tensor-parallel-size"),
        (["llama-3.1-8b", "--compare", "lama-2-7b"], "did you mean llama-2-7b"),
        (["llama-3.1-8b", "--compare", ","], "--compare needs the names of models"),
        (["llama-3.1-8b", "--compare", "llama-3.1-8b"], "another model than llama-3.1-8b"),
        (["--compare", "llama-3.1-8b"], "another model than llama-3.1-8b"),
        (["llama-3.1-8b", "--compare", "dit-xl-2"], "no metric in common"),
        (["llama-3.1-8b", "--compare", "llama-2-7b", "--target", "tpot:5"], "cannot be combined with --compare"),
        (["llama-3.1-8b", "--gpu", "h100-sxm,h200"], "only --size takes several GPU types"),
        (["llama-3.1-8b", "--compare-usecases", "--batch-size", "3"], "cannot be combined with --batch-size"),
        (["dit-xl-2", "--compare-usecases"], "does not apply to a diffusion model"),
        (["llama-3.1-8b", "--gpu", "h10"], "unknown GPU 'h10'"),
        (["llama-3.1-8b", "--json", "--csv"], "two formats of one result"),
    ],
)
def test_bad_requests(run: Run, args: list[str], words: str) -> None:
    ran = run("sensitivity", *args)
    assert ran.code == 2 and not ran.out
    assert words in ran.err and "Traceback" not in ran.err and ran.err.count("\n") == 1
