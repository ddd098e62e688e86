"""A running server is watched: its pages become traffic and figures, and a fault in it is named."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from conftest import Ran, refused

from inferometer.base.errors import BadValue
from inferometer.bench import http_stream, server_watch
from inferometer.serving.metrics import latencies
from inferometer.serving.metrics_page import read_metrics, server_statistics
from inferometer.serving.outcome import Outcome
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic

Command = Callable[..., Ran]
MODEL, GPU = "llama-3.1-8b", "h200"
TALK = synthetic(
    num_prompts=90,
    request_rate=6.0,
    input_len="lognormal:mean=1500,std=1200,max=8000",
    output_len="lognormal:mean=120,std=60",
    seed=3,
)
SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0]
LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]


def histogram(name: str, values: np.ndarray, bounds: list[Any], counts: np.ndarray | None = None) -> Iterator[str]:
    counts = np.ones(len(values)) if counts is None else counts
    for bound in [*bounds, float("inf")]:
        text = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield f'vllm:{name}_bucket{{engine="0",le="{text}"}} {counts[values <= bound].sum()}'
    yield f'vllm:{name}_count{{engine="0"}} {counts.sum()}'
    yield f'vllm:{name}_sum{{engine="0"}} {(values * counts).sum()}'


def page(outcome: Outcome, share: float) -> str:
    """What vLLM's /metrics would show once a share of a run is over."""
    count = round(share * len(outcome.input_tokens))
    times = {name: ms[:count] / 1e3 for name, ms in latencies(outcome).items()}
    assert outcome.gaps is not None
    lines = [
        f'vllm:num_preemptions_total{{engine="0"}} {int(outcome.preemptions[:count].sum())}',
        f'vllm:kv_cache_usage_perc{{engine="0"}} {float(outcome.series["kv_used"].max())}',
        f'vllm:num_requests_running{{engine="0"}} {float(outcome.series["running"].mean())}',
        f'vllm:num_requests_waiting{{engine="0"}} {float(outcome.series["waiting"].mean())}',
        f'vllm:request_success_total{{engine="0",finished_reason="length"}} {count}',
        f'vllm:prompt_tokens_total{{engine="0"}} {int(outcome.input_tokens[:count].sum())}',
        f'vllm:generation_tokens_total{{engine="0"}} {int(outcome.output_tokens[:count].sum())}',
        *histogram("request_prompt_tokens", outcome.input_tokens[:count], LENGTHS),
        *histogram("request_generation_tokens", outcome.output_tokens[:count], LENGTHS),
        *histogram("time_to_first_token_seconds", times["ttft"], SECONDS),
        *histogram("request_time_per_output_token_seconds", times["tpot"], SECONDS),
        *histogram("e2e_request_latency_seconds", times["e2el"], SECONDS),
        *histogram("inter_token_latency_seconds", outcome.gaps.seconds, SECONDS, outcome.gaps.counts * share),
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """``url = serve(outcome)``: a server whose clock runs by itself, and whose pages say what a run has come to."""
    servers: list[ThreadingHTTPServer] = []

    def begin(outcome: Outcome, share: float = 1.0) -> str:
        clock = [0.0]
        monkeypatch.setattr(server_watch, "now", lambda: clock[0])
        monkeypatch.setattr(server_watch, "pause", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = page(outcome, min(1.0, clock[0] / outcome.duration_s) * share).encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


FAULTS: dict[str, dict[str, Any]] = {
    "healthy": {},
    "kv_cache": {"num_gpu_blocks_override": 700},
}  # others: tests/validation/test_doctor.py


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_running_server_is_named(fault: str, serve: Callable[..., str], run: Command) -> None:
    """By its own pages alone."""
    outcome = simulate(MODEL, GPU, trace=TALK, frontend="in-process", **FAULTS[fault])
    url = serve(outcome)
    ran = run("validate", MODEL, "--gpu", GPU, "--url", url, "--watch", f"{outcome.duration_s:.0f}", "--json")
    result = ran.json["diagnosis"]
    server = ran.json["server"]
    assert server["requests"] == pytest.approx(90, abs=4) and server["request_rate"] == pytest.approx(6, rel=0.45)
    assert server["prompt_tokens"] == pytest.approx(TALK.input_tokens.mean(), rel=0.05)
    if fault == "healthy":
        assert result["healthy"], result
        assert "kv_cache" in result["ruled_out"], "its cache was nearly empty"
    else:
        assert [cause["name"] for cause in result["causes"]][:1] == [fault], (result["errors"], result["causes"])


def test_a_server_without_traffic_is_one_sentence(serve: Callable[..., str], run: Command) -> None:
    outcome = simulate(MODEL, GPU, trace=TALK, frontend="in-process")
    url, plan = serve(outcome, share=0.01), ("validate", MODEL, "--gpu", GPU)
    refused(run(*plan, "--url", url, "--watch", "30"), "20 are needed: raise --watch, or let --probe")
    refused(run(*plan, "--url", "http://127.0.0.1:9"), "does not answer /metrics")
    refused(run("validate", MODEL, "--watch", "5", "--measured", "x.csv"), "--watch needs --url")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 \xb2 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nx", "has no metrics of vLLM"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n", "a chunk without its length"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"vllm:x 1\n" * 40_000, "it is longer than 100,000 bytes"),
    ],
)
def test_what_is_no_page_is_one_sentence(
    run: Command, monkeypatch: pytest.MonkeyPatch, answer: bytes, says: str
) -> None:
    monkeypatch.setattr(http_stream, "MAX_PAGE", 100_000)
    with socket.create_server(("127.0.0.1", 0)) as door:

        def reply() -> None:
            with contextlib.suppress(OSError):
                connection, _ = door.accept()
                with connection:
                    connection.recv(10_000)
                    connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        refused(run("validate", MODEL, "--gpu", GPU, "--url", url, "--watch", "1"), says)


