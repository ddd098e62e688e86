"""AIConfigurator's tables, Parquet or CSV: one file an operation, times in ms unless the column says µs.

What is not obvious: ``step`` is the cached part, so a context is isl + step; ``message_size`` counts elements;
``inter_size`` and ``num_experts`` are the whole model's; ``num_heads`` is one rank's; a power law of the routing is
recorded as the skew that it names. Latent attention was timed at DeepSeek-V3's sizes, which the tables do not repeat.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.symbols import evaluate
from ...inference.weights import ALONE
from ...network import families
from ...specs import catalog
from . import ImportedTable, RawTable, RowBatch, needs, row_batch, texts

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "fp8_static": "fp8",
    "fp8_ootb": "fp8",
    "fp8_block": "fp8-block",
    "int8": "int8",
    "sq": "int8",
    "int8_wo": "w8a16",
    "int4_wo": "w4a16",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a16_mxfp4 marlin": "mxfp4-marlin",  # our word for rows of that kernel
    "w4a8_mxfp4_mxfp8": "mxfp4-mxfp8",
}
NO_KIND = {
    "mla_context_module": "a whole attention module in one time",
    "mla_generation_module": "a whole attention module in one time",
    "mla_gen_pre": "a product per head is not a known kind of kernel",
    "mla_gen_post": "a product per head is not a known kind of kernel",
    "compute_scale": "the difference of two timings",
}
FAR = "ranks on several nodes, which a shape cannot express"
PER_NODE = 8  # devices that DeepEP's tests run on in a node


class OperationRows(NamedTuple):
    """The rows of one operation in a table, and what measured them."""

    sheet: RawTable
    at: np.ndarray
    maker: str  # "vllm", "trtllm", "nccl" …
    version: str
    skipped: Counter[str]

    def whole(self, column: str) -> np.ndarray:
        """A column of whole numbers."""
        needs(self.sheet, [column], "a table of this operation")
        return np.asarray(self.sheet.numbers(column, whole=True)[self.at])

    def seconds(self, *columns: str, unit: float = 1e-6) -> np.ndarray:
        """The sum of some columns of times."""
        needs(self.sheet, columns, "a table of this operation")
        return np.asarray(np.sum([self.sheet.numbers(name)[self.at] for name in columns], axis=0) * unit)

    def texts(self, column: str, default: str = "") -> list[str]:
        """A column as text; ``default`` where the table has none."""
        if column not in self.sheet.columns:
            return [default] * len(self.at)
        return texts(self.sheet, column, self.at)

    def sources(self, more: str = "") -> list[str]:
        """Whose kernel each row is: ``aiconfigurator vllm 0.24.0 vllm_flash_attn_fa3``."""
        start = " ".join(filter(None, ("aiconfigurator", self.maker, self.version)))
        return [" ".join(filter(None, (start, word, more))) for word in self.texts("kernel_source")]

    def rows(
        self,
        kind: str,
        dtypes: list[str],
        dims: dict[str, Any],
        seconds: np.ndarray,
        sources: list[str],
        drop: dict[str, np.ndarray] | None = None,
    ) -> RowBatch:
        """Rows of a kind; those in a number format that has no name here are left out."""
        unknown = sorted(set(dtypes) - set(DTYPES))
        no_name = {f"number format {word!r}": np.array([d == word for d in dtypes]) for word in unknown}
        named = [DTYPES.get(word, word) for word in dtypes]
        return row_batch(kind, named, dims, seconds, sources, self.skipped, {**no_name, **(drop or {})})


def claims(columns: frozenset[str]) -> bool:
    """Whether a table names operations and kernels."""
    return {"op_name", "kernel_source"} <= columns


def read(sheet: RawTable) -> ImportedTable:
    """Every row with an operation that is a kind of kernel."""
    said = _said(sheet)
    skipped: Counter[str] = Counter()
    operations = np.array(texts(sheet, "op_name"))
    batches: list[RowBatch] = []
    library = "nccl" if "nccl_dtype" in sheet.columns else said.get("framework", "").lower()
    for word in np.unique(operations).tolist():
        at = np.flatnonzero(operations == word)
        if word in _KINDS:
            batches += _KINDS[word](OperationRows(sheet, at, library, said.get("version", ""), skipped))
        else:
            skipped[NO_KIND.get(word, f"operation {word!r} is not a known kind of kernel")] += len(at)
    label = f"aiconfigurator {' '.join(np.unique(operations).tolist())}"
    versions = {library: said["version"]} if library and "version" in said else {}
    return ImportedTable(label, said.get("device", ""), batches, +skipped, versions)


def _said(sheet: RawTable) -> dict[str, str]:
    """Device, framework and version: from columns, a manifest.json beside, or the names that the tables go by."""
    facts: dict[str, str] = {}
    for key in ("device", "framework", "version"):
        if sheet.columns.get(key):
            facts[key] = Counter(texts(sheet, key)).most_common(1)[0][0]
    if "device" not in facts:
        facts |= _manifest(sheet.path)
    pieces = sheet.path.stem.split("__")  # h200_sxm__vllm_0.24.0__gemm_perf
    parts = pieces if len(pieces) == 3 else sheet.path.absolute().parts[-4:-1]  # h200_sxm/vllm/0.24.0/gemm_perf.txt
    if len(parts) == 3 and "version" not in facts:
        library = re.match(r"([a-z]+)_(\d.*)", parts[1]) if len(pieces) == 3 else None
        framework, version = library.groups() if library else (parts[1], parts[2])
        if catalog.registered_name("hardware", parts[0]) and version[:1].isdigit():
            facts = {"device": parts[0], "framework": framework, "version": version} | facts
    return facts


def _manifest(path: Path) -> dict[str, str]:
    try:
        entries = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))
        constants = next(entry for entry in entries if entry["file"] == path.name)["constants"]
        return {key: str(constants[key]) for key in ("device", "framework", "version") if constants.get(key)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return {}  # there is none, or it is about something else


# ------------------------------------------------------------------ operations


def _gemm(r: OperationRows) -> list[RowBatch]:
    dims = {key: r.whole(key) for key in "mnk"}
    return [r.rows("linear", r.texts("gemm_dtype"), dims, r.seconds("latency", unit=1e-3), r.sources())]


def _attention(r: OperationRows) -> list[RowBatch]:
    """Prompts, and tokens that follow them one by one."""
    new = r.whole("isl")
    dims = {
        "seqs": r.whole("batch_size"),
        "heads": r.whole("num_heads"),
        "kv_heads": r.whole("num_key_value_heads"),
        "head_dim": r.whole("head_dim"),
        "context": new + r.whole("step"),
        "kv_dtype": _cache(r, "attn_dtype"),
        "window": r.whole("window_size") if "window_size" in r.sheet.columns else 0,
    }
    kind = "decode_attention" if r.texts("op_name")[0].startswith("generation") else "prefill_attention"
    beams = r.whole("beam_width") if "beam_width" in r.sheet.columns else np.ones(len(new))
    drop = {"several beams": beams > 1, "several new tokens per sequence": (new > 1) & (kind == "decode_attention")}
    dtypes = r.texts("attn_dtype")
    return [r.rows(kind, dtypes, dims | {"new": new}, r.seconds("latency", unit=1e-3), r.sources(), drop)]


def _latent(r: OperationRows) -> list[RowBatch]:
    """Attention over latents, absorbed while decoding."""
    new = r.whole("isl")
    config = catalog.model("deepseek-v3").config
    rope, value, rank = (config[key] for key in ("qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    dims = {
        "seqs": r.whole("batch_size"),
        "heads": r.whole("num_heads"),
        "context": new + r.whole("step"),
        "kv_dtype": _cache(r, "mla_dtype"),
    }
    if r.texts("op_name")[0] == "mla_context":
        kind, more = "mla_prefill", {"new": new, "qk_dim": config["qk_nope_head_dim"] + rope, "v_dim": value}
    else:
        kind, more = "mla_decode", {"kv_rank": rank, "rope_dim": rope}
    return [r.rows(kind, r.texts("mla_dtype"), dims | more, r.seconds("latency", unit=1e-3), r.sources())]


def _cache(r: OperationRows, dtype: str) -> list[str]:
    """The cache's number format where it is not that of the rest."""
    own = [DTYPES.get(word, word) for word in r.texts(dtype)]
    return [
        "" if DTYPES.get(kv, kv) == plain else DTYPES.get(kv, kv)
        for kv, plain in zip(r.texts("kv_cache_dtype"), own, strict=True)
    ]


