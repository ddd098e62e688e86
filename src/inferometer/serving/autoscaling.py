"""Replicas whose number follows the load: they take a time to start, serve, and drain before they end.

    autoscaling = parse_autoscaling("target=24,startup=90,max=8")
    simulate("llama-3.1-8b", gpu="h200", trace=trace, autoscale=autoscaling).lives      # when each replica served

    @policy
    def constant(autoscaler: Autoscaler, now: float) -> int:
        return 3

A policy is one registered function of the autoscaler and the time; it gives the replicas that should be there. Every
``sync_period`` it decides; between two times requests are dealt out in turn to the replicas that serve.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int, is_number
from ..costs.binding import BoundPlan, stage_plans
from ..inference.weights import weight_bytes
from ..specs.catalog import constants
from ..specs.structs import Spec
from .arrivals import ClosedLoop, OpenLoop, RouterInbox
from .outcome import Outcome, ReplicaLife
from .router import Fleet

POLICIES: dict[str, Callable[[Autoscaler, float], int]] = {}
MAX_REPLICAS = 10**4


class HpaConstants(Spec, frozen=True, kw_only=True):
    """What Kubernetes' HorizontalPodAutoscaler does by default."""

    sync_period: float  # s
    tolerance: float  # of the ratio of the metric to its target, within which nothing changes
    stabilization: float  # s: the highest recommendation of that time counts before replicas are taken away
    scale_up_pods: int  # in a period at most so many more, or …
    scale_up_factor: float  # … times as many, whichever is more
    source: dict[str, str]


class StartupConstants(Spec, frozen=True, kw_only=True):
    """What a replica takes until it serves."""

    engine: float  # s without its weights
    load_bandwidth: float  # bytes/s of weights, of one server
    source: dict[str, str]


class AutoscalingConstants(Spec, frozen=True, kw_only=True):
    """data/autoscaling.toml."""

    hpa: HpaConstants
    startup: StartupConstants


@functools.cache
def autoscaling_constants() -> AutoscalingConstants:
    """data/autoscaling.toml, read once."""
    return constants("autoscaling", AutoscalingConstants)


def startup_seconds(bound_plan: BoundPlan) -> float:
    """Seconds until a new replica of a plan serves: the engine's own start, and all its weights from disk."""
    given, plan = autoscaling_constants().startup, bound_plan.plan
    ranks = plan.tensor_parallel_size * plan.data_parallel_size
    weights = sum(float(weight_bytes(stage)) for stage in stage_plans(bound_plan)) * ranks
    return given.engine + weights / given.load_bandwidth


# ------------------------------------------------------------------ the policy's arguments


class AutoscalingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the number of replicas is chosen: ``AutoscalingOptions(target=24.0, startup=90.0, max=8)``"""

    policy: str = "hpa"
    target: float | None = None  # requests, running and waiting, of each replica (hpa)
    startup: float | None = None  # s from the decision to the first request; None: by the plan's weights
    min: int = 1
    max: int | None = None
    initial: int | None = None  # replicas that serve at the beginning; None: ``min``
    period: float | None = None  # s between two decisions; None: as Kubernetes
    stabilization: float | None = None  # s; None: as Kubernetes
    schedule: tuple[tuple[float, int], ...] = ()  # from when on, s: how many (policy schedule)


_NUMBERS = ("target", "startup", "min", "max", "initial", "period", "stabilization")


def parse_autoscaling(given: str | Mapping[str, Any] | AutoscalingOptions) -> AutoscalingOptions:
    """Checked: ``parse_autoscaling("target=24,startup=90,min=2,max=8")``, the same as a mapping, or the options."""
    if isinstance(given, AutoscalingOptions):
        return given
    if isinstance(given, str):
        pairs = [piece.partition("=") for piece in given.split(",") if piece.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise BadValue(
                f"`autoscale` takes pairs such as target=24,startup=90,max=8, not {given!r}", field="autoscale"
            )
        given = {key.strip(): value.strip() for key, _, value in pairs}
    if not isinstance(given, Mapping):
        raise BadValue(f"`autoscale` takes pairs such as target=24,max=8, not {abbreviate(given)}", field="autoscale")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in (*_NUMBERS, "policy"):
            raise UnknownName("key of `autoscale`", key, (*_NUMBERS, "policy"), field="autoscale")
        values[key] = value if key == "policy" else _number(key, value)
    options = AutoscalingOptions(**values)
    if options.policy not in POLICIES or options.policy == "schedule":
        raise UnknownName("policy of `autoscale`", options.policy, [name for name in POLICIES if name != "schedule"])
    if options.max is not None and options.min > options.max:
        raise BadValue(f"`autoscale` min={options.min} is above max={options.max}", field="autoscale")
    return options


def check_autoscaling(
    options: AutoscalingOptions, source: OpenLoop | ClosedLoop, num_pools: int, router: str
) -> OpenLoop:
    """The source of requests, if replicas that come and go can serve it so."""
    reasons = {
        "one aggregated pool of replicas: leave out `pools` and `prefill_replicas`": num_pools > 1,
        "requests with arrival times: a `request_rate`, or a trace with arrivals": isinstance(source, ClosedLoop),
        "the `router` round_robin": router != "round_robin",
        "target=…: requests per replica, running and waiting": options.policy == "hpa" and not options.target,
    }
    for reason, lacks in reasons.items():
        if lacks:
            raise BadValue(f"`autoscale` needs {reason}", field="autoscale")
    assert isinstance(source, OpenLoop), "checked above"
    return source


def with_startup(options: AutoscalingOptions, bound_plan: BoundPlan) -> AutoscalingOptions:
    """The options with the time that a plan's replica takes to start, unless they say it."""
    if options.startup is not None:
        return options
    return msgspec.structs.replace(options, startup=startup_seconds(bound_plan))


