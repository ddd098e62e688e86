"""Errors: one sentence, the argument at fault, spelled as each front end does."""

from __future__ import annotations

import pickle

import pytest
from conftest import command

from inferometer.base.errors import BadFile, BadValue, UnknownName, check_int, nearest


def test_python_names_the_keyword_and_the_command_line_the_flag() -> None:
    with pytest.raises(BadValue, match=r"^batch_size must be between 1") as caught:
        check_int("batch_size", 0)
    assert caught.value.field == "batch_size"
    assert command("analyze", "llama-3.1-8b", "--batch-size", "0").err.startswith("inferometer: --batch-size must be")


def test_what_was_typed_is_never_taken_for_an_argument() -> None:
    error = UnknownName("model", "`nodes`", ["llama"])
    assert str(error) == error.text(lambda name: f"--{name}") == "unknown model '`nodes`'; allowed: llama"
    assert error.field == ""


def test_errors_travel_between_processes() -> None:
    for error in (UnknownName("`router`", "x", ["y"]), BadValue(field="zero", given=9, allowed="0 to 3"), BadFile("f")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and again.field == error.field


def test_a_name_as_long_as_a_file_is_near_to_nothing_at_once() -> None:
    assert nearest("llama-3.1-8" * 10_000, ["llama-3.1-8b"] * 10_000) == []
