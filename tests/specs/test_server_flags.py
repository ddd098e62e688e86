"""A server's own command as a plan: shell lines, containers, manifests; every flag is accounted for."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.specs.arguments import arguments
from inferometer.specs.command_args import ServingArgs
from inferometer.specs.manifest_yaml import read_yaml
from inferometer.specs.plan_args import PlanArgs
from inferometer.specs.server_command import is_server_command, server_launch, split_command
from inferometer.specs.server_flags import flag_table, known_flags, server_command

ENGINES = ("vllm", "sglang", "trtllm")


def status(text: str) -> dict[str, str]:
    return {use.flag: use.status for use in server_command(text).flags}


COMMANDS: dict[str, dict[str, Any]] = {
    "vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len=32k": {"tensor_parallel_size": 2, "max_model_len": 32000},
    "vllm serve Qwen/Qwen3-8B --enforce-eager --kv_cache_dtype fp8_e5m2": {
        "max_cudagraph_capture_size": 0,
        "kv_cache_dtype": "fp8",
    },
    "export VLLM_X=1 && vllm serve m/x \\\n  --max-num-seqs 64 \\\n --no-enable-prefix-caching > log 2>&1": {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
    },
    'vllm serve m/x \\ --speculative-config={"method":"deepseek_mtp","num_speculative_tokens":2}': {
        "speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}'
    },
    "vllm serve m/x --compilation-config.cudagraph_mode NONE": {"max_cudagraph_capture_size": 0},
    "MODEL=m/x; python3 -m vllm.entrypoints.openai.api_server --model $MODEL -pp 2": {"pipeline_parallel_size": 2},
    "export TP=; vllm serve ${MODEL:-m/x} -tp ${TP:-2} --max-model-len ${LEN-${MOST:-4096}} ${MORE:-}": {
        "tensor_parallel_size": 2,
        "max_model_len": 4096,
    },
    "EXTRA='-tp 2 --enforce-eager'; ORG=m; NAME=$ORG/x; vllm serve $NAME $EXTRA": {
        "tensor_parallel_size": 2,
        "max_cudagraph_capture_size": 0,
    },
    """vllm serve m/x --compilation-config '{"cudagraph_capture_sizes": "512"}'""": {"max_cudagraph_capture_size": 512},
    "echo 'this is vllm serve' && vllm serve m/x": {},
    "docker run vllm/vllm-openai:v0.25.1 serve m/x": {"engine": "vllm@0.25"},
    "python -m sglang.launch_server --model m/x --tp 8 --dp 4 --enable-dp-attention --max-running-requests 256": {
        "tensor_parallel_size": 2,
        "data_parallel_size": 4,
        "enable_expert_parallel": True,
        "max_num_seqs": 64,
    },
    "sglang serve --model-path m/x --disable-cuda-graph --disable-radix-cache": {
        "max_cudagraph_capture_size": 0,
        "enable_prefix_caching": False,
    },
    "sglang serve --model-path m/x --speculative-algorithm EAGLE --speculative-num-steps 1 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 2": {
        "speculative_config": '{"method": "mtp", "num_speculative_tokens": 1}'
    },
    "mpirun -n 8 trtllm-llmapi-launch trtllm-serve serve m/x --tp_size 8 --ep_size 8 --max_batch_size 32": {
        "tensor_parallel_size": 8,
        "enable_expert_parallel": True,
        "max_num_seqs": 32,
    },
    "docker run --gpus all -e HF_TOKEN=x -p 1:2 vllm/vllm-openai:v0.25.1 --model m/x --block-size 32": {
        "engine": "vllm@0.25",
        "block_size": 32,
    },
    'docker run lmsysorg/sglang:v0.5.10 bash -c "python3 -m sglang.launch_server --model-path m/x --page-size 64"': {
        "engine": "sglang@0.5.10",
        "block_size": 64,
    },
}


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_is_a_plan(text: str) -> None:
    command = server_command(text)
    engine = {"engine": command.engine}
    assert command.arguments == {**engine, **COMMANDS[text]}
    assert command.model in ("m/x", "Qwen/Qwen3-8B")
    assert not [use for use in command.flags if use.status == "unknown"]


def test_flags_are_understood_without_effect_not_modelled_or_unknown() -> None:
    uses = status("vllm serve m/x -tp 2 --api-key k --attention-backend FLASHINFER --tensr-parallel-size 2 --port 80")
    assert uses == {
        "-tp": "understood",
        "--api-key": "no effect",
        "--attention-backend": "not modelled",
        "--tensr-parallel-size": "unknown",
        "--port": "no effect",
    }
    command = server_command("vllm serve m/x --api-key secret --tensr-parallel-size 2")
    assert "--tensor-parallel-size" in command.flags[1].note and "secret" not in str(command)
    assert "secret" not in str(server_command("VLLM_API_KEY=secret vllm serve m/x").flags)
    assert status("vllm serve deepseek-ai/DeepSeek-R1 --quantization fp8")["--quantization"] == "no effect"
    assert status("sglang serve --model-path m/x --tp 2 --enable-dp-attention")["--enable-dp-attention"] == "no effect"


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_name_flags_that_there_are(engine: str) -> None:
    """Above the marker of a file stand only flags and groups that its source has, and arguments that a plan has."""
    table, known = flag_table(engine), known_flags(engine)
    ours = {*arguments(PlanArgs), *arguments(ServingArgs), "extra_llm_api_options"}
    options = {"enable_attention_dp", "dtype", "kv_cache_dtype", "speculative_config", "tokens_per_block"}
    options |= {"enable_block_reuse", "cuda_graph_config"}  # keys of TensorRT-LLM's file
    for name, argument in table.arguments.items():
        assert f"--{name}" in known or (engine == "trtllm" and name in options), name
        assert argument in ours, argument
    for name in table.no_effect:
        assert f"--{name}" in known or name in table.flags, name
    assert not {*table.arguments} & {*table.no_effect}


def test_manifests(tmp_path: Path, run: Callable[..., Ran]) -> None:
    compose = tmp_path / "compose.yml"
    compose.write_text(
        "services:\n  web: {image: nginx}\n  llm:\n    image: vllm/vllm-openai:v0.25.1  # the server\n"
        "    environment:\n      - VLLM_LOGGING_LEVEL=DEBUG\n    command: >\n      --model Qwen/Qwen3-8B\n"
        "      --tensor-parallel-size 2\n"
    )
    command = server_command(str(compose))
    assert (command.model, command.arguments) == ("Qwen/Qwen3-8B", {"engine": "vllm@0.25", "tensor_parallel_size": 2})
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\n---\nspec:\n  containers:\n  - name: s\n    image: lmsysorg/sglang\n    env:\n    - name: M\n"
        "      value: Qwen/Qwen3-8B\n    command: [python3, -m, sglang.launch_server,\n      '--model-path', $(M)]\n"
        '    args:\n    - --tp-size\n    - "4"\n'
    )
    launch = server_launch(str(pod))
    assert launch.engine == "sglang" and launch.flags == ["--model-path", "Qwen/Qwen3-8B", "--tp-size", "4"]
    options = tmp_path / "extra.yaml"
    options.write_text(
        'enable_attention_dp: true\nkv_cache_config: {"dtype": "fp8", "free_gpu_memory_fraction": 0.8}\n'
    )
    told = server_command(f"trtllm-serve m/x --tp_size 4 --extra_llm_api_options {options}").arguments
    assert told["data_parallel_size"] == 4 and told["kv_cache_dtype"] == "fp8"
    assert told["gpu_memory_utilization"] == 0.8
    empty = tmp_path / "none.yaml"
    empty.write_text("a: 1\n")
    refused(run("analyze", empty), "no container that starts")


def test_a_packed_manifest_is_read(tmp_path: Path) -> None:
    text = "services:\n  a:\n    image: vllm/vllm-openai:v0.15.0\n    command: --model Qwen/Qwen3-8B -tp 2\n"
    (tmp_path / "compose.yaml.gz").write_bytes(gzip.compress(text.encode()))
    assert is_server_command(str(tmp_path / "compose.yaml.gz"))
    assert server_command(str(tmp_path / "compose.yaml.gz")).arguments["tensor_parallel_size"] == 2


def test_analyze_explains_a_command(run: Callable[..., Ran]) -> None:
    text = "vllm serve Qwen/Qwen3-8B --enforce-eager --tensor-parallel-size 2 --enable-prefix-caching"
    result = run("analyze", text, "--gpu", "h100-sxm", "-tp", "1", "--json").json
    assert result["plan"]["tensor_parallel_size"] == 1, "what is typed wins"
    uses = {use["flag"]: use for use in result["server_command"]["flags"]}
    assert uses["--tensor-parallel-size"]["status"] == "no effect"
    assert uses["--enable-prefix-caching"]["note"].startswith("of a server over time")
    tried = {one["flags"]: one for one in result["tried"]}
    graphs = tried["without --enforce-eager"]
    plain = run("analyze", "qwen3-8b", "--gpu", "h100-sxm", "--engine", "vllm", "--json").json
    assert graphs["tpot"] == pytest.approx(plain["metrics"]["tpot_ms"] / result["metrics"]["tpot_ms"] - 1)
    assert all(
        max(-(one["ttft"] or 0), -(one["tpot"] or 0), one["output_throughput_per_gpu"]) >= 0.02
        for one in tried.values()
    )


def test_other_commands_take_one_too(run: Callable[..., Ran]) -> None:
    traffic = ("--num-prompts", "8", "--request-rate", "4", "--json")
    line = "vllm serve Qwen/Qwen3-8B --num-gpu-blocks-override 4096 --attention-backend FA"
    ran = run("simulate", line, *traffic)
    assert "--attention-backend of the command is not modelled" in ran.err
    same = run("simulate", "qwen3-8b", "--engine", "vllm", "--num-gpu-blocks-override", "4096", *traffic)
    assert ran.json["mean_ttft_ms"] == same.json["mean_ttft_ms"]


def test_bad_commands_are_sentences(run: Callable[..., Ran]) -> None:
    refused(run("analyze", "vllm serve --port 8000"), "names no model")
    refused(run("analyze", "vllm serve m/x --max-num-seqs many"), "--max-num-seqs of the command takes a whole number")
    refused(run("analyze", "vllm serve m/x --gpu-memory-utilization 90%"), "takes a number, not '90%'")
    refused(run("analyze", "vllm serve m/x -tp $(nvidia-smi | wc -l)"), "is '$(nvidia-smi | wc -l)', which the command")
    refused(run("analyze", "vllm serve $MODEL"), "model is '$MODEL', which the command does not set")
    refused(run("analyze", "vllm serve m/x --speculative-config"), "--speculative-config of the command needs a value")
    refused(run("analyze", "vllm serv Qwen/Qwen3-8B"), "no server is started by 'vllm serv Qwen/Qwen3-8B'")
    refused(run("analyze", "serve Qwen/Qwen3-8B"), "serve Qwen/Qwen3-8B")
    refused(run("analyze", "trtllm-serve disaggregated -c x.yaml"), "no server is started by")
    refused(run("analyze", "docker run vllm/vllm-openai:v0.25.1 bash"), "no server is started by")
    refused(run("analyze", "vllm serve m/x --speculative-config nothing"), "JSON object")
    refused(run("analyze", "nowhere.yaml"), "no file")
    refused(run("analyze", "vllm serve m/x --kv-cache-dtype"), "--kv-cache-dtype of the command needs a value")
    refused(run("analyze", "vllm serve m/x --speculative-config " + "[" * 9000), "JSON object")
    mixed = """--compilation-config '{"cudagraph_capture_sizes": ["a", 1]}'"""
    refused(run("analyze", f"vllm serve m/x {mixed}"), "--compilation-config of the command does not take")
    refused(run("analyze", """vllm serve m/x --speculative-config '{"num_speculative_tokens": 1e999}'"""), "no number")
    refused(run("analyze", "docker run vllm/vllm-openai:v" + "9" * 5000 + " --model m/x"), "m/x")
    refused(run("analyze", "vllm serve m/x " + "--x " * 5001), "more than 5,000 words")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 50_000, "the bracket in"),
        ("a: " + "[" * 50_000 + "]" * 50_000, "nested too deeply"),
        ("a: 'b\nc: d\n", "the quote in"),
        ("args: [--model, {{ .Values.model }}]\n", "template of Helm"),
        ("a" + " " * 100_000 + "b\n", "no container"),
        ("a: [\n" + "  b,\n" * 100_000 + "]\n", "no container"),
        ("".join(" " * k + "a:\n" for k in range(1500)), "nested too deeply"),
        ("a0: &a0\n  - x\n" + "".join(f"a{k}: &a{k}\n" + f"  - *a{k - 1}\n" * 9 for k in range(1, 12)), "no container"),
        ("a: [b, }]\n", "no container"),
        ("a: b\n" * 800_001, "more than 4,000,000 characters"),
    ],
)
def test_manifests_that_nobody_writes(run: Callable[..., Ran], tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    refused(run("analyze", str(path)), says)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("./bin/mindieservice_daemon --config conf.json", "MindIE"),
        ("lmdeploy serve api_server Qwen/Qwen3-8B --tp 2", "LMDeploy"),
        ("docker run ghcr.io/x/text-generation-inference:3 --model-id Qwen/Qwen3-8B", "Text Generation Inference"),
        ("llama-server -m model.gguf -c 4096", "llama.cpp"),
        ("ollama serve", "Ollama"),
    ],
)
def test_servers_of_other_engines_are_refused_by_name(run: Callable[..., Ran], text: str, name: str) -> None:
    refused(run("analyze", text, "--gpu", "h200"), f"{name} is not an engine that inferometer has")


def test_a_folder_may_be_called_like_a_server(run: Callable[..., Ran], tmp_path: Path) -> None:
    refused(run("analyze", str(tmp_path / "my ollama models" / "config.json"), "--gpu", "h200"), "no such file")


@pytest.mark.parametrize(
    "text,chosen",
    [
        ("vllm serve m/x --moe-backend marlin", "marlin"),
        ("vllm serve m/x --kernel-config.moe_backend=auto", None),
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve m/x", "marlin"),
        ("VLLM_MXFP4_USE_MARLIN=0 vllm serve m/x", None),
        ("vllm serve m/x --moe-backend auto", None),
        ("vllm serve m/x --moe-backend deep-gemm", None),
    ],
)
def test_kernels_for_experts(text: str, chosen: str | None) -> None:
    assert server_command(text).arguments.get("moe_backend") == chosen
    assert status("vllm serve m/x --moe-backend deep-gemm")["--moe-backend"] == "not modelled"


def test_shapes_of_commands_that_people_publish() -> None:
    """Variables in front, short and long names, aliases, switches of kernels; no flag is without a status."""
    flags = status(
        "export VLLM_USE_DEEP_GEMM=1; vllm serve Qwen/Qwen3-8B -tp 2 -dp 4 --enable-expert-parallel "
        "--max-model-len 32768 --max-num-batched-tokens=8192 --performance-mode throughput --port 9000"
    )
    assert flags["-tp"] == flags["-dp"] == flags["--max-num-batched-tokens"] == "understood"
    assert (
        flags["--performance-mode"] == flags["VLLM_USE_DEEP_GEMM"] == "not modelled" and flags["--port"] == "no effect"
    )
    flags = status(
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 8 --ep 8 --chunked-prefill-size 16384 "
        "--mem-fraction-static 0.9 --attention-backend fa3 --nsa-decode-backend fa3 --host 0.0.0.0"
    )
    assert flags["--tp-size"] == flags["--ep"] == flags["--chunked-prefill-size"] == "understood"
    assert flags["--attention-backend"] == flags["--nsa-decode-backend"] == "not modelled"
    assert set(status("trtllm-serve Qwen/Qwen3-8B --tp_size 2 --kv_cache_free_gpu_memory_fraction 0.8").values()) == {
        "understood"
    }


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(
            st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="\\"), min_size=1, max_size=9
        ),
        max_size=5,
    )
)
def test_quoted_words_come_back(words: list[str]) -> None:
    quoted = " ".join("'" + word.replace("'", "'\"'\"'") + "'" for word in words)
    assert split_command(quoted) == words


def test_yaml_as_people_write_it() -> None:
    text = 'a: &x\n  b: [1, "c: d"]\nd:\n  <<: *x\n  e: |\n    one\n    two # kept\nf: plain\n  goes on\n- not: here\n'
    (document,) = read_yaml(text.rpartition("- ")[0], "x")
    assert document["d"] == {"b": [1, "c: d"], "e": "one\ntwo # kept"} and document["f"] == "plain goes on"


def test_published_commands_parse(shared: Path) -> None:
    path = shared / "measured/public/gpustack_performance_lab.csv"
    if not path.is_file():
        pytest.skip("optional: other projects' files")
    with path.open() as file:
        commands = {row["serving"] for row in csv.DictReader(file)}
    for text in commands:
        command = server_command(text)
        assert command.model and command.engine in ENGINES
        assert not [use for use in command.flags if use.status == "unknown"], text


IMAGE = "vllm/vllm-openai:v0.25.1"
MANIFESTS = {  # containers of a pod, or a whole Compose file; each serves m/x on two GPUs
    "a bracket closed below its key": """
  - args: [
      "--model", "m/x", # the model
      "-tp", "2"
    ]
