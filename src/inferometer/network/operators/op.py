"""What an operator is: its work in formulas, its shape, what it keeps; and the register of kinds.

A name such as ``s.hidden_size`` is bound by the block the operator stands in, ``s.tokens`` by the step, ``s.tp`` by
the plan, ``s.attn_weight_bytes`` by the precision. Parallelism is in the formulas, never in branches: at tp = 1 the
all-reduce sends (tp-1)/tp = 0 bytes. All figures are of one device and one call of the operator.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...base.cache import cache_by_identity
from ...base.symbols import Expr, Formula, text
from ...base.symbols import names as s


class Work(msgspec.Struct, frozen=True):
    """What one call of an operator does on one device."""

    flops: Formula = 0
    weights: Formula = 0  # weight bytes read in this step
    reads: Formula = 0  # activation bytes read
    writes: Formula = 0  # activation bytes written
    kv_reads: Formula = 0  # cache and state bytes read
    kv_writes: Formula = 0  # cache and state bytes written
    sent: Formula = 0  # bytes sent over the link
    hops: Formula = 0  # messages in a row, each paying the link's latency
    params: Formula = 0  # parameters of the whole model, not of one device
    active: Formula = 0  # of those, what one token multiplies by
    stored: Formula = 0  # weight bytes kept on this device


WORK_FIELDS = ("flops", "weights", "reads", "writes", "kv_reads", "kv_writes", "sent", "hops")  # what takes time
MEMORY_FIELDS = WORK_FIELDS[1:6]  # of those, bytes through the device's memory


class Cache(msgspec.Struct, frozen=True):
    """What an operator keeps between steps: bytes per cached token of a span, and bytes per sequence."""

    per_token: Formula = 0
    per_sequence: Formula = 0
    span: str = ""


class Op(msgspec.Struct, frozen=True):
    """One operator of a block, its work in formulas."""

    name: str
    kind: str
    work: Work
    dims: dict[str, Formula]  # the kernel's shape: what a measured profile is keyed by
    peak: str = "vector_peak_flops"  # the name of the FLOP/s it can reach
    inputs: tuple[str, ...] | None = None  # names of the operators that it reads from; None = the one before it
    output: Formula = 0  # bytes of its output tensor
    shape: dict[str, tuple[Formula, ...]] = {}  # tensor shapes for people
    cache: Cache | None = None
    calls: int = 1  # kernels it launches
    role: str = ""
    axis: str = ""  # collectives: the group of ranks it runs over (tp, ep, pp, dcp)
    side_stream_of: str = ""  # the operator that it may run beside, on a CUDA stream of its own

    @property
    def formula(self) -> str:
        """``flops = …; bytes = …`` as people read it."""
        return _formula(self)


@cache_by_identity(4000)
def _formula(op: Op) -> str:
    w = op.work
    parts = [("flops", w.flops), ("weights", w.weights), ("reads", w.reads), ("writes", w.writes)]
    parts += [("kv_reads", w.kv_reads), ("kv_writes", w.kv_writes), ("sent", w.sent), ("hops", w.hops)]
    shown = [f"{label} = {text(e)}" for label, e in parts if text(e) != "0"]
    return "; ".join(shown) or "no work"


KINDS: dict[str, Callable[..., Op]] = {}


def operator(*kinds: str) -> Callable[[Callable[..., Op]], Callable[..., Op]]:
    """Register the function of an operator's kind, or kinds: ``@operator("linear")``. A kind has one function."""

    def register(function: Callable[..., Op]) -> Callable[..., Op]:
        for kind in kinds:
            if kind in KINDS:
                raise ValueError(f"operator kind {kind!r} is registered twice")
            KINDS[kind] = function
        return function

    return register


def role_bytes(role: str) -> tuple[Expr, Expr, str]:
    """Bytes per weight, bytes per input element and the peak FLOP/s of a role, as names."""
    return getattr(s, f"{role}_weight_bytes"), getattr(s, f"{role}_input_bytes"), f"{role}_peak_flops"
