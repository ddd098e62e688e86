"""How the server lives and dies: uploads, workers that are killed, jobs in a queue, health, metrics, signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.web_server import Reply, Server, serving

from inferometer.web.http_server import listening
from inferometer.web.operations import BUCKETS, Gauge, Observer, RequestLog, RequestMetrics
from inferometer.web.uploads import PREFIX, Uploads, remove_abandoned

pytestmark = pytest.mark.slow

PLAN = {"model": "llama-3.1-8b", "gpu": "h200", "batch_size": 8}
LONG = {
    "plan": PLAN,
    "traffic": {"num_prompts": 200_000, "request_rate": 20, "input_len": "lognormal:mean=2000,std=3000"},
}
ROWS = "".join(f"{100 + i % 900},{50 + i % 70},{i / 40}\n" for i in range(60_000))
UPLOAD = {"plan": PLAN, "trace": {"name": "chat.csv", "text": f"input_tokens,output_tokens,arrival_s\n{ROWS}"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    with serving("--log-format", "off", env={"TMPDIR": str(place)}) as one:
        one.until(lambda: one.get("/healthz").status == 200)
        yield one
    assert list(place.glob("*inferometer*")) == [], "nothing is left of it"


def uploaded(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.name in ("chat.csv", "config.json")]


def workers_of(server: Server) -> list[int]:
    """The processes that are at its questions: those with its uploads' forkserver above them."""
    assert server.process
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    children = [process for process, parent in parents.items() if parent == server.process.pid]
    return [process for process, parent in parents.items() if parent in children]


# ------------------------------------------------------------------ uploads


def test_an_upload_goes_with_its_job(server: Server, place: Path) -> None:
    job = server.post("/api/simulate", UPLOAD).json["job"]
    server.until(lambda: uploaded(place))
    assert server.ask("DELETE", f"/api/jobs/{job}").json["state"] == "cancelled"
    server.until(lambda: not uploaded(place))


def test_an_upload_of_a_worker_that_was_killed_goes(server: Server, place: Path) -> None:
    """The job is begun again, once."""
    before = set(workers_of(server))
    job = server.post("/api/simulate", UPLOAD).json["job"]
    server.until(lambda: uploaded(place))
    for _ in range(2):
        (worker,) = server.until(lambda: set(workers_of(server)) - before)
        os.kill(worker, signal.SIGKILL)
        server.until(lambda gone=worker: gone not in workers_of(server))
    ended = server.until(lambda: (now := server.get(f"/api/jobs/{job}").json)["state"] == "failed" and now)
    assert "ended early, and so did a second one" in ended["error"]
    server.until(lambda: not uploaded(place))


