"""The requests of a run, as keywords ask for them: synthetic ones, sessions of agents, or a trace replayed.

load_traffic({"num_prompts": 100, "request_rate": 8.0}, None).label     # '1024 in, 128 out, at 8/s'
load_traffic({"agents": "chat", "num_sessions": 50}, None).trace
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, abbreviate, check_int, is_number
from ..base.units import percent
from .kv_cache import PrefixTree
from .sessions import Sessions
from .synthetic import (
    LEAST_RATE,
    at_rate,
    own_rate,
    scale_to_rate,
    stretch_label,
    synthetic,
    with_shared_prefix,
    with_users,
)
from .trace import Trace, first_requests, read_trace, rows_of
from .trace_formats import BLOCK

TRAFFIC_DEFAULTS: Mapping[str, Any] = {  # the keywords that are about requests
    "trace": None,
    "columns": None,
    "run": None,
    "num_prompts": None,
    "request_rate": None,
    "burstiness": None,  # 1: Poisson; of a trace, its own arrivals
    "input_len": None,
    "output_len": None,
    "prefix_len": 0,
    "turns": None,
    "think_time": None,
    "seed": 0,
    "agents": None,
    "like": None,
    "num_sessions": None,
    "max_idle": None,
    "warm_cache": None,
}
OF_REQUESTS = ("input_len", "output_len", "prefix_len", "turns", "think_time", "num_prompts")  # not of agents


class LoadedTraffic(NamedTuple):
    """Requests, with a label: ``'1024 in, 128 out, at 8/s, conversations of 3 turns'``"""

    trace: Trace
    lengths: str  # '1024 in, 128 out', or the file that they are of
    schedule: str  # 'at 8/s', 'all at once', '16 at a time', 'as recorded'
    conversations: str = ""
    max_concurrency: int | None = None  # as it was given, or as the benchmark was run whose result the trace is

    @property
    def label(self) -> str:
        """What they are, for the header of a run."""
        return ", ".join(part for part in (self.lengths, self.schedule, self.conversations) if part)


def load_traffic(
    options: dict[str, Any], max_concurrency: int | None, concurrent_sessions: int | None = None
) -> LoadedTraffic:
    """The requests that some keywords ask for; takes those of `TRAFFIC_DEFAULTS` out of ``options``."""
    given = {**TRAFFIC_DEFAULTS, **{key: options.pop(key) for key in TRAFFIC_DEFAULTS if key in options}}
    if max_concurrency is not None:
        check_int("max_concurrency", max_concurrency, most=10**7)
    given["redrawn"] = given["burstiness"] is not None
    given["burstiness"] = _or(given["burstiness"], 1.0)
    if given["agents"] is not None or given["like"] is not None:
        return _generated(given, max_concurrency, concurrent_sessions)
    if given["trace"] is not None:
        return _with_sessions(_replayed(given, max_concurrency), given, concurrent_sessions)
    for key in ("num_sessions", "max_idle", "warm_cache"):
        if given[key] is not None:
            raise BadValue(f"`{key}` is about sessions: give `agents`, or a `trace` that has some", field=key)
    for key in ("columns", "run"):
        if given[key] is not None:
            raise BadValue(f"`{key}` applies to a `trace` file only")
    input_len, output_len = _or(given["input_len"], 1024), _or(given["output_len"], 128)
    rate = _or(given["request_rate"], math.inf)
    trace = synthetic(
        num_prompts=_or(given["num_prompts"], 1000),
        request_rate=rate,
        burstiness=given["burstiness"],
        input_len=input_len,
        output_len=output_len,
        prefix_len=given["prefix_len"],
        turns=_or(given["turns"], 1),
        think_time=_or(given["think_time"], 0),
        users=max_concurrency,
        seed=given["seed"],
        block_tokens=check_int("block_size", _or(options.get("block_size"), BLOCK), most=10**6),
    )
    schedule = f"at {rate:g}/s"
    if rate == math.inf:
        schedule = "all at once" if max_concurrency is None else f"{max_concurrency} at a time"
    conversations = f"conversations of {given['turns']} turns" if given["turns"] else ""
    return LoadedTraffic(trace, f"{input_len} in, {output_len} out", schedule, conversations, max_concurrency)


def cap_waits(trace: Trace, max_idle: float) -> Trace:
    """The trace with no wait between turns longer than ``max_idle`` seconds: ``cap_waits(trace, 60.0)``"""
    if not is_number(max_idle) or not 0 <= max_idle <= 1e9:
        raise BadValue(f"`max_idle` must be seconds from 0 to 1e9, not {abbreviate(max_idle)}", field="max_idle")
    if trace.think_s is None:
        return trace
    return msgspec.structs.replace(trace, think_s=np.minimum(trace.think_s, max_idle))


def _warm_share(given: Any) -> float | None:
    """Share of the sessions that are under way at the start; 0: only shared prompts are cached; None: nothing is."""
    if given is None or given == "shared":
        return None if given is None else 0.0
    try:
        share = float(given) if not isinstance(given, bool) else -1.0
    except (TypeError, ValueError):
        share = -1.0
    if not 0 < share <= 1:
        raise BadValue(
            f"`warm_cache` must be shared, or a share of the sessions above 0 and up to 1, not {abbreviate(given)}",
            field="warm_cache",
        )
    return share


def warm_start(trace: Trace, share: float, seed: int = 0) -> Trace:
    """The trace from a moment on at which its first sessions are under way: ``warm_start(trace, 0.5)``

    Of each of them, the turns before one of the main agent's, drawn by lot, are over: that turn is sent after its wait,
    and what came before is in the cache of a replica. Other sessions begin as long after that moment as they began
    after the last of these. What several sessions begin with is in the caches of all replicas.
    """
    sessions, tree = trace.sessions, trace.prefix_tree()
    assert sessions is not None, "see `_with_sessions`"
    under_way = round(share * len(sessions))
    rng, count = np.random.default_rng(seed), len(trace)
    cut = np.full(len(sessions), -1, np.int64)
    rows = np.flatnonzero((sessions.agent == 0) & (sessions.session < under_way))
    turns = np.bincount(sessions.session[rows], minlength=len(sessions))
    begin = np.cumsum(turns) - turns
    rows = rows[np.argsort(sessions.session[rows], kind="stable")]
    for number in np.flatnonzero(turns[:under_way] > 1).tolist():
        cut[number] = rows[begin[number] + int(rng.integers(1, turns[number]))]
    over = np.arange(count) < cut[sessions.session]
    first = cut[cut >= 0]  # turns of sessions that are under way
    shared = _shared_by_sessions(trace, sessions, tree, np.append(np.flatnonzero(sessions.turn == 0), first))
    history = np.maximum(_history(trace, tree, over, first), shared)
    arrival = np.zeros(count) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s, nan=0.0)
    moment = float(arrival[sessions.session < under_way].max(initial=0.0))
    wait = np.zeros(count) if trace.think_s is None else np.nan_to_num(trace.think_s, nan=0.0)
    arrival = np.maximum(arrival - moment, 0.0)
    arrival[first] = wait[first]
    changed = msgspec.structs.replace(trace, arrival_s=arrival, warm_shared=shared, warm_history=history)
    return rows_of(changed, np.flatnonzero(~over)) if over.any() else changed


def _shared_by_sessions(trace: Trace, sessions: Sessions, tree: PrefixTree | None, first: np.ndarray) -> np.ndarray:
    """Tokens that the prompts of some turns begin with, and prompts of other sessions, too."""
    shared = np.zeros(len(trace), np.int64)
    if tree is None:
        return shared
    owner, last = [-1] * len(tree.first), tree.last.tolist()  # session of every segment; -2: of several
    for i, session in enumerate(sessions.session.tolist()):
        for segment in tree.of(i):
            if owner[segment] not in (-1, session):
                owner[segment] = -2
            elif owner[segment] == -1:
                owner[segment] = session
    for i in first.tolist():
        for segment in tree.of(i):
            if owner[segment] != -2:
                break
            shared[i] = last[segment]
    least: np.ndarray = np.minimum(shared, trace.input_tokens)
    return least


def _history(trace: Trace, tree: PrefixTree | None, over: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Tokens of the prompts of some turns that the turns which are over have left."""
    history = np.zeros(len(trace), np.int64)
    if tree is None:
        return history
    filled, last = [0] * len(tree.first), tree.last.tolist()
    ends = (trace.input_tokens + np.maximum(trace.output_tokens - 1, 0)).tolist()  # the last token is never computed
    for i in np.flatnonzero(over).tolist():
        for segment in tree.of(i):
            filled[segment] = max(filled[segment], min(ends[i], last[segment]))
    for i in cut.tolist():
        for segment in tree.of(i):
            history[i] = max(history[i], filled[segment])
            if filled[segment] < last[segment]:
                break
    least: np.ndarray = np.minimum(history, trace.input_tokens)
    return least


