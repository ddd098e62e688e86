"""Sessions of agents, generated: what a few figures say of their turns, tools, sub-agents and shared prompts.

profile = parse_agents("coding-agent,turns=30,tool_wait=2")
trace = generate_sessions(profile, num_sessions=100, request_rate=0.5, seed=1)
fit_profile(read_trace("traces.jsonl"))         # the figures of a trace, for more sessions like its own

The main agent's prompt is the system prompt, its task, and then all that was said: each turn adds its answer and what a
tool gave back. Some turns start sub-agents, each with a prompt of its own; the next turn waits for all of them and has
their last answers in its prompt. At the context limit the history is summed up, and few of its tokens are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_int
from ..specs import catalog
from ..specs.structs import AgentProfile
from .session_builder import SessionBuilder
from .session_metrics import reuse_by_request
from .sessions import Sessions
from .synthetic import MAX_TOKENS, parse_distribution, session_starts
from .trace import Trace, session_trace

FIGURES = tuple(name for name in AgentProfile.__struct_fields__ if name not in ("name", "label", "source"))
_WHOLE = ("system_tokens", "subagent_system_tokens", "context_limit", "compacted_tokens")
_SHARES = ("spawn_share", "reuse")
_DRAWN = 4096  # numbers of a distribution that are drawn at once


def parse_agents(given: str | Mapping[str, Any] | AgentProfile, base: AgentProfile | None = None) -> AgentProfile:
    """A preset by name, with changes: ``parse_agents("coding-agent,turns=30,growth=lognormal:mean=900,std=2000")``"""
    if isinstance(given, AgentProfile):
        return _checked(given)
    changes = {str(key): value for key, value in given.items()} if isinstance(given, Mapping) else _pairs(str(given))
    name = changes.pop("name", None)
    if name is not None and base is None and name not in catalog.agents():
        raise UnknownName("preset of `agents`", str(name), catalog.agents(), field="agents")
    profile = base if base is not None else catalog.agents()[str(name or "coding-agent")]
    for key in changes:
        if key not in FIGURES:
            raise UnknownName("figure of `agents`", key, FIGURES, field="agents")
    return _checked(msgspec.structs.replace(profile, **{key: _figure(key, value) for key, value in changes.items()}))


def _pairs(text: str) -> dict[str, Any]:
    """``"chat,turns=uniform:min=1,max=3"`` by key: a piece that names no figure goes on with the one before it."""
    pairs: dict[str, Any] = {}
    last = ""
    for piece in text.split(","):
        key, sign, value = piece.partition("=")
        key = key.strip().replace("-", "_")
        if not sign and not pairs:
            pairs["name"] = piece.strip()
        elif last and (not sign or key in ("min", "max", "mean", "std", "a", "value")):
            pairs[last] = f"{pairs[last]},{piece.strip()}"
        elif not sign:
            raise BadValue(
                f"`agents` takes a preset and pairs such as turns=30, not {abbreviate(piece)}", field="agents"
            )
        else:
            last, pairs[key] = key, value.strip()
    return pairs


def _figure(key: str, value: Any) -> Any:
    if key not in (*_WHOLE, *_SHARES):
        return value
    try:
        number = float(value)
        return int(number) if key in _WHOLE and number == int(number) else number
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"`agents` {key} must be a number, not {abbreviate(value)}", field="agents") from None


def _checked(profile: AgentProfile) -> AgentProfile:
    for key in _WHOLE:
        value = getattr(profile, key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
            raise BadValue(
                f"`agents` {key} must be a whole number from 0 to {MAX_TOKENS:,}, not {value}", field="agents"
            )
    for key in _SHARES:
        if not 0 <= getattr(profile, key) <= 1:
            raise BadValue(f"`agents` {key} must be from 0 to 1, not {getattr(profile, key)}", field="agents")
    least = profile.system_tokens + profile.compacted_tokens + 1
    if profile.context_limit < least:
        raise BadValue(
            f"`agents` context_limit {profile.context_limit:,} has no room for the system prompt and what is left of a "
            f"history: it must be at least {least:,}",
            field="agents",
        )
    return profile


# ------------------------------------------------------------------ generating


class _Draws:
    """The figures of a profile, drawn one by one: ``next(draws.turns)``"""

    def __init__(self, profile: AgentProfile, rng: np.random.Generator) -> None:
        self.rng = rng
        self.turns, self.subagent_turns = self._of(profile, "turns"), self._of(profile, "subagent_turns")
        self.task, self.growth = self._of(profile, "task_tokens"), self._of(profile, "growth")
        self.output, self.subagents = self._of(profile, "output_len"), self._of(profile, "subagents")
        name = "subagent_growth" if profile.subagent_growth != "" else "growth"
        self.subagent_growth = self._of(profile, name)
        self.wait = self._of(profile, "tool_wait", least=0.0, most=1e7, whole=False)
        self.chance = self._chances()

    def _of(
        self, profile: AgentProfile, name: str, least: float = 1.0, most: float = MAX_TOKENS, whole: bool = True
    ) -> Iterator[Any]:
        drawn = parse_distribution(f"agents {name}", getattr(profile, name), least=least, most=most)
        while True:
            values = drawn.draw_int(self.rng, _DRAWN) if whole else drawn.draw(self.rng, _DRAWN)
            yield from values.tolist()

    def _chances(self) -> Iterator[float]:
        while True:
            yield from self.rng.random(_DRAWN).tolist()


def generate_sessions(
    profile: AgentProfile,
    *,
    num_sessions: int = 100,
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Sessions of agents as a trace; the same seed gives the same ones. ``request_rate``: sessions that begin a second.

    ``generate_sessions(parse_agents("chat"), num_sessions=10, request_rate=0.2).sessions.session``
    """
    rng = np.random.default_rng(check_int("seed", seed, least=0, most=2**63))
    count = check_int("num_sessions", num_sessions, most=10**7)
    starts, draws, build = session_starts(rng, count, request_rate, burstiness), _Draws(profile, rng), SessionBuilder()
    for start in starts.tolist():
        build.session("", start)
        _session(build, profile, draws)
    return session_trace(build, "generated")


