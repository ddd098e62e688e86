"""Files that a command reads, whole and broken: configs, GPUs, hosts, networks, traces, measurements, profiles.

name, data = sample(rng, "gpu")          # ("gpu.toml", b"label = …"): one that works
broken(rng, data)                        # the same with a bit flipped, a line twice, a number of 400 digits …
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from inferometer.specs import catalog

from .values import NUMBERS, SMALL, names

ROOT = Path(__file__).parent.parent.parent
_NETWORK = """hidden_size = 64
vocab_size = 100
max_position_embeddings = 4096
[[layers]]
repeat = 3
blocks = [
  { block = "gqa", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16, window = 32 },
  { block = "moe", num_experts = 8, num_experts_per_tok = 2, moe_intermediate_size = 32 },
]
[[layers]]
blocks = [{ block = "gqa", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16 }, { block = "mlp", intermediate_size = 128 }]
"""  # noqa: E501
_CALIBRATION = """prefill = 1.05
decode = 0.97
request = 0.002
model = "llama-3.1-8b"
gpu = "h200"
engine = "vllm"
measured = "chat.csv"
requests = 100
[error.ttft]
before = 0.2
after = 0.1
"""
_MACHINE = """label = "vm, Intel(R) Xeon(R) Processor @ 2.50GHz"
device = "NVIDIA H200"
launch = 8e-06
slowdown = 1.1
[machine]
driver = "580"
measured = "2026-11-18T23:32:28+00:00"
[figures]
launch = { value = 8e-06, unit = "s", reference = 8e-06 }
matrix_vector = { value = 3.9e+12, unit = "B/s", reference = 3.704e+12 }
product_burst = { value = 7.5e+14, unit = "FLOP/s", reference = 7.811e+14 }
product_sustained = { value = 6.6e+14, unit = "FLOP/s", reference = 7e+14 }
[engines.vllm]
step_floor = 0.0021
step_floor_per_sequence = 1.8e-05
request_overhead = 0.003
launch_factor = 1.001
[engines.vllm.launch]
prefill_attention = 0.00025
"""
_COMPOSE = """services:
  server:
    image: vllm/vllm-openai:v0.15.0
    command: --model Qwen/Qwen3-0.6B -tp 2 --max-model-len 8k --gpu-memory-utilization 0.9 --max-num-seqs 256
"""
_KUBERNETES = """apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  template:
    spec:
      containers:
      - name: server
        image: lmsysorg/sglang:v0.5.10
        command: [python3, -m, sglang.launch_server]
        args: ["--model-path", "Qwen/Qwen3-0.6B", "--tp-size", "2", "--chunked-prefill-size", "4096"]
        env: [{name: HF_HUB_OFFLINE, value: "1"}]
"""
_MEMORY = "Input_Tokens,Output_Tokens,Weights (MB),KV Prefill (MB),KV Total (MB),KV Decode Delta (MB)\n"
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
ANYTHING: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 1e308, 1e-320, 2**31, 2**63, 10**30, "", "x", "64", [], [1], {}, {"a": 1}, [[]],
    "silu", "bf16", [None], [0, -1], "\x00", "é" * 9, 3, 7,
)  # fmt: skip


@functools.cache
def _head(path: str, lines: int) -> str:
    with (ROOT / path).open(encoding="utf-8") as file:
        return "".join(line for _, line in zip(range(lines), file, strict=False))


@functools.cache
def _config(model: str) -> dict[str, Any]:
    return dict(catalog.model(model).config)


def _trace_rows(rng: random.Random, measured: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    now = 0.0
    for _ in range(rng.randrange(1, 16)):
        now += rng.expovariate(8)
        row: dict[str, Any] = {"arrival_s": round(now, 4)} if measured or rng.random() < 0.98 else {}
        row |= {"input_tokens": int(2 ** rng.uniform(0, 11)), "output_tokens": int(2 ** rng.uniform(0, 6))}
        if measured:
            ttft, tpot = rng.uniform(5, 500), rng.uniform(2, 50)
            row |= {"TTFT": round(ttft, 3), "TPOT": round(tpot, 3)}
            row["E2E"] = round(ttft + tpot * (row["output_tokens"] - 1), 3)
        rows.append(row)
    return rows


def _step_log(rng: random.Random) -> tuple[str, bytes]:
    """What a server logs of its steps: vLLM's iterations, SGLang's batches or Dynamo's forward passes."""
    form, lines = rng.choice(("vllm", "vllm", "sglang", "dynamo")), []
    if form == "vllm":
        lines.append("INFO 11-18 00:59:00 [kv_cache_utils.py:1880] GPU KV cache size: 600,000 tokens, Maximum")
    for number in range(rng.randrange(1, 40)):
        prompts, seqs, ms = rng.choice((0, 0, 1, 2)), rng.randrange(0, 64), rng.uniform(2, 60)
        tokens, clock = prompts * rng.randrange(1, 999), f"01:{number // 60:02d}:{number % 60:02d}"
        if form == "vllm":
            lines.append(
                f"INFO 11-18 {clock} [loggers.py:182] Engine 000: Iteration({number}): {prompts} context requests, "
                f"{tokens} context tokens, {seqs} generation requests, {seqs} generation tokens, iteration elapsed "
                f"time: {ms:.2f} ms, GPU KV cache usage: {rng.random() * 50:.1f}%"
            )
        elif form == "sglang":
            lines.append(
                f"[2026-11-18 {clock}] Decode batch, #running-req: {seqs}, #token: {seqs * 500}, token usage: 0.05, "
                f"cuda graph: True, gen throughput (token/s): {1e3 * seqs / ms:.2f}, #queue-req: 0"
            )
        else:
            scheduled = {"num_prefill_requests": prompts, "sum_prefill_tokens": tokens, "sum_prefill_kv_tokens": 0}
            scheduled |= {"num_decode_requests": seqs, "sum_decode_kv_tokens": seqs * 700}
            lines.append(json.dumps({"version": 1, "wall_time": ms / 1e3, "scheduled_requests": scheduled}))
    return "server.log", ("\n".join(lines) + "\n").encode()


