"""Measured against predicted: errors by hand, replayed requests, calibrations that are fitted again, pictures."""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Ran
from hypothesis import given
from hypothesis import strategies as st

from inferometer.base.errors import BadFile, BadValue
from inferometer.inference.analyze import analyze
from inferometer.serving.metrics import latencies
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.specs.calibration import as_toml, calibration
from inferometer.specs.structs import Calibration
from inferometer.validation.fit_calibration import Fit, Trial, fit_calibration
from inferometer.validation.validate import (
    Validation,
    compare,
    error_statistics,
    measured_latencies,
    validate,
    validate_memory,
)
from inferometer.views.files import rows_csv

Command = Callable[..., Ran]
MODEL, GPU = "qwen3-0.6b", "h200"
TALK = synthetic(
    num_prompts=40,
    request_rate=6.0,
    input_len="lognormal:mean=900,std=900,max=6000",
    output_len="lognormal:mean=80,std=60",
    seed=3,
)
ALONE = Trace(input_tokens=TALK.input_tokens, output_tokens=TALK.output_tokens)
FEW = Trace(input_tokens=TALK.input_tokens[:16], output_tokens=TALK.output_tokens[:16])


def measured(trace: Trace, truth: Calibration | None = None, **kwargs: Any) -> Trace:
    """A trace with what an engine would have measured if ``truth`` held of it."""
    import msgspec

    times = latencies(simulate(MODEL, GPU, trace=trace, frontend="in-process", calibration=truth, **kwargs))
    names = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2el"}
    return msgspec.structs.replace(trace, measured={k: times[v] for k, v in names.items()}, source="made up")


def write(path: Path, trace: Trace) -> Path:
    outcome = simulate(MODEL, GPU, trace=trace, frontend="in-process")
    path.write_text(rows_csv(outcome))
    return path


# ------------------------------------------------------------------ statistics


def test_errors_by_hand() -> None:
    e = error_statistics(np.array([11.0, 18.0, 33.0, np.nan, 5.0]), np.array([10.0, 20.0, 30.0, 4.0, np.nan]))
    assert e.requests == 3 and e.mape == pytest.approx(0.1) and e.median_ape == pytest.approx(0.1)
    assert e.max_ape == pytest.approx(0.1) and e.bias == pytest.approx(0.1 / 3)
    assert e.mean_error == pytest.approx(62 / 60 - 1) and e.measured_mean_ms == 20
    assert e.pearson_r == pytest.approx(np.corrcoef([11, 18, 33], [10, 20, 30])[0, 1])
    assert error_statistics(np.array([2.0, 3.0]), np.array([1.0, 1.0])).pearson_r is None, (
        "what does not vary has no correlation"
    )
    assert error_statistics(np.array([1.0]), np.array([0.0])).requests == 0, "no error is relative to nothing"


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=30))
def test_errors_are_ordered(pairs: list[tuple[float, float]]) -> None:
    e = error_statistics(np.array([p for p, _ in pairs]), np.array([m for _, m in pairs]))
    assert e.mape is not None and e.max_ape is not None and e.median_ape is not None and e.bias is not None
    assert abs(e.bias) <= e.mape * (1 + 1e-9) and e.mape <= e.max_ape * (1 + 1e-9) and e.median_ape <= e.max_ape
    assert e.pearson_r is None or -1 - 1e-9 <= e.pearson_r <= 1 + 1e-9


def test_what_the_file_lacks_follows_from_the_rest() -> None:
    tokens = {"input_tokens": np.array([5, 5]), "output_tokens": np.array([11, 1])}
    times = measured_latencies(
        Trace(**tokens, measured={"TTFT": np.array([10.0, 20.0]), "E2E": np.array([60.0, 20.0])})
    )
    assert times["tpot"][0] == 5 and np.isnan(times["tpot"][1])
    times = measured_latencies(Trace(**tokens, measured={"TTFT": np.array([10.0, 20.0]), "TPOT": np.array([5.0, 9.0])}))
    assert times["e2el"].tolist() == [60, 20] and np.isnan(times["tpot"][1])
    with pytest.raises(BadFile, match="has no measurements: at least one of the columns TTFT, TPOT, E2E"):
        measured_latencies(Trace(**tokens, source="x.csv"))


