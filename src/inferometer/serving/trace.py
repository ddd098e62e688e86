"""Requests as columns: what arrives at a server, when, how long it is and what it shares with others.

Trace(input_tokens=np.array([512, 64]), output_tokens=np.array([128, 0]), arrival_s=np.array([0.0, 0.3]))
read_trace("AzureLLMInferenceTrace_code.csv").input_tokens      # array([4808, 3180, …])

What requests share at their beginning is told by ids of blocks: one system prompt, or everything said so far in a
conversation. Content is named by where it comes from: block k of prefix p, block k of session s. Equal ids are equal
content. Traces in files are CSV or JSON lines in the formats that people publish, recognised by their columns; a format
is one small function that turns some rows into columns of a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadFile
from ..base.files import user_path
from ..base.tabular import TableChunk, column_names, read_table

BLOCK = 16  # tokens that an id of a block stands for: engines cache whole blocks, and 16 is vLLM's size
MAX_TOKENS = 10**8  # no request is longer
MAX_SECONDS = 1e10  # no arrival is later: three centuries
CLOCK = 1e8  # an arrival later than this (three years) counts from some clock's zero, not from the trace's beginning
MEASURED = ("TTFT", "TPOT", "E2E")
_COLUMNS = ("input_tokens", "output_tokens", "arrival_s", "blocks", "after", "think_s", "priority")

Columns = dict[str, Any]  # fields of a Trace for some rows; texts where names are still to be numbered


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Requests in the order of their file; every column has one entry per request."""

    input_tokens: np.ndarray  # int64
    output_tokens: np.ndarray  # int64; 0 is allowed: such a request ends with its prefill
    arrival_s: np.ndarray | None = None  # float64; None: each request waits for the end of the one before it
    blocks: tuple[np.ndarray, ...] | None = None
    """Per request the ids (int64) of the leading blocks of its tokens; equal ids are equal content. They may run on
    past the prompt: those ids name the blocks of its answer, which the conversation's next turn has in its prompt."""
    block_tokens: int = 0  # tokens that one of those ids stands for (Mooncake: 512)
    after: np.ndarray | None = None  # int64: the request that must end first (the turn before), -1 = none
    think_s: np.ndarray | None = None  # float64: pause after that end before this one is sent
    priority: np.ndarray | None = None  # int64, smaller first, for the priority policy
    measured: dict[str, np.ndarray] = {}  # TTFT, TPOT, E2E in ms where the file has them; nan where a row has none
    source: str = ""

    def __len__(self) -> int:
        return len(self.input_tokens)


def first_requests(trace: Trace, count: int) -> Trace:
    """The first requests of a trace, in its order: ``first_requests(trace, 100)``"""
    if count >= len(trace):
        return trace
    columns = {name: column[:count] for name in _COLUMNS if (column := getattr(trace, name)) is not None}
    if "after" in columns:  # one that waits for a request that is left out need not wait
        columns["after"] = np.where(columns["after"] < count, columns["after"], -1)
    measured = {name: column[:count] for name, column in trace.measured.items()}
    return msgspec.structs.replace(trace, **columns, measured=measured)


# ------------------------------------------------------------------ shared prefixes


