"""What a device cannot do: seconds that no call of a kernel can beat, and rows that are refused because they do.

Bytes are the least that must pass through memory, each operand once; FLOPs run at the peak of the best format in play;
collectives send the least that each rank must send, in the switch where it can add up. The peaks of the machine at hand
are the catalogue's where it has the device by the name that its driver gives; of another the bandwidth is measured by
copying. A CPU has no limits here: its caches hold more than rotates, and its clock is not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..costs.precision import peak_format
from ..specs import catalog
from ..specs.catalog import precision
from ..specs.structs import Hardware
from .machine import recognise
from .microbenchmarks import KernelBench
from .timer import median_seconds

ACT = 2.0  # bytes of an activation
GRACE = 0.98  # of the roofline: clocks and data sheets are not exact
INFINITE_PEAK = 1e30  # of a resource that takes no time
COPY = 1 << 28  # bytes of the copy that finds a bandwidth: read and written
REACH = 0.8  # share of its bandwidth that a copy reaches at least
SIMILAR = 0.12  # how far a device's memory may be from the catalogue's for the name to mean it
NAMES = ("kv_dtype", "library", "method")  # of a shape, where the others are sizes
SizeArrays = Mapping[str, Any]


class Width(NamedTuple):
    """Bytes an element: of a stored weight or state, of a product's input, of the cache."""

    weight: float
    input: float
    cache: np.ndarray


class Least(NamedTuple):
    """The least work of a call."""

    flops: Any = 0.0
    moved: Any = 0.0
    sent: Any = 0.0  # over the link, by each rank


def least_seconds(kind: str, dtype: str, dims: SizeArrays, device: Hardware) -> np.ndarray:
    """``seconds("linear", "bf16", {"m": m, "n": n, "k": k}, catalog.hardware("h200"))``: arrays in, an array out."""
    number = precision(dtype)
    runs = peak_format(device, number, "bf16")
    native = bool(number.compute) and runs == number.compute[0]
    caches = np.asarray(dims.get("kv_dtype", ""))
    cache = np.full(caches.shape, number.bytes)
    peak = np.full(caches.shape, device.flops[runs])
    for word in np.unique(caches):
        if word:  # a cache in fewer bits may be multiplied in them, too
            cache[caches == word] = precision(str(word)).bytes
            peak[caches == word] = max(
                device.flops[runs], device.flops[peak_format(device, precision(str(word)), "bf16")]
            )
    width = Width(number.bytes, min(ACT, number.activation_bits / 8) if native else ACT, cache)
    numbers = {key: np.asarray(value, float) for key, value in dims.items() if key not in NAMES}
    work = _LEAST[kind](numbers, width)
    least = np.maximum(work.flops / peak, work.moved / device.memory_bandwidth)
    link = device.links.get(device.interconnect)
    return np.asarray(np.maximum(least, work.sent / link.bandwidth) if link else least)


def _linear(d: SizeArrays, w: Width) -> Least:
    moved = d["n"] * d["k"] * w.weight + d["m"] * d["k"] * w.input + d["m"] * d["n"] * ACT
    return Least(2 * d["m"] * d["n"] * d["k"], moved)


def _pairs(new: Any, context: Any, window: Any) -> Any:
    """Keys that ``new`` queries see in all: each one more than the one before, up to the window."""
    before, most = context - new, np.where(window > 0, window, np.inf)
    rising = np.clip(np.minimum(most, context) - before, 0, new)
    flat = np.where(new > rising, np.minimum(most, context) * (new - rising), 0)
    return rising * before + rising * (rising + 1) / 2 + flat


def _prefill(d: SizeArrays, w: Width) -> Least:
    window = d.get("window", np.zeros(()))
    seen = np.where(window > 0, np.minimum(d["context"], d["new"] + window), d["context"])
    moved = d["new"] * d["heads"] * 2 * w.input + seen * d["kv_heads"] * 2 * w.cache
    pairs = _pairs(d["new"], d["context"], window)
    return Least(4 * d["seqs"] * d["heads"] * d["head_dim"] * pairs, d["seqs"] * d["head_dim"] * moved)