def test_a_server_that_was_killed_leaves_nothing_for_long(place: Path, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with serving("--log-format", "off", env=env) as killed:
        killed.post("/api/simulate", UPLOAD)
        killed.until(lambda: uploaded(tmp_path))
        workers = workers_of(killed)
        assert killed.process and workers
        killed.process.kill()
        killed.process.wait()
    for worker in workers:
        killed.until(lambda worker=worker: not Path(f"/proc/{worker}").exists())
    assert uploaded(tmp_path)
    with serving("--log-format", "off", env=env):
        assert not uploaded(tmp_path), "the next one removes it"


def test_folders_of_servers_that_live_stay(tmp_path: Path) -> None:
    living = Uploads(str(tmp_path))
    folder = living.folder()
    (tmp_path / f"{PREFIX}strange").symlink_to(tmp_path)
    (tmp_path / f"{PREFIX}without-lock").mkdir()
    assert remove_abandoned(tmp_path) == [] and folder.is_dir()
    os.close(living.lock)  # as the end of its process does
    assert remove_abandoned(tmp_path) == [living.root] and not folder.exists()


# ------------------------------------------------------------------ workers and jobs


def test_a_worker_that_died_is_replaced_and_the_question_answered(server: Server) -> None:
    replaced = server.gauge("inferometer_workers_replaced_total")
    killed = workers_of(server)
    assert len(killed) >= 1
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    for number in range(4):
        assert server.post("/api/analyze", {**PLAN, "input_len": 3000 + number}).status == 200
    assert server.gauge("inferometer_workers_replaced_total") > replaced
    assert server.get("/healthz").json["ready"]


def test_a_queued_job_says_its_place(server: Server) -> None:
    jobs = [server.post("/api/simulate", LONG).json["job"] for _ in range(5)]

    def states() -> list[tuple[str, int | None]]:
        now = [server.get(f"/api/jobs/{job}").json for job in jobs]
        return [(one["state"], one.get("place")) for one in now]

    first = [("running", None)] * 2
    server.until(lambda: states() == [*first, ("queued", 1), ("queued", 2), ("queued", 3)])
    assert server.get(f"/api/jobs/{jobs[4]}").json["words"] == "queued, 2 ahead of it"
    assert server.get(f"/api/jobs/{jobs[2]}").json["words"] == "queued, next in line"
    assert server.get("/healthz").json["jobs"] == {"queued": 3, "running": 2}
    assert server.gauge("inferometer_jobs_queued") == 3
    server.ask("DELETE", f"/api/jobs/{jobs[2]}")
    assert states()[3:] == [("queued", 1), ("queued", 2)]
    for job in jobs:
        assert server.ask("DELETE", f"/api/jobs/{job}").json["state"] == "cancelled"
    server.until(lambda: server.get("/healthz").json["jobs"] == {"queued": 0, "running": 0})


# ------------------------------------------------------------------ metrics and logs

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Prometheus' text format: every sample has a type before it, and no sample is there twice."""
    samples: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            base = re.sub("_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds.get(base) == "histogram", line
            assert (name, labels or "") not in samples
            samples[name, labels or ""] = float(value)
    return samples


def test_metrics_are_prometheus(server: Server) -> None:
    for path in ("/", "/nothing", "/api/jobs/x", "/api/jobs/y", "/static/main.js"):
        server.get(path)
    static = ("http_request_duration_seconds_count", 'route="/static/{name}"')
    reply = server.get("/metrics")
    for _ in range(100):  # a request is counted after its last byte has left
        if static in parsed(reply.body.decode()):
            break
        reply = server.get("/metrics")
    assert static in parsed(reply.body.decode())
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parsed(reply.body.decode())
    assert samples["http_requests_total", 'method="GET",route="/api/jobs/{job}",status="404"'] >= 2
    assert samples["http_requests_total", 'method="GET",route="other",status="404"'] >= 1
    assert samples["inferometer_workers", ""] >= 1 and samples["process_resident_memory_bytes", ""] > 1e7
    parser: Any = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family.type for family in parser.text_string_to_metric_families(reply.body.decode())}
    assert families["http_requests"] == "counter" and families["http_request_duration_seconds"] == "histogram"


def test_every_path_has_one_route() -> None:
    routes = ["/", "/api/jobs/{job}", "/static/{name}", "/static/{version}/{name}"]
    route = Observer(lambda *_: None, RequestLog("json"), routes).route  # type: ignore[arg-type,return-value]
    assert route("/") == "/" and route("/api/jobs/3f") == "/api/jobs/{job}"
    assert route("/static/main.js") == "/static/{name}" and route("/static/3f9c/main.js") == "/static/{version}/{name}"
    assert {route(path) for path in ("/static/", "/static/a/b/c", "/nothing", "/api/jobs")} == {"other"}


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with listening("127.0.0.1", 0) as door:  # asyncio turns Nagle's algorithm off where a socket names its protocol
        assert door.proto == socket.IPPROTO_TCP


def test_buckets_are_cumulative_and_labels_escaped() -> None:
    metrics = RequestMetrics()
    for seconds in (0.005, 0.006, 99.0):
        metrics.observe("GET", 'a"\\\n', 200, seconds)
    samples = parsed(metrics.text([Gauge("x", "y", 2.5)]).decode())
    label = 'route="a\\"\\\\\\n"'
    name = "http_request_duration_seconds"
    assert [samples[f"{name}_bucket", f'{label},le="{end}"'] for end in (*BUCKETS[:2], BUCKETS[-1], "+Inf")] == [
        1,
        2,
        2,
        3,
    ]
    assert samples[f"{name}_count", label] == 3 and samples["x", ""] == 2.5


def test_a_line_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    RequestLog("text").write("::1", "GET", "/x\n2026 fake\x1b[2J" + "y" * 999, 200, 0.0123)
    RequestLog("json").write("::1", "GET", "/x\n", 200, 0.0123)
    RequestLog("off").write("::1", "GET", "/", 200, 0.0)
    text, line = capsys.readouterr().err.splitlines()
    assert text.endswith("… 200 12.3 ms") and "\\n2026\\x20fake" in text.replace(" ", "\\x20") and "\x1b" not in text
    assert json.loads(line)["path"] == "/x\n" and json.loads(line)["ms"] == 12.3


def test_routes_are_few() -> None:
    async def nothing(*_: Any) -> None:
        """Answers nothing."""

    observer = Observer(nothing, RequestLog("off"), ["/", "/api/jobs/{job}", "/static/{name}"])
    paths = ("/", "/api/jobs/1", "/static/x.js", "/static/", "/api/jobs/1/2", "/x", "-")
    assert [observer.route(path) for path in paths] == ["/", "/api/jobs/{job}", "/static/{name}", *["other"] * 4]


# ------------------------------------------------------------------ the end


def asked_in_background(server: Server, plans: int = 100) -> tuple[threading.Thread, list[Reply]]:
    """Seconds of work."""
    body = {"plan": PLAN, "axes": {"max_num_seqs": f"1:{plans}:1", "batch_size": "1:64:x2"}}
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(server.post("/api/sweep", body)))
    thread.start()
    server.until(lambda: server.get("/healthz").json["workers"]["busy"])
    return thread, replies


