"""A case is a seed and a number: the command or the body that they make, and the files beside it.

case(1, 42).argv          # ["analyze", "gpt2", "--gpu", "h20", "--batch-size", "48", "--json"]; always the same
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from . import files
from .values import APART, FOLDER, NUMBERS, READS, REQUESTS, TEXTS, absurd, engine, gpu, likely, model, names, options

# How often each verb is drawn, of a thousand: what is cheap often, what is dear often enough for a campaign's counts.
VERBS = {
    "analyze": 846,
    "sweep": 15,
    "simulate": 40,
    "validate": 32,
    "train": 40,
    "sensitivity": 4,
    "search": 7,
    "search --train": 4,
    "sweep --train": 3,
    "sensitivity --train": 1,
    "show": 2,
    "profile": 5,
    "bench": 1,
}
WAYS = {"cli": 856.5, "api": 140, "process": 3, "signal": 0.5}  # how it is run, of a thousand; HTTP is a share of "api"
HTTP_SHARE = 0.01
ABSURD_SHARE = 0.7  # of commands with at least one value that nobody would give: they are to be refused
ABSURD_BODIES = 0.7  # of bodies
TOGETHER = 0.85  # of commands whose flags go together: those of SGLang with SGLang, of images with a model that sees
BROKEN_SHARE = 0.12  # of commands that read a file with something wrong in it
API_VERBS = {"analyze": 71, "cluster": 4, "explain": 8, "sweep": 5, "simulate": 8, "sensitivity": 2, "search": 2}
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
LONG = (  # commands that take a while
    "sweep llama-3.1-8b --batch-size 1:256:1 --input-len 16:4096:16",
    "sweep llama-3.1-8b --batch-size 1:64:1 --input-len 16:4096:16 --json",
    "simulate llama-3.1-8b --num-prompts 3000 --request-rate 20 --json",
    "search llama-3.1-8b --num-gpus 2 --goodput ttft:900,tpot:50 --json",
    "search qwen3-0.6b --num-gpus 2 --goodput ttft:900,tpot:50 --jobs 2 --json",
    "simulate qwen3-0.6b --find-capacity --goodput ttft:900 --jobs 2 --num-prompts 300 --json",
    "analyze llama-3.1-8b --json",
    "search llama-3.1-70b --train --num-gpus 64 --global-batch-size 64 --json",
    "simulate qwen3-0.6b --agents coding-agent --num-sessions 9 --kv-offloading-size 8 --json",
    "web --port 0",
    "mock qwen3-0.6b --port 0",
)
CSV_LINES = 256 * 256 + 1  # of the table that a command which gets a signal writes


class Case(NamedTuple):
    """One input."""

    seed: int
    number: int
    way: str  # cli (in this process), process, signal, api (the server's function), http
    verb: str
    argv: Sequence[str] = ()
    files: Mapping[str, bytes] = MappingProxyType({})
    body: bytes = b""
    signal: str = ""
    after: float = 0.0  # share of the time that the command takes, at which the signal comes
    tidy: bool = False  # nothing absurd and nothing broken in it

    @property
    def name(self) -> str:
        """``1:42``, as --replay takes it."""
        return f"{self.seed}:{self.number}"


def case(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    rng = random.Random(f"{seed}:{number}")
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    if way == "api":
        return _api(rng, seed, number)
    verb = rng.choices(list(VERBS), list(VERBS.values()))[0]
    if way == "signal":
        return _signalled(rng, seed, number)
    argv, read, tidy = command(rng, verb)
    if way == "process" and any("\x00" in arg or "\ud800" in arg for arg in argv):
        way = "cli"  # no process can be given these
    return Case(seed, number, way, verb, argv, read, tidy=tidy)


# ------------------------------------------------------------------ commands


def command(rng: random.Random, verb: str) -> tuple[list[str], dict[str, bytes], bool]:
    """A command line, the files that it names, and whether it is one that people could give."""
    strange, wrong = rng.random() < ABSURD_SHARE, rng.random() < BROKEN_SHARE
    if verb.startswith("search"):  # answers are dear and refusals are not: most of the few are to be answered
        strange, wrong = strange and rng.random() < 0.4, wrong and rng.random() < 0.3
    elif verb in ("validate", "simulate", "train"):
        strange, wrong = strange and rng.random() < 0.75, wrong and rng.random() < 0.6
    read: dict[str, bytes] = {}
    flags = _BASE[verb](rng, read) if verb in _BASE else {}
    head = [_subject(rng, verb, read)] if verb not in ("profile", "bench") else []
    known = options(verb)
    apart = APART | REQUESTS if {"agents", "like"} & flags.keys() else APART
    pool = [name for name in known if name not in apart and name not in flags]
    for name in rng.sample(
        pool, min(len(pool), rng.choice((0, 0, 1) if verb.startswith("search") else (0, 1, 1, 2, 3, 5)))
    ):
        flags[name] = None if known[name].is_switch else likely(rng, known[name], verb)
    if rng.random() < TOGETHER:
        _together(rng, verb, head, flags)
    if wrong:
        _break_a_file(rng, verb, head, flags, read)
    if strange:
        _make_absurd(rng, known, head, flags)
    name, _, training = verb.partition(" ")
    argv = [name, *head, *([training] if training else ())]
    for name, value in flags.items():
        argv += [known[name].flag] if value is None else [known[name].flag, value]
    if strange and rng.random() < 0.1:
        del argv[rng.randrange(1, len(argv))]
    if verb not in ("bench",):
        forms = (["--json"], ["--csv"], ["--plain"], ["--markdown"], [])
        argv += rng.choices(forms, (92, 3, 1, 1, 3))[0] if verb != "profile" else ["--json"]
    return argv, read, not (strange or wrong)


_SIGHTED = ("qwen2.5-vl-7b", "qwen3-vl-2b", "llava-onevision-qwen2-0.5b-ov", "internvl3-8b")
_SGLANG = {name for name in options("simulate") if "hic" in name or "hierarchical" in name} | {
    "scheduler_recv_interval"
}
_NEEDED = {  # by flag: another one that it needs, and with which value
    "lora_targets": ("lora_rank", "16"),
    "lora_adapters": ("lora_rank", "8"),
    "prefill_replicas": ("decode_replicas", "1"),
    "decode_replicas": ("prefill_replicas", "1"),
    "recompute_method": ("recompute", "full"),
    "recompute_num_layers": ("recompute_method", "uniform"),
    "recompute_modules": ("recompute", "selective"),
    "prefix_tier": ("prefix_len", "64"),
    "kv_offloading_backend": ("kv_offloading_size", "4"),
    "hicache_ratio": ("enable_hierarchical_cache", None),
    "hicache_size": ("enable_hierarchical_cache", None),
    "hicache_write_policy": ("enable_hierarchical_cache", None),
    "hicache_storage_backend": ("enable_hierarchical_cache", None),
    "batch_wait_timeout_iters": ("batch_wait_max_tokens_ratio", "0.5"),
    "batch_wait_max_tokens_ratio": ("batch_wait_timeout_iters", "3"),
}
_EXCLUDED = {  # by flag: what it goes without
    "trace": ("input_len", "output_len", "num_prompts", "prefix_len", "turns", "burstiness"),
    "measured": ("url", "watch", "probe"),
    "enable_hierarchical_cache": ("kv_offloading_size", "kv_offloading_backend"),
}
_EXCLUDED |= dict.fromkeys(("step_log", "memory"), ("url", "watch", "probe", "goodput", "diagnose", "max_concurrency"))
_DEPENDENT = {  # by flag: what is of no use without it
    "agents": ("num_sessions", "concurrent_sessions", "max_idle", "sessions_out"),
    "write_calibration": ("force",),
    "measured": ("requests_out",),
}


def _together(rng: random.Random, verb: str, head: list[str], flags: dict[str, str | None]) -> None:
    """Take out, or complete, what a command would be refused for whatever its values are."""
    for _ in range(2):  # what is needed may need something, too
        for name in list(flags):
            other, value = _NEEDED.get(name, (name, flags[name]))
            if other in options(verb):
                flags.setdefault(other, value)
    if (tier := flags.get("prefix_tier")) in ("cpu", "disk", "shared"):
        flags["kv_tiers"] = f"{tier}:size=8"
    if "recompute_num_layers" in flags:
        flags["recompute"] = "full"
    if _SGLANG & flags.keys():
        flags["engine"] = "sglang"
    without = [names for name, names in _EXCLUDED.items() if name in flags]
    without += [names for name, names in _DEPENDENT.items() if name not in flags]
    for name in itertools.chain.from_iterable(without):
        flags.pop(name, None)
    if head and "num_inference_steps" in flags:
        head[0] = rng.choice(("dit-xl-2", "dit-b-4"))
    elif head and "images" in flags:
        head[0] = rng.choice(_SIGHTED)


def _subject(rng: random.Random, verb: str, read: dict[str, bytes]) -> str:
    if verb == "show":
        return rng.choice(("models", "hardware", "hosts", "engines", "precisions", "usecases", "families"))
    if verb.startswith(("sensitivity", "search")):
        return rng.choice(("qwen3-0.6b", "gpt2", "llama-3.2-1b", "opt-125m")) if rng.random() < 0.9 else model(rng)
    if verb == "analyze" and rng.random() < 0.05:
        name, data = files.sample(rng, rng.choice(("model", "model", "network", "manifest")))
        read[name] = data
        return f"{FOLDER}/{name}"
    return model(rng)


def _simulated(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    flags: dict[str, str | None] = {"gpu": gpu(rng), "num_prompts": str(rng.randrange(1, 20))}
    if (kind := rng.random()) < 0.15:
        name, read[name] = files.sample(rng, rng.choice(("trace", "trace", "sessions")))
        flags["trace"] = f"{FOLDER}/{name}"
    elif kind < 0.17:
        name, read[name] = files.sample(rng, "sessions")
        flags |= {"like": f"{FOLDER}/{name}", "num_sessions": "2"}
        del flags["num_prompts"]
    elif kind < 0.27:
        flags |= {"agents": likely(rng, options("simulate")["agents"]), "num_sessions": str(rng.randrange(1, 4))}
        del flags["num_prompts"]
    else:
        flags["output_len"] = str(int(2 ** rng.uniform(0, 6)))
        flags["request_rate"] = rng.choice(("inf", f"{10 ** rng.uniform(-1, 3):.4g}"))
    if rng.random() < 0.3:
        flags["requests_out"] = f"{FOLDER}/requests.csv"
    if rng.random() < 0.3:
        flags["tensor_parallel_size"] = str(rng.choice((2, 4, 8)))
    return flags


def _validated(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    if rng.random() < 0.1:
        name, read[name] = files.sample(rng, "step_log")
        return {"step_log": f"{FOLDER}/{name}", "gpu": gpu(rng)}
    if rng.random() < 0.1:
        read["memory.csv"] = files.sample(rng, "memory")[1]
        return {"memory": f"{FOLDER}/memory.csv", "gpu": gpu(rng)}
    name, read[name] = files.sample(rng, "measured")
    flags: dict[str, str | None] = {"measured": f"{FOLDER}/{name}", "gpu": gpu(rng)}
    if rng.random() < 0.01:  # hundreds of simulations
        flags["write_calibration"] = f"{FOLDER}/fitted.toml"
    return flags


def _searched(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    return {
        "gpu": gpu(rng),
        "num_gpus": str(rng.choice((1, 1, 2, 2, 3, 4))),
        "goodput": f"ttft:{10 ** rng.uniform(1.5, 4):.4g},tpot:{10 ** rng.uniform(0.7, 2.5):.4g}",
        "request_rate": f"{10 ** rng.uniform(-1, 1.5):.3g}",
        "input_len": str(int(2 ** rng.uniform(2, 11))),
        "output_len": str(int(2 ** rng.uniform(1, 5))),
        "finalists": "1",
        "mode": rng.choice(("aggregated", "aggregated", "disaggregated", "both")),
        "max_num_seqs": str(rng.choice((8, 32, 64))),
        "max_num_batched_tokens": str(rng.choice((512, 2048, 8192))),
    }


def _trained(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    flags: dict[str, str | None] = {"gpu": gpu(rng)}
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if rng.random() < 0.3:
            flags[name] = str(rng.choice((2, 4, 8)))
    return flags


def _trained_search(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    return {
        "gpu": gpu(rng),
        "num_gpus": str(rng.choice((1, 2, 4, 4, 8, 6))),
        "global_batch_size": str(rng.choice((8, 12, 16, 64))),
        "seq_len": str(int(2 ** rng.uniform(4, 13))),
    }


def _trained_sweep(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    axes = {
        "data_parallel_size": ("1,2", "1:8:x2"),
        "tensor_parallel_size": ("1,2", "2"),
        "micro_batch_size": ("1,2", "1,3"),
        "zero": ("0,1", "3"),
        "recompute": ("none,full",),
    }
    return {"gpu": gpu(rng), **{name: rng.choice(axes[name]) for name in rng.sample(list(axes), rng.randrange(1, 4))}}


def _swept(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    axes = {
        "batch_size": ("1,2,4", "1:64:x2", "3"),
        "input_len": ("128,1000", "16:64:16"),
        "output_len": ("1,64", "10:30:10"),
        "tensor_parallel_size": ("1,2", "1,2,4"),
        "quantization": ("bf16,fp8", "bf16"),
        "kv_cache_dtype": ("auto,fp8",),
        "engine": ("vllm,sglang", "hf"),
    }
    return {"gpu": gpu(rng), **{name: rng.choice(axes[name]) for name in rng.sample(list(axes), rng.randrange(1, 4))}}


def _profiled(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    name, read[name] = files.sample(rng, "tables")
    return {"tables": f"{FOLDER}/{name}", "output": f"{FOLDER}/imported.csv", "gpu": rng.choice(names("hardware"))}


def _benched(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    url = rng.choice(("http://127.0.0.1:9", "http://127.0.0.1:1/v1", "x", "http://", "https://127.0.0.1:9", "ftp://a"))
    return {"base_url": url, "model": model(rng), "num_prompts": "2", "timeout": "0.2"}


def _analyzed(rng: random.Random, read: dict[str, bytes]) -> dict[str, str | None]:
    flags: dict[str, str | None] = {"gpu": gpu(rng)}
    if rng.random() < 0.5:
        flags["engine"] = engine(rng)
    if rng.random() < 0.4:
        flags["tensor_parallel_size"] = str(rng.choice((2, 4, 8)))
    if rng.random() < 0.02:
        name, read[name] = files.sample(rng, kind := rng.choice(("profile", "calibration", "machine")))
        flags["profile" if kind == "machine" else kind] = f"{FOLDER}/{name}"
        if kind == "machine":
            flags["gpu"] = "h200"
    return flags


_BASE: dict[str, Any] = {
    "analyze": _analyzed,
    "sensitivity": lambda rng, read: {"gpu": gpu(rng)},
    "simulate": _simulated,
    "validate": _validated,
    "search": _searched,
    "train": _trained,
    "sweep": _swept,
    "search --train": _trained_search,
    "sweep --train": _trained_sweep,
    "sensitivity --train": _trained,
    "profile": _profiled,
    "bench": _benched,
}
_FILES_OF = {  # which files a command reads, beside its model's config
    "analyze": (
        "gpu",
        "host_profile",
        "profile",
        "machine",
        "calibration",
        "model",
        "network",
        "manifest",
        "manifest",
        "model",
        "gpu",
        "config",
    ),
    "sweep": ("gpu", "profile", "calibration", "model", "config"),
    "search": ("gpu", "trace", "profile", "calibration"),
    "simulate": ("trace", "trace", "sessions", "sessions", "like", "gpu", "profile", "machine", "calibration"),
    "validate": ("measured", "measured", "memory", "step_log", "gpu"),
    "sensitivity": ("gpu", "model"),
    "train": ("gpu", "model", "network", "config"),
    "profile": ("tables",),
}


def _break_a_file(
    rng: random.Random, verb: str, head: list[str], flags: dict[str, str | None], read: dict[str, bytes]
) -> None:
    """One of the files that the command reads is broken; named by the command, if it was not."""
    if verb not in _FILES_OF:
        return
    kind = rng.choice(_FILES_OF[verb])
    name, data = files.sample(rng, "sessions" if kind == "like" else kind)
    name = f"broken-{name}"
    read[name] = files.broken(rng, data)
    if kind in ("model", "network", "manifest"):
        head[0] = f"{FOLDER}/{name}"
    else:
        flags[{"machine": "profile", "sessions": "trace"}.get(kind, kind)] = f"{FOLDER}/{name}"


def _make_absurd(rng: random.Random, known: Any, head: list[str], flags: dict[str, str | None]) -> None:
    """One value that nobody would give, sometimes two; never of a flag that names what is written."""
    pool = [name for name in known if (name not in APART or name in READS) and not known[name].is_switch]
    for _ in range(rng.choice((1, 1, 1, 2))):
        if head and (not pool or rng.random() < 0.06):
            head[0] = absurd(rng)
        else:
            flags[rng.choice(pool)] = absurd(rng)


# ------------------------------------------------------------------ signals


def _signalled(rng: random.Random, seed: int, number: int) -> Case:
    """A command that takes a while and writes a file, and a signal somewhere on its way."""
    argv = rng.choice(LONG).split()
    if argv[0] not in ("web", "mock"):
        argv += ["-o", f"{FOLDER}/out.{'json' if '--json' in argv else 'csv'}"]
    return Case(seed, number, "signal", argv[0], argv, signal=rng.choice(SIGNALS), after=rng.random())


# ------------------------------------------------------------------ bodies of the server


def _api(rng: random.Random, seed: int, number: int) -> Case:
    verb = rng.choices(list(API_VERBS), list(API_VERBS.values()))[0]
    way = "http" if rng.random() < HTTP_SHARE and verb in ("analyze", "explain") else "api"
    strange = rng.random() < ABSURD_BODIES
    body = _body(rng, verb, strange)
    if strange and rng.random() < 0.5:
        _swap(rng, body)
    try:
        data = json.dumps(body).encode()
    except (ValueError, RecursionError):
        data = b"{}"
    if strange and rng.random() < 0.05:
        data = files.broken(rng, data)
    return Case(seed, number, way, verb, body=data, tidy=not strange)


def _body(rng: random.Random, verb: str, strange: bool) -> dict[str, Any]:
    """A plan is its own body for analyze; the others have it beside their own keys."""
    plan: dict[str, Any] = {"model": model(rng), "gpu": gpu(rng)}
    if verb in ("search", "sensitivity"):
        plan["model"] = rng.choice(("qwen3-0.6b", "gpt2"))
    pool = [o for n, o in options("analyze").items() if o.argument and o.argument.label and n not in ("gpu", "model")]
    for option in rng.sample(pool, rng.choice((0, 1, 2, 3, 5))):
        plan[option.name] = True if option.is_switch else _typed(likely(rng, option, verb))
    if rng.random() < TOGETHER:
        head, flags = [plan["model"]], {name: None if value is True else str(value) for name, value in plan.items()}
        _together(rng, "analyze", head, flags)
        plan = {name: plan.get(name, True if flags[name] is None else _typed(str(flags[name]))) for name in flags}
        plan |= {"model": head[0], **({"engine": flags["engine"]} if "engine" in flags else {})}
    if strange and rng.random() < 0.6:
        plan[rng.choice(pool).name] = rng.choice((*files.ANYTHING, *NUMBERS, *TEXTS))
    if rng.random() < 0.35:
        config = json.loads(files.sample(rng, "model")[1])
        plan["config"] = json.loads(files._swap_type(rng, json.dumps(config).encode())) if strange else config
    if verb in ("analyze", "cluster"):
        return plan
    more: dict[str, Any] = {
        "explain": {"op": rng.choice(("down_proj", "lm_head", "attention", "qkv_proj")), "phase": "all"},
        "sweep": {"axes": {"batch_size": rng.choice(("1,2", "1:8:x2", [1, 3]))}},
        "simulate": {"traffic": {"num_prompts": rng.randrange(1, 9), "output_len": rng.randrange(1, 20)}},
        "sensitivity": {},
        "search": {"num_gpus": 1, "goodput": "ttft:900,tpot:90", "finalists": 1, "request_rate": 1, "output_len": 4},
    }[verb]
    return {"plan": plan, **more}


def _typed(text: str) -> Any:
    """As a page would send it: numbers are numbers."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _swap(rng: random.Random, body: dict[str, Any]) -> None:
    """A value anywhere in the body becomes anything."""
    place: Any = body
    while isinstance(place, dict) and place:
        key = rng.choice(list(place))
        if not isinstance(place[key], dict) or rng.random() < 0.2:
            place[key] = rng.choice((*files.ANYTHING, *NUMBERS, *TEXTS))
            return
        place = place[key]
