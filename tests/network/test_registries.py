"""Registries of operators and model families: a name is registered once."""

from __future__ import annotations

import pytest

from inferometer.network import families
from inferometer.network.operators import KINDS, Op, Work, operator


def test_a_kind_of_operator_has_one_function() -> None:
    before = dict(KINDS)
    with pytest.raises(ValueError, match="'linear' is registered twice"):

        @operator("linear")
        def another(name: str) -> Op:
            return Op(name, "linear", Work(), {})

    assert before == KINDS


def test_a_family_has_a_file_or_a_line_but_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"llama", "mistral"} <= set(families.families())
    monkeypatch.setitem(families.RELATIVES, "falcon", ("llama", {}))
    with pytest.raises(ValueError, match="falcon"):
        families.families()


def test_a_family_of_a_shared_file_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.SHARED_FILES, "gemma", ("gemma3", "gemma4", "dit"))
    with pytest.raises(ValueError, match="dit"):
        families.families()


def test_every_family_of_a_shared_file_has_its_function() -> None:
    """Also `nemotron_nas`, which no catalogued model spells like that."""
    for name in families.families():
        assert callable(families.builder(name))
