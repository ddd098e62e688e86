"""Traces in files: CSV or JSON lines in the forms that people publish, recognised by their columns.

read_trace("AzureLLMInferenceTrace_code.csv").input_tokens      # array([4808, 3180, …])

A form is one small function that turns some rows into columns of a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadFile
from ..files import local
from ..sheets import Rows, header, sheet
from .prefixes import BLOCK, shared_blocks, turns_before
from .requests import Trace

TOKENS = 10**8  # no request is longer
SECONDS = 1e10  # no arrival is later: three centuries
CLOCK = 1e8  # an arrival later than this (three years) counts from some clock's zero, not from the trace's beginning
MEASURED = ("TTFT", "TPOT", "E2E")

Columns = dict[str, Any]  # fields of a Trace for some rows; words for names that are still to be numbered


class Form(NamedTuple):
    """A way to write traces: the columns that it is known by, those that it may have, and its reader."""

    name: str
    needs: tuple[str, ...]
    may_have: tuple[str, ...]
    read: Callable[[Rows], Columns]


FORMS: list[Form] = []


def form(name: str, *needs: str, may_have: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Register a reader for files with these columns."""

    def register(read: Callable[[Rows], Columns]) -> Callable[[Rows], Columns]:
        FORMS.append(Form(name, needs, may_have, read))
        return read

    return register


def read_trace(path: str | Path) -> Trace:
    """All requests of a file, or one sentence about the first line that is wrong; nothing is half read."""
    place = local(str(path))
    if place.is_dir():
        place = _within(place)
    names = header(place)
    known = next((f for f in FORMS if set(f.needs) <= set(names)), None)
    if known is None:
        forms = "; ".join(f"{', '.join(f.needs)} ({f.name})" for f in FORMS)
        raise BadFile(f"{place} has the columns {', '.join(names)[:200]}; a trace has those of one of: {forms}")
    pieces = [known.read(rows) for rows in sheet(place, (*known.needs, *known.may_have))]
    if not pieces:
        raise BadFile(f"{place} has a header but no requests")
    return _joined(pieces, str(place))


def _within(folder: Path) -> Path:
    if not (folder / "chat.csv").is_file():
        raise BadFile(f"{folder} is a folder without a chat.csv; give the name of a trace")
    return folder / "chat.csv"


# ------------------------------------------------------------------ the forms


def _count(rows: Rows, name: str, least: int = 0) -> np.ndarray:
    return rows.numbers(name, whole=True, least=least, most=TOKENS)


def _seconds(rows: Rows, name: str, unit: float = 1.0) -> np.ndarray:
    return rows.numbers(name, most=SECONDS / unit) * unit


@form("ours and the chat.csv of measurements", "input_tokens", "output_tokens",
      may_have=("arrival_s", *MEASURED, "session_id", "think_s", "prefix_id", "prefix_tokens", "priority",
                "hash_ids", "block_tokens"))  # fmt: skip
def _ours(rows: Rows) -> Columns:
    found: Columns = {"input_tokens": _count(rows, "input_tokens", 1), "output_tokens": _count(rows, "output_tokens")}
    have = rows.columns
    for name in ("arrival_s", "think_s"):
        if name in have:
            found[name] = _seconds(rows, name)
    for name in MEASURED:
        if name in have:
            found[name] = rows.numbers(name, blank=float("nan"))
    if "priority" in have:
        found["priority"] = rows.numbers("priority", whole=True, least=-(2**31), most=2**31)
    for name in ("session_id", "prefix_id"):
        if name in have:
            found[name] = ["" if cell is None else str(cell) for cell in have[name]]
    if "prefix_tokens" in have:
        found["prefix_tokens"] = _count(rows, "prefix_tokens")
        longer = found["prefix_tokens"] > found["input_tokens"]
        if longer.any():
            at = int(np.argmax(longer))
            raise rows.wrong("prefix_tokens", at, f"at most its {found['input_tokens'][at]:,} input_tokens")
    if "hash_ids" in have:
        found["blocks"] = _ids(rows, "hash_ids")
        found["block_tokens"] = _count(rows, "block_tokens", 1) if "block_tokens" in have else np.array([BLOCK])
    return found