class Answers:
    """A server that gives one answer after the other, the last one for ever; ``None`` is a page without an end."""

    def __init__(self, pages: list[bytes]) -> None:
        self.pages, self.door, self.heads = pages, socket.create_server(("127.0.0.1", 0)), list[bytes]()
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.door.accept()
                with connection:
                    self.heads.append(connection.recv(10_000))
                    page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
                    status = b"200 OK" if page.startswith(b"vllm") else b"503 Service Unavailable"
                    length = str(len(page)).encode()
                    head = b"HTTP/1.1 %s\r\nContent-Length: %s\r\nConnection: close\r\n\r\n" % (status, length)
                    connection.sendall(head + page)


def counters(requests: int) -> bytes:
    lines = [
        f"vllm:request_success_total {requests}",
        f"vllm:prompt_tokens_total {100 * requests}",
        f"vllm:generation_tokens_total {10 * requests}",
    ]
    return "\n".join(lines).encode() + b"\n"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds pass at once."""
    clock = [0.0]
    monkeypatch.setattr(server_watch, "now", lambda: clock[0])
    monkeypatch.setattr(server_watch, "pause", lambda seconds: clock.__setitem__(0, clock[0] + seconds))


@pytest.mark.usefixtures("soon")
def test_a_server_that_misses_some_readings_is_still_watched() -> None:
    """Half a page counts as none; the time is that until the last whole one."""
    half = counters(150).splitlines()[0] + b"\n"
    server = Answers([counters(0), b"busy", half, counters(100), b"busy"])
    seen = server_watch.watch_server(server.url, 10.0).statistics
    assert (seen.requests, seen.seconds) == (100, 6.0) and seen.prompt_tokens == 100


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("pages", "says"),
    [
        ([counters(0), b"busy"], "does not answer /metrics: HTTP 503: busy"),
        (
            [counters(0), counters(9).splitlines()[0] + b"\n"],
            "/metrics lacks vllm:generation_tokens_total, which it had",
        ),
        ([counters(500), counters(40)], "was started again while it was watched"),
    ],
)
def test_a_server_that_went_away_is_one_sentence(pages: list[bytes], says: str) -> None:
    server = Answers(pages)
    with pytest.raises(BadValue, match=says):
        server_watch.watch_server(server.url, 60.0)


def test_probes_that_were_not_alone_are_said() -> None:
    assert server_watch.other_requests(0.0) == server_watch.other_requests(float("nan")) == ()
    assert server_watch.other_requests(6.0)[0].startswith("6 other requests finished at the server while it was probed")


@pytest.mark.usefixtures("soon")
def test_an_api_key_is_one_line_of_a_header(run: Command) -> None:
    server = Answers([counters(0)])
    refused(run("validate", MODEL, "--url", server.url, "--api-key", "a\nX-Other: b"), "--api-key must be one word")
    refused(run("bench", "--base-url", server.url, "--model", MODEL, "--api-key", "clé"), "--api-key must be one word")
    assert not server.heads, "nothing was sent"
    refused(run("validate", MODEL, "--url", server.url, "--watch", "1", "--api-key", "sk-1\r\n"), "requests finished")
    assert b"Authorization: Bearer sk-1\r\n" in server.heads[0], "a line break is the file's, not the key's"


def test_an_address_that_is_none_names_its_flag(run: Command) -> None:
    refused(run("validate", MODEL, "--gpu", GPU, "--url", "ftp://x", "--watch", "1"), "--url must be an address")


def test_pages_without_lengths_make_no_traffic() -> None:
    pages = [read_metrics(f"vllm:request_success_total {n}\n") for n in (0, 100)]
    with pytest.raises(BadValue, match="do not say how long"):
        server_watch.traffic_between(*pages, server_statistics(*pages, 60.0))
