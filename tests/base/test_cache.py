"""The cache by identity: which argument is the object, what else is in the key, and what is dropped."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from inferometer.base.cache import cache_by_identity


def counted() -> tuple[list[tuple[object, ...]], Callable[..., str]]:
    calls: list[tuple[object, ...]] = []

    @cache_by_identity(maxsize=3)
    def joined(items: list[str], mark: str = "", *, times: int = 1) -> str:
        calls.append((id(items), mark, times))
        return ("".join(items) + mark) * times

    return calls, joined


def test_the_first_argument_counts_by_identity_the_others_by_value() -> None:
    calls, joined = counted()
    items, equal = ["a"], ["a"]
    assert joined(items, "!") == joined(items, "!") == "a!" and len(calls) == 1
    assert joined(equal, "!") == "a!" and len(calls) == 2
    assert joined(items, "?") == "a?" and joined(items, "!", times=2) == "a!a!" and len(calls) == 4


def test_the_object_is_passed_by_position() -> None:
    _, joined = counted()
    with pytest.raises(TypeError):
        joined(items=["a"])


def test_a_change_of_the_object_goes_unnoticed() -> None:
    _, joined = counted()
    items = ["a"]
    assert joined(items) == "a"
    items.append("b")
    assert joined(items) == "a"


def test_the_oldest_entry_is_dropped_for_the_next() -> None:
    calls, joined = counted()
    lists = [[letter] for letter in "abcd"]
    for items in lists:
        joined(items)
    for items in lists[1:]:  # the last three are still there
        joined(items)
    assert len(calls) == 4
    joined(lists[0])
    assert len(calls) == 5


def test_an_entry_keeps_its_object_so_that_an_id_is_never_reused() -> None:
    class Thing:
        pass

    @cache_by_identity(maxsize=1)
    def name(thing: Thing) -> str:
        return type(thing).__name__

    thing = Thing()
    alive = weakref.ref(thing)
    name(thing)
    del thing
    gc.collect()
    assert alive() is not None
    name(Thing())
    gc.collect()
    assert alive() is None
