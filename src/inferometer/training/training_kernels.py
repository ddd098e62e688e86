"""Seconds of training's kernels on GPUs whose generation was seen training: products, casts, attention, passes.

    source = training_source(engine, device, recipe)
    source.answer(op, dims, terms)

A long product is limited by the power of the device as much as by its peak: watts over joules per FLOP are the FLOP/s
that are left. The input of a product in 8 or 4 bits is rounded first, which goes through memory.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base.symbols import Value, ceil_of, maximum_of, minimum_of, where
from ..costs import precision
from ..costs.kernels import Source, Terms, assumed
from ..costs.kernels.source import p_norm
from ..network.operators import Op
from ..specs import catalog
from ..specs.structs import Engine, Hardware
from .passes import Recipe, TrainingKernels, training_constants

TILES = ((128, 256), (256, 128))  # large tiles of 16-bit products on tensor cores; the better one is taken
HALF_ROWS = 2.5e4  # rows of queries over all heads at which flash attention reaches half of its rate


class _Kernels:
    """What a device reaches of its nominal figures in training, and the seconds of each kind of kernel."""

    def __init__(self, engine: Engine, device: Hardware, recipe: Recipe, figures: TrainingKernels) -> None:
        self.engine, self.device, self.figures = engine, device, figures
        self.fused_experts = recipe.use_transformer_engine_op_fuser
        cast = training_constants().casts.get(recipe.precision)
        self.cast_bytes = cast.bytes if cast else 0.0
        self.shares = {role: product_share(device, recipe, figures, role) for role in precision.ROLES}

    def seconds(self, op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        """Of a call: ``answer`` of the source."""
        return _CHOSEN[op.kind](self, op, dims(), terms)

    def _join(self, compute: Value, memory: Value) -> Value:
        return p_norm(compute, memory / self.figures.memory, self.engine.smooth)

    def _cast(self, elements: Value) -> Value:
        return elements * self.cast_bytes / (self.device.memory_bandwidth * self.figures.casts)

    def linear(self, op: Op, d: dict[str, Value], terms: Terms) -> Value:
        """A product in waves of tiles, behind the rounding of its input."""
        waves = wave_occupancy(d["m"], d["n"], d["groups"], self.device.compute_units)
        seconds = self._join(terms.compute / self.shares[op.role] / waves, terms.memory)
        if op.role in precision.QUANTISED and not op.name.endswith("_wgrad"):  # whose copies dgrad's cast has made
            seconds = seconds + self._cast(d["m"] * d["k"] * d["groups"])
        return seconds + self.engine.kernels["linear"].fixed

    def mixture(self, op: Op, d: dict[str, Value], terms: Terms) -> Value:
        """Experts' products; the activation between them and the rounding before them are passes of their own."""
        figures, backward, weights = self.figures, op.name.endswith("grad"), op.name.endswith("_wgrad")
        rows, hidden, inner, wide = d["rows"], d["hidden"], d["inner"], (d["matrices"] - 1) * d["inner"]
        share = self.shares["experts"]
        if weights or (self.fused_experts and "biases" not in d):  # the fuser has no biases times probabilities
            return self._join(terms.compute / share, terms.memory)
        bandwidth = self.device.memory_bandwidth
        apart = rows * 2 * (inner + (2 if backward else 1) * wide) / bandwidth
        cast = self._cast(rows * (hidden + (wide if backward else inner)))
        starts = 2 * d["experts"] * figures.expert_start
        seconds = self._join(terms.compute / share, terms.memory - apart) + apart / figures.memory + cast + starts
        if "biases" not in d:
            return seconds
        added = training_constants().expert_biases  # to the outputs, one expert after the other
        return seconds + rows * hidden * (added.backward if backward else added.forward) / (bandwidth * figures.memory)

    def attention(self, op: Op, d: dict[str, Value], terms: Terms) -> Value:
        """Flash attention: heads of fewer than 128 elements have few FLOPs for each exponential."""
        forward = op.kind == "prefill_attention"
        share = self.figures.attention if forward else self.figures.attention_backward
        rows, narrow = d["tokens"] * d["heads"], minimum_of((d["qk_dim"] + d["v_dim"]) / 256, 1.0) ** 0.5
        return self._join(terms.compute / (share * narrow) * (1 + HALF_ROWS / rows), terms.memory) + 1e-5

    def scan(self, op: Op, d: dict[str, Value], terms: Terms) -> Value:
        """Mamba's scan in Triton."""
        share = self.figures.scan_backward if op.name.endswith("_backward") else self.figures.scan
        return p_norm(terms.compute, terms.memory, self.engine.smooth) / share + 1e-5

    def through_memory(self, op: Op, d: dict[str, Value], terms: Terms) -> Value:
        """Norms and other element-wise passes; the loss reads and writes logits less well."""
        reached = self.figures.loss if op.kind == "loss" else self.figures.memory
        busy = p_norm(terms.compute, terms.memory / reached, self.engine.smooth)
        return busy + self.engine.kernels[op.kind].fixed * op.calls * (busy > 0)


