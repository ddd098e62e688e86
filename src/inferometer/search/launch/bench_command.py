"""`vllm bench serve` with the requests of a search, against any of the servers: all of them speak OpenAI's API.

Flags are those of vLLM v0.25.1, vllm/benchmarks/serve.py and vllm/benchmarks/datasets/datasets.py. Requests that
differ in length or share prefixes are a file for its `timed_trace` dataset (v0.23 and newer), with arrivals.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from ...base.units import ceil_div
from ...serving.synthetic import own_rate
from ..objective import Objective, Traffic
from .processes import PORT, VLLM, Process

REQUESTS = "requests.jsonl"
BASE_URL = f"http://localhost:{PORT}"
LABELS = {  # our names: Mooncake's are vLLM's defaults, but its timestamps are milliseconds, and vLLM's seconds
    "timestamp": "arrival_s",
    "input-length": "input_tokens",
    "output-length": "output_tokens",
}
CHUNK = 512  # tokens that an id stands for where a trace has no ids of its own


def bench(traffic: Traffic, objective: Objective, *, request_rate: float, count: int) -> Process:
    """The benchmark that checks a plan at a rate: ``vllm bench serve …``; goodput is said in ms."""
    flags: list[Any] = ["--model", "$MODEL", "--base-url", BASE_URL]
    comment = ""
    if needs_file(traffic):
        flags += ["--dataset-name", "timed_trace", "--dataset-path", REQUESTS]
        flags += ["--timed-trace-chunk-hash-size", _chunk(traffic)]
        flags += [part for name, label in LABELS.items() for part in (f"--timed-trace-label-{name}", label)]
        count = len(traffic.trace) if traffic.trace is not None else count
        comment = f"search -o DIR writes {REQUESTS} (lengths, shared prefixes and arrivals), for vLLM 0.23 or newer"
    else:
        flags += ["--request-rate", f"{request_rate:.4g}"]
        flags += ["--burstiness", f"{traffic.burstiness:g}"] if traffic.burstiness != 1 else []
        flags += ["--dataset-name", "random", "--random-input-len", round(traffic.input_len - traffic.prefix_len)]
        flags += ["--random-prefix-len", traffic.prefix_len] if traffic.prefix_len else []
        flags += ["--random-output-len", round(traffic.output_len)]
    # the same prompts a second time would come from the server's prefix cache: every run draws others
    flags += ["--num-prompts", count, "--ignore-eos", "--seed", "$SEED"]
    if objective.slo:
        flags += ["--goodput", *(f"{name}:{limit * 1e3:g}" for name, limit in objective.slo.items())]
    flags += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    flags += ["--save-result", "--save-detailed", "--result-filename", "bench.json"]
    argv = [*map(str, ("vllm", "bench", "serve", *flags))]
    return Process(name="bench", engine=VLLM, argv=argv, comment=comment)


def num_prompts(request_rate: float, e2el: float) -> int:
    """Enough requests for five times as long as one takes: ``num_prompts(8.0, 5.0)  # 200``"""
    return max(200, round(5 * request_rate * e2el))


def needs_file(traffic: Traffic) -> bool:
    """Whether the requests are a file: those of a trace, or of lengths that differ."""
    lengths = (str(traffic.synthetic_args.get(name, 0)) for name in ("input_len", "output_len"))
    return traffic.trace is not None or any(not length.isdigit() for length in lengths)


def request_lines(traffic: Traffic, request_rate: float, count: int) -> Iterator[str]:
    """A trace at a rate as lines of JSON, which `read_trace` and vLLM's `timed_trace` dataset read alike.

    ``next(request_lines(traffic, 8.0, 200))  # '{"arrival_s": 0.1, "input_tokens": 900, …, "hash_ids": [0, 1], …}'``
    """
    trace = traffic.trace
    if trace is None or trace.arrival_s is None:
        requests, factor = traffic.requests(len(trace) if trace is not None else count, request_rate, 1), 1.0
    else:
        requests, factor = trace, (own_rate(trace) or request_rate) / request_rate
    chunk, blocks, arrivals = _chunk(traffic), requests.blocks, requests.arrival_s
    assert arrivals is not None
    fresh = itertools.count(1 + max((int(ids.max()) for ids in blocks or () if len(ids)), default=-1))
    for n, (length, answer) in enumerate(zip(requests.input_tokens, requests.output_tokens, strict=True)):
        needed = ceil_div(int(length), chunk)
        shared = [int(one) for one in blocks[n][:needed]] if blocks is not None else []
        row = {
            "arrival_s": round(float(arrivals[n] - arrivals[0]) * factor, 4),
            "input_tokens": int(length),
            "output_tokens": max(1, int(answer)),
            "hash_ids": shared + [next(fresh) for _ in range(needed - len(shared))],
            "block_tokens": chunk,
        }
        yield json.dumps(row)


def _chunk(traffic: Traffic) -> int:
    """Tokens that an id of `request_lines` stands for."""
    if traffic.trace is None:
        return int(traffic.synthetic_args["block_tokens"]) if traffic.prefix_len else CHUNK
    return traffic.trace.block_tokens if traffic.trace.blocks is not None else CHUNK