""",
    "brackets in quotes": """
  - args: ["--model", "m/x",
      "--chat-template", "a]]",
      "-tp", "2"]
""",
    "as kubectl writes a script": r"""
  - command: [sh, -c]
    args:
    - "set -e\nvllm serve m/x \\\n  -tp
      2 --dtype\
      \ auto\n"
""",
    "doubled quotes": "\n  - args:\n    - --model\n    - m/x\n    - '--tokenizer=it''s'\n    - -tp\n    - '2'\n",
    "an item with an anchor": "\n  - args:\n    - --model\n    - &m m/x\n    - --tokenizer\n    - *m\n    - -tp=2\n",
    "an alias in a list": "\n  - env: &tp 2\n    args: [--model, m/x, -tp, *tp]\n",
    "commas in quotes": """
  - env: [{name: A, value: ', '}, {name: B, value: 2}]
    args: [--model, m/x, -tp, $(B)]
""",
    "variables of variables": """
  - env:
    - name: ORG
      value: m
    - name: M
      value: $(ORG)/x
    args: [--model, $(M), -tp=2]
""",
    "a worker before the server": f"""
  - command: [sh, -c, 'multi-node-serving.sh worker --ray_address=$(A)']
    image: {IMAGE}
  - command: [sh, -c, 'multi-node-serving.sh leader; vllm serve m/x -tp 2']
