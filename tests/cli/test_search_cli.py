"""``inferometer search``: what it prints and writes, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran

from inferometer.cli.output import Form
from inferometer.cli.search import names_folder
from inferometer.search import search

Run = Callable[..., Ran]
SMALL = (
    "search",
    "llama-3.1-8b",
    "--gpu",
    "h200",
    "--num-gpus",
    "2",
    "--input-len",
    "1000",
    "--output-len",
    "50",
    "--goodput",
    "ttft:200",
    "--goodput",
    "tpot:15",
)


@pytest.fixture(scope="module", autouse=True)
def _searched_once() -> Iterator[None]:
    """Several tests look at one search in its forms: its plans are searched once."""
    made: dict[str, Any] = {}
    searched = search.search_with_table

    def search_once(*args: Any, progress: Any, **arguments: Any) -> Any:
        key = repr((args, arguments))
        if arguments["trace"] is not None or key not in made:
            made[key] = searched(*args, progress=progress, **arguments)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "search_with_table", search_once)
        yield


@pytest.mark.slow
def test_it_prints_the_winner_its_reasons_and_commands(run: Run) -> None:
    ran = run(*SMALL)
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    for words in (
        "llama-3.1-8b · 2 × h200 · vLLM",
        "▶",
        "The tightest limit is",
        "wins",
        "trtllm-serve",
        "vllm serve meta-llama/",
        "python -m sglang.launch_server",
        "vllm bench serve",
        "--goodput ttft:200 tpot:15",
    ):
        assert words in text, words


def test_commands_can_be_copied() -> None:
    from inferometer.views.text.document import shell_lines as folded

    command = "vllm serve owner/model " + " ".join(f"--flag-{n} value" for n in range(12)) + " --json '{\"a\": 1}'"
    shown = folded(command)
    assert max(map(len, shown.splitlines())) <= 108
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(command)
    assert "\n" not in folded("# make it first: python hf_ptq.py " + "--flag value " * 20)
    assert "\n" not in folded("python -c 'print(1) --not-a-flag " + "--nor-this " * 20 + "'")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_commands_are_never_wrapped(columns: int) -> None:
    from inferometer.views.text.document import Page, ShellCommand

    command = "vllm serve owner/model --speculative-config '" + '{"method": "mtp"}' * 8 + "' --port ${PORT:-8000}"
    printed = Page([ShellCommand(command)]).terminal(columns, color=True)
    assert shlex.split(printed.replace("\\\n", " ")) == shlex.split(command)


@pytest.mark.slow
def test_json_has_everything(run: Run, tmp_path: Path) -> None:
    ran = run(*SMALL, "--json")
    found = ran.json
    assert found["schema"] == "inferometer.search/1" and found["feasible"] is True
    keys = {
        "winner",
        "why",
        "margin",
        "plans",
        "rejected",
        "rejections",
        "front",
        "space",
        "counts",
        "commands",
        "relaxations",
        "seconds",
        "warnings",
        "workload",
        "goodput",
    }
    assert keys <= set(found)
    assert found["winner"]["trial"]["ttft_ms"].keys() == {"mean", "p50", "p90", "p99", "share"}
    assert found["winner"]["trial"]["good"] >= 0.9 and found["winner"]["simulated"]["request_rate"] > 0
    assert set(found["commands"]) == {"vllm", "sglang", "trtllm", "bench"}


@pytest.mark.slow
def test_a_folder_has_all_that_starts_the_plan(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan"
    small = (*SMALL, "--mode", "aggregated", "--finalists", "1", "-o", str(target))
    ran = run(*small)
    assert ran.code == 0 and "▶" in ran.out and "serve.sh" in ran.err, ran.err
    scripts = [target / "bench.sh", *(target / engine / "serve.sh" for engine in ("vllm", "sglang", "trtllm"))]
    for script in scripts:
        assert script.stat().st_mode & 0o100 and script.read_text().startswith("#!/usr/bin/env bash\n")
        assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert json.loads((target / "search.json").read_text())["schema"] == "inferometer.search/1"
    readme = (target / "README.md").read_text()
    assert "1. `vllm/serve.sh`" in readme and "`bench.sh`" in readme
    assert run(*small).code == 0  # its own files are replaced
    (target / "vllm" / "serve.sh").write_text("mine")
    (target / "README.md").unlink()
    again = run(*small)
    assert again.code == 2 and "was not written by a search" in again.err
    assert (target / "vllm" / "serve.sh").read_text() == "mine"


def test_what_names_a_folder(tmp_path: Path) -> None:
    def folder(output: str, as_json: bool = False) -> bool:
        return names_folder(Form(as_json, False, output))

    assert folder(f"{tmp_path}") and folder("plan/") and folder("plan")
    assert not folder("plan.txt") and not folder("plan", as_json=True)


@pytest.mark.slow
def test_csv_has_one_row_per_plan(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plans.csv"
    assert run(*SMALL, "--csv", "-o", str(target)).code == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text(encoding="utf-8"))))
    assert len(rows) > 100 and {row["mode"] for row in rows} == {"aggregated", "disaggregated"}
    assert all((row["possible"] == "True") == (not row["reason"]) for row in rows)


@pytest.mark.slow
def test_the_picture_is_drawn(run: Run, tmp_path: Path) -> None:
    ran = run(*SMALL, "--plot", str(tmp_path / "out"), "--json")
    assert ran.code == 0 and (tmp_path / "out" / "pareto.png").stat().st_size > 20_000
    assert "pareto.png" in ran.err


@pytest.mark.slow
def test_nothing_possible_ends_with_1_and_what_would_do(run: Run) -> None:
    ran = run(
        "search",
        "llama-3.1-8b",
        "--gpu",
        "h200",
        "--num-gpus",
        "1",
        "-q",
        "bf16",
        "--goodput",
        "tpot:3",
        "--input-len",
        "500",
        "--output-len",
        "100",
    )
    assert ran.code == 1 and "no plan meets the goal" in ran.out and "Changes that would work" in ran.out
    assert "--goodput tpot:" in ran.out and "--num-gpus" in ran.out
    quiet = run(
        "search", "llama-3.1-8b", "--gpu", "h200", "--num-gpus", "1", "-tp", "3", "--goodput", "tpot:5", "--json"
    )
    assert quiet.code == 2 and "--tensor-parallel-size must be between 1 and 1" in quiet.err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--num-prompts", "5"), "--num-prompts applies to a --trace only"),
        (("--json", "--csv"), "two formats"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--plot", " "), "needs the name"),
        (("--objective", "fame"), "unknown --objective 'fame'"),
    ],
)
def test_bad_requests_end_with_2(run: Run, more: tuple[str, ...], sentence: str) -> None:
    ran = run(*SMALL, *more)
    assert ran.code == 2 and sentence in ran.err


@pytest.mark.slow
def test_a_trace_on_the_command_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    lines = ["arrival_s,input_tokens,output_tokens", *(f"{n / 10},{400 + n % 200},{50 + n % 30}" for n in range(400))]
    path.write_text("\n".join(lines), encoding="utf-8")
    ran = run(
        "search",
        "llama-3.1-8b",
        "--gpu",
        "h200",
        "--num-gpus",
        "2",
        "--trace",
        str(path),
        "--num-prompts",
        "300",
        "--goodput",
        "ttft:500,tpot:50",
    )
    assert ran.code == 0 and "few.csv" in ran.out and "at 10/s" in ran.out


@pytest.mark.slow
def test_csv_of_nothing_has_its_columns(run: Run, tmp_path: Path) -> None:
    """Two pools do not fit on one GPU: no plan was even looked at."""
    path = tmp_path / "plans.csv"
    assert run(*SMALL, "--mode", "aggregated", "--finalists", "1", "--csv", "-o", str(path)).code == 0
    header = path.read_text().splitlines()[0]
    none = run("search", "qwen3-0.6b", "--num-gpus", "1", "--goodput", "ttft:500", "--mode", "disaggregated", "--csv")
    assert none.code == 1 and none.out.splitlines() == [header]
