"""The files that people have: results of load generators, logs, columns of any name, pipes, comments, compression.

The fixtures in tests/serving/files were written for these tests after the formats of the tools (made-up numbers, one
failed request each where the format has them); docs/serving.md names the source of each format.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Ran, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadFile, BadValue, InferometerError, UnknownName
from inferometer.base.tabular import column_names, open_table
from inferometer.serving.trace import Trace, gamma_arrivals, read_runs, read_trace
from inferometer.serving.trace_formats import parse_columns
from inferometer.serving.traffic import load_traffic
from inferometer.validation.validate import measured_latencies, validate

ONE = b'{"completed": 1, "total_input_tokens": 1, "total_output_tokens": 1}'
FILES = Path(__file__).parent / "files"
MODEL, GPU = "qwen3-0.6b", "h200"
Run = Callable[..., Ran]


def arrivals(trace: Trace) -> list[float]:
    assert trace.arrival_s is not None
    return [round(float(t), 6) for t in trace.arrival_s]


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


def close(values: np.ndarray, *expected: float) -> bool:
    return bool(np.allclose(values, expected, equal_nan=True, atol=1e-3))


# ------------------------------------------------------------------ results of load generators


def test_vllm_detailed() -> None:
    trace = read_trace(FILES / "vllm_detailed.json")
    assert lengths(trace) == [(100, 5), (2000, 3), (512, 1)], "the fourth failed"
    assert arrivals(trace) == [0, 0.25, 0.5]
    assert close(trace.measured["TTFT"], 20, 60, 30) and close(trace.measured["E2E"], 40, 72, 30)
    assert close(trace.measured["TPOT"], 5, 6, math.nan), "(latency - TTFT) / (tokens - 1), as vLLM computes it"
    assert trace.notes == ("1 of 4 requests failed or were not counted; they are ignored",)
    run = trace.run
    assert run is not None and (run.request_rate, run.max_concurrency, run.closed_loop) == (4.0, None, False)
    assert run.metrics["mean_ttft_ms"] == 36.667, "what the file says"
    assert run.metrics["p90_ttft_ms"] == pytest.approx(54) and run.metrics["mean_e2el_ms"] == pytest.approx(142 / 3)
    assert run.metrics["p90_itl_ms"] == pytest.approx(6.5), "what it does not say comes from its requests"


def test_vllm_without_start_times_is_the_load_that_it_says() -> None:
    """0.12 wrote none: a closed loop has no arrivals, a rate gives Poisson ones, inf all at once."""
    closed = read_trace(FILES / "vllm_0.12_detailed.json")
    assert closed.arrival_s is None and closed.run is not None and closed.run.closed_loop
    assert load_traffic({"trace": str(FILES / "vllm_0.12_detailed.json")}, None).max_concurrency == 2
    slow, fast = read_runs(FILES / "vllm_appended.jsonl")
    for trace, rate in ((slow, 2.0), (fast, 8.0)):
        assert trace.run is not None and trace.run.request_rate == rate and len(trace) == 20
        assert np.array_equal(arrivals(trace), gamma_arrivals(np.random.default_rng(0), 20, rate).round(6))


def test_vllm_summary_has_the_mean_lengths() -> None:
    trace = read_runs(FILES / "vllm_appended.jsonl")[0]
    assert trace.input_tokens.sum() == 10_250 and set(trace.input_tokens.tolist()) == {512, 513}
    assert trace.output_tokens.tolist() == [32] * 20 and not trace.measured
    assert trace.notes == ("the file has totals only: every request gets the mean lengths",)


def test_no_more_requests_of_one_length_than_tell_the_rest(tmp_path: Path) -> None:
    """Three lines of a file asked for 100 million requests, and took all memory."""
    path = tmp_path / "run.json"
    path.write_text('{"completed": 1e8, "total_input_tokens": 1e11, "total_output_tokens": 1.5e10, "mean_ttft_ms": 3}')
    trace = read_trace(path)
    assert len(trace) == 100_000 and (trace.input_tokens.mean(), trace.output_tokens.mean()) == (1000, 150)
    assert trace.notes[0].endswith("every request gets the mean lengths, and 100,000 of 100,000,000 are simulated")


@pytest.mark.parametrize(
    ("change", "arrival"),
    [
        ({"request_rate": "inf"}, [0.0] * 3),
        ({"request_rate": None}, [0.0] * 3),
        ({"request_rate": "trace"}, None),
        ({"request_rate": None, "traffic": "of x.csv, as they came"}, None),
        ({"request_rate": None, "traffic": "1024 in, 128 out, all at once"}, [0.0] * 3),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9}, None),
    ],
)
def test_rates_of_many_kinds(tmp_path: Path, change: dict[str, Any], arrival: list[float] | None) -> None:
    data = json.loads((FILES / "vllm_detailed.json").read_text()) | change
    del data["start_times"]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    trace = read_trace(path)
    if arrival is not None:
        assert arrivals(trace) == arrival
    else:
        assert trace.run is not None and trace.run.request_rate == data["request_throughput"]
        assert "the rate varied" in trace.notes[-1]


def test_sglang() -> None:
    summary, detailed = read_trace(FILES / "sglang.jsonl"), read_trace(FILES / "sglang_details.jsonl")
    for trace in (summary, detailed):
        run = trace.run
        assert run is not None and run.tool == "sglang.bench_serving" and run.closed_loop and run.max_concurrency == 2
        assert run.metrics["p99_e2el_ms"] == 72, "SGLang's e2e_latency under vLLM's name"
        assert trace.arrival_s is None and trace.input_tokens.sum() == 1100
    assert lengths(detailed) == [(500, 6), (300, 3), (300, 3)]
    assert close(detailed.measured["TTFT"], 41, 32, 47) and close(detailed.measured["E2E"], 71, 44, 59)


def test_sglang_one_batch() -> None:
    one, four = read_runs(FILES / "sglang_one_batch.jsonl")
    assert lengths(one) == [(256, 8)] and lengths(four) == [(256, 8)] * 4 and arrivals(four) == [0] * 4
    assert close(four.measured["TTFT"], *[21] * 4) and close(four.measured["TPOT"], *[6.2] * 4)
    assert not four.at_client, "it runs inside the engine's process"


def test_guidellm() -> None:
    closed, poisson = read_runs(FILES / "guidellm.json")
    assert lengths(closed) == [(256, 8), (256, 8), (250, 1)] and arrivals(closed) == [0, 0.5, 1.25], "by arrival"
    assert close(closed.measured["TTFT"], 40, 38, 36) and close(closed.measured["TPOT"], 7.5, 7, math.nan)
    assert close(closed.measured["E2E"], 92.5, 87, 36)
    assert closed.run is not None and closed.run.closed_loop and closed.run.max_concurrency == 2
    assert poisson.run is not None and poisson.run.request_rate == 2 and poisson.run.metrics["output_throughput"] == 15
    assert closed.notes and not poisson.notes


def test_aiperf_and_genai_perf() -> None:
    records = read_trace(FILES / "aiperf_profile_export.jsonl")
    assert lengths(records) == [(550, 9), (128, 4)] and arrivals(records) == [0, 0.25] and records.at_client
    assert close(records.measured["TTFT"], 42, 21) and close(records.measured["TPOT"], 5.2, 5)
    closed, rate = read_trace(FILES / "aiperf_summary.json"), read_trace(FILES / "genai_perf_summary.json")
    for trace in (closed, rate):
        assert len(trace) == 50 and trace.input_tokens.sum() == 27_500 and trace.output_tokens.sum() == 5025
        assert trace.run is not None and trace.run.metrics["p99_tpot_ms"] == pytest.approx(8.625)
    assert closed.run is not None and closed.run.label == "aiperf 4 at a time" and closed.arrival_s is None
    assert rate.run is not None and rate.run.label == "genai-perf at 3/s" and rate.arrival_s is not None


def test_genai_perf_profile_export(tmp_path: Path) -> None:
    trace = read_trace(FILES / "genai_perf_profile_export.json")
    assert lengths(trace) == [(550, 3), (128, 2)] and arrivals(trace) == [0, 0.25] and len(trace.notes) == 1
    assert close(trace.measured["TTFT"], 40, 20), "a first response without text is none"
    assert close(trace.measured["E2E"], 52, 26) and close(trace.measured["TPOT"], 6, 6)
    assert trace.run is not None and trace.run.label == "genai-perf 2 at a time"
    path = tmp_path / "x.json"
    path.write_text((FILES / "genai_perf_profile_export.json").read_text().replace("prompt_tokens", "other"))
    with pytest.raises(BadFile, match=r"has texts but no token counts .* the summary that genai-perf writes"):
        read_trace(path)


def test_a_run_of_several_is_chosen(run: Run) -> None:
    path = FILES / "vllm_appended.jsonl"
    with pytest.raises(BadValue, match=r"has 2 runs: choose one with run \(1: vllm bench serve at 2/s, 2: vllm"):
        read_trace(path)
    assert read_trace(path, run=2).run == read_runs(path)[1].run
    with pytest.raises(BadValue, match="run must be between 1 and 2, not 3"):
        read_trace(path, run=3)
    ran = run("simulate", MODEL, "--gpu", GPU, "--trace", str(path), "--run", "2", "--json")
    assert ran.json["num_prompts"] == 20 and "every request gets the mean lengths" in ran.err
    refused(run("simulate", MODEL, "--run", "2"), "--run applies to a --trace file only")
    refused(run("search", MODEL, "--columns", "input_tokens=a"), "--columns applies to a --trace file only")


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(1, 300), st.floats(1e-4, 10), st.floats(1e-4, 1), st.floats(0, 5)),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None, max_examples=50)
@pytest.mark.slow
def test_details_are_read_as_they_were_written(tmp_path_factory: Any, rows: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json"
    inputs, outputs, ttfts, gaps, starts = zip(*rows, strict=True)
    data = {
        "completed": len(rows),
        "total_input_tokens": sum(inputs),
        "total_output_tokens": sum(outputs),
        "request_rate": "inf",
        "max_concurrency": None,
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": ttfts,
        "itls": [[gap] * (n - 1) for gap, n in zip(gaps, outputs, strict=True)],
        "start_times": starts,
        "errors": [""] * len(rows),
    }
    path.write_text(json.dumps(data))
    trace = read_trace(path)
    assert lengths(trace) == list(zip(inputs, outputs, strict=True))
    assert trace.arrival_s == pytest.approx(np.array(starts) - min(starts))
    assert trace.measured["TTFT"] == pytest.approx(np.array(ttfts) * 1e3)
    times = measured_latencies(trace)
    many = np.array(outputs) > 1
    assert times["tpot"][many] == pytest.approx(np.array(gaps)[many] * 1e3) and np.isnan(times["tpot"][~many]).all()
    assert times["e2el"] == pytest.approx(times["ttft"] + np.nan_to_num(times["tpot"]) * (np.array(outputs) - 1))


# ------------------------------------------------------------------ compared with predictions


def test_a_result_is_replayed_under_its_load() -> None:
    """A closed loop of the simulation's own figures is met to the digit; the clock stands at the client."""
    first = validate(MODEL, GPU, measured=FILES / "sglang_details.jsonl", engine="sglang")
    assert first.trace.arrival_s is None and set(first.errors) == {"ttft", "tpot", "e2el"}
    inside = validate(MODEL, GPU, measured=FILES / "sglang_details.jsonl", engine="sglang", frontend="in-process")
    assert (first.predicted["ttft"] > inside.predicted["ttft"]).all()
    figure = first.figures["mean_ttft_ms"]
    assert figure.measured == 40 and figure.predicted == pytest.approx(first.predicted["ttft"].mean())
    assert figure.error == pytest.approx(figure.predicted / 40 - 1)


