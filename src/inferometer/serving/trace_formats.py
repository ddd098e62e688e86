"""Files with a row per request, recognised by their columns: production traces, logs, and what load generators write.

A format is one small function that turns some rows into columns of a `Trace`, under the names that its columns have
there; ``failed`` counts rows that are left out because the request came to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate, nearest
from ..base.tabular import TableChunk, is_numeric

BLOCK = 16  # tokens that an id of a block stands for: engines cache whole blocks, and 16 is vLLM's size
MAX_TOKENS = 10**8  # no request is longer
MAX_SECONDS = 1e10  # no arrival is later: three centuries
MEASURED = ("TTFT", "TPOT", "E2E")  # ms

Columns = dict[str, Any]  # fields of a Trace for some rows; texts where names are still to be numbered


class TraceFormat(NamedTuple):
    """A way to write traces: the columns that it is known by, those that it may have, and its reader."""

    name: str
    needs: tuple[str, ...]
    may_have: tuple[str, ...]
    read: Callable[[TableChunk], Columns]
    ragged: bool = False  # its rows need not have the same keys
    at_client: bool = False  # its times were taken by a client of the server


TRACE_FORMATS: list[TraceFormat] = []


def trace_format(
    name: str, *needs: str, may_have: tuple[str, ...] = (), ragged: bool = False, at_client: bool = False
) -> Callable[[Any], Any]:
    """Register a reader for files with these columns; a second format of that name is an error."""

    def register(read: Callable[[TableChunk], Columns]) -> Callable[[TableChunk], Columns]:
        if any(known.name == name for known in TRACE_FORMATS):
            raise ValueError(f"a trace format named {name!r} is registered already")
        TRACE_FORMATS.append(TraceFormat(name, needs, may_have, read, ragged, at_client))
        return read

    return register


def _count(rows: TableChunk, name: str, least: int = 0) -> np.ndarray:
    return rows.numbers(name, whole=True, least=least, most=MAX_TOKENS)


def _seconds(rows: TableChunk, name: str, unit: float = 1.0) -> np.ndarray:
    return rows.numbers(name, most=MAX_SECONDS / unit) * unit


# ------------------------------------------------------------------ ours

OURS_MAY_HAVE = (
    "arrival_s",
    *MEASURED,
    "session_id",
    "think_s",
    "prefix_id",
    "prefix_tokens",
    "priority",
    "hash_ids",
    "block_tokens",
)


@trace_format("inferometer's own format", "input_tokens", "output_tokens", may_have=OURS_MAY_HAVE)
def _ours(rows: TableChunk) -> Columns:
    columns: Columns = {"input_tokens": _count(rows, "input_tokens", 1), "output_tokens": _count(rows, "output_tokens")}
    have = rows.columns
    for name in ("arrival_s", "think_s"):
        if name in have:
            columns[name] = _seconds(rows, name)
    for name in MEASURED:
        if name in have:
            columns[name] = rows.numbers(name, blank=float("nan"))
    if "priority" in have:
        columns["priority"] = rows.numbers("priority", whole=True, least=-(2**31), most=2**31)
    for name in ("session_id", "prefix_id"):
        if name in have:
            columns[name] = ["" if cell is None else str(cell) for cell in have[name]]
    if "prefix_tokens" in have:
        columns["prefix_tokens"] = _count(rows, "prefix_tokens")
        longer = columns["prefix_tokens"] > columns["input_tokens"]
        if longer.any():
            at = int(np.argmax(longer))
            raise rows.wrong("prefix_tokens", at, f"at most its {columns['input_tokens'][at]:,} input_tokens")
    if "hash_ids" in have:
        columns["blocks"] = _ids(rows, "hash_ids")
        columns["block_tokens"] = _count(rows, "block_tokens", 1) if "block_tokens" in have else np.array([BLOCK])
    return columns


def _ids(rows: TableChunk, name: str) -> list[np.ndarray]:
    """Ids of blocks, one list a row."""
    blocks: list[np.ndarray] = []
    for at, cell in enumerate(rows.columns[name]):
        ids: np.ndarray
        try:
            ids = np.array(cell if isinstance(cell, list) else str(cell).split(), dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            ids = np.zeros((0, 0))
        if ids.ndim != 1:
            raise rows.wrong(name, at, "a list of whole numbers")
        blocks.append(ids)
    return blocks


# ------------------------------------------------------------------ columns that the user names

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}  # suffix of a name -> s
_SUFFIX = re.compile(r"_(ns|us|ms|s)$", re.I)
_TIMES = {"arrival": "arrival_s", "think": "think_s", **{name.lower(): name for name in (*MEASURED, "E2EL")}}
_TIMES["e2el"] = "E2E"


class ColumnMapping(NamedTuple):
    """Which columns of a file are which of ours, and the unit of those that are times; None: as their cells look."""

    theirs: dict[str, str]
    units: dict[str, float | None]


def parse_columns(columns: str | Mapping[str, str]) -> ColumnMapping:
    """``parse_columns("input_tokens=n_in,output_tokens=n_out,arrival_ms=sent").units  # {'arrival_s': 0.001}``

    A suffix of their name is the unit (``sent_ms``); else that of ours is (``arrival_ms=sent``).
    """
    pairs = columns.items() if isinstance(columns, Mapping) else [_pair(text) for text in str(columns).split(",")]
    mapping = ColumnMapping({}, {})
    for ours, theirs in ((str(ours), str(theirs)) for ours, theirs in pairs):
        name, unit = _our_name(ours)
        if name in mapping.theirs:
            raise BadValue(f"`columns` names {name} twice: {mapping.theirs[name]} and {theirs}")
        mapping.theirs[name] = theirs
        if name in ("arrival_s", "think_s", *MEASURED):
            suffix = _SUFFIX.search(theirs)
            mapping.units[name] = UNITS[suffix[1].lower()] if suffix else unit
    return mapping


def _pair(text: str) -> tuple[str, str]:
    ours, sign, theirs = text.partition("=")
    if not sign or not ours.strip() or not theirs.strip():
        raise BadValue(f"`columns` takes pairs such as input_tokens=n_in,output_tokens=n_out, not {abbreviate(text)}")
    return ours.strip(), theirs.strip()


def _our_name(ours: str) -> tuple[str, float | None]:
    """The column that is meant, and the unit in its name: ``_our_name("ttft_s")  # ('TTFT', 1.0)``"""
    suffix = _SUFFIX.search(ours)
    stem = ours[: suffix.start()] if suffix else ours
    if stem.lower() in _TIMES:
        name = _TIMES[stem.lower()]
        return name, UNITS[suffix[1].lower()] if suffix else (1e-3 if name in MEASURED else None)
    known = ("input_tokens", "output_tokens", *OURS_MAY_HAVE)
    if ours not in known:
        raise UnknownName("column in `columns`", ours, known)
    return ours, None