def _sessions(rng: random.Random) -> tuple[str, bytes]:
    """Recorded sessions of agents: Weka's, Dynamo's or Mooncake's."""
    form, rows = rng.choice(("weka", "dynamo", "mooncake")), []
    for number in range(rng.randrange(1, 4)):
        turns, t = [], 0.0
        for turn in range(rng.randrange(1, 5)):
            t, ids, took = t + rng.uniform(0, 9), list(range(turn + 2)), rng.uniform(0, 3)
            new = {"t": round(t, 3), "type": "n", "in": 64 * len(ids) + 5, "out": 9, "hash_ids": ids, "api_time": took}
            turns.append({**new, "model": "m", "think_time": 1.0})
            if form == "mooncake":
                rows.append(
                    {"timestamp": int(t * 1e3), "input_length": 520 * len(ids), "output_length": 9, "hash_ids": ids}
                )
            elif form == "dynamo":
                replay = {"trace_block_size": 16, "input_length": 16 * len(ids) + 3, "input_sequence_hashes": ids}
                asked = {
                    "request_id": f"{number}.{turn}",
                    "request_received_ms": int(t * 1e3),
                    "total_time_ms": int(took * 1e3),
                }
                event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
                rows.append(
                    {
                        **event,
                        "agent_context": {"session_id": str(number)},
                        "request": {**asked, "output_tokens": 9, "replay": replay},
                    }
                )
        if form == "weka":
            rows.append(
                {
                    "id": str(number),
                    "block_size": 64,
                    "hash_id_scope": rng.choice(("local", "global")),
                    "requests": turns,
                }
            )
    return "sessions.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()


def _table(rng: random.Random, rows: list[dict[str, Any]], stem: str) -> tuple[str, bytes]:
    """Rows as CSV, JSON or JSON lines."""
    form = rng.choice(("csv", "csv", "csv", "json", "jsonl"))
    if form == "json":
        return f"{stem}.json", json.dumps(rows).encode()
    if form == "jsonl":
        return f"{stem}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()
    keys = list(rows[0])
    lines = [",".join(keys), *(",".join(str(row.get(key, "")) for key in keys) for row in rows)]
    return f"{stem}.csv", ("\n".join(lines) + "\n").encode()


