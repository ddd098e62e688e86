"""Steps of vLLM with models so small that they are the host's time alone: planning, launches, a request's own time.

Three networks say it: a dense one most of it, one of experts and one of Mamba-2 layers what those launch. Each runs in
a process of its own (``python -m inferometer.profiling.engine_steps FOLDER NETWORK``): engines take the device's memory
and may fail. Their times become the seconds of a host file, which predictions take for any model.
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
from ..costs.host import launch_seconds
from ..network import families
from ..specs import catalog
from ..specs.structs import HostedEngine
from .machine import optional_library

LIMIT = 240.0  # s after which engines that are not ready are given up
ROUND_LIMIT = 60.0  # and one that does not come to the end of a round
LAYERS = 16  # enough that their launches stand out from the rest of a step
_COMMON: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DENSE, EXPERTS, RECURRENT = "dense", "experts", "recurrent"
CONFIGS: dict[str, dict[str, Any]] = {
    DENSE: {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON},
    EXPERTS: {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_COMMON,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    RECURRENT: {  # attention and Mamba-2 in every layer
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        **_COMMON,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 128,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": False,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
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
_DENSE_STEPS = (
    *(f"decode_{batch}" for batch in BATCHES),
    *(f"prompt_{tokens}" for tokens in (IN_GRAPHS, BEYOND_GRAPHS)),
    f"first_token_{IN_GRAPHS}",
)
# steps of the networks beside the dense one; the last of the recurrent one's has a sequence more, which decodes
_EXPERTS_STEPS = ("decode_1_experts", f"prompt_{BEYOND_GRAPHS}_experts")
_RECURRENT_STEPS = ("decode_1_recurrent", f"prompt_{IN_GRAPHS}_recurrent", f"prompt_{IN_GRAPHS}_beside_recurrent")
STEPS = (*_DENSE_STEPS, *_EXPERTS_STEPS, *_RECURRENT_STEPS)
STEPS_IN_A_ROW = 9  # of one prompt; the difference to a single step has no request's own time in it
REPEATS = 5
# A core of a virtual machine may share its hardware with a neighbour's. Then launches and Python take 1.5 to 2 times as
# long, for a part of a second or for many. So every step is timed in rounds, one network after the other, and the mean
# of all is what is to be expected. What takes longer than that is no launch.
ROUNDS, PAUSE = 5, 1.0  # s between rounds
INTERRUPTED = 4.0  # times the median
SPREAD = "round_spread"  # the slowest over the fastest of these rounds, of a step that waits for launches
# Engines that work and serve launch and plan this much more slowly than a small one that is alone on its host, as the
# steps of mixtures and hybrids and their servers on six machines show: 1.15 to 1.25 by the one, 1.3 to 1.4 by the other
SERVING = 1.25
_SECONDS = ("step_floor", "step_floor_per_sequence")
_RESULT, _LOG = "rounds.jsonl", "log.txt"
Seconds = dict[str, float]


def engine_steps(say: Callable[[str], None] = print, limit: float = LIMIT) -> tuple[Seconds, dict[str, str]]:
    """Seconds of vLLM's steps by name, and why some are missing: ``engine_steps()[0]["decode_1"]  # 0.0021``"""
    if not is_installed("vllm"):
        return {}, {"engine_steps": "vLLM is not installed here"}
    say(f"starting vLLM with three small models ({', '.join(CONFIGS)}) …")
    with tempfile.TemporaryDirectory() as folder:
        engines: dict[str, EngineProcess] = {}
        missing: dict[str, str] = {}
        try:
            for network in CONFIGS:
                engines[network] = EngineProcess(Path(folder, network), network)
            _measure(engines, missing, time.monotonic() + limit)
        finally:
            for engine in engines.values():
                engine.end()
        seconds = _means({network: engine.rounds() for network, engine in engines.items() if network not in missing})
    for network, why in missing.items():
        say(f"steps of vLLM ({network}): not measured ({why})")
    return seconds, {"engine_steps" if name == DENSE else f"engine_steps_{name}": why for name, why in missing.items()}


