"""The search for sessions: it finds what trying every plan finds, its floors are floors, it says why nothing holds."""

import json
import math

import numpy as np
import pytest

import inferometer
from inferometer import InferometerError
from inferometer.search.session_bounds import shareable_tokens, span_floor, turn_floors
from inferometer.search.session_plans import CLOSE, SessionSearchRun
from inferometer.search.session_search import session_problem, session_search
from inferometer.serving.metrics import latencies

AGENTS = "chat,turns=6,system_tokens=2000,task_tokens=3000,growth=1500,tool_wait=2"
SESSIONS = {"agents": AGENTS, "num_sessions": 24, "request_rate": 1.5}
SPACE = {"tensor_parallel_size": 1, "kv_cache_dtype": "auto", "num_gpus": 3, "gpu_memory_utilization": 0.45}
MODEL, GPU = "llama-3.1-8b", "l40s"


def searched(**more):
    return session_search(MODEL, GPU, **{**SESSIONS, **SPACE, "goodput": "ttft:1500", "quantization": "fp8", **more})


@pytest.mark.slow
@pytest.mark.parametrize(("goodput", "rate"), [("ttft:28000", 1.5), ("ttft:300", 3.0), ("ttft:17000,tpot:200", 4.0)])
def test_it_finds_what_trying_every_plan_finds(goodput, rate, monkeypatch):
    space = {"kv_offloading_size": (0, 4, 16), "quantization": ("bf16", "fp8")}
    space |= {"router": ("session_affinity", "round_robin"), "goodput": goodput, "request_rate": rate}
    space["num_sessions"] = 16
    result = searched(**space)
    assert result.counts["plans_simulated"] < result.counts["plans"]
    every = SessionSearchRun(
        session_problem(MODEL, GPU, None, {**SESSIONS, **SPACE, **space}), lambda stage, done: None
    )
    monkeypatch.setattr(every, "_unused_memory", lambda case: None)
    plans = {plan.label: plan for plan in (every.simulate(case, whole=True) for case in every.cases)}
    costs = [plan.cost_per_session for plan in plans.values() if plan.holds]
    assert len(plans) == result.counts["plans"] == every.simulations == 30
    assert result.feasible == bool(costs)
    assert min(costs) <= result.winner.cost_per_session * (1 + 1e-9)
    assert result.winner.cost_per_session <= min(costs) * (1 + CLOSE) ** 2
    for plan in result.plans:  # those that were not simulated, but read off one with more memory, among them
        other = plans[plan.label]
        assert plan.stopped or (plan.holds == other.holds and plan.tier_shares == pytest.approx(other.tier_shares))
        assert plan.stopped or plan.cost_per_session == pytest.approx(other.cost_per_session, rel=1e-9)


@pytest.mark.slow
def test_more_cpu_memory_never_makes_the_winner_dearer():
    last, first = math.inf, None
    for sizes in ([0], [0, 2], [0, 2, 8], [0, 2, 8, 64]):
        result = searched(kv_offloading_size=sizes, goodput="ttft:28000", quantization="bf16")
        cost = result.winner.cost_per_session if result.feasible else math.inf
        assert cost <= last
        last, first = cost, cost if first is None else first
    assert last < first * (1 - CLOSE)


def test_the_winner_is_what_simulate_gives_and_its_command_says_so(run):
    result = searched(kv_offloading_size=0)
    winner = result.winner
    assert winner is result.plans[0] and winner.holds and winner.good_share >= 0.9 and not winner.stopped
    again = result.commands["bench"][-1].split()[1:]
    printed = run(*again, "--json")
    assert printed.code == 0, printed.err
    simulated = json.loads(printed.out)
    assert simulated["sessions"]["cost_per_session"] == pytest.approx(winner.cost_per_session, rel=1e-12)
    assert simulated["p99_ttft_ms"] == pytest.approx(winner.ttft_ms["p99"], rel=1e-12)
    assert any(f"{winner.pool.replicas} server" in line for line in result.commands["vllm"])
    assert all(
        plan.gpus > winner.gpus or plan.cost_per_session >= winner.cost_per_session * (1 - CLOSE)
        for plan in result.plans
        if plan.holds
    )


def test_a_limit_that_no_turn_can_keep_is_said_without_a_simulation():
    result = searched(goodput="ttft:1", kv_offloading_size=0)
    assert not result.feasible and result.winner is None and result.counts["simulations"] == 0
    assert "even where nothing else runs" in result.reason and not result.relaxations
    assert result.rejections == {"too slow even where nothing else runs": 1}


@pytest.mark.slow
def test_where_nothing_holds_the_changes_that_are_named_work():
    given = {"kv_offloading_size": 0, "num_gpus": 1, "request_rate": 6.0}
    result = searched(goodput="ttft:400", **given)
    assert not result.feasible and "the closest is 1 × tp1" in result.reason and "TTFT p90" in result.reason
    changes = [one.change.split() for one in result.relaxations]
    assert changes[0][0] == "--goodput"
    assert searched(goodput=changes[0][1], **given).feasible
    assert changes[1][0] == "--num-gpus"
    assert searched(goodput="ttft:400", **{**given, "num_gpus": int(changes[1][1])}).feasible
    assert all(plan.gpus <= 1 for plan in result.plans)