def test_what_is_under_way_is_answered_before_it_ends() -> None:
    with serving("--log-format", "off", limits={"shutdown_s": 60.0}) as server:
        server.until(lambda: server.get("/healthz").status == 200)
        job = server.post("/api/simulate", LONG).json["job"]
        assert job
        thread, replies = asked_in_background(server)
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert replies[0].status == 200 and replies[0].json["points"] == 100 * 7
        assert server.process.wait(60) == 0


def test_what_takes_longer_than_it_waits_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving("--log-format", "off", limits={"shutdown_s": 1.0}, log=log) as server:
        server.until(lambda: server.get("/healthz").status == 200)
        thread, replies = asked_in_background(server, plans=2000)
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert replies[0].status == 503 and "shutting down" in replies[0].json["error"]
        assert server.process.wait(60) == 0
    assert "Traceback" not in log.read_text(), log.read_text()


def test_a_second_interrupt_ends_it_at_once() -> None:
    with serving("--log-format", "off", limits={"shutdown_s": 600.0}) as server:
        server.until(lambda: server.get("/healthz").status == 200)
        workers = workers_of(server)
        body: Any = {"plan": PLAN, "axes": {"max_num_seqs": "1:2000:1", "batch_size": "1:64:x2"}}

        def ask() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.post("/api/sweep", body)

        thread = threading.Thread(target=ask)
        thread.start()
        server.until(lambda: server.get("/healthz").json["workers"]["busy"])
        assert server.process
        server.process.send_signal(signal.SIGINT)
        server.until(lambda: refuses(server))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        thread.join(60)
        assert workers and not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


def refuses(server: Server) -> bool:
    try:
        server.get("/healthz/live")
    except OSError:
        return True
    return False
