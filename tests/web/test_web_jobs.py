"""Results of jobs over real HTTP: found again by their name, for a stated time, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from helpers.web_server import Server, serving

from inferometer.web import jobs as module
from inferometer.web.answers import JsonAnswer
from inferometer.web.jobs import Job, Jobs

PLAN = {"model": "llama-3.1-8b", "gpu": "h200"}
BODY = {"plan": PLAN, "traffic": {"num_prompts": 5, "request_rate": 4, "input_len": 64, "output_len": 4}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--keep-results", "2.5") as server:
        yield server


@pytest.mark.slow
def test_a_result_is_found_again_by_its_name(server: Server) -> None:
    first = server.job("/api/simulate", BODY)
    assert re.fullmatch("[0-9a-f]{32}", first["job"]), "128 random bits"
    again = server.get(f"/api/jobs/{first['job']}").json
    assert again["result"] == first["result"] and 8900 < again["kept_s"] <= 9000, "2.5 hours"
    assert server.post("/api/simulate", BODY).json["job"] == first["job"], "the same question has the same answer"
    other = {**BODY, "traffic": {**BODY["traffic"], "seed": 1}}
    assert server.post("/api/simulate", other).json["job"] != first["job"]


@pytest.mark.slow
def test_a_name_that_is_not_kept_is_a_sentence(server: Server) -> None:
    refused = server.get(f"/api/jobs/{'0' * 32}")
    assert refused.status == 404 and "keeps results for 2.5 h, and the last 200 of them" in refused.json["error"]


@pytest.mark.slow
def test_a_search_of_a_trace_takes_its_columns(server: Server) -> None:
    text = "n_in,n_out,arrival_s\n" + "".join(f"{100 + i},{10 + i % 5},{i / 4}\n" for i in range(40))
    body = {"plan": PLAN, "num_gpus": 1, "goodput": "ttft:500,tpot:50", "finalists": 1, "mode": "aggregated"}
    trace = {"trace": {"name": "chat.csv", "text": text}, "columns": "input_tokens=n_in,output_tokens=n_out"}
    result = server.job("/api/search", {**body, **trace})["result"]
    assert "--columns input_tokens=n_in,output_tokens=n_out" in result["command"]
    assert result["workload"]["input_len"] == 119.5
    lacking = server.job("/api/search", {**body, "columns": "input_tokens=n_in"})
    assert "none was sent" in lacking["error"]


def end_one(jobs: Jobs, name: str, size: int = 10) -> None:
    """A job that is over, with a result of so many bytes."""
    job = Job(name=name, verb="search", begun=0.0, request=b"")
    job.answer = JsonAnswer(200, b"1" * size)
    jobs.jobs[job.name] = job
    jobs._end(job, "done")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of `Jobs`, as a test sets it."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def names(jobs: Jobs) -> list[str]:
    jobs._forget()
    return list(jobs.jobs)


def test_results_are_forgotten_when_their_time_is_over(clock: list[float]) -> None:
    jobs = Jobs(kept_hours=1)
    for clock[0] in (0.0, 1800.0):
        end_one(jobs, f"{clock[0]:g}")
    running = Job(name="running", verb="search", begun=0.0, request=b"", state="running")
    jobs.jobs["running"] = running
    clock[0] = 3599.0
    assert names(jobs) == ["0", "1800", "running"]
    clock[0] = 3601.0
    assert names(jobs) == ["1800", "running"]
    clock[0] = 1e6
    assert names(jobs) == ["running"], "what is under way stays"


def test_the_memory_of_results_is_bounded(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_JOBS", 3)
    monkeypatch.setattr(module, "KEPT_BYTES", 100)
    jobs = Jobs()
    for clock[0] in range(1, 6):
        end_one(jobs, f"{clock[0]}")
    assert names(jobs) == ["3", "4", "5"], "the newest"
    jobs.jobs["3"].ended = 6.0  # asked for anew
    clock[0] = 7.0
    end_one(jobs, "large", 85)
    assert names(jobs) == ["3", "large"], "85 + 10 bytes"
    clock[0] = 8.0
    end_one(jobs, "huge", 1000)
    assert names(jobs) == ["huge"], "the last one can be read, however large"