def test_our_own_result_is_predicted_without_error(run: Run, tmp_path: Path) -> None:
    """`simulate --json` has the keys of a benchmark: its load and figures are read again."""
    path = tmp_path / "own.json"
    args = ("--gpu", GPU, "--num-prompts", "30", "--input-len", "300", "--output-len", "20", "--max-concurrency", "4")
    path.write_text(run("simulate", MODEL, *args, "--json").out)
    validation = validate(MODEL, GPU, measured=path)
    assert validation.trace.run is not None and validation.trace.run.max_concurrency == 4 and not validation.errors
    assert len(validation.figures) >= 12
    assert all(abs(figure.error or 0) < 1e-6 for figure in validation.figures.values())


@pytest.mark.slow
def test_validate_takes_all_runs(run: Run) -> None:
    path = str(FILES / "vllm_appended.jsonl")
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", path, "--json")
    runs = ran.json["runs"]
    assert [r["run"] for r in runs] == [1, 2] and ran.json["completed"] == 40
    assert runs[0]["figures"]["mean_ttft_ms"]["measured"] == 30 and runs[1]["frontend"] == "http"
    shown = run("validate", MODEL, "--gpu", GPU, "--measured", path, "--run", "2")
    assert shown.code == 0 and "vllm bench serve at 8/s" in " ".join(shown.out.split())
    assert "ITL" in shown.out and "45.0 ms" in shown.out and "30.0 ms" in shown.out
    rows = run("validate", MODEL, "--gpu", GPU, "--measured", path, "--csv").out.splitlines()
    assert rows[0] == "run,metric,measured,predicted,error" and rows[1].startswith("1,mean_ttft_ms,30.0,")
    refused(run("validate", MODEL, "--measured", path, "--plot", "x"), "--plot needs one run", "choose one with --run")
    refused(run("validate", MODEL, "--memory", path, "--run", "1"), "--run needs --measured FILE")


