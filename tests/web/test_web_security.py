"""What a client may not do, over real HTTP: name files, break the server, be slow for ever, come without the token."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from helpers.web_server import Server, serving

from inferometer.base.errors import BadFile
from inferometer.base.files import only_files_in, user_path
from inferometer.web.guard import HEADERS, Guard, Token
from inferometer.web.page_plan import catalogued

pytestmark = pytest.mark.slow

PLAN = {"model": "llama-3.1-8b", "gpu": "h200", "batch_size": 8}
SECRET = "a-token-of-some-length"
GRANITE = {"model_type": "granite", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--log-format", "off") as one:
        yield one


def raw(server: Server, data: bytes, *, wait: float = 30.0) -> bytes:
    """Bytes to the server, and all that it says before it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


# ------------------------------------------------------------------ names are no paths


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the catalogue's names, as somebody's folders may have."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "llama-3.1-8b").mkdir()
    (folder / "llama-3.1-8b" / "config.json").write_text(json.dumps(GRANITE))
    for kind, name in (("hardware", "h200"), ("engines", "vllm"), ("hosts", "server")):
        text = (ROOT / "src/inferometer/data" / kind / f"{name}.toml").read_text()
        (folder / f"{name}.toml").write_text(text)
    return folder


def paths(planted: Path, name: str) -> list[str]:
    beside = f"../../../../../..{planted}/{name}"
    return [
        f"{planted}/{name}",
        beside,
        f"./{beside}",
        f"~root/{name}",
        f"~nobody/{name}",
        f"~/{name}",
        f"file://{name}",
    ]


def test_a_path_that_ends_in_a_known_name_is_unknown(server: Server, planted: Path) -> None:
    errors = []
    for path in paths(planted, "llama-3.1-8b"):
        draft = {"model": path, "num_speculative_tokens": 2}
        bodies: list[tuple[str, Any]] = [
            ("analyze", {**PLAN, "model": path}),
            ("analyze", {**PLAN, "speculative_config": draft}),
            ("analyze", {**PLAN, "speculative_config": json.dumps(draft)}),
            ("analyze", {**PLAN, "speculative_config": json.dumps(draft)[:-1] + ', "acceptance_rate": NaN}'}),
            ("explain", {"plan": {**PLAN, "model": path}, "op": "lm_head"}),
            ("sweep", {"plan": PLAN, "axes": {"model": path}}),
            ("sweep", {"plan": PLAN, "axes": {"model": ["llama-3.1-8b", path]}}),
            ("sweep", {"plan": PLAN, "axes": {"speculative_config": [draft, draft]}}),
            ("sensitivity", {"plan": PLAN, "compare": path}),
            ("sensitivity", {"plan": PLAN, "compare": ["qwen3-8b", path]}),
        ]
        for verb, body in bodies:
            reply = server.post(f"/api/{verb}", body)
            assert reply.status == 400 and "unknown model" in reply.json["error"], (verb, body, reply.body)
            errors.append(reply.json["error"].replace(path, ""))
    told = re.compile(r"no such|not a directory|permission|home dir|users?\b|/tmp|/home|/root|site-packages", re.I)
    assert not [error for error in errors if told.search(error)], "nothing is told of the machine"


@pytest.mark.parametrize(
    ("word", "name"), [("gpu", "h200.toml"), ("engine", "vllm.toml"), ("host_profile", "server.toml")]
)
def test_a_file_of_hardware_is_unknown(server: Server, planted: Path, word: str, name: str) -> None:
    for path in [*paths(planted, name), *paths(planted, name.removesuffix(".toml")), name]:
        for verb, body in (("analyze", {**PLAN, word: path}), ("sweep", {"plan": PLAN, "axes": {word: [path]}})):
            reply = server.post(f"/api/{verb}", body)
            assert reply.status == 400 and "unknown" in reply.json["error"], (body, reply.body)
    pool = {word: f"{planted}/{name}"}
    assert "unknown" in server.job("/api/simulate", {"plan": PLAN, "traffic": {"pools": [pool, pool]}})["error"]
    assert "unknown" in server.job("/api/search", {"plan": PLAN, **pool})["error"]


