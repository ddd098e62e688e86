"""Values of arguments: mostly such as people give, drawn from the schema and the catalogue, some that nobody would.

likely(random.Random(1), options("analyze")["batch_size"])    # "48"
absurd(random.Random(1))                                      # "1e-320"
"""

from __future__ import annotations

import functools
import random
from typing import Any, NamedTuple

import click

from inferometer.cli.commands import app
from inferometer.cli.options import TrainableCommand
from inferometer.specs import catalog
from inferometer.specs.arguments import Args, Argument, arguments
from inferometer.specs.command_args import (
    BenchArgs,
    CapacityArgs,
    GoodputArgs,
    ProfileArgs,
    SearchArgs,
    SensitivityArgs,
    ServingArgs,
    SessionArgs,
    TierSizesArgs,
    TrafficArgs,
)
from inferometer.specs.machine_args import TargetArgs
from inferometer.specs.plan_args import PlanArgs
from inferometer.specs.train_args import TrainArgs, TrainSearchArgs, TrainSensitivityArgs

FOLDER = "%DIR%"  # in an argument: the folder of the case, which has its files and takes what it writes
_GROUPS: dict[str, tuple[type[Args], ...]] = {
    "analyze": (TargetArgs, PlanArgs),
    "sweep": (TargetArgs, PlanArgs),
    "search": (TargetArgs, TrafficArgs, CapacityArgs, SearchArgs),
    "sensitivity": (TargetArgs, PlanArgs, SensitivityArgs),
    "simulate": (TargetArgs, CapacityArgs, GoodputArgs, ServingArgs, TrafficArgs, SessionArgs, TierSizesArgs),
    "validate": (TargetArgs, TrafficArgs, GoodputArgs, ServingArgs),
    "train": (TargetArgs, TrainArgs),
    "search --train": (TargetArgs, TrainArgs, TrainSearchArgs),
    "sweep --train": (TargetArgs, TrainArgs),
    "sensitivity --train": (TargetArgs, TrainArgs, TrainSensitivityArgs),
    "profile": (ProfileArgs,),
    "bench": (TargetArgs, ServingArgs, TrafficArgs, GoodputArgs, BenchArgs),
}
WRITES = (
    *("output", "plot", "html", "requests_out", "sessions_out", "chrome_trace", "write_calibration", "save_config"),
)
READS = ("trace", "like", "profile", "calibration", "measured", "memory", "step_log", "tables", "config")
# Not drawn at random: files have generators of their own; clusters and many processes belong to tests of their own.
APART = {
    *WRITES,
    *READS,
    "as_json",
    "as_csv",
    "as_plain",
    "as_markdown",
    "quiet",
    "agents",  # which most flags of requests exclude
    "train",  # another command, whose flags are those of training
    "debug",
    "help",
    "hf_token",
    "backend",
    "backend_address",
    "jobs",
    "api_key",
}

# Of requests: sessions of agents have their own.
REQUESTS = {
    "input_len",
    "output_len",
    "turns",
    "think_time",
    "prefix_len",
    "columns",
    "run",
    "burstiness",
    "num_prompts",
}

NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "-0.0", "0.5", "1e-9", "1e-320", "5e-324", "1e15", "1e308", "1e309", "-1e308",
    "nan", "inf", "-inf", "2147483648", "9223372036854775808", "1" + "0" * 30, "1" + "0" * 400, "9" * 5000, "0x10",
    "1_000", "1e3", "٣", "½", "+5", " 8 ", "1.0", "1e", "--1",
)  # fmt: skip
TEXTS = (
    "", " ", "\t", "\n", "é", "😀", "\u202ex", "\ud800", "\x00", "\x1b[31m", "a" * 5000, "1,2", "1:8", "1:8:x2",
    "8:1:x2", "1:9:0", "1:1e9:1", ":", "::", ",", ",,", "=", "a=b", "=1", "x=", "{}", "[]", "[[[[", '{"a":1}', "null",
    "true", "..", "../x", "/nonexistent/x", "~", "~nobody-at-all/x", "-", "--", "--json", "-1e5", "%s", "%", "$HOME",
    "`x`", "\\", "'", '"', "llama-3.1-8", "h10", "vlm", "None", "auto", "x" * 300 + "/y", "org/model", "flops=0",
    "flops=1e-320", "hbm=-1", "ttft:0", "ttft:nan", "tpot:1e-320", "uniform:min=9,max=1", "lognormal:mean=0,std=0",
    "zipf:a=1,min=1,max=9", "1x1x1", "0x0x0", "1x99999x99999", "1:1,2:2", "0:0", "vllm@0.15", "vllm@99", "a" * 70000,
)  # fmt: skip


