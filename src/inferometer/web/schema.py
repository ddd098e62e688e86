"""The OpenAPI document; a plan's arguments come from the controls, so they cannot drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .. import __version__
from .answers import Refusal
from .catalogue import Control
from .page_plan import PAGE_ONLY, page_arguments, training_arguments

AXIS = {"description": "One value, a list, or a range: 1,2,4 or 16:8000:16 or 1:1024:x2"}
SUMMARIES = {
    "analyze": "One plan, explained: the report, the command that makes it, and the network to be drawn.",
    "roofline": "The same, and the roofline laid out: dots, all of the time, and places of the names.",
    "cluster": "What each GPU holds, and what travels over each link in a phase.",
    "explain": "One operator: its formulas, their values, and the origin of its efficiency.",
    "sweep": "Every combination of some axes, as columns.",
    "sensitivity": "Which hardware figures drive a plan: each one moved 10% up and down.",
    "train": "One optimizer step of training: time, memory, and every pass of the schedule.",
    "simulate": "Start a simulation of requests; returns a job.",
    "search": "Start the search for the best deployment; returns a job.",
}
_READ = {
    "/api/controls": "The arguments of a plan: labels, help, units, bounds.",
    "/api/catalogue": "Models, hardware, engines, precisions, use cases, presets.",
    "/api/accuracy": "Predicted beside measured, as shipped.",
    "/healthz": "Whether the server is ready, and the state of its workers; 503 if it is not.",
    "/healthz/live": "Whether the server is alive.",
}
_REFUSALS = {
    "400": "A mistake in the request.",
    "401": "The server requires its token.",
    "403": "A page of another site, or a host that is not this machine.",
    "422": "More time or memory than the web page allows.",
    "429": "Too many requests at once.",
    "503": "The server is too busy.",
}
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER, _WHOLE = {"type": "number"}, {"type": "integer"}
_LIMITS = {"type": "string", "description": "ttft:500,tpot:50 (ms)"}
_TRACE = {
    "type": "object",
    "description": "Requests as CSV or JSON lines, up to 20 MB.",
    "required": ["text"],
    "properties": {"name": _TEXT, "text": _TEXT},
}
_TRAFFIC = {
    "type": "object",
    "properties": {
        "num_prompts": _WHOLE,
        "request_rate": _NUMBER,
        "burstiness": _NUMBER,
        "input_len": _TEXT,
        "output_len": _TEXT,
        "prefix_len": _WHOLE,
        "turns": _TEXT,
        "think_time": _TEXT,
        "max_concurrency": _WHOLE,
        "agents": _TEXT,
        "num_sessions": _WHOLE,
        "concurrent_sessions": _WHOLE,
        "max_idle": _NUMBER,
        "warm_cache": _TEXT,
        "seed": _WHOLE,
        "scheduler": _TEXT,
        "router": _TEXT,
        "goodput": _LIMITS,
        "find_capacity": {"type": "boolean"},
    },
}


def plan_schema(controls: Iterable[Control]) -> dict[str, Any]:
    """A plan: every argument of ``analyze`` that a page may give."""
    properties = {control.name: _property(control) for control in controls}
    properties["config"] = {"type": "object", "description": "A config.json instead of a name of the catalogue."}
    properties["gpu_figures"] = {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "description": "Figures of the GPU that differ from the catalogue's.",
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(control: Control) -> dict[str, Any]:
    """The type is that of the argument: a control shows whole numbers and others alike."""
    types = {"switch": "boolean", "int": "integer", "float": "number"}
    examples = {"examples": control.choices[:3]} if control.kind == "choice" else {}
    return {
        "type": types.get(page_arguments()[control.name].kind, "string"),
        "description": f"{control.help} ({control.flag})",
        **examples,
    }


def body_schemas(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The body of every verb by its name."""

    def beside(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"plan": plan, **properties}, "required": ["plan", *required]}

    swept = {name: AXIS for name in plan["properties"] if name not in PAGE_ONLY}
    axes = {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": swept}
    return {
        "analyze": plan,
        "roofline": plan,
        "cluster": plan,
        "explain": beside(("op",), op=_TEXT, phase={"type": "string", "enum": ["prefill", "decode", "vision", "all"]}),
        "sweep": beside(("axes",), axes=axes, figures={"type": "array", "items": _TEXT}),
        "search": beside(
            num_gpus=_WHOLE,
            nodes=_WHOLE,
            request_rate=_NUMBER,
            goodput=_LIMITS,
            goodput_share=_NUMBER,
            objective={"type": "string", "enum": ["throughput", "cost", "latency", "energy"]},
            mode={"type": "string", "enum": ["both", "aggregated", "disaggregated"]},
            finalists=_WHOLE,
            input_len=_TEXT,
            output_len=_TEXT,
            trace=_TRACE,
        ),
        "sensitivity": beside(
            target=_TEXT,
            size={"type": "boolean"},
            compare=_TEXT,
            compare_usecases={"type": "boolean"},
            curves={"type": "boolean"},
        ),
        "train": beside(training=_training()),
        "simulate": beside(traffic=_TRAFFIC, trace=_TRACE),
    }


def _training() -> dict[str, Any]:
    """Every argument of ``train`` that a page may give."""
    types = {"switch": "boolean", "int": "integer", "float": "number"}
    properties = {
        name: {"type": types.get(argument.kind, "string"), "description": f"{argument.help} ({argument.flag})"}
        for name, argument in training_arguments().items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def document(controls: Sequence[Control]) -> dict[str, Any]:
    """The OpenAPI document: ``document(controls())["paths"]["/api/analyze"]["post"]["requestBody"]``"""
    _, schemas = msgspec.json.schema_components([Control, Refusal], ref_template="#/components/schemas/{name}")
    bodies = body_schemas(plan_schema(controls))
    paths: dict[str, Any] = {path: {"get": _operation(path, summary)} for path, summary in _READ.items()}
    for verb, summary in SUMMARIES.items():
        request_body = {"required": True, "content": _json(bodies[verb])}
        status = "202" if verb in ("simulate", "search") else "200"
        paths[f"/api/{verb}"] = {"post": {**_operation(verb, summary, status), "requestBody": request_body}}
    of_job = {"parameters": [{"name": "job", "in": "path", "required": True, "schema": _TEXT}]}
    paths["/api/jobs/{job}"] = {
        "get": of_job
        | _operation("job", "State of a job, its place in the queue, and its result once it is done.", "200", "404"),
        "delete": of_job | _operation("cancel", "Cancel a job.", "200", "404"),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "inferometer", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(name: str, summary: str, status: str = "200", *refused: str) -> dict[str, Any]:
    answers = {status: {"description": "The answer.", "content": _json({})}}
    for code, why in {**_REFUSALS, **dict.fromkeys(refused, "No such job.")}.items():
        answers[code] = {"description": why, "content": _json({"$ref": "#/components/schemas/Refusal"})}
    return {"operationId": name.strip("/").replace("/", "_"), "summary": summary, "responses": answers}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