def first_sessions(trace: Trace, count: int) -> Trace:
    """The first sessions of a trace, whole: ``first_sessions(trace, 10)``"""
    if trace.sessions is None or count >= len(trace.sessions):
        return trace
    return rows_of(trace, np.flatnonzero(trace.sessions.session < count))


def _generated(given: dict[str, Any], max_concurrency: int | None, concurrent: int | None) -> LoadedTraffic:
    """Sessions of agents: of a preset, or like those of a trace."""
    from .agent_generator import fit_profile, generate_sessions, parse_agents

    for key in (*OF_REQUESTS, "trace", "columns", "run"):
        if given[key]:
            raise BadValue(f"`agents` says what sessions are like and cannot be combined with `{key}`", field=key)
    base = fit_profile(read_trace(given["like"])) if given["like"] is not None else None
    profile = parse_agents(_or(given["agents"], {}), base)
    rate = _or(given["request_rate"], math.inf)
    trace = generate_sessions(
        profile,
        num_sessions=_or(given["num_sessions"], 100),
        request_rate=rate,
        burstiness=given["burstiness"],
        seed=given["seed"],
    )
    label = f"of sessions like {file_name(str(given['like']))}" if base is not None else f"of {profile.name} sessions"
    schedule = "all at once" if rate == math.inf else f"{rate:g} new sessions/s"
    return _with_sessions(LoadedTraffic(trace, label, schedule, max_concurrency=max_concurrency), given, concurrent)


