"""The mock server over real HTTP: what OpenAI's clients, Prometheus, load generators and bad clients get from it.

Its clock runs fifty times as fast. What is timed is read from the simulated clock, never from this machine's.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from conftest import Ran
from helpers.web_server import Server
from uvicorn import Config
from uvicorn.server import ServerState

import inferometer
from inferometer.cli.mock import application
from inferometer.web.http_server import RECEIVED, ServerLimits, _protocol
from inferometer.web.mock.filler import PromptTokens, tokens_of
from inferometer.web.mock.mock_server import ABANDONED, MAX_BODY, TO_CONNECT, Choice
from inferometer.web.mock.openai_api import Shapes, read_request
from inferometer.web.mock.vllm_metrics import EngineTotals, Histogram, buckets_1_2_5

MODEL, GPU = "llama-3.1-8b", "h200"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = {"type": "text", "text": ""}
SAMPLE = re.compile(r'[a-z0-9_]+(:[a-z0-9_]+)?(\{([a-z_]+="[^"]*"(,|(?=\})))*\})? (\d|\+Inf|-)\S*')


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    code = "import sys; from inferometer.cli import main; sys.exit(main(['mock', *sys.argv[1:]]))"
    flags = [MODEL, "--gpu", GPU, "--port", "0", "--speed", "50", "--max-model-len", "20000", "--output-len", "40"]
    flags += ["--served-model-name", f"{MODEL},alias", "--enable-prompt-tokens-details"]
    process = subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://\S+(?=/v1)", said)
        assert address, f"the server said {said!r}"
        yield Server(address[0], process)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, "it ends well"


def values(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    text = server.get("/metrics").body.decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))


def events(body: bytes) -> list[Any]:
    """The data of server-sent events, up to the last one, which says that it is."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def error(server: Server, path: str, body: Any, **headers: str) -> dict[str, Any]:
    reply = server.post(path, body, **headers)
    told: dict[str, Any] = reply.json["error"]
    assert set(told) == {"message", "type", "param", "code"} and told["code"] == reply.status
    return told


# ------------------------------------------------------------------ answers