@pytest.mark.parametrize("agents", ["coding-agent,turns=8", "research-agent,turns=4", "chat,reuse=0.7"])
def test_no_turn_is_faster_than_its_floor(agents):
    given = {"agents": agents, "num_sessions": 12, "request_rate": 0.5, **SPACE, "goodput": "ttft:1e6"}
    problem = session_problem(MODEL, "h200", None, {**given, "quantization": "fp8", "kv_offloading_size": 64})
    search = SessionSearchRun(problem, lambda stage, done: None)
    case = search.cases[-1]
    plan = search.simulate(case, whole=True)
    outcome, trace = search.outcomes[case], problem.trace
    floors = turn_floors(search.servers[0].pool, shareable_tokens(trace), trace)
    latency = latencies(outcome)
    done = outcome.done
    assert done.sum() > 0.9 * len(done)
    assert (floors.ttft_s[done] * 1e3 <= latency["ttft"][done]).all()
    assert (floors.e2el_s[done] * 1e3 <= latency["e2el"][done]).all()
    assert (floors.ttft_s > 0).sum() > 0.9 * len(trace)
    assert 0.45 * plan.duration_s < span_floor(trace, floors.e2el_s) <= plan.duration_s


def test_floors_by_hand():
    """Two turns of a session: the second shares the first's prompt and answer; the system prompt is everybody's."""
    given = {"agents": "chat,turns=2,system_tokens=1000,task_tokens=500,output_len=100,growth=50,tool_wait=3"}
    problem = session_problem(MODEL, GPU, None, {**given, "num_sessions": 2, **SPACE, "goodput": "ttft:1e6"})
    assert shareable_tokens(problem.trace).tolist() == [1000, 1600, 1000, 1600]
    assert span_floor(problem.trace, np.array([1.0, 2.0, 1.0, 1.0])) == pytest.approx(6.0)
    assert span_floor(problem.trace, np.array([1.0, 2.0, 1.0, 1.0]), 1) == pytest.approx(11.0)


@pytest.mark.slow
def test_a_run_that_was_stopped_would_not_have_held():
    given = {**SESSIONS, **SPACE, "goodput": "ttft:300", "quantization": "bf16", "kv_offloading_size": [0, 8]}
    search = SessionSearchRun(session_problem(MODEL, GPU, None, given), lambda stage, done: None)
    for case in search.cases:
        stopped = search.simulate(case)
        assert stopped.stopped or stopped.holds
        whole = search.simulate(case, whole=True)
        if stopped.stopped:
            assert whole.good_share <= stopped.good_share < 0.9
        assert whole.holds == stopped.holds


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"goodput": None}, "needs limits of every turn"),
        ({"request_rate": "max"}, "needs a request_rate of new sessions"),
        ({"objective": "latency"}, "leave out objective"),
        ({"mode": "disaggregated"}, "aggregated servers only"),
        ({"input_len": 100}, "takes no input_len"),
        ({"router": "sticky"}, "router 'sticky'"),
        ({"agents": None}, "needs agents, like, or a trace"),
        ({"enable_hierarchical_cache": True}, "leave out enable_hierarchical_cache"),
        ({"goodput": "ttft:0"}, "goodput"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(more, sentence):
    with pytest.raises(InferometerError, match=sentence):
        searched(**more)


def test_the_command_line_prints_json_and_its_code_says_whether_a_plan_holds(run, tmp_path):
    trace = tmp_path / "sessions.jsonl"
    turns = [{"input_tokens": 900, "output_tokens": 80}, {"input_tokens": 2000, "output_tokens": 50, "wait_s": 2}]
    rows = [{"session_id": f"s{n}", "start_s": float(n), "turns": turns} for n in range(5)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    begin = ["search", MODEL, "--gpu", GPU, "--trace", str(trace), "--num-gpus", "1", "-q", "fp8", "--json"]
    flags = [*begin, "--kv-cache-dtype", "auto", "--kv-offloading-size", "0"]
    held = run(*flags, "--goodput", "ttft:5000")
    assert held.code == 0, held.err
    result = json.loads(held.out)
    assert result["schema"] == "inferometer.session_search/1" and result["turns"] == 10 and result["sessions"] == 5
    assert result["winner"]["label"] == "1 × tp1 fp8, KV bf16" and result["counts"]["plans_simulated"] == 1
    failed = run(*flags, "--goodput", "ttft:1")
    assert failed.code == 1 and json.loads(failed.out)["feasible"] is False and "infeasible: " in failed.err
    wrong = run(*flags)
    assert wrong.code == 2 and wrong.err.count("\n") == 1


@pytest.mark.slow
def test_search_with_agents_is_the_search_for_sessions_and_its_router_is_started():
    given = {**SESSIONS, **SPACE, "goodput": "ttft:100000", "quantization": "fp8", "kv_offloading_size": 0}
    result = inferometer.search(MODEL, GPU, **given)
    assert isinstance(result, inferometer.SessionSearch) and result.winner.pool.replicas == 1
    assert result.rows()[0]["label"] == result.winner.label and "SessionSearch" in repr(result)
    text = result.to_text(120)
    assert f"simulated with all {SESSIONS['num_sessions']} sessions" in text and "vllm serve" in text


def test_each_engines_router_keeps_sessions_together():
    from inferometer.search.launch.routers import Backend, router_process

    backends = [Backend("server", "a:1"), Backend("server", "b:1")]
    vllm = router_process("vllm", backends, router="session_affinity")
    assert vllm.argv[vllm.argv.index("--policy") + 1] == "consistent_hash" and "X-Session-ID" in vllm.comment
    sglang = router_process("sglang", backends, router="prefix_aware")
    assert sglang.argv[sglang.argv.index("--policy") + 1] == "cache_aware"
    nginx = router_process("trtllm", backends, router="session_affinity")
    assert "hash $http_x_session_id consistent;" in nginx.files["nginx.conf"]
    assert "hash" not in router_process("trtllm", backends).files["nginx.conf"]
