"""Sessions in files: who waits for whom, what is shared, and what the publications of traces say of their reuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.base.errors import BadFile
from inferometer.serving.session_metrics import prefix_reuse, reuse_by_request
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace, first_requests, read_trace


def read(folder: Path, *rows: Any, name: str = "trace.jsonl") -> Trace:
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return read_trace(folder / name)


def waits(trace: Trace) -> list[tuple[list[int], float]]:
    """What every turn waits for, and how long after."""
    assert trace.after is not None and trace.sessions is not None and trace.think_s is not None
    before = [[j] if j >= 0 else [] for j in trace.after.tolist()]
    for i, j in trace.sessions.joins.tolist():
        before[i].append(j)
    return [(sorted(some), round(wait, 6)) for some, wait in zip(before, trace.think_s.tolist(), strict=True)]


def test_mooncakes_synthetic_trace_has_the_reuse_of_its_paper(shared: Path) -> None:
    """Mooncake, FAST'25, table 2: a cache ratio of 66%."""
    path = shared / "reference" / "traces" / "mooncake_synthetic.jsonl"
    if not path.is_file():
        pytest.skip("the public traces are not here")
    assert prefix_reuse(read_trace(path)) == pytest.approx(0.66, abs=0.005)


def test_hashes_reach_the_prefix_cache_exactly(shared: Path) -> None:
    path = shared / "reference" / "traces" / "mooncake_synthetic.jsonl"
    if not path.is_file():
        pytest.skip("the public traces are not here")
    trace = first_requests(read_trace(path), 120)
    outcome = simulate("llama-3.1-8b", gpu="h200", trace=trace, num_gpu_blocks_override=10**6, max_concurrency=1)
    assert trace.blocks is not None
    seen: set[int] = set()
    known = np.zeros(len(trace), np.int64)
    for i, ids in enumerate(trace.blocks):  # a last, short block has an id, too
        new = next((k for k, one in enumerate(ids.tolist()) if one not in seen), len(ids))
        known[i] = min(new * 512, int(trace.input_tokens[i]))
        seen.update(ids.tolist())
    whole = (trace.input_tokens - 1) // 16 * 16  # a prompt that is all there computes its last block again
    assert outcome.cached_tokens.tolist() == np.minimum(known, whole).tolist() and known.sum() > 0


def request(t: float, tokens: int, out: int, ids: list[int], api: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": out, "hash_ids": ids, "api_time": api, **more}


WEKA = {
    "id": "trace_1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        request(0.0, 200, 10, [1, 2, 3], think_time=0.0),
        {
            "t": 5.0,
            "type": "subagent",
            "agent_id": "a",
            "duration_ms": 4000,
            "requests": [request(0.0, 130, 5, [8, 9], 4.0)],
        },
        {
            "t": 5.5,
            "type": "subagent",
            "agent_id": "b",
            "duration_ms": 9e4,
            "requests": [request(0.0, 130, 5, [8, 7], 90.0)],
        },
        request(12.0, 330, 10, [1, 2, 3, 4, 5], think_time=11.0),
        request(14.5, 150, 10, [1, 6]),
    ],
}


def test_weka_sub_agents_fan_out_and_join(tmp_path: Path) -> None:
    trace = read(tmp_path, WEKA, {**WEKA, "id": "trace_2"})
    assert trace.sessions is not None and trace.sessions.names == ("trace_1", "trace_2")
    plan, a, _b, join, _last = range(5)
    # the second sub-agent ended after all calls of its parent: nothing waits for it
    assert waits(trace)[:5] == [([], 0.0), ([plan], 4.0), ([plan], 4.5), ([plan, a], 3.0), ([join], 1.5)]
    assert trace.sessions.agent.tolist()[:5] == [0, 1, 2, 0, 0]
    hits = reuse_by_request(trace)[0].tolist()
    assert hits[:5] == [0, 0, 64, 192, 64] and hits[5:] == hits[:5]  # ids of another session are other content
    everywhere = read(tmp_path, *({**WEKA, "id": n, "hash_id_scope": "global"} for n in "ab"))
    assert reuse_by_request(everywhere)[0].tolist()[5:] == [192, 128, 128, 320, 128]
    folder = tmp_path / "traces"
    folder.mkdir()
    for k in (1, 2):
        (folder / f"trace_{k}.json").write_text(json.dumps(WEKA), encoding="utf-8")
    assert read_trace(folder).input_tokens.tolist() == trace.input_tokens.tolist()


def dynamo(
    number: int, agent: str, start: int, took: int, hashes: list[int], parent: str | None = None
) -> dict[str, Any]:
    context = {"session_id": agent, **({"parent_session_id": parent} if parent else {})}
    replay = {"trace_block_size": 16, "input_length": 16 * len(hashes) + 3, "input_sequence_hashes": hashes}
    asked = {"request_id": str(number), "request_received_ms": start, "total_time_ms": took, "output_tokens": 4}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context}
    return {**event, "request": {**asked, "replay": replay}}


