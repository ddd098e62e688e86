"""The generated pages are current, say what every key means, and make a site without broken links."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Ran

sys.path.append(str(ROOT / "tools"))

import reference
from reference_pages import formulas, json_keys

Run = Callable[..., Ran]
EXAMPLES = {  # command of the page -> a run of it
    "analyze --json": "analyze llama-3.1-8b --gpu h200 -tp 2 --batch-size 8 --json",
    "sweep --json": "sweep qwen3-0.6b --gpu h200 --batch-size 1,2 --json",
    "search --json": "search qwen3-0.6b --gpu h200 --num-gpus 1 --request-rate 2 --input-len 64 --output-len 16 "
    "--goodput ttft:500,tpot:30 -q bf16 --mode aggregated --json",
    "simulate --json": "simulate qwen3-0.6b --gpu h200 --num-prompts 5 --request-rate 4 --autoscale target=8 --json",
    "simulate --find-capacity --json": "simulate qwen3-0.6b --gpu h200 --num-prompts 20 --input-len 64 --output-len 8 "
    "--find-capacity --goodput ttft:500 --json",
    "sensitivity --json": "sensitivity qwen3-0.6b --gpu h200 --target tpot:1 --json",
    "train --json": "train qwen3-0.6b --gpu h200 --json",
    "validate --json": "validate qwen3-0.6b --gpu h200 --measured measured.csv --json",
}


@pytest.mark.slow
def test_pages_are_current() -> None:
    stale = [path.name for path, text in reference.pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make schema`"


@pytest.mark.slow
def test_every_key_has_a_meaning() -> None:
    assert not json_keys.without_meaning(), "a comment beside the field, or tools/reference_pages/meanings.toml"


@pytest.mark.slow
@pytest.mark.parametrize("command", EXAMPLES)
def test_every_key_is_documented(command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("measured.csv").write_text(
        "input_tokens,output_tokens,TTFT,TPOT\n512,64,20,3\n256,32,15,3\n", encoding="utf-8"
    )
    result: dict[str, Any] = run(*shlex.split(EXAMPLES[command])).json
    assert not json_keys.undocumented(command, result)


@pytest.mark.parametrize("check", list(formulas.checks()), ids=lambda check: check.name)
def test_formulas_are_those_of_the_code(check: formulas.Check) -> None:
    assert check.by_text == pytest.approx(check.by_code, rel=1e-9)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Strict: broken links, lost anchors and pages outside of the navigation are warnings, and fail."""
    pytest.importorskip("mkdocstrings", reason="the site needs the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    outside = [
        page.name
        for page in (tmp_path / "site").rglob("*.html")
        if any(mark in page.read_text(encoding="utf-8") for mark in ('src="http', 'rel="stylesheet" href="http'))
    ]
    assert not outside, "the site loads something from another host"
