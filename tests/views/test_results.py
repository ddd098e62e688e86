"""Results that show themselves: pages for notebooks and terminals, tables of pandas, pictures, comparisons."""

from __future__ import annotations

import inspect
import io
import pickle
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import command
from msgspec import structs

import inferometer
from inferometer.base.result import Result, keep
from inferometer.serving.capacity import Capacity, TriedRate
from inferometer.validation.validate import Validation, compare

MODEL, GPU = "llama-3.1-8b", "h200"
PLAN = {"batch_size": 8, "input_len": 1024, "output_len": 128}
HOSTILE = '<img src=x onerror="alert(1)">'


@cache
def result(kind: str) -> Any:
    """One result of each class, each made once."""
    run = {"request_rate": 8, "num_prompts": 20, "input_len": 64, "output_len": 4, "goodput": "ttft:500"}
    make: dict[str, Any] = {
        "Report": lambda: inferometer.analyze(MODEL, gpu=GPU, **PLAN),
        "Sweep": lambda: inferometer.sweep(MODEL, gpu="h200,h100-sxm", batch_size=[1, 8, 64]),
        "Search": lambda: inferometer.search(
            MODEL, GPU, num_gpus=1, quantization="bf16", kv_cache_dtype="auto", goodput="ttft:500", finalists=1,
            input_len=64, output_len=4, max_num_seqs=32, max_num_batched_tokens=2048,
        ),
        "Outcome": lambda: inferometer.simulate(MODEL, GPU, **run),
        "Capacity": lambda: _capacity(),
        "Sensitivity": lambda: inferometer.sensitivity(MODEL, gpu=GPU, batch_size=8),
        "TrainReport": lambda: inferometer.train(MODEL, gpu=GPU, data_parallel_size=8, zero=1),
        "Validation": lambda: _validation(),
        "Comparison": lambda: result("Report").compare(inferometer.analyze(MODEL, gpu=GPU, quantization="fp8", **PLAN)),
        "ExplainedOperator": lambda: result("Report").explain("down_proj"),
    }  # fmt: skip
    made = make[kind]()
    assert type(made).__name__ == kind and isinstance(made, Result)
    return made


def _capacity() -> Capacity:
    rates = [TriedRate(request_rate=rate, good=1.5 - rate / 20, holds=rate < 12) for rate in (9.0, 11.0, 13.0)]
    capacity = Capacity(request_rate=11.0, goodput={"ttft": 500.0}, share=0.9, highest=14.0, tried=rates)
    summary = result("Outcome").summary()
    return keep(capacity, summarize=lambda own: {**summary, **structs.asdict(own), "tried": []})


def _validation() -> Validation:
    trace = inferometer.synthetic(num_prompts=3, input_len=64, output_len=4, request_rate=1.0)
    measured = {"TTFT": np.array([10.0, 11.0, 12.0]), "E2E": np.array([30.0, 31.0, 32.0])}
    return compare(trace := structs.replace(trace, measured=measured), inferometer.simulate(MODEL, GPU, trace=trace))


KINDS = ["Report", "Sweep", "Search", "Outcome", "Capacity", "Sensitivity", "TrainReport", "Validation", "Comparison"]
KINDS += ["ExplainedOperator"]