@pytest.mark.parametrize("command", [("validate", "--measured"), ("simulate", "--trace")], ids=["validate", "simulate"])
def test_times_that_cannot_be_are_refused_with_their_row(
    run: Command, tmp_path: Path, command: tuple[str, str]
) -> None:
    rows, whole, tiny = tmp_path / "rows.csv", tmp_path / "result.json", tmp_path / "tiny.csv"
    tiny.write_text("input_tokens,output_tokens,TTFT,TPOT\n9,5,20,9\n9,5,20,1e-320\n")
    rows.write_text("input_tokens,output_tokens,TTFT,E2E\n9,5,20,90\n9,1,20.001,20\n9,5,1000,1\n9,5,7,6\n")
    whole.write_text(
        '{"completed": 4, "total_input_tokens": 36, "total_output_tokens": 20, "request_rate": 1.0, '
        '"mean_ttft_ms": 1000, "mean_e2el_ms": 1}'
    )
    for file, sentence in (
        (rows, "row 3 has a TTFT of 1000 ms, above its E2E of 1 ms (1 more rows, too)"),
        (whole, "mean_ttft_ms 1000 is above mean_e2el_ms 1"),
        (tiny, "row 2 has a TPOT of 9.99989e-321 ms, shorter than any clock shows"),
    ):
        ran = run(command[0], MODEL, "--gpu", GPU, command[1], str(file))
        assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1


def test_no_number_is_null_in_json_and_no_cell_in_csv() -> None:
    import json

    from inferometer.cli.output import as_json, table_csv

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    odd = {"a": float("nan"), "b": [float("inf"), -float("inf")], "c": np.float64("nan").item()}
    assert json.loads(as_json(odd), parse_constant=refuse) == {"a": None, "b": [None, None], "c": None}
    assert table_csv([{"a": float("nan"), "b": 1.5, "c": "inf"}]) == "a,b,c\n,1.5,inf\n", "a word is a word"


# ------------------------------------------------------------------ replayed


@pytest.mark.parametrize("trace", [TALK, ALONE], ids=["with arrivals", "one at a time"])
def test_a_perfect_prediction_has_no_error(trace: Trace, tmp_path: Path) -> None:
    validation = validate(MODEL, GPU, measured=write(tmp_path / "rows.csv", trace))
    assert max(e.max_ape or 0.0 for e in validation.errors.values()) < 0.002, "but for the digits of the file"
    assert set(validation.errors) == {"ttft", "tpot", "e2el"}


def test_the_front_end_stands_in_process_unless_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", ALONE)
    inside, outside = (validate(MODEL, GPU, measured=path, **w) for w in ({}, {"frontend": "http"}))
    more = (outside.predicted["ttft"] - inside.predicted["ttft"]).mean()
    assert more > 1 and (outside.errors["ttft"].bias or 0) > 0.01


def test_json_has_both_sides(run: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "chat.csv", TALK)
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", str(tmp_path), "--json", "--goodput", "ttft:1e5")
    data = ran.json
    assert ran.code == 0 and data["schema"] == "inferometer.validate/1" and data["num_prompts"] == 40
    keys = {"mape", "median_ape", "max_ape", "bias", "pearson_r"}
    assert all(keys <= set(data["errors"][metric]) for metric in ("ttft", "tpot", "e2el"))
    for key in ("mean_ttft_ms", "p99_tpot_ms", "median_e2el_ms", "completed", "duration", "request_throughput"):
        assert data[key] == pytest.approx(data["measured"][key], rel=0.01), key
    assert data["request_goodput"] == pytest.approx(data["request_throughput"])
    again = run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--json", "--goodput", "ttft:1e5").json
    assert again == data, "a folder stands for its chat.csv"