@pytest.mark.slow
def test_a_stream_has_every_token_and_the_usage(server: Server) -> None:
    body = {"model": "alias", "prompt": list(range(100)), "max_tokens": 30, "ignore_eos": True, "stream": True}
    reply = server.post(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream")
    *pieces, usage = events(reply.body)
    assert len({piece["id"] for piece in pieces}) == 1 and {piece["object"] for piece in pieces} == {"text_completion"}
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    assert len(text.split()) == 30 and usage["choices"] == []
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert usage["usage"]["prompt_tokens"] == 100 and usage["usage"]["completion_tokens"] == 30
    again, other = (server.post(COMPLETIONS, {**body, "stream": False, "seed": seed}).json for seed in (0, 1))
    assert again["choices"][0]["text"] == text != other["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96, "six blocks of 16, from the first time"


@pytest.mark.slow
def test_a_chat_says_its_role_and_ends_by_itself(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]
    streamed = events(server.post(CHAT, {"messages": messages, "stream": True}).body)
    assert streamed[0]["object"] == "chat.completion.chunk"
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reply = server.post(CHAT, {"messages": messages, "n": 2, "max_completion_tokens": 500}).json
    first, second = reply["choices"]
    said = "".join(piece["choices"][0]["delta"]["content"] for piece in streamed)
    assert first["message"] == {"role": "assistant", "content": said.strip()} and second["index"] == 1
    assert first["finish_reason"] == "stop" and len(said.split()) == 40, "--output-len"
    assert reply["usage"]["completion_tokens"] == 80 and reply["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [
        ({}, 16, "length"),  # the default of completions
        ({"max_tokens": 100}, 40, "stop"),
        ({"max_tokens": 100, "min_tokens": 60}, 60, "stop"),
        ({"max_tokens": 100, "ignore_eos": True}, 100, "length"),
        ({"max_tokens": 40}, 40, "length"),
    ],
)
def test_lengths_of_answers(server: Server, limits: dict[str, Any], tokens: int, reason: str) -> None:
    reply = server.post(COMPLETIONS, {"prompt": "Hello", **limits}).json
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (tokens, reason)


def test_several_prompts_and_choices_are_numbered(server: Server) -> None:
    reply = server.post(COMPLETIONS, {"prompt": ["one", [1, 2, 3]], "n": 2, "max_tokens": 3}).json
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"] == {**reply["usage"], "prompt_tokens": 4, "completion_tokens": 12}
    ended: dict[int, str] = {}
    for event in events(server.post(COMPLETIONS, {"prompt": "x", "n": 3, "max_tokens": 5, "stream": True}).body):
        choice = event["choices"][0]
        assert choice["index"] not in ended
        if choice["finish_reason"]:
            ended[choice["index"]] = choice["finish_reason"]
    assert set(ended) == {0, 1, 2}


def test_what_a_router_and_a_client_look_up(server: Server) -> None:
    models = server.get("/v1/models").json["data"]
    assert [card["id"] for card in models] == [MODEL, "alias"] and models[0]["max_model_len"] == 20000
    assert abs(models[0]["created"] - time.time()) < 86_400
    assert server.get("/health").status == 200 and server.ask("HEAD", "/health").status == 200
    assert "inferometer" in server.get("/version").json["mock"]
    assert server.post("/tokenize", {"prompt": "It is 2026."}).json["token_strs"] == ["It", "is", "202", "6", "."]


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (COMPLETIONS, b"{", 400, "not valid JSON"),
        (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000, 400, "the request"),
        (COMPLETIONS, b"\xff\xfe", 400, "the request"),
        (COMPLETIONS, [], 400, "expected `object`"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": "8"}, 400, "max_tokens: expected `int | null`, got `str`"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        (COMPLETIONS, {"prompt": "x", "n": 0}, 400, "n must be at least 1, got 0."),
        (COMPLETIONS, {"prompt": "x", "n": 10**6}, 400, "at most 1,024 answers"),
        (COMPLETIONS, {"prompt": "x", "min_tokens": 99}, 400, "min_tokens must be less than or equal to max_tokens=16"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, 400, "temperature must be in [0, 2]"),
        (COMPLETIONS, {"prompt": "x", "stream_options": {}}, 400, "Stream options can only be defined"),
        (COMPLETIONS, {"prompt": "x", "logprobs": 3}, 400, "`logprobs`"),
        (COMPLETIONS, {"prompt": ""}, 400, "The decoder prompt cannot be empty"),
        (COMPLETIONS, {"prompt": [1, -1]}, 400, "token ids"),
        (COMPLETIONS, {"prompt": [True]}, 400, "token ids"),
        (COMPLETIONS, {"prompt": {"a": 1}}, 400, "token ids"),
        (COMPLETIONS, {"prompt": [[7] * 11_000] * 100}, 400, "at most 1,000,000 prompt tokens"),
        (COMPLETIONS, {"prompt": [*[[7]] * 2000, None]}, 400, "at most 1,024 prompts here, not 2,001"),
        (CHAT, {"messages": [{"role": "user", "content": [TEXT] * 40_000}] * 3}, 400, "100,000 parts"),
        (CHAT, {"messages": [{"role": "user", "content": [TEXT] * 100_001}]}, 400, "100,000 parts"),
        ("/tokenize", {"prompt": "." * 1_000_001}, 400, "1,000,000 characters"),
        (COMPLETIONS, {}, 400, "must be provided and non-empty"),
        (COMPLETIONS, {"prompt": [1] * 19_995}, 400, "This model's maximum context length is 20000 tokens. However"),
        (COMPLETIONS, {"prompt": "x " * 50_000}, 400, "contains at least 20001 input tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 19_993}]}, 400, "plus the number of requested output"),
        (CHAT, {"messages": []}, 400, "messages must be a list"),
        (CHAT, {"messages": [{"role": 1}]}, 400, "each of the messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "not 'image_url'"),
        (COMPLETIONS, {"prompt": "x", "model": "gpt-4"}, 404, "The model `gpt-4` does not exist."),
        ("/v1/nothing", {}, 404, "Not Found"),
        ("/metrics", {}, 405, "Method Not Allowed"),
    ],
)
def test_a_wrong_request_is_one_sentence(server: Server, path: str, body: Any, status: int, says: str) -> None:
    told = error(server, path, body)
    assert told["code"] == status and says in told["message"], told


def test_pages_of_other_origins_may_ask(server: Server) -> None:
    page = {"Origin": "https://chat.example"}
    wants = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    asked = server.ask("OPTIONS", CHAT, None, {**page, **wants})
    assert asked.status == 200 and asked.headers["access-control-allow-origin"] == "*"
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= {*asked.headers["access-control-allow-headers"].split(",")}
    assert server.get("/v1/models", **page).headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in server.get("/v1/models").headers, "a client that is no page"


def test_a_body_of_another_kind_or_size(server: Server) -> None:
    assert "application/json" in error(server, COMPLETIONS, b"x", **{"Content-Type": "text/plain"})["message"]
    assert error(server, COMPLETIONS, b" " * (MAX_BODY + 1))["code"] == 413
    assert ABANDONED > MAX_BODY


# ------------------------------------------------------------------ clients that come and go


def _open(server: Server, body: dict[str, Any]) -> socket.socket:
    """A connection with a request on it, of which nothing has been read."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    connection.sendall(f"{head}\r\n".encode() + data)
    return connection


ENDLESS = {"prompt": "Hello", "max_tokens": 19_000, "ignore_eos": True, "stream": True}


def test_a_client_that_goes_is_forgotten(server: Server) -> None:
    before = values(server, "vllm:request_success_total")
    connections = [_open(server, ENDLESS) for _ in range(20)]
    server.until(lambda: values(server, "vllm:num_requests_running") == 20)
    assert b"data:" in connections[0].recv(65536) + connections[0].recv(65536)
    for connection in connections:
        connection.close()
    server.until(lambda: values(server, "vllm:num_requests_running") == 0)
    server.until(lambda: values(server, "vllm:request_success_total") == before + 20)
    assert values(server, "vllm:kv_cache_usage_perc") == 0


def test_a_slow_reader_gets_all_the_same(server: Server) -> None:
    with _open(server, {**ENDLESS, "max_tokens": 3000}) as connection:
        server.until(lambda: values(server, "vllm:num_requests_running") == 0)
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    pieces = re.findall(rb'"text":"([^"]*)"', received)
    assert len(b"".join(pieces).split()) == 3000


def test_garbage_and_floods_leave_it_standing(server: Server) -> None:
    halves = []
    for k in range(150):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        connection.sendall((b"\x00\x16\x03 garbage\r\n\r\n", b"POST / HT", b"GET /metrics HTTP/1.1\r\n")[k % 3])
        halves.append(connection)
    streams = [_open(server, ENDLESS) for _ in range(50)]
    assert server.post(COMPLETIONS, {"prompt": "still there?", "max_tokens": 4}).json["usage"]["completion_tokens"] == 4
    for connection in (*halves, *streams):
        connection.close()
    server.until(lambda: values(server, "vllm:num_requests_running") == 0)
    assert server.get("/health").status == 200


# ------------------------------------------------------------------ figures


def test_prometheus_can_read_it(server: Server) -> None:
    server.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 8})
    text = server.get("/metrics").body.decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    names = {"vllm:num_requests_running": "gauge", "vllm:kv_cache_usage_perc": "gauge"}
    names |= {"vllm:prompt_tokens_total": "counter", "vllm:time_to_first_token_seconds": "histogram"}
    assert names.items() <= kinds.items()
    for line in text.splitlines():
        name = re.split(r"[{ ]", line)[0]
        assert line.startswith("#") or SAMPLE.fullmatch(line), line
        assert line.startswith("#") or {name, re.sub("_(bucket|sum|count)$", "", name)} & set(kinds), line
    counts = [float(n) for n in re.findall(r"vllm:time_to_first_token_seconds_bucket\{.*\} (\S+)", text)]
    assert counts == sorted(counts) and counts[-1] == values(server, "vllm:time_to_first_token_seconds_count") > 0


@pytest.mark.parametrize("stream", [True, False])
def test_gaps_between_tokens_are_counted_for_every_request(server: Server, stream: bool) -> None:
    """Also where nobody watches them come; and together they are the time from the first token to the last."""
    names = [f"vllm:{name}" for name in ("inter_token_latency_seconds", "request_decode_time_seconds")]
    before = [values(server, f"{name}_{what}") for name in names for what in ("sum", "count")]
    server.post(COMPLETIONS, {"prompt": "gaps", "max_tokens": 30, "ignore_eos": True, "n": 2, "stream": stream})
    server.until(lambda: values(server, f"{names[1]}_count") == before[3] + 2)
    after = [values(server, f"{name}_{what}") for name in names for what in ("sum", "count")]
    assert after[1] - before[1] == 2 * 29
    assert after[0] - before[0] == pytest.approx(after[2] - before[2], rel=1e-5), "sums are printed to some digits"


@pytest.mark.slow
def test_bench_drives_it_and_its_clock_is_that_of_a_simulation(server: Server) -> None:
    """One request at a time: then its seconds do not depend on when this machine sends the next."""
    names = [f"vllm:{name}_seconds" for name in ("time_to_first_token", "e2e_request_latency")]
    before = {name: (values(server, f"{name}_sum"), values(server, f"{name}_count")) for name in names}
    flags = ["--num-prompts", "6", "--max-concurrency", "1", "--input-len", "700", "--output-len", "30", "--json"]
    command = [sys.executable, "-m", "inferometer", "bench", "--base-url", server.address, "--model", MODEL]
    ran = subprocess.run([*command, *flags, "--quiet"], capture_output=True, text=True, timeout=120)
    result = json.loads(ran.stdout)
    assert (ran.returncode, result["completed"], result["total_output_tokens"]) == (0, 6, 180)
    expected = inferometer.simulate(
        MODEL, GPU, num_prompts=6, max_concurrency=1, input_len=700, output_len=30, max_model_len=20000
    ).summary()
    for name, key in zip(names, ("mean_ttft_ms", "mean_e2el_ms"), strict=True):
        seconds, count = (values(server, f"{name}_{what}") - before[name][k] for k, what in enumerate(("sum", "count")))
        assert count == 6 and 1e3 * seconds / count == pytest.approx(expected[key], rel=0.02), name


def test_histograms_and_their_bounds() -> None:
    assert buckets_1_2_5(100) == (1, 2, 5, 10, 20, 50, 100) and buckets_1_2_5(1) == (1,)
    histogram = Histogram((0.1, 1.0))
    for value in (0.1, 0.2, 5.0):
        histogram.observe(value)
    assert [line.rpartition(" ")[2] for line in histogram.lines("x", {})] == ["1", "2", "3", "3", "5.3"]


def test_equal_tokens_have_equal_hashes() -> None:
    assert len(tokens_of("unbelievable 12345 Größe 東京!", 99)) == 2 + 2 + 1 + 2 + 1
    assert len(tokens_of("a " * 1000, 10)) == 11
    assert tokens_of("  a \t b  \n\n  c   ", 9) == ["a", "b", "\n\n", "c"]
    one, longer, other = (PromptTokens(tokens) for tokens in ([*range(40)], [*range(50)], [99, *range(1, 40)]))
    for prompt in (one, longer, other):
        prompt.seal(16)
    assert one.chain == longer.chain[:2] and len(longer.chain) == 3
    assert not set(one.chain) & set(other.chain)
    answer = one.answer(0)
    follow_up = PromptTokens([*range(40), *answer.filler(0, 30)])
    follow_up.seal(16)
    assert [*one.chain, *answer.output_hashes(16, 2, 4)] == follow_up.chain


# ------------------------------------------------------------------ the key


def test_the_api_key_guards_the_api_alone() -> None:
    app, machine = application(MODEL, GPU, api_key="a-secret")
    assert "H200" in machine

    async def status(path: str, key: str = "") -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        await app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)
        return int(sent[0]["status"])

    async def asked() -> list[int]:
        return [
            await status(*one)
            for one in (("/v1/models",), ("/v1/models", "wrong"), ("/v1/models", "a-secret"), ("/health",))
        ]

    assert asyncio.run(asked()) == [401, 401, 200, 200]


def test_a_request_began_before_its_first_byte_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client takes to connect and send is in the front end's simulated time, of which half may be gone."""
    app, _ = application(MODEL, GPU, speed=2.0)
    monkeypatch.setattr(app, "now", lambda: 100.0)

    async def ages(*first_bytes: float | None) -> list[float]:
        now = asyncio.get_running_loop().time()
        states = [{} if ago is None else {RECEIVED: now - ago} for ago in first_bytes]
        return [(100.0 - app._arrival({"type": "http", "state": state})) / app.speed for state in states]

    unknown, just_now, a_while, long_ago = asyncio.run(ages(None, 0.0, 0.3e-3, 9.0))
    assert unknown == pytest.approx(TO_CONNECT) and just_now >= TO_CONNECT
    assert 0.3e-3 + TO_CONNECT <= a_while <= long_ago
    assert long_ago == pytest.approx(app.most_lead) and app.most_lead == app.fleet.overhead_s / 2 / 2.0


def test_a_body_that_comes_late_is_a_request_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arrival is when it was whole, less what the front end hides: no step may be taken in the past for it."""
    app, _ = application(MODEL, GPU)
    whole: list[float] = []
    arrivals: list[float] = []

    def submit(now: float, *more: Any) -> None:
        arrivals.append(now)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.05)
        whole.append(app.now())
        return {"type": "http.request", "body": b'{"prompt": "Hello"}'}

    async def send(message: Any) -> None:
        pass

    async def ask() -> None:
        state = {RECEIVED: asyncio.get_running_loop().time()}
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers, "state": state}
        await app(scope, receive, send)

    monkeypatch.setattr(app.fleet, "submit", submit)
    asyncio.run(ask())
    assert arrivals[0] >= whole[0] - app.most_lead


def test_the_next_of_two_requests_at_once_begins_when_the_first_is_answered() -> None:
    seen: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend((scope["state"][RECEIVED], asyncio.get_running_loop().time()))
        await asyncio.sleep(0.02)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def two() -> None:
        config = Config(app, lifespan="off", ws="none")
        config.load()
        protocol = _protocol(app, ServerLimits())  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        door = await loop.create_server(lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0)  # type: ignore[call-arg]
        reader, writer = await asyncio.open_connection("127.0.0.1", door.sockets[0].getsockname()[1])
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        for _ in range(2):
            assert b"204" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        door.close()

    asyncio.run(two())
    first, began, second, _ = seen
    assert first <= began < second


def test_a_slow_client_does_not_hurry_the_others() -> None:
    """An event that had to wait for the client to take the one before says nothing of the mock's lateness."""
    app, _ = application(MODEL, GPU)
    generation = read_request(b'{"prompt": "Hello", "max_tokens": 4, "stream": true}', "completions", app.served)
    (prompt,) = generation.prompts
    prompt.seal(16)

    async def leads() -> list[float]:
        app.start = asyncio.get_running_loop().time() - 1.0
        found = []
        for waited in (False, True):
            request = app.fleet.submit(0.0, prompt.answer(0), 4)
            assert request is not None
            app.fleet.advance(inf)
            choice = Choice(0, request, prompt.answer(0), "length")
            assert b"finish_reason" in app._event(generation, Shapes("completions", MODEL), choice, waited)
            found.append(app.lead)
        return found

    slow, waiting = asyncio.run(leads())
    assert slow == 0.0 < waiting


@pytest.mark.slow
def test_two_interrupts_end_it_without_a_traceback() -> None:
    """As from somebody who presses Ctrl-C again while streams are under way."""
    code = "import sys; from inferometer.cli import main; sys.exit(main(['mock', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, MODEL, "--gpu", GPU, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        address = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
        assert address
        with _open(Server(address[0], process), ENDLESS) as connection:
            assert connection.recv(100)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)  # the server now waits for the stream
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
        assert process.stderr.read() == "ended\n"


@pytest.mark.parametrize("max_model_len", [2, 100])
def test_a_short_context_can_be_served(max_model_len: int) -> None:
    app, _ = application(MODEL, GPU, max_model_len=max_model_len)
    assert app.served.max_model_len == max_model_len


def test_what_cannot_be_served_is_said_at_once(run: Callable[..., Ran]) -> None:
    ran = run("mock", "llama-3.1-70b", "--gpu", "h100-sxm", "--port", "0")
    assert ran.code == 1 and "infeasible: needs 1" in ran.err
    for flags, says in (
        (["--kv-offloading-size", "9"], "--kv-offloading-size"),
        (["--served-model-name", ","], "--served-model-name"),
        (["--api-key", " x"], "--api-key"),
        (["--speed", "0"], "--speed"),
        (["--output-len", "none"], "--output-len"),
    ):
        ran = run("mock", MODEL, "--gpu", GPU, "--port", "0", *flags)
        assert ran.code == 2 and says in ran.err, (flags, ran.err)


def test_a_step_counts_what_came_out_of_it_and_a_prompt_whole_at_its_first_token() -> None:
    """As vLLM does: a prompt of 1,000 tokens in chunks of 256 is nothing in three steps, and all of it in the last."""
    engine = EngineTotals(8192)
    for came in (0, 0, 0, 1000 + 1, 1):
        engine.end_iterations(1)
        engine.iteration_tokens += came
    text = "\n".join(engine.histograms["iteration_tokens_total"][1].lines("n", {}))
    assert "n_count{} 4" in text and "n_sum{} 1001" in text