class Elements(HTMLParser):
    """The tags of a page, and whether each that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open += [tag] if tag != "br" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# ------------------------------------------------------------------ what is seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_shows_itself(kind: str) -> None:
    shown = result(kind)
    line = repr(shown)
    assert re.fullmatch(rf"<{kind}\b.*>", line) and len(line) < 200
    html = shown._repr_html_()
    elements = Elements(html)
    assert len(html) < 60_000 and "--" not in line
    known = {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre", "br"}
    assert set(elements.names) <= known
    assert elements.attributes <= {"style", "open", "title"}, "nothing is loaded, nothing runs"
    assert "table" in elements.names
    heading = shown.to_text(100).splitlines()[0]
    assert heading[:40].strip() in re.sub("<[^>]*>", "", html).replace("\u00a0", " ")
    assert "| " in shown.to_markdown() or kind == "ExplainedOperator"


def test_a_terminal_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = pytest.importorskip("rich.console")
    report = result("Report")
    monkeypatch.setenv("COLUMNS", "100")
    printed = command("analyze", MODEL, "--gpu", GPU, "--batch-size", "8").out
    assert report.to_text(100) == printed
    screen = rich.Console(file=io.StringIO(), width=100)
    screen.print(report)
    assert [line.rstrip() for line in screen.file.getvalue().rstrip().splitlines()] == printed.rstrip().splitlines()


def test_a_page_has_bars_and_escapes() -> None:
    report = result("Report")
    html = report.to_html()
    share = max(op.share for op in report.phases["decode"].ops)
    assert f"#0000 {share * 0.5:.1%})" in html, "a bar as long as the operator's share"
    assert f"width:{report.memory.weights_bytes / report.memory.capacity_bytes:.2%}" in html
    hostile = structs.replace(report, model=structs.replace(report.model, name=HOSTILE), warnings=[HOSTILE])
    text = hostile.to_html()
    assert "<img" not in text and text.count("&lt;img") == 2
    assert "in 0." not in result("Search").to_html(), "seconds of the machine differ from run to run"


def test_a_page_of_many_layers_leaves_out_small_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    report = result("Report")
    whole = report.to_html()
    monkeypatch.setattr("inferometer.views.results.MAX_HTML", len(whole) - 1)
    smaller = report.to_html()
    assert "kv_cache_write" in whole and "kv_cache_write" not in smaller.partition("decode")[0]
    assert "gate_up_proj" in smaller and "kv_cache_write" in report.to_text()


def test_what_is_kept_with_a_result_is_not_in_its_data() -> None:
    report = result("Report")
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report and b"request" not in report.to_json().replace(b"requests", b"")
    assert copy.to_html() == report.to_html()
    with pytest.raises(inferometer.BadValue, match="that analyze returned"):
        copy.explain("down_proj")


# ------------------------------------------------------------------ tables and pictures


@pytest.mark.parametrize(
    "kind, table, columns, rows",
    [
        ("Report", "", {"phase", "name", "seconds", "share", "shape"}, 36),
        ("Report", "metrics", {"model", "gpu", "batch_size", "tpot_ms", "roofline_tpot_ms", "total_bytes"}, 1),
        ("Sweep", "", {"gpu", "batch_size", "tpot_ms", "feasible"}, 6),
        ("Search", "plans", {"layout", "quantization", "possible"}, None),
        ("Search", "simulated", {"label", "verdict", "request_rate", "p90_ttft_ms"}, 1),
        ("Outcome", "", {"arrival_s", "TTFT", "E2E", "status"}, 20),
        ("Outcome", "series", {"time_s", "running", "kv_used"}, None),
        ("Capacity", "", {"request_rate", "good", "holds"}, 3),
        ("Sensitivity", "", {"figure", "up_change_tpot_ms"}, None),
        ("TrainReport", "", {"phase", "name", "seconds"}, None),
        ("Validation", "", {"input_tokens", "ttft_ms_measured", "ttft_ms_predicted"}, 3),
        ("Comparison", "", {"metric", "before", "after", "change"}, None),
        ("Comparison", "parts", {"phase", "part", "difference"}, None),
        ("ExplainedOperator", "", {"quantity", "formula", "result"}, None),
    ],
)
def test_to_pandas(kind: str, table: str, columns: set[str], rows: int | None) -> None:
    pytest.importorskip("pandas")
    frame = result(kind).to_pandas(table)
    assert columns <= set(frame.columns) and len(frame) == (rows if rows is not None else len(frame)) > 0


def test_tables_have_the_figures() -> None:
    pytest.importorskip("pandas")
    report, sweep, outcome = result("Report"), result("Sweep"), result("Outcome")
    taken = report.to_pandas().groupby("phase").seconds.sum()
    assert taken["decode"] == pytest.approx(report.phases["decode"].seconds)
    best = sweep.to_pandas().sort_values("tpot_ms").iloc[0]
    assert best.tpot_ms == sweep.best("tpot_ms")["tpot_ms"] and best.gpu == "h200"
    assert outcome.to_pandas().TTFT.mean() == pytest.approx(outcome.summary()["mean_ttft_ms"])
    with pytest.raises(inferometer.UnknownName, match="Outcome table 'serie'; did you mean series"):
        outcome.to_pandas("serie")


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(inferometer.BadValue, match=r"to_pandas needs pandas: pip install 'inferometer\[notebook\]'"):
        result("Report").to_pandas()
    with pytest.raises(inferometer.BadValue, match=r"plot needs matplotlib: pip install 'inferometer\[plot\]'"):
        result("Report").plot()


@pytest.mark.parametrize(
    "kind, options",
    [
        ("Report", {"kind": "memory"}),
        ("Report", {"kind": "distribution", "phase": "prefill"}),
        ("Sweep", {"x": "batch_size", "y": "tpot_ms"}),
        ("Search", {}),
        ("Outcome", {"kind": "latencies"}),
        ("Capacity", {}),
        ("Sensitivity", {}),
        ("TrainReport", {}),
        ("Validation", {"kind": "scatter"}),
    ],
)
def test_plot(kind: str, options: dict[str, Any]) -> None:
    figure = result(kind).plot(**options)
    assert figure.axes and figure.texts[0].get_text(), "a picture with its title"


def test_a_picture_shows_itself_and_is_written(tmp_path: Path) -> None:
    figure = result("Capacity").plot(path=tmp_path / "rates.svg")
    assert "<svg" in (tmp_path / "rates.svg").read_text(encoding="utf-8")
    assert figure._repr_png_().startswith(b"\x89PNG"), "what a notebook asks for"


def test_pictures_that_there_are_not() -> None:
    report, sweep = result("Report"), result("Sweep")
    with pytest.raises(inferometer.UnknownName, match="Report picture 'rooflin'; did you mean roofline"):
        report.plot("rooflin")
    with pytest.raises(inferometer.BadValue, match=r"\.png, \.svg or \.pdf"):
        report.plot("memory", path="memory.gif")
    with pytest.raises(inferometer.BadValue, match="takes no phase"):
        report.plot("memory", phase="decode")
    with pytest.raises(inferometer.UnknownName, match="metric 'tpot'; did you mean tpot_ms"):
        sweep.plot(y="tpot")
    with pytest.raises(inferometer.BadValue, match="ran without curves"):
        result("Sensitivity").plot("curves")


# ------------------------------------------------------------------ verbs


def test_explain_is_the_command_s(monkeypatch: pytest.MonkeyPatch) -> None:
    explained = result("Report").explain("down_proj", phase="decode")
    assert [one.phase for one in explained] == ["decode"] and explained[0].bound == "memory"
    monkeypatch.setenv("COLUMNS", "100")
    args = ("analyze", MODEL, "--gpu", GPU, "--batch-size", "8", "--explain", "down_proj", "--phase", "decode")
    assert explained.to_text(100) == command(*args).out
    with pytest.raises(inferometer.UnknownName, match="did you mean down_proj"):
        result("Report").explain("down_prj")


def test_compare_says_what_changed_and_why() -> None:
    before, after = result("Report"), inferometer.analyze(MODEL, gpu=GPU, quantization="fp8", **PLAN)
    changed = before.compare(after)
    tpot = changed.metrics["tpot_ms"]
    assert tpot.change == pytest.approx(after.metrics.tpot_ms / before.metrics.tpot_ms - 1) and tpot.better
    assert changed.metrics["output_throughput"].better
    assert not after.compare(before).metrics["tpot_ms"].better
    assert changed.settings["quantization"] == ("bf16", "fp8")
    decode = [part for part in changed.parts if part.phase == "decode"]
    assert decode[0].part == "gate_up_proj" and decode[0].difference < 0
    assert not before.compare(before).settings and "same" in before.compare(before).to_text()
    with pytest.raises(inferometer.BadValue, match="another Report, not Outcome"):
        before.compare(result("Outcome"))


def test_runs_compare_by_what_was_asked_for() -> None:
    run = {"request_rate": 8, "num_prompts": 20, "input_len": 64, "output_len": 4}
    changed = result("Outcome").compare(inferometer.simulate(MODEL, GPU, **run, router="least_loaded"))
    assert changed.settings == {"router": ("round_robin", "least_loaded"), "goodput.ttft": (500.0, None)}
    assert changed.metrics["mean_ttft_ms"].better is None


def test_simulate_takes_a_file_or_traffic(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0.0,512,8\n0.1,64,4\n", encoding="utf-8")
    by_name, by_trace = (inferometer.simulate(MODEL, GPU, trace=t) for t in (file, inferometer.read_trace(file)))
    assert by_name.finished_s.tolist() == by_trace.finished_s.tolist() and len(by_name.finished_s) == 2
    trace = inferometer.synthetic(num_prompts=20, request_rate=8, input_len=64, output_len=4)
    assert inferometer.simulate(MODEL, GPU, trace=trace).finished_s.tolist() == result("Outcome").finished_s.tolist()
    summary = result("Outcome").summary()
    assert summary["num_prompts"] == 20 and summary["request_goodput"] and summary["traffic"] == "64 in, 4 out, at 8/s"
    with pytest.raises(inferometer.BadFile, match="there is no such file"):
        inferometer.search(MODEL, GPU, num_gpus=1, trace=str(tmp_path / "none.csv"), goodput="ttft:500")


@pytest.mark.parametrize(
    "verb, wrong, right",
    [
        ("analyze", "batchsize", "batch_size"),
        ("sweep", "batchsize", "batch_size"),
        ("search", "num_gpu", "num_gpus"),
        ("simulate", "request_rat", "request_rate"),
        ("find_capacity", "input_length", "input_len"),
        ("sensitivity", "targets", "target"),
        ("train", "zeros", "zero"),
        ("validate", "measure", "measured"),
        ("profile", "devices", "device"),
        ("synthetic", "num_prompt", "num_prompts"),
        ("read_trace", "column", "columns"),
        ("metrics", "goodputs", "goodput"),
    ],
)
def test_a_wrong_keyword_names_the_right_one(verb: str, wrong: str, right: str) -> None:
    function = getattr(inferometer, verb)
    given = [MODEL] if verb not in ("synthetic",) else []
    with pytest.raises(inferometer.UnknownName, match=rf"{wrong!r}; did you mean {right}"):
        function(*given, **{wrong: 1})


def test_tab_shows_the_verbs() -> None:
    assert dir(inferometer) == sorted(name for name in inferometer.__all__ if name.islower() and name[0] != "_")
    assert all(inspect.isfunction(getattr(inferometer, name)) for name in dir(inferometer))
    text = inspect.getdoc(inferometer.analyze) or ""
    assert "batch_size (default: 1): " in text and "max_num_seqs (default: the engine's): " in text
    keywords = set(inspect.signature(inferometer.analyze).parameters) - {"model", "gpu", "phase"}
    assert keywords <= set(re.findall(r"^ +(\w+)(?: \(|:)", text.partition("Keywords:")[2], re.M))
