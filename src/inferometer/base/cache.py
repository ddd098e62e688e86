"""Results remembered for objects that have no hash, such as structs that hold dicts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Subject = TypeVar("Subject")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")


def cache_by_identity(
    maxsize: int,
) -> Callable[
    [Callable[Concatenate[Subject, Rest], Result]],
    Callable[Concatenate[Subject, Rest], Result],
]:
    """Remember a function's results by *which* object its first argument is and by the *value* of all others.

        @cache_by_identity(maxsize=64)
        def stages(model, pp): ...                # stages(model, 2) is worked out once for this very model

    The first argument is passed by position. Two equal objects are two entries: only the identity counts, so a change
    of a mutable object goes unnoticed. An entry holds its object, so that no other one can come to the same ``id``.
    With ``maxsize`` entries the oldest is dropped for the next.
    """

    def decorate(function: Callable[Concatenate[Subject, Rest], Result]) -> Callable[..., Result]:
        entries: dict[tuple[Any, ...], tuple[Subject, Result]] = {}

        @functools.wraps(function)
        def cached(subject: Subject, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
            key = (id(subject), *args, *kwargs.items())
            entry = entries.get(key)
            if entry is None:
                entry = (subject, function(subject, *args, **kwargs))
                while len(entries) >= maxsize:
                    entries.pop(next(iter(entries)), None)
                entries[key] = entry
            return entry[1]

        return cached

    return decorate
