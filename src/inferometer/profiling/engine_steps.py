"""Steps of vLLM with a model so small that they are the host's time alone: planning, launches, a request's own time.

The engine runs in a process of its own (``python -m inferometer.profiling.engine_steps FOLDER``): it takes the device's
memory, and it may fail. Its times become the seconds of a host file, which predictions take for any model.
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
from ..specs.hosts import hosted_engine
from ..specs.structs import Host, HostedEngine
from .machine import optional_library

LIMIT = 150.0  # s after which an engine that is not ready is given up
LAYERS = 16  # enough that their launches stand out from the rest of a step
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
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
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
BATCHES = (1, 8, 64)
IN_GRAPHS, BEYOND_GRAPHS = 64, 600  # tokens of a step; graphs reach 512
STEPS_IN_A_ROW = 9  # of one prompt; the difference to a single step has no request's own time in it
REPEATS = 7
# A core of a virtual machine may share its hardware with a neighbour's. Then launches and Python take 1.5 to 2 times as
# long, for a part of a second or for many. So every step is timed in rounds, and their mean is what is to be expected.
ROUNDS, PAUSE = 5, 1.0  # s between rounds
SPREAD = "round_spread"  # the slowest over the fastest of these rounds, of a step that waits for launches
_RESULT = "steps.json"


def engine_steps(say: Callable[[str], None] = print, limit: float = LIMIT) -> tuple[dict[str, float], str]:
    """Seconds of vLLM's steps by name, and why there are none: ``engine_steps()[0]["decode_1"]  # 0.0021``"""
    if not is_installed("vllm"):
        return {}, "vLLM is not installed here"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        say("starting vLLM with a small model …")
        command = [sys.executable, "-m", "inferometer.profiling.engine_steps", folder]
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


def _tiny_launches(launch: Mapping[str, float]) -> tuple[float, float]:
    """Host seconds of the small model's launches: of attention, and of all other kernels."""
    engine = msgspec.structs.replace(catalog.engine("vllm"), launch=dict(launch))
    launches = launch_seconds(families.build(CONFIG), engine)
    return launches.between_pieces, launches.in_graphs


def step_references(where: Host) -> dict[str, float]:
    """The same steps as predictions have them on a host: ``step_references(host("h200-vm"))["prompt_64"]``"""
    engine = hosted_engine(catalog.engine("vllm"), where)
    attention, others = _tiny_launches(engine.launch)

    def step(sequences: int) -> float:
        return engine.step_overhead + engine.step_floor + sequences * engine.step_floor_per_sequence

    seconds = {f"decode_{batch}": step(batch) for batch in BATCHES}
    seconds[f"prompt_{IN_GRAPHS}"] = step(1) + attention
    seconds[f"prompt_{BEYOND_GRAPHS}"] = step(1) + attention + others
    return {**seconds, f"first_token_{IN_GRAPHS}": engine.request_overhead + step(1) + attention}


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
    _, others = _tiny_launches({kind: number * launch for kind, number in engine.launches.items()})
    return HostedEngine(
        step_floor=max(0.0, decode[0] - engine.step_overhead - per_sequence),
        step_floor_per_sequence=per_sequence,
        request_overhead=max(0.0, values[f"first_token_{IN_GRAPHS}"] - within),
        launch={"prefill_attention": attention / LAYERS},
        launch_factor=min(10.0, max(0.1, (beyond - within) / others)),
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
            kv_cache_memory_bytes=1 << 28,
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
            while not any(output.outputs and output.outputs[0].token_ids for output in self.engine.step()):
                pass
            took.append(time.perf_counter() - began)
            self.drain()
        return statistics.median(took[2:])

    def prompt(self, tokens: int) -> tuple[float, float]:
        """Seconds of a step of so many tokens of a prompt, and to the first token of a prompt of that length."""
        once, many = (self.first_token(tokens, steps) for steps in (1, STEPS_IN_A_ROW))
        return (many - once) / (STEPS_IN_A_ROW - 1), once

    def steps(self) -> dict[str, float]:
        """Seconds of every step, each once."""
        seconds = {f"decode_{batch}": self.decode(batch) for batch in BATCHES}
        for tokens in (IN_GRAPHS, BEYOND_GRAPHS):
            seconds[f"prompt_{tokens}"], seconds[f"first_token_{tokens}"] = self.prompt(tokens)
        del seconds[f"first_token_{BEYOND_GRAPHS}"]
        return seconds


def main(folder: str) -> None:
    """Measure, and leave the result in the folder."""
    engine, rounds = SmallEngine(folder), list[dict[str, float]]()
    engine.decode(BATCHES[-1])  # warms up
    for _ in range(ROUNDS):
        rounds.append(engine.steps())
        time.sleep(PAUSE)
    steps = {name: statistics.mean(one[name] for one in rounds) for name in rounds[0]}
    if min(min(one.values()) for one in rounds) <= 0:
        raise BadValue(f"steps of vLLM took {steps}, which is not a valid time")
    launched = [one[f"prompt_{BEYOND_GRAPHS}"] for one in rounds]
    steps[SPREAD] = max(launched) / min(launched)
    Path(folder, _RESULT).write_text(json.dumps(steps), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # the engine's threads do not hold this process up
