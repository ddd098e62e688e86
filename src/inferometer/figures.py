"""What users of a plan see, of one workload or of arrays of them: waits, rates, cost, energy.

setup = request("llama-3.1-8b", "h200").setup()
figures(setup, talk_of(setup, batch[:, None], input_len[None, :], 128)).tpot  # axes that broadcast: a whole grid

Axes that stand apart (one dimension each) are cheap: what depends on the batch alone is computed once per batch.
"""

from __future__ import annotations

from typing import NamedTuple

from .evaluate import Setup
from .symbols import Value, most
from .talk import Talk, prompt_seconds, token_seconds


class Figures(NamedTuple):
    """Seconds, tokens/s, US dollars, joules; None where a device has no price or power."""

    ttft: Value
    tpot: Value
    e2el: Value
    prefill_throughput: Value
    output_throughput: Value
    total_token_throughput: Value
    output_throughput_per_gpu: Value
    cost_per_million_output_tokens: Value | None
    joules_per_output_token: Value | None


def talk_of(setup: Setup, batch: Value, input_len: Value, output_len: Value, prefix_len: Value = 0) -> Talk:
    """Prompts and answers by the numbers, which may be arrays that broadcast: ``talk_of(setup, 8, 1024, 128)``"""
    mine = -(-batch // setup.plan.data_parallel_size)
    return Talk(batch, mine, 1, input_len, input_len - prefix_len, prefix_len, output_len)


def front_end(setup: Setup, tokens: Value = 0.0) -> Value:
    """Seconds that a request takes outside of steps, with so many tokens in its prompts."""
    e = setup.engine
    http = e.http_overhead + e.token_overhead * tokens
    return e.request_overhead + (http if setup.plan.frontend == "http" else 0.0)


def figures(setup: Setup, talk: Talk) -> Figures:
    """Of a batch that is prefilled and then decodes together, until its last token."""
    ttft = front_end(setup, talk.batch * talk.context) + prompt_seconds(setup, talk)
    more = talk.output_len > 1
    tpot = token_seconds(setup, talk) * more
    e2el = ttft + most(talk.output_len - 1, 0) * tpot
    return rated(setup, ttft, tpot, e2el, talk.batch * talk.prompt, talk.batch * talk.output_len,
                 talk.batch * talk.context)  # fmt: skip


def rated(setup: Setup, ttft: Value, tpot: Value, e2el: Value, new: Value, produced: Value, read: Value) -> Figures:
    """The rates that follow: ``new`` prompt tokens computed, ``produced`` tokens of answers, ``read`` of prompts."""
    gpus, device = setup.plan.gpus, setup.device
    rate = produced / e2el
    each = e2el / most(produced, 1) * gpus  # device-seconds of an output token
    return Figures(
        ttft, tpot, e2el, new / ttft, rate, (produced + read) / e2el, rate / gpus,
        each * device.price_per_hour / 3600 * 1e6 if device.price_per_hour else None,
        each * device.power if device.power else None,
    )  # fmt: skip
