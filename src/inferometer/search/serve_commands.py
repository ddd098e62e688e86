"""A plan as commands: servers of vLLM, SGLang and TensorRT-LLM, what stands before them, and the benchmark to run.

Flags are those of vLLM 0.25, SGLang 0.5 and TensorRT-LLM 1.x as their documentation has them (docs/search.md). Limits
of a step and the share of memory are said only where they are not what the engine takes there by itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..base.units import ceil_div
from ..specs.structs import Engine, Speculation
from .objective import Objective, Traffic
from .search_result import Candidate, PoolSpec

VLLM, SGLANG, TRTLLM, BENCH = "vllm", "sglang", "trtllm", "bench"
SERVERS = (VLLM, SGLANG, TRTLLM)
_PORT = 8000


class ServedModel(NamedTuple):
    """What the commands of all pools have in common."""

    name: str  # a Hugging Face id or a path
    own_quantization: bool  # weights are as the checkpoint has them
    own_kv_cache_dtype: bool  # so is the KV cache
    max_model_len: int
    gpus_per_node: int
    speculation: Speculation | None = None
    engines: Mapping[tuple[str, str], Engine] = {}  # (engine, role of a pool) -> the engine with its defaults there
    memory_shares: Mapping[str, float] = {}  # engine -> share of memory that it was given

    def flags(self, engine: str, pool: PoolSpec, values: Mapping[str, tuple[str, Any]]) -> list[Any]:
        """Figures of an engine as flags, where they differ from its defaults.

        ``model.flags("vllm", pool, {"max_num_seqs": ("--max-num-seqs", 64)})  # ['--max-num-seqs', 64]``
        """
        own = self.engines.get((engine, pool.role))
        differs = [pair for name, pair in values.items() if own is None or getattr(own, name) != pair[1]]
        return [part for pair in differs for part in pair]

    def memory_flag(self, engine: str, name: str) -> list[Any]:
        """The share of memory as a flag, where it was given."""
        return [name, self.memory_shares[engine]] if engine in self.memory_shares else []


def commands(plan: Candidate, model: ServedModel) -> dict[str, list[str]]:
    """Lines of a shell by engine: ``commands(plan, model)["vllm"]  # ['# 2 × this, …', 'vllm serve …']``"""
    return {
        engine: [line for pool in plan.pools for line in _pool(engine, pool, model)] + _router(engine, plan)
        for engine in SERVERS
    }


def _pool(engine: str, pool: PoolSpec, model: ServedModel) -> list[str]:
    """A comment and the command of one server of a pool."""
    nodes = ceil_div(pool.gpus, model.gpus_per_node)
    verb = {"both": "serves", "prefill": "reads prompts", "decode": "answers"}[pool.role]
    gpus = f"{pool.gpus} GPU{'s' if pool.gpus > 1 else ''}"
    where = f"{gpus} over {nodes} nodes, once a node with its NODE_RANK" if nodes > 1 else gpus
    build = {VLLM: _vllm, SGLANG: _sglang, TRTLLM: _trtllm}[engine]
    return [f"# {pool.replicas} × this, each on {where}: {verb}", *build(pool, model, nodes)]


def _vllm(pool: PoolSpec, model: ServedModel, nodes: int) -> list[str]:
    flags = [*_sizes(pool, ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"))]
    flags += ["--enable-expert-parallel"] if pool.enable_expert_parallel else []
    flags += [] if model.own_quantization else ["--quantization", pool.quantization]
    flags += [] if model.own_kv_cache_dtype else ["--kv-cache-dtype", pool.kv_cache_dtype]
    limits = {
        "max_num_batched_tokens": ("--max-num-batched-tokens", pool.max_num_batched_tokens),
        "max_num_seqs": ("--max-num-seqs", pool.max_num_seqs),
    }
    flags += ["--max-model-len", model.max_model_len, *model.flags(VLLM, pool, limits)]
    flags += model.memory_flag(VLLM, "--gpu-memory-utilization")
    if model.speculation is not None:
        flags += ["--speculative-config", json.dumps(_speculative_config(model.speculation))]
    before: list[Any] = []
    if pool.role != "both":
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[pool.role]
        flags += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})]
        before = ["VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_PORT=5600"]
    flags += ["--port", "$PORT"]
    if nodes > 1 and pool.data_parallel_size % nodes == 0 and pool.pipeline_parallel_size == 1:
        local = pool.data_parallel_size // nodes
        flags += [
            "--data-parallel-size-local",
            local,
            "--data-parallel-start-rank",
            f"$((NODE_RANK * {local}))",
            "--data-parallel-address",
            "$HEAD_IP",
            "--data-parallel-rpc-port",
            13345,
        ]
    elif nodes > 1:
        flags += ["--nnodes", nodes, "--node-rank", "$NODE_RANK", "--master-addr", "$HEAD_IP"]
    lines = [_line(*before, "vllm", "serve", model.name, *flags)]
    return [*lines, "# nodes after the first: add --headless"] if nodes > 1 else lines


