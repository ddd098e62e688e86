"""A running server, looked at for a while: its own counters before and after, and a few probes where they are allowed.

seen = watch_server("http://localhost:8000", seconds=60)
seen.statistics.preemptions, seen.trace       # requests like those that came, with the figures of the pages
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadFile, BadValue
from ..base.units import plural
from ..serving.benchmark_files import BenchmarkRun
from ..serving.metrics_page import MetricsPage, ServerStatistics, distribution, read_metrics, server_statistics
from ..serving.trace import Trace, shared_blocks
from ..serving.trace_formats import BLOCK
from .http_stream import Broken, Refused, bearer, get
from .load_generator import BenchTarget, LoadGenerator, server_root
from .trace_replay import measured_trace, outcome_of_replies, planned_requests

EVERY = 2.0  # s between two readings
LEAST_REQUESTS = 20  # that must finish while it is watched
MOST_REQUESTS = 1000  # that a simulation is given
PROBES = (64, 256, 1024, 2048, 64, 256, 1024, 2048)  # tokens of their prompts
PROBE_OUTPUT = 24
PATIENCE = 10.0  # s for a page
MOST_FAILED = 5  # readings in a row that may fail
MOST_TOKENS = 1e8  # of a request


class WatchedServer(NamedTuple):
    """What was seen: the server's counters, and requests to simulate with what was measured."""

    statistics: ServerStatistics
    trace: Trace


now: Callable[[], float] = time.monotonic
pause: Callable[[float], None] = time.sleep


def watch_server(url: str, seconds: float, api_key: str | None = None) -> WatchedServer:
    """Read a server's pages for some seconds: ``watch_server("http://localhost:8000", 60).statistics.queue_ms``"""
    headers = bearer(api_key)
    pages = [_page(url, headers)]
    began = last = now()
    end, failed = began + seconds, 0
    while (left := end - now()) > 0:
        pause(min(EVERY, left))
        try:
            pages.append(_next_page(url, headers, pages[0]))
            last, failed = now(), 0
        except BadValue:  # a busy server may miss some
            failed += 1
            if failed > MOST_FAILED or (now() >= end and len(pages) == 1):
                raise
    statistics = _summed(pages, last - began)
    if pages[-1].value("requests") < pages[0].value("requests"):
        raise BadValue(f"the server at {url} was started again while it was watched: its counters began at 0")
    if not statistics.requests >= LEAST_REQUESTS:
        count = int(statistics.requests) if statistics.requests > 0 else 0
        raise BadValue(
            f"{count} requests finished at {url} in {seconds:g} s, and {LEAST_REQUESTS} are needed: raise `watch`, or "
            "let `probe` send some"
        )
    return WatchedServer(statistics, traffic_between(pages[0], pages[-1], statistics))


def probe_server(url: str, model: str, api_key: str | None = None, timeout: float = 60.0) -> WatchedServer:
    """Send a few requests one after another: ``probe_server(url, "llama-3.1-8b").trace.measured``"""
    headers = bearer(api_key)
    before, began = _page(url, headers), now()
    trace = Trace(input_tokens=np.array(PROBES), output_tokens=np.full(len(PROBES), PROBE_OUTPUT), source=url)
    requests = planned_requests(trace, text=True, seed=int(time.time()))
    target = BenchTarget(url, _served_name(url, model, headers), timeout=timeout, headers=headers)
    run = LoadGenerator(target, requests[1:], 1, warmups=requests[:1])
    asyncio.run(run.drive())
    seconds, after = now() - began, _page(url, headers)
    sent = Trace(input_tokens=trace.input_tokens[1:], output_tokens=trace.output_tokens[1:], source=url)
    outcome = outcome_of_replies(sent, run.replies)
    if not outcome.done.any():
        raise BadValue(f"no probe was answered at {url}: {next(iter(outcome.rejected.values())).reason}")
    seen = server_statistics(before, after, seconds)
    notes = other_requests(seen.requests - len(PROBES))
    probed = msgspec.structs.replace(measured_trace(sent, outcome, closed=True), at_client=True, notes=notes)
    return WatchedServer(seen, probed)


