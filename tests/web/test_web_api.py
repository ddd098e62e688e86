"""The server of the page: the command line's answers and sentences as JSON, for this machine's own page alone."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import ROOT, Ran
from helpers.web_server import Server, serving

from inferometer import analyze
from inferometer.base.errors import BadValue, InferometerError
from inferometer.cli.analyze import analyze as analyze_command
from inferometer.cli.commands import app
from inferometer.inference.request import build_request
from inferometer.specs import catalog
from inferometer.web.answers import refusal_of
from inferometer.web.catalogue import control_label
from inferometer.web.guard import Guard
from inferometer.web.page_plan import ARGUMENTS, PagePlan, command, page_arguments, page_plan
from inferometer.web.workers import Worker, WorkerDied

pytestmark = pytest.mark.slow

Run = Callable[..., Ran]
PLAN = {"model": "llama-3.1-8b", "gpu": "h200", "batch_size": 8}
GRANITE = {
    "model_type": "granite",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49155,
}
TRACE = "input_tokens,output_tokens,arrival_s\n" + "".join(f"{100 + i},{10 + i},{i / 4}\n" for i in range(20))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


# ------------------------------------------------------------------ what it answers


def test_the_report_is_that_of_the_command_and_the_command_is_told(server: Server, run: Run) -> None:
    found = server.post("/api/analyze", PLAN).json
    line = shlex.split(found.pop("command"))
    graph = found.pop("graph")
    assert line[:3] == ["inferometer", "analyze", "llama-3.1-8b"]
    assert found == run(*line[1:], "--json").json
    assert found == json.loads(json.dumps(analyze(**PLAN).to_dict()))
    decode = graph["decode"]["blocks"]
    assert [block["count"] for block in decode] == [1, 32, 1]
    rows = [found["phases"]["decode"]["ops"][node["row"]]["name"] for node in decode[1]["nodes"] if "row" in node]
    assert "qkv_proj" in rows and len(rows) == len(set(rows))


def test_a_plan_that_does_not_fit_is_a_result(server: Server) -> None:
    reply = server.post("/api/analyze", {"model": "llama-3.1-405b"})
    assert reply.status == 200 and reply.json["feasible"] is False and "fits with" in reply.json["reason"]


def test_figures_of_the_gpu_can_be_changed(server: Server) -> None:
    figures = {"memory_bandwidth": 9.6e12, "flops.bf16": 2e15}
    found = server.post("/api/analyze", {**PLAN, "gpu_figures": figures}).json
    assert found["device"]["memory_bandwidth"] == 9.6e12 and found["device"]["flops"]["bf16"] == 2e15
    assert "--gpu h200:memory_bandwidth=9600000000000.0,flops.bf16=2000000000000000.0" in found["command"]


def test_a_config_of_ones_own(server: Server, tmp_path: Path, run: Run) -> None:
    found = server.post("/api/analyze", {"model": "ibm/granite-8b", "config": GRANITE, "gpu": "h200"}).json
    assert found["model"]["params"] == 8_170_848_256 + 49155 * 4096 * (not GRANITE.get("tie_word_embeddings"))
    comment, line = found["command"].splitlines()
    assert comment == "# save the uploaded file as granite-8b/config.json"
    assert line == "inferometer analyze granite-8b/config.json --gpu h200"
    assert found["model"]["source"] == "granite-8b/config.json", "where it lay for a moment is nobody's business"
    (tmp_path / "granite-8b").mkdir()
    (tmp_path / "granite-8b" / "config.json").write_text(json.dumps(GRANITE))
    said = run("analyze", str(tmp_path / "granite-8b" / "config.json"), "--gpu", "h200", "--json").json
    assert said["metrics"] == found["metrics"]
    wrong = server.post("/api/analyze", {"config": {"model_type": "llama"}})
    assert wrong.status == 400 and wrong.json["control"] == "model"
    assert wrong.json["error"].startswith("uploaded/config.json lacks")


def test_an_operator_is_explained_as_by_the_command(server: Server, run: Run) -> None:
    body = {"plan": PLAN, "op": "qkv_proj", "phase": "decode"}
    line = ("analyze", "llama-3.1-8b", "--gpu", "h200", "--batch-size", "8", "--explain", "qkv_proj")
    assert server.post("/api/explain", body).json == run(*line, "--phase", "decode", "--json").json
    wrong = server.post("/api/explain", {**body, "op": "qkv"})
    assert wrong.status == 400 and "did you mean qkv_proj" in wrong.json["error"]


def test_a_sweep_is_columns_that_agree_with_analyses(server: Server) -> None:
    axes = {"batch_size": "1:64:x4", "quantization": ["bf16", "fp8"]}
    found = server.post("/api/sweep", {"plan": PLAN, "axes": axes}).json
    assert found["points"] == 8 and found["constants"]["gpu"] == "h200"
    columns = found["columns"]
    assert {len(column) for column in columns.values()} == {8}
    at = list(zip(columns["batch_size"], columns["quantization"], strict=True)).index((16, "fp8"))
    alone = analyze("llama-3.1-8b", "h200", batch_size=16, quantization="fp8")
    assert columns["tpot_ms"][at] == pytest.approx(alone.metrics.tpot_ms, rel=1e-6)
    few = server.post("/api/sweep", {"plan": PLAN, "axes": axes, "figures": ["ttft_ms"]}).json["columns"]
    assert "ttft_ms" in few and "tpot_ms" not in few
    many = server.post("/api/sweep", {"plan": PLAN, "axes": {"batch_size": "1:1000:1", "input_len": "1:1000:1"}})
    assert many.status == 400 and "1,000,000 points, more than the web page's limit of 200,000" in many.json["error"]


def test_what_moves_a_plan(server: Server) -> None:
    found = server.post("/api/sensitivity", {"plan": PLAN, "target": "tpot:4"}).json
    bandwidth = found["figures"]["memory_bandwidth"]["up"]["change"]["tpot_ms"]
    assert -0.1 < bandwidth < -0.05 and found["targets"]["tpot"]["limit"] == 4
    assert found["command"] == "inferometer sensitivity llama-3.1-8b --gpu h200 --batch-size 8 --target tpot:4"


def test_a_search_is_a_job(server: Server) -> None:
    found = server.job("/api/search", {"plan": PLAN, "num_gpus": 2, "goodput": "ttft:500,tpot:20", "finalists": 1})
    assert found["state"] == "done", found
    result = found["result"]
    assert result["feasible"] and result["winner"]["gpus"] <= 2 and result["front"]
    assert "--num-gpus 2" in result["command"] and "--batch-size" not in result["command"]


# ------------------------------------------------------------------ simulations


@pytest.mark.slow
def test_requests_made_up_are_served_as_by_the_command(server: Server, run: Run) -> None:
    traffic = {"num_prompts": 50, "request_rate": 4, "seed": 3, "goodput": {"ttft": 200, "tpot": 20}}
    found = server.job("/api/simulate", {"plan": {**PLAN, "input_len": 256}, "traffic": traffic})
    assert found["state"] == "done" and found["progress"] == 1.0
    result = found["result"]
    said = run(*shlex.split(result["command"])[1:], "--json").json
    assert {key: result[key] for key in said} == said
    assert len(result["series"]["time_s"]) == len(result["series"]["running"]) > 10
    spread = result["distribution"]["ttft_ms"]
    assert spread["value"] == sorted(spread["value"]) and spread["share"][-1] == 1.0
    assert len(result["requests"]["ttft_ms"]) == 50


def test_a_trace_is_uploaded(server: Server, run: Run, tmp_path: Path) -> None:
    found = server.job("/api/simulate", {"plan": PLAN, "trace": {"name": "../../evil/chat.csv", "text": TRACE}})
    (tmp_path / "chat.csv").write_text(TRACE)
    said = run("simulate", "llama-3.1-8b", "--gpu", "h200", "--trace", str(tmp_path / "chat.csv"), "--json").json
    assert found["result"]["mean_e2el_ms"] == said["mean_e2el_ms"] and found["result"]["completed"] == 20
    assert found["result"]["command"].endswith("--trace chat.csv")
    broken = server.job("/api/simulate", {"plan": PLAN, "trace": {"name": "x.csv", "text": TRACE + "many,1,9\n"}})
    assert broken["state"] == "failed"
    assert broken["error"] == "x.csv, line 22: input_tokens must be a whole number from 1 to 100,000,000, not 'many'"


def test_the_result_of_a_benchmark_is_uploaded(server: Server) -> None:
    text = (ROOT / "tests" / "serving" / "files" / "vllm_detailed.json").read_text()
    job = server.job("/api/simulate", {"plan": PLAN, "trace": {"name": "result.json", "text": text}})
    assert job["result"]["completed"] == 3 and "1 of 4 requests failed" in " ".join(job["result"]["warnings"])
    named = {"columns": "input_tokens=a,output_tokens=b"}
    trace = {"name": "x.csv", "text": "a,b\n5,6\n"}
    job = server.job("/api/simulate", {"plan": PLAN, "traffic": named, "trace": trace})
    assert job["result"]["completed"] == 1 and "--columns input_tokens=a,output_tokens=b" in job["result"]["command"]


def test_the_highest_rate(server: Server) -> None:
    traffic = {"num_prompts": 60, "goodput": "ttft:300,tpot:10", "find_capacity": True}
    result = server.job("/api/simulate", {"plan": PLAN, "traffic": traffic})["result"]
    rates = [one["request_rate"] for one in result["tried"]]
    assert rates == sorted(rates) and len(rates) > 4 and 0 < result["request_rate"] <= max(rates)
    lacking = server.job("/api/simulate", {"plan": PLAN, "traffic": {"find_capacity": True}})
    assert lacking["state"] == "failed" and "needs latency limits" in lacking["error"]


def test_a_job_is_cancelled(server: Server) -> None:
    traffic = {"num_prompts": 200_000, "request_rate": 20, "input_len": "lognormal:mean=2000,std=3000"}
    job = server.post("/api/simulate", {"plan": PLAN, "traffic": traffic}).json["job"]
    while "requests" not in server.get(f"/api/jobs/{job}").json["words"]:
        time.sleep(0.05)
    seen = server.get(f"/api/jobs/{job}").json
    assert seen["state"] == "running" and 0 <= seen["progress"] < 1 and "of 200,000 requests" in seen["words"]
    ended = server.ask("DELETE", f"/api/jobs/{job}")
    assert ended.status == 200 and ended.json["state"] == "cancelled"
    assert server.get(f"/api/jobs/{job}").json["state"] == "cancelled"
    assert server.ask("DELETE", f"/api/jobs/{job}").json["state"] == "cancelled"
    assert server.get("/api/jobs/none").status == 404


def test_jobs_are_bounded(server: Server) -> None:
    more = server.job("/api/simulate", {"plan": PLAN, "traffic": {"num_prompts": 10**7}})
    assert more["state"] == "failed" and "up to 200,000, not 10,000,000" in more["error"]
    long = {"plan": PLAN, "traffic": {"num_prompts": 200_000, "request_rate": 20}}
    replies = [server.post("/api/simulate", long) for _ in range(12)]
    try:
        assert [reply.status for reply in replies] == [202] * 10 + [429] * 2
        assert "10 jobs are already running" in replies[-1].json["error"]
    finally:
        for reply in replies[:10]:
            server.ask("DELETE", f"/api/jobs/{reply.json['job']}")


# ------------------------------------------------------------------ mistakes


MISTAKES = [
    ({"model": "lama-3.1-8b"}, "model", "did you mean llama-3.1-8b"),
    ({"gpu": "h10"}, "gpu", "did you mean h100"),
    ({"engine": "vlm"}, "engine", "did you mean vllm"),
    ({"batch_size": 0}, "batch_size", "between 1 and 10,000,000, not 0"),
    ({"batch_size": "many"}, "batch_size", "whole number, not 'many'"),
    ({"batch_size": [1, 2]}, "batch_size", "whole number"),
    ({"quantization": "fp9"}, "quantization", "did you mean fp"),
    ({"gpu_figures": {"memroy": 1e11}}, "gpu", "did you mean memory"),
    ({"gpu_figures": {"memory": 80}}, "gpu", "figures are in SI units"),
    ({"gpu_figures": {"memory=1,power": 80}}, "gpu", "not 'memory=1,power'"),
    ({"gpu_figures": [1]}, None, "gpu_figures are figures by name"),
    ({"batchsize": 8}, "batchsize", "unknown key of a plan 'batchsize'; did you mean batch_size"),
    ({"speculative_config": {"method": "mtp"}}, "speculative_config", "has no multi-token-prediction module"),
    ({"config": [1, 2]}, "model", "a config.json is an object"),
    ({"output_len": 1e30}, "output_len", "must be between 1 and"),
]


@pytest.mark.parametrize(("change", "control", "words"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_the_commands_sentences(server: Server, change: dict[str, Any], control: str, words: str) -> None:
    reply = server.post("/api/analyze", {**PLAN, **change})
    assert reply.status == 400 and words in reply.json["error"], reply.json
    assert reply.json["control"] == control


NO_PLANS = [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"a":' * 5000, b'{"model":"\\ud800"}']


@pytest.mark.parametrize("body", NO_PLANS)
def test_what_is_no_plan_is_refused(server: Server, body: bytes) -> None:
    for path in ("/api/explain", "/api/sweep", *(["/api/analyze"] if body else [])):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.json["error"], path


def test_files_of_this_machine_stay_out_of_reach(server: Server, tmp_path: Path) -> None:
    """A page may be told anything by a link, so it names only what the catalogue has."""
    network = tmp_path / "config.json"
    network.write_text(json.dumps(GRANITE))
    (tmp_path / "mine.toml").write_text((ROOT / "src/inferometer/data/hardware/h200.toml").read_text())
    mine = str(tmp_path / "mine.toml")
    drafts = {"model": str(network), "num_speculative_tokens": 2}
    tries: list[dict[str, Any]] = [
        {"model": str(network)},
        {"model": str(tmp_path)},
        {"model": "someone/unknown-model"},
        {"gpu": mine},
        {"gpu": "../h200"},
        {"engine": mine},
        {"profile": "/etc/passwd"},
        {"calibration": "/etc/passwd"},
        {"hf_token": "x"},
        {"speculative_config": drafts},
        {"speculative_config": json.dumps(drafts)},
    ]
    for words in tries:
        reply = server.post("/api/analyze", {**PLAN, **words})
        assert reply.status == 400 and "unknown" in reply.json["error"], words
    several = {"model": ["llama-3.1-8b", str(network)]}
    for axes in ({"model": str(network)}, several, {"gpu": f"h200,{mine}"}):
        assert "unknown" in server.post("/api/sweep", {"plan": PLAN, "axes": axes}).json["error"]
    assert "unknown" in server.post("/api/sensitivity", {"plan": PLAN, "compare": str(network)}).json["error"]
    pool = {"gpu": mine}
    assert "unknown GPU" in server.job("/api/simulate", {"plan": PLAN, "traffic": {"pools": [pool, pool]}})["error"]
    assert "unknown GPU" in server.job("/api/search", {"plan": PLAN, **pool})["error"]
    for private in ({"profile": "/etc/passwd"}, {"calibration": "/etc/passwd"}, {"hf_token": "x"}):
        assert "unknown key" in server.job("/api/search", {"plan": PLAN, "goodput": "tpot:20", **private})["error"]
        assert "unknown key" in server.job("/api/simulate", {"plan": PLAN, "traffic": private})["error"]


def test_what_takes_too_much_is_ended() -> None:
    turns = ",".join("1000:100" for _ in range(50_000))
    worker = Worker()
    late = worker.ask("analyze", json.dumps({**PLAN, "turns": turns}).encode(), 1.0)
    assert late.status == 422 and b"longer than the 1 s" in late.body and not worker.alive
    other = Worker()
    try:
        talks = {"num_prompts": 200_000, "input_len": 10**6, "turns": 10**5}
        full = other.ask("simulate", json.dumps({"plan": PLAN, "traffic": talks}).encode(), 60.0)
        assert full.status == 422 and b"more memory" in full.body, full
        assert other.ask("analyze", json.dumps(PLAN).encode(), 20.0).status == 200, "it lives on"
    finally:
        other.end()
    with pytest.raises(WorkerDied):
        other.ask("analyze", b"{}", 1.0)


# ------------------------------------------------------------------ who may ask


def test_only_this_machines_own_page_may_ask(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    strange = ("", "10.0.0.7", "localhost@evil.example")
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", *strange):
        reply = server.post("/api/analyze", PLAN, Host=host)
        assert reply.status == 403 and "Traceback" not in reply.body.decode(), host
        assert server.get("/", Host=host).status == 403
    assert server.post("/api/analyze", PLAN, Host=f"localhost:{port}").status == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{int(port) + 1}", "http://localhost"):
        assert server.post("/api/analyze", PLAN, Origin=origin).status == 403, origin
    assert server.post("/api/analyze", PLAN, Origin=server.address).status == 200
    assert server.post("/api/analyze", PLAN, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    asked = server.ask("OPTIONS", "/api/analyze", None, preflight)
    assert asked.status == 403 and not any(name.startswith("access-control") for name in asked.headers)
    form = server.ask("POST", "/api/analyze", b"{}", {"Content-Type": "text/plain"})
    assert form.status == 415, "what a form of another site could send without being asked"


def test_answers_say_what_a_browser_may_do(server: Server) -> None:
    for path in ("/", "/static/main.js", "/static/plotly.js", "/api/controls", "/nothing"):
        headers = server.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe-eval" not in policy and "http" not in policy
        assert "script-src 'self';" in policy and headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY" and "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_sizes_are_bounded(server: Server) -> None:
    large = server.post("/api/analyze", {"config": {"x": "y" * 2_300_000}})
    assert large.status == 413 and "2 MB" in large.json["error"] and large.json["control"] == "model"
    trace = server.post("/api/simulate", {"plan": PLAN, "trace": {"name": "t.csv", "text": "1" * 25_000_000}})
    assert trace.status == 413

    def piecewise() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    kind = {"Content-Type": "application/json"}
    endless = server.ask("POST", "/api/analyze", piecewise(), kind)  # type: ignore[arg-type]
    assert endless.status == 413, "one that does not say its length, too"


def test_a_server_for_all_addresses_takes_addresses_but_no_names() -> None:
    async def nothing(*_: Any) -> None:
        """Answers nothing."""

    here, everywhere, named = Guard(nothing), Guard(nothing, "0.0.0.0"), Guard(nothing, "gpu-box")
    assert here.is_local("localhost:8642") and here.is_local("[::1]:8642") and not here.is_local("192.168.1.7:8642")
    assert everywhere.is_local("192.168.1.7:8642") and not everywhere.is_local("evil.example")
    assert named.is_local("gpu-box:80") and not named.is_local("gpu-box.evil.example")
    assert not here.is_local("localhost:x") and not here.is_local("[::1") and not here.is_local("a b")


# ------------------------------------------------------------------ the page's parts


def test_the_page_and_its_parts(server: Server) -> None:
    page = server.get("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert b"//" not in page.body.replace(b"http://www.w3.org", b""), "nothing comes from elsewhere"
    charts = server.get("/static/plotly.js")
    assert charts.headers["content-type"].startswith("text/javascript") and len(charts.body) > 10**6
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/none.js", "/app.py"):
        assert server.get(path).status == 404, path


def test_files_are_compressed_and_kept_under_the_address_of_their_version(server: Server) -> None:
    page = server.get("/", **{"Accept-Encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip" and page.headers["vary"] == "Accept-Encoding"
    html = gzip.decompress(page.body).decode()
    assert html == server.get("/").body.decode(), "the same for a client that takes no gzip"
    version = page.headers["x-page-version"]
    addresses = set(re.findall(r'"(/static/[^"]+)"', html))
    assert {f"/static/{version}/main.js", f"/static/{version}/palette.css"} <= addresses
    assert not any("plotly" in address for address in addresses), "charts' library waits for the first chart"
    charts = server.get(f"/static/{version}/plotly.js", **{"Accept-Encoding": "gzip"})
    assert "immutable" in charts.headers["cache-control"] and len(charts.body) < 0.4 * len(gzip.decompress(charts.body))
    for path in ("/", "/static/main.js", f"/static/{version}/main.js"):
        whole = server.ask("HEAD", path)
        assert whole.status == 200 and not whole.body and int(whole.headers["content-length"]) > 1000
        again = server.get(path, **{"If-None-Match": whole.headers["etag"]})
        assert again.status == 304 and not again.body
    assert "immutable" not in server.get("/static/0/main.js").headers["cache-control"], "a page of another version"
    answer = server.post("/api/analyze", PLAN, **{"Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(answer.body)) == server.post("/api/analyze", PLAN).json


def test_the_catalogue(server: Server) -> None:
    found = server.get("/api/catalogue").json
    assert [one["name"] for one in found["models"]] == catalog.names("models")
    assert [one["name"] for one in found["hardware"]] == catalog.names("hardware")
    assert {one["kind"] for one in found["models"]} == {"decoder", "diffusion"}
    assert next(one for one in found["models"] if one["name"] == "llama-3.1-8b")["params"] == 8_030_261_248
    for preset in found["presets"]:
        reply = server.post("/api/analyze", preset["plan"])
        assert reply.status == 200 and reply.json["feasible"], f"{preset['name']} should work"


def test_the_controls_are_the_flags_of_the_command(server: Server) -> None:
    controls = {one["name"]: one for one in server.get("/api/controls").json}
    flags = {option.name: option for option in analyze_command.params if isinstance(option, click.Option)}
    private = {"profile", "calibration", "hf_token"}
    assert set(controls) == set(ARGUMENTS) == {"model", *page_arguments()} - private
    for name, control in controls.items():
        if name != "model":
            assert control["flag"] in flags[name].opts and (flags[name].help or "").startswith(control["help"]), name
        assert control["label"] and control["group"] and "[default" not in control["help"]
        if control["kind"] == "number":
            assert control["unit"] and control["least"] < control["most"] and control["step"], name
            assert control["default"] is None or control["least"] <= control["default"] <= control["most"]
        if control["kind"] == "choice":
            assert control["default"] is None or control["default"] in control["choices"]


def test_every_choice_is_one(server: Server) -> None:
    for control in server.get("/api/controls").json:
        for choice in control["choices"]:
            if control["name"] in ("gpu", "interconnect"):  # the catalogue's; of some device, not of all
                continue
            model = {"usecase": "llama-3.1-8b", "norm_dtype": "llama-3.1-8b"}.get(control["name"], "qwen3-0.6b")
            reply = server.post("/api/analyze", {"model": model, "gpu": "h200", control["name"]: choice})
            assert reply.status == 200, (control["name"], choice, reply.json)


def test_accuracy_is_the_page_of_accuracy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import accuracy_data

    found = server.get("/api/accuracy").json
    page = accuracy_data.read()
    assert found["tables"] == accuracy_data.tables(page), "make data"
    assert found["prediction_errors"] == accuracy_data.prediction_errors(found["tables"], page), "make data"
    for one in found["points"]:
        assert len(one["measured"]) == len(one["predicted"]) == len(one["labels"]) > 0
        assert min(one["measured"]) > 0


# ------------------------------------------------------------------ words


def test_a_command_says_all_words(tmp_path: Path) -> None:
    given = {
        "model": "qwen3-0.6b",
        "gpu": "h200",
        "turns": [[512, 128], [64, 32]],
        "fusion": False,
        "block_size": None,
        "enable_expert_parallel": False,
        "sequence_parallel": True,
        "efficiency": {"flops": 0.5},
    }
    line = command("analyze", page_plan(given, tmp_path))
    assert line == (
        "inferometer analyze qwen3-0.6b --gpu h200 --turns 512:128,64:32 --no-fusion --sequence-parallel "
        "--efficiency flops=0.5"
    )
    spec = {"method": "ngram", "num_speculative_tokens": 2}
    quoted = command("analyze", PagePlan("m", "h200", {"speculative_config": spec}, "m"))
    assert json.loads(shlex.split(quoted)[-1]) == spec


def test_copied_commands_are_complete(server: Server, run: Run) -> None:
    """Each verb's command is one that the command line takes, with its pictures; two are run, and say the same."""
    plan = {"batch_size": 4, "quantization": "fp8"}
    answers = {
        "analyze": server.post("/api/analyze", plan).json,
        "sweep": server.post(
            "/api/sweep", {"plan": plan, "axes": {"batch_size": "1,2", "gpu": ["h200", "h100-sxm"]}}
        ).json,
        "sensitivity": server.post("/api/sensitivity", {"plan": plan, "target": "tpot:4"}).json,
        "search": server.job("/api/search", {"plan": plan, "num_gpus": 1, "goodput": "ttft:500", "finalists": 1})[
            "result"
        ],
        "simulate": server.job("/api/simulate", {"plan": plan, "traffic": {"num_prompts": 5}})["result"],
    }
    for verb, answer in answers.items():
        words = shlex.split(answer["command"])
        assert words[:3] == ["inferometer", verb, "llama-3.1-8b"] and "--gpu" in words, "a default may change"
        click_command = app.get_command(click.Context(app), verb)
        assert click_command is not None
        with click_command.make_context(verb, [*words[2:], "--plot", "pictures"]) as parsed:
            assert parsed.params["plot"] == "pictures"
    for verb, key in (("analyze", "metrics"), ("sensitivity", "figures")):
        said = run(*shlex.split(answers[verb]["command"])[1:], "--json").json
        assert said[key] == answers[verb][key]


def test_an_error_is_about_a_control(tmp_path: Path) -> None:
    for given, control in {
        "gpu": "h200:memory=80",
        "quantization": "fp9",
        "lora_targets": "none",
        "usecase": "none",
    }.items():
        plan = {"batch_size": 8, "lora_rank": 8, given: control}
        with pytest.raises(InferometerError) as caught:
            arguments = page_plan(plan, tmp_path)
            build_request(arguments.model, arguments.gpu, **arguments.options)
        assert caught.value.field == given
    refused = json.loads(refusal_of(BadValue("`batch_size` must be 8"), control_label).body)
    assert refused == {"error": "Batch size must be 8", "control": "batch_size", "suggestions": [], "remedies": []}