def _session(build: SessionBuilder, profile: AgentProfile, draws: _Draws) -> None:
    """One session: the main agent's turns, and sub-agents between some of them."""
    system, limit, agents = profile.system_tokens, profile.context_limit, 0
    prompt, extends, wait = system + next(draws.task), -1, 0.0
    after: tuple[int, ...] = ()
    for left in range(next(draws.turns) - 1, -1, -1):
        prompt = min(prompt, limit)
        output = next(draws.output)
        prefix = None if extends >= 0 else ("system", system)
        turn = build.turn(prompt, output, after=after, wait_s=wait, extends=extends, prefix=prefix)
        after, extends, wait = (turn,), turn, next(draws.wait)
        prompt += output + next(draws.growth)
        if left and profile.spawn_share and next(draws.chance) < profile.spawn_share:
            reports = []
            for _ in range(next(draws.subagents)):
                agents += 1
                reports.append(_subagent(build, profile, draws, turn, agents))
            after, wait = (turn, *reports), 0.0
            prompt += sum(build.output_tokens[report] for report in reports)
        if prompt > limit:  # the history is summed up
            prompt, extends = system + profile.compacted_tokens, -1
        elif profile.reuse < 1 and next(draws.chance) >= profile.reuse:
            extends = -1


def _subagent(build: SessionBuilder, profile: AgentProfile, draws: _Draws, parent: int, agent: int) -> int:
    """The turns of a sub-agent; gives the last of them, whose answer is its report."""
    prompt = profile.subagent_system_tokens + next(draws.task)
    turn, wait = parent, 0.0
    for number in range(next(draws.subagent_turns)):
        output = next(draws.output)
        prompt = min(prompt, profile.context_limit)
        turn = build.turn(
            prompt,
            output,
            after=(turn,),
            wait_s=wait,
            agent=agent,
            extends=turn if number else -1,
            prefix=("sub-agent", profile.subagent_system_tokens),
        )
        wait, prompt = next(draws.wait), prompt + output + next(draws.subagent_growth)
    return turn