def sample(rng: random.Random, kind: str) -> tuple[str, bytes]:
    """A file of a kind that works, under the name that it would have."""
    if kind == "config":  # flags in a file
        return "flags.toml", b'gpu = "h200"\ntensor-parallel-size = 2\nefficiency = 0.5\n'
    if kind == "model":
        model = rng.choice(SMALL if rng.random() < 0.3 else names("models"))
        return "model/config.json", json.dumps(_config(model)).encode()
    if kind in ("gpu", "host_profile"):
        folder = {"gpu": "hardware", "host_profile": "hosts"}[kind]
        return f"{kind}.toml", (catalog.DATA / folder / f"{rng.choice(names(folder))}.toml").read_bytes()
    if kind == "network":
        return "network.toml", _NETWORK.encode()
    if kind == "calibration":
        return "calibration.toml", _CALIBRATION.encode()
    if kind == "machine":
        return "machine.toml", _MACHINE.encode()
    if kind == "sessions":
        return _sessions(rng)
    if kind == "manifest":
        return "manifest.yaml", rng.choice((_COMPOSE, _KUBERNETES)).encode()
    if kind == "step_log":
        return _step_log(rng)
    if kind == "profile":
        if rng.random() < 0.7:
            return "kernels.csv", _head("benchmarks/data/h200_kernels.csv", rng.randrange(2, 400)).encode()
        return "layers.csv", _head("benchmarks/data/h200_layers_llama-3.1-8b.csv", rng.randrange(2, 400)).encode()
    if kind == "tables":
        return sample(rng, rng.choice(("profile", "trace")))
    if kind == "memory":
        rows = "".join(
            f"{rng.randrange(1, 999)},{rng.randrange(1, 99)},15316,{rng.random() * 99:.2f},99,9\n" for _ in "abc"
        )
        return "memory.csv", (_MEMORY + rows).encode()
    if kind == "measured" and rng.random() < 0.25:
        path = rng.choice(sorted((ROOT / "tests/serving/files").iterdir()))
        return path.name, path.read_bytes()
    return _table(rng, _trace_rows(rng, kind == "measured"), kind)


# ------------------------------------------------------------------ broken ones


def _swap_type(rng: random.Random, data: bytes) -> bytes:
    """A value of a JSON document becomes one of another type, vanishes, or is there under two keys."""
    document = json.loads(data)
    if not isinstance(document, dict | list):
        return data
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return data
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            break
        place = inner
    if rng.random() < 0.15:
        del place[key]
    elif isinstance(inner, int | float) and rng.random() < 0.4:
        place[key] = rng.choice((inner * 2, inner + 1, -inner, inner * 1000, inner // 2 if inner else 1))
    else:
        place[key] = rng.choice(ANYTHING)
    return json.dumps(document).encode()


def _lines(rng: random.Random, data: bytes) -> bytes:
    """A line twice, gone, or in another place."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at = rng.randrange(len(lines))
    what = rng.randrange(4)
    if what == 0:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif what == 1:
        del lines[at]
    elif what == 2:
        rng.shuffle(lines)
    else:
        lines[at] = lines[at].replace(b",", b";") if rng.random() < 0.5 else lines[at] * rng.randrange(2, 50)
    return b"".join(lines)


def _number(rng: random.Random, data: bytes) -> bytes:
    """A number becomes one at the end of its range, or no number."""
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    one = rng.choice(numbers)
    return data[: one.start()] + rng.choice(NUMBERS).encode() + data[one.end() :]


def _bytes(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, an end cut off, bytes put in."""
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    what = rng.randrange(4)
    if what == 0:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 20))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if what == 1:
        return data[:at]
    if what == 2:
        return (
            data[:at]
            + rng.choice((b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b'"', b"\x1a", b"[" * 3000))
            + data[at:]
        )
    return data[at:] + data[:at]


def _whole(rng: random.Random, data: bytes) -> bytes:
    """Another encoding, a wrapper, or something else altogether."""
    text = data.decode("utf-8", "replace")
    return rng.choice((
        lambda: b"\xef\xbb\xbf" + data,
        lambda: text.encode("utf-16"),
        lambda: gzip.compress(data, mtime=0),
        lambda: gzip.compress(data, mtime=0)[: rng.randrange(1, 40)],
        lambda: b"",
        lambda: b"\n" * rng.randrange(1, 99),
        lambda: b"[" * 100_000,
        lambda: b'{"a":' * 5000 + b"1" + b"}" * 5000,
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b"\r"),
        lambda: data * rng.choice((2, 3, 20)),
        lambda: b"null", lambda: b"[]", lambda: b"{}", lambda: b"0", lambda: b'"x"', lambda: b"NaN",
        lambda: text.replace('"', "'").encode(),
        lambda: rng.randbytes(rng.randrange(1, 300)),
    ))()  # fmt: skip


def broken(rng: random.Random, data: bytes) -> bytes:
    """The file with one thing wrong, sometimes two or three."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        how = rng.choice((_swap_type, _swap_type, _lines, _number, _number, _bytes, _whole))
        try:
            data = how(rng, data)
        except (ValueError, RecursionError):  # no JSON, or no longer: then its bytes
            data = _bytes(rng, data)
    return data
