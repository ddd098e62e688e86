"""What goes back to a page: a status and JSON, be it a result or a refusal.

refusal(403, "a page of another site may not ask this server")      # JsonAnswer(status=403, body=b'{"error": …')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, InferometerError, abbreviate

ProgressCallback = Callable[[float | None, str], None]  # share that is done (None: unknown), and a sentence for people


def no_progress(share: float | None, text: str) -> None:
    """A `ProgressCallback` that shows nothing."""


class JsonAnswer(NamedTuple):
    """Status and body of a response; a tuple, because it travels between processes."""

    status: int
    body: bytes


class Refusal(msgspec.Struct):
    """Why a request is refused: one sentence, the control that it is about, what may have been meant, what helps."""

    error: str
    control: str | None = None
    suggestions: Sequence[str] = ()
    remedies: Sequence[dict[str, Any]] = ()  # changes that were tried; null takes an argument back to its default


def result(value: Any) -> JsonAnswer:
    """Anything that JSON can say: ``result({"schema": …})``"""
    return JsonAnswer(200, msgspec.json.encode(value))


def refusal(status: int, sentence: str, control: str | None = None) -> JsonAnswer:
    """``refusal(404, "unknown job 'x'")``"""
    return JsonAnswer(status, msgspec.json.encode(Refusal(sentence, control)))


def refusal_of(
    error: InferometerError, label: Callable[[str], str], remedies: Sequence[dict[str, Any]] = ()
) -> JsonAnswer:
    """A request's own mistake: arguments are called as their controls are, and the first of them is marked."""
    refused = Refusal(error.text(label), error.field or None, error.suggestions, remedies)
    return JsonAnswer(400, msgspec.json.encode(refused))


def decoded(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; nothing is an empty one."""
    try:
        value = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"the request is not valid JSON: {abbreviate(str(error))}") from None
    if not isinstance(value, dict):
        raise BadValue(f"the request must be a JSON object, not {abbreviate(value)}")
    return value
