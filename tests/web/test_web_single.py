"""`analyze --html`: one file that holds all it needs; and how `web` says that it cannot start."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

from inferometer.inference.explain import explain
from inferometer.inference.request import build_request
from inferometer.web.page_files import static
from inferometer.web.single import filled

pytestmark = pytest.mark.slow

Run = Callable[..., Ran]
LINE = ("analyze", "llama-3.1-8b", "--gpu", "h200", "--batch-size", "8", "-tp", "2")


@pytest.fixture(scope="module")
def page(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("html") / "report.html"
    ran = run(*LINE, "--html", str(path))
    assert ran.code == 0 and f"wrote {path}" in ran.err and "time to first token" in ran.out
    return path.read_text(encoding="utf-8")


def given(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="given">(.*?)</script>', page, re.S)
    assert found
    data: dict[str, object] = json.loads(found[1])
    return data


def test_the_report_is_inside(page: str, run: Run) -> None:
    report = given(page)["report"]
    assert isinstance(report, dict)
    command, graph = report.pop("command"), report.pop("graph")
    assert report.pop("roofline_chart")["phases"].keys() == report["phases"].keys()
    assert report == run(*LINE, "--json").json
    assert command == "inferometer analyze llama-3.1-8b --gpu h200 --batch-size 8 --tensor-parallel-size 2"
    assert set(graph) == {"prefill", "decode"}


def test_every_operator_is_explained(page: str) -> None:
    data = given(page)
    told = data["explanations"]
    assert isinstance(told, list)
    asked = build_request("llama-3.1-8b", "h200", batch_size=8, tensor_parallel_size=2)
    names = {(op["phase"], op["op"]) for op in told}
    assert {("prefill", "qkv_proj"), ("decode", "all_reduce"), ("decode", "lm_head")} <= names
    mine = [op for op in told if op["op"] == "down_proj"]
    assert [op["seconds"] for op in mine] == [one.seconds for one in explain(asked, "down_proj")]


def test_nothing_is_asked_of_anybody(page: str) -> None:
    shell = re.sub(r"<(script|style)\b[^>]*>.*?</\1>", "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!data:|\#)""", shell), "no address but data"
    assert "default-src 'none'" in page and not re.search(r"<script[^>]* src=", shell)


def test_all_modules_are_inside_and_find_each_other(page: str) -> None:
    found = re.search(r'<script type="importmap">(.*?)</script>', page)
    assert found
    modules = json.loads(found[1])["imports"]
    assert {name.removeprefix("inferometer/") for name in modules} == {path.name for path in static().glob("*.js")}
    for name, address in modules.items():
        text = base64.b64decode(address.removeprefix("data:text/javascript;base64,")).decode()
        for other in re.findall(r"""\b(?:from|import)\s*\(?\s*["']([^"']+)["']""", text):
            assert other in modules, f"{name} wants {other}"


def test_what_stands_in_a_report_cannot_end_the_script() -> None:
    html = '<head></head><script type="module" src="/static/main.js"></script>'
    nasty = {"name": "</script><script>alert(1)</script>", "what": "<!--"}
    page = filled(html, nasty)
    assert "alert(1)</script><" not in page and given(page) == nasty


def test_where_it_cannot_be_written(run: Run, tmp_path: Path) -> None:
    ran = run(*LINE, "--html", str(tmp_path / "none" / "x.html"))
    assert ran.code == 2 and "cannot be written" in ran.err
    both = run(*LINE, "--html", "x.html", "--explain", "qkv_proj")
    assert both.code == 2 and "cannot be combined with --html" in both.err


def test_a_server_that_cannot_start_says_why(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("web", "--port", str(taken.getsockname()[1]))
        assert ran.code == 2 and "cannot be used: Address already in use" in ran.err
    assert "between 0 and 65,535" in run("web", "--port", "70000").err
    assert "cannot be used" in run("web", "--host", "no.such.host.invalid").err