class Option(NamedTuple):
    """A flag of a command with what the schema says of it; ``argument`` is None for what only one command has."""

    name: str
    flag: str
    parameter: click.Parameter
    argument: Argument | None

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return isinstance(self.parameter, click.Option) and self.parameter.is_flag


@functools.cache
def options(verb: str) -> dict[str, Option]:
    """The flags of a command by name, as click has them: a new one is fuzzed from the day it is added."""
    name, _, training = verb.partition(" ")
    command = app.get_command(click.Context(app), name)
    if training:
        assert isinstance(command, TrainableCommand)
        command = command.training()
    assert command is not None
    known: dict[str, Argument] = {}
    for group in _GROUPS.get(verb, ()):
        known |= arguments(group)
    kept = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    flags = {p.name: p for p in kept if p.name and p.name != "debug"}  # which prints tracebacks, as it should
    return {name: Option(name, p.opts[-1], p, known.get(name)) for name, p in flags.items()}


@functools.cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the catalogue: ``names("models")``"""
    return tuple(catalog.names(folder))


SMALL = ("llama-3.1-8b", "qwen3-0.6b", "gpt2", "llama-3.2-1b", "opt-125m", "smollm2-135m", "qwen2.5-0.5b", "gemma-3-1b")


def model(rng: random.Random) -> str:
    """Any model of the catalogue, small ones more often: they fit."""
    name = rng.choice(SMALL if rng.random() < 0.4 else names("models"))
    return name + rng.choice(("-FP8", "-AWQ")) if rng.random() < 0.03 else name


def gpu(rng: random.Random) -> str:
    """Any GPU of the catalogue, some with figures changed."""
    name = rng.choice(("h100-sxm", "h200", "b200", "a100-sxm-80gb") if rng.random() < 0.4 else names("hardware"))
    if rng.random() < 0.9:
        return name
    figure = rng.choice(("memory", "memory_bandwidth", "power", "flops.bf16", "price_per_hour", "clock"))
    value = f"{10 ** rng.uniform(8, 16):g}" if rng.random() < 0.8 else rng.choice(NUMBERS)
    return f"{name}:{figure}={value}"


def engine(rng: random.Random) -> str:
    """Any engine; now and then an older version of one."""
    name = rng.choice(names("engines"))
    version = f"@0.{rng.randrange(6, 30)}" if rng.random() < (0.1 if name == "vllm" else 0.02) else ""
    return name + version


def _layout(rng: random.Random) -> str:
    return str(rng.choice((1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 33)))


def _length(rng: random.Random) -> str:
    if rng.random() < 0.85:
        return str(int(2 ** rng.uniform(0, 13)))
    low = rng.randrange(1, 60)
    return rng.choice((
        f"uniform:min={low},max={low + rng.randrange(200)}",
        f"lognormal:mean={low * 5},std={rng.randrange(1, 90)}",
        f"zipf:a={rng.choice((1.1, 2, 3))},min={low},max={low + 99}",
    ))  # fmt: skip


def _speculation(rng: random.Random) -> str:
    k = rng.choice((1, 2, 3, 5, 0, 99))
    return rng.choice((
        f'{{"method": "mtp", "num_speculative_tokens": {k}}}',
        f'{{"method": "ngram", "num_speculative_tokens": {k}}}',
        f'{{"method": "eagle", "num_speculative_tokens": {k}}}',
        f'{{"method": "eagle3", "num_speculative_tokens": {k}, "acceptance_rate": {rng.random():.2f}}}',
        f'{{"model": "qwen3-0.6b", "num_speculative_tokens": {k}}}',
    ))  # fmt: skip


def _goodput(rng: random.Random) -> str:
    ttft, tpot = (f"{10 ** rng.uniform(1, 4):.4g}" for _ in range(2))
    return rng.choice((f"ttft:{ttft}", f"ttft:{ttft},tpot:{tpot}", f"tpot:{tpot}", f"e2el:{ttft}"))


def _efficiency(rng: random.Random) -> str:
    x = f"{rng.choice((0.01, 0.3, 0.6, 0.9, 1)):g}"
    return rng.choice((x, f"flops={x}", f"hbm={x},intra={x}", f"inter={x}"))


def _agents(rng: random.Random) -> str:
    name = rng.choice(("coding-agent", "research-agent", "chat"))
    more = rng.choice(("", ",tool_wait=1", ",growth=200", ",spawn_share=1", ",context_limit=40000"))
    return f"{name},turns={rng.randrange(1, 5)}{more}"


def _tiers(rng: random.Random) -> str:
    size = f"{10 ** rng.uniform(-3, 3):.3g}"
    return rng.choice((f"cpu:size={size}", f"disk:size={size},read=2", f"shared:size={size},latency=0.01"))


def _autoscale(rng: random.Random) -> str:
    return f"target={rng.choice((1, 4, 24))},startup={rng.choice((0, 1, 90))},max={rng.randrange(1, 6)}"


_LIKELY: dict[str, Any] = {  # by name, where the schema says no more than "text"
    "gpu": gpu,
    "engine": engine,
    "quantization": lambda r: r.choice(tuple(catalog.precisions())),
    "precision": lambda r: r.choice(("bf16", "fp16", "fp8", "fp32", "fp8-block", "mxfp8", "nvfp4")),
    "kv_cache_dtype": lambda r: r.choice(("auto", "bf16", "fp16", "fp8", "int8", "int4")),
    "dtype": lambda r: r.choice(("auto", "bf16", "fp16", "fp32")),
    "norm_dtype": lambda r: r.choice(("bf16", "fp16", "fp32")),
    "grad_dtype": lambda r: r.choice(("bf16", "fp32")),
    "attention": lambda r: r.choice(("flash", "eager")),
    "interconnect": lambda r: r.choice(("nvlink", "nvlink", "pcie", "network", "network", "xgmi", "ici")),
    "host_profile": lambda r: r.choice(names("hosts")),
    "usecase": lambda r: r.choice(("chatbot", "summarization", "code")),
    "speculative_config": _speculation,
    "prefix_tier": lambda r: r.choice(("gpu", "cpu", "disk", "shared")),
    "kv_offloading_backend": lambda r: r.choice(("native", "lmcache")),
    "recompute_method": lambda r: r.choice(("uniform", "block")),
    "recompute_modules": lambda r: r.choice(("core_attn", "mlp", "layernorm,mlp", "moe_act,shared_experts")),
    "cuda_graph_impl": lambda r: r.choice(("local", "none", "transformer_engine", "full_iteration")),
    "moe_flex_dispatcher_backend": lambda r: r.choice(("deepep", "hybridep")),
    "pipeline_model_parallel_layout": lambda r: r.choice(("Et*3|(tt|)*11t*3mL", "E|t*28|L", "Ettt|(t|)*9L")),
    "lora_targets": lambda r: r.choice(("qkv_proj", "o_proj,down_proj", "gate_up_proj", "experts")),
    "efficiency": _efficiency,
    "images": lambda r: f"{r.randrange(1, 4)}x{r.randrange(28, 1500)}x{r.randrange(28, 1500)}",
    "input_len": _length,
    "output_len": lambda r: str(int(2 ** r.uniform(0, 9))) if r.random() < 0.85 else _length(r),
    "goodput": _goodput,
    "target": _goodput,
    "scheduler": lambda r: r.choice(("vllm", "sarathi", "prefill_first", "trtllm", "static", "sglang")),
    "policy": lambda r: r.choice(("fcfs", "priority")),
    "router": lambda r: r.choice(("round_robin", "least_loaded", "prefix_aware")),
    "recompute": lambda r: r.choice(("none", "selective", "full")),
    "optimizer": lambda r: r.choice(("adamw", "sgd", "adafactor")),
    "objective": lambda r: r.choice(("throughput", "cost", "latency", "energy")),
    "mode": lambda r: r.choice(("aggregated", "disaggregated", "both", "prefill", "decode")),
    "phase": lambda r: r.choice(("prefill", "decode", "all")),
    "explain": lambda r: r.choice(("down_proj", "qkv_proj", "attention", "lm_head", "experts", "draft")),
    "compare": model,
    "autoscale": _autoscale,
    "agents": _agents,
    "num_sessions": lambda r: str(r.randrange(1, 5)),
    "concurrent_sessions": lambda r: str(r.randrange(1, 4)),
    "max_idle": lambda r: f"{r.uniform(0, 99):.3g}",
    "warm_cache": lambda r: r.choice(("shared", "0.5", "1", "0", "2", "nan")),
    "kv_tiers": _tiers,
    "kv_offloading_size": lambda r: f"{10 ** r.uniform(-2, 3):.3g}",
    "kv_offloading_sizes": lambda r: r.choice(("1,10", "0.1", "1,2,4")),
    "hicache_ratio": lambda r: f"{r.uniform(0, 9):.2g}",
    "hicache_size": lambda r: f"{10 ** r.uniform(-2, 3):.3g}",
    "hicache_write_policy": lambda r: r.choice(("write_through", "write_through_selective", "write_back")),
    "hicache_storage_backend": lambda r: r.choice(("file", "mooncake", "hf3fs")),
    "url": lambda r: r.choice(("http://127.0.0.1:9", "http://127.0.0.1:9/v1")),
    "watch": lambda r: f"{r.uniform(0, 3):.2g}",
    "num_prompts": lambda r: str(r.randrange(1, 25)),
    "run": lambda r: str(r.randrange(1, 4)),
    "request_rate": lambda r: r.choice(("inf", "max", f"{10 ** r.uniform(-2, 3):.4g}")),
    "burstiness": lambda r: f"{10 ** r.uniform(-2, 2):.3g}",
    "max_concurrency": lambda r: str(r.randrange(1, 12)),
    "goodput_share": lambda r: f"{r.uniform(0.01, 1):.3g}",
    "think_time": lambda r: f"{r.uniform(0, 9):.2g}",
    "prefix_len": lambda r: str(r.choice((0, 1, 16, 100, 1000))),
    "seed": lambda r: str(r.randrange(5)),
    "num_gpus": lambda r: str(r.choice((1, 2, 2, 3, 4, 8))),
    "finalists": lambda r: str(r.choice((1, 1, 2))),
    "nodes": lambda r: str(r.choice((1, 1, 2, 3))),
    "gpus_per_node": lambda r: str(r.choice((1, 2, 4, 8, 8, 16, 72))),
    "seq_len": lambda r: str(int(2 ** r.uniform(0, 14))),
    "tokens": lambda r: f"{10 ** r.uniform(6, 14):.3g}",
    "window": lambda r: r.choice(("0", "1", "60", "3600")),
    "pools": lambda r: f"replicas={r.randrange(1, 3)}" + r.choice(("", ",role=prefill", ",role=decode", ",gpu=h200")),
    "columns": lambda r: r.choice(("input_tokens=a,output_tokens=b", "ttft_ms=TTFT")),
    "gpu_memory_utilization": lambda r: f"{r.uniform(0.2, 1):.3g}",
    "routing_skew": lambda r: f"{r.random():.2f}",
    "zero": lambda r: str(r.randrange(4)),
    "micro_batch_size": lambda r: str(r.choice((1, 1, 2, 4, 16))),
    "global_batch_size": lambda r: str(r.choice((1, 8, 12, 64, 512, 4096))),
    "interleave": lambda r: str(r.choice((1, 1, 2, 4))),
    "prefill_replicas": lambda r: str(r.randrange(1, 4)),
    "decode_replicas": lambda r: str(r.randrange(1, 4)),
    "batch_size": lambda r: str(int(2 ** r.uniform(0, 9))),
    "cpu_offload_gb": lambda r: f"{r.uniform(0, 80):.3g}",
}


def _end(rng: random.Random, argument: Argument) -> str:
    """A value at the end of what the schema allows, or beside it."""
    low, high = argument.ge if argument.ge is not None else argument.gt or 0.0, argument.le or 1e9
    if argument.kind == "float":
        return f"{rng.choice((low, high, low + 1e-12, high * (1 - 1e-12), high / 2, 1e-300)):.17g}"
    return str(int(rng.choice((low, low + 1, high, high - 1, high // 2, 10 ** rng.randrange(1, 9)))))


def likely(rng: random.Random, option: Option, verb: str = "") -> str:
    """A value that the flag may well take; not every one fits the others of a command."""
    if option.argument and option.argument.le is not None and rng.random() < 0.12:
        return _end(rng, option.argument)
    if option.name.endswith("parallel_size"):
        return _layout(rng)
    if option.name == "turns":
        return "512:64,128:32" if verb != "simulate" and verb != "bench" else str(rng.randrange(1, 4))
    if option.name in _LIKELY:
        return str(_LIKELY[option.name](rng))
    argument = option.argument
    if argument is None:
        return rng.choice(TEXTS)
    if argument.choices:
        return rng.choice(argument.choices)
    if argument.kind == "float":
        low, high = argument.ge or argument.gt or 0.0, min(argument.le or 1.0, 1e3)
        return f"{rng.uniform(low, high):.4g}"
    least, most = argument.ge or 1, min(argument.le or 64, 1 << 14)
    return str(max(int(least), int(2 ** rng.uniform(0, max(1.0, most.bit_length() if isinstance(most, int) else 14)))))


def absurd(rng: random.Random) -> str:
    """Anything: numbers at the end of their range, text that is none, names one letter off."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return rng.choice(TEXTS)
    name = rng.choice((*names("models"), *names("hardware"), *names("engines")))
    at = rng.randrange(len(name))
    return name[:at] + rng.choice(("", "x", "-", "\u00e9")) + name[at + 1 :]