def _number(key: str, value: Any) -> float | int:
    """A figure of the options, within its bounds."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if key in ("min", "max", "initial"):
        is_whole = number is not None and is_number(number) and float(number).is_integer()
        return check_int(
            f"autoscale {key}", int(number) if number is not None and is_whole else value, most=MAX_REPLICAS
        )
    least = 0.0 if key in ("startup", "stabilization") else 1e-3
    if number is None or not is_number(number) or not least <= number <= 1e7:
        raise BadValue(f"`autoscale` {key} must be from {least:g} to 1e+07, not {abbreviate(value)}", field="autoscale")
    return float(number)


# ------------------------------------------------------------------ replicas that come and go


class Replica:
    """A replica at work: its engines (ranks), and the requests that it has."""

    def __init__(self, fleet: Fleet, launched_s: float, ready_s: float) -> None:
        self.servers = fleet.servers
        self.frontends = [Frontend(self, inbox) for inbox in fleet.inboxes]
        self.launched_s, self.ready_s, self.drained_s, self.ended_s = launched_s, ready_s, inf, inf
        self.num_unfinished, self.last_finish = 0, ready_s
        for engine in fleet.replicas:
            engine.on_finished = self._on_finished

    def _on_finished(self, i: int, now: float) -> float:
        self.num_unfinished -= 1
        self.last_finish = max(self.last_finish, now)
        return now

    def run(self, until: float) -> None:
        """Take all steps that begin before ``until``, if there is anything to do."""
        if self.num_unfinished:
            for server in self.servers:
                server.run(until)
        if self.drained_s < inf and not self.num_unfinished:
            self.ended_s = max(self.drained_s, self.last_finish)


class Frontend:
    """What is before an engine: it reads one prompt after the other, as `OpenLoop` does for a single engine."""

    def __init__(self, replica: Replica, inbox: RouterInbox) -> None:
        self.replica, self.inbox, self.free_at = replica, inbox, -inf

    def send(self, i: int, now: float, source: OpenLoop) -> None:
        """A request comes in, and the engine has it when its prompt is read."""
        self.free_at = max(now, self.free_at) + source.tokenize_s[i] if source.tokenize_s else now
        self.inbox.push(i, self.free_at + source.overhead)
        self.replica.num_unfinished += 1
        source.arrival_s[i] = now


class Autoscaler:
    """``Autoscaler(source, launch, options).run()``: serves all requests; ``launch()`` builds one replica's engines."""

    def __init__(
        self,
        source: OpenLoop,
        launch: Callable[[], Fleet],
        options: AutoscalingOptions,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.source, self.launch, self.options, self.progress = source, launch, options, progress
        self.hpa = autoscaling_constants().hpa
        self.period = options.period or self.hpa.sync_period
        self.startup = options.startup or 0.0
        self.serving: list[Replica] = []
        self.starting: list[Replica] = []  # in order of their launch
        self.draining: list[Replica] = []
        self.ended: list[Replica] = []
        self.recommendations: list[tuple[float, int]] = []  # of the policy hpa: when, and how many
        self.index = self.turn = 0  # next request, next engine

    @property
    def num_unfinished(self) -> int:
        """Requests, running and waiting, of the replicas that serve."""
        return sum(replica.num_unfinished for replica in self.serving)

    @property
    def current(self) -> int:
        """Replicas that serve or start."""
        return len(self.serving) + len(self.starting)

    def run(self) -> None:
        """Until everything has finished."""
        source = self.source
        if not source.ids:
            return
        now = source.times[0]
        first = self.options.initial or self.options.min
        self.serving = [Replica(self.launch(), now, now) for _ in range(max(first, self.options.min))]
        while self.index < len(source.ids):
            until = now + self.period
            self._deal_out(until)
            for replica in (*self.serving, *self.draining):
                replica.run(until)
            self._end_drained()
            now = until
            if self.progress is not None:
                self.progress(self.index, len(source.ids))
            if self.index < len(source.ids):
                self._scale(now)
        for replica in (*self.serving, *self.draining):
            replica.run(inf)
        self._end_drained()

    def lives(self) -> tuple[ReplicaLife, ...]:
        """All replicas by the time of their launch."""
        replicas = [*self.ended, *self.draining, *self.serving, *self.starting]
        lives = [
            ReplicaLife(one.launched_s, one.ready_s if one not in self.starting else inf, one.drained_s, one.ended_s)
            for one in replicas
        ]
        return tuple(sorted(lives))

    def _deal_out(self, until: float) -> None:
        """Send the requests that come before ``until`` to the replicas that serve then, in turn."""
        source, index = self.source, self.index
        frontends = [frontend for replica in self.serving for frontend in replica.frontends]
        next_ready = self.starting[0].ready_s if self.starting else inf
        while source.times[index] < until:
            now, i = source.times[index], source.ids[index]
            if now >= next_ready:
                self._promote(now)
                frontends = [frontend for replica in self.serving for frontend in replica.frontends]
                next_ready = self.starting[0].ready_s if self.starting else inf
            frontends[self.turn % len(frontends)].send(i, now, source)
            self.turn += 1
            index += 1
        self.index = index
        self._promote(until)

    def _promote(self, now: float) -> None:
        """Replicas that have started by now serve."""
        while self.starting and self.starting[0].ready_s <= now:
            self.serving.append(self.starting.pop(0))

    def _scale(self, now: float) -> None:
        """Launch or drain replicas as the policy says; those that are still starting go first, then the newest."""
        desired = POLICIES[self.options.policy](self, now)
        desired = min(max(desired, self.options.min), self.options.max or MAX_REPLICAS)
        for _ in range(desired - self.current):
            self.starting.append(Replica(self.launch(), now, now + self.startup))
        self._promote(now)
        for _ in range(self.current - desired):
            replica = (self.starting or self.serving).pop()
            replica.drained_s = now
            if replica.ready_s > now:
                replica.ready_s, replica.ended_s = inf, now
                self.ended.append(replica)
            else:
                self.draining.append(replica)
        self._end_drained()

    def _end_drained(self) -> None:
        """Replicas that got no more requests and have finished all give their GPUs back."""
        for replica in [one for one in self.draining if not one.num_unfinished]:
            replica.ended_s = max(replica.drained_s, replica.last_finish)
            self.draining.remove(replica)
            self.ended.append(replica)


# ------------------------------------------------------------------ policies


def policy(function: Callable[[Autoscaler, float], int]) -> Callable[[Autoscaler, float], int]:
    """Register a policy under its name: ``@policy``; a second one of that name is an error."""
    if function.__name__ in POLICIES:
        raise ValueError(f"a policy named {function.__name__!r} is registered already")
    POLICIES[function.__name__] = function
    return function


@policy
def hpa(autoscaler: Autoscaler, now: float) -> int:
    """As many replicas as have ``target`` requests each, running and waiting; fewer only after a quiet time.

    Kubernetes' HorizontalPodAutoscaler (or KEDA, which drives one) on vllm:num_requests_running + _waiting.
    """
    given, target, current = autoscaler.hpa, autoscaler.options.target, autoscaler.current
    assert target is not None, "checked before"
    ratio = autoscaler.num_unfinished / (target * current)
    steady = abs(ratio - 1) <= given.tolerance
    recommended = current if steady else math.ceil(autoscaler.num_unfinished / target)
    stabilization = autoscaler.options.stabilization
    since = now - (given.stabilization if stabilization is None else stabilization)
    before = autoscaler.recommendations or [(now, current)]
    autoscaler.recommendations = [*(one for one in before if one[0] > since), (now, recommended)]
    if recommended < current:
        return min(current, max(count for _, count in autoscaler.recommendations))
    return min(recommended, max(current + given.scale_up_pods, math.ceil(current * given.scale_up_factor)))


@policy
def schedule(autoscaler: Autoscaler, now: float) -> int:
    """What the schedule says of the time until a replica that is launched now, or a period later, would serve."""
    until = now + autoscaler.startup + autoscaler.period
    steps = autoscaler.options.schedule
    begins = [begin for begin, _ in steps]
    first = max(0, int(np.searchsorted(begins, now + 1e-9, side="right")) - 1)
    return max((count for begin, count in steps[first:] if begin < until - 1e-9), default=autoscaler.current)


# ------------------------------------------------------------------ what the replicas come to


class ReplicaUse(NamedTuple):
    """What replicas come to between two times: ``replica_use(outcome.lives, 0.0, 3600.0).hours``"""

    hours: float  # of all replicas together, from launch to end
    peak: int  # most at once
    times: np.ndarray  # s: from when on …
    serving: np.ndarray  # … so many serve


def replica_use(lives: tuple[ReplicaLife, ...], begin: float, end: float) -> ReplicaUse:
    """Hours of replicas, and how many serve over time."""
    held = [max(0.0, min(life.ended_s, end) - max(life.launched_s, begin)) for life in lives]
    changes = [(max(life.ready_s, begin), 1) for life in lives if life.ready_s < end]
    changes += [(life.drained_s, -1) for life in lives if life.ready_s < inf and life.drained_s < end]
    times = sorted({begin, *(time for time, _ in changes)})
    steps = dict.fromkeys(times, 0)
    for time, change in changes:
        steps[time] += change
    serving = np.cumsum([steps[time] for time in times])
    return ReplicaUse(sum(held) / 3600, int(serving.max(initial=0)), np.array(times), serving)


def replicas_at(lives: tuple[ReplicaLife, ...], times: np.ndarray) -> np.ndarray:
    """How many replicas serve or drain at each time."""
    begins = np.sort([life.ready_s for life in lives if life.ready_s < inf])
    ends = np.sort([life.ended_s for life in lives if life.ready_s < inf])
    count: np.ndarray = np.searchsorted(begins, times, side="right") - np.searchsorted(ends, times, side="right")
    return count


def with_lives(outcome: Outcome, lives: tuple[ReplicaLife, ...], num_engines: int) -> Outcome:
    """The outcome of replicas that came and went; its shares are those of the replicas that serve."""
    serving = replicas_at(lives, outcome.series["time_s"])
    per_replica = num_engines / max(len(lives), 1)
    for name in ("kv_used", "busy"):  # so far of all engines that there ever were
        share = outcome.series[name] * num_engines / np.maximum(serving * per_replica, 1)
        outcome.series[name] = np.minimum(share, 1.0)
    outcome.lives = lives
    return outcome