def shared_blocks(
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
    *,
    prefix: np.ndarray | None = None,
    prefix_tokens: np.ndarray | None = None,
    session: np.ndarray | None = None,
    block_tokens: int = BLOCK,
) -> tuple[np.ndarray, ...]:
    """Ids of the leading blocks of every request.

    ``prefix`` numbers what the first ``prefix_tokens`` of a request are (-1: nothing that others have). ``session``
    numbers the conversation that it is a turn of (-1: none): a turn begins with everything said before it.
    ``shared_blocks(i, o, prefix=zeros, prefix_tokens=full(n, 100))  # six ids each, the same for all``
    """
    count = len(input_tokens)
    none, zeros = np.full(count, -1), np.zeros(count, np.int64)
    group = none if prefix is None else prefix
    conversation = none if session is None else session
    shared = zeros if prefix_tokens is None else np.where(group >= 0, np.minimum(prefix_tokens, input_tokens), 0)
    heads = shared // block_tokens  # blocks of the prefix, (requests,)
    whole = np.where(conversation >= 0, (input_tokens + output_tokens) // block_tokens, heads)
    widest, longest = int(heads.max(initial=0)), int(whole.max(initial=0))
    base = (int(group.max(initial=-1)) + 1) * widest  # ids of sessions begin after those of the prefixes
    known: dict[tuple[int, int], np.ndarray] = {}
    blocks: list[np.ndarray] = []
    for g, s, head, length in zip(group.tolist(), conversation.tolist(), heads.tolist(), whole.tolist(), strict=True):
        if s < 0:  # many requests have the very same prefix: they share one array
            key = (g, head)
            if key not in known:
                known[key] = np.arange(g * widest, g * widest + head, dtype=np.int64)
            blocks.append(known[key])
            continue
        ids = np.arange(base + s * longest, base + s * longest + length, dtype=np.int64)
        ids[:head] = np.arange(g * widest, g * widest + head)
        blocks.append(ids)
    return tuple(blocks)


def turns_before(session: np.ndarray) -> np.ndarray:
    """Of every request, the one before it in its session, -1 if there is none: ``[7, 3, 7] -> [-1, -1, 0]``"""
    last: dict[int, int] = {}
    before = np.full(len(session), -1, np.int64)
    for i, number in enumerate(session.tolist()):
        if number >= 0:
            before[i] = last.get(number, -1)
            last[number] = i
    return before


# ------------------------------------------------------------------ files


class TraceFormat(NamedTuple):
    """A way to write traces: the columns that it is known by, those that it may have, and its reader."""

    name: str
    needs: tuple[str, ...]
    may_have: tuple[str, ...]
    read: Callable[[TableChunk], Columns]


TRACE_FORMATS: list[TraceFormat] = []


def trace_format(name: str, *needs: str, may_have: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Register a reader for files with these columns; a second format of that name is an error."""

    def register(read: Callable[[TableChunk], Columns]) -> Callable[[TableChunk], Columns]:
        if any(known.name == name for known in TRACE_FORMATS):
            raise ValueError(f"a trace format named {name!r} is registered already")
        TRACE_FORMATS.append(TraceFormat(name, needs, may_have, read))
        return read

    return register


def read_trace(path: str | Path) -> Trace:
    """All requests of a file, or one sentence about the first line that is wrong; nothing is half read."""
    place = user_path(str(path))
    if place.is_dir():
        place = _within(place)
    names = column_names(place)
    known = next((f for f in TRACE_FORMATS if set(f.needs) <= set(names)), None)
    if known is None:
        forms = "; ".join(f"{', '.join(f.needs)} ({f.name})" for f in TRACE_FORMATS)
        raise BadFile(f"{place} has the columns {', '.join(names)[:200]}; a trace has those of one of: {forms}")
    pieces = [known.read(rows) for rows in read_table(place, (*known.needs, *known.may_have))]
    if not pieces:
        raise BadFile(f"{place} has a header but no requests")
    return _joined(pieces, str(place))


def _within(folder: Path) -> Path:
    if not (folder / "chat.csv").is_file():
        raise BadFile(f"{folder} is a folder without a chat.csv; give the name of a trace")
    return folder / "chat.csv"


# ------------------------------------------------------------------ the forms


def _count(rows: TableChunk, name: str, least: int = 0) -> np.ndarray:
    return rows.numbers(name, whole=True, least=least, most=MAX_TOKENS)


def _seconds(rows: TableChunk, name: str, unit: float = 1.0) -> np.ndarray:
    return rows.numbers(name, most=MAX_SECONDS / unit) * unit


@trace_format(
    "ours and the chat.csv of measurements",
    "input_tokens",
    "output_tokens",
    may_have=(
        "arrival_s",
        *MEASURED,
        "session_id",
        "think_s",
        "prefix_id",
        "prefix_tokens",
        "priority",
        "hash_ids",
        "block_tokens",
    ),
)
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


@trace_format("Azure LLM inference", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
def _azure(rows: TableChunk) -> Columns:
    return {
        "input_tokens": _count(rows, "ContextTokens", 1),
        "output_tokens": _count(rows, "GeneratedTokens"),
        "arrival_s": _moments(rows, "TIMESTAMP"),
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


def _moments(rows: TableChunk, name: str) -> np.ndarray:
    """Dates and times as seconds of 1970; without a zone, or all in UTC."""
    cells = [str(cell).strip().removesuffix("Z").removesuffix("+00:00") for cell in rows.columns[name]]
    try:
        moments = np.array(cells, dtype="datetime64[ns]")
    except ValueError:
        moments = np.array([_moment(cell) for cell in cells])
    if np.isnat(moments).any():
        raise rows.wrong(name, int(np.argmax(np.isnat(moments))), "a time such as 2023-11-16 18:15:46.68")
    return moments.astype(np.int64) / 1e9


def _moment(cell: str) -> np.datetime64:
    try:
        return np.datetime64(cell, "ns")
    except ValueError:
        return np.datetime64("NaT", "ns")


# ------------------------------------------------------------------ putting pieces together


def _joined(pieces: list[Columns], source: str) -> Trace:
    def column(name: str) -> np.ndarray | None:
        return np.concatenate([piece[name] for piece in pieces]) if all(name in piece for piece in pieces) else None

    def numbered(name: str) -> np.ndarray | None:
        if not all(name in piece for piece in pieces):
            return None
        known: dict[str, int] = {"": -1}
        return np.array([known.setdefault(word, len(known) - 1) for piece in pieces for word in piece[name]])

    given, made = column("input_tokens"), column("output_tokens")
    assert given is not None and made is not None
    arrival = column("arrival_s")
    if arrival is not None and arrival.min() > CLOCK:
        arrival = arrival - arrival.min()
    session, prefix, heads = numbered("session_id"), numbered("prefix_id"), column("prefix_tokens")
    if heads is not None and prefix is None:
        prefix = np.zeros(len(given), np.int64)  # one prefix for all
    block_tokens, blocks = 0, None
    if all("blocks" in piece for piece in pieces):
        blocks = tuple(ids for piece in pieces for ids in piece["blocks"])
        block_tokens = _one_size(column("block_tokens"), source)
    elif session is not None or (prefix is not None and heads is not None):
        blocks = shared_blocks(given, made, prefix=prefix, prefix_tokens=heads, session=session)
        block_tokens = BLOCK
    think = column("think_s")
    after = turns_before(session) if session is not None else None
    return Trace(
        input_tokens=given,
        output_tokens=made,
        arrival_s=arrival,
        blocks=blocks,
        block_tokens=block_tokens,
        after=after,
        think_s=think if after is not None else None,
        priority=column("priority"),
        measured={name: values for name in MEASURED if (values := column(name)) is not None},
        source=source,
    )


def _one_size(sizes: np.ndarray | None, source: str) -> int:
    distinct = set() if sizes is None else set(sizes.tolist())
    if len(distinct) != 1:
        raise BadFile(f"{source}: block_tokens must be the same on every line, not {sorted(distinct)[:4]}")
    return int(distinct.pop())