def other_requests(count: float) -> tuple[str, ...]:
    """What a probe says where it was not alone: ``other_requests(3.0)``"""
    if not count >= 1:
        return ()
    many = plural(round(count), "other request")
    return (f"{many} finished at the server while it was probed: probes share steps with them, so watch it instead",)


def traffic_between(before: MetricsPage, after: MetricsPage, seen: ServerStatistics, seed: int = 0) -> Trace:
    """Requests with the lengths and the rate of those that a server had between two readings, and what it measured.

    Their prompts share as much as its prefix cache hit.
    """
    if not (1 <= seen.prompt_tokens <= MOST_TOKENS and 1 <= seen.output_tokens <= MOST_TOKENS):
        raise BadValue("the pages of /metrics do not say how long prompts and answers were")
    rng = np.random.default_rng(seed)
    count = int(min(max(seen.requests, LEAST_REQUESTS), MOST_REQUESTS))
    prompts, outputs = (
        lengths.sample(count, rng) if (lengths := distribution(before, after, name)).number else np.full(count, mean)
        for name, mean in (("prompt_lengths", round(seen.prompt_tokens)), ("output_lengths", round(seen.output_tokens)))
    )
    hit = seen.prefix_cache_hit_rate
    blocks = None
    if hit > 0.02:
        shared = (np.minimum(hit, 0.98) * prompts).astype(np.int64)
        blocks = shared_blocks(prompts, outputs, prefix=np.zeros(count, np.int64), prefix_tokens=shared)
    return Trace(
        input_tokens=prompts,
        output_tokens=outputs,
        arrival_s=np.cumsum(rng.exponential(1 / seen.request_rate, count)),
        blocks=blocks,
        block_tokens=BLOCK if blocks is not None else 0,
        run=BenchmarkRun(
            tool="the server's /metrics",
            request_rate=round(seen.request_rate, 3),
            at_client=False,
            metrics=seen.metrics,
        ),
        notes=("lengths are drawn from the server's histograms, and moments from a Poisson process of its rate",),
    )


def _summed(pages: list[MetricsPage], seconds: float) -> ServerStatistics:
    """The first page against the last; gauges over all of them."""
    seen = server_statistics(pages[0], pages[-1], seconds)
    gauges = {name: [page.value(name) for page in pages] for name in ("running", "waiting", "kv_usage")}
    return msgspec.structs.replace(
        seen,
        running=float(np.mean(gauges["running"])),
        waiting=float(np.mean(gauges["waiting"])),
        kv_cache_usage=max(gauges["kv_usage"]),
    )


def _fetched(url: str, path: str, headers: Mapping[str, str]) -> bytes:
    async def fetch() -> bytes:
        async with asyncio.timeout(PATIENCE):
            return (await get(server_root(url, "url") + path, headers)).body

    try:
        return asyncio.run(fetch())
    except (Broken, Refused, TimeoutError) as error:
        raise BadValue(f"{url} does not answer {path}: {str(error) or 'no response in time'}") from None


def _page(url: str, headers: Mapping[str, str]) -> MetricsPage:
    try:
        return read_metrics(_fetched(url, "/metrics", headers).decode(errors="replace"), f"{url}/metrics")
    except BadFile as error:
        raise BadValue(str(error)) from None


def _next_page(url: str, headers: Mapping[str, str], first: MetricsPage) -> MetricsPage:
    """A further reading, which has all that the first one had."""
    page = _page(url, headers)
    if lost := first.values.keys() - page.values.keys():
        raise BadValue(f"{url}/metrics lacks {min(lost)}, which it had before")
    return page


def _served_name(url: str, model: str, headers: Mapping[str, str]) -> str:
    """What the server calls its model: the name that was given, if it knows it, else its first."""
    try:
        names = [str(one["id"]) for one in msgspec.json.decode(_fetched(url, "/v1/models", headers))["data"]]
    except (BadValue, msgspec.DecodeError, LookupError, TypeError):
        return model
    return model if model in names or not names else names[0]


def known_figures(seen: ServerStatistics) -> dict[str, object]:
    """What the counters say, for JSON: what they do not say is null."""
    figures: dict[str, object] = msgspec.structs.asdict(seen)
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in figures.items()}
