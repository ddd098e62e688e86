"""Steps of vLLM with models so small that they are the host's time alone: planning, launches, a request's own time.

The engine runs in a process of its own (``python -m inferometer.profiling.engine_steps FOLDER NETWORK``): it takes the
device's memory, and it may fail. Its times become the seconds of a host file, which predictions take for any model.
A dense network says most of them; one of experts and one of Mamba-2 layers say how long the launches of these take.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import BadValue
from ..base.extras import is_installed
from ..costs.host import launch_seconds, state_groups
from ..network import families
from ..specs import catalog
from ..specs.hosts import hosted_engine
from ..specs.structs import Host, HostedEngine
from .machine import optional_library

LIMIT = 150.0  # s after which an engine that is not ready is given up
LAYERS = 16  # enough that their launches stand out from the rest of a step
_COMMON: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ATTENTION = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
DENSE, EXPERTS, RECURRENT = "dense", "experts", "recurrent"
CONFIGS: dict[str, dict[str, Any]] = {
    DENSE: {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON, **_ATTENTION},
    EXPERTS: {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_COMMON,
        **_ATTENTION,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    RECURRENT: {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        **_COMMON,
        "attention_head_dim": 64,
        "hybrid_override_pattern": "MMM*" * (LAYERS // 4),
        "mlp_hidden_act": "relu2",
        "mamba_num_heads": 16,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "chunk_size": 128,
        "expand": 2,
        "use_conv_bias": True,
        "use_bias": False,
        "layer_norm_epsilon": 1e-5,
    },
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
BATCHES = (1, 8, 64)
IN_GRAPHS, BEYOND_GRAPHS = 64, 600  # tokens of a step; graphs reach 512
# steps of the networks beside the dense one; the last has one sequence more, which decodes
_EXPERTS_STEP = f"prompt_{BEYOND_GRAPHS}_experts"
_RECURRENT_STEPS = ("decode_1_recurrent", f"prompt_{IN_GRAPHS}_recurrent", f"prompt_{IN_GRAPHS}_beside_recurrent")
STEPS_IN_A_ROW = 9  # of one prompt; the difference to a single step has no request's own time in it
REPEATS = 7
_RESULT = "steps.json"
Seconds = dict[str, float]


def engine_steps(say: Callable[[str], None] = print, limit: float = LIMIT) -> tuple[Seconds, dict[str, str]]:
    """Seconds of vLLM's steps by name, and why some are missing: ``engine_steps()[0]["decode_1"]  # 0.0021``"""
    if not is_installed("vllm"):
        return {}, {"engine_steps": "vLLM is not installed here"}
    seconds: Seconds = {}
    missing: dict[str, str] = {}
    for network in CONFIGS:
        say(f"starting vLLM with a small model ({network}) …")
        steps, why = _network_steps(network, limit)
        seconds |= steps
        if why:
            missing["engine_steps" if network == DENSE else f"engine_steps_{network}"] = why
            say(f"steps of vLLM ({network}): not measured ({why})")
            if network == DENSE:  # the others are read beside it
                break
    return seconds, missing


def _network_steps(network: str, limit: float) -> tuple[Seconds, str]:
    """Seconds of one network's steps, measured in a process of their own, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIGS[network]), encoding="utf-8")
        command = [sys.executable, "-m", "inferometer.profiling.engine_steps", folder, network]
        # the process finds what this one finds, wherever it came from
        paths = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths}
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, env=environment, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return {}, f"vLLM was not ready within {limit:.0f} s"
        except OSError as error:
            return {}, str(error)
        try:
            steps = json.loads(Path(folder, _RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            last = next(
                (line for line in reversed(ran.stderr.splitlines()) if "Error" in line), "it ended without output"
            )
            return {}, last.strip()[:200]
    return {name: float(seconds) for name, seconds in steps.items()}, ""


# ------------------------------------------------------------------ what steps say of a host


def _launching(network: str, launch: Mapping[str, float], decoding: bool = False) -> tuple[float, float]:
    """Host seconds of a small network's launches: between the pieces of its graphs, and inside them."""
    engine = msgspec.structs.replace(catalog.engine("vllm"), launch=dict(launch))
    launches = launch_seconds(families.build(CONFIGS[network]), engine)
    return launches.between_pieces + launches.prompts + decoding * launches.decoding, launches.in_graphs