def test_dynamo_sessions_and_their_parents(tmp_path: Path) -> None:
    big = 2**64 - 5
    rows = [
        dynamo(1, "root", 10_000, 1000, [big, 2]),
        dynamo(2, "child", 11_500, 2000, [big, 9], "root"),
        dynamo(3, "root", 14_000, 500, [big, 2, 3, 4]),
        {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}},
        dynamo(4, "other", 30_000, 500, [7]),
    ]
    trace = read(tmp_path, *rows)
    assert waits(trace) == [([], 0.0), ([0], 0.5), ([0, 1], 0.5), ([], 0.0)]
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [0.0, 0.0, 0.0, 20.0]
    assert reuse_by_request(trace)[0].tolist() == [0, 16, 32, 0]
    wrapped = read(tmp_path, *({"timestamp": 1, "event": row} for row in rows))
    assert waits(wrapped) == waits(trace)


def span(name: str, above: str, start: float, end: float, **attributes: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(int(start * 1e9)), "endTimeUnixNano": str(int(end * 1e9))}
    values = [
        {"key": k, "value": {"intValue" if isinstance(v, int) else "stringValue": v}} for k, v in attributes.items()
    ]
    return {"traceId": "t", "spanId": name, "parentSpanId": above, **times, "attributes": values}


def test_opentelemetry_spans_fan_in(tmp_path: Path) -> None:
    def chat(name: str, above: str, start: float, end: float, used: int) -> dict[str, Any]:
        usage = {"gen_ai.usage.input_tokens": used, "gen_ai.usage.output_tokens": 10}
        return span(name, above, start, end, **{"gen_ai.operation.name": "chat", **usage})

    agent = {"gen_ai.operation.name": "invoke_agent"}
    spans = [
        span("lead", "", 0.0, 20.0, **agent),
        chat("plan", "lead", 0.0, 1.0, 100),
        chat("left", "lead", 2.0, 4.0, 150),
        chat("right", "lead", 2.5, 5.0, 160),
        span("helper", "lead", 2.0, 9.0, **agent),
        chat("helps", "helper", 3.0, 8.0, 70),
        chat("answer", "lead", 9.0, 10.0, 400),
    ]
    trace = read(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    plan, left, right, helps, _answer = range(5)
    assert waits(trace) == [
        ([], 0.0),
        ([plan], 1.0),
        ([plan], 1.5),
        ([right], 0.0),
        ([left, right, helps], 1.0),
    ]
    flat = {"spans": [{"span_id": "1", "start_time": "2026-02-25T10:00:00Z", "end_time": "2026-02-25T10:00:02Z"}]}
    flat["spans"][0] |= {
        "name": "chat m",
        "attributes": {"gen_ai.usage.prompt_tokens": 9, "gen_ai.usage.completion_tokens": 2},
    }  # type: ignore[dict-item]
    assert read(tmp_path, flat).input_tokens.tolist() == [9]


def test_our_own_sessions(tmp_path: Path) -> None:
    turns = [
        {"input_tokens": 1000, "output_tokens": 100, "prefix_id": "s", "prefix_tokens": 512},
        {"input_tokens": 300, "output_tokens": 20, "agent": "search"},
        {"input_tokens": 1300, "output_tokens": 10, "after": [0, 1], "wait_s": 2.5},
    ]
    trace = read(tmp_path, {"session_id": "a", "turns": turns}, {"session_id": "b", "start_s": 4, "turns": turns})
    assert waits(trace) == [([], 0.0), ([], 0.0), ([0, 1], 2.5), ([], 0.0), ([], 0.0), ([3, 4], 2.5)]
    assert reuse_by_request(trace)[0].tolist() == [0, 0, 1100, 512, 0, 1100]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"turns": 3}, "turns must be a list of objects"),
        (
            {"turns": [{"input_tokens": 0, "output_tokens": 1}]},
            "turn 0: input_tokens must be a whole number of at least 1",
        ),
        ({"turns": [{"input_tokens": 9, "output_tokens": 1, "after": [0]}]}, "after must be a list of turns before it"),
        (
            {**WEKA, "requests": [{"t": 0, "type": "n", "in": "many", "out": 1}]},
            "session trace_1, request 0: in must be",
        ),
        ({**WEKA, "requests": [request(0.0, 9, 1, ["a"])]}, "hash_ids must be a list of whole numbers"),  # type: ignore[list-item]
        ({**WEKA, "requests": []}, "no turns"),
        ({"schema": "x", "event_type": "request_end", "request": {}}, "record 1: request must have replay"),
        ({"spans": [{"name": "chat m", "attributes": {}}]}, "prompt_tokens must be a number"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said) as error:
        read(tmp_path, row)
    assert "\n" not in str(error.value)