def _sglang(pool: PoolSpec, model: ServedModel, nodes: int) -> list[str]:
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    flags: list[Any] = ["--model-path", model.name, "--tp-size", tp * dp]  # its tp counts all ranks of a stage
    flags += ["--pp-size", pp] if pp > 1 else []
    flags += ["--dp-size", dp, "--enable-dp-attention"] if dp > 1 else []
    flags += ["--ep-size", tp * dp] if pool.enable_expert_parallel else []
    flags += [] if model.own_quantization else ["--quantization", pool.quantization]
    flags += (
        []
        if model.own_kv_cache_dtype
        else ["--kv-cache-dtype", "fp8_e4m3" if pool.kv_cache_dtype == "fp8" else pool.kv_cache_dtype]
    )
    chunk = {"max_num_batched_tokens": ("--chunked-prefill-size", pool.max_num_batched_tokens)}
    running = model.flags(SGLANG, pool, {"max_num_seqs": ("--max-running-requests", pool.max_num_seqs)})
    flags += ["--context-length", model.max_model_len, *model.flags(SGLANG, pool, chunk)]
    flags += [running[0], running[1] * dp] if running else []  # of all data-parallel ranks
    flags += model.memory_flag(SGLANG, "--mem-fraction-static")
    if model.speculation is not None and model.speculation.method == "mtp":
        count = model.speculation.num_speculative_tokens
        flags += [
            "--speculative-algorithm",
            "EAGLE",
            "--speculative-num-steps",
            count,
            "--speculative-eagle-topk",
            1,
            "--speculative-num-draft-tokens",
            count + 1,
        ]
    if pool.role != "both":
        flags += ["--disaggregation-mode", pool.role, "--disaggregation-transfer-backend", "nixl"]
    if nodes > 1:
        flags += ["--nnodes", nodes, "--node-rank", "$NODE_RANK", "--dist-init-addr", "$HEAD_IP:5000"]
    return [_line("python", "-m", "sglang.launch_server", *flags, "--port", "$PORT")]


def _trtllm(pool: PoolSpec, model: ServedModel, nodes: int) -> list[str]:
    tp, pp, dp = pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size
    if tp > 1 and dp > 1:
        return ["# TensorRT-LLM has no such layout: its attention is tensor parallel or data parallel, not both"]
    extra = ["enable_attention_dp: true"] if dp > 1 else []
    kept = {} if model.own_kv_cache_dtype else {"dtype": pool.kv_cache_dtype}
    share = model.memory_flag(TRTLLM, "free_gpu_memory_fraction")
    kept |= {share[0]: share[1]} if share else {}
    extra += [f"kv_cache_config: {json.dumps(kept)}"] if kept else []
    extra += ["enable_chunked_prefill: true"] if model.max_model_len > pool.max_num_batched_tokens else []
    extra += ['cache_transceiver_config: {"backend": "DEFAULT"}'] if pool.role != "both" else []
    extra += ["disable_overlap_scheduler: true"] if pool.role == "prefill" else []
    if model.speculation is not None and model.speculation.method == "mtp":
        count = model.speculation.num_speculative_tokens
        extra.append(f'speculative_config: {{"decoding_type": "MTP", "max_draft_len": {count}}}')
    name = f"extra_{pool.role}.yaml"
    limits = {
        "max_num_seqs": ("--max_batch_size", pool.max_num_seqs),
        "max_num_batched_tokens": ("--max_num_tokens", pool.max_num_batched_tokens),
    }
    flags = [
        model.name,
        "--tp_size",
        tp * dp,
        *(["--pp_size", pp] if pp > 1 else []),
        *(["--ep_size", tp * dp] if pool.enable_expert_parallel else []),
        *model.flags(TRTLLM, pool, limits),
        "--max_seq_len",
        model.max_model_len,
        *(["--extra_llm_api_options", name] if extra else []),
        "--port",
        "$PORT",
    ]
    lines = [f"printf '%s\\n' {' '.join(shlex.quote(line) for line in extra)} > {name}"] if extra else []
    lines += (
        []
        if model.own_quantization
        else [f"# the model must be a checkpoint in {pool.quantization}: it does not convert one"]
    )
    return [*lines, _line("trtllm-serve", *flags)]


