"""Results on disk: whole files or none, rows of requests that `read_trace` reads again, events for chrome://tracing.

write("out.csv", rows_csv(outcome))
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import BadFile
from ..base.files import output_path, user_path, write_all, write_atomic

if TYPE_CHECKING:
    from ..serving.outcome import Outcome

REQUEST_COLUMNS = (
    "request_id",
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "TTFT",
    "TPOT",
    "E2E",
    "queue_ms",
    "cached_tokens",
    "preemptions",
    "replica",
    "status",
)
MAX_EVENTS = 100_000  # requests that a chrome trace shows: its viewers do not open more


def write(path: str | Path, data: str | bytes) -> Path:
    """``write("out.json", text)``: all of it or nothing; what was there before is replaced only by a whole file."""
    return write_atomic(output_path(path), data)


def folder(path: str | Path) -> Path:
    """A folder to write into, made if it is not there."""
    place = user_path(str(path))
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(f"folder {place} cannot be made: {error.strerror}") from None
    return place


def write_folder(path: str | Path, texts: Mapping[str, str], mark: str) -> list[Path]:
    """Write texts by path into a folder, scripts executable; files that were not written here stay, and are an error.

    ``write_folder("plan", {"vllm/serve.sh": "#!/usr/bin/env bash …"}, "Written by …")``. A file was written here if
    it begins with the mark, or is named in a README.md that does.
    """
    place = folder(path)
    readme = _beginning(place / "README.md", 10**6)
    listed = readme if mark in readme[:300] else ""
    for name in texts:
        target = place / name
        if target.exists() and mark not in _beginning(target, 300) and f"`{name}`" not in listed:
            raise BadFile(f"{target} exists and was not written by a search: give another folder to -o, or move it")
    return write_all({place / name: text for name, text in texts.items()})


def _beginning(path: Path, count: int) -> str:
    """The first bytes of a file, '' if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(count).decode(errors="replace")
    except OSError:
        return ""


# ------------------------------------------------------------------ requests one by one


def rows_csv(outcome: Outcome, *, done: bool = False) -> str:
    """One row per request; TTFT, TPOT, E2E and the time in the queue in ms, empty where there is none.

    With ``done`` only those that have all their tokens: what an interrupted run has to show. A request that was never
    sent has no row.
    """
    import numpy as np

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = request_columns(outcome)
    writer.writerow(columns)
    rows = zip(*(_shown(name, column) for name, column in columns.items()), strict=True)
    writer.writerows(itertools.compress(rows, outcome.done if done else ~np.isnan(outcome.arrival_s)))
    return out.getvalue()


def request_columns(outcome: Outcome) -> dict[str, Any]:
    """Requests as columns, one entry for each: ``request_columns(outcome)["TTFT"]``; ms, nan where there is none."""
    import numpy as np

    from ..serving.metrics import latencies

    by_metric = latencies(outcome)
    status = ["done" if done else "unfinished" for done in (~np.isnan(outcome.finished_s)).tolist()]
    for index, reason in outcome.rejected.items():
        status[index] = f"rejected: {reason}"
    columns = (
        np.arange(len(status)),
        outcome.arrival_s,
        outcome.input_tokens,
        outcome.output_tokens,
        *(by_metric[name] for name in ("ttft", "tpot", "e2el")),
        (outcome.scheduled_s - outcome.arrival_s) * 1e3,
        outcome.cached_tokens,
        outcome.preemptions,
        outcome.replica,
        status,
    )
    named = dict(zip(REQUEST_COLUMNS, columns, strict=True))
    if outcome.sessions is not None:
        whose = outcome.sessions
        named |= {"session_id": _session_ids(outcome)[whose.session].tolist(), "agent": whose.agent, "turn": whose.turn}
    for tier in outcome.kv_tiers[1:]:
        named[f"{tier.name}_cached_tokens"] = tier.request_tokens
    return named