_CHOSEN: dict[str, Callable[[_Kernels, Op, dict[str, Value], Terms], Value]] = {
    "linear": _Kernels.linear,
    "moe": _Kernels.mixture,
    "chunk_scan": _Kernels.scan,
    "prefill_attention": _Kernels.attention,
    "attention_backward": _Kernels.attention,
    **dict.fromkeys(("norm", "elementwise", "loss", "conv1d"), _Kernels.through_memory),
}


def training_kernels(device: Hardware) -> TrainingKernels | None:
    """Figures of a device's generation, if there are any: ``training_kernels(hardware("b200")).most``"""
    return training_constants().kernels.get(device.architecture)


def training_source(engine: Engine, device: Hardware, recipe: Recipe) -> Source:
    """The kernels of training on a device; where its generation was not seen, the engine's own, in waves of tiles."""
    figures = training_kernels(device)
    if figures is None:
        return wave_quantization(engine, device)

    def note(op: Op) -> str:
        return f"{device.architecture} in training: {figures.source}"

    return Source("fitted", _Kernels(engine, device, recipe, figures).seconds, note, frozenset(_CHOSEN))


def product_share(device: Hardware, recipe: Recipe, figures: TrainingKernels, role: str) -> float:
    """Share of its peak that a long product of a role reaches: as much as the power limit leaves."""
    dtype = recipe.precision if recipe.precision in ("bf16", "fp16", "fp32") else "bf16"
    wanted = catalog.precision(recipe.precision if role in precision.QUANTISED else dtype)
    used = precision.peak_format(device, wanted, dtype)
    joules = figures.joules_per_flop.get("bf16" if used == "fp16" else used, 0.0)
    allowed = device.power / (joules * device.flops[used]) if joules and device.power else figures.most
    return min(figures.most, allowed)


# ------------------------------------------------------------------ wave quantization


def wave_occupancy(m: Value, n: Value, groups: Value, units: int) -> Value:
    """Mean share of the compute units that work while a product's output tiles run over them in waves.

    A product of 2,048 × 6,144 outputs is 384 tiles of 128 × 256, which 108 units compute in 4 waves of which the last
    is half empty: ``wave_occupancy(2048, 6144, 1, 108)  # 0.89``. One with fewer tiles than units is split along k.
    """
    best: Value = 0.0
    for height, width in TILES:
        tiles = ceil_of(m / height) * ceil_of(n / width) * groups
        best = maximum_of(best, tiles / (maximum_of(ceil_of(tiles / units), 1) * units))
    return where(tiles >= units, best, 1.0)


def wave_quantization(engine: Engine, device: Hardware) -> Source:
    """The engine's efficiency of products, at the mean occupancy of the device: one curve for all sizes."""
    base = assumed(engine)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        d = dims()
        occupancy = wave_occupancy(d["m"], d["n"], d["groups"], device.compute_units)
        return base.answer(op, dims, terms._replace(compute=terms.compute / occupancy))

    def note(op: Op) -> str:
        return f"{base.note(op)}, in waves of tiles over {device.compute_units} units"

    return Source("assumed", answer, note, frozenset({"linear"}))
