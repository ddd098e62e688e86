"""A network as data: blocks of operators, and what it remembers of the past.

Layers that are alike are one `Block` with the list of their positions, so a graph of 61 layers is three or four blocks.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .operators import Op

RECURRENT = frozenset({"scan", "chunk_scan", "state_update"})  # kinds of operators that keep a state


class Part(msgspec.Struct, frozen=True):
    """Operators that belong together (an attention, an MLP) and the sizes their formulas name."""

    ops: tuple[Op, ...]
    dims: dict[str, float]

    def __add__(self, other: Part) -> Part:
        clash = {k for k in self.dims.keys() & other.dims.keys() if self.dims[k] != other.dims[k]}
        if clash:
            raise ValueError(f"two parts of a block disagree about {sorted(clash)}")
        return Part(self.ops + other.ops, {**self.dims, **other.dims})


class Block(msgspec.Struct, frozen=True):
    """A run of operators that is executed once per entry of ``layers`` (or once, if that is empty)."""

    name: str
    ops: tuple[Op, ...]
    dims: dict[str, float]
    layers: tuple[int, ...] = ()
    stage: Literal["embed", "layer", "head", "vision", "mtp"] = "layer"
    residual: bool = True  # a residual stream of tokens × hidden_size stays alive through the block

    @property
    def count(self) -> int:
        """How often the block is executed in a step."""
        return len(self.layers) or 1


class Span(msgspec.Struct, frozen=True):
    """Which past positions a query sees. With ``ratio`` r, r neighbouring positions are cached as one entry.

    full: all · window: the last ``size`` · top_k: ``size`` chosen ones · chunk: those of its own chunk of ``size``
    """

    kind: Literal["full", "window", "top_k", "chunk"] = "full"
    size: float = float("inf")
    ratio: float = 1.0


class Vision(msgspec.Struct, frozen=True):
    """How an image becomes tokens: patches of ``patch`` pixels, ``merge`` × ``merge`` of them to a token.

    round, pad: its own size in whole tokens, nearest or upwards · resize: always ``side`` × ``side`` pixels · anyres,
    tiles, aspect: crops of that size, as the best of ``grids`` (rows × columns) asks, and the whole · budget: whole
    tokens, at most ``tokens`` of them
    """

    patch: int
    merge: int = 1
    mode: Literal["round", "pad", "resize", "anyres", "tiles", "aspect", "budget"] = "round"
    side: int = 0
    grids: tuple[tuple[int, int], ...] = ()
    tokens: int = 0
    min_pixels: int = 0
    max_pixels: int = 0  # 0 = no limit


class Model(msgspec.Struct, frozen=True):
    """A network, ready to be estimated."""

    name: str
    family: str
    blocks: tuple[Block, ...]
    kind: Literal["decoder", "diffusion"] = "decoder"
    spans: dict[str, Span] = msgspec.field(default_factory=lambda: {"": Span()})
    max_position: int = 0  # 0 = no limit known
    dtype: str = "bf16"
    quantization: dict[str, str] = {}  # role -> precision, as the config declares it
    kv_cache_dtype: str = ""
    state_bits: float = 32.0
    extras: tuple[Block, ...] = ()  # multi-token-prediction modules: stored apart, run only to speculate
    vision: Vision | None = None
    num_layers: int = 0
    sizes: dict[str, float] = {}
    warnings: tuple[str, ...] = ()
    source: str = ""


def group_layers(parts: list[tuple[str, Part]]) -> tuple[Block, ...]:
    """Group equal layers: ``group_layers([("layers", part0), ("layers", part1), …])``, in order of first appearance."""
    groups: dict[Any, tuple[str, Part, list[int]]] = {}
    for index, (label, part) in enumerate(parts):
        key = (label, tuple((o.name, o.work, o.cache) for o in part.ops), tuple(part.dims.items()))
        groups.setdefault(key, (label, part, []))[2].append(index)
    return tuple(
        Block(f"{label}.{layer_range(layers)}", part.ops, part.dims, tuple(layers))
        for label, part, layers in groups.values()
    )


def layer_range(where: list[int]) -> str:
    """Positions in short: ``0-31``, every fourth as ``3-47:4``, anything else as ``0,1,5…(18)``."""
    first, last, step = where[0], where[-1], where[1] - where[0] if len(where) > 1 else 1
    if where == list(range(first, last + 1, step)):
        return f"{first}-{last}" + (f":{step}" if step > 1 else "") if len(where) > 1 else str(first)
    return ",".join(map(str, where[:3])) + f"…({len(where)})"
