"""Calibrations from step logs: a truth comes back from noise, carries over to other rates, and real rows gain by it."""

from __future__ import annotations

import csv
import gzip
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
from conftest import ROOT, Ran, refused
from helpers.step_logs import forward_pass_lines, simulated_steps, vllm_lines

from inferometer.serving.logged_step import LoggedStep, StepLog
from inferometer.serving.simulate import simulate
from inferometer.serving.step_log import read_step_log
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.specs.calibration import calibration
from inferometer.specs.structs import Calibration
from inferometer.validation.fit_steps import StepPredictor, compare_steps, fit_steps
from inferometer.validation.step_times import from_result_to_result, own_times

Command = Callable[..., Ran]
MODEL, GPU = "llama-3.1-8b", "h200"
TRUTH = Calibration(prefill=1.2, decode=0.9)


def traffic(rate: float, seed: int, requests: int = 120) -> Trace:
    lengths = {"input_len": "lognormal:mean=900,std=900,max=6000", "output_len": "lognormal:mean=80,std=60"}
    return synthetic(num_prompts=requests, request_rate=rate, seed=seed, **lengths)


@pytest.fixture(scope="module")
def steps() -> list[LoggedStep]:
    """Every step of a server whose prompts are slower and whose decode steps are faster than predicted, 3% noise."""
    return simulated_steps(MODEL, GPU, traffic(8.0, seed=3), TRUTH, noise=0.03)


def log_of(steps: list[LoggedStep]) -> StepLog:
    return StepLog(steps=[step._replace(stream="0") for step in steps], kind="a simulation", source="steps")


@pytest.mark.slow
def test_factors_come_back_and_carry_over_to_other_rates(steps: list[LoggedStep]) -> None:
    """The issue's bounds: 2% of the factors; of other rates 2% (decode) and 4% (prompts)."""
    fit = fit_steps(MODEL, GPU, log_of(steps), {})
    got = fit.calibration
    assert (got.decode, got.prefill) == (pytest.approx(0.9, rel=0.02), pytest.approx(1.2, rel=0.02))
    assert (got.mixed, got.host) == (1.0, 1.0) and not fit.objection()
    for name in ("decode", "mixed"):
        one = fit.classes[name]
        assert one.unseen is not None and one.unseen < 0.035 < 0.1 < (one.unseen_before or 0), "noise alone is left"
    for rate in (2.0, 15.0):
        other = traffic(rate, seed=11)
        true, ours, plain = (
            simulate(MODEL, GPU, trace=other, frontend="in-process", calibration=each).summary()
            for each in (TRUTH, got, None)
        )
        assert ours["mean_tpot_ms"] == pytest.approx(true["mean_tpot_ms"], rel=0.02)
        assert ours["mean_ttft_ms"] == pytest.approx(true["mean_ttft_ms"], rel=0.04)
        assert abs(plain["mean_ttft_ms"] / true["mean_ttft_ms"] - 1) > 0.1, "without it they are not"


def made_up(truth: Calibration, count: int, noise: float, model: str = MODEL) -> StepLog:
    """Steps of all classes, each as long as the truth says."""
    rng = np.random.default_rng(0)
    rows = []
    for kind in rng.integers(0, 3, count).tolist():
        seqs = int(rng.integers(1, 100)) if kind < 2 else 0
        new = int(rng.integers(100, 8000)) if kind else 0
        rows.append(LoggedStep(new, int(new > 0), 0, seqs, float(seqs * rng.integers(200, 2000)), 1.0))
    seconds = StepPredictor(model, GPU, {"calibration": truth}).seconds(rows)
    seconds = seconds * np.exp(rng.normal(0, noise, count))
    return StepLog(
        steps=[row._replace(seconds=float(s)) for row, s in zip(rows, seconds, strict=True)], kind="", source="made up"
    )