def _decode(d: SizeArrays, w: Width) -> Least:
    return _prefill({**d, "new": np.ones(())}, w)


def _mixed(d: SizeArrays, w: Width) -> Least:
    one = np.ones(())
    prompt = _prefill({**d, "seqs": one, "context": d["cached"] + d["new"]}, w)
    rest = _decode(d, w)
    return Least(prompt.flops + rest.flops, prompt.moved + rest.moved)


def _mla_prefill(d: SizeArrays, w: Width) -> Least:
    both = d["qk_dim"] + d["v_dim"]
    moved = d["seqs"] * d["heads"] * both * (d["new"] * ACT + d["context"] * w.cache)
    return Least(2 * d["seqs"] * d["heads"] * both * _pairs(d["new"], d["context"], np.zeros(())), moved)


def _mla_decode(d: SizeArrays, w: Width) -> Least:
    latent, both = d["kv_rank"] + d["rope_dim"], 2 * d["kv_rank"] + d["rope_dim"]
    moved = d["seqs"] * (d["context"] * latent * w.cache + d["heads"] * both * ACT)
    return Least(2 * d["seqs"] * d["heads"] * d["context"] * both, moved)


def _moe(d: SizeArrays, w: Width) -> Least:
    """Evenly routed tokens touch as many experts as they do on average; skewed ones may all choose the same."""
    ep, even = d.get("ep", np.ones(())), d.get("skew", np.zeros(())) == 0
    chosen = np.minimum(d["top_k"] / (d["experts"] * ep), 1)
    touched = np.where(even, d["experts"] * (1 - (1 - chosen) ** d["tokens"]), d["top_k"] / ep)
    each = 3 * d["hidden"] * d["inner"]
    moved = touched * each * w.weight + d["tokens"] / ep * d["hidden"] * (w.input + ACT)
    return Least(2 * d["tokens"] * d["top_k"] / ep * each, moved)


def _state_update(d: SizeArrays, w: Width) -> Least:
    """Each state read and written once."""
    heads = d["heads"] if "heads" in d else d["value_heads"]
    return Least(moved=2 * d["seqs"] * heads * d["value_dim"] * d["key_dim"] * w.weight)


def _chunk_scan(d: SizeArrays, w: Width) -> Least:
    """Values in and out, keys and queries in; its products run in other formats than that of the state."""
    heads, groups = (d["heads"], d["groups"]) if "heads" in d else (d["value_heads"], d["key_heads"])
    return Least(moved=2 * ACT * d["m"] * (heads * d["value_dim"] + groups * d["key_dim"]))


def _passes(*keys: str, each: float) -> Callable[[SizeArrays, Width], Least]:
    """Bytes in proportion to the product of some sizes."""

    def least(d: SizeArrays, w: Width) -> Least:
        return Least(moved=each * np.prod([d[key] for key in keys], axis=0))

    return least


def _rope(d: SizeArrays, w: Width) -> Least:
    return Least(moved=2 * ACT * d["m"] * (d["heads"] + d["kv_heads"]) * d["head_dim"])


def _kv_write(d: SizeArrays, w: Width) -> Least:
    return Least(moved=2 * d["m"] * d["kv_heads"] * d["head_dim"] * (ACT + w.cache))


def _link(share: Callable[[Any], Any]) -> Callable[[SizeArrays, Width], Least]:
    def least(d: SizeArrays, w: Width) -> Least:
        return Least(sent=d["bytes"] * np.where(d["ranks"] > 1, share(d["ranks"]), 0))

    return least