def _moe(r: OperationRows) -> list[RowBatch]:
    hidden, inner, experts = r.whole("hidden_size"), r.whole("inter_size"), r.whole("num_experts")
    sliced, spread = r.whole("moe_tp_size"), r.whole("moe_ep_size")
    dims = {
        "tokens": r.whole("num_tokens"),
        "hidden": hidden,
        "inner": inner // np.maximum(sliced, 1),
        "experts": -(-experts // np.maximum(spread, 1)),  # of the fullest rank
        "top_k": r.whole("topk"),
        "ep": spread,
    }
    kernels = r.texts("kernel_source")
    marlin = ["w4a16_mxfp4" if "marlin" in kernel else "" for kernel in kernels]
    dtypes = [f"{word} marlin" if word == own else word for word, own in zip(r.texts("moe_dtype"), marlin, strict=True)]
    sizes = zip(hidden.tolist(), inner.tolist(), experts.tolist(), strict=True)
    single = [size in _ungated() or "nongated" in kernel for size, kernel in zip(sizes, kernels, strict=True)]
    skews = [_skew(word) for word in r.texts("distribution", "balanced")]
    drop = {
        "experts without a gate, which a shape cannot express": np.array(single),
        "a routing that is neither even nor a power law": np.array([s is None for s in skews]),
    }
    eight = ["w4a8" if word.startswith("w4a8") else "" for word in dtypes]  # not to be taken for the same in 16 bit
    sources = [f"{source} {word}".strip() for source, word in zip(r.sources(), eight, strict=True)]
    return [
        r.rows(
            "moe", dtypes, dims | {"skew": [s or 0.0 for s in skews]}, r.seconds("latency", unit=1e-3), sources, drop
        )
    ]


def _skew(distribution: str) -> float | None:
    """``_skew("power_law_1.2")  # 1.2``"""
    if distribution in ("balanced", "uniform"):
        return 0.0
    match = re.fullmatch(r"power_law_(\d+(?:\.\d+)?)", distribution)
    return float(match[1]) if match else None


@functools.cache
def _ungated() -> frozenset[tuple[int, int, int]]:
    """(hidden, inner, experts) of the catalogue's models with experts of two products, not three."""
    shapes = set()
    for name in catalog.names("models"):
        entry = catalog.catalog_entry(name)
        for block in families.build(entry.config).blocks if entry else ():
            for op in block.ops:
                if op.kind == "moe" and evaluate(op.dims["matrices"], block.dims) == 2:
                    env = {**ALONE, **block.dims}
                    shapes.add(
                        tuple(round(float(evaluate(op.dims[key], env))) for key in ("hidden", "inner", "experts"))
                    )
    return frozenset(shapes)  # type: ignore[arg-type]


def _quantize(r: OperationRows) -> list[RowBatch]:
    dims = {"m": r.whole("m"), "n": r.whole("k")}
    return [r.rows("quantize", r.texts("quant_dtype"), dims, r.seconds("latency", unit=1e-3), r.sources())]


def _collective(kind: str) -> Callable[[OperationRows], list[RowBatch]]:
    def rows(r: OperationRows) -> list[RowBatch]:
        nccl = "nccl_dtype" in r.sheet.columns
        dtypes = r.texts("nccl_dtype" if nccl else "allreduce_dtype")
        each = np.array([catalog.precision(DTYPES[word]).bytes if word in DTYPES else 0 for word in dtypes])
        dims = {
            "bytes": np.rint(r.whole("message_size") * each).astype(int),
            "ranks": r.whole("num_gpus"),
            "library": "" if nccl else r.maker,
        }
        return [r.rows(kind, dtypes, dims, r.seconds("latency", unit=1e-3), r.sources())]

    return rows


def _sent(r: OperationRows, tokens: str, choices: str, ranks: np.ndarray, dtypes: list[str]) -> np.ndarray:
    """Bytes that a rank has to give: a token goes once to every rank that holds one of its experts."""
    each = np.array([catalog.precision(DTYPES[word]).bytes if word in DTYPES else 0 for word in dtypes])
    copies = ranks * (1 - (1 - 1 / np.maximum(ranks, 1)) ** r.whole(choices))
    return np.asarray(np.rint(r.whole(tokens) * copies * r.whole("hidden_size") * each), int)


def _deepep(r: OperationRows) -> list[RowBatch]:
    """Dispatch in fp8 and combine in bf16, with two columns of times or four."""
    ranks = r.whole("node_num") * PER_NODE
    batches = []
    for phase, word in (("dispatch", "fp8"), ("combine", "bfloat16")):
        fast = f"{phase}_avg_t_us" in r.sheet.columns
        names = (f"{phase}_avg_t_us",) if fast else (f"{phase}_transmit_us", f"{phase}_notify_us")
        units = "" if fast else f"{phase}_sms"
        sources = [
            f"{source} {phase}" + (f" on {n} SMs" if n else "")
            for source, n in zip(r.sources(r.texts("op_name")[0]), r.texts(units), strict=True)
        ]
        dtypes = [word] * len(ranks)
        dims = {"bytes": _sent(r, "num_token", "num_topk", ranks, dtypes), "ranks": ranks, "library": "deepep"}
        batches.append(r.rows("all_to_all", dtypes, dims, r.seconds(*names), sources, {FAR: r.whole("node_num") > 1}))
    return batches


def _exchange(r: OperationRows) -> list[RowBatch]:
    """One phase a row; its latency is in µs, as the two parts of it are."""
    dtypes, ranks = r.texts("comm_dtype"), r.whole("ep_size")
    dims = {"bytes": _sent(r, "num_tokens", "topk", ranks, dtypes), "ranks": ranks, "library": "deepep"}
    sources = [
        " ".join((source, *more))
        for source, *more in zip(r.sources(), r.texts("comm_backend"), r.texts("phase"), strict=True)
    ]
    return [
        r.rows(
            "all_to_all", dtypes, dims, r.seconds("transmit_us", "notify_us"), sources, {FAR: r.whole("node_num") > 1}
        )
    ]


_KINDS: dict[str, Callable[[OperationRows], list[RowBatch]]] = {
    "gemm": _gemm,
    "context_attention": _attention,
    "generation_attention": _attention,
    "mla_context": _latent,
    "mla_generation": _latent,
    "moe": _moe,
    "scale_matrix": _quantize,
    "all_reduce": _collective("all_reduce"),
    "all_gather": _collective("all_gather"),
    "reduce_scatter": _collective("reduce_scatter"),
    "alltoall": _collective("all_to_all"),
    "ll": _deepep,
    "normal": _deepep,
    "moe_a2a": _exchange,
}
