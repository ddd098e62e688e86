"""Whatever is sent, the server keeps its countenance: bodies made up from its own OpenAPI document, and worse ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.web_server import Server, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.web.catalogue import Control, controls
from inferometer.web.endpoints import answer
from inferometer.web.page_plan import ARGUMENTS, PAGE_ONLY
from inferometer.web.schema import body_schemas, plan_schema
from inferometer.web.workers import Worker

pytestmark = pytest.mark.slow

CALM = settings(deadline=None, suppress_health_check=list(HealthCheck))
QUICK = ("analyze", "cluster", "roofline", "explain", "sweep", "sensitivity")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    import schemathesis  # takes a second, which other tests are spared

    return schemathesis.openapi.from_url(f"{server.address}/schema")


@pytest.mark.parametrize("verb", [*QUICK, "controls", "catalogue", "accuracy", "jobs/{job}"])
def test_no_request_of_the_document_breaks_it(document: Any, verb: str) -> None:
    import schemathesis

    for operation in document[f"/api/{verb}"].values():

        @given(case=operation.as_strategy())
        @settings(CALM, max_examples=12)
        def ask(case: Any) -> None:
            reply = case.call(timeout=60)
            case.validate_response(reply, checks=[schemathesis.checks.not_a_server_error])
            if reply.status_code >= 400:
                assert set(reply.json()) == {"error", "control", "suggestions", "remedies"} and reply.json()["error"], (
                    reply.text
                )

        ask()


def test_the_document_has_every_verb(server: Server) -> None:
    found = server.get("/schema").json
    assert found["openapi"].startswith("3.")
    for verb in body_schemas(plan_schema([])):
        operation = found["paths"][f"/api/{verb}"]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        words = body["properties"].get("plan", body)["properties"]
        assert set(words) == {*ARGUMENTS, *PAGE_ONLY}, "a plan's words are in the document"
    assert {"/api/jobs/{job}", "/api/catalogue", "/api/controls", "/api/accuracy"} <= set(found["paths"])


# ------------------------------------------------------------------ likelier, and worse

ABSURD = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308, 1e-320, 0.5]))
WORDY = [
    "1:8:x2",
    "512:128",
    "1x64x64",
    "../x",
    "",
    "0.6",
    "flops=0.5",
    "qkv_proj",
    "ttft:500,tpot:50",
    "a=b",
    "inf",
    '{"method": "ngram"}',
    '{"model": "qwen3-0.6b"}',
    "uniform:min=1,max=9",
    "fp8",
]
PLAIN = st.one_of(st.none(), st.booleans(), ABSURD, st.sampled_from(WORDY), st.text(max_size=8))
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner), max_leaves=5)
MODELS = st.sampled_from(["qwen3-0.6b", "mixtral-8x7b-v0.1", "deepseek-v2-lite", "dit-s-2", "qwen2.5-vl-7b"])


def rarely(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly the usual, now and then anything."""
    return st.integers(0, 9).flatmap(lambda dice: ANY if dice == 0 else usual)


def some(**words: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the words, few at a time."""
    pairs = st.one_of([st.tuples(st.just(name), rarely(usual)) for name, usual in words.items()])
    return st.lists(pairs, max_size=3).map(dict)


def likely(control: Control) -> st.SearchStrategy[Any]:
    """Values that a control would give."""
    if control.name == "model":
        return MODELS
    if control.kind == "switch":
        return st.booleans()
    if control.kind == "number":
        return st.integers(1, 64) if control.most != 1 else st.floats(0, 1)
    return st.sampled_from(control.choices or WORDY)


SMALL = {"model": "qwen3-0.6b", "gpu": "h200"}
FIGURES = st.dictionaries(st.sampled_from(["memory", "memory_bandwidth", "power", "flops.bf16", "x"]), ABSURD)
PLANS = some(gpu_figures=FIGURES, **{one.name: likely(one) for one in controls()}).map(lambda plan: {**SMALL, **plan})
FEW = st.integers(0, 3)
TRAFFIC = some(
    request_rate=st.floats(0, 1e9),
    burstiness=ABSURD,
    max_concurrency=FEW,
    seed=ABSURD,
    input_len=st.integers(1, 99),
    output_len=st.integers(0, 9),
    turns=FEW,
    think_time=FEW,
    scheduler=st.sampled_from(["vllm", "static", "trtllm"]),
    prefill_replicas=FEW,
    decode_replicas=FEW,
    goodput=st.just({"ttft": 100}),
    pools=st.just([{"replicas": 2}]),
    policy=st.just("priority"),
    find_capacity=st.booleans(),
    enable_prefix_caching=st.booleans(),
    prefix_len=FEW,
).map(lambda words: {"num_prompts": 3, **words})
AXES = some(**dict.fromkeys(ARGUMENTS, st.sampled_from(["1,2", "1:8:x2", ["fp8", "bf16"], [1, 3], [True, False]])))
TRACES = st.sampled_from(["input_tokens,output_tokens\n5,5\n", "input_tokens,output_tokens\n", "", "{}"]) | st.text()


def asked(verb: str, **words: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A body of a verb: a plan, and its own words."""
    return st.tuples(st.just(verb), st.fixed_dictionaries({"plan": PLANS, **words}))


BODIES = st.one_of(
    st.tuples(st.sampled_from(["analyze", "cluster"]), PLANS),
    asked("explain", op=rarely(st.sampled_from(["lm_head", "attention", "draft"])), phase=rarely(st.just("all"))),
    asked("sweep", axes=AXES, figures=rarely(st.just(["tpot_ms"]))),
    asked("simulate", traffic=TRAFFIC),
    asked("simulate", trace=some(name=st.text(max_size=9), text=TRACES)),
    st.tuples(
        st.just("sensitivity"),
        some(
            plan=PLANS,
            target=st.sampled_from(["tpot:5", "ttft:x", ""]),
            size=st.booleans(),
            compare=MODELS,
            compare_usecases=st.booleans(),
            curves=st.booleans(),
        ),
    ),
    st.tuples(
        st.just("search"),
        some(
            plan=PLANS,
            num_gpus=FEW,
            goodput=st.just("ttft:900"),
            request_rate=FEW,
            mode=st.just("aggregated"),
            objective=st.sampled_from(["cost", "latency"]),
            tensor_parallel_size=st.just([1, 2]),
            output_len=FEW,
        ).map(lambda words: {**words, "finalists": 1}),
    ),
)


def sent(body: Any) -> bytes:
    """As JSON; numbers that it has not become those that it almost has."""
    return json.dumps(body).replace("NaN", "1e-400").replace("Infinity", "1e400").encode()


@pytest.fixture(scope="module")
def worker() -> Iterator[list[Worker]]:
    """A worker, in a list so that it can be replaced when it was asked for too much."""
    held = [Worker()]
    yield held
    held[0].end()


@given(BODIES)
@settings(CALM, max_examples=30)
def test_no_body_breaks_a_verb(worker: list[Worker], question: tuple[str, Any]) -> None:
    verb, body = question
    if not worker[0].alive:
        worker[0] = Worker()
    found = worker[0].ask(verb, sent(body), 5.0)
    assert found.status in (200, 400, 422), (verb, sent(body), found.body)
    if found.status != 200:
        assert json.loads(found.body)["error"]


@given(st.binary(max_size=40))
@settings(CALM, max_examples=50)
def test_no_bytes_break_a_verb(body: bytes) -> None:
    assert answer("explain", body).status == 400