def _solved(network: str, kind: str, seconds: float, launch: Mapping[str, float]) -> float:
    """Host seconds of one launch of a kind, where those of all a step's launches and of the other kinds are known."""

    def launching(each: float) -> float:
        between, inside = _launching(network, {**launch, kind: each}, decoding=kind == "state_update")
        return between + inside if network == EXPERTS else between  # its step is beyond graphs

    others = launching(0.0)
    return max(0.0, (seconds - others) / (launching(1.0) - others))


def _groups() -> int:
    return state_groups(families.build(CONFIGS[RECURRENT]).blocks)


def step_references(where: Host) -> dict[str, float]:
    """The same steps as predictions have them on a host: ``step_references(host("h200-vm"))["prompt_64"]``"""
    engine = hosted_engine(catalog.engine("vllm"), where)

    def step(sequences: int, groups: int = 0) -> float:
        planning = engine.step_floor + groups * engine.step_floor_per_state_group
        return engine.step_overhead + planning + sequences * engine.step_floor_per_sequence

    attention, others = _launching(DENSE, engine.launch)
    groups = _groups()
    seconds = {f"decode_{batch}": step(batch) for batch in BATCHES}
    seconds[f"prompt_{IN_GRAPHS}"] = step(1) + attention
    seconds[f"prompt_{BEYOND_GRAPHS}"] = step(1) + attention + others
    seconds[f"first_token_{IN_GRAPHS}"] = engine.request_overhead + step(1) + attention
    seconds[_EXPERTS_STEP] = step(1) + sum(_launching(EXPERTS, engine.launch))
    scans, updates = (_launching(RECURRENT, engine.launch, decoding)[0] for decoding in (False, True))
    recurrent = (step(1, groups), step(1, groups) + scans, step(2, groups) + updates)
    return {**seconds, **dict(zip(_RECURRENT_STEPS, recurrent, strict=True))}


def hosted_seconds(values: Mapping[str, float], launch: float) -> HostedEngine | None:
    """vLLM's seconds on a host from its steps there; None without them: ``hosted_seconds(values, 8e-6).step_floor``

    A decode step is planning alone, since its kernels are a graph; a prompt within graphs also launches attention
    between their pieces; a longer one launches every kernel.
    """
    engine = catalog.engine("vllm")
    names = [*(f"decode_{batch}" for batch in BATCHES), f"prompt_{IN_GRAPHS}", f"prompt_{BEYOND_GRAPHS}"]
    if not all(name in values for name in (*names, f"first_token_{IN_GRAPHS}")):
        return None
    *decode, within, beyond = (values[name] for name in names)
    per_sequence = max(0.0, (decode[-1] - decode[0]) / (BATCHES[-1] - BATCHES[0]))
    attention = max(0.0, within - decode[0])
    _, others = _launching(DENSE, {kind: number * launch for kind, number in engine.launches.items()})
    factor = min(10.0, max(0.1, (beyond - within) / others))
    own = {"prefill_attention": attention / LAYERS}
    rest = {kind: number * launch * factor for kind, number in engine.launches.items()}
    if _EXPERTS_STEP in values:
        own["moe"] = _solved(EXPERTS, "moe", values[_EXPERTS_STEP] - decode[0], {**rest, **own})
    per_group = None
    if all(name in values for name in _RECURRENT_STEPS):
        alone, step, beside = (values[name] for name in _RECURRENT_STEPS)
        per_group = max(0.0, alone - decode[0]) / _groups()
        own["chunk_scan"] = _solved(RECURRENT, "chunk_scan", step - alone, {**rest, **own})
        own["state_update"] = _solved(RECURRENT, "state_update", beside - alone - per_sequence, {**rest, **own})
    return HostedEngine(
        step_floor=max(0.0, decode[0] - engine.step_overhead - per_sequence),
        step_floor_per_sequence=per_sequence,
        step_floor_per_state_group=per_group,
        request_overhead=max(0.0, values[f"first_token_{IN_GRAPHS}"] - within),
        launch=own,
        launch_factor=factor,
    )