def mapped_format(mapping: ColumnMapping, names: Sequence[str], where: str) -> TraceFormat:
    """Our format of a file whose columns have other names; those that have ours are taken, too."""
    lacking = [theirs for theirs in mapping.theirs.values() if theirs not in names]
    if lacking:
        near = nearest(lacking[0], names)
        tail = f"did you mean {' or '.join(near)}? It has {shorten(names)}" if near else f"it has {shorten(names)}"
        raise BadFile(f"{where} has no column {lacking[0]!r}; {tail}")
    needs = ("input_tokens", "output_tokens")
    for name in needs:
        if name not in mapping.theirs and name not in names:
            raise _SayColumns(f"{escape(where)} has no {name}: `columns` {name}=NAME; it has {escape(shorten(names))}")
    theirs = {name: mapping.theirs.get(name, name) for name in (*needs, *OURS_MAY_HAVE)}
    wanted = tuple(dict.fromkeys(name for name in theirs.values() if name in names))

    def read(rows: TableChunk) -> Columns:
        columns: dict[str, Sequence[Any]] = {
            name: rows.columns[column] for name, column in theirs.items() if column in rows.columns
        }
        for name, unit in mapping.units.items():
            columns[name] = _times(rows, theirs[name], name, unit)
        made: Columns = _ours(rows._replace(columns=columns, labels=theirs))
        return made

    return TraceFormat("columns", wanted, (), read, ragged=True)


def _times(rows: TableChunk, column: str, name: str, unit: float | None) -> Any:
    """A column of times, in seconds for arrivals and pauses, in ms for what was measured."""
    if name in MEASURED:
        return rows.numbers(column, blank=float("nan")) * ((unit or 1e-3) * 1e3)
    return moments(rows, column, unit)


# ------------------------------------------------------------------ production traces


