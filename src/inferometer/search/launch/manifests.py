"""Files that deploy a plan, by path: Docker Compose, Kubernetes, Dynamo, llm-d; and plain data as YAML text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .compose import compose_files
from .containers import CACHE, deployment_data
from .kubernetes import kubernetes_files
from .orchestrators import dynamo_files, llm_d_files
from .processes import Launch

# A plain scalar that every reader takes for the string it is: YAML 1.1 has words for booleans, and numbers of base 60.
_PLAIN = re.compile(r"(?:--?)?[A-Za-z_/$][\w./@=+,()$<>*-]*(?::[\w./@=+,()$-]+)*")
_UNREADABLE = re.compile(
    "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
)  # what YAML refuses, or takes for the end of a line
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def files(launch: Launch) -> dict[str, str]:
    """Text by path; none where the engine cannot run the plan: ``files(launch)["kubernetes/server.yaml"]``"""
    engine = deployment_data().engines[launch.engine]
    if not launch.processes or not (launch.vendor in engine.images or engine.other_devices):
        return {}
    if launch.model.startswith((".", "/")):  # on a disk: containers see the volume of the cache, and nothing else
        name = launch.model.rstrip("/").rpartition("/")[2]
        notes = [*launch.notes, f"Copy the checkpoint {name} into the volume of the cache, {CACHE} in containers."]
        launch = msgspec.structs.replace(launch, model=f"{CACHE}/{name}", notes=notes)
    written = compose_files(launch) | kubernetes_files(launch) | dynamo_files(launch) | llm_d_files(launch)
    return {path: yaml_text(*each.documents, comments=each.comments) for path, each in written.items()}


def yaml_text(*documents: Any, comments: Iterable[str] = ()) -> str:
    """Documents as one YAML file: ``yaml_text({"kind": "Service"})  # 'kind: Service\\n'``"""
    head = "".join(f"# {line}\n" if line else "#\n" for line in comments)
    return head + "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: Any) -> list[str]:
    """Lines of a block, not indented."""
    if isinstance(value, Mapping) and value:
        return [line for key, item in value.items() for line in _entry(f"{_scalar(str(key))}:", item)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [line for item in value for line in _item(item)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        ends = value.endswith("\n")
        return [
            f"{key} {'|' if ends else '|-'}",
            *(f"  {line}".rstrip() for line in value[: -1 if ends else None].split("\n")),
        ]
    if not _is_nested(value):
        return [f"{key} {_scalar(value)}"]
    indent = "  " if isinstance(value, Mapping) else ""  # items of a list stand below the key, as kubectl prints them
    return [key, *(indent + line for line in _lines(value))]


def _item(value: Any) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        return _entry("-", value)
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and bool(value)


def _is_block(text: str) -> bool:
    """Whether a string is written line by line; what YAML would read otherwise is written as JSON."""
    lines = text.split("\n")
    plain = all(line == line.rstrip() and line.isprintable() for line in lines)
    return len(lines) > 1 and plain and not text.startswith((" ", "\n")) and not text.endswith("\n\n")


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