@pytest.mark.slow
def test_every_figure_comes_back() -> None:
    truth = Calibration(prefill=1.2, decode=0.9, mixed=1.1)
    got = fit_steps(MODEL, GPU, made_up(truth, 300, 0.02), {}).calibration
    assert (got.prefill, got.decode, got.mixed) == tuple(pytest.approx(x, rel=0.02) for x in (1.2, 0.9, 1.1))
    small = made_up(Calibration(prefill=1.2, host=1.4), 300, 0.01, model="qwen3-0.6b")
    got = fit_steps("qwen3-0.6b", GPU, small, {}).calibration
    assert (got.prefill, got.decode) == (pytest.approx(1.2, rel=0.03), pytest.approx(1.0, rel=0.03))
    assert got.host == pytest.approx(1.4, rel=0.03), "small steps wait for the host, large ones do not"


@pytest.mark.slow
def test_noise_corrects_nothing_and_outliers_move_nothing() -> None:
    fit = fit_steps(MODEL, GPU, made_up(Calibration(), 150, 0.05), {})
    assert "no figure makes steps better that it did not see (decode" in fit.objection()
    log = made_up(Calibration(decode=0.9), 150, 0.01)
    log.steps[::9] = [step._replace(seconds=20 * step.seconds) for step in log.steps[::9]]
    assert fit_steps(MODEL, GPU, log, {}).calibration.decode == pytest.approx(0.9, rel=0.02)


def test_a_few_steps_are_no_calibration() -> None:
    fit = fit_steps(MODEL, GPU, made_up(Calibration(decode=0.5), 12, 0.0), {})
    assert fit.calibration == Calibration() and "too few to fit a figure" in fit.classes["decode"].note
    assert fit.objection()


@pytest.mark.slow
def test_from_a_log_to_a_calibration_to_a_prediction(run: Command, tmp_path: Path, steps: list[LoggedStep]) -> None:
    log, file = tmp_path / "server.log", tmp_path / "calibration.toml"
    log.write_text("\n".join(vllm_lines(steps[:1500], 900_000)), encoding="utf-8")
    plain = run("validate", MODEL, "--gpu", GPU, "--step-log", str(log), "--json").json
    assert plain["step_log"]["kind"] == "vLLM's iterations" and "calibration" not in plain
    assert {row["class"] for row in plain["step_log"]["classes"]} >= {"decode", "mixed"}
    memory = tmp_path / "memory.csv"
    memory.write_text("Input_Tokens,Output_Tokens,Weights (MB),KV Total (MB)\n512,16,15316,66\n", encoding="utf-8")
    both = run("validate", MODEL, "--gpu", GPU, "--step-log", str(log), "--memory", str(memory), "--json").json
    assert both["step_log"] == plain["step_log"] and both["memory"], "rows of memory are no classes of steps"
    command = ("validate", MODEL, "--gpu", GPU, "--step-log", str(log), "--write-calibration", str(file))
    shown = run(*command)
    assert shown.code == 0 and "calibration: prompts × 1." in shown.out and str(file) in shown.err
    written = calibration(str(file))
    assert written.prefill == pytest.approx(1.2, rel=0.02), "made up without clocks that fall"
    assert written.steps and written.model == MODEL and written.gpu == GPU and written.error["decode"]["unseen"] < 0.06
    tpot = [
        run("analyze", MODEL, "--gpu", GPU, *more, "--json").json["metrics"]["tpot_ms"]
        for more in ((), ("--calibration", str(file)))
    ]
    assert tpot[1] / tpot[0] == pytest.approx(written.decode, rel=1e-3)
    other = run("analyze", "qwen3-8b", "--gpu", GPU, "--calibration", str(file), "--json").json["warnings"]
    assert any("made for llama-3.1-8b on h200" in warning for warning in other), "never silently for something else"