def _session_ids(outcome: Outcome) -> Any:
    """The names of the sessions of a run, or their numbers where they have none."""
    import numpy as np

    assert outcome.sessions is not None, "the trace has sessions"
    count, names = len(outcome.sessions), outcome.sessions.names
    return np.array([(names[k] if names else "") or k for k in range(count)], object)


def sessions_csv(outcome: Outcome) -> str:
    """One row per session: its times in s, turns, agents and tokens; empty where one of its turns never ended."""
    from ..serving.session_metrics import session_columns

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = session_columns(outcome)
    writer.writerow(["session_id", *columns])
    shown = (_shown(name, column) for name, column in columns.items())
    writer.writerows(zip(_session_ids(outcome).tolist(), *shown, strict=True))
    return out.getvalue()


def _shown(name: str, values: Any) -> list[Any]:
    """A column's cells: µs of what is in s, and a tenth of one of what is in ms; nothing for nan."""
    import numpy as np

    if isinstance(values, list) or values.dtype.kind != "f":
        return list(values) if isinstance(values, list) else values.tolist()
    return ["" if x != x else x for x in np.round(values, 6 if name.endswith("_s") else 4).tolist()]


def chrome_trace(outcome: Outcome) -> bytes:
    """Events that chrome://tracing and Perfetto show: queue, prefill and decode of every request; counters over time.

    A replica is a process. Its requests take the first lane that is free, so that few lanes show many of them.
    """
    import numpy as np

    events: list[dict[str, Any]] = []
    order = np.argsort(outcome.arrival_s, kind="stable")[:MAX_EVENTS]
    lanes: dict[int, _TraceLanes] = {}
    for index in order.tolist():
        end = float(outcome.finished_s[index])
        if index in outcome.rejected or end != end:
            continue
        replica = int(outcome.replica[index])
        lane = lanes.setdefault(replica, _TraceLanes()).take(float(outcome.arrival_s[index]), end)
        moments = [float(t[index]) for t in (outcome.arrival_s, outcome.scheduled_s, outcome.first_token_s)] + [end]
        what = {
            "request": index,
            "input_tokens": int(outcome.input_tokens[index]),
            "output_tokens": int(outcome.output_tokens[index]),
            "cached_tokens": int(outcome.cached_tokens[index]),
            "preemptions": int(outcome.preemptions[index]),
        }
        for name, start, stop in zip(("queue", "prefill", "decode"), moments, moments[1:], strict=False):
            if stop > start:
                events.append(
                    {
                        "name": name,
                        "cat": "request",
                        "ph": "X",
                        "pid": replica,
                        "tid": lane,
                        "ts": start * 1e6,
                        "dur": (stop - start) * 1e6,
                        "args": what,
                    }
                )
    names = [
        {"name": "process_name", "ph": "M", "pid": replica, "args": {"name": f"replica {replica}"}}
        for replica in sorted(lanes)
    ]
    return msgspec.json.encode({"traceEvents": [*names, *_counters(outcome), *events], "displayTimeUnit": "ms"})


class _TraceLanes:
    """Lanes of one replica, numbered from 1: a request takes the lowest that is free."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.taken: list[tuple[float, int]] = []

    def take(self, start: float, end: float) -> int:
        """The lane of a request from ``start`` to ``end``; requests come in the order of their start."""
        while self.taken and self.taken[0][0] <= start:
            heappush(self.free, heappop(self.taken)[1])
        lane = heappop(self.free) if self.free else len(self.taken) + 1
        heappush(self.taken, (end, lane))
        return lane


def _counters(outcome: Outcome) -> list[dict[str, Any]]:
    series = outcome.series
    names = ("running", "waiting", "kv_used", "tokens_per_s", "batch_tokens")
    times = (series["time_s"] * 1e6).tolist() if "time_s" in series else []
    return [
        {"name": name, "ph": "C", "pid": 0, "ts": time, "args": {name: value}}
        for name in names
        if name in series
        for time, value in zip(times, series[name].tolist(), strict=True)
    ]