def test_a_calibration_needs_requests(run: Run) -> None:
    path = str(FILES / "vllm_appended.jsonl")
    args = ("--measured", path, "--run", "1", "--write-calibration", "x.toml")
    refused(run("validate", MODEL, "--gpu", GPU, *args), "a calibration needs measured TTFT or TPOT of requests")


def test_a_log_can_be_validated(run: Run) -> None:
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", str(FILES / "litellm_spend_logs.csv"), "--json")
    assert ran.code == 0 and ran.json["errors"]["ttft"]["measured_mean_ms"] == pytest.approx(120, rel=1e-4)
    assert ran.json["errors"]["e2el"]["requests"] == 2 and ran.json["frontend"] == "http"


# ------------------------------------------------------------------ logs


def test_openai_logs() -> None:
    table, lines = read_trace(FILES / "openai_log.csv"), read_trace(FILES / "openai_log.jsonl")
    for trace in (table, lines, read_trace(FILES / "litellm_spend_logs.csv")):
        assert lengths(trace) == [(812, 64), (90, 12)]
        assert trace.notes == ("1 of 3 requests failed or were not counted; they are ignored",)
    assert arrivals(table) == [0, 1.5], "zones count: 10:00 in Berlin is 09:00 UTC"
    assert arrivals(lines) == [0, 2]
    spend = read_trace(FILES / "litellm_spend_logs.csv").measured
    assert close(spend["TTFT"], 120, math.nan) and close(spend["E2E"], 900, 200)


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9], ids=["s", "ms", "us", "ns"])
def test_times_since_1970_have_their_unit_by_size(tmp_path: Path, unit: float) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"created_at": int((1_767_603_600 + t) * unit), "prompt_tokens": 5, "completion_tokens": 5} for t in (0, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert arrivals(read_trace(path)) == [0, 7]


def test_a_json_list_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"time": 0, "prompt_tokens": 5, "completion_tokens": 6}], indent=2))
    assert lengths(read_trace(path)) == [(5, 6)]


