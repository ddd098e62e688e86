"""Values of a server's flags, as they are typed or in files, in the types of a plan's arguments.

whole("32k"), is_true("yes"), converted("gpu_memory_utilization", "0.9")        # 32000, True, 0.9
flags_document("config.yaml")       # {'max-model-len': '8192', 'enforce-eager': 'true'}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..base.errors import BadValue, InferometerError, abbreviate
from ..base.files import input_text
from .arguments import arguments
from .command_args import ServingArgs
from .manifest_yaml import read_yaml
from .plan_args import PlanArgs

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # vLLM's human_readable_int
_TRTLLM_CACHE = {"dtype": "kv_cache_dtype"}
NOT_SET = "which the command does not set: put its value there"


def json_object(flag: str, value: Any) -> dict[str, Any]:
    """``json_object("--speculative-config", '{"method": "ngram"}')  # {'method': 'ngram'}``"""
    if value is True:
        raise ValueError
    try:
        read = json.loads(str(value))
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadValue(f"{flag} of the command takes a JSON object, not {abbreviate(str(value))}", field="model")
    return read


def is_true(value: Any) -> bool:
    """Whether a switch is on: ``is_true("yes")  # True``"""
    return value is True or str(value).lower() in ("true", "1", "yes")


def whole(value: Any) -> int:
    """``whole("32k")  # 32000``, as vLLM reads it; K is 1024."""
    text = str(value)
    factor = _SUFFIXES.get(text[-1:], 1)
    return round(float(text[:-1]) * factor) if factor > 1 else int(text)


def kind_of(argument: str) -> str:
    """The type of a plan's argument: ``kind_of("max_num_seqs")  # 'int'``"""
    known = arguments(PlanArgs).get(argument) or arguments(ServingArgs).get(argument)
    return known.kind if known else "text"


def converted(argument: str, value: Any) -> Any:
    """A value in the type of an argument: ``converted("max_num_seqs", "1k")  # 1000``"""
    kind = kind_of(argument)
    if kind == "switch":
        return is_true(value)
    return whole(value) if kind == "int" else float(value) if kind == "float" else str(value)


def wrong_value(argument: str, value: Any) -> str:
    """What is wrong with a value: ``wrong_value("max_num_seqs", "many")  # "takes a whole number, not 'many'"``"""
    if value is True:
        return "needs a value"
    if "$" in str(value):
        return f"is {abbreviate(str(value))}, {NOT_SET}"
    is_json = str(value).startswith(("[", "{"))
    kind = None if is_json else {"int": "a whole number", "float": "a number"}.get(kind_of(argument))
    return f"takes {kind}, not {abbreviate(str(value))}" if kind else f"does not take {abbreviate(str(value))}"


# ------------------------------------------------------------------ files of flags


def flags_document(path: str) -> dict[str, Any] | None:
    """The mapping in a YAML file that a command names; None if that cannot be read here."""
    try:
        text = input_text(path) if path else None
        document = read_yaml(text, path)[0] if text is not None else None
    except (InferometerError, IndexError):
        return None
    return document if isinstance(document, dict) else None


def typed_flag(key: str, value: Any) -> list[str]:
    """A setting of a file of flags as it is typed: ``typed_flag("enforce-eager", "true")  # ['--enforce-eager']``"""
    if value is None or str(value).lower() == "false":
        return []
    if str(value).lower() == "true":
        return [f"--{key}"]
    if isinstance(value, dict):
        return [f"--{key}", json.dumps(value)]
    return [f"--{key}", *map(str, value if isinstance(value, list) else [value])]


def trtllm_options(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of TensorRT-LLM's options by the names of data/flags; those of the KV cache come out of their table."""
    for name, value in document.items():
        if name == "kv_cache_config" and isinstance(value, dict):
            for key, item in value.items():
                yield _TRTLLM_CACHE.get(str(key), str(key)), item
        else:
            yield name, value