# ------------------------------------------------------------------ inside the process of the engine


class SmallEngine:
    """vLLM with the small model, step by step: ``SmallEngine(folder).decode(8)`` are the seconds of a decode step."""

    def __init__(self, folder: str) -> None:
        vllm = optional_library("vllm")
        self.sampling = vllm.SamplingParams
        self.engine = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=1 << 30,
            seed=0,
            enable_prefix_caching=False,
            max_num_batched_tokens=8192,
            max_num_seqs=128,
            max_model_len=8192,
            disable_log_stats=True,
            compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]},
        ).llm_engine
        self.requests = 0

    def add(self, length: int, output_len: int) -> None:
        """A request of so many tokens."""
        self.requests += 1
        prompt = [10 + (self.requests * 7919 + place * 104729) % 31000 for place in range(length)]
        sampling = self.sampling(max_tokens=output_len, ignore_eos=True, temperature=0.0, detokenize=False)
        self.engine.add_request(str(self.requests), {"prompt_token_ids": prompt}, sampling)

    def drain(self) -> None:
        """Until no request is left."""
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def decode(self, batch: int) -> float:
        """Seconds of a decode step, the median of many."""
        for _ in range(batch):
            self.add(16, 120)
        for _ in range(20):
            self.engine.step()
        took = []
        for _ in range(80):
            began = time.perf_counter()
            self.engine.step()
            took.append(time.perf_counter() - began)
        self.drain()
        return statistics.median(took)

    def first_token(self, tokens: int, steps: int) -> float:
        """Seconds to the first token of a prompt that is cut into steps of so many tokens."""
        core = self.engine.engine_core.engine_core
        core.scheduler.scheduler_config.long_prefill_token_threshold = tokens
        took = []
        for _ in range(REPEATS + 2):  # the first two warm up
            began = time.perf_counter()
            self.add(tokens * steps, 2)
            self.until(lambda output: bool(output.outputs and output.outputs[0].token_ids))
            took.append(time.perf_counter() - began)
            self.until(lambda output: bool(output.finished))
        return statistics.median(took[2:])

    def until(self, reached: Callable[[Any], bool]) -> None:
        """Until the last request has come so far; others may decode beside it."""
        last = str(self.requests)
        while not any(output.request_id == last and reached(output) for output in self.engine.step()):
            pass

    def prompt(self, tokens: int) -> tuple[float, float]:
        """Seconds of a step of so many tokens of a prompt, and to the first token of a prompt of that length."""
        once, many = (self.first_token(tokens, steps) for steps in (1, STEPS_IN_A_ROW))
        return (many - once) / (STEPS_IN_A_ROW - 1), once

    def beside(self, tokens: int) -> float:
        """Seconds of a step of so many tokens of a prompt, while another sequence decodes."""
        self.add(16, 7000)
        return self.prompt(tokens)[0]


def main(folder: str, network: str) -> None:
    """Measure the steps of a network, and leave the result in the folder."""
    engine, steps = SmallEngine(folder), Seconds()
    engine.decode(BATCHES[-1])  # warms up
    if network == DENSE:
        for batch in BATCHES:
            steps[f"decode_{batch}"] = engine.decode(batch)
        for tokens in (IN_GRAPHS, BEYOND_GRAPHS):
            steps[f"prompt_{tokens}"], steps[f"first_token_{tokens}"] = engine.prompt(tokens)
        del steps[f"first_token_{BEYOND_GRAPHS}"]
    elif network == EXPERTS:
        steps[_EXPERTS_STEP], _ = engine.prompt(BEYOND_GRAPHS)
    else:
        alone, (step, _), beside = engine.decode(1), engine.prompt(IN_GRAPHS), engine.beside(IN_GRAPHS)
        steps |= dict(zip(_RECURRENT_STEPS, (alone, step, beside), strict=True))
    if min(steps.values()) <= 0:
        raise BadValue(f"steps of vLLM took {steps}, which is not a valid time")
    Path(folder, _RESULT).write_text(json.dumps(steps), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
    os._exit(0)  # the engine's threads do not hold this process up
