"""Prompts of gated delta nets (Qwen3-Next, Qwen3.5), by how the kernels of two libraries are built.

A delta net carries a state along each sequence, chunk by chunk, so neither bytes nor FLOPs say how long a prompt
takes. FlashInfer has one kernel, with a program for each head of each sequence. Triton's (flash-linear-attention, in
vLLM and SGLang) are several: all but one work on every chunk at once, and one passes the states on. Their figures are
in cycles and bytes, data of ``delta_rule.toml``; a device has its clock, SMs, bandwidth and cache.

    rule = delta_rule("flashinfer", catalog.hardware("h200"))
    rule.seconds(catalog.hardware("h200"), Prompts.of(64.0, seqs=1.0, tokens=8192.0, squares=8192.0**2))  # 4.0e-4
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from ...base.symbols import Value, ceil_of, log2, maximum_of, minimum_of
from ...network.operators import Op
from ...specs.catalog import constants
from ...specs.structs import Engine, Hardware, Kernel, Spec
from .registry import known_device, reach
from .source import Source, Terms, p_norm

CHUNK = 64  # tokens that the kernels of both libraries compute as one matrix product
HEAD = (128, 128)  # elements of a head's keys and values: others were not timed
UNEVEN = 0.3  # standard deviation of lengths, over their mean, from which on programs end at any time
LN2 = 0.6931471805599453
LAST = 0.4  # of a mean program that the last SM works on alone then


class Prompts(NamedTuple):
    """Prompts of a step as such kernels see them, the numbers being floats or arrays."""

    heads: Value  # that carry a state
    seqs: Value
    chunks: Value  # of all sequences: each one's last is filled up
    longest: Value  # tokens of the longest, as far as sums tell
    unevenness: Value  # from 0 (all as long) to 1

    @classmethod
    def of(cls, heads: Value, *, seqs: Value, tokens: Value, squares: Value) -> Prompts:
        """From the sums of a step: ``Prompts.of(8, seqs=2, tokens=8192, squares=2048**2 + 6144**2).longest  # 6144``

        The longest of n numbers is at most √(n - 1) standard deviations above their mean, which it is where there are
        two; of many that are drawn at random it is about √(2 ln n). It is never below the length that a token sees on
        average, which says more where one is unlike all others.
        """
        seqs = maximum_of(seqs, 1e-9)
        mean = tokens / seqs
        spread = maximum_of(squares / seqs - mean * mean, 0.0) ** 0.5
        deviations = minimum_of(maximum_of(seqs - 1, 0.0), 2 * LN2 * maximum_of(log2(seqs), 0.0)) ** 0.5
        longest = maximum_of(mean + spread * deviations, squares / maximum_of(tokens, 1e-9))
        unevenness = minimum_of(spread / maximum_of(UNEVEN * mean, 1e-9), 1.0)
        chunks = (1 - unevenness) * whole_chunks(mean) + unevenness * (mean / CHUNK + 0.5)
        return cls(heads, seqs, seqs * chunks, longest, unevenness)


def whole_chunks(tokens: Value) -> Value:
    """Chunks that a sequence of some tokens is cut into: ``whole_chunks(65.0)  # 2.0``"""
    return ceil_of(tokens / CHUNK - 1e-3)


class SequencePrograms(Spec, frozen=True, kw_only=True):
    """FlashInfer's kernel: a program for each head of each sequence, one to an SM, which walks over its chunks.

    Equal programs come in waves. Of unequal ones an SM takes the next when it is free: all of the work, and some of
    one program more, but never less than the longest sequence takes.
    """

    architectures: tuple[str, ...]  # that they are written for
    fixed: float  # s of a call
    start: float  # s of a program: its state is read, and written
    cycles: float  # of a chunk
    seen_on: tuple[str, ...]  # the devices whose timings the figures were fitted to
    source: str

    def seconds(self, device: Hardware, prompts: Prompts) -> Value:
        """Seconds of one layer's call: ``programs.seconds(catalog.hardware("h200"), prompts)``"""
        mean, longest = self._program(device, prompts.chunks / prompts.seqs), whole_chunks(prompts.longest)
        waves = prompts.seqs * prompts.heads / device.compute_units
        late = LAST * minimum_of(2 * maximum_of(waves - 1, 0.0), 1.0)
        uneven = maximum_of((waves + late) * mean, self._program(device, longest))
        return self.fixed + _between(ceil_of(waves - 1e-6) * mean, uneven, prompts.unevenness)

    def _program(self, device: Hardware, chunks: Value) -> Value:
        return self.start + self.cycles * chunks / device.clock