# ------------------------------------------------------------------ columns of any name


def test_columns_are_named(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "x.csv"
    path.write_text("who,n_in,n_out,sent,first_s\na,10,20,1000,0.05\nb,30,40,2500,\n")
    columns = "input_tokens=n_in,output_tokens=n_out,arrival_ms=sent,ttft=first_s"
    trace = read_trace(path, columns=columns)
    assert lengths(trace) == [(10, 20), (30, 40)] and arrivals(trace) == [1, 2.5]
    assert close(trace.measured["TTFT"], 50, math.nan), "their suffix says the unit"
    assert lengths(read_trace(path, columns=dict(p.split("=") for p in columns.split(",")))) == lengths(trace)
    ran = run("simulate", MODEL, "--gpu", GPU, "--trace", str(path), "--columns", columns, "--json")
    assert ran.code == 0 and ran.json["total_input_tokens"] == 40
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--columns", columns, "--json")
    assert ran.json["errors"]["ttft"]["measured_mean_ms"] == pytest.approx(50)


@pytest.mark.slow
def test_capacity_of_named_columns(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("n_in,n_out,sent\n" + "".join(f"10,20,{i * 100}\n" for i in range(20)))
    columns = "input_tokens=n_in,output_tokens=n_out,arrival_ms=sent"
    limits = ("--find-capacity", "--goodput", "ttft:500", "--jobs", "1", "--json")
    ran = run("simulate", MODEL, "--gpu", GPU, "--trace", str(path), "--columns", columns, *limits)
    assert ran.code == 0 and ran.json["request_rate"] > 10


def test_nested_columns_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"at": "2026-01-05T09:00:00Z", "llm": {"in": 3, "out": 4}}\n')
    trace = read_trace(path, columns="arrival=at,input_tokens=llm.in,output_tokens=llm.out")
    assert lengths(trace) == [(3, 4)] and arrivals(trace) == [0]


@pytest.mark.parametrize(
    ("name", "field", "unit"),
    [
        ("arrival_s=t", "arrival_s", 1.0),
        ("arrival_us=t", "arrival_s", 1e-6),
        ("arrival=t", "arrival_s", None),
        ("arrival=t_ns", "arrival_s", 1e-9),
        ("arrival_s=t_ms", "arrival_s", 1e-3),
        ("TTFT=first", "TTFT", 1e-3),
        ("e2el_s=whole", "E2E", 1.0),
        ("think_s=pause_ms", "think_s", 1e-3),
    ],
)
def test_units_of_columns(name: str, field: str, unit: float | None) -> None:
    assert parse_columns(name).units == {field: unit}


@pytest.mark.parametrize(
    ("columns", "kind", "sentence"),
    [
        ("input_tokens", BadValue, "columns takes pairs such as input_tokens=n_in,output_tokens=n_out"),
        ("inputtokens=a", UnknownName, "unknown column in columns 'inputtokens'; did you mean input_tokens"),
        ("input_tokens=n_im,output_tokens=b", BadFile, "has no column 'n_im'; did you mean n_in? It has n_in, b"),
        ("input_tokens=zzz,output_tokens=b", BadFile, "has no column 'zzz'; it has n_in, b"),
        ("input_tokens=n_in", BadFile, "has no output_tokens: columns output_tokens=NAME; it has n_in, b"),
        ("arrival=b,arrival_ms=n_in", BadValue, "columns names arrival_s twice: b and n_in"),
    ],
)
def test_wrong_columns_are_one_sentence(tmp_path: Path, columns: str, kind: Any, sentence: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text("n_in,b\n5,x\n")
    with pytest.raises(kind) as error:
        read_trace(path, columns=columns)
    assert sentence in str(error.value) and isinstance(error.value, InferometerError)


def test_a_wrong_cell_is_named_as_the_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("n_in,b\n5,x\n")
    with pytest.raises(BadFile, match="line 2: b must be a whole number from 0 to 100,000,000, not 'x'"):
        read_trace(path, columns="input_tokens=n_in,output_tokens=b")


def test_a_refusal_is_short_and_says_what_to_do(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"some_long_column_name_{i}" for i in range(60)]
    Path("x.csv").write_text(",".join([*names, "prompt_tokens"]) + "\n")
    ran = run("simulate", MODEL, "--trace", "x.csv")
    refused(ran, "some_long_column_name_1 … (61 columns)", "it lacks completion_tokens", "--columns input_tokens=NAME")
    assert len(ran.err) <= 300


# ------------------------------------------------------------------ tables as people write them


@pytest.mark.parametrize(
    "text",
    [
        "# requests.csv\ninput_tokens,output_tokens\n5,6\n7,8\n",
        "\n\n#a\n# b, c\ninput_tokens,output_tokens\n\n5,6\n# between\n#\n\n7,8\n",
        "\ufeffinput_tokens,output_tokens\r\n5,6\r\n7,8\r\n",
        "\ufeff# first\ninput_tokens,output_tokens\n5,6\n7,8",
        "input_tokens;output_tokens\n5;6\n7;8\n",
        "input_tokens\toutput_tokens\tnote\n5\t6\ta,b;c\n7\t8\t\n",
        'input_tokens,output_tokens,text\n5,6,"a\n# no comment"\n7,8,x\n',
        "# input_tokens,output_tokens\n5,6\n7,8\n",
        '# as JSON lines\n{"input_tokens": 5, "output_tokens": 6}\n\n{"input_tokens": 7, "output_tokens": 8}\n',
    ],
)
def test_tables_as_people_write_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    assert lengths(read_trace(path)) == [(5, 6), (7, 8)]
    zipped = tmp_path / "x.csv.gz"
    zipped.write_bytes(gzip.compress(text.encode()))
    assert lengths(read_trace(zipped)) == [(5, 6), (7, 8)]


def test_lines_are_counted_with_comments(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("# one\n\ninput_tokens,output_tokens\n# four\n5,6\n7,many\n")
    with pytest.raises(BadFile, match="line 6: output_tokens must be"):
        read_trace(path)


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"input_tokens": [5, 7], "output_tokens": [6, 8]}), path)
    assert lengths(read_trace(path)) == [(5, 6), (7, 8)]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadFile, match="cannot be read as Parquet"):
        read_trace(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"# nothing\n\n", "has only blank lines and comments"),
        (b"5,6\n7,8\n", "has no column names: its first line is 5, 6"),
        (b"\x28\xb5\x2f\xfd\x00", "cannot be read: it is broken zstd"),
        (b"x" * 200_000, "is not in a known trace format: its columns are 'xxx"),
        (b"x" * (2**24 + 1), "line 1: more than 16,777,216 characters, which no line of a table has"),
        (b"input_tokens,output_tokens\n5," + b"x" * 200_000, "line 2: output_tokens must be a whole number"),
        (b"input_tokens,output_tokens\n5,6\n#7,8,9\n", "line 3: 3 cells where the header has 2; a comment below"),
        (b"input_tokens,output_tokens\n5,6\n#7,8\n", "line 3: input_tokens must be a whole number"),
        (
            gzip.compress(b"input_tokens,output_tokens\n5,6\n" * 2000, mtime=0)[:40],
            "cannot be read: it is broken gzip (Compressed file ended",
        ),
        (b"input_tokens,output_tokens\n5,6\n\xff\xfe\n", "is not UTF-8 text"),
        (b"input_tokens,output_tokens\n" + b"5,6\n" * 9000 + b"\xff\xfe\n", "or after: not UTF-8 text"),
        (b'{"completed": 1,\n "total', "not JSON"),
        (
            b'{"completed": "x", "total_input_tokens": 1, "total_output_tokens": 1}',
            "`completed` must be a number at least 1 and at most 100,000,000, not 'x'",
        ),
        (
            b'{"completed": 0, "total_input_tokens": 0, "total_output_tokens": 0}',
            "`completed` must be a number at least 1 and at most 100,000,000, not 0",
        ),
        (ONE[:-1] + b', "mean_ttft_ms": -3}', "mean_ttft_ms must be a number of at least 0, not -3"),
        (
            ONE[:-1] + b', "mean_ttft_ms": 3, "input_lens": [5], "output_lens": [1], "ttfts": [-0.03]}',
            "`ttfts[0]` must be a number at least 0",
        ),
        (b'{"benchmarks": []}', "has no completed requests"),
        (ONE[:-1] + b', "input_lens": [5], "output_lens": []}', "output_lens has 0 entries where input_lens has 1"),
        (ONE[:-1] + b', "input_lens": ["a"], "output_lens": [1]}', "`input_lens[0]` must be"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(BadFile) as error:
        read_trace(path)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "completed",
                "total_input_tokens",
                "total_output_tokens",
                "input_lens",
                "itls",
                "output_lens",
                "ttfts",
                "errors",
                "start_times",
                "request_rate",
                "benchmarks",
                "experiments",
                "metrics",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=6,
        ),
    )
)
@settings(deadline=None, max_examples=50)
@pytest.mark.slow
def test_results_of_nonsense_are_refused_or_read(tmp_path_factory: Any, data: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "nonsense.json"
    whole = json.loads((FILES / "vllm_detailed.json").read_text())
    path.write_text(json.dumps(whole | data))
    try:
        trace = read_trace(path)
    except InferometerError:
        return
    assert len(trace) > 0


# ------------------------------------------------------------------ pipes


def test_a_file_is_opened_once(tmp_path: Path) -> None:
    """A FIFO can be read once; what was looked at to recognise the file is not lost."""
    fifo = tmp_path / "fifo"
    for text in ("# c\ninput_tokens,output_tokens\n" + "5,6\n" * 3000, (FILES / "guidellm.json").read_text()):
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_text, args=(text,))
        writer.start()
        traces = read_runs(fifo)
        writer.join()
        fifo.unlink()
        assert len(traces[0]) == (3000 if text.startswith("#") else 3)


