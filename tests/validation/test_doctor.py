"""The doctor: faults that are put into a simulated server on purpose are named first, and a healthy one is healthy."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import ROOT, Ran, refused

from inferometer.base.units import percent
from inferometer.serving.metrics import latencies
from inferometer.serving.metrics_page import ServerStatistics
from inferometer.serving.outcome import Outcome
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.specs.structs import Calibration
from inferometer.validation.causes import merged
from inferometer.validation.doctor import Diagnosis, diagnose
from inferometer.validation.validate import Validation, compare
from inferometer.views.text.diagnosis import CAUSES, diagnosis_page

Command = Callable[..., Ran]
MODEL, GPU = "llama-3.1-8b", "h200"
EVERY = bool(os.environ.get("INFEROMETER_SLOW_TESTS"))


def talk(seed: int, rate: float = 6.0) -> Trace:
    lengths = {"input_len": "lognormal:mean=1500,std=1200,max=8000", "output_len": "lognormal:mean=120,std=60"}
    return synthetic(num_prompts=40, request_rate=rate, seed=seed, **lengths)


def shared(seed: int) -> Trace:
    return synthetic(num_prompts=40, request_rate=6.0, input_len=3000, prefix_len=2500, output_len=60, seed=seed)


TALK, SHARED = talk(3), shared(3)
FAULTS: dict[str, dict[str, Any]] = {
    "eager": {"max_cudagraph_capture_size": 0, "max_prefill_cudagraph_capture_size": 0},
    "host": {"calibration": Calibration(host=3.0)},
    "clocks": {"gpu": "h200:flops.bf16=5.5e14"},
    "kv_cache": {"num_gpu_blocks_override": 700},
    "token_budget": {"max_num_batched_tokens": 256, "max_num_seqs": 256},
    "sequences": {"max_num_seqs": 4},
    "front_end": {"calibration": Calibration(request=0.06)},
    "scheduling": {"async_scheduling": False},
    "prefix_cache": {"enable_prefix_caching": False},
}
LEVELS = {"host": 3.0, "clocks": 0.556, "kv_cache": 700, "token_budget": 256, "sequences": 4, "front_end": 0.06}
# What the evidence must say of each, in figures.
EVIDENCE = {
    "eager": r"p99 ITL: [\d.]+ ms predicted, [\d.]+ ms with this cause",
    "host": r"measured TTFT is [\d.]+ times the prediction for the shortest third of prompts, [\d.]+ for the longest",
    "clocks": r"measured TPOT is [\d.]+ times the prediction in the quietest third, [\d.]+ in the busiest",
    "kv_cache": r"the prediction has [\d,]+ tokens of KV cache and fills at most [\d.]+% of it",
    "token_budget": r"the prediction has 8,192 tokens a step",
    "sequences": r"the prediction runs up to \d+ sequences at once",
    "front_end": r"9 of 10 first tokens come at least 5\d\.\d ms late",
    "scheduling": r"mean TPOT: [\d.]+ ms predicted, [\d.]+ ms with this cause, [\d.]+ ms measured",
    "prefix_cache": r"mean TTFT: [\d.]+ ms predicted, 1\d\d ms with this cause, 1\d\d ms measured",
}
OUTCOMES: dict[tuple[int, str], Outcome] = {}  # of simulations that several tests need


def simulated(trace: Trace, change: Mapping[str, Any]) -> Outcome:
    key = (id(trace), repr(sorted(change.items())))
    if key not in OUTCOMES:
        OUTCOMES[key] = simulate(MODEL, trace=trace, frontend="in-process", **{"gpu": GPU, **change})
    return OUTCOMES[key]


def measured(trace: Trace, change: Mapping[str, Any], noise: float = 0.03) -> Trace:
    """What a client would have seen of a server with this change, with noise on every request."""
    rng = np.random.default_rng(7)
    outcome = simulated(trace, change)
    seen = {name: ms * np.exp(rng.normal(0, noise, len(trace))) for name, ms in latencies(outcome).items()}
    return msgspec.structs.replace(trace, measured={"TTFT": seen["ttft"], "TPOT": seen["tpot"]}, source="made up")


def diagnosed(trace: Trace, change: Mapping[str, Any], server: ServerStatistics | None = None) -> Diagnosis:
    seen = measured(trace, change)

    def replay(tried: Mapping[str, Any]) -> Validation:
        return compare(seen, simulated(trace, tried))

    return diagnose(replay, replay({}), MODEL, GPU, {}, server)


def adds_up(result: Diagnosis) -> bool:
    return math.isclose(sum(cause.share for cause in result.causes) + result.unexplained, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_first(fault: str) -> None:
    result = diagnosed(SHARED if fault == "prefix_cache" else TALK, FAULTS[fault])
    assert not result.healthy and result.causes, result
    first = result.causes[0]
    assert first.name == fault, [(cause.name, cause.share) for cause in result.causes]
    assert first.share > 0.5 and adds_up(result)
    assert first.level == pytest.approx(LEVELS.get(fault, 1.0), rel=0.1)
    assert any(re.search(EVIDENCE[fault], sentence) for sentence in first.evidence), first.evidence
    assert msgspec.convert(msgspec.to_builtins(result), Diagnosis) == result, "its JSON says all of it"
    page = diagnosis_page(result).terminal(200)
    assert page.startswith(f"✗ not as predicted: {first.title}\n")
    assert all(f"· {sentence}\n" in page for sentence in first.evidence) and f"→ {first.remedy}\n" in page, page


def test_a_healthy_server_is_called_healthy() -> None:
    result = diagnosed(TALK, {})
    assert result.healthy and not result.causes and result.unexplained == 1.0
    assert diagnosis_page(result).terminal().startswith("✓ healthy: ")


@pytest.mark.slow
@pytest.mark.parametrize("sign", (1, -1))
def test_usual_errors_of_step_times_are_healthy(sign: int) -> None:
    """What formulas are usually off by on a machine is no fault, and it is said what was assumed."""
    off = Calibration(prefill=math.exp(sign * 0.08), decode=math.exp(-sign * 0.05), host=math.exp(sign * 0.15))
    result = diagnosed(TALK, {"calibration": off})
    assert result.healthy, result.causes
    assert result.step_times["prefill"] * sign > 0 and "prompts" in diagnosis_page(result).terminal()


@pytest.mark.skipif(not EVERY, reason="INFEROMETER_SLOW_TESTS=1 diagnoses more servers: minutes")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_fault_on_a_machine_with_usual_errors_is_among_the_first_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prefill, decode, host = np.exp(rng.uniform(-0.5, 0.5, 3) * np.array([0.12, 0.08, 0.35]))
    machine = {"calibration": Calibration(prefill=prefill, decode=decode, host=host)}
    lengths = {"prefix_cache": shared(seed)}
    usual = talk(seed, rate=4.0 + seed)
    assert diagnosed(usual, machine).healthy
    named = {}
    for fault, change in FAULTS.items():
        result = diagnosed(lengths.get(fault, usual), merged(machine, change))
        assert adds_up(result)
        named[fault] = [cause.name for cause in result.causes]
    assert all(fault in causes[:2] for fault, causes in named.items()), named
    assert sum(causes[0] == fault for fault, causes in named.items()) >= len(FAULTS) - 1, named


@pytest.mark.slow
def test_counters_of_the_server_lead_and_rule_out() -> None:
    """A cache and a budget that the server itself shows are named even where latency hardly feels them."""
    small = ServerStatistics(
        seconds=60.0,
        kv_cache_tokens=40_000.0,
        kv_cache_usage=0.41,
        preemptions=0.0,
        queue_ms=0.2,
        max_num_batched_tokens=4096.0,
        enforce_eager=False,
    )
    result = diagnosed(TALK, {"num_gpu_blocks_override": 2500, "max_num_batched_tokens": 4096}, small)
    assert [cause.name for cause in result.causes] == ["token_budget"] and adds_up(result)
    assert result.causes[0].evidence[0] == "its log says max_num_batched_tokens=4096; 8,192 are planned"
    assert result.ruled_out["eager"] == "its log says enforce_eager=False"
    assert result.ruled_out["kv_cache"] == "its KV cache was 41.0% full and it preempted nothing"
    assert result.ruled_out["sequences"] == "requests did not wait in its queue"
    page = diagnosis_page(result).terminal(200)
    assert page.startswith("! mean latencies are as predicted, but: a small token budget: 4,096 tokens a step\n")
    assert "ruled out: no CUDA graphs (its log says enforce_eager=False)" in page
    assert set(CAUSES) == set(FAULTS)


def test_a_healthy_server_that_is_off_says_why_and_how_little_it_rests_on() -> None:
    """It said healthy below "27% too short; up to 15% is usual", of a single request."""
    one = synthetic(num_prompts=1, request_rate=6.0, input_len=200, output_len=40)
    result = diagnosed(one, {"calibration": Calibration(prefill=1.1, decode=1.09, request=0.003)})
    assert result.healthy and abs(result.errors["tpot"]) > result.tolerance["tpot"] > abs(result.left["tpot"])
    page = diagnosis_page(result).terminal(200)
    assert "with step times so, it predicts mean TTFT" in page and "! 1 request can hardly tell a fault from" in page


@pytest.mark.slow
def test_a_server_that_is_faster_than_predicted_is_another_one() -> None:
    """Every cause makes one slower, so to list those that were tried says nothing."""
    result = diagnosed(TALK, {"gpu": "h200:memory_bandwidth=9.6e12,flops.bf16=2e15"})
    assert not result.healthy and not result.causes
    assert any("is it this model, GPU, precision, engine and load" in note for note in result.notes)
    assert "! the server is faster than predicted" in diagnosis_page(result).terminal(200)
    only = diagnosed(TALK, {"gpu": "h200:flops.bf16=4e15"})
    assert only.errors["ttft"] > 0.15 > abs(only.errors["tpot"]) and any(
        "is it this model" in note for note in only.notes
    )
    assert not diagnosed(TALK, FAULTS["eager"]).notes


@pytest.mark.slow
def test_the_command_says_the_same_in_text_and_json(run: Command, tmp_path: Path) -> None:
    """Of a healthy server; docs/how-to/diagnose-a-server.md has the command with a fault."""
    few = synthetic(num_prompts=8, request_rate=6.0, input_len="uniform:min=200,max=3000", output_len=8, seed=1)
    seen = latencies(simulate(MODEL, GPU, trace=few, frontend="in-process"))
    rows = zip(few.arrival_s, few.input_tokens, few.output_tokens, seen["ttft"], seen["tpot"], strict=True)
    lines = ["arrival_s,input_tokens,output_tokens,TTFT,TPOT", *(",".join(f"{x:.9g}" for x in row) for row in rows)]
    table = tmp_path / "server.csv"
    table.write_text("\n".join(lines))
    ran = run("validate", MODEL, "--gpu", GPU, "--measured", str(table), "--diagnose", "--json")
    made = msgspec.convert(ran.json["diagnosis"], Diagnosis)
    assert made.healthy and made.gap < 1e-6 and made.unexplained == 1.0
    tolerance = ran.json["expected_error"]["tpot"]["p50"]
    assert made.tolerance["tpot"] == tolerance
    text = run("validate", MODEL, "--gpu", GPU, "--measured", str(table), "--diagnose").out
    assert "✓ healthy" in text and f"; up to {percent(tolerance)} is usual" in text


@pytest.mark.slow
@pytest.mark.parametrize("server", ("eager", "smallkv", "budget512"))
def test_real_servers_with_a_fault(server: str) -> None:
    """vLLM 0.25.1 on an H200, from requests and pages of /metrics; see `benchmarks/live_servers.py`.

    Not from fewer: the load went on, so the last ones that are taken decoded among others that are not. The healthy
    server is below.
    """
    sys.path.insert(0, str(ROOT / "benchmarks"))
    live = importlib.import_module("live_servers")
    result = live.diagnosed(server, "and pages", {}, 80)
    assert adds_up(result) and not result.healthy
    assert [(cause.name, cause.share > 0.4) for cause in result.causes[:1]] == [(live.FAULTS[server], True)]


@pytest.mark.slow
def test_pages_without_a_step_are_evidence(run: Command) -> None:
    """They were read while prompts came, so that they time no decode steps; and the server's cache is as planned."""
    live = ROOT / "benchmarks" / "data" / "h200_live"
    plan = ("validate", MODEL, "--gpu", GPU, "--engine", "vllm@0.25", "--max-model-len", "16384")
    plan += ("--max-num-seqs", "256")
    pages = ("--step-log", str(live / "healthy.metrics.gz"))
    command = (*plan, "--measured", str(live / "healthy.csv"), *pages, "--diagnose", "--json")
    ran = run(*command, "--num-gpu-blocks-override", "6144")
    made = msgspec.convert(ran.json["diagnosis"], Diagnosis)
    assert made.healthy and not made.causes and adds_up(made) and "step_log" not in ran.json
    assert made.ruled_out["kv_cache"] == "its KV cache was 40.0% full and it preempted nothing"
    assert "token_budget" in made.tried, "vLLM's pages count whole prompts, not what a step computes"
    refused(run(*plan, *pages), "16 pages of /metrics, but never decode steps alone between two of them")
    refused(run(*plan, *pages, "--num-gpu-blocks-override", "6144"), "--num-gpu-blocks-override needs --measured")
