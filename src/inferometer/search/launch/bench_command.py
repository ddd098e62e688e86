"""`vllm bench serve` with the requests of a search, against any of the servers: all of them speak OpenAI's API."""

from __future__ import annotations

from typing import Any

from ..objective import Objective, Traffic
from .processes import PORT, VLLM, Process


def bench(
    model: str, traffic: Traffic, objective: Objective, *, request_rate: float, num_prompts: int, trace: str | None
) -> Process:
    """The benchmark that checks a plan at a rate: ``vllm bench serve …``; goodput is said in ms."""
    flags: list[Any] = ["--model", model, "--base-url", f"http://localhost:{PORT}"]
    flags += ["--request-rate", f"{request_rate:.4g}", "--num-prompts", num_prompts]
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
    comment = "" if trace is None else "its prompts, as the custom dataset of vLLM wants them"
    argv = [*map(str, ("vllm", "bench", "serve", *flags))]
    return Process(name="bench", engine=VLLM, argv=argv, comment=comment)