""",
    "two merged mappings": f"""x: &x
  image: {IMAGE}
y: &y
  command: --model m/x -tp 2
services:
  v:
    <<: [*x, *y]
""",
    "defaults of Compose": """services:
  v:
    image: vllm/vllm-openai:${TAG:-v0.25.1}
    command: --model ${MODEL:-m/x} --tensor-parallel-size ${TP-2}
""",
    "a dollar that Compose keeps": f"""services:
  v:
    image: {IMAGE}
    environment:
      M: m/x
      N:
    command: sh -c "vllm serve $$M -tp 2"
""",
}


@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_manifests_as_people_write_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    pod = f"spec:\n  containers:{text}    image: {IMAGE}\n"
    path.write_text(pod if text.startswith("\n") else text)
    command = server_command(str(path))
    assert (command.model, command.arguments["tensor_parallel_size"], command.engine) == ("m/x", 2, "vllm")
    assert not [use for use in command.flags if use.status == "unknown"]


def test_the_flags_of_a_configuration_file_are_read(tmp_path: Path) -> None:
    """What the command itself says wins; without the file, the flag is not said to have no effect."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: m/x\ntensor-parallel-size: 4\nmax_model_len: 8192\nenforce-eager: true\nasync-scheduling: false\n"
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n"
    )
    command = server_command(f"vllm serve --config {config} -tp 2")
    assert command.model == "m/x" and command.arguments == {
        "engine": "vllm",
        "tensor_parallel_size": 2,
        "max_model_len": 8192,
        "max_cudagraph_capture_size": 0,
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}',
    }
    assert server_command(f"vllm serve m/y --config {config}").model == "m/y"
    for engine in ("vllm serve", "sglang serve --model-path"):
        assert status(f"{engine} m/x --config {tmp_path / 'nowhere.yaml'}")["--config"] == "not modelled"


def test_many_images_take_no_longer_than_their_number() -> None:
    launch = server_launch("docker run " + "a/vllm-openai " * 2000 + "--model m/x")
    assert launch.flags == ["--model", "m/x"]


def test_variables_do_not_grow_without_end() -> None:
    doubled = "A=xx; " + "".join(f"B{k}=$A$A; A=$B{k}; " for k in range(60))
    command = server_command(doubled + "vllm serve m/x --served-model-name $A " + "${A:-" * 500 + "}" * 500)
    assert len(str(command)) < 200_000


@pytest.mark.parametrize(
    "text", ["vllm serve m/x --mamba-ssm-cache-dtype", "python -m sglang.launch_server --model m/x --mamba-ssm-dtype"]
)
def test_formats_of_recurrent_states(text: str) -> None:
    for word in ("auto", "float32", "bfloat16"):
        assert server_command(f"{text} {word}").arguments["mamba_ssm_cache_dtype"] == word