def test_a_log_that_does_not_help_writes_nothing(run: Command, tmp_path: Path) -> None:
    log, file = tmp_path / "fpm.jsonl", tmp_path / "same.toml"
    rows = [step for step in made_up(Calibration(), 150, 0.03).steps if not step.prefill_tokens]
    log.write_text("\n".join(forward_pass_lines(rows, traced=True)), encoding="utf-8")
    command = ("validate", MODEL, "--gpu", GPU, "--step-log", str(log), "--write-calibration", str(file))
    ran = run(*command, "--json")
    assert ran.code == 1 and not file.exists() and ran.json["calibration"]["written"] is False
    assert "use --force to write it anyway" in ran.err
    refused(
        run("validate", MODEL, "--step-log", str(log), "--measured", "x.csv", "--write-calibration", "y"), "not to both"
    )
    refused(run("validate", MODEL, "--step-log", str(tmp_path / "none.log")), "none.log")


def test_real_steps_gain_on_a_later_round() -> None:
    """Llama-3.1-8B on machine 3 twice: fitted to the first round's steps, tried on the second's."""
    with (ROOT / "benchmarks" / "data" / "h200_static_more.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["machine"] == "3" and row["model"] == MODEL]
    steps = [
        LoggedStep(0, 0, 0, n, n * float(row["decode_context"]), float(row["decode_step_ms"]) / 1e3)
        for row in rows
        if row["decode_step_ms"] and (n := int(row["batch"]))
    ]
    plan = {"engine": "vllm@0.25", "max_num_batched_tokens": 8192, "max_num_seqs": 512}
    log = StepLog(steps=steps, kind="rows", source="h200_static_more.csv")
    one = fit_steps(MODEL, GPU, log, plan).classes["decode"]
    assert one.unseen is not None and one.unseen < 0.015 < 0.02 < (one.unseen_before or 0)
    assert compare_steps(MODEL, GPU, log, plan)["decode"].bias > 0.02, "this machine is faster than predicted"


# ------------------------------------------------------------------ logs that have the wait for a result alone

LIVE = {"engine": "vllm@0.25", "max_model_len": 16384, "max_num_seqs": 256, "max_num_batched_tokens": 8192}


@pytest.fixture(scope="module")
def live() -> ModuleType:
    """The script that tries a calibration of one real load on others."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module("live_servers")


def waited_for(kernels: Sequence[float], launches: Sequence[float], prompts: Sequence[bool]) -> list[LoggedStep]:
    """What vLLM logs where it launches a step, then waits for the result of the one before: `step_with_batch_queue`."""
    steps, now, ends = [], 3600.0, 3600.0
    for number, seconds in enumerate(kernels):
        begun, now = now, now + launches[number]
        if number:
            wait = max(0.0, ends - now)
            tokens, seqs = (1000.0, 1.0) if prompts[number - 1] else (0.0, 0.0)
            now, clock = now + wait, float(int(now + wait))
            steps.append(LoggedStep(tokens, seqs, 0.0, 4.0, 4000.0, wait, stream="0", wait_s=wait, clock_s=clock))
        ends = max(ends, begun) + seconds  # the device computes while the rest is launched
    return steps


def test_a_wait_leaves_out_the_launch_of_the_next_step() -> None:
    """Decode steps of 5 ms launched in 2 ms; each tenth step has prompts, takes 20 ms and is launched in 12 ms."""
    rng = np.random.default_rng(3)
    prompts = rng.random(4000) < 0.1
    kernels, launches = np.where(prompts, 0.020, 0.005).tolist(), np.where(prompts, 0.012, 0.002).tolist()
    steps = waited_for(kernels, launches, prompts.tolist())
    assert np.mean([step.wait_s < 1e-4 for step in steps]) > 0.08, "before prompts the result is there first"
    host_seconds = [0.8 * x for x in launches[:-1]]
    whole = own_times(from_result_to_result(steps, host_seconds), 1.1 * np.array(kernels[:-1]))
    for has_prompts, true in ((True, 0.020), (False, 0.005)):
        seconds = [x.seconds for x in whole if x.whole and bool(x.prefill_tokens) is has_prompts]
        assert len(seconds) > 100 and np.median(seconds) == pytest.approx(true, rel=0.03)
    assert sum(not step.whole for step in whole) > 100, "decode steps that end with a launch are no steps' own"


@pytest.mark.slow
def test_a_real_log_in_whole_seconds_says_how_little_it_says() -> None:
    """Steps of r8 that launch prompts end 17 ms late; taken for the steps' own time, that made prompts × 0.43."""
    log = read_step_log([ROOT / "benchmarks" / "data" / "h200_live" / "r8.log.gz"])
    fit = fit_steps(MODEL, GPU, log, LIVE)
    assert abs(fit.classes["decode"].bias) < 0.04 and abs(fit.classes["mixed"].bias) < 0.1
    assert fit.calibration == Calibration() and fit.objection()
    assert "the log's clock says" in fit.classes["decode"].note


@pytest.mark.slow
def test_a_real_log_whose_lines_are_stamped_carries_over_to_other_rates(live: ModuleType, tmp_path: Path) -> None:
    """Tried on 8 requests/s of vLLM 0.25.1 on an H200, where it finds little to correct.

    Asked for are 2% of decode steps and 4% of prompts at other rates.
    """
    path, moments = tmp_path / "r8.log", iter([step.clock_s for step in live.true_steps("r8").steps])
    with gzip.open(live.LIVE / "r8.log.gz", "rt", encoding="utf-8") as plain, path.open("w") as file:
        for line in plain:
            now = next(moments, 0.0) if "Iteration(" in line else 0.0
            file.write(f"2026-11-19T04:13:{now:09.6f}Z {line}" if now else line)
    log = read_step_log([path])
    assert log.steps[1].clock_s % 1 == pytest.approx(live.true_steps("r8").steps[1].clock_s % 1, abs=1e-5)
    made = fit_steps(MODEL, GPU, log, LIVE).calibration
    assert made.decode == pytest.approx(1.0, abs=0.01) and (made.prefill, made.host) == (1.0, 1.0)
    for load in ("r4", "r14"):
        errors = live.step_errors(load, {"calibration": made})
        assert abs(errors["decode"][0]) < 0.02 and abs(errors["prompts"][0]) < 0.02, (load, errors)


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [4.3e12, 5.3e12])
def test_two_hundred_real_steps_mend_a_prediction_that_is_a_tenth_off(live: ModuleType, bandwidth: float) -> None:
    """An H200 that is told another memory bandwidth than it has: steps of 8 requests/s mend those at 4 and 14."""
    gpu = f"{GPU}:memory_bandwidth={bandwidth}"
    made = fit_steps(MODEL, gpu, live.stamped("r8", 400, 200), LIVE).calibration
    assert (made.decode - 1) * (bandwidth - 4.8e12) > 0 and made.host == 1.0
    for load in ("r4", "r14"):
        plain, mended = (live.step_errors(load, plan, gpu) for plan in ({}, {"calibration": made}))
        assert abs(mended["decode"][0]) < 0.02 < 0.06 < abs(plain["decode"][0])
        assert abs(mended["prompts"][0]) < 0.04