class ChunkKernels(Spec, frozen=True, kw_only=True):
    """Triton's kernels: those that work on all chunks at once, and the one that passes states from chunk to chunk.

    Work is counted in tokens and heads, of whole chunks. What one kernel leaves to the next is read from the cache as
    far as it fits.
    """

    architectures: tuple[str, ...]
    fixed: float  # s of a call: six kernels or more
    triangle: float  # cycles to invert the triangle of a full chunk, row by row, before anything else
    work: float  # cycles of an SM for each token and head
    bytes: float  # through the memory for each token and head that do not fit into the cache
    cached: float  # bytes of the cache that one of these takes
    serial: float  # share of the work that is done chunk after chunk
    chain: float  # cycles that a chunk of the longest sequence takes there at least
    seen_on: tuple[str, ...]
    source: str

    def seconds(self, device: Hardware, prompts: Prompts) -> Value:
        """Seconds of one layer's call: ``kernels.seconds(catalog.hardware("h200"), prompts)``"""
        size = prompts.chunks * CHUNK * prompts.heads
        beyond = maximum_of(size - device.cache / self.cached, 0.0)
        memory = self.bytes * beyond / (device.memory_bandwidth * reach(device).memory)
        work = p_norm(size * self.work / (device.compute_units * device.clock), memory, 3)
        chain = self.chain * whole_chunks(prompts.longest) / device.clock
        triangle = self.triangle * minimum_of(prompts.longest / CHUNK, 1.0) / device.clock
        return self.fixed + triangle + (1 - self.serial) * work + maximum_of(self.serial * work, chain)


def _between(even: Value, uneven: Value, unevenness: Value) -> Value:
    return even * (1 - unevenness) + uneven * unevenness


DeltaRule = SequencePrograms | ChunkKernels


class DeltaRuleConstants(Spec, frozen=True, kw_only=True):
    """data/delta_rule.toml: the kernels of each library."""

    flashinfer: tuple[SequencePrograms, ...]
    triton: tuple[ChunkKernels, ...]


@functools.cache
def delta_rule_constants() -> DeltaRuleConstants:
    """data/delta_rule.toml, read once."""
    return constants("delta_rule", DeltaRuleConstants)


def delta_rule(library: str, device: Hardware) -> DeltaRule | None:
    """The kernels of a library on a device: ``delta_rule("triton", catalog.hardware("l40s"))``; None: nobody timed any.

    A device without figures of its SMs or its clock has none either.
    """
    if library == "constant" or not (device.compute_units and device.clock):
        return None
    rules: tuple[DeltaRule, ...] = getattr(delta_rule_constants(), library)
    return next((rule for rule in rules if device.architecture in rule.architectures), None)


def delta_rules(engine: Engine, device: Hardware, memory: float) -> Source | None:
    """Gated delta nets as an engine runs them, prompts by its library's kernels; None where nobody timed those.

    States of sequences that decode are read and written, as are inputs of prompts before the library's kernels: the
    engine's constants say how fast. ``memory``: what the device reaches of its bandwidth over what the one does that
    those were seen on.
    """
    rule = delta_rule(engine.delta_rule, device)
    if rule is None:
        return None
    kernel = engine.kernels.get("delta_rule", Kernel())
    hbm = min(1.0, kernel.hbm * memory)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        d = dims()
        if "prompt_squares" not in d or (d["key_dim"], d["value_dim"]) != HEAD:
            return float("nan")
        tokens = d["prompt_tokens"]
        prompts = Prompts.of(d["heads"], seqs=d["prompts"], tokens=tokens, squares=d["prompt_squares"])
        took = rule.seconds(device, prompts) * (tokens > 0) + kernel.fixed
        took = took + d["moved"] / (device.memory_bandwidth * hbm)
        return maximum_of(took, terms.roofline) * (terms.memory > 0)

    def origin(op: Op) -> str:
        seen = {known_device(name).architecture for name in rule.seen_on}
        return "fitted" if device.architecture in seen else "assumed"

    def note(op: Op) -> str:
        return (
            f"{op.name}: prompts by how {engine.delta_rule}'s kernels are built ({rule.source}); their inputs once "
            f"more, and states, at {hbm:.3g} of the bandwidth, and {kernel.fixed * 1e6:.3g} µs ({kernel.source})"
        )

    return Source(origin, answer, note, frozenset({"scan"}))