@trace_format("Azure LLM inference", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
def _azure(rows: TableChunk) -> Columns:
    return {
        "input_tokens": _count(rows, "ContextTokens", 1),
        "output_tokens": _count(rows, "GeneratedTokens"),
        "arrival_s": _dates(rows, "TIMESTAMP"),
    }


@trace_format("Mooncake", "timestamp", "input_length", "output_length", may_have=("hash_ids",))
def _mooncake(rows: TableChunk) -> Columns:
    columns: Columns = {
        "input_tokens": _count(rows, "input_length", 1),
        "output_tokens": _count(rows, "output_length"),
        "arrival_s": _seconds(rows, "timestamp", 1e-3),
    }
    if "hash_ids" in rows.columns:
        columns |= {"blocks": _ids(rows, "hash_ids"), "block_tokens": np.array([512])}
    return columns


@trace_format("BurstGPT", "Timestamp", "Request tokens", "Response tokens")
def _burst(rows: TableChunk) -> Columns:
    return {
        "input_tokens": _count(rows, "Request tokens", 1),
        "output_tokens": _count(rows, "Response tokens"),
        "arrival_s": _seconds(rows, "Timestamp"),
    }


@trace_format("LLMServingSim", "input_toks", "output_toks", may_have=("arrival_time_ns",))
def _servingsim(rows: TableChunk) -> Columns:
    columns: Columns = {"input_tokens": _count(rows, "input_toks", 1), "output_tokens": _count(rows, "output_toks")}
    if "arrival_time_ns" in rows.columns:
        columns["arrival_s"] = _seconds(rows, "arrival_time_ns", 1e-9)
    return columns


@trace_format("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens")
def _vidur(rows: TableChunk) -> Columns:
    return {
        "input_tokens": _count(rows, "num_prefill_tokens", 1),
        "output_tokens": _count(rows, "num_decode_tokens"),
        "arrival_s": _seconds(rows, "arrived_at"),
    }


# ------------------------------------------------------------------ logs and records of single requests

SENT = ("timestamp", "created", "created_at", "time", "startTime", "start_time")
FIRST_TOKEN, ENDED = "completionStartTime", "endTime"  # LiteLLM's spend logs
LOGS = {  # OpenAI's names, at the top of a row or inside `usage`
    "OpenAI-style log": ("prompt_tokens", "completion_tokens"),
    "OpenAI chat completions": ("usage.prompt_tokens", "usage.completion_tokens"),
    "OpenAI responses": ("usage.input_tokens", "usage.output_tokens"),
}


def _openai_log(prompt: str, completion: str) -> Callable[[TableChunk], Columns]:
    def read(rows: TableChunk) -> Columns:
        rows, failed = _counted(rows, prompt, completion)
        columns: Columns = {
            "input_tokens": _count(rows, prompt, 1),
            "output_tokens": _count(rows, completion),
            "failed": failed,
        }
        sent = next((name for name in SENT if any(map(_given, rows.columns.get(name, ())))), None)
        if sent is None:
            return columns
        columns["arrival_s"] = moments(rows, sent)
        for name, metric in ((FIRST_TOKEN, "TTFT"), (ENDED, "E2E")):
            if sent == "startTime" and name in rows.columns:
                columns[metric] = (moments(rows, name, blank=True) - columns["arrival_s"]) * 1e3
        return columns

    return read


for _name, _needs in LOGS.items():
    trace_format(_name, *_needs, may_have=(*SENT, FIRST_TOKEN, ENDED), ragged=True, at_client=True)(
        _openai_log(*_needs)
    )


@trace_format(
    "AIPerf records",
    "metadata.request_start_ns",
    "metrics",
    may_have=(
        "metrics.input_sequence_length.value",
        "metrics.output_sequence_length.value",
        "metrics.time_to_first_token.value",
        "metrics.inter_token_latency.value",
        "metrics.request_latency.value",
        "metadata.benchmark_phase",
    ),
    ragged=True,
    at_client=True,
)
def _aiperf(rows: TableChunk) -> Columns:
    """The inter-token latency of a record is the mean of its request: (latency - TTFT) / (tokens - 1)."""
    metric = "metrics.{}.value".format
    prompt, completion = metric("input_sequence_length"), metric("output_sequence_length")
    rows = rows.where([phase != "warmup" for phase in rows.columns["metadata.benchmark_phase"]])
    rows, failed = _counted(rows, prompt, completion)
    names = {"TTFT": "time_to_first_token", "TPOT": "inter_token_latency", "E2E": "request_latency"}
    measured = {name: rows.numbers(metric(theirs), blank=float("nan")) for name, theirs in names.items()}
    return {
        "input_tokens": _count(rows, prompt, 1),
        "output_tokens": _count(rows, completion),
        "arrival_s": moments(rows, "metadata.request_start_ns", UNITS["ns"]),
        "failed": failed,
        **measured,
    }


def _given(cell: object) -> bool:
    return cell is not None and cell != ""


def _counted(rows: TableChunk, prompt: str, completion: str) -> tuple[TableChunk, int]:
    """The rows whose tokens were counted, and how many have none: requests that failed."""
    pairs = zip(rows.columns[prompt], rows.columns[completion], strict=True)
    keep = [_given(a) and _given(b) and not (is_numeric(a) and float(a) == 0) for a, b in pairs]
    return (rows, 0) if all(keep) else (rows.where(keep), keep.count(False))


# ------------------------------------------------------------------ times

_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?")
_ZONE = re.compile(r"\s*(Z|UTC|[+-]\d\d:?\d\d|[+-]\d\d)$")
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # a time from so much on is since 1970 in this unit


def moments(rows: TableChunk, name: str, unit: float | None = None, blank: bool = False) -> np.ndarray:
    """A column of times in seconds: numbers in a unit, dates, or times since 1970 in s, ms, µs or ns by their size.

    ``blank``: empty cells are nan.
    """
    cells = rows.columns[name]
    first = next(filter(_given, cells), "0")
    if not is_numeric(first):
        return _dates(rows, name, blank)
    most = MAX_SECONDS / (unit or 1e-9)
    values = rows.numbers(name, most=most, blank=float("nan") if blank else None)
    if unit is not None:
        return values * unit
    scale = np.ones(len(values))
    for least, factor in reversed(_EPOCHS):
        scale[values >= least] = factor
    return values * scale


def _dates(rows: TableChunk, name: str, blank: bool = False) -> np.ndarray:
    """Dates and times as seconds of 1970; without a zone they are UTC."""
    cells = [str(cell).strip() if _given(cell) else "" for cell in rows.columns[name]]
    if all(map(_DATE.fullmatch, cells)):
        try:
            times = np.array(cells, dtype="datetime64[ns]")
        except ValueError:  # a 31st of June
            times = np.array([_date(cell) for cell in cells], dtype="datetime64[ns]")
    else:
        times = np.array([_date(cell) for cell in cells], dtype="datetime64[ns]")
    unknown = np.isnat(times)
    if unknown.any() and not (blank and not any(cell for cell, lost in zip(cells, unknown, strict=True) if lost)):
        raise rows.wrong(name, int(np.argmax(unknown)), "a time such as 2023-11-16 18:15:46.68")
    seconds: np.ndarray = times.astype(np.int64) / 1e9
    return np.where(unknown, np.nan, seconds)


def _date(cell: str) -> np.datetime64:
    unknown = np.datetime64("NaT", "ns")
    zone = _ZONE.search(cell[10:])  # after the day, whose dashes are no zone
    plain = cell[: 10 + zone.start()] if zone else cell
    try:
        time = np.datetime64(plain, "ns") if _DATE.fullmatch(plain) else unknown
    except ValueError:
        return unknown
    if zone is None or zone[1] in ("Z", "UTC"):
        return time
    digits = zone[1][1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return time - np.timedelta64(minutes if zone[1][0] == "+" else -minutes, "m")


# ------------------------------------------------------------------ files that none of them can read


class _SayColumns(BadFile):
    """A file that the user can explain; backticks in the sentence are arguments of ours."""

    marks_arguments = True


def escape(text: str) -> str:
    """Text of a file, for a sentence that marks arguments with backticks."""
    return text.replace("`", "\\`")


def shorten(names: Sequence[str], most: int = 70) -> str:
    """The first few names, whole: ``shorten(["a", "b", …])  # 'a, b … (21 columns)'``"""
    top = [" ".join(name.split()) for name in names if "." not in name] or list(names)
    shown: list[str] = []
    for name in top:
        if sum(map(len, shown)) + 2 * len(shown) + len(name) > most:
            break
        shown.append(name)
    if len(shown) == len(top):
        return ", ".join(shown)
    return f"{', '.join(shown) or abbreviate(top[0], most)} … ({len(top)} columns)"


def unknown_format(where: str, names: Sequence[str], formats: Sequence[tuple[str, tuple[str, ...]]]) -> BadFile:
    """What the file has, what the nearest format needs, and how to say which column is which."""

    def share(entry: tuple[str, tuple[str, ...]]) -> float:
        return sum(name in names for name in entry[1]) / len(entry[1])

    if names and all(map(is_numeric, names)):
        return BadFile(f"{where} has no column names: its first line is {shorten(names)}")
    name, needs = max(formats, key=share)
    lacks = [column for column in needs if column not in names]
    near = f"as {name} it lacks {', '.join(lacks[:3])}; " if len(lacks) < len(needs) else ""
    return _SayColumns(
        f"{escape(where)} is not in a known trace format: its columns are {escape(shorten(names))}; {near}"
        "say which are which with `columns` input_tokens=NAME,output_tokens=NAME,arrival_s=NAME"
    )
