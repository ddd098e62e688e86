"""The bodies of requests for the OpenAPI document; a plan's arguments come from the controls, so they cannot drift."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .catalogue import Control
from .page_plan import PAGE_ONLY, page_arguments

AXIS = {"description": "One value, a list, or a range: 1,2,4 or 16:8000:16 or 1:1024:x2"}
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
        "simulate": beside(traffic=_TRAFFIC, trace=_TRACE),
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
            properties={name: made(one) for name, one in part["properties"].items()} if "properties" in part else None,
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