_LEAST: dict[str, Callable[[SizeArrays, Width], Least]] = {
    "linear": _linear,
    "prefill_attention": _prefill,
    "decode_attention": _decode,
    "mixed_attention": _mixed,
    "mla_prefill": _mla_prefill,
    "mla_decode": _mla_decode,
    "moe": _moe,
    "moe_routing": _passes("tokens", "experts", each=ACT),
    "chunk_scan": _chunk_scan,
    "state_update": _state_update,
    "conv1d": _passes("m", "n", each=2 * ACT),
    "gdn_prefill": _chunk_scan,
    "gdn_decode": _state_update,
    "norm": _passes("m", "n", each=2 * ACT),
    "gated_norm": _passes("m", "n", each=3 * ACT),
    "activation": _passes("m", "n", each=1.5 * ACT),
    "rope": _rope,
    "kv_write": _kv_write,
    "embedding": _passes("m", "n", each=2 * ACT),
    "sampler": _passes("m", "n", each=ACT),
    "quantize": _passes("m", "n", each=ACT + 1),
    "copy": _passes("bytes", each=1.0),
    "all_reduce": _link(lambda ranks: 1.0),
    "all_gather": _link(lambda ranks: (ranks - 1) / ranks),
    "reduce_scatter": _link(lambda ranks: (ranks - 1) / ranks),
    "all_to_all": _link(lambda ranks: (ranks - 1) / ranks),
    "send": _link(lambda ranks: 1.0),
}


# ------------------------------------------------------------------ the machine at hand


class DeviceLimits(NamedTuple):
    """The peaks of a device: ``limits.least(row, cold=1e6)`` are the seconds that no call of a row can beat."""

    bandwidth: float = float("inf")  # bytes/s
    device: Hardware | None = None  # for its FLOP/s and its links

    def least(self, row: Mapping[str, Any], cold: float = 0.0) -> float:
        """Seconds that a row needs at least; ``cold`` bytes of it must come from memory, since they rotate."""
        seconds = cold / self.bandwidth
        if self.device is not None:
            seconds = max(
                seconds, roofline_seconds(row, msgspec.structs.replace(self.device, memory_bandwidth=INFINITE_PEAK))
            )
        return seconds

    def refuses(self, row: Mapping[str, Any], seconds: float, cold: float = 0.0) -> bool:
        """Whether a figure is beyond the roof."""
        return seconds < GRACE * self.least(row, cold)

    def as_record(self) -> dict[str, Any]:
        """For the record."""
        if self.bandwidth == float("inf"):
            return {"roof": None}
        return {"roof": {"bandwidth": self.bandwidth, "peaks": self.device.name if self.device else "measured copy"}}


def roofline_seconds(row: Mapping[str, Any], device: Hardware) -> float:
    """The roofline seconds of a row on a device, 0 for a kind that has none."""
    dims = {key: value for key, value in row.items() if key not in ("kind", "dtype")}
    try:
        return float(least_seconds(row["kind"], row["dtype"], dims, device).max())
    except KeyError:  # launches are no work
        return 0.0


def device_limits(bench: KernelBench, machine: Mapping[str, Any]) -> DeviceLimits:
    """The limits of the machine at hand."""
    if not bench.gpu:
        return DeviceLimits()
    device = catalogue_device(str(machine["device"]), float(machine["memory"]))
    if device is not None:
        return DeviceLimits(device.memory_bandwidth, device)
    return DeviceLimits(copy_bandwidth(bench) / REACH)


def catalogue_device(driver_name: str, memory: float) -> Hardware | None:
    """The catalogue's device of a driver's name: ``known("NVIDIA H100 80GB HBM3", 85e9).name  # 'h100-sxm'``

    A device with another memory (a slice of a GPU, a variant) has peaks of its own, and is not it.
    """
    name = recognise(driver_name)
    device = catalog.hardware(name) if name else None
    return device if device is not None and abs(device.memory / memory - 1) < SIMILAR else None


def copy_bandwidth(bench: KernelBench) -> float:
    """Bytes/s of a large copy inside the device, those read and those written."""
    rows = [(bench.random(COPY // 4), bench.random(COPY // 4)) for _ in range(2)]
    calls = [partial(target.copy_, source) for source, target in rows]
    return COPY / median_seconds(bench.torch, calls, bench.device)
