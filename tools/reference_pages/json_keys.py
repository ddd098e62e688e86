"""docs/reference/json.md: every key of ``--json``, from the structs of the results and `meanings.toml`."""

from __future__ import annotations

import itertools
import re
from typing import Any

from inferometer.inference.report import Report
from inferometer.search.search_result import PoolSpec, Search
from inferometer.search.session_search_result import SessionSearch
from inferometer.search.training_search_result import TrainingSearch
from inferometer.sensitivity.sensitivity_report import Sensitivity
from inferometer.sensitivity.training_sensitivity import TrainingSensitivity
from inferometer.serving.capacity import TriedRate
from inferometer.serving.metrics_page import ServerStatistics
from inferometer.specs.structs import Calibration, Default, Hardware, Plan, Workload
from inferometer.training.training_report import TrainReport
from inferometer.validation.doctor import Diagnosis
from inferometer.validation.fit_steps import StepClass
from inferometer.validation.validate import ErrorStatistics, FigureComparison, MemoryComparison

from .markdown import anchor, code, table
from .struct_fields import MEANINGS, Field, fields, glossary, kind_name, structs_of

HEAD = """# The keys of JSON

Every command has `--json`. Keys may be added in later versions; none is renamed or removed while the number after the
slash of `schema` stays the same.
Units are SI unless a key ends in `_ms`. In Python, `to_dict()` has the same keys.

"""
COMMANDS: dict[str, tuple[type | str, str]] = {  # title -> the struct or the table of `results`, and a sentence
    "analyze --json": (Report, ""),
    "sweep --json": ("sweep", ""),
    "search --json": (Search, ""),
    "search --agents --json": (SessionSearch, ""),
    "search --train --json": (TrainingSearch, ""),
    "simulate --json": ("simulate", ""),
    "simulate --find-capacity --json": (
        "capacity",
        "Besides these it has the keys of [simulate](#simulate---json) from `model` to `{p99}_e2el_ms`, at "
        "the rate found.",
    ),
    "sensitivity --json": (Sensitivity, ""),
    "sensitivity --train --json": (TrainingSensitivity, ""),
    "train --json": (TrainReport, ""),
    "validate --json": (
        "validate",
        "Besides these it has the keys of [simulate](#simulate---json) from `model` to `{p99}_e2el_ms`: the "
        "prediction.",
    ),
    "bench --json": ("bench", "Keys and types of `vllm bench serve --save-result`, and a few of our own."),
    "profile --json": (
        "profile",
        "Of the layers of a model; `--kernels`, `--quick` and `--import` have some of these.",
    ),
}
SHARED: tuple[type, ...] = (
    *(Hardware, Plan, Workload, Default, Calibration, PoolSpec, TriedRate),
    *(ErrorStatistics, FigureComparison, MemoryComparison, StepClass, Diagnosis, ServerStatistics),
)
UNITS = (  # how a key is called, and its unit; the first that fits
    (r"_ms$", "ms"),
    (r"_seconds$|^seconds$|_s$|^duration$|^inference_time$", "s"),
    (r"cost|price", "USD"),
    (r"bytes|^memory_access$|^load_|^store_|^memory_consumption|^sent$", "bytes"),
    (r"^(OPs|.*flops)$", "FLOP"),
    (r"joules", "J"),
    (r"watts|power", "W"),
    (r"request_rate|request_throughput|request_goodput|saturation_rate|^highest$", "requests/s"),
    (r"throughput|tokens_per_second", "tokens/s"),
    (r"_tokens$|^(input_len|output_len|prefix_len|context|max_position|seq_len)$", "tokens"),
)
PLAIN_KINDS = ("number", "integer")


def page() -> str:
    """The whole page: the commands, then the parts that their results are made of."""
    parts = _everything()
    structs = {struct.__name__: struct for struct in parts}
    text = [HEAD]
    for title, (source, note) in COMMANDS.items():
        text.append(f"## {title}\n\n{_doc(source)}{note + chr(10) * 2 if note else ''}")
        name = source.__name__ if isinstance(source, type) else source
        text.append(_key_table(name, _fields(source, "results"), structs) + "\n")
    text.append(
        "## show --json\n\nOf one name, the keys of its file: [file formats](files.md). Of a list, a row for "
        "each name.\n\n"
        "## Parts\n\nTables inside the results, by name.\n\n"
    )
    tops = {source for source, _ in COMMANDS.values() if isinstance(source, type)}
    for name in sorted([*(n for n, s in structs.items() if s not in tops), *MEANINGS["parts"]]):
        source = structs.get(name, name)
        text.append(f"### {name}\n\n{_doc(source)}{_key_table(name, _fields(source, 'parts'), structs)}\n")
    return "".join(text).rstrip() + "\n"


def _collect(struct: type, parts: list[Any]) -> None:
    if struct in parts:
        return
    parts.append(struct)
    for field in fields(struct):
        for inner in structs_of(field.kind):
            _collect(inner, parts)