def test_table_and_rows(run: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", ALONE)
    shown = run("validate", MODEL, "--gpu", GPU, "--measured", str(path))
    assert shown.code == 0 and "TPOT" in shown.out and "rows.csv" in shown.out
    rows = list(csv.DictReader(io.StringIO(run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--csv").out)))
    assert len(rows) == 3 * 40 and {row["metric"] for row in rows} == {"ttft", "tpot", "e2el"}
    assert all(abs(float(row["error"])) < 0.002 for row in rows if row["error"])
    assert "nan" not in {cell for row in rows for cell in row.values()}, "an answer of one token has no TPOT: no cell"
    out = tmp_path / "simulated.csv"
    run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--requests-out", str(out))
    assert len(list(csv.DictReader(out.open()))) == 40


# ------------------------------------------------------------------ calibrations


TRUTH = Calibration(prefill=1.3, decode=0.8, request=0.006)


def fitted(seen: Trace, **kwargs: Any) -> Fit:
    """What `validate --write-calibration` fits to a measured trace."""
    before = validate(MODEL, GPU, measured=seen, **kwargs)
    return fit_calibration(lambda c: validate(MODEL, GPU, measured=seen, calibration=c, **kwargs), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "max_concurrency"),
    [(TALK, None), (ALONE, 8), (ALONE, None)],
    ids=["with arrivals", "closed loop", "one at a time"],
)
def test_a_calibration_is_recovered(trace: Trace, max_concurrency: int | None) -> None:
    """Steps have borders: a small change of a factor moves requests across them, which must not pass for a slope."""
    loop = {"max_concurrency": max_concurrency}
    fit = fitted(measured(trace, TRUTH, **loop), **loop)
    got = fit.calibration
    assert (got.prefill, got.decode) == (pytest.approx(1.3, rel=0.02), pytest.approx(0.8, rel=0.02))
    assert got.request == pytest.approx(0.006, rel=0.02) and not fit.objection()
    for metric in ("ttft", "tpot"):
        assert (fit.before.errors[metric].mape or 0) > 0.1 and fit.unseen[metric] < 0.04, "rows that were left out, too"


def scattered(truth: Calibration, ttft_noise: float, tpot_noise: float) -> Fit:
    """The fit to 60 requests that run alone, of which every figure is a formula, with noise on what was measured."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(50, 3000, 60)
    trace = Trace(input_tokens=tokens, output_tokens=np.full(60, 50))

    def times(made: Calibration) -> dict[str, np.ndarray]:
        return {"ttft": 5 + 0.03 * tokens * made.prefill + 1e3 * made.request, "tpot": np.full(60, 6.0) * made.decode}

    noise = {"ttft": ttft_noise, "tpot": tpot_noise}
    seen = {name: ms * np.exp(rng.normal(0, noise[name], 60)) for name, ms in times(truth).items()}

    def replay(made: Calibration) -> Validation:
        predicted = times(made)
        errors = {metric: error_statistics(predicted[metric], seen[metric]) for metric in seen}
        return Validation(trace=trace, outcome=None, measured=seen, predicted=predicted, errors=errors)

    return fit_calibration(replay, replay(Calibration()))


def test_noise_is_no_calibration() -> None:
    """Measurements that scatter around what is predicted: chance, on whatever rows."""
    assert "does not help on held-out rows (TTFT" in scattered(Calibration(), 0.1, 0.1).objection()


def test_a_metric_that_is_noise_moves_none_of_its_figures() -> None:
    """TPOT tells a decode factor; TTFT scatters, and must not become a prefill factor because TPOT gains."""
    fit = scattered(Calibration(decode=0.8), 0.3, 0.01)
    assert not fit.objection() and fit.calibration.decode == pytest.approx(0.8, rel=0.02)
    assert (fit.calibration.prefill, fit.calibration.request) == (1.0, 0.0)


def test_what_helps_some_rows_and_hurts_others_is_a_loss() -> None:
    """Too long by as much as it was too short: the logarithm is the same, and the error that is shown four times."""
    was, now = np.full(50, -7 / 12), np.full(50, 1.4)
    assert Trial(was, now).gain() == -1 and Trial(now, was).gain() == 0
    assert Trial(was, was / 2).gain() == 1 and Trial(was, was * 0.99).gain() == 0


def test_a_metric_that_fits_is_not_made_worse_to_help_the_other() -> None:
    """TTFT could be right with slower decoding, which would make a TPOT wrong that is right."""
    trace = Trace(input_tokens=np.full(20, 100), output_tokens=np.full(20, 50))
    measured_ms = {"ttft": np.full(20, 100.0), "tpot": np.full(20, 10.0)}

    def replay(made: Calibration) -> Validation:
        predicted = {"ttft": np.full(20, 50.0) * made.decode**3, "tpot": np.full(20, 10.0) * made.decode}
        errors = {metric: error_statistics(predicted[metric], measured_ms[metric]) for metric in predicted}
        return Validation(trace=trace, outcome=None, measured=measured_ms, predicted=predicted, errors=errors)

    fit = fit_calibration(replay, replay(Calibration()))
    assert fit.calibration.decode == pytest.approx(1.0, abs=1e-3)
    assert "does not help on held-out rows (TPOT 0.0% off before" in fit.objection()


@pytest.mark.slow
def test_a_calibration_that_does_not_help_is_not_written(run: Command, tmp_path: Path) -> None:
    rows, file = write(tmp_path / "rows.csv", FEW), tmp_path / "same.toml"
    command = ("validate", MODEL, "--gpu", GPU, "--measured", str(rows), "--write-calibration", str(file))
    ran = run(*command, "--json")
    assert ran.code == 1 and not file.exists() and ran.json["calibration"]["written"] is False
    assert "does not help on held-out rows" in ran.err and "use --force to write it anyway" in ran.err
    assert ran.json["completed"] == 16, "the comparison itself is there"
    shown = run(*command, "--force")
    assert shown.code == 0 and file.exists() and "does not help" in shown.out and "was not written" not in shown.out
    assert run("validate", MODEL, "--measured", str(rows), "--force").code == 2


@pytest.mark.slow
def test_outliers_do_not_move_it() -> None:
    seen = measured(ALONE, TRUTH)
    for column in seen.measured.values():
        column[::13] *= 8
    before = validate(MODEL, GPU, measured=seen)
    fit = fit_calibration(lambda c: validate(MODEL, GPU, measured=seen, calibration=c), before)
    assert (fit.calibration.prefill, fit.calibration.decode) == (
        pytest.approx(1.3, rel=0.08),
        pytest.approx(0.8, rel=0.03),
    )


def test_a_few_requests_that_get_worse_do_not_veto_a_step() -> None:
    """Nine requests are a fifth too slow; two wait eight times as long once steps are faster than in the start."""
    trace = Trace(input_tokens=np.full(11, 100), output_tokens=np.full(11, 50))
    tpot = np.full(11, 10.0)

    def replay(made: Calibration) -> Validation:
        predicted = 1.2 * tpot * made.decode
        predicted[9:] *= 8 if made.decode < 0.99 else 1
        both = {"tpot": error_statistics(predicted, tpot)}
        return Validation(
            trace=trace, outcome=None, measured={"tpot": tpot}, predicted={"tpot": predicted}, errors=both
        )

    fit = fit_calibration(replay, replay(Calibration()))
    assert fit.calibration.decode == pytest.approx(1 / 1.2, rel=0.02)
    before, after = (e["tpot"] for e in (fit.before.errors, fit.after.errors))
    assert (after.median_ape or 1) < 0.02 < (before.median_ape or 0) and (before.mape or 0) < (after.mape or 0), (
        "though the mean grew"
    )


@pytest.mark.slow
def test_few_rows_move_it_little_where_they_cannot_tell() -> None:
    """One prompt's length does not tell a factor from a time per request: both move, and together they are right."""
    one = Trace(input_tokens=np.array([2000, 2000]), output_tokens=np.array([1, 1]))
    seen = measured(one, Calibration(prefill=1.5))
    before = validate(MODEL, GPU, measured=seen)
    fit = fit_calibration(lambda c: validate(MODEL, GPU, measured=seen, calibration=c), before)
    assert fit.calibration.decode == pytest.approx(1.0, abs=1e-6), "nothing was said about answers"
    assert (fit.after.errors["ttft"].mape or 1) < 0.02


@pytest.mark.slow
def test_the_file_goes_to_analyze_and_simulate(run: Command, tmp_path: Path) -> None:
    seen = measured(ALONE, TRUTH)
    rows = tmp_path / "seen.csv"
    columns = zip(seen.input_tokens, seen.output_tokens, seen.measured["TTFT"], seen.measured["TPOT"], strict=True)
    rows.write_text(
        "input_tokens,output_tokens,TTFT,TPOT\n"
        + "".join(f"{i},{o},{a},{'' if np.isnan(b) else b}\n" for i, o, a, b in columns)
    )
    calibration_file = tmp_path / "calibration.toml"
    ran = run(
        "validate", MODEL, "--gpu", GPU, "--measured", str(rows), "--write-calibration", str(calibration_file), "--json"
    )
    assert ran.code == 0 and str(calibration_file) in ran.err
    shown_calibration = ran.json["calibration"]
    written = calibration(str(calibration_file))
    assert (written.model, written.gpu, written.engine, written.requests) == (MODEL, GPU, "vllm", 40)
    assert written.decode == pytest.approx(shown_calibration["decode"], rel=1e-4)
    assert set(shown_calibration["error"]["tpot"]) == {"before", "after", "unseen"}
    plain, moved = (analyze(MODEL, GPU, output_len=200, **w) for w in ({}, {"calibration": str(calibration_file)}))
    assert moved.metrics.tpot_ms == pytest.approx((plain.metrics.tpot_ms or 0) * written.decode)
    ops = moved.phases["decode"].ops
    assert sum(op.seconds for op in ops) == pytest.approx(moved.phases["decode"].seconds)
    assert moved.roofline == plain.roofline and not moved.warnings
    traffic = ("--num-prompts", "5", "--input-len", "100", "--output-len", "50", "--request-rate", "0.001", "--json")
    a, b = (
        run("simulate", MODEL, "--gpu", GPU, *traffic, *more).json
        for more in ((), ("--calibration", str(calibration_file)))
    )
    assert b["mean_tpot_ms"] == pytest.approx(a["mean_tpot_ms"] * written.decode, rel=0.01)
    shown = run("validate", MODEL, "--gpu", GPU, "--measured", str(rows), "--write-calibration", str(calibration_file))
    assert "decode × 0.8" in shown.out and "held out" in shown.out


@pytest.mark.parametrize(
    ("plan", "differs"),
    [
        (["llama-3.1-8b", "--gpu", "h200"], ""),
        (["qwen3-8b", "--gpu", "h200"], "qwen3-8b on h200 with vllm 0.28 in bf16"),
        (["llama-3.1-8b", "--gpu", "h100-sxm"], "llama-3.1-8b on h100-sxm"),
        (["llama-3.1-8b", "--gpu", "h200", "-q", "fp8"], "vllm 0.28 in fp8"),
        (["llama-3.1-8b", "--gpu", "h200", "--kv-cache-dtype", "fp8"], "vllm 0.28 in bf16, KV fp8"),
        (["llama-3.1-8b", "--gpu", "h200", "--engine", "vllm@0.14"], "with vllm 0.14"),
        (["llama-3.1-8b", "--gpu", "h200", "--engine", "sglang"], "with sglang"),
    ],
)
def test_a_calibration_of_something_else_is_said(run: Command, tmp_path: Path, plan: list[str], differs: str) -> None:
    file = tmp_path / "mine.toml"
    origin = Calibration(
        decode=1.1, model="llama-3.1-8b", gpu="h200", engine="vllm", version="0.28", precision="bf16", requests=9
    )
    file.write_text(as_toml(origin))
    warnings = run("analyze", *plan, "--calibration", str(file), "--json").json["warnings"]
    said = [line for line in warnings if "the calibration was made for llama-3.1-8b on h200 with vllm 0.28" in line]
    assert len(said) == bool(differs) and all(differs in line.partition(", but this is ")[2] for line in said)


@given(st.floats(0.02, 50), st.floats(0.02, 50), st.floats(-1, 1), st.text(max_size=20))
def test_a_calibration_file_is_read_as_it_was_written(a: float, b: float, c: float, source: str) -> None:
    import tomllib

    import msgspec

    made = Calibration(prefill=a, decode=b, request=c, measured=source, error={"ttft": {"before": 0.1}})
    read = msgspec.convert(tomllib.loads(as_toml(made)), Calibration)
    assert (read.prefill, read.decode) == (pytest.approx(a, rel=1e-5), pytest.approx(b, rel=1e-5))
    assert (
        read.request == pytest.approx(c, rel=1e-5, abs=1e-12) and read.measured == source and read.error == made.error
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prefill = 0", "prefill must be a factor from 0.01 to 100, not 0"),
        ("decode = 'fast'", "`decode` must be a number, not 'fast'"),
        ("request = 1e9", "request must be from -60 to 60 s"),
        ("speed = 2", "`speed` is not known; allowed: prefill, decode"),
        ("prefill =", "is not valid TOML"),
        ("", "has none of prefill, decode, mixed, eager, host and request, so it would change nothing"),
        ("gpu = 'h200'", "so it would change nothing"),
    ],
)
def test_a_bad_calibration_is_one_sentence(run: Command, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    ran = run("analyze", MODEL, "--calibration", str(path))
    assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1


# ------------------------------------------------------------------ memory


MEMORY = (
    "Model,Platform,Input_Tokens,Output_Tokens,Weights (MB),KV Prefill (MB),KV Total (MB),KV Decode Delta (MB)\n"
    "llama2_7b,RTX3090,4096,128,12852.51,2306.75,2376.76,70.01\n"
)


def test_memory(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "kv.csv"
    path.write_text(MEMORY)
    held = {h.what: h for h in validate_memory("llama-2-7b", "rtx3090", measured=path)}
    assert held["weights"].error == pytest.approx(0, abs=0.001)
    assert held["kv_prefill"].predicted_bytes == 4096 * 2 * 32 * 4096 * 2, (
        "tokens, keys and values, layers, width, bytes"
    )
    assert (
        held["kv_total"].predicted_bytes - held["kv_prefill"].predicted_bytes == held["kv_decode_delta"].predicted_bytes
    )
    rows_of_json = run("validate", "llama-2-7b", "--gpu", "rtx3090", "--memory", str(path), "--json").json["memory"]
    assert [row["what"] for row in rows_of_json] == list(held)
    assert "weights" in run("validate", "llama-2-7b", "--gpu", "rtx3090", "--memory", str(path)).out
    rows = csv.DictReader(io.StringIO(run("validate", "llama-2-7b", "--memory", str(path), "--csv").out))
    assert len(list(rows)) == 4


# ------------------------------------------------------------------ pictures


def size(path: Path) -> tuple[int, int]:
    """Width and height that a PNG file states."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", data[16:24])
    return wide, high


@pytest.mark.slow
def test_pictures(run: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", TALK)
    folder = tmp_path / "plots"
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--plot", str(folder), "--json")
    assert ran.code == 0 and ran.err.count("wrote ") == 4
    sizes = {p.stem: size(p) for p in folder.iterdir()}
    assert sizes == {"errors": (1905, 645), "values": (1905, 615), "scatter": (1905, 735), "breakdown": (1500, 1905)}
    assert all(p.stat().st_size > 10_000 for p in folder.iterdir()), "something is drawn"


@pytest.mark.slow
def test_pictures_of_little(tmp_path: Path) -> None:
    """One request, no TTFT, requests that failed: nothing breaks, and there is a file of each."""
    from inferometer.views.text.validation import write_validation

    one = Trace(
        input_tokens=np.array([50, 60]), output_tokens=np.array([1, 9]), measured={"TPOT": np.array([np.nan, 4.0])}
    )
    validation = compare(one, simulate(MODEL, GPU, trace=one))
    assert len(write_validation(validation, tmp_path, "x")) == 4
    gone = Trace(
        input_tokens=np.array([50]),
        output_tokens=np.array([5]),
        measured={"TTFT": np.array([np.nan]), "E2E": np.array([np.nan])},
    )
    assert len(write_validation(compare(gone, simulate(MODEL, GPU, trace=gone)), tmp_path, "x")) == 4


# ------------------------------------------------------------------ bad requests, and the real thing


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "validate needs --measured FILE, --step-log FILE, --memory FILE or several of them, or --url"),
        (["--memory", "kv.csv", "--plot", "x"], "--plot needs --measured FILE"),
        (["--measured", "none.csv"], "there is no such file"),
        (["--measured", "plain.csv"], "(ms); one of another name or unit is named with --columns ttft_s=NAME"),
        (["--measured", "blank.csv"], "blank.csv has no measurements: TTFT, E2E are empty or 0 in every row"),
        (["--probe"], "--probe needs --url"),
        (["--memory", "plain.csv"], "measured memory has Input_Tokens, Output_Tokens and some of Weights (MB)"),
        (
            ["--measured", "rows.csv", "--write-calibration", "a.toml", "--calibration", "b.toml"],
            "--write-calibration fits uncalibrated predictions",
        ),
        (["--measured", "rows.csv", "--calibration", "none.toml"], "no calibration file 'none.toml'"),
        (["--measured", "rows.csv", "--gpu", "h10"], "unknown GPU 'h10'"),
        (["--measured", "rows.csv", "--gpu", "h200,h100-sxm"], "validate takes one GPU type"),
        (["--measured", "rows.csv", "--plot", ""], "--plot needs the name of a folder"),
        (["--measured", "rows.csv", "--goodput", "ttft"], "--goodput takes pairs"),
        (["--measured", "rows.csv", "--diagnose", "--csv"], "--diagnose has no rows: leave it out, or --csv"),
    ],
)
def test_bad_requests_are_one_sentence(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], sentence: str
) -> None:
    (tmp_path / "plain.csv").write_text("input_tokens,output_tokens\n5,5\n")
    (tmp_path / "rows.csv").write_text("input_tokens,output_tokens,TTFT\n5,5,1\n")
    (tmp_path / "blank.csv").write_text("input_tokens,output_tokens,TTFT,E2E\n5,5,,\n5,5,0,0\n")
    (tmp_path / "kv.csv").write_text(MEMORY)
    monkeypatch.chdir(tmp_path)
    ran = run("validate", MODEL, *args)
    assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1 and ran.out == ""


ROWS = "arrival_s,input_tokens,output_tokens,TTFT,TPOT,E2E\n"


@pytest.mark.parametrize(
    ("times", "notes"),
    [
        ((8.0, 2.0, 70.0), []),
        ((0.008, 0.002, 0.07), ["TTFT, TPOT, E2E are about 1,000 times shorter than predicted: if they are seconds"]),
        ((8e3, 2e3, 7e4), ["about 1,000 times longer than predicted: if they are microseconds, say so with --columns"]),
        (
            (8.0, 0.002, 70.0),
            [
                "TPOT is about 1,000 times shorter than predicted: if they are seconds, say so with --columns tpot_s=",
                "TTFT + TPOT × (output tokens - 1) is 0.115 times E2E in the median row",
            ],
        ),
        ((8.0, 70.0 / 32, 8.0 + 31 * 70.0 / 32), []),
    ],
)
def test_times_that_are_odd_are_said(
    run: Command, tmp_path: Path, times: tuple[float, float, float], notes: list[str]
) -> None:
    cells = ",".join(f"{time:.6g}" for time in times)
    path = tmp_path / "rows.csv"
    path.write_text(ROWS + "".join(f"{k}.5,200,32,{cells}\n" for k in range(8)))
    warnings = run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--json").json["warnings"]
    assert len(warnings) == len(notes) and all(note in text for note, text in zip(notes, warnings, strict=True)), (
        warnings
    )


def test_rows_without_times_and_rows_that_stand_twice_are_said(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    plain = [f"{k}.5,200,32,{8 + k / 10:g},2,\n" for k in range(8)]
    for rows, note in (
        ([*plain, "9,200,32,,,\n", "9.5,200,32,,,\n"], "2 of 10 requests have no times: they are simulated, but not"),
        ([row for row in plain for _ in (0, 1)], "8 rows of 16 repeat another one, down to its times"),
    ):
        path.write_text(ROWS + "".join(rows))
        warnings = run("validate", MODEL, "--gpu", GPU, "--measured", str(path), "--json").json["warnings"]
        assert len(warnings) == 1 and note in warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--write-calibration", "--requests-out", "--output"])
def test_what_is_read_is_not_replaced(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("rows.csv")
    path.write_text("input_tokens,output_tokens,TTFT,TPOT\n50,9,10,2\n500,9,20,2\n")
    before = path.read_bytes()
    ran = run("validate", MODEL, "--measured", "rows.csv", option, str(tmp_path / "rows.csv"))
    assert ran.code == 2 and f"{option} would replace" in ran.err and path.read_bytes() == before
    ran = run("validate", MODEL, "--measured", "rows.csv", "--write-calibration", "x", "--requests-out", "./x")
    assert ran.code == 2 and "are both" in ran.err and not Path("x").exists()
    assert run("validate", MODEL, "--measured", "rows.csv", option, MODEL).code in (0, 1), (
        "the name of a model is no file"
    )


def test_a_calibration_needs_something_to_fit() -> None:
    only = Trace(input_tokens=np.array([50]), output_tokens=np.array([5]), measured={"E2E": np.array([40.0])})
    before = compare(only, simulate(MODEL, GPU, trace=only))
    with pytest.raises(BadValue, match="a calibration needs measured TTFT or TPOT"):
        fit_calibration(lambda c: before, before)


@pytest.mark.parametrize(
    ("file", "model", "gpu"),
    [
        ("h200_first_llama-3.1-8b_code_r8.csv", "llama-3.1-8b", "h200"),
        ("h200_first_llama-3.1-8b_chat_r4.csv", "llama-3.1-8b", "h200"),
        ("h200_first_llama-3.1-8b_sum_r2.csv", "llama-3.1-8b", "h200"),
    ],
)
def test_real_servers(file: str, model: str, gpu: str) -> None:
    validation = validate(model, gpu, measured=ROOT / "benchmarks" / "data" / file, max_num_seqs=256)
    for metric in ("tpot", "e2el"):
        assert (
            abs(validation.errors[metric].mean_error or 1) < 0.15 and (validation.errors[metric].pearson_r or 0) > 0.8
        )
    assert abs(validation.errors["ttft"].mean_error or 1) < 0.2


def test_nothing_is_written_before_all_files_are_read(run: Command, tmp_path: Path) -> None:
    rows, memory, fitted = (tmp_path / name for name in ("rows.csv", "kv.csv", "fitted.toml"))
    rows.write_text("input_tokens,output_tokens,TTFT,TPOT\n5,5,10,2\n500,9,20,2\n")
    memory.write_text("otal (MB)\n1\n")
    ran = run("validate", MODEL, "--measured", str(rows), "--write-calibration", str(fitted), "--memory", str(memory))
    assert ran.code == 2 and ran.err.count("\n") == 1 and not fitted.exists()
