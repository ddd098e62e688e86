"""How a plan is started: what each engine is told, and whether a shell reads it so."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.launch_plans import launches_of, pool_of

from inferometer.search.launch.bench_command import bench, needs_file, request_lines
from inferometer.search.launch.launch_folder import SCRIPTS, script_files
from inferometer.search.launch.processes import (
    SERVERS,
    Launch,
    Process,
    command_line,
    first_port,
    launch_lines,
    shell_word,
    variables,
)
from inferometer.search.launch.served_model import cache_setting, checkpoints, context_length, engine_settings, weights
from inferometer.search.objective import build_objective, build_traffic
from inferometer.serving.trace import Trace, read_trace
from inferometer.specs import catalog
from inferometer.specs.structs import Speculation

MTP = Speculation(method="mtp", num_speculative_tokens=2)
DRAFT = Speculation(method="draft_model", model="owner/small", num_speculative_tokens=4)
NGRAM = Speculation(method="ngram", num_speculative_tokens=3)
BF16 = {"quantization": "bf16", "kv_cache_dtype": "bf16"}


def argv(launch: Launch, number: int = 0) -> list[str]:
    return launch.processes[number].argv


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


# ------------------------------------------------------------------ layouts


def test_the_layout_is_said_in_each_engines_flags() -> None:
    plans = launches_of(pool_of(tp=2, dp=4, ep=True, max_num_seqs=256))
    vllm, sglang = argv(plans["vllm"]), argv(plans["sglang"])
    for flag, value in (
        ("--tensor-parallel-size", "2"),
        ("--data-parallel-size", "4"),
        ("--quantization", "fp8"),
        ("--max-num-batched-tokens", "4096"),
    ):
        assert after(vllm, flag) == value
    assert "--enable-expert-parallel" in vllm and "--max-model-len" not in vllm
    # SGLang's sizes and limits are of all data-parallel ranks, and it divides the chunk by them
    for flag, value in (
        ("--tp-size", "8"),
        ("--dp-size", "4"),
        ("--ep-size", "8"),
        ("--max-running-requests", "1024"),
        ("--chunked-prefill-size", "16384"),
    ):
        assert after(sglang, flag) == value
    assert "--enable-dp-attention" in sglang
    assert not plans["trtllm"].processes and "does not support this layout" in plans["trtllm"].refusals[0]
    apart = launches_of(pool_of(dp=4, ep=True, **BF16))["trtllm"].processes[0]
    assert "enable_attention_dp: true\n" in apart.files["extra_both.yaml"] and after(apart.argv, "--ep_size") == "4"


def test_pools_hand_the_cache_over() -> None:
    plans = launches_of(pool_of("prefill", tp=2, replicas=3), pool_of("decode", tp=4))
    prefill, decode = (json.loads(after(argv(plans["vllm"], n), "--kv-transfer-config")) for n in (0, 1))
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
    assert plans["vllm"].processes[0].env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$HOST_IP"
    assert [after(argv(plans["sglang"], n), "--disaggregation-mode") for n in (0, 1)] == ["prefill", "decode"]
    for engine in ("vllm", "sglang"):
        router = argv(plans[engine], 2)
        assert "http://$PREFILL_2" in router and "http://$DECODE_0" in router
    config = plans["trtllm"].processes[2].files["disagg_config.yaml"]
    assert "num_instances: 3" in config and "  - $PREFILL_2\n" in config


def test_replicas_have_a_router_before_them() -> None:
    routers = {
        engine: launch.processes[-1] for engine, launch in launches_of(pool_of(tp=2, replicas=3, **BF16)).items()
    }
    for engine in ("vllm", "sglang"):
        words = routers[engine].argv
        first = words.index("--worker-urls") + 1
        assert words[first : first + 4] == [*(f"http://$SERVER_{n}" for n in range(3)), "--policy"]
    assert "    server $SERVER_2;\n" in routers["trtllm"].files["nginx.conf"]
    assert all(len(launch.processes) == 1 for launch in launches_of(pool_of(tp=2, **BF16)).values())


def test_a_server_over_several_nodes() -> None:
    wide = launches_of(pool_of(tp=8, pp=2))["vllm"].processes[0]
    assert after(wide.argv, "--nnodes") == "2" and wide.headless_argv == [*wide.argv, "--headless"]
    spread = launches_of(pool_of(tp=4, dp=4, ep=True))["vllm"].processes[0]
    assert spread.headless_argv is not None and "--headless" in spread.headless_argv
    assert after(spread.argv, "--data-parallel-size-local") == "2"
    # vLLM v0.25.1 vllm/entrypoints/cli/serve.py: a first node with a start rank would answer for its own ranks alone
    assert "--data-parallel-start-rank" not in spread.argv
    assert after(spread.headless_argv, "--data-parallel-start-rank") == "$((NODE_RANK * 2))"
    mpi = launches_of(pool_of(tp=8, pp=2, **BF16))["trtllm"].processes[0]
    assert mpi.argv[:3] == ["mpirun", "-n", "16"] and mpi.files["hostfile"] == "node-0 slots=8\nnode-1 slots=8\n"


@pytest.mark.parametrize("speculation", [MTP, DRAFT, NGRAM], ids=lambda one: one.method)
def test_speculation(speculation: Speculation) -> None:
    plans = launches_of(pool_of(**BF16), speculation=speculation)
    config = json.loads(after(argv(plans["vllm"]), "--speculative-config"))
    assert config["method"] == speculation.method and config.get("model", "") == speculation.model
    assert config["num_speculative_tokens"] == speculation.num_speculative_tokens
    count = int(after(argv(plans["sglang"]), "--speculative-num-draft-tokens"))
    assert count == speculation.num_speculative_tokens + 1
    line = next(x for x in plans["trtllm"].processes[0].files["extra_both.yaml"].splitlines() if "speculative" in x)
    options = json.loads(line.partition(": ")[2])
    assert options["max_draft_len"] == speculation.num_speculative_tokens
    assert ("num_nextn_predict_layers" in options) == (speculation.method == "mtp")


def test_old_vllm_has_no_draft_models() -> None:
    old = launches_of(pool_of(**BF16), speculation=DRAFT, versions={"vllm": "0.14"})["vllm"]
    assert "0.15 or newer" in old.refusals[0] and not old.processes
    assert launches_of(pool_of(**BF16), speculation=NGRAM, versions={"vllm": "0.14"})["vllm"].processes


@pytest.mark.parametrize("version,is_flag", [("0.16", False), ("0.17", True), ("0.25", True)])
def test_kernels_for_experts_that_were_chosen(version: str, is_flag: bool) -> None:
    launch = launches_of(pool_of(**BF16), versions={"vllm": version}, moe_backend="marlin")["vllm"]
    assert ("--moe-backend" in argv(launch)) == is_flag
    assert launch.processes[0].env.get("VLLM_MXFP4_USE_MARLIN") == (None if is_flag else "1")
    assert "--moe-backend" not in argv(launches_of(pool_of(**BF16))["vllm"])


def test_a_head_is_no_draft_model() -> None:
    plans = launches_of(pool_of(**BF16), speculation=DRAFT, speculative_head="eagle3")
    assert json.loads(after(argv(plans["vllm"]), "--speculative-config"))["method"] == "eagle3"
    assert after(argv(plans["sglang"]), "--speculative-algorithm") == "EAGLE3"
    assert '"decoding_type": "Eagle3"' in plans["trtllm"].processes[0].files["extra_both.yaml"]


# ------------------------------------------------------------------ precisions


def test_bf16_is_the_checkpoint_as_it_is() -> None:
    for launch in launches_of(pool_of(**BF16)).values():
        (server,) = launch.processes
        assert (
            not {"--quantization", "--kv-cache-dtype", "--dtype"} & set(server.argv) and launch.model == "owner/model"
        )
    widened = launches_of(pool_of(**BF16), quantizations=("fp8-block",))
    assert all("owner/model is a checkpoint in fp8-block" in launch.refusals[0] for launch in widened.values())
    halves = launches_of(pool_of(quantization="fp16", kv_cache_dtype="bf16"))
    assert after(argv(halves["vllm"]), "--dtype") == "float16"


def test_what_a_version_converts_is_a_flag() -> None:
    blocks = pool_of(quantization="fp8-block", kv_cache_dtype="bf16")
    assert after(argv(launches_of(blocks)["vllm"]), "--quantization") == "fp8_per_block"
    old = launches_of(blocks, versions={"vllm": "0.19"})["vllm"]
    assert "--quantization" not in argv(old) and 'scheme="FP8_BLOCK"' in old.notes[0]
    assert old.model == "./model-FP8_BLOCK"
    assert "hf_ptq.py --pyt_ckpt_path owner/model --qformat fp8" in launches_of(pool_of())["trtllm"].notes[0]


def test_a_published_checkpoint_is_served() -> None:
    quarter = pool_of(quantization="w4a16", kv_cache_dtype="bf16")
    plans = launches_of(quarter, name="Qwen/Qwen3-8B")
    assert plans["vllm"].model == plans["sglang"].model == "Qwen/Qwen3-8B-AWQ" and "--quantization" not in argv(
        plans["vllm"]
    )
    assert "--qformat int4_awq" in plans["trtllm"].notes[0]  # it reads ModelOpt's only
    four = launches_of(pool_of(quantization="nvfp4"), name="deepseek-ai/DeepSeek-R1", quantizations=("fp8-block",))
    assert {launch.model for launch in four.values()} == {"nvidia/DeepSeek-R1-NVFP4"}


def test_a_checkpoint_of_a_sibling_is_named() -> None:
    base = launches_of(pool_of(quantization="nvfp4"), name="meta-llama/Meta-Llama-3.1-8B")["vllm"]
    assert base.model == "./Meta-Llama-3.1-8B-NVFP4" and "Llama-3.1-8B-Instruct there is " in base.notes[0]
    assert 'scheme="NVFP4"' in base.notes[0]


def test_what_an_engine_cannot_do_is_refused() -> None:
    stored = launches_of(pool_of(quantization="mxfp4-mxfp8"), name="openai/gpt-oss-20b", quantizations=("mxfp4",))
    assert all("leave -q away" in launch.refusals[0] for launch in stored.values())
    both = launches_of(pool_of(quantization="int4", kv_cache_dtype="int8"))
    assert all(not launch.processes for launch in both.values())
    assert "-q w4a16" in both["vllm"].refusals[0] and len(both["vllm"].refusals) == 1
    assert "SGLang 0.5.18 has no KV cache in int8" in both["sglang"].refusals[1]
    assert launch_lines(both["vllm"])[0].startswith("# vLLM")


def test_names_of_kv_caches_by_version() -> None:
    newest = cache_setting(catalog.engine("vllm"), "int8")
    assert newest is not None and newest.kv_cache_dtype == "int8_per_token_head"
    assert cache_setting(catalog.engine("vllm@0.19"), "int8") is None
    assert cache_setting(catalog.engine("vllm@0.24"), "int4") is None
    fp8 = pool_of(**{**BF16, "kv_cache_dtype": "fp8"})
    assert after(argv(launches_of(fp8)["sglang"]), "--kv-cache-dtype") == "fp8_e4m3"
    plain = launches_of(pool_of(quantization="fp8", kv_cache_dtype="bf16"))["trtllm"]
    assert "--kv_cache_qformat none" in plain.notes[1] and "kv_cache_config" not in str(plain.processes[0].files)


@pytest.mark.parametrize("name", SERVERS)
def test_every_precision_is_answered(name: str) -> None:
    """None falls through to a flag of ours: a value, a recipe, or a reason."""
    engine = catalog.engine(name)
    for precision in catalog.precisions():
        answer = weights(engine, "owner/model", "bf16", (), precision)
        assert answer.refusal or answer.note or answer.quantization or answer.dtype or precision == "bf16"
        assert answer.quantization != precision or precision in ("fp8", "mxfp8")
    known = set(catalog.precisions())
    settings = engine_settings(name)
    assert {one.precision for one in (*settings.weights, *settings.kv_cache)} <= known
    assert all(one.source for one in (*settings.weights, *settings.kv_cache))


def test_published_checkpoints_are_of_models_of_the_catalogue() -> None:
    known = set(catalog.precisions())
    for one in checkpoints():
        assert one.precision in known and one.source and catalog.catalog_entry(one.model) is not None, one.id
        assert one.id != one.model


# ------------------------------------------------------------------ flags that exist

FLAGS = tomllib.loads((Path(__file__).parent / "engine_flags.toml").read_text(encoding="utf-8"))
PLANS: dict[str, dict[str, Launch]] = {
    "one": launches_of(pool_of(**BF16)),
    "replicas": launches_of(pool_of(tp=2, replicas=4)),
    "mixture": launches_of(pool_of(dp=8, ep=True), memory_shares=dict.fromkeys(SERVERS, 0.8)),
    "nodes": launches_of(pool_of(tp=8, pp=2, **BF16)),
    "ranks over nodes": launches_of(pool_of(tp=2, dp=8, ep=True)),
    "split": launches_of(pool_of("prefill", tp=2, replicas=3), pool_of("decode", tp=4, replicas=2)),
    "drafted": launches_of(pool_of(**BF16), speculation=DRAFT, length_limit=8192, length_reason="short of memory"),
    "mtp": launches_of(pool_of(tp=8, **BF16), speculation=MTP),
    "ngram": launches_of(pool_of(quantization="fp16", kv_cache_dtype="int8"), speculation=NGRAM),
}


def programs(launch: Launch) -> Iterator[tuple[str, list[str]]]:
    """Every command of a launch, by the key of its flags."""
    for process in (*launch.processes, launch.bench):
        for words in filter(None, (process.argv, process.headless_argv)):
            text = " ".join(words)
            keys = ("vllm bench serve", "vllm serve", "vllm-router", "trtllm-serve disaggregated", "trtllm-serve")
            keys += ("sglang.launch_server", "sglang_router.launch_router")
            key = next((key for key in keys if key in text), "")
            if key:
                yield key, words[words.index(key.split()[0]) :]


@pytest.mark.parametrize("name", PLANS)
def test_only_flags_that_the_engines_take(name: str) -> None:
    seen = set()
    for launch in PLANS[name].values():
        for key, words in programs(launch):
            unknown = {word for word in words if word.startswith("--")} - set(FLAGS[key]["flags"].split())
            assert not unknown, key
            seen.add(key)
        for process in launch.processes:
            for line in process.files.get("extra_both.yaml", "").splitlines():
                assert line.partition(":")[0] in FLAGS["trtllm options"]["flags"].split()
    assert "vllm serve" in seen and "vllm bench serve" in seen


# ------------------------------------------------------------------ what a shell reads


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Programs that print their arguments as JSON."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("vllm", "python", "python3", "trtllm-serve", "vllm-router", "nginx", "mpirun"):
        path = folder / name
        path.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" >> "$ARGV"\nprintf "\\n\\0" >> "$ARGV"\n')
        path.chmod(0o755)
    return folder


def ran(text: str, stubs: Path, **env: str) -> list[list[str]]:
    """The arguments that the stubs got from a script."""
    log = stubs.parent / "argv"
    log.write_bytes(b"")
    path = f"{stubs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", text],
        cwd=stubs.parent,
        env={"PATH": path, "ARGV": str(log), **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    calls = [call.split("\0") for call in log.read_text().split("\n\0")]
    return [call[:-1] for call in calls if len(call) > 1]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_shell_reads_the_commands_as_they_are_meant(name: str, width: int, stubs: Path) -> None:
    from inferometer.views.text.document import shell_lines as folded

    machine = {"HOST_IP": "10.0.0.2", "HEAD_IP": "10.0.0.1", "NODE_RANK": "1"}
    for launch in PLANS[name].values():
        if launch.refusals:
            continue
        text = "\n".join(folded(line, width) for line in launch_lines(launch))
        known = {**variables(launch), **machine, "PWD": str(stubs.parent)}
        expected = [
            [_filled(word, {**known, "PORT": str(first_port(launch, process))}) for word in words]
            for process in launch.processes
            for words in filter(None, (process.argv, process.headless_argv))
        ]
        assert ran(text, stubs, **machine) == expected
        for process in launch.processes:
            for file, content in process.files.items():
                written = (stubs.parent / file).read_text() if process is launch.processes[-1] else None
                assert written in (None, "".join(_filled(line, known) for line in content.splitlines(keepends=True)))


def _filled(word: str, known: dict[str, str]) -> str:
    word = word.replace("$((NODE_RANK * 4))", "4")
    for name in sorted(known, key=len, reverse=True):
        word = word.replace(f"${name}", known[name])
    assert "$" not in word
    return word


def test_words_of_a_shell() -> None:
    defaults = {"PORT": "8000", "MODEL": "a path/of $mine"}
    assert shell_word("$PORT", defaults) == "${PORT:-8000}" and shell_word("$HEAD_IP:5000", {}) == "${HEAD_IP:?}:5000"
    assert shell_word("$MODEL", defaults) == "'a path/of $mine'"
    assert shell_word('- $SERVER_0 "x"', {"SERVER_0": "a:1"}) == '"- ${SERVER_0:-a:1} \\"x\\""'
    assert command_line(["nginx", "-c", "$PWD/nginx.conf"], {}) == 'nginx -c "$PWD/nginx.conf"'


@pytest.mark.parametrize("name", PLANS)
def test_scripts_start_the_same(name: str, stubs: Path) -> None:
    machine = {"HOST_IP": "10.0.0.2", "HEAD_IP": "10.0.0.1", "EXTRA_ARGS": "--seed 7"}
    for launch in PLANS[name].values():
        folder = stubs.parent / launch.engine
        folder.mkdir()
        files = script_files(launch)
        for file, text in files.items():
            (folder / file).write_text(text)
        assert [file for file in files if file.endswith(".sh")] == [SCRIPTS[one.name] for one in launch.processes]
        for process in launch.processes:
            paths = {file: f"{folder}/{file}" for file in process.files}
            script = f"bash {folder / SCRIPTS[process.name]}"
            for rank, words in enumerate(filter(None, (process.argv, process.headless_argv))):
                known = {**variables(launch), **machine, "NODE_RANK": str(rank), "PWD": str(folder)}
                known["PORT"] = str(first_port(launch, process))
                expected = [paths.get(word, _filled(word, known)) for word in words]
                assert ran(script, stubs, **machine, NODE_RANK=str(rank)) == [[*expected, "--seed", "7"]]
            for file, content in process.files.items():
                assert (folder / file).read_text() == _filled(content, variables(launch))


def test_replicas_of_a_machine_do_not_meet(stubs: Path) -> None:
    launch = PLANS["split"]["vllm"]
    for file, text in script_files(launch).items():
        (stubs.parent / file).write_text(text)
    watch = stubs / "vllm"
    names = "$CUDA_VISIBLE_DEVICES $VLLM_NIXL_SIDE_CHANNEL_PORT"
    watch.write_text(
        f'#!/bin/sh\nprintf "%s\\0" {names} "${{@: -1}}" "\n" >> "$ARGV"\n'.replace("/bin/sh", "/bin/bash")
    )
    seen = [
        ran(f"bash {script}", stubs, HOST_IP="10.0.0.2", REPLICA=str(n))[0]
        for script, many in (("prefill.sh", 3), ("decode.sh", 2))
        for n in range(many)
    ]
    assert [gpus for gpus, *_ in seen] == ["0,1", "2,3", "4,5", "0,1,2,3", "4,5,6,7"]  # two machines
    assert len({side for _, side, _ in seen}) == 5 and [port for *_, port in seen] == [str(8001 + n) for n in range(5)]


# ------------------------------------------------------------------ the benchmark


def _bench(**kwargs: Any) -> tuple[Any, Process]:
    traffic = build_traffic(**kwargs)
    return traffic, bench(traffic, build_objective("throughput", "ttft:200,tpot:20", 0.9), request_rate=4.0, count=300)


def test_the_benchmark_has_the_same_requests() -> None:
    traffic, process = _bench(input_len="1000", output_len=200, prefix_len=256, burstiness=0.5)
    assert not needs_file(traffic)
    for flag, value in (
        ("--random-input-len", "744"),
        ("--random-prefix-len", "256"),
        ("--random-output-len", "200"),
        ("--request-rate", "4"),
        ("--burstiness", "0.5"),
        ("--num-prompts", "300"),
        ("--model", "$MODEL"),
    ):
        assert after(process.argv, flag) == value
    assert process.argv[process.argv.index("--goodput") + 1 :][:2] == ["ttft:200", "tpot:20"]


def test_a_trace_is_a_file_that_vllm_and_we_read(tmp_path: Path) -> None:
    """vLLM v0.25.1 vllm/benchmarks/datasets/datasets.py, TimedTrace: ids of chunks must cover the prompt."""
    blocks = (np.array([7, 8, 9]), np.array([7, 8]), np.array([], int))
    trace = Trace(
        input_tokens=np.array([40, 33, 5]),
        output_tokens=np.array([3, 4, 0]),
        arrival_s=np.array([10.0, 11.0, 14.0]),
        blocks=blocks,
        block_tokens=16,
        source="trace.csv",
    )
    traffic, process = _bench(trace=trace)
    assert after(process.argv, "--dataset-name") == "timed_trace" and after(process.argv, "--num-prompts") == "3"
    assert after(process.argv, "--timed-trace-chunk-hash-size") == "16" and "--request-rate" not in process.argv
    lines = list(request_lines(traffic, traffic.request_rate * 2, 3))
    rows = [json.loads(line) for line in lines]
    for name in ("timestamp", "input-length", "output-length"):
        assert after(process.argv, f"--timed-trace-label-{name}") in rows[0]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    again = read_trace(str(path))
    assert again.arrival_s is not None and again.arrival_s.tolist() == [0.0, 0.5, 2.0], "seconds, not Mooncake's ms"
    assert again.input_tokens.tolist() == [40, 33, 5] and again.block_tokens == 16
    assert [row["arrival_s"] for row in rows] == [0.0, 0.5, 2.0]
    assert [row["input_tokens"] for row in rows] == [40, 33, 5] and rows[2]["output_tokens"] == 1
    assert rows[0]["hash_ids"] == [7, 8, 9] and rows[1]["hash_ids"] == [7, 8, 10] and rows[2]["hash_ids"] == [11]


def test_lengths_that_differ_are_a_file() -> None:
    traffic, process = _bench(input_len="lognormal:mean=900,std=300", output_len=100, prefix_len=64)
    assert needs_file(traffic) and after(process.argv, "--timed-trace-chunk-hash-size") == "16"
    rows = [json.loads(line) for line in request_lines(traffic, 4.0, 300)]
    assert len(rows) == 300 and len({row["input_tokens"] for row in rows}) > 100
    assert len({tuple(row["hash_ids"][:4]) for row in rows}) == 1  # the shared prefix
    assert all(len(row["hash_ids"]) == -(-row["input_tokens"] // 16) for row in rows)


# ------------------------------------------------------------------ lengths


def test_the_models_own_length_is_left_where_it_fits() -> None:
    from inferometer.inference.request import build_request

    roomy = build_request("llama-3.1-8b", gpu="h200")
    assert context_length([roomy], 4000, None) == (131072, 0, "")
    tight = context_length([build_request("llama-3.1-8b", gpu="l4")], 4000, None)
    assert 4000 < tight.limit < 131072 and tight.limit % 1024 == 0
    assert "131,072" in tight.reason and "the longest request has 4,000" in tight.reason
    assert context_length([roomy], 4000, 6000).limit == 6000


def test_states_in_a_chosen_format() -> None:
    for engine, name in (("vllm", "--mamba-ssm-cache-dtype"), ("sglang", "--mamba-ssm-dtype")):
        assert name not in argv(launches_of(pool_of(**BF16))[engine])
        told = argv(launches_of(pool_of(**BF16), state_dtype="bfloat16")[engine])
        assert told[told.index(name) + 1] == "bfloat16"