def _with_sessions(traffic: LoadedTraffic, given: dict[str, Any], concurrent: int | None) -> LoadedTraffic:
    """So many sessions, so many at once, with waits up to `max_idle`."""
    trace = traffic.trace
    asks = next((key for key in ("num_sessions", "max_idle", "warm_cache") if given[key] is not None), None)
    asks = "concurrent_sessions" if asks is None and concurrent is not None else asks
    if asks is not None and trace.sessions is None:
        raise BadValue(f"`{asks}` is about sessions, and {trace.source} has none", field=asks)
    if given["num_sessions"] is not None:
        trace = first_sessions(trace, check_int("num_sessions", given["num_sessions"]))
    if given["max_idle"] is not None:
        trace = cap_waits(trace, given["max_idle"])
    share = _warm_share(given["warm_cache"])
    if share is not None:
        trace = warm_start(trace, share, given["seed"])
    limited = "" if concurrent is None else f"{concurrent} sessions at a time"
    schedule = limited if traffic.schedule == "all at once" and limited else traffic.schedule
    schedule = f"{schedule}, {limited}" if limited and schedule != limited else schedule
    if share is not None:
        schedule += f", {percent(share)} of them under way, warm caches" if share else ", warm caches"
    return traffic._replace(trace=trace, schedule=schedule)


def _replayed(given: dict[str, Any], max_concurrency: int | None) -> LoadedTraffic:
    """The requests of a file, perhaps fewer, with a shared prefix, of so many users, or at another rate."""
    for key in ("input_len", "output_len", "turns"):
        if given[key]:
            raise BadValue(f"`trace` sets all lengths and cannot be combined with `{key}`")
    trace = given["trace"]
    if not isinstance(trace, Trace):
        trace = read_trace(trace, columns=given["columns"], run=given["run"])
    if max_concurrency is None and trace.arrival_s is None and trace.run is not None and given["request_rate"] is None:
        max_concurrency = trace.run.max_concurrency
    if given["num_prompts"] is not None:
        trace = first_requests(trace, check_int("num_prompts", given["num_prompts"]))
    if given["prefix_len"]:
        trace = with_shared_prefix(trace, given["prefix_len"])
    if given["think_time"] is not None:
        trace = with_users(trace, max_concurrency, given["think_time"], given["seed"])
    schedule = "one after another" if trace.arrival_s is None and max_concurrency is None else "as recorded"
    if given["request_rate"] is not None:
        trace, schedule = _rescheduled(trace, given)
    if max_concurrency is not None:
        limited = f"{max_concurrency} at a time"
        schedule = limited if trace.arrival_s is None else f"{schedule}, {limited}"
    return LoadedTraffic(trace, _origin(trace), schedule, max_concurrency=max_concurrency)


def _origin(trace: Trace) -> str:
    """The file that requests are of; of those that are of none, their lengths: ``'1024 in, 128 out on average'``"""
    if trace.source not in ("", "synthetic"):
        return f"of {file_name(trace.source)}"
    if not len(trace):
        return "no requests"
    varied = any(np.ptp(column) > 0 for column in (trace.input_tokens, trace.output_tokens))
    lengths = f"{trace.input_tokens.mean():.0f} in, {trace.output_tokens.mean():.0f} out"
    return f"{lengths} on average" if varied else lengths


def _rescheduled(trace: Trace, given: dict[str, Any]) -> tuple[Trace, str]:
    """A trace at another rate, and its schedule for the header: stretched, or with ``burstiness`` drawn anew."""
    rate, own = given["request_rate"], own_rate(trace)
    if own is None or given["redrawn"] or not is_number(rate) or not LEAST_RATE <= rate < math.inf:
        trace = at_rate(trace, rate, given["burstiness"], given["seed"])
        return trace, "all at once" if rate == math.inf else f"at {rate:g}/s"
    return scale_to_rate(trace, rate), f"at {rate:g}/s, {stretch_label(own / rate)}"


def file_name(path: str) -> str:
    """The name of a file without its folders, for headers: ``file_name("a/b.csv")  # 'b.csv'``"""
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return "a pipe"
    return path.replace("\\", "/").rpartition("/")[2]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
