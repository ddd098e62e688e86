"""The flags of ``analyze`` and ``show`` through the command: what goes to stdout and to files, and exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

from inferometer import analyze
from inferometer.specs import catalog

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"


def test_stdout_is_json_and_nothing_else(run: Run) -> None:
    ran = run("analyze", MODEL, "--gpu", "h200", "--json")
    assert (ran.code, ran.err) == (0, "") and ran.json["schema"] == "inferometer.analyze/1"


def test_warnings_go_to_stderr(run: Run) -> None:
    ran = run("analyze", MODEL, "--input-len", "200000", "--gpu", "h200", "--json")
    assert ran.code == 0 and "200,128 tokens are more than the model's 131,072 positions" in ran.err
    assert ran.json["warnings"] and ran.json["warnings"][0] in ran.err


def test_the_table_for_people(run: Run) -> None:
    ran = run("analyze", MODEL)
    assert ran.code == 0 and "TTFT" in ran.out and "gate_up_proj" in ran.out


def test_output_goes_to_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    ran = run("analyze", MODEL, "--json", "-o", str(target))
    assert (ran.code, ran.out) == (0, "") and str(target) in ran.err
    assert json.loads(target.read_text()) == run("analyze", MODEL, "--json").json
    assert os.listdir(tmp_path) == ["out.json"], "no temporary file stays behind"


def test_csv_has_a_row_per_operator(run: Run) -> None:
    ran = run("analyze", MODEL, "--csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    result = run("analyze", MODEL, "--json").json["phases"]
    assert len(rows) == sum(len(phase["ops"]) for phase in result.values())
    total = sum(float(row["seconds"]) for row in rows if row["phase"] == "decode")
    assert total == pytest.approx(result["decode"]["seconds"])


def test_explain_shows_formula_values_and_origin(run: Run) -> None:
    result = run("analyze", MODEL, "--explain", "qkv_proj", "--json").json
    assert {e["phase"] for e in result} == {"prefill", "decode"}
    decode = next(e for e in result if e["phase"] == "decode")
    flops = next(line for line in decode["lines"] if line["quantity"] == "flops")
    assert flops["result"] == 2 * 4096 * (4096 + 2 * 1024)
    assert flops["values"]["hidden_size"] == 4096 and "hidden_size" in flops["formula"]
    assert decode["origin"] == "fitted" and decode["note"] and decode["count"] == 32
    op = next(o for o in run("analyze", MODEL, "--json").json["phases"]["decode"]["ops"] if o["name"] == "qkv_proj")
    assert decode["seconds"] * decode["count"] == pytest.approx(op["seconds"])
    assert "hidden_size" in run("analyze", MODEL, "--explain", "qkv_proj").out


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_phase_alone(run: Run, phase: str) -> None:
    alone, both = run("analyze", MODEL, "--phase", phase, "--json").json, run("analyze", MODEL, "--json").json
    assert list(alone["phases"]) == [phase] and alone["phases"][phase] == both["phases"][phase]
    assert (alone["metrics"]["tpot_ms"] is None) == (phase == "prefill")
    assert (alone["metrics"]["ttft_ms"] is None) == (phase == "decode")


def test_turns_grow_one_context(run: Run) -> None:
    result = run("analyze", MODEL, "--turns", "512:128,256:64", "--json").json
    first, second = result["turns"]
    assert (first["context"], second["context"]) == (0, 640)
    alone = analyze(MODEL, input_len=512, output_len=128).metrics
    assert (first["ttft_ms"], first["e2el_ms"]) == pytest.approx((alone.ttft_ms, alone.e2el_ms))
    after = analyze(MODEL, input_len=896, prefix_len=640, output_len=64).metrics
    assert (second["ttft_ms"], second["tpot_ms"]) == pytest.approx((after.ttft_ms, after.tpot_ms))
    assert result["metrics"]["e2el_ms"] == pytest.approx(first["e2el_ms"] + second["e2el_ms"])


def test_beams_share_the_prompt(run: Run) -> None:
    one, four = (run("analyze", MODEL, "--beam-width", b, "--json").json for b in ("1", "4"))
    per_token = one["memory"]["kv_bytes_per_token"]
    assert one["memory"]["kv_cache_bytes"] == per_token * (1024 + 128)
    assert four["memory"]["kv_cache_bytes"] == per_token * (1024 + 4 * 128)
    assert four["phases"]["prefill"] == one["phases"]["prefill"]
    assert four["metrics"]["tpot_ms"] > one["metrics"]["tpot_ms"]


def test_images_run_the_tower_and_lengthen_the_prompt(run: Run) -> None:
    blind, seeing = (run("analyze", "qwen2.5-vl-7b", "--json", *more).json for more in ((), ("--images", "1x448x448")))
    tokens = (448 // 28) ** 2
    more = seeing["memory"]["kv_cache_bytes"] - blind["memory"]["kv_cache_bytes"]
    assert more == tokens * blind["memory"]["kv_bytes_per_token"]
    names = {op["block"] for op in seeing["phases"]["prefill"]["ops"]} - {
        op["block"] for op in blind["phases"]["prefill"]["ops"]
    }
    assert names and seeing["metrics"]["ttft_ms"] > blind["metrics"]["ttft_ms"]


def test_usecases_set_lengths_and_flags_override_them(run: Run) -> None:
    for name in ("chatbot", "code", "summarization", "question-answering", "retrieval", "agent"):
        case, work = catalog.usecase(name), run("analyze", MODEL, "--usecase", name, "--json").json["workload"]
        assert (work["input_len"], work["output_len"], work["batch_size"], work["beam_width"]) == (
            case.input_len,
            case.output_len,
            case.batch_size,
            case.beam_width,
        )
    work = run("analyze", MODEL, "--usecase", "chatbot", "--output-len", "7", "--json").json["workload"]
    assert (work["input_len"], work["output_len"]) == (catalog.usecase("chatbot").input_len, 7)


def test_efficiency_scales_the_bound(run: Run) -> None:
    half, light = (
        run("analyze", MODEL, "--json", *more).json for more in (("--efficiency", "0.5"), ("--engine", "roofline"))
    )
    for phase in ("prefill", "decode"):
        ops = [op for op in half["phases"][phase]["ops"] if op["kind"] != "host"]
        assert sum(op["seconds"] for op in ops) == pytest.approx(2 * light["phases"][phase]["seconds"])
        assert {op["origin"] for op in ops} == {"given"}
    hbm = run("analyze", MODEL, "--efficiency", "hbm=0.5", "--engine", "roofline", "--json").json
    assert hbm["metrics"]["tpot_ms"] == pytest.approx(2 * light["metrics"]["tpot_ms"], rel=0.01)
    assert hbm["metrics"]["ttft_ms"] < 1.5 * light["metrics"]["ttft_ms"]


def test_roofline_is_its_own_bound(run: Run) -> None:
    result = run("analyze", MODEL, "--engine", "roofline", "--json").json
    assert result["metrics"]["ttft_ms"] == pytest.approx(result["roofline"]["ttft_ms"])
    assert result["metrics"]["tpot_ms"] == pytest.approx(result["roofline"]["tpot_ms"])
    assert all(op["efficiency"] == 1 for phase in result["phases"].values() for op in phase["ops"])


def test_eager_attention_moves_the_scores(run: Run) -> None:
    flash, eager = (run("analyze", MODEL, "--attention", a, "--json").json["phases"] for a in ("flash", "eager"))

    def scores(phase: str) -> float:
        of = [next(o for o in f[phase]["ops"] if o["name"] == "attention") for f in (eager, flash)]
        return float(of[0]["load_act"] + of[0]["store_act"] - of[1]["load_act"] - of[1]["store_act"])

    assert scores("prefill") == 32 * 32 * 4 * 1024 * 1024 * 2  # layers, heads, passes, scores, bytes
    assert eager["prefill"]["OPs"] > flash["prefill"]["OPs"], "a masked half is computed too"


def test_fusion_removes_elementwise_traffic(run: Run) -> None:
    apart, fused = (
        run("analyze", MODEL, flag, "--json").json["phases"]["prefill"] for flag in ("--no-fusion", "--fusion")
    )
    assert fused["load_act"] < apart["load_act"] and fused["seconds"] < apart["seconds"]
    assert fused["load_weight"] == apart["load_weight"] and fused["OPs"] == apart["OPs"]


def test_lengths_per_layer(run: Run) -> None:
    one = run("analyze", "llama-2-7b", "--input-len", "600", "--json").json
    same = run("analyze", "llama-2-7b", "--input-len", ",".join(["600"] * 32), "--json").json
    assert same["metrics"] == pytest.approx(one["metrics"])
    assert same["memory"]["kv_cache_bytes"] == one["memory"]["kv_cache_bytes"]
    pruned = run("analyze", "llama-2-7b", "--input-len", ",".join(["600"] * 16 + ["60"] * 16), "--json").json
    layer = one["memory"]["kv_bytes_per_token"] / 32
    assert pruned["memory"]["kv_cache_bytes"] == 16 * layer * (600 + 128) + 16 * layer * (60 + 128)
    assert 0.5 < pruned["phases"]["prefill"]["OPs"] / one["phases"]["prefill"]["OPs"] < 0.6
    assert pruned["roofline"]["ttft_ms"] < one["roofline"]["ttft_ms"]
    assert pruned["metrics"]["tpot_ms"] < one["metrics"]["tpot_ms"]


def test_figures_of_a_gpu_can_be_changed(run: Run) -> None:
    result = run("analyze", MODEL, "--gpu", "h100-sxm:memory_bandwidth=4e12,memory=94e9", "--json").json["device"]
    assert (result["memory_bandwidth"], result["memory"], result["flops"]["bf16"]) == (4e12, 94e9, 989.4e12)
    result = run("analyze", MODEL, "--gpu", "H100:flops.bf16=1e15,links.nvlink.bandwidth=1e12", "--json").json["device"]
    assert (result["flops"]["bf16"], result["links"]["nvlink"]["bandwidth"]) == (1e15, 1e12)
    result = run("analyze", MODEL, "--gpu", "h100-sxm:interconnect=pcie", "--json").json["device"]
    assert result["interconnect"] == "pcie"


def test_a_gpu_of_your_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("memory = 64e9\nmemory_bandwidth = 2e12\n[flops]\nbf16 = 5e14\n")
    result = run("analyze", MODEL, "--gpu", str(file), "--engine", "roofline", "--json").json
    assert result["device"]["name"] == "my" and result["memory"]["capacity_bytes"] == 64e9
    changed = run("analyze", MODEL, "--gpu", f"{file}:memory_bandwidth=4e12", "--engine", "roofline", "--json").json
    assert changed["metrics"]["tpot_ms"] == pytest.approx(result["metrics"]["tpot_ms"] / 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("models", MODEL, "params"),
        ("hardware", "h200", "memory_bandwidth"),
        ("engines", "vllm", "step_overhead"),
        ("precisions", "nvfp4", "bits"),
        ("usecases", "chatbot", "input_len"),
        ("families", "qwen3", "read_like"),
    ],
)
def test_show_lists_and_details(run: Run, kind: str, name: str, key: str) -> None:
    rows, one = run("show", kind, "--json").json, run("show", kind, name, "--json").json
    labels = [row.get("name") or row.get("model_type") for row in rows]
    assert name in labels and len(set(labels)) == len(labels) and key in one
    text = run("show", kind, name)
    assert text.code == 0 and key in text.out
    if kind == "models":  # all of them take a second to build; the tables of the others will do
        return
    assert name in run("show", kind).out
    assert len(list(csv.DictReader(io.StringIO(run("show", kind, "--csv").out)))) == len(rows)


def test_show_hardware_publishes_the_keys_of_a_hardware_file(run: Run) -> None:
    result = run("show", "hardware", "h100-sxm", "--json").json
    written = tomllib.loads((catalog.DATA / "hardware" / "h100-sxm.toml").read_text())
    assert result["memory"] == written["memory"] and result["flops"] == written["flops"] and result["source"]
    assert {"memory", "memory_bandwidth", "flops", "links"} <= set(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["analyze", MODEL, "--json"], 0),
        (["analyze", "llama-3.1-405b", "--json"], 1),
        (["analyze", "nonsense", "--json"], 2),
    ],
)
def test_exit_codes_of_a_real_process(args: list[str], code: int) -> None:
    ran = subprocess.run([sys.executable, "-m", "inferometer", *args], capture_output=True, text=True, timeout=60)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    if code == 2:
        assert ran.stdout == "" and ran.stderr.count("\n") == 1
    else:
        assert json.loads(ran.stdout)["feasible"] == (code == 0)


def test_an_http_client_waits_for_the_server_too(run: Run) -> None:
    inside, outside = (run("analyze", MODEL, "--frontend", f, "--json").json["metrics"] for f in ("in-process", "http"))
    vllm = catalog.engine("vllm")
    more = (vllm.http_overhead + 1024 * vllm.token_overhead) * 1e3
    assert more > 0 and outside["ttft_ms"] == pytest.approx(inside["ttft_ms"] + more)
    assert outside["tpot_ms"] == inside["tpot_ms"]