@form("Azure LLM inference", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
def _azure(rows: Rows) -> Columns:
    return {"input_tokens": _count(rows, "ContextTokens", 1), "output_tokens": _count(rows, "GeneratedTokens"),
            "arrival_s": _moments(rows, "TIMESTAMP")}  # fmt: skip


@form("Mooncake", "timestamp", "input_length", "output_length", may_have=("hash_ids",))
def _mooncake(rows: Rows) -> Columns:
    found: Columns = {"input_tokens": _count(rows, "input_length", 1), "output_tokens": _count(rows, "output_length"),
                      "arrival_s": _seconds(rows, "timestamp", 1e-3)}  # fmt: skip
    if "hash_ids" in rows.columns:
        found |= {"blocks": _ids(rows, "hash_ids"), "block_tokens": np.array([512])}
    return found


@form("BurstGPT", "Timestamp", "Request tokens", "Response tokens")
def _burst(rows: Rows) -> Columns:
    return {"input_tokens": _count(rows, "Request tokens", 1), "output_tokens": _count(rows, "Response tokens"),
            "arrival_s": _seconds(rows, "Timestamp")}  # fmt: skip


@form("LLMServingSim", "input_toks", "output_toks", may_have=("arrival_time_ns",))
def _servingsim(rows: Rows) -> Columns:
    found: Columns = {"input_tokens": _count(rows, "input_toks", 1), "output_tokens": _count(rows, "output_toks")}
    if "arrival_time_ns" in rows.columns:
        found["arrival_s"] = _seconds(rows, "arrival_time_ns", 1e-9)
    return found


@form("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens")
def _vidur(rows: Rows) -> Columns:
    return {"input_tokens": _count(rows, "num_prefill_tokens", 1), "output_tokens": _count(rows, "num_decode_tokens"),
            "arrival_s": _seconds(rows, "arrived_at")}  # fmt: skip


def _ids(rows: Rows, name: str) -> list[np.ndarray]:
    """Ids of blocks, one list a row."""
    found: list[np.ndarray] = []
    for at, cell in enumerate(rows.columns[name]):
        ids: np.ndarray
        try:
            ids = np.array(cell if isinstance(cell, list) else str(cell).split(), dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            ids = np.zeros((0, 0))
        if ids.ndim != 1:
            raise rows.wrong(name, at, "a list of whole numbers")
        found.append(ids)
    return found


def _moments(rows: Rows, name: str) -> np.ndarray:
    """Dates and times as seconds of 1970; without a zone, or all in UTC."""
    cells = [str(cell).strip().removesuffix("Z").removesuffix("+00:00") for cell in rows.columns[name]]
    try:
        found = np.array(cells, dtype="datetime64[ns]")
    except ValueError:
        found = np.array([_moment(cell) for cell in cells])
    if np.isnat(found).any():
        raise rows.wrong(name, int(np.argmax(np.isnat(found))), "a time such as 2023-11-16 18:15:46.68")
    return found.astype(np.int64) / 1e9


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
        input_tokens=given, output_tokens=made, arrival_s=arrival, blocks=blocks, block_tokens=block_tokens,
        after=after, think_s=think if after is not None else None, priority=column("priority"),
        measured={name: found for name in MEASURED if (found := column(name)) is not None}, source=source,
    )  # fmt: skip


def _one_size(sizes: np.ndarray | None, source: str) -> int:
    found = set() if sizes is None else set(sizes.tolist())
    if len(found) != 1:
        raise BadFile(f"{source}: block_tokens must be the same on every line, not {sorted(found)[:4]}")
    return int(found.pop())
