"""Sessions: turns wait for what they come after, nothing is lost, equal seeds are equal, prefixes are hit exactly."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.base.errors import BadValue, InferometerError
from inferometer.serving.agent_generator import fit_profile, generate_sessions, parse_agents
from inferometer.serving.prefix_forest import HashIds, PrefixForest
from inferometer.serving.session_builder import SessionBuilder
from inferometer.serving.session_metrics import prefix_reuse, session_columns, session_lanes, session_metrics
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import at_rate, own_rate
from inferometer.serving.trace import Trace, rows_of, session_trace
from inferometer.serving.traffic import cap_waits, first_sessions, load_traffic, warm_start
from inferometer.views.files import rows_csv, sessions_csv

SMALL = "chat,turns=uniform:min=1,max=5,spawn_share=0.4,subagents=2,subagent_turns=2,tool_wait=0.5"


def parents(trace: Trace) -> list[tuple[int, int]]:
    """All pairs of a turn and one that it waits for."""
    assert trace.after is not None and trace.sessions is not None
    pairs = [(i, j) for i, j in enumerate(trace.after.tolist()) if j >= 0]
    return pairs + [(i, j) for i, j in trace.sessions.joins.tolist()]


def by_hand() -> Trace:
    """A plan, two sub-agents, and a turn that joins their reports."""
    build = SessionBuilder()
    build.session("task", start_s=2.0)
    plan = build.turn(1000, 100, prefix=("system", 512))
    reports = [build.turn(400, 50 * k, after=[plan], agent=k, prefix=("sub", 256)) for k in (1, 2)]
    build.turn(1400, 10, after=[plan, *reports], wait_s=1.5, extends=plan)
    return session_trace(build, "by hand")


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 6),
    concurrent=st.none() | st.integers(1, 3),
    in_flight=st.none() | st.integers(1, 4),
    blocks=st.integers(3000, 6000),
    replicas=st.integers(1, 2),
)
def test_no_turn_before_what_it_waits_for(
    seed: int, count: int, concurrent: int | None, in_flight: int | None, blocks: int, replicas: int
) -> None:
    trace = generate_sessions(parse_agents(SMALL), num_sessions=count, request_rate=0.5, seed=seed)
    outcome = simulate(
        "llama-3.1-8b",
        gpu="h200",
        trace=trace,
        concurrent_sessions=concurrent,
        max_concurrency=in_flight,
        num_gpu_blocks_override=blocks,
        data_parallel_size=replicas,
        router="session_affinity",
    )
    assert outcome.done.all() and not outcome.rejected
    assert trace.think_s is not None and trace.sessions is not None
    for turn, parent in parents(trace):
        assert outcome.arrival_s[turn] >= outcome.finished_s[parent] + trace.think_s[turn] - 1e-9
    columns = session_columns(outcome)
    assert columns["input_tokens"].sum() == trace.input_tokens.sum()
    assert columns["output_tokens"].sum() == trace.output_tokens.sum()
    assert (outcome.cached_tokens < trace.input_tokens).all()
    assert (columns["model_s"] <= columns["duration_s"] + 1e-9).all() and (columns["model_s"] > 0).all()
    ends = columns["start_s"] + columns["duration_s"]
    for k, start in enumerate(columns["start_s"].tolist()):
        open_then = (columns["start_s"] <= start) & (ends > start + 1e-9)
        assert concurrent is None or open_then.sum() <= concurrent, k
    for k in range(count):  # a session stays where it is
        assert len(set(outcome.replica[trace.sessions.session == k].tolist())) == 1


def test_a_case_by_hand() -> None:
    outcome = simulate("llama-3.1-8b", gpu="h200", trace=by_hand())
    plan, one, two, join = range(4)
    assert outcome.arrival_s[plan] == 2.0
    assert outcome.arrival_s[one] == outcome.arrival_s[two] == outcome.finished_s[plan]
    assert outcome.arrival_s[join] == pytest.approx(outcome.finished_s[two] + 1.5)
    # of 1,100 tokens said before 1,099 were computed, in whole blocks of 16; the second sub-agent finds what the first
    # one, which is scheduled just before it, has in its prompt, too
    assert outcome.cached_tokens.tolist() == [0, 0, 256, 1088]
    figures = session_metrics(outcome, dollars_per_hour=3.6)
    assert figures is not None and figures["completed"] == 1 and figures["agents_per_session"] == 3
    assert figures["mean_idle_s"] == pytest.approx(1.5)
    assert figures["cost_per_session"] == pytest.approx(outcome.duration_s * 0.001)


def test_equal_seeds_are_equal() -> None:
    one, same, other = (generate_sessions(parse_agents(SMALL), num_sessions=20, seed=seed) for seed in (1, 1, 2))
    for name in ("input_tokens", "output_tokens", "arrival_s", "after", "think_s"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert one.input_tokens.sum() != other.input_tokens.sum()


def test_prompts_grow_by_what_was_said() -> None:
    trace = generate_sessions(parse_agents("chat,turns=4,growth=100,output_len=50,task_tokens=500"), num_sessions=2)
    assert trace.input_tokens.tolist() == [1000, 1150, 1300, 1450] * 2
    assert prefix_reuse(trace) == pytest.approx((1050 + 1200 + 1350 + 500 + 1050 + 1200 + 1350) / (2 * 4900))


def test_a_history_is_summed_up_at_the_limit() -> None:
    profile = parse_agents("chat,turns=30,growth=2000,context_limit=10000,compacted_tokens=1000")
    prompts = generate_sessions(profile, num_sessions=1).input_tokens
    assert prompts.max() <= 10000 and (prompts == 1500).sum() >= 2


def test_a_fit_gives_the_figures_back() -> None:
    asked_for = parse_agents("coding-agent,turns=12,spawn_share=0.2,subagents=2,subagent_turns=3")
    trace = generate_sessions(asked_for, num_sessions=150, seed=3)
    fitted = fit_profile(trace)
    again = generate_sessions(fitted, num_sessions=150, seed=4)
    assert fitted.system_tokens == 15000 and fitted.turns == 12 and fitted.subagents == 2
    assert fitted.spawn_share == pytest.approx(0.2, rel=0.2)
    for name in ("input_tokens", "output_tokens"):
        assert getattr(again, name).mean() == pytest.approx(getattr(trace, name).mean(), rel=0.25)
    assert prefix_reuse(again) == pytest.approx(prefix_reuse(trace), abs=0.03)


def test_hash_ids_part_where_prompts_do() -> None:
    forest = PrefixForest()
    ids = HashIds(forest, 64)
    lists = ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 9], [1, 2, 3], [7])
    leaves = [ids.leaf(np.array(one)) for one in lists]
    from array import array

    prefixes = forest.build(array("q", leaves))
    tokens = np.array([len(one) * 64 for one in lists])
    blocks = prefixes.blocks(64, tokens)
    for i, first in enumerate(lists):
        for j, second in enumerate(lists):
            same = next(
                (k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
            )
            assert (blocks[i][:same] == blocks[j][:same]).all()
            assert same == min(len(first), len(second)) or blocks[i][same] != blocks[j][same]


def test_parts_of_a_trace() -> None:
    trace = generate_sessions(parse_agents(SMALL), num_sessions=10, request_rate=1.0, seed=5)
    some = first_sessions(trace, 3)
    assert some.sessions is not None and trace.sessions is not None and some.after is not None
    assert len(some.sessions) == 3 and len(some) == (trace.sessions.session < 3).sum()
    last = rows_of(trace, np.arange(len(trace) - 1, len(trace)))
    assert last.after is not None and last.after.tolist() == [-1]
    assert cap_waits(trace, 0.1).think_s.max() <= 0.1  # type: ignore[union-attr]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InferometerError, match="max_idle"):
            cap_waits(trace, wrong)
    faster = at_rate(trace, 100.0)
    assert own_rate(faster) == pytest.approx(100.0, rel=0.9) and faster.arrival_s is not None
    starts = faster.arrival_s[trace.sessions.session == 4]
    assert (starts == starts[0]).all()


def test_lanes_are_whole_sessions() -> None:
    trace = generate_sessions(parse_agents(SMALL), num_sessions=60, request_rate=5.0, seed=2)
    assert trace.sessions is not None
    outcome = simulate("llama-3.1-8b", gpu="h200", trace=trace)
    lanes = session_lanes(outcome)
    agents = {(s, a) for s, a in zip(lanes["session"].tolist(), lanes["agent"].tolist(), strict=True)}
    assert 1 <= lanes["shown"] < 60 and 30 < len(agents) <= 40
    assert len(lanes["session"]) == (trace.sessions.session < lanes["shown"]).sum()
    assert (lanes["start_s"] <= lanes["first_token_s"]).all()


def test_rows_say_whose_turn_they_are() -> None:
    outcome = simulate("llama-3.1-8b", gpu="h200", trace=by_hand())
    rows = list(csv.DictReader(io.StringIO(rows_csv(outcome))))
    assert [(r["session_id"], r["agent"], r["turn"]) for r in rows] == [
        ("task", "0", "0"),
        ("task", "1", "0"),
        ("task", "2", "0"),
        ("task", "0", "1"),
    ]
    (session,) = csv.DictReader(io.StringIO(sessions_csv(outcome)))
    assert session["session_id"] == "task" and session["turns"] == "4" and session["agents"] == "3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("codng-agent", "coding-agent"),
        ("chat,trns=3", "turns"),
        ("chat,spawn_share=2", "0 to 1"),
        ("chat,context_limit=100", "context_limit"),
        ("chat,system_tokens=many", "must be a number"),
    ],
)
def test_bad_agents_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InferometerError, match=said) as error:
        parse_agents(text)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------ warm caches at the start


def two_sessions(outputs: int = 65) -> Trace:
    """Two sessions of three turns by hand: a system prompt of 160 tokens that both have, then their own."""
    build = SessionBuilder()
    for number in range(2):
        build.session(f"s{number}", start_s=10.0 * number)
        turn, prompt = -1, 320
        for wait in (0.0, 3.0, 4.0):
            after = (turn,) if turn >= 0 else ()
            turn = build.turn(prompt, outputs, after=after, wait_s=wait, extends=turn, prefix=("system", 160))
            prompt += outputs + 95
    return session_trace(build, "by hand")


def test_a_shared_prompt_is_cached_from_the_start() -> None:
    cold = simulate("llama-3.2-1b", "h200", trace=two_sessions())
    warm = simulate("llama-3.2-1b", "h200", trace=two_sessions(), warm_cache="shared")
    # whole blocks of 16: what was said before is 384 and 544 tokens, and the last token of an answer is never computed
    assert cold.cached_tokens.tolist() == [0, 384, 544, 160, 384, 544]
    assert warm.cached_tokens.tolist() == [160, 384, 544, 160, 384, 544]
    assert warm.arrival_s[:1] == cold.arrival_s[:1]


@pytest.mark.parametrize("seed", range(4))
def test_sessions_under_way_have_their_history_cached(seed: int) -> None:
    trace = warm_start(two_sessions(), 0.5, seed)
    gone = 6 - len(trace)
    assert gone in (1, 2) and trace.sessions is not None and len(trace.sessions) == 2
    outcome = simulate("llama-3.2-1b", "h200", trace=trace)
    assert outcome.cached_tokens.tolist() == [0, 384, 544, 160, 384, 544][gone:]
    assert outcome.arrival_s[0] == (3.0, 4.0)[gone - 1]  # the turn before has just ended: its tool is at work
    assert outcome.arrival_s[3 - gone] == 10.0  # as long after the moment as after the first session's start


@pytest.mark.parametrize("agents", ["coding-agent,turns=7,context_limit=60000", "research-agent,turns=5"])
def test_with_an_endless_cache_warm_turns_hit_what_they_would_have(agents: str) -> None:
    given: dict[str, Any] = {"agents": agents, "num_sessions": 8, "request_rate": 0.2, "max_idle": 5}
    trace = load_traffic(dict(given), None).trace
    cold = simulate("llama-3.2-1b", "h200", trace=trace, num_gpu_blocks_override=10**6)
    warm = simulate("llama-3.2-1b", "h200", trace=warm_start(trace, 1.0, 3), num_gpu_blocks_override=10**6)
    assert trace.sessions is not None and warm.sessions is not None
    key = dict(zip(zip(*trace.sessions[:3], strict=True), cold.cached_tokens, strict=True))
    rows = list(zip(*warm.sessions[:3], strict=True))
    assert 0 < len(rows) < len(trace)
    for row, tokens in zip(rows, warm.cached_tokens, strict=True):
        _, agent, turn = row
        assert tokens >= key[row] and (tokens == key[row] or (agent and not turn))  # sub-agents' system prompt is there


@pytest.mark.parametrize("layout", [{}, {"data_parallel_size": 3, "router": "session_affinity"}])
@pytest.mark.parametrize("policy", ["write_through", "write_back", "write_through_selective"])
def test_a_warm_cache_never_holds_more_than_it_can(layout: dict[str, Any], policy: str) -> None:
    tiers: dict[str, Any] = {"enable_hierarchical_cache": True, "hicache_size": 0.5, "hicache_write_policy": policy}
    tiers |= {"engine": "sglang"}
    given = {"agents": "chat,system_tokens=600", "num_sessions": 40, "request_rate": 1.0, "warm_cache": 0.8}
    outcome = simulate("llama-3.2-1b", "h200", num_gpu_blocks_override=12_000, **given, **tiers, **layout)
    assert outcome.done.all() and outcome.series["kv_used"].max() <= 1.0
    assert all(tier.used_bytes <= tier.capacity_bytes for tier in outcome.kv_tiers)
    assert all(tier.request_tokens.sum() == tier.hit_tokens for tier in outcome.kv_tiers)


def test_what_the_gpu_has_no_room_for_is_in_cpu_memory() -> None:
    """The history of both sessions, of which the GPU holds one; the older one comes from CPU memory."""
    trace = warm_start(two_sessions(), 1.0, seed=2)
    blocks = 60
    outcome = simulate("llama-3.2-1b", "h200", trace=trace, num_gpu_blocks_override=blocks, kv_offloading_size=1)
    endless = simulate("llama-3.2-1b", "h200", trace=trace)
    assert trace.sessions is not None and sorted(trace.sessions.session[:2].tolist()) == [0, 1]
    assert outcome.cached_tokens.tolist()[:2] == endless.cached_tokens.tolist()[:2] == [544, 384]
    assert outcome.kv_tiers[1].hit_tokens > 0
    assert outcome.kv_tiers[1].stored_bytes < outcome.kv_tiers[1].used_bytes  # what was there was not sent


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"agents": "chat", "warm_cache": "hot"}, "shared, or a share of the sessions above 0 and up to 1, not 'hot'"),
        ({"agents": "chat", "warm_cache": 0}, "above 0 and up to 1, not 0"),
        ({"warm_cache": 0.5}, "is about sessions"),
    ],
)
def test_a_wrong_warm_cache_is_one_sentence(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        simulate("llama-3.2-1b", "h200", **more)