def _router(engine: str, plan: Candidate) -> list[str]:
    """The router before the servers, where there are several."""
    split = len(plan.pools) > 1
    if not split:
        return ["# before them, a router that deals requests out in turn"] if plan.pools[0].replicas > 1 else []
    if engine == VLLM:
        return [
            "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py --port 8000 --prefiller-hosts "
            "$PREFILL_HOSTS --prefiller-ports $PREFILL_PORTS --decoder-hosts $DECODE_HOSTS --decoder-ports "
            "$DECODE_PORTS"
        ]
    if engine == SGLANG:
        servers = [(pool.role, n + 1) for pool in plan.pools for n in range(pool.replicas)]
        urls = " ".join(f"--{role} http://${role.upper()}_{n}" for role, n in servers)
        return [f"python -m sglang_router.launch_router --pd-disaggregation {urls} --port {_PORT}"]
    return [
        "# disagg_config.yaml has context_servers and generation_servers, each with num_instances and urls",
        "trtllm-serve disaggregated -c disagg_config.yaml",
    ]


def bench(
    model: str, traffic: Traffic, objective: Objective, *, request_rate: float, num_prompts: int, trace: str | None
) -> list[str]:
    """The benchmark of vLLM that checks a plan at a rate: ``vllm bench serve …``; goodput is said in ms."""
    flags: list[Any] = [
        "--model",
        model,
        "--base-url",
        f"http://localhost:{_PORT}",
        "--request-rate",
        f"{request_rate:.4g}",
        "--num-prompts",
        num_prompts,
    ]
    if trace is None:
        flags += ["--dataset-name", "random", "--random-input-len", round(traffic.input_len - traffic.prefix_len)]
        flags += ["--random-prefix-len", traffic.prefix_len] if traffic.prefix_len else []
        flags += ["--random-output-len", round(traffic.output_len), "--ignore-eos"]
        flags += ["--burstiness", f"{traffic.burstiness:g}"] if traffic.burstiness != 1 else []
    else:
        flags += ["--dataset-name", "custom", "--dataset-path", trace]
    if objective.slo:
        flags += ["--goodput", *(f"{name}:{limit * 1e3:g}" for name, limit in objective.slo.items())]
    flags += ["--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,90,99"]
    lines = [_line("vllm", "bench", "serve", *flags)]
    return lines if trace is None else ["# its prompts, as the custom dataset of vLLM wants them", *lines]


def _sizes(pool: PoolSpec, names: tuple[str, str, str]) -> list[Any]:
    """Flags of the parallel sizes above 1."""
    sizes = (pool.tensor_parallel_size, pool.pipeline_parallel_size, pool.data_parallel_size)
    return [part for name, size in zip(names, sizes, strict=True) if size > 1 for part in (name, size)]


def _speculative_config(speculation: Speculation) -> dict[str, Any]:
    """The value of vLLM's --speculative-config."""
    config: dict[str, Any] = {"method": speculation.method}
    config["num_speculative_tokens"] = speculation.num_speculative_tokens
    return {**config, "model": speculation.model} if speculation.model else config


def _line(*parts: Any) -> str:
    """One command; what stands for a value of the user's machine keeps its dollar."""
    return " ".join(str(part) if "$" in str(part) else shlex.quote(str(part)) for part in parts)