# ------------------------------------------------------------------ fitting


def fit_profile(trace: Trace) -> AgentProfile:
    """The figures of a trace's sessions: ``generate_sessions(fit_profile(read_trace("sessions.jsonl")))``

    Lengths and waits are lognormal with the trace's mean and median, and end at its largest one.
    """
    sessions = trace.sessions
    if sessions is None:
        raise BadValue(f"`like` needs a trace with sessions, and {trace.source} has none", field="like")
    main, order = sessions.agent == 0, np.lexsort((sessions.turn, sessions.agent, sessions.session))
    same = (np.diff(sessions.session[order]) == 0) & (np.diff(sessions.agent[order]) == 0)
    before, now = order[:-1][same], order[1:][same]  # every turn, and the one before it of the same agent
    added = trace.input_tokens[now] - trace.input_tokens[before] - trace.output_tokens[before]
    kept = added >= 0
    waits = trace.think_s[now] if trace.think_s is not None else np.zeros(0)
    first = (sessions.turn == 0) & main
    hits = _known_tokens(trace)
    system = int(np.median(hits[first][1:])) if first.sum() > 1 else 0
    resets = trace.input_tokens[now][~kept]
    turns = np.bincount(sessions.session[main])
    return _checked(
        AgentProfile(
            name="fitted",
            label=f"fitted to {trace.source}",
            turns=_lognormal(turns[turns > 0], 1.0),
            system_tokens=system,
            task_tokens=_lognormal(trace.input_tokens[first] - system, 1.0),
            growth=_lognormal(added[kept & main[now]], 1.0),
            output_len=_lognormal(trace.output_tokens, 1.0),
            tool_wait=_lognormal(waits, 0.0),
            context_limit=max(int(trace.input_tokens.max()), system + 2),
            compacted_tokens=max(0, int(np.median(resets)) - system) if len(resets) else 0,
            source=trace.source,
            **_fitted_subagents(trace, sessions, hits, added[kept & ~main[now]]),
        )
    )


def _fitted_subagents(trace: Trace, sessions: Sessions, hits: np.ndarray, added: np.ndarray) -> dict[str, Any]:
    """What a trace says of sub-agents: how often some are started, how many at once, and their turns."""
    begins = np.flatnonzero((sessions.agent > 0) & (sessions.turn == 0))
    if not len(begins) or trace.after is None:
        return {"spawn_share": 0.0}
    at_once = np.unique(trace.after[begins], return_counts=True)[1]
    lane = sessions.session * (int(sessions.agent.max()) + 1) + sessions.agent
    lengths = np.bincount(lane[sessions.agent > 0])
    return {
        "spawn_share": min(1.0, len(at_once) / int((sessions.agent == 0).sum())),
        "subagents": _lognormal(at_once, 1.0),
        "subagent_turns": _lognormal(lengths[lengths > 0], 1.0),
        "subagent_system_tokens": int(np.median(hits[begins])),
        "subagent_growth": _lognormal(added, 1.0),
    }


def _known_tokens(trace: Trace) -> np.ndarray:
    """Tokens of every prompt that requests before it had."""
    hits, blocks = reuse_by_request(trace)
    return np.where(blocks > 0, hits * (trace.input_tokens // np.maximum(blocks, 1)), 0)


def _lognormal(values: np.ndarray, least: float) -> str | float:
    """A distribution with the mean and the median of some values, as text; a number where they are all the same."""
    values = np.maximum(np.asarray(values, float), least)
    if not len(values):
        return max(least, 0.0)
    mean, median, most = float(values.mean()), float(np.median(values)), float(values.max())
    if most - float(values.min()) < 1e-9:
        return round(mean, 3)
    spread = 2 * math.log(
        max(mean, 1e-6) / max(min(median, mean), mean / 50, 1e-6)
    )  # a mean over the median by so much
    std = max(mean * math.sqrt(math.expm1(spread)), float(values.std()) * 0.1)
    return f"lognormal:mean={mean:.4g},std={std:.4g},max={most:.6g}"
