"""Recorded sessions of agents, in the formats that tools write: each becomes turns that wait for each other.

read_sessions([objects], SESSION_FORMATS[0], "sessions.jsonl")     # `trace.read_trace` chooses the format

What was recorded is when each call began and ended, and by whom. From that follow the waits: a call comes after those
of its agent that ended before it began, a sub-agent after the call that started it, and the first call of an agent that
began after its sub-agent's end waits for it. Where prompts have hashes of their blocks, these say what is shared.

Formats were read in their sources: Weka's, which InferenceX AgentX replays, in callanjfox/kv-cache-tester
docs/trace_replay_tester.md at 94f6046 and kubernetes-sigs/inference-perf weka_trace_replay_datagen.py at 7de5ef2;
Dynamo's request trace in ai-dynamo/dynamo lib/data-gen/src/request_trace at bb3100e; spans in OpenTelemetry's semantic
conventions for GenAI, and as inference-perf's docs/otel_trace_replay.md takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import BadFile, abbreviate
from ..base.tabular import is_numeric
from .prefix_forest import HashIds
from .session_builder import SessionBuilder
from .trace_formats import BLOCK, MAX_SECONDS, MAX_TOKENS

Objects = Iterator[Mapping[str, Any]]


class SessionFormat(NamedTuple):
    """A way to write sessions: the keys that each of its objects has, one set or another, and its reader."""

    name: str
    needs: tuple[frozenset[str], ...]
    read: Callable[[Iterable[Objects], str, SessionBuilder], tuple[str, ...]]  # gives what should be known of the file


SESSION_FORMATS: list[SessionFormat] = []


def session_format(name: str, *needs: str) -> Callable[[Any], Any]:
    """Register a reader for files whose objects have these keys: ``@session_format("Weka", "requests block_size")``"""

    def register(read: Any) -> Any:
        SESSION_FORMATS.append(SessionFormat(name, tuple(frozenset(keys.split()) for keys in needs), read))
        return read

    return register


def known_session_format(first: Mapping[str, Any]) -> SessionFormat | None:
    """The format that an object is in, if it is one of sessions."""
    keys = frozenset(first)
    return next((known for known in SESSION_FORMATS if any(need <= keys for need in known.needs)), None)


def read_sessions(
    files: Iterable[Objects], known: SessionFormat, source: str
) -> tuple[SessionBuilder, tuple[str, ...]]:
    """The sessions of some files, whose objects are read one by one, and what should be known of them."""
    build = SessionBuilder()
    notes = known.read(files, source, build)
    if not len(build):
        raise BadFile(f"{source} has no turns of sessions")
    return build, notes


# ------------------------------------------------------------------ calls that were recorded


class Call(NamedTuple):
    """One call of a model, in s of some clock."""

    start_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    leaf: int | None = None  # of its block hashes; None: they are not known
    cached_tokens: int | None = None  # that a cache had, where it was recorded


def add_session(
    build: SessionBuilder,
    name: str,
    calls: Mapping[str, list[Call]],
    parent_of: Mapping[str, str],
    *,
    start_s: float = 0.0,
    in_turn: bool = True,
) -> None:
    """A session from the calls of its agents; the first agent is the main one.

    ``parent_of``: which agent started an agent. ``in_turn``: an agent makes one call at a time, whatever clocks say.
    """
    agents = {agent: number for number, agent in enumerate(calls)}
    order = sorted(((call.start_s, agents[agent], k) for agent, some in calls.items() for k, call in enumerate(some)))
    by_number = list(calls.values())
    rows: dict[tuple[int, int], int] = {}
    waits_for = {n: (_one_after_another if in_turn else _after_what_ended)(some) for n, some in enumerate(by_number)}
    joined = _joins(calls, parent_of, agents)
    starts = _starts(calls, parent_of, agents)
    build.session(name, start_s)
    for _, agent, k in order:
        call, own = by_number[agent][k], [(agent, j) for j in waits_for[agent][k]]
        if k == 0 and agent in starts:
            own.append(starts[agent])
        before = [key for key in (*own, *joined.get((agent, k), ())) if key in rows]
        ended = max((by_number[a][j].end_s for a, j in before), default=call.start_s)
        same = [j for a, j in before if a == agent]
        extends = rows[(agent, same[-1])] if same and call.leaf is None else -1
        if extends >= 0 and call.input_tokens < build.input_tokens[extends]:
            extends = -1  # a history that was cut
        rows[(agent, k)] = build.turn(
            call.input_tokens,
            call.output_tokens,
            after=[rows[key] for key in before],
            wait_s=max(0.0, call.start_s - ended),
            agent=agent,
            extends=extends,
            shared_tokens=call.cached_tokens,
            leaf=call.leaf,
        )


def _one_after_another(calls: list[Call]) -> list[list[int]]:
    return [[k - 1] if k else [] for k in range(len(calls))]


def _after_what_ended(calls: list[Call]) -> list[list[int]]:
    """Of every call, the calls that ended before it began, but for those that others of them waited for."""
    waits: list[list[int]] = []
    recent: list[int] = []
    for k, call in enumerate(calls):
        done = [j for j in recent if calls[j].end_s <= call.start_s]
        late = [j for j in done if not any(calls[q].start_s >= calls[j].end_s for q in done)]
        waits.append(late)
        recent = [j for j in recent if j not in done or j in late] + [k]
    return waits


def _starts(
    calls: Mapping[str, list[Call]], parent_of: Mapping[str, str], agents: Mapping[str, int]
) -> dict[int, tuple[int, int]]:
    """The call that started each sub-agent: the last one of its parent that began before."""
    starts = {}
    for agent, parent in parent_of.items():
        if agent in calls and calls.get(parent):
            begun = [k for k, call in enumerate(calls[parent]) if call.start_s <= calls[agent][0].start_s]
            if begun:
                starts[agents[agent]] = (agents[parent], begun[-1])
    return starts


def _joins(
    calls: Mapping[str, list[Call]], parent_of: Mapping[str, str], agents: Mapping[str, int]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The last calls of sub-agents that calls of their parents wait for: the first ones that began after their end."""
    joins: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for agent, parent in parent_of.items():
        if agent not in calls or parent not in calls:
            continue
        last = max(range(len(calls[agent])), key=lambda k: calls[agent][k].end_s)
        end = calls[agent][last].end_s
        join = next((k for k, call in enumerate(calls[parent]) if call.start_s >= end), None)
        if join is not None:
            joins.setdefault((agents[parent], join), []).append((agents[agent], last))
    return joins


