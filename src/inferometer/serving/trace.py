"""Requests as columns: what arrives at a server, when, how long it is and what it shares with others.

Trace(input_tokens=np.array([512, 64]), output_tokens=np.array([128, 0]), arrival_s=np.array([0.0, 0.3]))
read_trace("AzureLLMInferenceTrace_code.csv").input_tokens      # array([4808, 3180, …])

Ids of blocks say what requests share at their beginning: one system prompt, or everything said so far in a
conversation. Content is named by where it comes from: block k of prefix p, block k of session s. Equal ids are equal
content. Files are recognised by their columns or keys: `trace_formats` has those with a row per request,
`benchmark_files` what load generators say of a whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..base.errors import BadFile, BadValue, check_int
from ..base.files import input_path
from ..base.tabular import Table, open_table
from ..specs.arguments import signature
from .benchmark_files import BENCHMARK_FORMATS, BenchmarkRequests, BenchmarkRun
from .kv_cache import PrefixTree, prefix_tree
from .prefix_forest import Prefixes
from .session_builder import SessionBuilder
from .sessions import Sessions, plain_sessions
from .trace_formats import (
    BLOCK,
    MEASURED,
    TRACE_FORMATS,
    Columns,
    TraceFormat,
    escape,
    mapped_format,
    parse_columns,
    unknown_format,
)

CLOCK = 1e8  # an arrival later than this (three years) counts from some clock's zero, not from the trace's beginning
_COLUMNS = ("input_tokens", "output_tokens", "arrival_s", "after", "think_s", "priority", "warm_shared", "warm_history")

LEAST_MS = 1e-6  # of a measured time: less is not a measurement


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
    think_s: np.ndarray | None = None  # float64: pause after that end (of all it waits for) before this one is sent
    prefixes: Prefixes | None = None  # in place of `blocks`: what prompts share, kept per turn and not per token
    sessions: Sessions | None = None  # whose turns the requests are, and what else they wait for
    priority: np.ndarray | None = None  # int64, smaller first, for the priority policy
    warm_shared: np.ndarray | None = None  # int64: first tokens of a prompt that all caches have at the start,
    warm_history: np.ndarray | None = None  # and those that the cache of one replica has, `warm_shared` included
    measured: dict[str, np.ndarray] = {}  # TTFT, TPOT, E2E in ms where the file has them; nan where a row has none
    source: str = ""
    run: BenchmarkRun | None = None  # the load and the figures of the benchmark that the file is the result of
    at_client: bool = False  # whether what was measured was so by an HTTP client
    notes: tuple[str, ...] = ()  # what should be known about the file: requests that failed …

    def __len__(self) -> int:
        return len(self.input_tokens)

    def prefix_tree(self) -> PrefixTree | None:
        """What prompts share, where the trace says so."""
        if self.prefixes is None and self.blocks is not None and self.block_tokens > 0:
            return prefix_tree(self.blocks, self.block_tokens, self.input_tokens)
        return self.prefixes


def first_requests(trace: Trace, count: int) -> Trace:
    """The first requests of a trace, in its order: ``first_requests(trace, 100)``"""
    return trace if count >= len(trace) else rows_of(trace, np.arange(count))


def rows_of(trace: Trace, rows: np.ndarray) -> Trace:
    """Some requests of a trace, which need not wait for those that are left out: ``rows_of(trace, np.arange(10))``"""
    columns = {name: column[rows] for name in _COLUMNS if (column := getattr(trace, name)) is not None}
    if "after" in columns:
        place = np.full(len(trace) + 1, -1, np.int64)  # the last one stands for "none"
        place[rows] = np.arange(len(rows))
        columns["after"] = place[columns["after"]]
    if trace.blocks is not None:
        columns["blocks"] = tuple(trace.blocks[i] for i in rows.tolist())
    measured = {name: column[rows] for name, column in trace.measured.items()}
    return msgspec.structs.replace(
        trace,
        **columns,
        measured=measured,
        prefixes=trace.prefixes.at(rows) if trace.prefixes is not None else None,
        sessions=trace.sessions.at(rows) if trace.sessions is not None else None,
    )


def session_trace(build: SessionBuilder, source: str, *, notes: tuple[str, ...] = ()) -> Trace:
    """Sessions that were put together, as a trace: ``session_trace(build, "made by hand")``"""
    return Trace(**build.columns(), source=source, notes=notes)


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


@signature()
def read_trace(
    path: str | PathLike[str], *, columns: str | Mapping[str, str] | None = None, run: int | None = None
) -> Trace:
    """Read all requests of a file; an error names the first wrong line.

    ``read_trace("requests.csv").input_tokens.mean()``
    ``read_trace("log.csv", columns="input_tokens=n_in,output_tokens=n_out,arrival_ms=sent")``
    ``read_trace("results.jsonl", run=2)``

    ``columns`` maps the column names of a file in an unknown format. ``run`` chooses one run of a file
    with the results of several runs.
    """
    traces = read_runs(path, columns=columns)
    if run is not None:
        return traces[check_int("run", run, most=len(traces)) - 1]
    if len(traces) > 1:
        labels = [f"{number}: {trace.run.label}" for number, trace in enumerate(traces[:4], 1) if trace.run]
        rest = " …" if len(traces) > 4 else ""
        raise BadValue(f"{escape(str(path))} has {len(traces)} runs: choose one with `run` ({', '.join(labels)}{rest})")
    return traces[0]


def read_runs(path: str | PathLike[str], *, columns: str | Mapping[str, str] | None = None) -> list[Trace]:
    """The traces of a file: one, or one for each run that a load generator wrote into it.

    ``[trace.run.label for trace in read_runs("results.jsonl")]  # ['vllm bench serve at 2/s', …]``
    """
    place = input_path(str(path))
    if place.is_dir():
        if files := session_files(place):
            return [_sessions_of(files, place)]
        place = _within(place)
    with open_table(place) as table:
        if columns is not None:
            return [_rows(table, mapped_format(parse_columns(columns), table.names, str(place)))]
        names = set(table.names)
        if table.first_object and (sessions := _session_format(table.first_object)) is not None:
            return [_read_sessions([table.objects()], sessions, str(place))]
        benchmark = next((f for f in BENCHMARK_FORMATS if set(f.needs) <= names and table.first_object), None)
        if benchmark is not None:
            runs = [run for result in table.objects() for run in benchmark.read(result, str(place))]
            if not runs:
                raise BadFile(f"{place} has no completed requests")
            return [_of_run(run, str(place)) for run in runs]
        known = next((f for f in TRACE_FORMATS if set(f.needs) <= names), None)
        if known is None:
            formats = [(f.name, f.needs) for f in TRACE_FORMATS] + [(f.name, f.needs) for f in BENCHMARK_FORMATS]
            raise unknown_format(str(place), table.names, formats)
        return [_rows(table, known)]


def session_files(folder: Path) -> list[Path]:
    """The files of a folder with one session each or several, in the order of their names: ``[trace_0001.json, …]``"""
    if (folder / "chat.csv").is_file():
        return []
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".jsonl", ".json.gz", ".jsonl.gz")))


def _sessions_of(files: list[Path], folder: Path) -> Trace:
    """The sessions of all files of a folder, which are in the format of the first one."""
    with open_table(files[0]) as table:
        known = _session_format(table.first_object or {})
    if known is None:
        raise BadFile(f"{files[0]} has no sessions, and {folder} no chat.csv; give the name of a trace")

    def objects(path: Path) -> Iterator[dict[str, Any]]:
        with open_table(path) as table:
            yield from table.objects()

    return _read_sessions(map(objects, files), known, str(folder))


def _session_format(first: Mapping[str, Any]) -> Any:
    from .agent_traces import known_session_format

    return known_session_format(first)


def _read_sessions(files: Iterable[Iterator[dict[str, Any]]], known: Any, source: str) -> Trace:
    from .agent_traces import read_sessions

    build, notes = read_sessions(files, known, source)
    return session_trace(build, source, notes=notes)


def _within(folder: Path) -> Path:
    if not (folder / "chat.csv").is_file():
        raise BadFile(f"{folder} is a folder without a chat.csv; give the name of a trace")
    return folder / "chat.csv"


def _rows(table: Table, known: TraceFormat) -> Trace:
    pieces = [known.read(rows) for rows in table.chunks((*known.needs, *known.may_have), ragged=known.ragged)]
    answered = [piece for piece in pieces if len(piece["input_tokens"])]
    if not answered:
        why = "no completed requests" if pieces else "a header but no requests"
        raise BadFile(f"{table.path} has {why}")
    trace = _joined(answered, str(table.path), sum(piece.get("failed", 0) for piece in pieces))
    return msgspec.structs.replace(trace, at_client=known.at_client)


def _of_run(benchmark: BenchmarkRequests, source: str) -> Trace:
    """The requests of a run, sent as its load says where the file does not say when each was sent."""
    run = benchmark.run
    if not len(benchmark.columns["input_tokens"]):
        raise BadFile(f"{source} has no completed requests")
    for summary in ("mean", "median"):
        ttft, e2e = (run.metrics.get(f"{summary}_{metric}_ms") for metric in ("ttft", "e2el"))
        if ttft is not None and e2e is not None and ttft > e2e * 1.001 + 0.01:
            raise BadFile(f"{source}: {summary}_ttft_ms {ttft:g} is above {summary}_e2el_ms {e2e:g}")
    trace = _joined([benchmark.columns], source, benchmark.columns.get("failed", 0))
    arrival = trace.arrival_s
    if arrival is None and not run.closed_loop:
        rate = math.inf if run.request_rate is None else run.request_rate
        arrival = gamma_arrivals(np.random.default_rng(0), len(trace), rate, run.burstiness)
    notes = (*trace.notes, *benchmark.notes)
    return msgspec.structs.replace(trace, arrival_s=arrival, run=run, at_client=run.at_client, notes=notes)


def gamma_arrivals(rng: np.random.Generator, count: int, rate: float, burstiness: float = 1.0) -> np.ndarray:
    """Arrivals in s whose gaps are gamma distributed with mean 1/rate: 1 is Poisson, less comes in bursts.

    ``gamma_arrivals(np.random.default_rng(0), 3, 8.0)[0]  # 0.0: the first one opens the run``
    """
    if math.isinf(rate):
        return np.zeros(count)
    gaps = rng.gamma(burstiness, 1 / (rate * burstiness), count)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


# ------------------------------------------------------------------ putting pieces together


def _joined(pieces: list[Columns], source: str, failed: int = 0) -> Trace:
    def column(name: str) -> np.ndarray | None:
        return np.concatenate([piece[name] for piece in pieces]) if all(name in piece for piece in pieces) else None

    names: dict[str, dict[str, int]] = {}

    def numbered(name: str) -> np.ndarray | None:
        if not all(name in piece for piece in pieces):
            return None
        known = names[name] = {"": -1}
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
    measured = {name: values for name in MEASURED if (values := column(name)) is not None}
    check_measured(measured, source)
    return Trace(
        input_tokens=given,
        output_tokens=made,
        arrival_s=arrival,
        blocks=blocks,
        block_tokens=block_tokens,
        after=after,
        think_s=think if after is not None else None,
        sessions=plain_sessions(session, tuple(names["session_id"])[1:]) if session is not None else None,
        priority=column("priority"),
        measured=measured,
        source=source,
        notes=_notes(failed, len(given)),
    )


def check_measured(measured: Mapping[str, np.ndarray], source: str) -> None:
    """Refuse a first token that came after the last one, but for the digits that a file keeps.

    ``check_measured({"TTFT": np.array([1000.0]), "E2E": np.array([1.0])}, "rows.csv")  # BadFile``
    """
    for name, values in measured.items():
        for row in np.flatnonzero((values > 0) & (values < LEAST_MS))[:1].tolist():
            raise BadFile(f"{source}: row {row + 1:,} has a {name} of {values[row]:g} ms, shorter than any clock shows")
    if not {"TTFT", "E2E"} <= measured.keys():
        return
    ttft, e2e = measured["TTFT"], measured["E2E"]
    wrong = np.flatnonzero(ttft > e2e * 1.001 + 0.01)
    if len(wrong):
        row = int(wrong[0])
        more = f" ({len(wrong) - 1:,} more rows, too)" if len(wrong) > 1 else ""
        raise BadFile(
            f"{source}: row {row + 1:,} has a TTFT of {ttft[row]:g} ms, above its E2E of {e2e[row]:g} ms{more}"
        )


def _notes(failed: int, answered: int) -> tuple[str, ...]:
    if not failed:
        return ()
    return (f"{failed:,} of {failed + answered:,} requests failed or were not counted; they are ignored",)


def _one_size(sizes: np.ndarray | None, source: str) -> int:
    distinct = set() if sizes is None else set(sizes.tolist())
    if len(distinct) != 1:
        raise BadFile(f"{source}: block_tokens must be the same on every line, not {sorted(distinct)[:4]}")
    return int(distinct.pop())
