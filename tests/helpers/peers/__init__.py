"""Reference cases of the tools that users come from, and what checking them needs.

The cases are inputs and outputs of those tools, run unmodified, in our own words and units: benchmarks/data/peers. Its
cases.json names each tool, its commit and its licence.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inferometer.inference.analyze import analyze
from inferometer.inference.report import OpRow, Phase, Report
from inferometer.specs.catalog import precision

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "benchmarks" / "data" / "peers"
FIGURES = ("flops", "load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache", "seconds")


class Operator(NamedTuple):
    """What a tool says of an operator of one layer, in FLOPs, bytes and seconds."""

    name: str
    bound: str  # "memory" or "compute"
    flops: float
    load_weight: float
    load_act: float
    store_act: float
    load_kv_cache: float
    store_kv_cache: float
    seconds: float


class Case(NamedTuple):
    """A case of a tool: inputs in our names, and what it computes. Its GPU is given in bytes, bytes/s and FLOP/s."""

    id: str
    variant: str
    name: str  # of the model
    model: dict[str, Any]
    plan: dict[str, Any]
    device: dict[str, float]
    figures: dict[str, float]
    operators: dict[str, list[Operator]]  # by phase


def table(name: str) -> list[dict[str, str]]:
    """The rows of a file: ``table("genz_collectives")[0]["ranks"]``"""
    with (DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def figures(tool: str) -> dict[str, dict[str, float]]:
    """What a tool computes of whole cases: ``figures("genz")["c00"]["tpot_seconds"]``"""
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for row in table("figures"):
        if row["tool"] == tool:
            values[row["case"]][row["figure"]] = float(row["value"])
    return values


@functools.cache
def cases(tool: str) -> list[Case]:
    """The cases of a tool."""
    content = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
    operators: dict[str, dict[str, list[Operator]]] = defaultdict(lambda: defaultdict(list))
    for row in table("operators"):
        if row["tool"] == tool:
            values = (float(row[name] or 0) for name in Operator._fields[2:])
            operators[row["case"]][row["phase"]].append(Operator(row["operator"], row["bound"], *values))
    return [
        Case(
            one["id"],
            one.get("variant", ""),
            one["model"],
            content["models"][one["model"]],
            one["plan"],
            one["device"],
            figures(tool)[one["id"]],
            dict(operators[one["id"]]),
        )
        for one in content["cases"][tool]
    ]


def case(tool: str, name: str) -> Case:
    """The case of this name: ``case("llm_viewer", "lv028")``"""
    return next(c for c in cases(tool) if c.id == name)


class Line(NamedTuple):
    """One quantity, theirs and ours. ``why`` names the peer's own doing that was put in to get theirs from ours."""

    case: str
    what: str
    theirs: float
    ours: float
    why: str = ""

    @property
    def off(self) -> float:
        """Relative deviation."""
        return abs(self.theirs - self.ours) / max(abs(self.theirs), abs(self.ours), 1e-300)


class Ledger:
    """Collects quantities, so that one run shows everything that disagrees."""

    def __init__(self, tool: str) -> None:
        self.tool, self.lines = tool, list[Line]()
        self.case = ""

    def same(self, what: str, theirs: float, ours: float) -> None:
        """Both tools must say the same."""
        self.lines.append(Line(self.case, what, float(theirs), float(ours)))

    def explained(self, what: str, theirs: float, ours: float, why: str) -> None:
        """Ours, with the peer's own doing put in, must be theirs."""
        self.lines.append(Line(self.case, what, float(theirs), float(ours), why))

    def wrong(self, tolerance: float = 1e-9) -> list[str]:
        """The quantities that disagree, as sentences."""
        return [
            f"{x.case}: {x.what}: theirs {x.theirs!r}, ours {x.ours!r} {x.why}" for x in self.lines if x.off > tolerance
        ]

    @property
    def worst(self) -> float:
        """The largest relative deviation."""
        return max(x.off for x in self.lines)

    def summary(self) -> str:
        """``59 cases: 1,234 quantities the same, 567 explained``, as the docs say it."""
        equal = sum(not x.why for x in self.lines)
        names = len({x.case for x in self.lines})
        return f"{names} cases: {equal:,} quantities the same, {len(self.lines) - equal:,} explained"


# ------------------------------------------------------------------ our side


_scratch = tempfile.TemporaryDirectory(prefix="peers-")  # gone when the tests are


def _folder() -> Path:
    return Path(_scratch.name)


def config_file(config: Mapping[str, Any]) -> str:
    """The path of a config.json with this content."""
    text = json.dumps(config, sort_keys=True)
    place = _folder() / hashlib.sha1(text.encode()).hexdigest()[:12]
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(text, encoding="utf-8")
    return str(place)


def network_file(
    *,
    hidden: int,
    vocab: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    inner: int,
    gated: bool,
    tied: bool = False,
    experts: int = 0,
    top_k: int = 0,
) -> str:
    """The path of a network's TOML description: for sizes that no config.json has (an MLP without a gate …)."""
    attention = {"block": "gqa", "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    feed: dict[str, Any] = {"block": "mlp", "intermediate_size": inner, "gated": gated}
    if experts:
        feed = {
            "block": "moe",
            "moe_intermediate_size": inner,
            "gated": gated,
            "num_experts": experts,
            "num_experts_per_tok": top_k,
        }
    rows = ", ".join("{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in b.items()) + " }" for b in (attention, feed))
    text = (
        f"hidden_size = {hidden}\nvocab_size = {vocab}\ntie_word_embeddings = {json.dumps(tied)}\n"
        f"[[layers]]\nrepeat = {layers}\nblocks = [{rows}]\n"
    )
    place = _folder() / f"{hashlib.sha1(text.encode()).hexdigest()[:12]}.toml"
    place.write_text(text, encoding="utf-8")
    return str(place)


def gpu(base: str, **figures: float) -> str:
    """A device with the peer's figures: ``gpu("h200", memory_bandwidth=4e12, flops_bf16=1e15)``"""
    pieces = [f"{key.replace('__', '.')}={value!r}" for key, value in figures.items()]
    return f"{base}:{','.join(pieces)}"


_REPORTS: dict[str, Report] = {}


def run(model: str, device: str, **kwargs: Any) -> Report:
    """Our analysis at the speed of light, made once: the differences are of cases that are checked, too."""
    key = repr((model, device, sorted(kwargs.items())))
    if key not in _REPORTS:
        _REPORTS[key] = analyze(model, gpu=device, engine="roofline", **kwargs)
    return _REPORTS[key]


def rows(phase: Phase, *names: str) -> list[OpRow]:
    """The operators of these names in the layers and the head (not in a vision tower)."""
    return [op for op in phase.ops if op.name in names and not op.block.startswith("vision")]


def total(phase: Phase, *names: str) -> dict[str, float]:
    """The figures of these operators, summed over all layers."""
    return {f: sum(getattr(op, f) for op in rows(phase, *names)) for f in FIGURES}


def elements(ops: Iterable[OpRow], kind: str = "fp16") -> float:
    """Weight elements that matrix products read, from the bytes of a precision; a bias is not one."""
    number = 0.0
    for op in ops:
        k, n = op.shape["weight"]
        weights = k * n * op.count * precision(kind).bytes
        bias = (
            2 * n * op.count if op.load_weight > weights * (1 + 1e-12) else 0.0
        )  # in 16 bits whatever the weights are
        number += (op.load_weight - bias) / precision(kind).bytes
    return number


QKV, OUT, UP, DOWN = ("qkv_proj",), ("o_proj",), ("gate_up_proj", "fc1"), ("down_proj", "fc2")