def _measure(engines: Mapping[str, EngineProcess], missing: dict[str, str], ready_by: float) -> None:
    """Rounds of all networks in turn, once each of them is ready or has failed."""

    def wait(network: str, rounds: int, until: float) -> None:
        why = engines[network].wait(rounds, until) if network not in missing else ""
        if why:
            missing[network] = why

    for network in engines:
        wait(network, 0, ready_by)
    for number in range(ROUNDS if DENSE not in missing else 0):  # the others are read beside it
        for network, engine in engines.items():
            if network not in missing:
                engine.start_round()
            wait(network, number + 1, time.monotonic() + ROUND_LIMIT)
        time.sleep(PAUSE)


def _means(rounds: Mapping[str, list[Seconds]]) -> Seconds:
    """The mean of every step over its rounds, and how far these lie apart."""
    seconds = {name: statistics.mean(one[name] for one in each) for each in rounds.values() if each for name in each[0]}
    launched = [one[f"prompt_{BEYOND_GRAPHS}"] for one in rounds.get(DENSE, ())]
    return {**seconds, SPREAD: max(launched) / min(launched)} if launched else {}


class EngineProcess:
    """The process of one small engine, which times a round of steps when it is told to: ``process.start_round()``"""

    def __init__(self, folder: Path, network: str) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIGS[network]), encoding="utf-8")
        self.result, self.log = folder / _RESULT, folder / _LOG
        # the process finds what this one finds, wherever it came from
        paths = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "inferometer.profiling.engine_steps", str(folder), network],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": paths},
            )

    def start_round(self) -> None:
        """Tell it to time every step once."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"round\n")
            self.process.stdin.flush()
        except OSError:  # it has ended, which `wait` will say
            pass

    def wait(self, rounds: int, until: float) -> str:
        """Until it has so many rounds; why it has not by a time of the monotonic clock, or empty."""
        while not self.result.exists() or len(self.rounds()) < rounds:
            if self.process.poll() is not None:
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                error = next((line for line in reversed(lines) if "Error" in line), "it ended without output")
                return error.strip()[:200]
            if time.monotonic() > until:
                return "vLLM did not answer in time"
            time.sleep(0.05)
        return ""

    def rounds(self) -> list[Seconds]:
        """The rounds that are complete."""
        lines = self.result.read_text(encoding="utf-8").split("\n")[:-1] if self.result.exists() else []
        return [{name: float(seconds) for name, seconds in json.loads(line).items()} for line in lines]

    def end(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.communicate()


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


def hosted_seconds(values: Mapping[str, float], launch: float) -> HostedEngine | None:
    """vLLM's seconds on a host from its steps there; None without them: ``hosted_seconds(values, 8e-6).step_floor``"""
    own = _small_engine_seconds(values, launch)
    if own is None:
        return None
    return msgspec.structs.replace(
        own,
        **{name: SERVING * getattr(own, name) for name in _SECONDS},
        launch={kind: SERVING * each for kind, each in own.launch.items()},
        launch_factor=SERVING * own.launch_factor,
    )


