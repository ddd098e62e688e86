"""The command ``simulate``: what it prints and writes, its flags, and one sentence for what is wrong."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Ran

from inferometer.serving.simulate import simulate
from inferometer.serving.trace import read_trace
from inferometer.views.text.serving import spark

Command = Callable[..., Ran]
MODEL = "qwen3-0.6b"
SMALL = ("--gpu", "h200", "--num-prompts", "30", "--input-len", "300", "--output-len", "20")
KEYS = {
    f"{word}_{name}_ms" for word in ("mean", "median", "std", "p90", "p99") for name in ("ttft", "tpot", "itl", "e2el")
}
KEYS |= {
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "request_goodput",
    "completed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "max_concurrency",
    "num_prompts",
    "request_rate",
    "burstiness",
}


def sim(run: Command, *more: str) -> Ran:
    return run("simulate", MODEL, *SMALL, *more)


# ------------------------------------------------------------------ what comes out


def test_json_has_the_keys_of_the_benchmark(run: Command) -> None:
    ran = sim(run, "--request-rate", "20", "--goodput", "ttft:1000 tpot:100", "--json")
    found = ran.json
    assert ran.code == 0 and found["schema"] == "inferometer.simulate/1" and set(found) >= KEYS
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (30, 9000, 600)
    assert found["request_goodput"] == pytest.approx(found["request_throughput"]) and found["rejected"] == 0
    assert found["frontend"] == "http", "the clock stands at a client, unless told"
    inside = sim(run, "--request-rate", "20", "--frontend", "in-process", "--json").json
    assert inside["mean_ttft_ms"] < found["mean_ttft_ms"]
    assert inside["mean_tpot_ms"] == pytest.approx(found["mean_tpot_ms"], rel=0.03)  # prompts come as they are read


def test_the_table(run: Command) -> None:
    ran = sim(run, "--request-rate", "20", "--goodput", "ttft:1", "--goodput", "tpot:50")
    assert ran.code == 0 and "TTFT" in ran.out and "30 requests completed" in ran.out
    assert "0.0% meet TTFT ≤ 1 ms, TPOT ≤ 50 ms" in ran.out and "running" in ran.out and "300 in, 20 out" in ran.out


@pytest.mark.slow
def test_rows_and_files(run: Command, tmp_path: Path) -> None:
    rows, chrome, plots = tmp_path / "rows.csv", tmp_path / "trace.json", tmp_path / "plots"
    ran = sim(
        run,
        "--request-rate",
        "20",
        "--requests-out",
        str(rows),
        "--chrome-trace",
        str(chrome),
        "--plot",
        str(plots),
        "--goodput",
        "ttft:500",
        "--json",
    )
    assert ran.code == 0 and ran.err.count("wrote ") == 4
    again = read_trace(rows)
    assert len(again) == 30 and again.measured["TTFT"].mean() == pytest.approx(ran.json["mean_ttft_ms"], rel=1e-4)
    names = {e["name"] for e in json.loads(chrome.read_text())["traceEvents"]}
    assert {"prefill", "decode", "running", "kv_used", "process_name"} <= names
    for name, wanted in (("timeline", (1650, 1230)), ("latencies", (1650, 585))):
        data = (plots / f"{name}.png").read_bytes()
        assert struct.unpack(">II", data[16:24]) == wanted and len(data) > 10_000
    assert sim(run, "--request-rate", "20", "--csv").out == rows.read_text()


def test_output_goes_to_a_file(run: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    ran = sim(run, "--json", "-o", str(target))
    assert (ran.code, ran.out) == (0, "") and json.loads(target.read_text())["completed"] == 30


def test_chance_is_the_seed_s(run: Command) -> None:
    words = ("--request-rate", "20", "--input-len", "lognormal:mean=300,std=200", "--json")
    one, two, other = (sim(run, *words, "--seed", s).json for s in ("1", "1", "2"))
    assert one == two and one["mean_e2el_ms"] != other["mean_e2el_ms"]


# ------------------------------------------------------------------ requests and loops


def test_a_trace_is_served_as_it_came(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens,arrival_s\n100,5,2.0\n100,5,0.0\n100,0,1.0\n")
    found = run("simulate", MODEL, "--trace", str(path), "--csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert [float(row["arrival_s"]) for row in rows] == [2.0, 0.0, 1.0] and all(row["status"] == "done" for row in rows)
    assert rows[2]["TPOT"] == "" and float(rows[2]["E2E"]) > 0, "an answer of nothing ends with its prompt"
    two = run("simulate", MODEL, "--trace", str(path), "--num-prompts", "2", "--json").json
    assert two["completed"] == 2 and "t.csv" in two["traffic"]
    at = run("simulate", MODEL, "--trace", str(path), "--request-rate", "inf", "--json").json
    assert at["duration"] < 1.0, "its lengths, but all at once"


def test_without_arrivals_one_waits_for_the_other(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens\n" + "200,10\n" * 12)
    one = run("simulate", MODEL, "--trace", str(path), "--json").json
    four = run("simulate", MODEL, "--trace", str(path), "--max-concurrency", "4", "--json").json
    assert (one["max_concurrent_requests"], four["max_concurrent_requests"]) == (1, 4)
    assert one["duration"] == pytest.approx(one["mean_e2el_ms"] * 12 / 1e3, rel=0.01)
    assert four["request_throughput"] > 1.5 * one["request_throughput"]


def test_a_trace_whose_prompts_begin_alike_and_whose_users_think(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens\n" + "320,10\n" * 12)
    found = run("simulate", MODEL, "--trace", str(path), "--prefix-len", "160", "--json").json
    assert found["prefix_cache_hit_rate"] == pytest.approx(160 / 320 * 11 / 12)
    slow = run("simulate", MODEL, "--trace", str(path), "--max-concurrency", "3", "--think-time", "2", "--json").json
    assert 3 * 2 < slow["duration"] < 3 * 2 + 2
    shared = tmp_path / "s.csv"
    shared.write_text("input_tokens,output_tokens,prefix_tokens\n320,10,16\n")
    for args, sentence in (
        (["--trace", str(shared), "--prefix-len", "16"], "has its own shared prefixes"),
        (["--trace", str(path), "--think-time", "2"], "needs users: give --max-concurrency"),
    ):
        ran = run("simulate", MODEL, *args)
        assert ran.code == 2 and sentence in ran.err


def test_users_who_think(run: Command) -> None:
    busy, slow = (sim(run, "--max-concurrency", "3", "--think-time", t, "--json").json for t in ("0", "2"))
    assert slow["duration"] > 9 * 2 > busy["duration"] and slow["completed"] == 30


def test_a_shared_prefix_is_found_in_the_cache(run: Command) -> None:
    words = ("--request-rate", "5", "--prefix-len", "256", "--json")
    hit, miss = sim(run, *words).json, sim(run, *words, "--no-enable-prefix-caching").json
    assert hit["prefix_cache_hit_rate"] == pytest.approx(256 / 300 * 29 / 30, rel=0.05)
    assert not miss["prefix_cache_hit_rate"] and hit["mean_ttft_ms"] < miss["mean_ttft_ms"]


def test_conversations_find_what_was_said(run: Command) -> None:
    found = sim(run, "--request-rate", "2", "--turns", "5", "--think-time", "exponential:mean=1", "--json").json
    assert found["completed"] == 30 and 0.4 < found["prefix_cache_hit_rate"] < 0.9
    assert found["total_input_tokens"] == 6 * sum(300 + turn * 320 for turn in range(5))


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi", "prefill_first", "static"])
def test_schedulers(run: Command, scheduler: str) -> None:
    found = sim(run, "--scheduler", scheduler, "--request-rate", "50", "--json").json
    assert found["completed"] == 30 and found["scheduler"] == scheduler


def test_priority(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"2000,20,0.0,{1 if i < 20 else 0}\n" for i in range(40)]
    path.write_text("input_tokens,output_tokens,arrival_s,priority\n" + "".join(lines))
    all_at_once = ("--frontend", "in-process")
    words = ("--trace", str(path), "--max-num-seqs", "4", "--gpu", "h200", "--csv", *all_at_once)
    ttft = {}
    for policy in ("fcfs", "priority"):
        rows = csv.DictReader(io.StringIO(run("simulate", MODEL, *words, "--policy", policy).out))
        ttft[policy] = np.array([float(row["TTFT"]) for row in rows])
    assert ttft["fcfs"][:20].max() < ttft["fcfs"][20:].min()
    assert ttft["priority"][:20].min() > ttft["priority"][20:].max(), "the smaller number comes first"


def test_replicas_pools_and_blocks(run: Command) -> None:
    words = ("--request-rate", "200", "--json")
    one, two = sim(run, *words).json, sim(run, *words, "-dp", "2", "--router", "least_loaded").json
    assert two["gpus"] == 2 and two["kv_cache_tokens"] == pytest.approx(2 * one["kv_cache_tokens"], rel=0.02)
    apart = sim(run, *words, "--prefill-replicas", "1", "--decode-replicas", "1").json
    assert apart["completed"] == 30
    mixed = sim(run, *words, "--pool", "gpu=h200,replicas=1", "--pool", "gpu=a100-sxm-80gb,replicas=2").json
    assert mixed["completed"] == 30
    tight = sim(run, *words, "--num-gpu-blocks-override", "60").json
    assert tight["kv_cache_tokens"] == 960 and tight["mean_ttft_ms"] > one["mean_ttft_ms"]


# ------------------------------------------------------------------ what cannot be


def test_too_long_requests_are_rejected_and_counted(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens,arrival_s\n100,5,0\n5000,5,0\n100,5,0\n")
    ran = run("simulate", MODEL, "--trace", str(path), "--max-model-len", "2048", "--json")
    found = ran.json
    assert ran.code == 0 and found["completed"] == 2 and found["rejected"] == 1 and found["failed"] == 0
    ((reason, count),) = found["rejection_reasons"].items()
    assert count == 1 and "5" in reason
    shown = run("simulate", MODEL, "--trace", str(path), "--max-model-len", "2048").out
    assert "1 rejected: " in shown


def test_a_model_that_does_not_fit_is_exit_1(run: Command) -> None:
    ran = run("simulate", "llama-3.1-70b", "--gpu", "rtx4090", "--num-prompts", "3", "--json")
    assert ran.code == 1 and ran.json["completed"] == 0 and "GB" in ran.json["reason"] and "infeasible: " in ran.err
    shown = run("simulate", "llama-3.1-70b", "--gpu", "rtx4090", "--num-prompts", "3")
    assert shown.code == 1 and "infeasible" in shown.out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--trace", "none.csv"], "there is no such file"),
        (["--trace", "x.csv", "--input-len", "5"], "--trace sets all lengths and cannot be combined with"),
        (["--trace", "x.csv", "--turns", "5"], "cannot be combined with --turns"),
        (["--request-rate", "0"], "--request-rate must be a positive number"),
        (["--scheduler", "lifo"], "unknown --scheduler 'lifo'"),
        (["--policy", "random"], "unknown --policy 'random'"),
        (["--router", "best"], "unknown --router 'best'"),
        (["--max-concurrency", "0"], "--max-concurrency must be between 1"),
        (["--goodput", "speed:5"], "unknown --goodput metric 'speed'"),
        (["--pool", "h200"], "--pool takes pairs such as gpu=h200,replicas=2, not 'h200'"),
        (["--num-gpu-blocks-override", "0"], "--num-gpu-blocks-override must be between 1"),
        (["--frontend", "grpc"], "unknown --frontend 'grpc'"),
        (["--json", "--csv"], "--json and --csv are two formats of one result"),
        (["--plot", ""], "--plot needs the name of a folder"),
        (["--chrome-trace", " "], "--chrome-trace needs the name of a file"),
        (["--find-capacity"], "--find-capacity needs latency limits: --goodput ttft:500,tpot:50"),
        (["--find-capacity", "--goodput", "ttft:5", "--request-rate", "5"], "finds the rate: leave out"),
        (["--find-capacity", "--goodput", "ttft:5", "--plot", "x"], "runs many simulations, but --plot describes one"),
        (["--find-capacity", "--goodput", "ttft:5", "--backend", "slurm"], "unknown --backend 'slurm'"),
        (["--find-capacity", "--goodput", "ttft:5", "--max-concurrency", "4"], "needs independent arrivals"),
        (["--seed", "-1"], "--seed must be between 0"),
    ],
)
def test_bad_requests_are_one_sentence(run: Command, args: list[str], sentence: str) -> None:
    ran = run("simulate", MODEL, *args)
    assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1 and ran.out == ""


def test_what_cannot_be_written_is_said_and_nothing_is_lost(run: Command, tmp_path: Path) -> None:
    ran = sim(run, "--requests-out", str(tmp_path / "no" / "rows.csv"))
    assert ran.code == 2 and "cannot be written" in ran.err
    kept = tmp_path / "kept.csv"
    kept.write_text("mine")
    assert run("simulate", MODEL, "--num-prompts", "0", "--requests-out", str(kept)).code == 2
    assert kept.read_text() == "mine"


@pytest.mark.slow
def test_capacity(run: Command) -> None:
    alone, crowded = (sim(run, "--request-rate", r, "--json").json["mean_ttft_ms"] for r in ("0.1", "inf"))
    limit = round((alone + crowded) / 2, 3)  # what one request keeps, and many at once do not
    words = ("--find-capacity", "--goodput", f"ttft:{limit}", "--jobs", "1", "--json")
    ran = run("simulate", MODEL, *SMALL, *words)
    found = ran.json
    assert ran.code == 0 and found["schema"] == "inferometer.capacity/1" and found["goodput"] == {"ttft": limit}
    holds = {tried["request_rate"]: tried["holds"] for tried in found["tried"]}
    assert holds[found["request_rate"]] and not all(holds.values())
    assert all(good for rate, good in holds.items() if rate < found["request_rate"]), "no lower rate failed"
    kept = next(tried["good"] for tried in found["tried"] if tried["request_rate"] == found["request_rate"])
    assert kept >= 0.9, "over all runs at that rate"
    shown = found["request_goodput"] / found["request_throughput"]
    assert shown == pytest.approx(0.9, abs=0.03) and found["completed"] >= 1000, "one more run: its share is by chance"
    rows = list(csv.DictReader(io.StringIO(run("simulate", MODEL, *SMALL, *words[:-1], "--csv").out)))
    assert len(rows) == len(holds)
    shown = run("simulate", MODEL, *SMALL, *words[:-1])
    assert "the highest rate at which 90.0% of requests meet" in " ".join(shown.out.split())
    never = run("simulate", MODEL, *SMALL, "--find-capacity", "--goodput", "ttft:0.001", "--jobs", "1")
    assert never.code == 1 and "no rate meets the limits" in never.out


# ------------------------------------------------------------------ pieces


def test_a_line_of_blocks() -> None:
    times = np.arange(101.0)
    assert spark(times, np.where(times < 50, 0.0, 8.0), 8.0, width=4) == "  ██"
    assert spark(times, np.full(101, 1.0), 8.0, width=3) == "▁▁▁"
    few = spark(np.array([0.0, 10.0]), np.array([4.0, 4.0]), 8.0, width=6)
    assert few == "▄" * 6, "fewer points than blocks"


@pytest.mark.slow
def test_real_traces_run_as_they_are(shared: Path) -> None:
    from inferometer.serving.trace import first_requests

    talk = first_requests(read_trace(shared / "reference" / "traces" / "mooncake_conversation.jsonl"), 300)
    with_cache, without = (
        simulate("llama-3.1-8b", "h200", trace=talk, enable_prefix_caching=on) for on in (True, False)
    )
    seen: set[int] = set()
    shared_tokens = 0
    for ids, length in zip(talk.blocks or (), talk.input_tokens.tolist(), strict=True):
        known = next((k for k, i in enumerate(ids.tolist()) if i not in seen), len(ids))
        shared_tokens += min(512 * known, length)
        seen.update(ids.tolist())
    most = shared_tokens / talk.input_tokens.sum()
    assert 0.2 * most < with_cache.prefix_hit_rate <= most, "what an endless cache would find is the most"
    assert without.prefix_hit_rate == 0
    code = first_requests(read_trace(shared / "reference" / "traces" / "AzureLLMInferenceTrace_code.csv"), 500)
    done = simulate("llama-3.1-8b", "h200", trace=code)
    assert not np.isnan(done.finished_s).any() and not done.rejected


@pytest.mark.slow
def test_limits_of_goodput_may_follow_each_other_as_in_vllm_bench_serve(run: Command) -> None:
    """`--goodput ttft:500 tpot:50`, wherever the model stands; a metric that does not exist is told as ever."""
    commas = run("simulate", MODEL, *SMALL, "--json", "--goodput", "ttft:50,tpot:5")
    assert commas.code == 0
    for args in (
        (MODEL, *SMALL, "--json", "--goodput", "ttft:50", "tpot:5"),
        ("--goodput", "ttft:50", "tpot:5", MODEL, *SMALL, "--json"),
        ("--goodput=ttft:50", "tpot:5", MODEL, *SMALL, "--json"),
    ):
        assert run("simulate", *args).out == commas.out, args
    assert "unknown --goodput metric 'itl'" in run("simulate", MODEL, *SMALL, "--goodput", "ttft:50", "itl:5").err
    assert run("simulate", MODEL, *SMALL, "ttft:50").code == 2  # a pair without its flag


def test_replicas_have_a_limit(run: Command) -> None:
    ran = run("simulate", "qwen3-0.6b", "--num-prompts", "5", "-dp", "65535")
    assert ran.code == 2 and "at most 10,000 replicas, not 65,535" in ran.err