def _doc(source: Any) -> str:
    if not isinstance(source, type) or not source.__doc__:
        return ""
    return source.__doc__.strip().partition("\n\n")[0].replace("\n", " ").replace("``", "`") + "\n\n"


PLAN_FIELDS = (  # of a plan in results, beside those of the struct
    Field("gpus", int, "", "GPUs in all."),
    Field("placement", dict, "", "Ranks by link, in words."),
    Field("context_parallel_size", int, "", "Ranks that divide every sequence, in training."),
    Field("expert_model_parallel_size", int, "", "Ranks that divide the experts of a layer, in training."),
    Field("expert_tensor_parallel_size", int, "", "Ranks that divide each expert, in training."),
)


def _fields(source: Any, kind: str) -> list[Field]:
    """Keys of a struct, or of a table of `meanings.toml`."""
    if isinstance(source, type):
        known = fields(source)
        return [*known, *PLAN_FIELDS] if source is Plan else known
    rows = []
    for name, note in MEANINGS[kind][source].items():
        shown, _, meaning = note.partition(": ")
        rows.append(Field(name, shown, "", meaning or glossary(name)))
    return rows


def _key_table(owner: str, known: list[Field], structs: dict[str, type]) -> str:
    def link(struct: type | str) -> str:
        name = struct if isinstance(struct, str) else struct.__name__
        return f"[{name}](#{anchor(name)})"

    rows = []
    for field in known:
        inside = MEANINGS["inside"].get(f"{owner}.{field.name}")
        kind = field.kind if isinstance(field.kind, str) else kind_name(field.kind, link)
        if inside and "[" not in kind:
            kind = f"list of {link(inside)}" if kind.startswith("list") else link(inside)
        if isinstance(field.kind, str):
            kind = re.sub(r"\b[A-Z]\w+\b", lambda name: link(name[0]), field.kind)
        unit = next((u for pattern, u in UNITS if re.search(pattern, field.name)), "")
        numeric = any(word in kind for word in PLAIN_KINDS) and "[" not in kind
        rows.append(
            [code(field.name), kind, unit if numeric else "", re.sub(r"\b([nN])ot set\b", r"\1ull", field.meaning)]
        )
    return table(["key", "type", "unit", "meaning"], rows)


# ------------------------------------------------------------------ for the test


def documented(command: str) -> set[str]:
    """Top-level keys that the page has for a command, braces written out: ``documented("simulate --json")``"""
    source, _ = COMMANDS[command]
    names = [field.name for field in _fields(source, "results")]
    if source in ("capacity", "validate"):
        names += MEANINGS["results"]["simulate"]
    return {name for pattern in names for name in _written_out(pattern)}


def _written_out(pattern: str) -> list[str]:
    pieces = [piece.split(",") for piece in re.split(r"[{}]", pattern)]
    return ["".join(choice) for choice in itertools.product(*pieces)]


def undocumented(command: str, result: dict[str, Any]) -> list[str]:
    """Keys of a real result that the page lacks, at any depth where the page says what a table is."""
    source, _ = COMMANDS[command]
    lacking = sorted(set(result) - documented(command))
    owner = source.__name__ if isinstance(source, type) else source
    return lacking + [
        miss for field in _fields(source, "results") for miss in _missing(owner, field, result.get(field.name))
    ]


def _missing(owner: str, field: Field, value: Any) -> list[str]:
    inside = MEANINGS["inside"].get(f"{owner}.{field.name}")
    known: Any = None
    if inside:
        every = {s.__name__: s for s in _everything()}
        known = every.get(inside, inside)
    elif not isinstance(field.kind, str) and structs_of(field.kind):
        known = structs_of(field.kind)[0]
    if known is None or not value:
        return []
    name = known.__name__ if isinstance(known, type) else known
    names = {f.name for f in _fields(known, "parts")}
    rows = value if isinstance(value, list) else [value]
    lacking = []
    for row in rows[:3]:
        inner = [row] if set(row) & names else [one for one in row.values() if isinstance(one, dict)]
        for one in inner[:3]:
            lacking += [f"{name}.{key}" for key in one if key not in names]
            lacking += [miss for f in _fields(known, "parts") for miss in _missing(name, f, one.get(f.name))]
    return lacking


def _everything() -> list[Any]:
    parts: list[Any] = []
    for struct in (*SHARED, *(source for source, _ in COMMANDS.values())):
        if isinstance(struct, type):
            _collect(struct, parts)
    return parts


def without_meaning() -> list[str]:
    """Keys whose meaning nothing says."""
    rows = []
    for name, source in {
        **{getattr(s, "__name__", s): s for s, _ in COMMANDS.values()},
        **{s.__name__: s for s in _everything()},
        **{name: name for name in MEANINGS["parts"]},
    }.items():
        kind = "results" if name in MEANINGS["results"] else "parts"
        rows += [f"{name}.{f.name}" for f in _fields(source, kind) if not f.meaning]
    return rows