def _small_engine_seconds(values: Mapping[str, float], launch: float) -> HostedEngine | None:
    """What steps of the small engines say as they are.

    A decode step is planning alone, since its kernels are a graph; a prompt within graphs also launches attention
    between their pieces; a longer one launches every kernel.
    """
    engine = catalog.engine("vllm")
    if not all(name in values for name in _DENSE_STEPS):
        return None
    *decode, within, beyond, first = (values[name] for name in _DENSE_STEPS)
    per_sequence = max(0.0, (decode[-1] - decode[0]) / (BATCHES[-1] - BATCHES[0]))
    attention = max(0.0, within - decode[0])
    _, others = _launching(DENSE, {kind: number * launch for kind, number in engine.launches.items()})
    factor = min(10.0, max(0.1, (beyond - within) / others))
    own = {"prefill_attention": attention / LAYERS}
    rest = {kind: number * launch * factor for kind, number in engine.launches.items()}
    if all(name in values for name in _EXPERTS_STEPS):
        alone, step = (values[name] for name in _EXPERTS_STEPS)
        own["moe"] = _solved(EXPERTS, "moe", step - alone, {**rest, **own})
    if all(name in values for name in _RECURRENT_STEPS):
        alone, step, beside = (values[name] for name in _RECURRENT_STEPS)
        own["chunk_scan"] = _solved(RECURRENT, "chunk_scan", step - alone, {**rest, **own})
        own["state_update"] = _solved(RECURRENT, "state_update", beside - alone - per_sequence, {**rest, **own})
    return HostedEngine(
        step_floor=max(0.0, decode[0] - engine.step_overhead - per_sequence),
        step_floor_per_sequence=per_sequence,
        request_overhead=max(0.0, first - within),
        launch=own,
        launch_factor=factor,
    )


# ------------------------------------------------------------------ inside the process of an engine


def _mean(took: list[float]) -> float:
    """The mean of what was not interrupted by something else."""
    most = INTERRUPTED * statistics.median(took)
    return statistics.mean(seconds for seconds in took if seconds <= most)


class SmallEngine:
    """vLLM with a small model, step by step: ``SmallEngine(folder).decode(8)`` are the seconds of a decode step."""

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
        """Seconds of a decode step."""
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
        return _mean(took)

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
        return _mean(took[2:])

    def until(self, reached: Callable[[Any], bool]) -> None:
        """Until the last request has come so far; others may decode beside it."""
        last = str(self.requests)
        while not any(output.request_id.partition("-")[0] == last and reached(output) for output in self.engine.step()):
            pass

    def prompt(self, tokens: int) -> tuple[float, float]:
        """Seconds of a step of so many tokens of a prompt, and to the first token of a prompt of that length."""
        once, many = (self.first_token(tokens, steps) for steps in (1, STEPS_IN_A_ROW))
        return (many - once) / (STEPS_IN_A_ROW - 1), once

    def beside(self, tokens: int) -> float:
        """Seconds of a step of so many tokens of a prompt, while another sequence decodes."""
        self.add(16, 300)  # more than the steps below
        step, _ = self.prompt(tokens)
        self.drain()
        return step

    def steps(self, network: str) -> Seconds:
        """Seconds of every step that a network is for, each once."""
        if network == EXPERTS:
            return dict(zip(_EXPERTS_STEPS, (self.decode(1), self.prompt(BEYOND_GRAPHS)[0]), strict=True))
        if network == RECURRENT:
            times = (self.decode(1), self.prompt(IN_GRAPHS)[0], self.beside(IN_GRAPHS))
            return dict(zip(_RECURRENT_STEPS, times, strict=True))
        seconds = {f"decode_{batch}": self.decode(batch) for batch in BATCHES}
        for tokens in (IN_GRAPHS, BEYOND_GRAPHS):
            seconds[f"prompt_{tokens}"], seconds[f"first_token_{tokens}"] = self.prompt(tokens)
        del seconds[f"first_token_{BEYOND_GRAPHS}"]
        return seconds


def main(folder: str, network: str) -> None:
    """Time a round of steps for each line on stdin, and add it to the result in the folder."""
    engine = SmallEngine(folder)
    engine.decode(BATCHES[-1])
    engine.steps(network)  # warms up
    with Path(folder, _RESULT).open("w", encoding="utf-8") as rounds:  # it is there: ready
        for _ in sys.stdin:
            steps = engine.steps(network)
            if min(steps.values()) <= 0:
                raise BadValue(f"steps of vLLM took {steps}, which is not a valid time")
            rounds.write(json.dumps(steps) + "\n")
            rounds.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
    os._exit(0)  # the engine's threads do not hold this process up
