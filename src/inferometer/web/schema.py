"""The bodies of requests for the OpenAPI document: a plan's words come from the controls, so that they cannot drift."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .catalogue import Control
from .words import OWN

AXIS = {"description": "One value, a list, or a range: 1,2,4 or 16:8000:16 or 1:1024:x2"}
_TEXT: dict[str, Any] = {"type": "string"}
_TRACE = {
    "type": "object",
    "description": "Requests as CSV or JSON lines, up to 20 MB.",
    "required": ["text"],
    "properties": {"name": _TEXT, "text": _TEXT},
}


def plan_schema(controls: Iterable[Control]) -> dict[str, Any]:
    """A plan: every word of ``analyze`` that a page may say."""
    words = {one.name: _word(one) for one in controls}
    words["config"] = {"type": "object", "description": "A config.json instead of a name of the catalogue."}
    words["gpu_figures"] = {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "description": "Figures of the GPU that differ from the catalogue's.",
    }
    return {"type": "object", "additionalProperties": False, "properties": words}


def _word(one: Control) -> dict[str, Any]:
    about = f"{one.help} ({one.flag})".strip()
    if one.kind == "switch":
        return {"type": "boolean", "description": about}
    if one.kind == "number":
        whole = all(value is None or value % 1 == 0 for value in (one.least, one.most)) and not isinstance(
            one.default, float
        )
        return {"type": "integer" if whole and one.step != 0.01 else "number", "description": about}
    return {"type": "string", "description": about, **({"examples": one.choices[:3]} if one.choices else {})}


def body_schemas(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The body of every verb by its name."""

    def beside(required: tuple[str, ...] = (), **words: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"plan": plan, **words}, "required": ["plan", *required]}

    words = {word: AXIS for word in plan["properties"] if word not in OWN}
    axes = {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": words}
    limits = {"type": "string", "description": "ttft:500,tpot:50 (ms)"}
    number, whole = {"type": "number"}, {"type": "integer"}
    traffic = {
        "type": "object",
        "properties": {
            "num_prompts": whole,
            "request_rate": number,
            "burstiness": number,
            "input_len": _TEXT,
            "output_len": _TEXT,
            "prefix_len": whole,
            "turns": _TEXT,
            "think_time": _TEXT,
            "max_concurrency": whole,
            "seed": whole,
            "scheduler": _TEXT,
            "router": _TEXT,
            "goodput": limits,
            "find_capacity": {"type": "boolean"},
        },
    }
    return {
        "analyze": plan,
        "explain": beside(("op",), op=_TEXT, phase={"type": "string", "enum": ["prefill", "decode", "vision", "all"]}),
        "sweep": beside(("axes",), axes=axes, figures={"type": "array", "items": _TEXT}),
        "search": beside(
            num_gpus=whole,
            nodes=whole,
            request_rate=number,
            goodput=limits,
            goodput_share=number,
            objective={"type": "string", "enum": ["throughput", "cost", "latency", "energy"]},
            mode={"type": "string", "enum": ["both", "aggregated", "disaggregated"]},
            finalists=whole,
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
        "simulate": beside(traffic=traffic, trace=_TRACE),
    }


def with_body(schema: dict[str, Any]) -> Any:
    """The class of an operation of the OpenAPI document whose body is described by a schema."""
    from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema

    def made(part: dict[str, Any]) -> Schema:
        inner = part.get("additionalProperties")
        return Schema(
            type=part.get("type"),
            description=part.get("description"),
            required=part.get("required"),
            enum=part.get("enum"),
            examples=part.get("examples"),
            min_properties=part.get("minProperties"),
            properties={word: made(one) for word, one in part["properties"].items()} if "properties" in part else None,
            additional_properties=made(inner) if isinstance(inner, dict) else inner,
            items=made(part["items"]) if "items" in part else None,
        )

    body = RequestBody(content={"application/json": OpenAPIMediaType(schema=made(schema))}, required=True)

    @dataclass
    class WithBody(Operation):
        """An operation with this body."""

        request_body: RequestBody | None = field(default=None)

        def __post_init__(self) -> None:
            self.request_body = body

    return WithBody