def test_a_log_may_begin_in_the_middle_of_a_load(live: ModuleType) -> None:
    """Its first step has no result before it, so nothing says how long it took."""
    stamped = live.stamped("r8")
    fit = fit_steps(MODEL, GPU, msgspec.structs.replace(stamped, steps=stamped.steps[200:400]), LIVE)
    assert 150 < sum(one.steps for one in fit.classes.values()) < 200


@pytest.mark.slow
@pytest.mark.parametrize("jump", [-3600.0, -30.0, 3600.0])
def test_a_clock_that_was_set_is_no_stall(live: ModuleType, jump: float) -> None:
    log = live.stamped("r8")
    later = [step._replace(clock_s=step.clock_s + jump) for step in log.steps[2000:]]
    moved = msgspec.structs.replace(log, steps=[*log.steps[:2000], *later])
    plain, other = (compare_steps(MODEL, GPU, each, LIVE) for each in (log, moved))
    for name, one in other.items():
        assert one.before == pytest.approx(plain[name].before, abs=0.01), name
        assert one.seconds == pytest.approx(plain[name].seconds, rel=0.01)


@pytest.mark.slow
def test_the_first_seconds_of_a_real_log_do_not_tell_a_factor(tmp_path: Path) -> None:
    """Eleven whole seconds are too few to tell launches of prompts from others: decode × 1.19 was written."""
    with gzip.open(ROOT / "benchmarks" / "data" / "h200_live" / "r8.log.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()[:1980]
    path = tmp_path / "server.log"
    path.write_text("".join(lines), encoding="utf-8")
    fit = fit_steps(MODEL, GPU, read_step_log([path]), LIVE)
    assert fit.calibration == Calibration() and fit.objection()
    assert fit.classes["decode"].note == "not corrected: the log's clock cannot tell; stamp its lines"


@pytest.mark.slow
def test_two_real_engines_in_one_log_are_as_one_alone(tmp_path: Path) -> None:
    with gzip.open(ROOT / "benchmarks" / "data" / "h200_live" / "r8.log.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    ranks = [
        [line.replace("EngineCore pid=983", f"EngineCore_DP{k} pid=98{k}").replace("Engine 000:", f"Engine 00{k}:")]
        for line in lines
        for k in (0, 1)
    ]
    alone, both = tmp_path / "one.log", tmp_path / "two.log"
    alone.write_text("".join(lines), encoding="utf-8")
    both.write_text("".join(line for rank in ranks for line in rank), encoding="utf-8")
    one, two = (compare_steps(MODEL, GPU, read_step_log([path]), LIVE) for path in (alone, both))
    assert two["mixed"].steps == 2 * one["mixed"].steps
    for name in ("decode", "mixed"):
        assert two[name].before == pytest.approx(one[name].before, abs=0.02), name


@pytest.mark.slow
def test_a_log_of_another_version_or_layout_is_said(run: Command) -> None:
    path = ROOT / "benchmarks" / "data" / "h200_live" / "r8.log.gz"
    command = ("validate", MODEL, "--gpu", GPU, "--step-log", str(path), "--json")
    same, other = (run(*command, "--engine", f"vllm@{version}").json["warnings"] for version in ("0.25", "0.24"))
    assert [*other[:-1]] == same and other[-1].endswith("vLLM 0.25, but the plan is one of 0.24: --engine vllm@0.25")
    split = run(*command, "--engine", "vllm@0.25", "-tp", "2").json["warnings"]
    assert split == [*same, "the log says tensor_parallel_size=1, but the plan has 2"]


@pytest.mark.slow
def test_waits_alone_are_no_calibration(run: Command, tmp_path: Path) -> None:
    """Ten milliseconds a step that no clock shows would have become a factor."""
    steps = [step._replace(seconds=step.seconds + 0.01) for step in made_up(Calibration(), 60, 0.01).steps]
    log, file = tmp_path / "server.log", tmp_path / "mine.toml"
    log.write_text("\n".join(vllm_lines(steps[:120], 900_000, untimed=0.012, v26=False)), encoding="utf-8")
    command = ("validate", MODEL, "--gpu", GPU, "--step-log", str(log))
    assert any("only the wait" in warning for warning in run(*command, "--json").json["warnings"])
    ran = run(*command, "--write-calibration", str(file), "--json")
    assert ran.code == 1 and not file.exists() and "nothing can be fitted to waits alone" in ran.err


def test_requests_of_other_rates(live: ModuleType) -> None:
    for load in ("r4", "r14"):
        errors = live.request_errors(load, {})
        assert abs(errors["tpot"][0]) < 0.02 and abs(errors["ttft"][0]) < 0.03, (load, errors)


@pytest.mark.slow
def test_contexts_are_counted_between_the_lines_that_say_them(live: ModuleType) -> None:
    """vLLM 0.25 says how full the KV cache is every 10 s."""
    steps = StepPredictor(MODEL, GPU, LIVE).with_contexts(read_step_log([live.LIVE / "healthy.log.gz"]))
    true = [step.decode_kv for step in live.true_steps("healthy").steps]
    assert np.mean([step.decode_kv for step in steps]) == pytest.approx(np.mean(true), rel=0.03)