# ------------------------------------------------------------------ cells


def _number(
    row: Mapping[str, Any], key: str, where: str, *, most: float = MAX_SECONDS, default: float | None = None
) -> float:
    value = row.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not is_numeric(value) or not 0 <= float(value) <= most:  # type: ignore[arg-type]
        given = "and is missing" if value is None else f"not {abbreviate(value)}"
        raise BadFile(f"{where}: {key} must be a number from 0 to {most:,.0f}, {given}")
    return float(value)  # type: ignore[arg-type]


def _tokens(row: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
    value = _number(row, key, where, most=MAX_TOKENS)
    if value != int(value) or value < least:
        raise BadFile(f"{where}: {key} must be a whole number of at least {least}, not {value:g}")
    return int(value)


def _ids(row: Mapping[str, Any], key: str, where: str) -> np.ndarray:
    """Hashes of blocks; those of 64 bits keep their bits."""
    value = row.get(key)
    try:
        if not isinstance(value, list) or any(isinstance(one, (bool, float, str, list, dict)) for one in value[:1]):
            raise TypeError
        try:
            return np.array(value, np.int64)
        except OverflowError:
            return np.array(value, np.uint64).astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        raise BadFile(f"{where}: {key} must be a list of whole numbers, not {abbreviate(value)}") from None


def _list(row: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadFile(f"{where}: {key} must be a list of objects, not {abbreviate(value)}")
    return value


def _all(files: Iterable[Objects]) -> Objects:
    for objects in files:
        yield from objects


# ------------------------------------------------------------------ ours


@session_format("inferometer's sessions", "turns")
def _ours(files: Iterable[Objects], source: str, build: SessionBuilder) -> tuple[str, ...]:
    """One object per session: ``{"session_id": "a", "start_s": 0, "turns": [{"input_tokens": 900, …}]}``"""
    for count, session in enumerate(_all(files), 1):
        where = f"{source}, session {count}"
        first = len(build)
        size = int(_number(session, "block_tokens", where, default=BLOCK))
        ids = HashIds(build.forest, max(1, size))
        build.session(str(session.get("session_id", "")), _number(session, "start_s", where, default=0.0))
        agents: dict[str, int] = {}
        for k, turn in enumerate(_list(session, "turns", where)):
            place = f"{where}, turn {k}"
            agent = agents.setdefault(str(turn.get("agent", "main")), len(agents))
            before = build.last_of.get(agent)
            after = turn.get("after", [] if before is None else [before - first])
            if not isinstance(after, list) or not all(type(j) is int and 0 <= j < k for j in after):
                raise BadFile(f"{place}: after must be a list of turns before it, from 0 on, not {abbreviate(after)}")
            extends = turn.get("extends", -1 if before is None else before - first)
            if extends is not None and (type(extends) is not int or not -1 <= extends < k):
                raise BadFile(f"{place}: extends must be a turn before it, or null, not {abbreviate(extends)}")
            prefix = int(_number(turn, "prefix_tokens", place, default=0.0))
            shared = turn.get("shared_tokens")
            build.turn(
                _tokens(turn, "input_tokens", place, 1),
                _tokens(turn, "output_tokens", place),
                after=[first + j for j in after],
                wait_s=_number(turn, "wait_s", place, default=0.0),
                agent=agent,
                extends=-1 if extends is None or extends < 0 else first + extends,
                shared_tokens=None if shared is None else _tokens(turn, "shared_tokens", place),
                prefix=(str(turn.get("prefix_id", "")), prefix),
                leaf=ids.leaf(_ids(turn, "hash_ids", place)) if "hash_ids" in turn else None,
            )
    return ()


# ------------------------------------------------------------------ Weka's, which InferenceX AgentX replays


@session_format("Weka (InferenceX AgentX)", "requests block_size", "requests hash_id_scope")
def _weka(files: Iterable[Objects], source: str, build: SessionBuilder) -> tuple[str, ...]:
    """One object per session; sub-agents are entries with requests of their own, timed from their beginning."""
    everywhere: HashIds | None = None
    for count, session in enumerate(_all(files), 1):
        name = str(session.get("id", count))
        where = f"{source}, session {name}"
        size = max(1, int(_number(session, "block_size", where, default=64.0)))
        if everywhere is None:
            everywhere = HashIds(build.forest, size)
        ids = everywhere if session.get("hash_id_scope") == "global" else HashIds(build.forest, size)
        calls: dict[str, list[Call]] = {"main": []}
        parent_of: dict[str, str] = {}
        entries = _list(session, "requests", where)
        calls["main"] = _weka_calls([e for e in entries if e.get("type") != "subagent"], 0.0, ids, where)
        for k, entry in enumerate(e for e in entries if e.get("type") == "subagent"):
            start, agent = _number(entry, "t", where), f"{entry.get('agent_id', 'agent')} {k}"
            own = _weka_calls(_list(entry, "requests", f"{where}, {agent}"), start, ids, f"{where}, {agent}")
            if own:
                calls[agent], parent_of[agent] = own, "main"
        if calls["main"]:
            add_session(build, name, calls, parent_of)
    return ("sessions were recorded one by one: without a rate or a number of sessions at once all begin together",)


def _weka_calls(requests: list[Mapping[str, Any]], start_s: float, ids: HashIds, where: str) -> list[Call]:
    """The calls of an agent; where nothing says when one ended, it is when its next one's wait began."""
    calls = []
    for k, (request, following) in enumerate(pairwise([*requests, {}])):
        place = f"{where}, request {k}"
        begun = _number(request, "t", place)
        if request.get("api_time") is not None:
            took = _number(request, "api_time", place)
        else:
            rest = _number(following, "t", place, default=begun) - begun
            took = max(0.0, rest - _number(following, "think_time", place, default=rest))
        leaf = ids.leaf(_ids(request, "hash_ids", place)) if request.get("hash_ids") else -1
        calls.append(
            Call(
                start_s + begun,
                start_s + begun + took,
                _tokens(request, "in", place, 1),
                _tokens(request, "out", place),
                leaf,
            )
        )
    return calls


# ------------------------------------------------------------------ Dynamo's request trace


@session_format("Dynamo request trace", "schema event_type", "event timestamp")
def _dynamo(files: Iterable[Objects], source: str, build: SessionBuilder) -> tuple[str, ...]:
    """One object per event; those of finished requests count. A session is an agent; it may name its parent."""
    ids: HashIds | None = None
    calls: dict[str, list[Call]] = {}
    parent_of: dict[str, str] = {}
    for count, record in enumerate(_all(files), 1):
        event = record.get("event", record)
        if not isinstance(event, Mapping) or event.get("event_type") != "request_end":
            continue
        where = f"{source}, record {count}"
        request, context = event.get("request"), event.get("agent_context") or {}
        replay = request.get("replay") if isinstance(request, Mapping) else None
        if not isinstance(request, Mapping) or not isinstance(replay, Mapping):
            raise BadFile(f"{where}: request must have replay, with input_length and input_sequence_hashes")
        size = _tokens(replay, "trace_block_size", where, 1)
        ids = ids or HashIds(build.forest, size)
        if ids.block_tokens != size:
            raise BadFile(
                f"{where}: trace_block_size must be that of the records before, {ids.block_tokens}, not {size}"
            )
        start = _number(request, "request_received_ms", where, most=1e15) / 1e3
        took = _number(request, "total_time_ms", where, default=0.0) / 1e3
        length = _tokens(replay, "input_length", where, 1)
        hashes = _ids(replay, "input_sequence_hashes", where)[: length // size]
        agent = str(context.get("trajectory_id") or context.get("session_id") or request.get("request_id", count))
        parent = context.get("parent_trajectory_id") or context.get("parent_session_id")
        if parent is not None and str(parent) != agent:
            parent_of[agent] = str(parent)
        made = _tokens(request, "output_tokens", where)
        calls.setdefault(agent, []).append(Call(start, start + took, length, made, ids.leaf(hashes)))
    return _add_agents(build, calls, parent_of, in_turn=True)


def _add_agents(
    build: SessionBuilder, calls: dict[str, list[Call]], parent_of: dict[str, str], *, in_turn: bool
) -> tuple[str, ...]:
    """Sessions of agents that name their parents: those with the same ancestor are one."""
    for some in calls.values():
        some.sort(key=lambda call: (call.start_s, call.end_s))
    families: dict[str, list[str]] = {}
    for agent in calls:
        root, seen = agent, {agent}
        while (parent := parent_of.get(root)) in calls and parent not in seen:
            root = str(parent)
            seen.add(root)
        families.setdefault(root, []).append(agent)
    begins = {root: min(calls[agent][0].start_s for agent in family) for root, family in families.items()}
    zero = min(begins.values(), default=0.0)
    for root in sorted(families, key=lambda name: begins[name]):
        family = {root: calls[root], **{agent: calls[agent] for agent in families[root]}}
        add_session(build, root, family, parent_of, start_s=begins[root] - zero, in_turn=in_turn)
    return ()


# ------------------------------------------------------------------ OpenTelemetry's spans of GenAI


@session_format("OpenTelemetry GenAI spans", "spans", "resourceSpans")
def _otel(files: Iterable[Objects], source: str, build: SessionBuilder) -> tuple[str, ...]:
    """Spans of calls of models, in OTLP's JSON or one list of spans; spans of agents above them say whose they are."""
    calls: dict[str, list[Call]] = {}
    parent_of: dict[str, str] = {}
    spans: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {}
    for document in _all(files):
        for span in _spans(document, source):
            name = str(span.get("spanId", span.get("span_id", len(spans))))
            spans[name] = (str(span.get("parentSpanId", span.get("parent_span_id")) or ""), span, _attributes(span))
    for name, (above, span, attributes) in spans.items():
        if not _is_call(span, attributes):
            continue
        where, agents = f"{source}, span {name}", _agents_above(above, spans)
        trace = str(span.get("traceId", span.get("trace_id", "")))
        session = str(attributes.get("gen_ai.conversation.id") or attributes.get("session.id") or trace)
        lanes = [session, *(f"{session}/{agent}" for agent in agents[1:])]
        parent_of |= {child: parent for parent, child in pairwise(lanes)}
        used, made = (_usage(attributes, *keys, where) for keys in (_USED, _MADE))
        cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
        start, end = (_moment(span, *keys, where) for keys in (_BEGAN, _ENDED))
        call = Call(
            start, max(start, end), max(1, used), made, None, int(float(str(cached))) if is_numeric(cached) else None
        )
        calls.setdefault(lanes[-1], []).append(call)
    _fill_missing(calls, parent_of)
    _add_agents(build, calls, parent_of, in_turn=False)
    return ("spans have no hashes of blocks: a prompt is taken to begin with the turn before it of its agent",)


_USED = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_MADE = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_BEGAN, _ENDED = ("startTimeUnixNano", "start_time"), ("endTimeUnixNano", "end_time")
_CALLS = ("chat", "text_completion", "generate_content")


def _fill_missing(calls: dict[str, list[Call]], parent_of: dict[str, str]) -> None:
    """An agent that called no model itself, but whose sub-agents did, stands back: they are its parent's."""
    for child, parent in list(parent_of.items()):
        while parent not in calls and parent in parent_of:
            parent = parent_of[parent]
        parent_of[child] = parent


def _spans(document: Mapping[str, Any], source: str) -> Iterator[Mapping[str, Any]]:
    if "spans" in document:
        yield from _list(document, "spans", source)
        return
    for resource in _list(document, "resourceSpans", source):
        for scope in _list(resource, "scopeSpans", source):
            yield from _list(scope, "spans", source)


def _attributes(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes by name; OTLP's JSON has them as a list of keys with typed values."""
    given = span.get("attributes") or {}
    if isinstance(given, Mapping):
        return given
    pairs = (one for one in given if isinstance(one, Mapping) and isinstance(one.get("value"), Mapping))
    return {str(one.get("key")): next(iter(one["value"].values()), None) for one in pairs}


def _is_call(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in _CALLS
    return any(key in attributes for key in _USED) or str(span.get("name", "")).startswith("chat ")


def _agents_above(above: str, spans: Mapping[str, tuple[str, Any, Mapping[str, Any]]]) -> list[str]:
    """The spans of agents above a span, the outermost first; the outermost one is the main agent."""
    agents: list[str] = []
    seen: set[str] = set()
    while above in spans and above not in seen:
        seen.add(above)
        if spans[above][2].get("gen_ai.operation.name") == "invoke_agent":
            agents.insert(0, above)
        above = spans[above][0]
    return agents or [""]


def _usage(attributes: Mapping[str, Any], new: str, old: str, where: str) -> int:
    return _tokens(attributes, new if attributes.get(new) is not None else old, where)


def _moment(span: Mapping[str, Any], nanoseconds: str, date: str, where: str) -> float:
    """A span's time in s: ns since 1970, or a date."""
    if nanoseconds in span:
        return _number(span, nanoseconds, where, most=1e20) / 1e9
    text = str(span.get(date, "")).replace("Z", "").partition("+")[0]
    try:
        nanoseconds_since = int(np.array([text], "datetime64[ns]").astype(np.int64)[0])
    except ValueError:
        nanoseconds_since = -1
    if nanoseconds_since < 0:  # not a time at all is the least number
        raise BadFile(f"{where}: {date} must be a time such as 2026-02-25T10:00:00, not {abbreviate(span.get(date))}")
    return nanoseconds_since / 1e9
