"""A live server is driven and timed: against a small real one that streams tokens at known times, and misbehaves."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Ran
from hypothesis import given
from hypothesis import strategies as st

from inferometer.base.errors import BadValue
from inferometer.bench import http_stream, load_generator
from inferometer.bench.bench_result import run_warnings
from inferometer.bench.http_stream import Broken, _Received
from inferometer.bench.load_generator import (
    BenchTarget,
    LoadGenerator,
    PlannedRequest,
    Reply,
    payload,
    read_events,
    server_root,
)
from inferometer.bench.trace_replay import RampUp, measured_trace, outcome_of_replies, planned_requests
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import read_trace

Command = Callable[..., Ran]
FIRST, GAP = 0.0625, 0.25  # s until the first token, and between two, on a clock of the test's own


class Clock:
    """The client's clock: it stands still until the server moves it, and counts how often it is read."""

    def __init__(self) -> None:
        self.now, self.reads = 100.0, 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    for module in (load_generator, http_stream):
        monkeypatch.setattr(module, "perf_counter", own)
    return own


class Fake:
    """A server that speaks /v1/completions and chat, and keeps what it was sent.

    With a clock, it moves it by `FIRST` before the first token and by `GAP` before every other, and goes on when the
    client has read the time: what the client measures is exact, however busy the machine is.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.now = self.most = 0
        self.together = 1  # answers begin when so many requests are there
        self.clock: Clock | None = None
        self.timeouts: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []
        self.trouble: Callable[[int], str] = lambda number: ""
        self.loop = asyncio.new_event_loop()
        self.port = 0
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def reads(self) -> int:
        return self.clock.reads if self.clock else 0

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._handle, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    def stop(self) -> None:
        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get /v1/models"):
            body = b'{"object": "list", "data": [{"id": "tiny"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            return
        length = int(next(line for line in head.split("\r\n") if line.startswith("content-length")).split(":")[1])
        body = json.loads(await reader.readexactly(length))
        body["headers"] = head
        number = len(self.bodies)
        self.bodies.append(body)
        self.now += 1
        self.most = max(self.most, self.now)
        while self.most < self.together:
            await asyncio.sleep(0.001)
        try:
            await self._answer(writer, body, self.trouble(number), "chat" in head.split("\r\n")[0])
        except ConnectionError:
            pass
        finally:
            self.now -= 1
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, Any], trouble: str, chat: bool) -> None:
        if trouble == "500":
            writer.write(b'HTTP/1.1 500 Internal Server Error\r\nContent-Length: 21\r\n\r\n{"error": "no memory"}'[:-1])
            return
        if trouble == "not http":
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            return
        before = self.reads
        chunked = trouble != "cut without chunks"
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + coding + b"\r\n")

        async def received(before: int) -> None:
            await writer.drain()
            while self.clock and self.clock.reads == before:
                await asyncio.sleep(0.001)

        async def send(data: dict[str, Any] | bytes, after: float = 0.0) -> None:
            line = b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
            before = self.reads
            if self.clock:
                self.clock.now += after
            writer.write(b"%x\r\n%s\r\n" % (len(line), line) if chunked else line)
            await received(before)

        await received(before)
        if chat:
            await send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        wanted = body["max_tokens"] if trouble != "short" else body["max_tokens"] // 2
        for token in range(wanted):
            if trouble in ("cut without chunks", "ended early") and token == 2:
                writer.write(b"0\r\n\r\n" if chunked else b"")
                return
            if trouble == "cut" and token == 2:
                writer.transport.abort()
                return
            if trouble == "hang" and token == 1:
                loop, timeout = self.timeouts[-1]  # the client's patience ends here
                loop.call_soon_threadsafe(timeout.reschedule, loop.time())
                await asyncio.Event().wait()
            if trouble == "error event" and token == 1:
                await send({"error": {"message": "out of blocks"}})
            if trouble == "junk" and token == 1:
                await send(b"<html>")
            choice = {"delta": {"content": "x"}} if chat else {"text": "x"}
            await send({"choices": [{"index": 0, **choice, "finish_reason": None}]}, GAP if token else FIRST)
        if trouble == "no usage":
            await send({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
            writer.write(b"0\r\n\r\n")
            return
        await send(
            {"choices": [], "usage": {"prompt_tokens": len(body.get("prompt", "abc")), "completion_tokens": wanted}}
        )
        await send(b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@pytest.fixture
def server() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.stop()


def bench(run: Command, server: Fake, *more: str) -> Ran:
    return run("bench", "--base-url", server.url, "--model", "tiny", *more)


# ------------------------------------------------------------------ times and loops


def test_tokens_are_timed(run: Command, server: Fake, clock: Clock, tmp_path: Path) -> None:
    server.clock, rows = clock, tmp_path / "rows.csv"
    lengths = ("--num-prompts", "6", "--input-len", "12", "--output-len", "5", "--max-concurrency", "1")
    ran = bench(
        run, server, *lengths, "--goodput", "ttft:63 tpot:251", "--requests-out", str(rows), "--seed", "0", "--json"
    )
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["completed"] == 6 and found["failed"] == 0 and found["total_input_tokens"] == 72
    assert found["total_output_tokens"] == 30 and found["schema"] == "inferometer.bench/1"
    assert found["median_ttft_ms"] == pytest.approx(FIRST * 1e3) and found["median_tpot_ms"] == pytest.approx(GAP * 1e3)
    assert found["median_itl_ms"] == pytest.approx(GAP * 1e3)
    assert found["median_e2el_ms"] == pytest.approx((FIRST + 4 * GAP) * 1e3)
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    trace = read_trace(rows)
    assert trace.output_tokens.tolist() == [5] * 6
    assert trace.measured["E2E"] == pytest.approx(trace.measured["TTFT"] + 4 * trace.measured["TPOT"])
    body = server.bodies[0]
    assert body["stream"] is True and body["max_tokens"] == 5 and body["ignore_eos"] is True
    assert len(body["prompt"]) == 12 and all(isinstance(token, int) for token in body["prompt"])
    assert body["prompt"] != server.bodies[1]["prompt"], "no request finds another's prompt in the cache"


def test_requests_are_sent_when_they_are_due(server: Fake, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(load_generator, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    requests = [PlannedRequest(lambda: [1], 1, due) for due in (2.0, 3.5, 0.5)]
    generator = LoadGenerator(BenchTarget(server.url, "tiny"), requests)
    asyncio.run(generator.drive())
    assert slept == [0.5, 1.5, 1.5], "in the order in which they are due"
    assert generator.replies[1] is not None and (generator.replies[1].sent, generator.replies[1].late) == (3.5, 0.0)


def test_open_loop_does_not_wait_and_closed_loop_does(run: Command, server: Fake) -> None:
    words = ("--num-prompts", "6", "--input-len", "3", "--output-len", "3", "--json")
    server.together = 6
    assert bench(run, server, *words).json["max_concurrent_requests"] == 6 == server.most
    server.most, server.together = 0, 2
    found = bench(run, server, *words, "--max-concurrency", "2").json
    assert server.most == 2 and found["max_concurrent_requests"] <= 2 and found["completed"] == 6


def test_one_after_another_without_arrivals(run: Command, server: Fake, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_tokens,output_tokens\n3,2\n4,2\n5,2\n")
    found = bench(run, server, "--trace", str(tmp_path / "t.csv"), "--json").json
    assert server.most == 1 and found["completed"] == 3 and [len(a["prompt"]) for a in server.bodies] == [3, 4, 5]


def test_turns_wait_for_the_answer(run: Command, server: Fake) -> None:
    found = bench(
        run,
        server,
        "--num-prompts",
        "3",
        "--turns",
        "3",
        "--input-len",
        "20",
        "--output-len",
        "12",
        "--think-time",
        "0.01",
        "--json",
    ).json
    assert server.most == 1 and found["completed"] == 3
    prompts = [body["prompt"] for body in server.bodies]
    assert [len(p) for p in prompts] == [20, 52, 84] and prompts[1][:16] == prompts[0][:16]
    assert prompts[2][:48] == prompts[1][:48], "a turn's prompt begins with what was said, block by block"


def test_chat_sends_words(run: Command, server: Fake, clock: Clock) -> None:
    server.clock = clock
    found = bench(
        run,
        server,
        "--max-concurrency",
        "1",
        "--api",
        "chat",
        "--num-prompts",
        "2",
        "--input-len",
        "9",
        "--output-len",
        "4",
        "--api-key",
        "secret",
        "--extra-body",
        '{"top_p": 0.5, "ignore_eos": null}',
        "--json",
    ).json
    assert found["completed"] == 2 and found["total_output_tokens"] == 8
    body = server.bodies[0]
    assert len(body["messages"][0]["content"].split()) == 9 and body["top_p"] == 0.5 and "ignore_eos" not in body
    assert "authorization: bearer secret" in body["headers"] and "chat/completions" in body["headers"]
    assert found["median_ttft_ms"] == pytest.approx(FIRST * 1e3), "the piece that only names the role is no token"


def test_the_table_and_the_rows(run: Command, server: Fake, clock: Clock) -> None:
    server.clock = clock
    words = ("--num-prompts", "2", "--input-len", "3", "--output-len", "2", "--max-concurrency", "1")
    shown = bench(run, server, *words)
    assert shown.code == 0 and "TTFT" in shown.out and "2 requests completed" in shown.out
    rows = list(csv.DictReader(io.StringIO(bench(run, server, *words, "--csv").out)))
    assert [row["status"] for row in rows] == ["done", "done"] and float(rows[0]["TTFT"]) == pytest.approx(FIRST * 1e3)


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ("500", "HTTP 500"),
        ("cut", "closed the connection in the middle of a response"),
        ("cut without chunks", "the response was cut off: it ends without finish_reason or [DONE]"),
        ("ended early", "the response was cut off: it ends without finish_reason or [DONE]"),
        ("hang", "no complete response within 0.4 s"),
        ("error event", "the server said"),
        ("junk", "an event that is not a completion"),
        ("not http", "does not speak HTTP"),
    ],
)
def test_failures_are_counted_and_said(
    run: Command, server: Fake, trouble: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timeout(seconds: float | None, original: Any = asyncio.timeout) -> asyncio.Timeout:
        """One that ends when the server hangs, not by the clock on the wall."""
        made: asyncio.Timeout = original(None)
        server.timeouts.append((asyncio.get_running_loop(), made))
        return made

    monkeypatch.setattr(asyncio, "timeout", timeout)
    server.trouble = lambda number: trouble if number % 2 else ""
    ran = bench(
        run,
        server,
        "--num-prompts",
        "4",
        "--max-concurrency",
        "1",
        "--input-len",
        "3",
        "--output-len",
        "3",
        "--timeout",
        "0.4",
        "--json",
    )
    found = ran.json
    assert ran.code == 0 and found["completed"] == 2 and found["failed"] == 2
    ((why, count),) = found["failures"].items()
    assert sentence in why and count == 2 and "warning: 2 of 4 requests failed: 2 × " in ran.err
    assert found["total_output_tokens"] == 6, "what failed is not in the sums"


def test_all_failed_is_exit_1(run: Command, server: Fake) -> None:
    server.trouble = lambda number: "500"
    ran = bench(run, server, "--num-prompts", "2", "--output-len", "2")
    assert ran.code == 1 and "2 failed: HTTP 500" in ran.out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--base-url", "localhost:8000"], "--base-url must be an address such as http://localhost:8000"),
        (["--base-url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1: no connection to 127.0.0.1:1"),
        (["--api", "embeddings"], "unknown --api 'embeddings'"),
        (["--model", "huge"], "unknown model at http"),
        (["--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--extra-body", "{"], "--extra-body is not valid JSON"),
        (["--timeout", "0"], "--timeout must be a positive number"),
        (["--gpu", "h10"], "unknown model 'tiny'"),
        (["--requests-out", ""], "--requests-out needs the name of a file"),
        (["--trace", "none.csv"], "there is no such file"),
        (["--trace", "none.csv", "--input-len", "5"], "--trace sets all lengths"),
        (["--max-concurrency", "0"], "--max-concurrency must be between 1"),
        (["--metric-percentiles", "50,101"], "--metric-percentiles takes numbers from 0 to 100"),
        (["--percentile-metrics", "ttf"], "unknown --percentile-metrics metric 'ttf'"),
        (["--num-warmups", "-1"], "--num-warmups"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps"),
        (["--ramp-up-end-rps", "3"], "need --ramp-up-strategy: linear or exponential"),
        (
            ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "2", "--ramp-up-end-rps", "1"],
            "--ramp-up-start-rps 2 is above --ramp-up-end-rps 1",
        ),
        (
            [
                "--ramp-up-strategy",
                "linear",
                "--ramp-up-start-rps",
                "1",
                "--ramp-up-end-rps",
                "2",
                "--request-rate",
                "3",
            ],
            "--request-rate and --ramp-up-strategy both set the rate",
        ),
    ],
)
def test_bad_requests_are_one_sentence(run: Command, server: Fake, args: list[str], sentence: str) -> None:
    ran = bench(run, server, *args)
    assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1 and not server.bodies


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_was_measured(server: Fake, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    args = [
        "bench",
        "--base-url",
        server.url,
        "--model",
        "tiny",
        "--num-prompts",
        "500",
        "--max-concurrency",
        "1",
        "--input-len",
        "3",
        "--output-len",
        "2",
        "--requests-out",
        str(rows),
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "inferometer", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(server.bodies) < 4 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    found = json.loads(out)
    assert process.returncode == 130 and "Traceback" not in err and "interrupted" in err
    assert 3 <= found["completed"] < 500 and found["failed"] == 0, "what was never sent did not fail"
    assert found["cancelled"] == 500 - found["completed"]
    assert "in flight" in err and "not sent yet" in err
    done = [row for row in csv.DictReader(rows.open()) if row["status"] == "done"]
    assert len(done) == found["completed"]
    assert len(read_trace(rows)) <= len(done) + 1, "what was never sent has no row, and validate reads the file"


# ------------------------------------------------------------------ as vLLM's benchmark


SAVE_RESULT: dict[str, tuple[type, ...]] = {
    # vllm bench serve --save-result at v0.25.1: vllm/benchmarks/serve.py:2128-2156 (the load), 1188-1212 (the result),
    # 1276-1288 (latencies, here of the default metrics and percentile), less what 2252-2262 takes away
    "date": (str,),
    "endpoint_type": (str,),
    "backend": (str,),
    "label": (type(None), str),
    "model_id": (str,),
    "tokenizer_id": (str,),
    "num_prompts": (int,),
    "request_rate": (float, str),
    "burstiness": (float,),
    "max_concurrency": (int, type(None)),
    "duration": (float,),
    "completed": (int,),
    "failed": (int,),
    "total_input_tokens": (int,),
    "total_output_tokens": (int,),
    "request_throughput": (float,),
    "request_goodput": (type(None), float),
    "output_throughput": (float,),
    "total_token_throughput": (float,),
    "max_output_tokens_per_s": (float,),
    "max_concurrent_requests": (int,),
    "rtfx": (float,),
    **{
        f"{word}_{metric}_ms": (float,)
        for word in ("mean", "median", "std", "p99")
        for metric in ("ttft", "tpot", "itl")
    },
}
SAVE_DETAILED = {  # --save-detailed: what stands in the lists
    "input_lens": int,
    "output_lens": int,
    "ttfts": float,
    "itls": list,
    "start_times": float,
    "generated_texts": str,
    "errors": str,
}
SHORT = ("--num-prompts", "4", "--input-len", "3", "--output-len", "3", "--max-concurrency", "1", "--json")


def test_the_result_has_the_keys_and_types_of_vllm(run: Command, server: Fake, clock: Clock) -> None:
    server.clock = clock
    result = bench(run, server, *SHORT, "--save-detailed").json
    for key, types in SAVE_RESULT.items():
        assert key in result and isinstance(result[key], types), (key, result.get(key))
    for key, kind in SAVE_DETAILED.items():
        assert len(result[key]) == 4 and all(isinstance(value, kind) for value in result[key]), (key, result[key])
    assert (result["request_rate"], result["max_concurrency"], result["backend"]) == ("inf", 1, "openai")
    assert result["errors"] == [""] * 4 and result["generated_texts"] == ["xxx"] * 4
    assert result["max_output_tokens_per_s"] == 5.0, "three of the first request, two of the next"
    plain = bench(run, server, *SHORT, "--label", "night", "--request-rate", "1e3").json
    assert not set(SAVE_DETAILED) & set(plain) and plain["label"] == "night" and plain["request_rate"] == 1000.0


def test_its_own_result_can_be_validated(run: Command, server: Fake, clock: Clock, tmp_path: Path) -> None:
    server.clock = clock
    for more in ((), ("--save-detailed",)):
        file = tmp_path / "bench.json"
        assert bench(run, server, *SHORT, *more, "-o", str(file)).code == 0
        compared = run("validate", "qwen3-0.6b", "--gpu", "h200", "--measured", str(file), "--json")
        assert compared.code == 0, compared.err
        assert compared.json["measured"]["mean_tpot_ms"] == pytest.approx(GAP * 1e3)
        assert bool(compared.json["errors"]) == bool(more), "request by request if there are details"


def test_percentiles_are_those_of_the_flags(run: Command, server: Fake) -> None:
    result = bench(run, server, *SHORT, "--metric-percentiles", "25,99.9", "--percentile-metrics", "ttft,e2el").json
    names = {key for key in result if key.startswith("p") and key.endswith("_ms")}
    assert names == {"p25_ttft_ms", "p99.9_ttft_ms", "p25_e2el_ms", "p99.9_e2el_ms"}
    shown = bench(run, server, *SHORT[:-1], "--metric-percentiles", "25,99.9", "--percentile-metrics", "ttft").out
    assert "p25" in shown and "p99.9" in shown and "p90" not in shown


def test_warm_ups_are_sent_and_not_counted(run: Command, server: Fake) -> None:
    result = bench(run, server, *SHORT, "--num-warmups", "5", "--seed", "3").json
    assert result["completed"] == 4 and len(server.bodies) == 9 and server.most == 1
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert all(len(prompt) == 3 for prompt in prompts) and not set(prompts[:5]) & set(prompts[5:])
    server.trouble = lambda number: "500"
    assert "5 of 5 warm-up requests failed: HTTP 500" in bench(run, server, *SHORT, "--num-warmups", "5").err


def test_a_rate_can_grow(run: Command, server: Fake) -> None:
    assert RampUp("linear", 2, 10).rates(5).tolist() == [2, 4, 6, 8, 10]
    assert RampUp("exponential", 1, 16).rates(5) == pytest.approx([1, 2, 4, 8, 16])
    trace = synthetic(num_prompts=4000, seed=1)
    arrivals = RampUp("linear", 10, 100).of(trace, 1.0, 7).arrival_s
    assert arrivals is not None and arrivals[0] == 0
    assert arrivals[-1] == pytest.approx(4000 * np.log(10) / 90, rel=0.05), "the mean of 1/rate"
    flags = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "500", "--ramp-up-end-rps", "503")
    result = bench(run, server, "--num-prompts", "4", "--input-len", "3", "--output-len", "2", *flags, "--json").json
    assert result["ramp_up_strategy"] == "linear" and result["request_rate"] == "inf"
    assert [event["rps"] for event in result["rps_change_events"]] == [500, 501, 502, 503]
    assert "500 to 503/s (linear)" in result["traffic"]


def test_short_answers_are_said(run: Command, server: Fake) -> None:
    server.trouble = lambda number: "short" if number % 2 else ""
    lengths = ("--num-prompts", "4", "--input-len", "3", "--output-len", "8", "--max-concurrency", "1", "--json")
    ran = bench(run, server, *lengths)
    assert ran.json["completed"] == 4 and "2 of 4 responses were shorter than requested" in ran.err
    assert "4 tokens instead of 8" in ran.err and "ignore_eos" in ran.err
    assert "shorter" not in bench(run, server, *lengths, "--extra-body", '{"ignore_eos": false}').err
    server.trouble = lambda number: "no usage"
    assert "the server sends no usage: tokens are counted by events" in bench(run, server, *lengths).err


def test_what_was_late_is_said_without_blame() -> None:
    def late(connect: float, lag: float = 0.001) -> list[str]:
        replies = [Reply(sent=1.0, first=1.1, last=1.2, late=0.2, connect=connect) for _ in range(50)]
        return run_warnings(replies, None, False, [lag] * 100)

    (server,) = late(0.15)
    assert "200 ms or more after they were due; most of the delay was connecting, while this client kept up" in server
    (client,) = late(0.01)
    assert "most of the delay was before connecting, in this client" in client
    did_not, behind = late(0.15, lag=0.12)
    assert "this client did not keep up" in did_not and "120 ms or more behind for 1% of the time" in behind


def test_a_client_that_cannot_keep_up_notices(server: Fake) -> None:
    """Making a prompt blocks the whole client, so that tokens of others would be timed late."""

    def prompt() -> list[int]:
        time.sleep(0.05)
        return [1]

    generator = LoadGenerator(BenchTarget(server.url, "tiny"), [PlannedRequest(prompt, 2, 0.0) for _ in range(4)])
    asyncio.run(generator.drive())
    assert max(generator.lags) > 0.02, "a nap of 50 ms cannot take less, on no machine"


# ------------------------------------------------------------------ pieces


@pytest.mark.slow
@given(st.lists(st.integers(1, 40), max_size=6), st.booleans(), st.data())
def test_an_answer_is_read_however_it_is_cut(lengths: list[int], chunked: bool, data: st.DataObject) -> None:
    """Chunks, and pieces of the network across them: the same events, each at the moment its last byte came."""
    lines = [b"data: " + b"x" * n + b"\n\n" for n in lengths] + [b"data: [DONE]\n\n"]
    whole = b"".join(lines)
    head = b"HTTP/1.1 200 OK\r\n"
    if chunked:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=4)))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%X\r\n%s\r\n" % (len(p), p) for p in parts)
        raw += b"0\r\n\r\n"
    else:
        raw = head + b"Content-Length: %d\r\n\r\n" % len(whole) + whole
    pieces = sorted(data.draw(st.sets(st.integers(raw.index(b"\r\n\r\n") + 4, len(raw) - 1), max_size=5)))

    async def take() -> _Received:
        received = _Received()
        for a, b in zip([0, *pieces], [*pieces, len(raw)], strict=True):
            received.data_received(raw[a:b])
        assert received.over.done(), "the end is seen without waiting for the connection's"
        received.came = [float(i) for i in range(len(received.pieces))]
        return received

    found = asyncio.run(take()).answer(0.0, 0.0).events()
    assert [event for _, event in found] == [b"x" * n for n in lengths]
    at = len(raw) - (len(raw.split(b"\r\n\r\n", 1)[1]))
    if not chunked:
        for (moment, _), end in zip(found, np.cumsum([len(line) for line in lines]).tolist(), strict=False):
            assert moment == sum(p < at + end - 1 for p in pieces), "the moment of the line's end"


def test_a_cut_answer_is_broken() -> None:
    async def take(raw: bytes) -> None:
        received = _Received()
        received.data_received(raw)
        received.connection_lost(None)
        received.answer(0.0, 0.0)

    for raw, why in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", "middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "without its length"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"hello", "does not speak HTTP"),
    ):
        with pytest.raises(Broken, match=why):
            asyncio.run(take(raw))


def test_events_as_servers_send_them() -> None:
    def reply(*events: dict[str, Any], done: bool = True) -> Reply:
        found = Reply()
        read_events(found, [(float(i), json.dumps(e).encode()) for i, e in enumerate(events)], done=done)
        return found

    text: dict[str, Any] = {"choices": [{"text": "a"}]}
    empty: dict[str, Any] = {"choices": [{"text": "", "finish_reason": None}]}
    stop: dict[str, Any] = {"choices": [{"text": "", "finish_reason": "length"}]}
    assert "cut" in reply(text, empty, done=False).error and not reply(text, empty).error
    found = reply(text, empty, stop, done=False)
    assert (found.first, found.last, found.output_tokens) == (0.0, 1.0, 2), "half a character is a token, an end is not"
    assert found.gaps == [1.0]
    thought: dict[str, Any] = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    role: dict[str, Any] = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    count: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 12}}
    found = reply(role, thought, {"choices": [{"delta": {"content": "a"}}]}, count)
    assert (found.first, found.last, found.output_tokens, found.input_tokens) == (1.0, 2.0, 12, 7)
    assert reply(role).error == "the response has no tokens"


def test_addresses() -> None:
    assert BenchTarget("http://h:1/v1/", "m").url == "http://h:1/v1/completions"
    assert server_root("https://h") == "https://h"
    for bad in ("h:8000", "ftp://h", "http://", "http://h:99999", ""):
        with pytest.raises(BadValue, match="base_url must be an address"):
            server_root(bad)


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_password_in_an_address_is_refused_and_not_printed(scheme: str) -> None:
    with pytest.raises(BadValue) as refused:
        server_root(f"{scheme}://me:s3cret@host:8000/v1")
    assert "s3cret" not in str(refused.value) and "me" not in str(refused.value).split("://")[1].split("host")[0]
    assert ("no user name or password" in str(refused.value)) == (scheme == "http")


def test_prompts_share_what_the_trace_says() -> None:
    trace = synthetic(num_prompts=3, input_len=50, prefix_len=33, output_len=4, seed=5)
    made = [order.prompt() for order in planned_requests(trace, text=False, vocabulary=500, seed=5)]
    assert all(len(p) == 50 for p in made) and made[0][:32] == made[1][:32] and made[0][32:] != made[1][32:]
    assert all(250 <= int(t) < 500 for p in made for t in p), "ids that the model has"
    again = planned_requests(trace, text=False, vocabulary=500, seed=5)[0].prompt()
    assert again == made[0] != planned_requests(trace, text=False, vocabulary=500, seed=6)[0].prompt()
    body = json.loads(payload(BenchTarget("http://h", "m"), PlannedRequest(lambda: "hi", 0, None)))
    assert body["max_tokens"] == 1 and body["prompt"] == "hi"


def test_what_was_measured_is_a_trace_again() -> None:
    trace = synthetic(num_prompts=3, request_rate=5.0, input_len=20, output_len=4, turns=3)
    replies = [
        Reply(sent=1.0, first=1.5, last=2.0, input_tokens=21, output_tokens=4),
        Reply(sent=2.1, error="no"),
        Reply(sent=2.2, first=2.5, last=2.9),
    ]
    run = outcome_of_replies(trace, [*replies])
    assert run.input_tokens.tolist()[0] == 21 and run.output_tokens.tolist() == [4, 4, 4] and run.duration_s == 2.9
    seen = measured_trace(trace, run, closed=False)
    assert len(seen) == 2 and seen.after is not None and seen.after.tolist() == [-1, -1], "the turn between is lost"
    assert seen.measured["TTFT"] == pytest.approx([500, 300]) and seen.measured["TPOT"][0] == pytest.approx(500 / 3)
    assert measured_trace(trace, run, closed=True).arrival_s is None


def test_a_late_client_is_noticed(server: Fake, clock: Clock) -> None:
    def prompt() -> list[int]:
        clock.now += 0.05  # to make it
        return [1]

    generator = LoadGenerator(BenchTarget(server.url, "tiny"), [PlannedRequest(prompt, 1, 0.0) for _ in range(3)])
    asyncio.run(generator.drive())
    late = [reply.late for reply in generator.replies if reply is not None]
    assert late == pytest.approx([0.15] * 3), "all three prompts are made before the first is sent"