@pytest.mark.slow
def test_pipes_of_a_shell(tmp_path: Path) -> None:
    zipped = tmp_path / "requests.csv.gz"
    zipped.write_bytes(gzip.compress(b"# c\ninput_tokens,output_tokens\n" + b"5,6\n" * 3000))
    tool = f"{sys.executable} -m inferometer simulate {MODEL} --gpu {GPU} --json --trace"
    for command in (f"{tool} <(zcat {zipped})", f"zcat {zipped} | {tool} /dev/stdin", f"{tool} - < {zipped}"):
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["total_input_tokens"] == 15_000


@pytest.mark.slow
def test_what_should_be_known_of_a_file_is_said(run: Run) -> None:
    """By every command that reads traces."""
    path = str(FILES / "vllm_detailed.json")
    limits = ("--goodput", "ttft:5000", "--json")
    for args in (
        ("simulate",),
        ("simulate", "--find-capacity", "--jobs", "1"),
        ("search", "--num-gpus", "1", "--mode", "aggregated"),
    ):
        ran = run(args[0], MODEL, *args[1:], "--gpu", GPU, "--trace", path, *limits)
        assert ran.code == 0, ran.err
        assert any("1 of 4 requests failed" in warning for warning in ran.json["warnings"]), args


def test_a_table_says_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1, "usage": {"in": {"x": 2}}}\n')
    assert column_names(path) == ["a", "usage", "usage.in", "usage.in.x"]
    with open_table(path) as table:
        (chunk,) = table.chunks(["usage.in.x", "b"])
    assert chunk.columns == {"usage.in.x": [2]}