def test_files_of_the_command_line_are_no_words_of_a_page(server: Server, planted: Path) -> None:
    for word in ("profile", "calibration", "hf_token"):
        assert server.post("/api/analyze", {**PLAN, word: str(planted)}).status == 400
        assert server.post("/api/sweep", {"plan": PLAN, "axes": {word: [str(planted)]}}).status == 400
    named = server.job("/api/simulate", {"plan": PLAN, "traffic": {"trace": "/etc/passwd"}})
    assert named["state"] == "failed" and "unknown" in named["error"]


def test_names_become_the_catalogues_own() -> None:
    given = {"gpu": "H100,h200:power=500", "model": "meta-llama/Llama-3.1-8B", "engine": "vLLM@0.15", "batch_size": 4}
    known = catalogued(given)
    assert known == {"gpu": "h100-sxm,h200:power=500", "model": "llama-3.1-8b", "engine": "vllm@0.15", "batch_size": 4}
    assert catalogued({"speculative_config": '{"model": "Qwen/Qwen3-0.6B"}'}) == {
        "speculative_config": '{"model": "qwen3-0.6b"}'
    }


def test_no_path_of_a_user_is_opened_while_a_page_is_answered(tmp_path: Path) -> None:
    inside = tmp_path / "uploads"
    with only_files_in(str(inside)):
        assert user_path(str(inside / "x" / "config.json"))
        for path in ("/etc/passwd", str(tmp_path), f"{inside}/../x", "~", "-", "llama", f"{inside}x"):
            with pytest.raises(BadFile, match="not in the catalogue"):
                user_path(path)
    assert user_path("/etc/passwd").name == "passwd"


# ------------------------------------------------------------------ what broke it once


BROKEN: list[tuple[str, Any]] = [
    ("sweep", {"plan": PLAN, "axes": {"efficiency": []}}),
    ("sweep", {"plan": PLAN, "axes": {"batch_size": []}}),
    ("sweep", {"plan": PLAN, "axes": {"model": []}}),
    ("sweep", {"plan": PLAN, "axes": {}}),
    ("sweep", {"plan": {**PLAN, "images": 7}, "axes": {"batch_size": "1,2"}}),
    ("sweep", {"plan": {**PLAN, "images": True}, "axes": {"batch_size": "1,2"}}),
    ("sweep", {"plan": PLAN, "axes": {"max_num_seqs": "1:100000:1"}}),
    ("sensitivity", {"plan": PLAN, "compare": 0}),
    ("sensitivity", {"plan": PLAN, "compare": False}),
    ("sensitivity", {"plan": PLAN, "compare": []}),
    ("sensitivity", {"plan": PLAN, "compare": {}}),
    ("sensitivity", {"plan": PLAN, "compare": [0]}),
]


@pytest.mark.parametrize(("verb", "body"), BROKEN, ids=lambda value: str(value)[:60])
def test_what_broke_it_is_a_sentence(server: Server, verb: str, body: Any) -> None:
    reply = server.post(f"/api/{verb}", body)
    assert reply.status == 400 and reply.json["error"], reply.body


@pytest.mark.parametrize("word", ["scheduler", "router", "policy"])
def test_a_list_is_no_scheduler(server: Server, word: str) -> None:
    for value in ([], ["vllm"], {}, {"a": 1}, True, 7):
        ended = server.job("/api/simulate", {"plan": PLAN, "traffic": {"num_prompts": 3, word: value}})
        assert ended["state"] == "failed" and f"unknown {word}" in ended["error"], ended


