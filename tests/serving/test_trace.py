"""Requests: files in the forms that people publish, requests made up, and what a run of them amounts to."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.base.errors import BadFile, BadValue, InferometerError, UnknownName
from inferometer.serving.metrics import good_requests, latencies, metrics, parse_goodput
from inferometer.serving.outcome import Outcome
from inferometer.serving.synthetic import at_rate, own_rate, parse_distribution, synthetic
from inferometer.serving.trace import Trace, first_requests, read_trace, shared_blocks, turns_before
from inferometer.serving.traffic import load_traffic
from inferometer.views.files import chrome_trace, rows_csv

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return to


# ------------------------------------------------------------------ the forms, as they come


def test_ours(write: Write) -> None:
    trace = read_trace(
        write(
            "request_id,arrival_s,input_tokens,output_tokens,TTFT,TPOT,E2E,note\n"
            'a,0.5,887,149,39.343,5.1443,800.697,x\n\nb,0.25,59,0,20.5,,20.5,"y, z"\n'
        )
    )
    assert trace.input_tokens.tolist() == [887, 59] and trace.output_tokens.tolist() == [149, 0]
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [0.5, 0.25], "in the file's order, unsorted"
    assert trace.measured["TTFT"].tolist() == [39.343, 20.5] and math.isnan(trace.measured["TPOT"][1])
    assert trace.blocks is None and trace.after is None


def test_chat_csv_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "chat.csv").write_text(
        "conversation_id,input_tokens,output_tokens,E2E,TTFT,TPOT\n0,24,200.0,3735.787,24.597,18.649\n"
    )
    trace = read_trace(tmp_path)
    assert (trace.output_tokens[0], trace.measured["E2E"][0], trace.arrival_s) == (200, 3735.787, None)


def test_azure(write: Write) -> None:
    trace = read_trace(
        write(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
            "2023-11-16 18:17:04.0319600,3180,8\n"
        )
    )
    assert trace.arrival_s == pytest.approx([0, 0.052]) and trace.input_tokens.tolist() == [4808, 3180]
    zoned = read_trace(
        write(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01.5+00:00,5,1\n2024-05-10 00:00:00+00:00,6,2\n"
        )
    )
    assert zoned.arrival_s == pytest.approx([1.5, 0])


def test_mooncake(write: Write) -> None:
    trace = read_trace(
        write(
            '{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
            '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n',
            "m.jsonl",
        )
    )
    assert trace.block_tokens == 512 and trace.blocks is not None
    assert [ids.tolist() for ids in trace.blocks] == [[0, 1, 2], [0, 9]]
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [0, 1.5]


def test_burstgpt(write: Write) -> None:
    trace = read_trace(
        write(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n"
        )
    )
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [5, 45.5]
    assert trace.output_tokens.tolist() == [18, 0]


def test_servingsim_and_vidur(write: Write) -> None:
    trace = read_trace(write('{"input_toks": 12, "output_toks": 3, "arrival_time_ns": 2500000000}\n', "l.jsonl"))
    assert (trace.input_tokens[0], trace.arrival_s) == (12, pytest.approx([2.5]))
    trace = read_trace(write("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,7,8\n"))
    assert (trace.input_tokens[0], trace.output_tokens[0], trace.arrival_s) == (7, 8, pytest.approx([0.5]))


def test_prefixes_and_sessions(write: Write) -> None:
    trace = read_trace(
        write("input_tokens,output_tokens,prefix_id,prefix_tokens\n100,5,a,40\n90,5,b,32\n70,5,a,40\n50,5,,0\n")
    )
    assert trace.blocks is not None and trace.block_tokens == 16
    a, b, again, none = (ids.tolist() for ids in trace.blocks)
    assert a == again and len(a) == 2 and len(b) == 2 and not set(a) & set(b) and none == []
    trace = read_trace(
        write("input_tokens,output_tokens,session_id,think_s,arrival_s\n32,16,s,0,0\n32,16,t,0,1\n80,16,s,2.5,0\n")
    )
    assert trace.after is not None and trace.after.tolist() == [-1, -1, 0]
    assert trace.think_s is not None and trace.think_s[2] == 2.5 and trace.blocks is not None
    s, t, later = (ids.tolist() for ids in trace.blocks)
    assert later[:3] == s and len(later) == 6 and not set(t) & set(later), "a prompt begins with all that was said"


def test_clock_times_count_from_the_first(write: Write) -> None:
    trace = read_trace(write("input_tokens,output_tokens,arrival_s\n1,1,1700000003\n1,1,1700000001\n"))
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [2, 0]


def test_the_real_ones(shared: Path) -> None:
    code = read_trace(shared / "reference" / "traces" / "AzureLLMInferenceTrace_code.csv")
    assert len(code) == 8819 and code.input_tokens[0] == 4808 and code.arrival_s is not None
    assert code.arrival_s[-1] == pytest.approx(3435.948, abs=1e-3)
    talk = read_trace(shared / "reference" / "traces" / "mooncake_conversation.jsonl")
    assert talk.blocks is not None and all(
        len(ids) == -(-n // 512) for ids, n in zip(talk.blocks, talk.input_tokens.tolist(), strict=True)
    )
    chat = read_trace(shared / "measured" / "rtx3090" / "llama2-7b_tp1_chat.csv")
    assert len(chat) == 32 and set(chat.measured) == {"TTFT", "TPOT", "E2E"} and chat.arrival_s is None


# ------------------------------------------------------------------ what is wrong with a file


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("input_tokens,output_tokens\n5,6\n7\n", "line 3: 1 cell where the header has 2"),
        (
            "input_tokens,output_tokens\n5,6\n7,many\n",
            "line 3: output_tokens must be a whole number from 0 to 100,000,000, not 'many'",
        ),
        ("input_tokens,output_tokens\n5,6\n\n7,-1\n", "line 4: output_tokens must be a whole number"),
        ("input_tokens,output_tokens\n5,nan\n", "line 2: output_tokens must be a whole number"),
        ("input_tokens,output_tokens\n5.5,1\n", "line 2: input_tokens must be a whole number"),
        ("input_tokens,output_tokens\n0,1\n", "line 2: input_tokens must be a whole number from 1"),
        ("input_tokens,output_tokens\n1e30,1\n", "line 2: input_tokens must be a whole number from 1 to 100,000,000"),
        ("input_tokens,output_tokens,arrival_s\n1,1,\n", "line 2: arrival_s must be a number from 0 to 1e+10, but"),
        ("input_tokens,output_tokens,arrival_s\n1,1,-2\n", "line 2: arrival_s must be a number"),
        ("input_tokens,output_tokens,arrival_s\n1,1,inf\n", "line 2: arrival_s must be a number"),
        ("input_tokens,output_tokens,TTFT\n1,1,-3\n", "line 2: TTFT must be a number"),
        (
            "input_tokens,output_tokens,prefix_tokens\n9,1,10\n",
            "line 2: prefix_tokens must be at most its 9 input_tokens",
        ),
        ("input_tokens,output_tokens\n", "has a header but no requests"),
        ("", "is empty"),
        (
            "a,b\n1,2\n",
            "is not in a known trace format: its columns are a, b; say which are which with columns input_tokens=NAME,",
        ),
        ("input_tokens,output_tokens,input_tokens\n1,2,3\n", "has two columns named 'input_tokens'"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1,1\nyesterday,1,1\n",
            "line 3: TIMESTAMP must be a time such as 2023-11-16 18:15:46.68, not 'yesterday'",
        ),
        ('{"input_toks": 1, "output_toks": 2}\n{"input_toks": 1,\n', "line 2: not JSON"),
        ('{"input_toks": 1, "output_toks": 2}\n{"input_toks": 1}\n', "line 2: output_toks must be a whole number"),
        ('{"input_toks": 1, "output_toks": 2}\n[1]\n', "line 2: '[1]' is not a JSON object"),
        (
            '{"input_toks": 1, "output_toks": 2}\n{"input_toks": 1, "output_toks": 2, "arrival_time_ns": 3}\n',
            "line 2: has 'arrival_time_ns', which the lines before it lack",
        ),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1, "x"]}\n',
            "line 1: hash_ids must be a list of whole numbers",
        ),
        ('[{"input_toks": 1}]', "its columns are input_toks; as LLMServingSim it lacks output_toks; say which"),
        ("[3]", "item 1: 3 is not a JSON object"),
        (b"\xff\xfe\x00", "is UTF-16 text: save it as UTF-8"),
    ],
)
def test_a_broken_file_is_one_sentence(write: Write, text: str | bytes, sentence: str) -> None:
    with pytest.raises(BadFile) as error:
        read_trace(write(text))
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="there is no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(BadFile, match="is a folder without a chat"):
        read_trace(tmp_path)


@pytest.mark.slow
def test_long_files_take_bounded_memory(write: Write) -> None:
    lines = "".join(f"{i},{i * 0.01:.3f},{i % 5000 + 1},{i % 700},39.343,5.14,800.7\n" for i in range(20_000))
    path = write("request_id,arrival_s,input_tokens,output_tokens,TTFT,TPOT,E2E\n" + lines)
    tracemalloc.start()
    trace = read_trace(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    columns = 6 * 8 * len(trace)
    assert len(trace) == 20_000 and peak < 3.2 * columns, "text is never held whole: columns, their pieces, a margin"
    broken = write("input_tokens,output_tokens\n" + "1,1\n" * 5_000 + "1,x\n")
    with pytest.raises(BadFile, match="line 5002"):
        read_trace(broken)


# ------------------------------------------------------------------ requests made up


def test_the_same_seed_gives_the_same_requests() -> None:
    words = {"num_prompts": 50, "request_rate": 3.0, "input_len": "lognormal:mean=300,std=200", "turns": 3}
    one, two, other = (synthetic(**words, seed=s) for s in (1, 1, 2))  # type: ignore[arg-type]
    assert np.array_equal(one.input_tokens, two.input_tokens) and np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.input_tokens, other.input_tokens)


def test_rates_and_bursts() -> None:
    even, poisson, bursts = (
        synthetic(num_prompts=20_000, request_rate=5.0, burstiness=b).arrival_s for b in (100.0, 1.0, 0.25)
    )
    spreads = []
    for arrival in (even, poisson, bursts):
        assert arrival is not None and arrival[0] == 0
        gaps = np.diff(arrival)
        assert gaps.min() >= 0 and gaps.mean() == pytest.approx(0.2, rel=0.05)
        spreads.append(gaps.std() / gaps.mean())
    assert spreads == pytest.approx([0.1, 1.0, 2.0], rel=0.05), "a gamma of shape k varies by 1/√k"
    assert not np.any(synthetic(num_prompts=5).arrival_s), "inf: all at once"


def test_distributions_have_the_figures_that_were_asked() -> None:
    rng = np.random.default_rng(0)
    x = parse_distribution("input_len", "lognormal:mean=512,std=300").draw(rng, 100_000)
    assert (x.mean(), x.std()) == (pytest.approx(512, rel=0.02), pytest.approx(300, rel=0.05))
    x = parse_distribution("input_len", "uniform:min=10,max=20").draw_int(rng, 5000)
    assert (x.min(), x.max(), x.mean()) == (10, 20, pytest.approx(15, abs=0.2))
    x = parse_distribution("input_len", "zipf:a=1.0,min=1,max=4").draw_int(rng, 50_000)
    share = 1 / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert [(x == k).mean() for k in (1, 2, 4)] == pytest.approx([share, share / 2, share / 4], abs=0.01)
    assert parse_distribution("input_len", "lognormal:mean=512,std=3000,max=600").draw(rng, 1000).max() == 600
    assert set(parse_distribution("input_len", 7).draw_int(rng, 3)) == {7}


def test_conversations_grow_and_share() -> None:
    trace = synthetic(
        num_prompts=7, request_rate=1.0, input_len=20, output_len=10, turns=3, think_time=4.0, prefix_len=16
    )
    assert trace.input_tokens.tolist() == [20, 50, 80, 20, 50, 80, 20]
    assert trace.after is not None and trace.after.tolist() == [-1, 0, 1, -1, 3, 4, -1]
    assert trace.think_s is not None and trace.think_s.tolist() == [0, 4, 4, 0, 4, 4, 0]
    assert trace.blocks is not None and [len(ids) for ids in trace.blocks] == [1, 3, 5, 1, 3, 5, 1]
    assert len({int(ids[0]) for ids in trace.blocks}) == 1, "the first block is the prefix that all share"
    assert trace.blocks[2][:3].tolist() == trace.blocks[1].tolist() and trace.blocks[1][1] != trace.blocks[4][1]


def test_users_think_between_their_requests() -> None:
    trace = synthetic(num_prompts=5, users=2, think_time=3)
    assert trace.after is not None and trace.after.tolist() == [-1, -1, 0, 1, 2]
    assert trace.think_s is not None and trace.think_s.tolist() == [0, 0, 3, 3, 3] and trace.blocks is None


def test_a_prefix_is_part_of_the_prompt() -> None:
    trace = synthetic(num_prompts=100, input_len="uniform:min=1,max=200", prefix_len=100)
    assert trace.input_tokens.min() == 101 and trace.blocks is not None
    assert {len(ids) for ids in trace.blocks} == {6} and trace.blocks[0] is trace.blocks[99], "100 // 16, held once"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"request_rate": 0},
            ("request_rate must be a positive number of requests per second, from 1e-09, or inf, not 0"),
        ),
        ({"request_rate": math.nan}, "request_rate must be a positive number"),
        ({"burstiness": 0, "request_rate": 1}, "burstiness must be a positive number"),
        ({"num_prompts": 0}, "num_prompts must be between 1"),
        ({"input_len": "long"}, "input_len must be a number from 1 to 1e+07, or one of fixed, uniform"),
        ({"input_len": "gauss:mean=1"}, "unknown distribution of input_len 'gauss'"),
        ({"input_len": "lognormal:mean=5"}, "input_len lognormal lacks std: it needs mean and std"),
        ({"input_len": "lognormal"}, "input_len lognormal needs mean and std: lognormal:mean=512,std=300"),
        ({"input_len": "uniform:min=9,max=3"}, "input_len uniform: min 9 is above max 3"),
        ({"input_len": "uniform:min=x,max=3"}, "input_len uniform: min must be a number, not 'x'"),
        ({"input_len": "uniform:low=1,max=3"}, "unknown figure of input_len uniform 'low'"),
        ({"output_len": -1}, "output_len must be a number from 0"),
        ({"prefix_len": 2000}, "prefix_len 2,000 must be shorter than the prompts, of which the longest has 1,024"),
        ({"seed": -1}, "seed must be between 0"),
        ({"turns": 0}, "turns must be a number from 1"),
        ({"think_time": "x"}, "think_time must be a number from 0"),
    ],
)
def test_bad_words_are_one_sentence(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(InferometerError) as error:
        synthetic(**words)  # type: ignore[arg-type]
    assert sentence in str(error.value)


def test_a_trace_at_another_rate_and_its_beginning() -> None:
    trace = synthetic(num_prompts=1000, request_rate=1.0, turns=4)
    fast = at_rate(trace, 50.0)
    assert fast.arrival_s is not None and fast.arrival_s[-1] == pytest.approx(20, rel=0.15)
    assert fast.input_tokens is trace.input_tokens
    few = first_requests(trace, 3)
    assert len(few) == 3 and few.blocks is not None and len(few.blocks) == 3 and first_requests(trace, 5000) is trace


def test_a_replayed_trace_is_stretched_to_a_rate(tmp_path: Path) -> None:
    """Ten requests in bursts of two: at half the rate the gaps double, and the header says so."""
    times = np.repeat(np.arange(5) * 10.0, 2)
    path = tmp_path / "bursts.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},8,4\n" for t in times))
    half = load_traffic({"trace": str(path), "request_rate": 9 / 80}, None)
    assert half.trace.arrival_s is not None
    assert half.trace.arrival_s == pytest.approx(2 * times)
    assert half.label == "of bursts.csv, at 0.1125/s, arrivals stretched ×2"
    fast = load_traffic({"trace": str(path), "request_rate": 9.0}, None)
    assert fast.schedule == "at 9/s, arrivals compressed ×40"
    redrawn = load_traffic({"trace": str(path), "request_rate": 9.0, "burstiness": 1.0}, None).trace.arrival_s
    assert redrawn is not None and (np.diff(redrawn) > 0).all()
    assert load_traffic({"trace": str(path), "request_rate": math.inf}, None).schedule == "all at once"
    assert own_rate(half.trace) == pytest.approx(9 / 80)


@given(st.lists(st.integers(-1, 4), max_size=40))
def test_turns_follow_each_other(talks: list[int]) -> None:
    after = turns_before(np.array(talks, int)).tolist()
    for at, (talk, before) in enumerate(zip(talks, after, strict=True)):
        earlier = [i for i in range(at) if talks[i] == talk >= 0]
        assert before == (earlier[-1] if earlier else -1)


@given(st.data())
@settings(max_examples=50)
def test_blocks_are_equal_where_content_is(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    draw = [
        data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n))
        for low, high in ((1, 90), (0, 30), (-1, 2), (0, 60), (-1, 2))
    ]
    given_, made, prefix, heads, talk = (np.array(x) for x in draw)
    blocks = shared_blocks(given_, made, prefix=prefix, prefix_tokens=heads, session=talk)
    for i in range(n):
        head = min(heads[i], given_[i]) // 16 if prefix[i] >= 0 else 0
        assert len(blocks[i]) == ((given_[i] + made[i]) // 16 if talk[i] >= 0 else head)
        for j in range(n):
            other = min(heads[j], given_[j]) // 16 if prefix[j] >= 0 else 0
            for k in range(min(len(blocks[i]), len(blocks[j]))):
                in_prefix = (k < head, k < other)
                same = prefix[i] == prefix[j] if all(in_prefix) else talk[i] == talk[j] and not any(in_prefix)
                assert (blocks[i][k] == blocks[j][k]) == same


# ------------------------------------------------------------------ what a run amounts to


def outcome(
    arrival: list[float],
    first_: list[float],
    finish: list[float],
    output: list[int],
    rejected: dict[int, str] | None = None,
) -> Outcome:
    n = len(arrival)
    zeros = np.zeros(n, np.int64)
    return Outcome(
        arrival_s=np.array(arrival),
        scheduled_s=np.array(arrival),
        first_token_s=np.array(first_),
        finished_s=np.array(finish),
        input_tokens=zeros + 100,
        output_tokens=np.array(output),
        cached_tokens=zeros,
        preemptions=zeros,
        replica=zeros,
        rejected=rejected or {},
        duration_s=float(np.nan_to_num(finish).max()),
        series={},
        steps=0,
        prefix_hit_rate=0.0,
    )


THREE = outcome(
    [0.0, 1.0, 2.0, 2.0], [0.1, 1.3, 2.2, math.nan], [1.1, 1.3, 4.0, math.nan], [11, 1, 10, 5], {3: "too long"}
)


def test_metrics_by_hand() -> None:
    found = metrics(THREE, {"ttft": 250.0, "tpot": 150.0})
    assert found["completed"] == 3 and found["rejected"] == 1 and found["failed"] == 0 and found["duration"] == 4.0
    assert found["total_input_tokens"] == 300 and found["total_output_tokens"] == 22
    assert found["request_throughput"] == 0.75 and found["output_throughput"] == 5.5
    assert found["total_token_throughput"] == 80.5
    assert found["mean_ttft_ms"] == pytest.approx(200) and found["median_ttft_ms"] == pytest.approx(200)
    assert found["p90_ttft_ms"] == pytest.approx(280) and found["p99_ttft_ms"] == pytest.approx(298)
    assert found["std_ttft_ms"] == pytest.approx(np.std([100, 300, 200]))
    assert found["mean_tpot_ms"] == pytest.approx((100 + 200) / 2), "one token has no time per token"
    assert found["mean_itl_ms"] == pytest.approx((10 * 100 + 9 * 200) / 19), "over all gaps"
    assert found["median_itl_ms"] == pytest.approx(100) and found["p90_itl_ms"] == pytest.approx(200)
    assert found["mean_e2el_ms"] == pytest.approx((1100 + 300 + 2000) / 3)
    assert found["request_goodput"] == pytest.approx(1 / 4), "the second is late, the third too slow"
    assert found["max_concurrent_requests"] == 2 and metrics(THREE)["request_goodput"] is None


def test_metrics_of_nothing() -> None:
    found = metrics(outcome([0.0], [math.nan], [math.nan], [5], {0: "no"}))
    assert found["completed"] == 0 and found["mean_ttft_ms"] is None and found["request_throughput"] is None


def test_seen_gaps_are_taken_as_they_are() -> None:
    found = metrics(THREE, gaps_ms=np.array([1.0, 2.0, 9.0]))
    assert (found["mean_itl_ms"], found["median_itl_ms"]) == (4.0, 2.0)


def test_goals_come_in_every_form() -> None:
    for words in (["ttft:500", "tpot:50"], ["ttft:500,tpot:50"], ["ttft:500 tpot:50"], ["TTFT:500,  tpot:50 "]):
        assert parse_goodput(words) == {"ttft": 500.0, "tpot": 50.0}
    for words, error, sentence in (
        (["ttft"], BadValue, "goodput takes pairs such as ttft:500"),
        (["itl:5"], UnknownName, "goodput metric"),
        (["ttft:fast"], BadValue, "goodput ttft must be a number of ms, not 'fast'"),
        (["ttft:-5"], BadValue, "goodput ttft must be a positive number"),
        (["ttft:5", "ttft:6"], BadValue, "limits ttft twice"),
    ):
        with pytest.raises(error, match=sentence):
            parse_goodput(words)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0.001, 5), st.floats(0, 20), st.integers(0, 40)), min_size=1, max_size=30
    ),
    st.floats(1, 5000),
    st.floats(1, 5000),
)
def test_goodput_and_percentiles_are_ordered(rows: list[tuple[float, float, float, int]], a: float, b: float) -> None:
    arrival = [r[0] for r in rows]
    first_ = [r[0] + r[1] for r in rows]
    finish = [f + (r[2] if r[3] > 1 else 0.0) for f, r in zip(first_, rows, strict=True)]
    run = outcome(arrival, first_, finish, [r[3] for r in rows])
    found = metrics(run, {"ttft": a, "e2el": b})
    if found["request_throughput"] is not None:
        assert 0 <= found["request_goodput"] <= found["request_throughput"]
        looser = metrics(run, {"ttft": a * 2, "e2el": b * 2})
        assert looser["request_goodput"] >= found["request_goodput"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        points = [found[f"{p}_{name}_ms"] for p in ("median", "p90", "p99")]
        assert points == sorted(points) if None not in points else points == [None] * 3
    assert 1 <= found["max_concurrent_requests"] <= len(rows)
    assert good_requests(latencies(run), {}).all()


# ------------------------------------------------------------------ requests in files


def test_rows_are_read_again_as_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(rows_csv(THREE))
    trace = read_trace(path)
    assert trace.input_tokens.tolist() == [100] * 4 and trace.output_tokens.tolist() == [11, 1, 10, 5]
    assert trace.measured["TTFT"][:3] == pytest.approx([100, 300, 200]) and math.isnan(trace.measured["TTFT"][3])
    assert math.isnan(trace.measured["TPOT"][1]) and trace.measured["E2E"][2] == pytest.approx(2000)
    assert path.read_text().splitlines()[-1].endswith("rejected: too long")


def test_chrome_events_are_the_parts_of_requests() -> None:
    import json

    run = outcome([0.0, 0.5, 1.5], [0.2, 1.2, 1.7], [1.0, 2.0, 3.0], [5, 5, 5])
    run.scheduled_s = np.array([0.0, 1.0, 1.5])
    run.series = {"time_s": np.array([0.0, 1.0]), "running": np.array([1, 2])}
    events = json.loads(chrome_trace(run))["traceEvents"]
    parts = [e for e in events if e["ph"] == "X"]
    for request in range(3):
        mine = sorted((e for e in parts if e["args"]["request"] == request), key=lambda e: e["ts"])
        assert sum(e["dur"] for e in mine) == pytest.approx((run.finished_s - run.arrival_s)[request] * 1e6)
        assert [e["name"] for e in mine] == (["queue"] if request == 1 else []) + ["prefill", "decode"]
        assert len({e["tid"] for e in mine}) == 1
    lanes = {e["args"]["request"]: e["tid"] for e in parts}
    assert lanes[0] == lanes[2] != lanes[1], "a lane is taken again when its request is over"
    assert [e["args"]["running"] for e in events if e["ph"] == "C"] == [1, 2]
    assert len(Trace(input_tokens=run.input_tokens, output_tokens=run.output_tokens)) == 3


def test_a_block_size_that_is_no_number_is_a_sentence() -> None:
    with pytest.raises(BadValue, match="block_size must be a whole number"):
        load_traffic({"prefix_len": 16, "block_size": "é"}, None)
