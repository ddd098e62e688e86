"""The physical roof of a kernel: the seconds that no device of a kind can beat, for many shapes at once.

Bytes are the least that must pass through memory, each operand once; FLOPs run at the peak of the best format in play;
collectives send the least that each rank must send, in the switch where it can add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..costs.precision import peak_format
from ..specs.catalog import precision
from ..specs.structs import Hardware

ACT = 2.0  # bytes of an activation
Dims = Mapping[str, Any]


class Width(NamedTuple):
    """Bytes an element: of a stored weight, of a product's input, of the cache."""

    weight: float
    input: float
    cache: np.ndarray


class Least(NamedTuple):
    """The least work of a call."""

    flops: Any = 0.0
    moved: Any = 0.0
    sent: Any = 0.0  # over the link, by each rank


def seconds(kind: str, dtype: str, dims: Dims, device: Hardware) -> np.ndarray:
    """``seconds("linear", "bf16", {"m": m, "n": n, "k": k}, catalog.hardware("h200"))``: arrays in, an array out."""
    wanted = precision(dtype)
    runs = peak_format(device, wanted, "bf16")
    native = bool(wanted.compute) and runs == wanted.compute[0]
    caches = np.asarray(dims.get("kv_dtype", ""))
    cache = np.full(caches.shape, wanted.bytes)
    peak = np.full(caches.shape, device.flops[runs])
    for word in np.unique(caches):
        if word:  # a cache in fewer bits may be multiplied in them, too
            cache[caches == word] = precision(str(word)).bytes
            peak[caches == word] = max(
                device.flops[runs], device.flops[peak_format(device, precision(str(word)), "bf16")]
            )
    width = Width(wanted.bytes, min(ACT, wanted.activation_bits / 8) if native else ACT, cache)
    numbers = {key: np.asarray(value, float) for key, value in dims.items() if key not in ("kv_dtype", "library")}
    work = _LEAST[kind](numbers, width)
    found = np.maximum(work.flops / peak, work.moved / device.memory_bandwidth)
    link = device.links.get(device.interconnect)
    return np.asarray(np.maximum(found, work.sent / link.bandwidth) if link else found)


def _linear(d: Dims, w: Width) -> Least:
    moved = d["n"] * d["k"] * w.weight + d["m"] * d["k"] * w.input + d["m"] * d["n"] * ACT
    return Least(2 * d["m"] * d["n"] * d["k"], moved)


def _pairs(new: Any, context: Any, window: Any) -> Any:
    """Keys that ``new`` queries see in all: each one more than the one before, up to the window."""
    before, most = context - new, np.where(window > 0, window, np.inf)
    rising = np.clip(np.minimum(most, context) - before, 0, new)
    flat = np.where(new > rising, np.minimum(most, context) * (new - rising), 0)
    return rising * before + rising * (rising + 1) / 2 + flat


def _prefill(d: Dims, w: Width) -> Least:
    window = d.get("window", np.zeros(()))
    seen = np.where(window > 0, np.minimum(d["context"], d["new"] + window), d["context"])
    moved = d["new"] * d["heads"] * 2 * w.input + seen * d["kv_heads"] * 2 * w.cache
    pairs = _pairs(d["new"], d["context"], window)
    return Least(4 * d["seqs"] * d["heads"] * d["head_dim"] * pairs, d["seqs"] * d["head_dim"] * moved)


def _decode(d: Dims, w: Width) -> Least:
    return _prefill({**d, "new": np.ones(())}, w)


def _mixed(d: Dims, w: Width) -> Least:
    one = np.ones(())
    prompt = _prefill({**d, "seqs": one, "context": d["cached"] + d["new"]}, w)
    rest = _decode(d, w)
    return Least(prompt.flops + rest.flops, prompt.moved + rest.moved)


def _mla_prefill(d: Dims, w: Width) -> Least:
    both = d["qk_dim"] + d["v_dim"]
    moved = d["seqs"] * d["heads"] * both * (d["new"] * ACT + d["context"] * w.cache)
    return Least(2 * d["seqs"] * d["heads"] * both * _pairs(d["new"], d["context"], np.zeros(())), moved)


def _mla_decode(d: Dims, w: Width) -> Least:
    latent, both = d["kv_rank"] + d["rope_dim"], 2 * d["kv_rank"] + d["rope_dim"]
    moved = d["seqs"] * (d["context"] * latent * w.cache + d["heads"] * both * ACT)
    return Least(2 * d["seqs"] * d["heads"] * d["context"] * both, moved)


def _moe(d: Dims, w: Width) -> Least:
    """Evenly routed tokens touch as many experts as they do on average; skewed ones may all choose the same."""
    ep, even = d.get("ep", np.ones(())), d.get("skew", np.zeros(())) == 0
    chosen = np.minimum(d["top_k"] / (d["experts"] * ep), 1)
    touched = np.where(even, d["experts"] * (1 - (1 - chosen) ** d["tokens"]), d["top_k"] / ep)
    each = 3 * d["hidden"] * d["inner"]
    moved = touched * each * w.weight + d["tokens"] / ep * d["hidden"] * (w.input + ACT)
    return Least(2 * d["tokens"] * d["top_k"] / ep * each, moved)


def _passes(*keys: str, each: float) -> Callable[[Dims, Width], Least]:
    """Bytes in proportion to the product of some sizes."""

    def least(d: Dims, w: Width) -> Least:
        return Least(moved=each * np.prod([d[key] for key in keys], axis=0))

    return least


def _rope(d: Dims, w: Width) -> Least:
    return Least(moved=2 * ACT * d["m"] * (d["heads"] + d["kv_heads"]) * d["head_dim"])


def _kv_write(d: Dims, w: Width) -> Least:
    return Least(moved=2 * d["m"] * d["kv_heads"] * d["head_dim"] * (ACT + w.cache))


def _link(share: Callable[[Any], Any]) -> Callable[[Dims, Width], Least]:
    def least(d: Dims, w: Width) -> Least:
        return Least(sent=d["bytes"] * np.where(d["ranks"] > 1, share(d["ranks"]), 0))

    return least


_LEAST: dict[str, Callable[[Dims, Width], Least]] = {
    "linear": _linear,
    "prefill_attention": _prefill,
    "decode_attention": _decode,
    "mixed_attention": _mixed,
    "mla_prefill": _mla_prefill,
    "mla_decode": _mla_decode,
    "moe": _moe,
    "norm": _passes("m", "n", each=2 * ACT),
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
