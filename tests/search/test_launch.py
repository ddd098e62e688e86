"""How a plan is started: what each engine is told, and whether a shell reads it so."""

from __future__ import annotations

import shlex
from typing import Any

from inferometer.search.launch.bench_command import bench
from inferometer.search.launch.plan_launch import launches
from inferometer.search.launch.processes import Launch
from inferometer.search.launch.served_model import ServedModel
from inferometer.search.launch.shell_lines import launch_lines
from inferometer.search.objective import build_objective, build_traffic
from inferometer.search.search_result import Candidate, PlanMetrics, PoolSpec
from inferometer.specs.structs import Speculation


def _plan(*pools: PoolSpec) -> Candidate:
    nothing = PlanMetrics(
        request_rate=1,
        output_throughput=1,
        output_throughput_per_gpu=1,
        output_throughput_per_user=1,
        ttft_ms=1,
        tpot_ms=1,
        e2el_ms=1,
        cost_per_million_output_tokens=None,
        joules_per_output_token=None,
    )
    return Candidate(gpu="h200", mode="any", pools=list(pools), gpus=1, idle_gpus=0, priced=nothing)


def _pool(role: str = "both", tp: int = 1, pp: int = 1, dp: int = 1, ep: bool = False, replicas: int = 1) -> PoolSpec:
    return PoolSpec(
        role=role,
        replicas=replicas,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        enable_expert_parallel=ep,
        quantization="fp8",
        kv_cache_dtype="fp8",
        max_num_batched_tokens=4096,
        max_num_seqs=256,
    )


def _launches(*pools: PoolSpec, **changes: Any) -> dict[str, Launch]:
    model = ServedModel("owner/model", False, False, max_model_len=4608, gpus_per_node=8)
    kwargs = {"trace": None, "input_len": 1000, "output_len": 200, "prefix_len": 0, "request_rate": 2.0}
    traffic = build_traffic(**kwargs, burstiness=1.0, seed=0, block_tokens=16)
    objective = build_objective("throughput", "ttft:200", 0.9)
    check = bench("owner/model", traffic, objective, request_rate=2.0, num_prompts=200, trace=None)
    return launches(_plan(*pools), model._replace(**changes), check)


def _lines(*pools: PoolSpec, **changes: Any) -> dict[str, list[str]]:
    return {engine: launch_lines(launch) for engine, launch in _launches(*pools, **changes).items()}


def test_commands_say_the_layout_in_each_engines_words() -> None:
    lines = _lines(_pool(tp=2, dp=4, ep=True))
    vllm, sglang = (shlex.split(next(x for x in lines[key] if "#" not in x)) for key in ("vllm", "sglang"))
    for flag, size in (
        ("--tensor-parallel-size", "2"),
        ("--data-parallel-size", "4"),
        ("--quantization", "fp8"),
        ("--max-model-len", "4608"),
        ("--max-num-batched-tokens", "4096"),
    ):
        assert vllm[vllm.index(flag) + 1] == size
    assert "--enable-expert-parallel" in vllm
    for flag, size in (("--tp-size", "8"), ("--dp-size", "4"), ("--ep-size", "8"), ("--max-running-requests", "1024")):
        assert sglang[sglang.index(flag) + 1] == size
    assert "--enable-dp-attention" in sglang
    assert any("no such layout" in line for line in lines["trtllm"])
    apart = _lines(_pool(dp=4, ep=True), own_quantization=True, own_kv_cache_dtype=True)
    assert any("enable_attention_dp: true" in line for line in apart["trtllm"])
    assert not any("--quantization" in line or "kv-cache-dtype" in line for key in apart for line in apart[key])


def test_commands_of_pools_hand_the_cache_over() -> None:
    lines = _lines(_pool("prefill", tp=2, replicas=3), _pool("decode", tp=4))
    text = {key: "\n".join(text) for key, text in lines.items()}
    assert text["vllm"].count("NixlConnector") == 2 and '"kv_role": "kv_consumer"' in text["vllm"]
    assert "--disaggregation-mode prefill" in text["sglang"] and "--disaggregation-mode decode" in text["sglang"]
    for engine in ("vllm", "sglang"):
        assert "http://$PREFILL_2" in text[engine] and "http://$DECODE_0" in text[engine]
    assert "trtllm-serve disaggregated" in text["trtllm"] and "cache_transceiver_config" in text["trtllm"]
    assert '"  - $PREFILL_2"' in text["trtllm"]  # in double quotes: the shell fills it in


def test_replicas_have_a_router_before_them() -> None:
    routers = {engine: launch.processes[-1] for engine, launch in _launches(_pool(tp=2, replicas=3)).items()}
    for engine in ("vllm", "sglang"):
        argv = routers[engine].argv
        first = argv.index("--worker-urls") + 1
        assert argv[first : first + 4] == [*(f"http://$SERVER_{n}" for n in range(3)), "--policy"]
    assert "    server $SERVER_2;\n" in routers["trtllm"].files["nginx.conf"]
    assert all(len(launch.processes) == 1 for launch in _launches(_pool(tp=2)).values())


def test_commands_that_span_nodes_say_so() -> None:
    wide = _lines(_pool(tp=8, pp=2))["vllm"]
    assert "--nnodes 2" in wide[1] and "--headless" in wide[2]
    spread = _lines(_pool(tp=4, dp=4, ep=True))["vllm"]
    assert "--data-parallel-size-local 2" in spread[1] and "--data-parallel-start-rank $((NODE_RANK * 2))" in spread[1]
    mtp = Speculation(method="mtp", num_speculative_tokens=2)
    drafted = _lines(_pool(), speculation=mtp)
    assert '"num_speculative_tokens": 2' in drafted["vllm"][1] and "max_draft_len" in "".join(drafted["trtllm"])