STRANGE = [
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://[\r\nConnection: close\r\n\r\n",
    b"GET /static/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /static/%2e%2e%2fapp.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"PUT /api/analyze HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    b"GET /api/analyze HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"POST /api/analyze HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("data", STRANGE, ids=lambda data: data[:60].decode())
def test_every_answer_has_a_sentence_and_the_headers(server: Server, data: bytes) -> None:
    head, _, body = raw(server, data).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert 400 <= status < 500 and json.loads(body)["error"], head
    lines = head.lower().split(b"\r\n")
    assert [name for name, value in HEADERS if lines.count(name + b": " + value.lower()) != 1] == []


# ------------------------------------------------------------------ slow clients


def test_a_header_a_body_and_an_answer_have_a_time_limit_in_all(tmp_path: Path) -> None:
    """However often another byte comes."""
    limits, log = {"header_s": 1.0, "idle_s": 2.0, "answer_s": 1.0, "connections": 64}, tmp_path / "log"
    with serving("--log-format", "off", limits=limits, body_timeout=1.0, log=log) as server:

        def trickled(begin: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(begin)
                connection.settimeout(0.1)
                answer = b""
                for _ in range(600):
                    try:
                        piece = connection.recv(65536)
                        if not piece:
                            return answer
                        answer += piece
                    except TimeoutError:
                        connection.sendall(b"x")
                    except OSError:
                        return answer
                raise AssertionError("it was never ended")

        assert b" 408 " in trickled(b"GET / HTTP/1.1\r\nX: ")
        head = b"POST /api/analyze HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        assert b" 408 " in trickled(head + b"Content-Length: 9999\r\n\r\n")
        first = b"GET /healthz/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert b" 200 " in trickled(first + b"GET / HTTP/1.1\r\nX: "), "also the second of a connection"
        assert raw(server, b"") == b"", "one that says nothing is closed without a word"
        with socket.socket() as idler:
            idler.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idler.connect(("127.0.0.1", server.port))
            idler.sendall(b"GET /static/plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 4)
            server.until(lambda: server.gauge("inferometer_connections") == 1)  # that of this very question
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.mark.parametrize("files", [0, 110])
def test_idle_connections_make_room_for_honest_ones(tmp_path: Path, files: int) -> None:
    """Also where the process may have few files open; and nothing floods the log."""
    log = tmp_path / "log"
    limits = None if files else {"header_s": 60.0, "connections": 20}
    with serving("--log-format", "off", limits=limits, files=files, log=log) as server:
        server.until(lambda: server.get("/healthz").status == 200)
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(250)]
        head = b"POST /api/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        half = head + b"Content-Length: 9\r\n\r\n{"
        try:
            for number, connection in enumerate(idle):
                try:
                    connection.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else half)
                except OSError:
                    continue  # closed already
            for _ in range(3):
                assert server.post("/api/analyze", PLAN).status == 200
            assert server.gauge("inferometer_connections") <= 40
        finally:
            for connection in idle:
                connection.close()
        assert server.post("/api/analyze", PLAN).status == 200
    assert len(log.read_text().splitlines()) < 20, log.read_text()


# ------------------------------------------------------------------ the token


def test_a_token_is_asked_for_and_never_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"INFEROMETER_WEB_TOKEN": SECRET}
    with serving("--log-format", "json", env=env, log=log) as server:
        for path in ("/api/controls", "/api/jobs/x", "/schema", "/metrics", "/nothing"):
            reply = server.get(path)
            assert reply.status == 401 and "token" in reply.json["error"], path
            assert reply.headers["www-authenticate"] == "Bearer"
        assert server.post("/api/analyze", PLAN).status == 401
        for path in ("/", "/static/main.js", "/healthz/live"):
            assert server.get(path).status == 200, "the page itself and probes need none"
        assert server.get("/api/controls", Authorization=f"Bearer {SECRET}").status == 200
        for wrong in (SECRET[:-1], f"{SECRET}x", "", "ä"):
            assert server.get("/api/controls", Authorization=f"Bearer {wrong}").status == 401
            assert server.get(f"/?token={wrong.encode().hex()}").status == 401
        welcome = server.get(f"/?model=qwen3-8b&token={SECRET}&x=%3Cb%3E%22")
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and SECRET not in cookie
        assert b'url=/?model=qwen3-8b&amp;x=%3Cb%3E%22"' in welcome.body and SECRET.encode() not in welcome.body
        session = cookie.partition(";")[0]
        assert server.get("/api/controls", Cookie=session).status == 200
        assert server.post("/api/analyze", PLAN, Cookie=f"other=1; {session}").status == 200
        assert server.post("/api/analyze", PLAN, Cookie=session, Origin="http://evil.example").status == 403
        assert server.get("/api/controls", Cookie=session[:-1]).status == 401
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    first = json.loads(lines[0])
    assert {"time", "client", "method", "path", "status", "ms"} == set(first) and first["status"] == 401
    assert SECRET not in log.read_text()


def test_a_token_is_compared_whole() -> None:
    token = Token(SECRET)
    assert token.is_right(SECRET) and not token.is_right("") and not token.is_right("\udcff")
    assert not token.allows({"authorization": f"Basic {SECRET}"}) and not token.allows({"cookie": 'a=\x00;;=="'})
    assert Token("another-token-of-length").cookie != token.cookie, "two servers of one machine keep theirs apart"


def test_other_machines_need_a_token_and_are_told_where_it_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFEROMETER_WEB_TOKEN", raising=False)
    refused = run("web", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 2 and "give --token (INFEROMETER_WEB_TOKEN" in refused.err and "--no-token" in refused.err
    short = run("web", "--host", "0.0.0.0", "--port", "0", "--token", "1234")
    assert short.code == 2 and "16 letters" in short.err
    both = run("web", "--port", "0", "--token", SECRET, "--no-token")
    assert both.code == 2 and "exclude each other" in both.err
    names = ("--allowed-host", "gpus.example.org")
    with serving("--host", "0.0.0.0", "--token", SECRET, "--log-format", "off", *names) as server:
        assert "0.0.0.0" not in server.address, "an address that others can type"
        for host in (socket.gethostname(), "gpus.example.org", "10.1.2.3", "localhost"):
            reply = server.get("/api/controls", Host=f"{host}:{server.port}", Authorization=f"Bearer {SECRET}")
            assert reply.status == 200, host
        assert server.get("/", Host="evil.example").status == 403


def test_a_server_for_names() -> None:
    async def nothing(*_: Any) -> None:
        """Answers nothing."""

    guard = Guard(nothing, "0.0.0.0", ["GPU-Box.example.org.", "fe80::1"])
    assert guard.is_local("gpu-box.example.org:80") and guard.is_local("gpu-box.example.org.")
    assert not guard.is_local("gpu-box.example.org.evil.example")


# ------------------------------------------------------------------ what is heavy


def test_bodies_are_bounded_together(server: Server) -> None:
    """Memory of those that are on the way is given back."""
    before = server.gauge("process_resident_memory_bytes")
    for _ in range(3):
        large = server.post("/api/simulate", {"plan": PLAN, "trace": {"name": "t.csv", "text": "1" * 25_000_000}})
        assert large.status == 413
    time.sleep(0.2)
    assert server.gauge("process_resident_memory_bytes") - before < 150e6


# ------------------------------------------------------------------ a browser


def test_a_browser_gives_the_token_once(browser: Any) -> None:
    with serving("--log-format", "off", "--token", SECRET) as server:
        page = browser.new_context().new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{server.address}/?model=qwen3-8b")
        page.wait_for_function("() => document.body.innerText.includes('requires its token')")
        page.goto(f"{server.address}/?model=qwen3-8b&token={SECRET}")
        page.wait_for_selector(".tile")
        assert SECRET not in page.url and "model=qwen3-8b" in page.url
        assert page.evaluate("() => document.cookie") == ""
