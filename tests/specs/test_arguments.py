"""The schema of arguments: what follows from it is up to date, its bounds hold, and wrong names get the right one."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from conftest import ROOT

import inferometer
from inferometer.base.errors import BadValue, InferometerError, UnknownName
from inferometer.cli.commands import app
from inferometer.specs.arguments import Args, arg, arguments, check_value, checked, flag
from inferometer.specs.command_args import SearchArgs, ServingArgs
from inferometer.specs.plan_args import PlanArgs, short_flag
from inferometer.specs.train_args import TrainArgs

VERBS = ("analyze", "sweep", "search", "sensitivity", "simulate", "find_capacity", "validate", "train", "profile")


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["keywords", "flags"])
def test_what_follows_from_the_schema_is_up_to_date(name: str) -> None:
    module = tool(name)
    assert module.TARGET.read_text(encoding="utf-8") == module.text(), "run `make schema`"


@pytest.mark.parametrize("verb", VERBS)
def test_public_functions_show_their_keywords(verb: str) -> None:
    parameters = inspect.signature(getattr(inferometer, verb)).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD], "a keyword that help() does not show"
    expected = {"profile": "warmup", "train": "zero"}.get(verb, "tensor_parallel_size")
    assert expected in parameters


def test_help_shows_types_and_defaults() -> None:
    shown = inspect.signature(inferometer.analyze).parameters["batch_size"]
    assert shown.default == 1 and shown.annotation is int


@pytest.mark.parametrize(
    ("verb", "wrong", "right"),
    [
        ("analyze", {"batchsize": 8}, "batch_size"),
        ("sweep", {"batchsize": 8}, "batch_size"),
        ("search", {"num_gpu": 8}, "num_gpus"),
        ("sensitivity", {"input_length": 8}, "input_len"),
        ("train", {"zeroo": 1}, "zero"),
        ("profile", {"warmups": 1}, "warmup"),
    ],
)
def test_a_misspelt_keyword_is_told_the_right_one(verb: str, wrong: dict[str, Any], right: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean .*{right}"):
        getattr(inferometer, verb)("llama-3.1-8b", **wrong)


@pytest.mark.slow
def test_a_type_checker_rejects_a_misspelt_keyword_and_a_wrong_type(tmp_path: Path) -> None:
    code = """import inferometer
inferometer.analyze("llama-3.1-8b", batch_size=8, quantization="fp8")
inferometer.analyze("llama-3.1-8b", batchsize=8)
inferometer.analyze("llama-3.1-8b", batch_size="x")
"""
    path = tmp_path / "user.py"
    path.write_text(code, encoding="utf-8")
    source = ROOT / "src" / "inferometer"
    of_analyze = ("__init__", "inference/analyze", "specs/arguments", "specs/keywords")  # all others take seconds
    files = [str(path), *(str(source / f"{module}.py") for module in of_analyze)]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=skip", *files]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    lines = re.findall(r"^user\.py:(\d+): error:", ran.stdout, re.M)
    assert lines == ["3", "4"], ran.stdout + ran.stderr


@pytest.mark.parametrize("group", [PlanArgs, ServingArgs, TrainArgs])
def test_bounds_hold(group: type[Args]) -> None:
    bounded = [a for a in arguments(group).values() if a.kind == "int" and a.forms == 1 and a.ge is not None]
    assert bounded
    for argument in bounded:
        assert argument.ge is not None and argument.le is not None
        for value in (int(argument.ge) - 1, int(argument.le) + 1, 1.5, "x", True):
            with pytest.raises(BadValue) as caught:
                check_value(argument, value)
            assert caught.value.field == argument.name and argument.flag in caught.value.text(flag)
        assert check_value(argument, int(argument.ge)) == int(argument.ge)


def test_defaults_are_within_their_own_bounds() -> None:
    for group in (PlanArgs, ServingArgs, SearchArgs, TrainArgs):
        for argument in arguments(group).values():
            if argument.default is not None:
                check_value(argument, argument.default)
            assert argument.help or argument.default_text, argument.name


def test_a_field_added_is_an_option_a_keyword_and_a_check() -> None:
    """What CONTRIBUTING promises: a flag is added in one place."""
    from typing import Annotated

    from inferometer.cli.options import Command, options, schema_options

    class More(Args):
        num_beams: Annotated[int, arg("Beams of a search.", ge=1, le=8)] = 1

    @click.command(cls=Command)
    @options(schema_options(More))
    def command(**given: Any) -> int:
        return checked(More, given).num_beams

    assert command.main(["--num-beams", "3"], standalone_mode=False) == 3
    assert command.main([], standalone_mode=False) == 1
    with pytest.raises(InferometerError, match="num_beams must be between 1 and 8"):
        command.main(["--num-beams", "9"], standalone_mode=False)


def test_flags_are_spelled_in_one_place() -> None:
    assert short_flag("tensor_parallel_size") == "-tp" and short_flag("kv_cache_dtype") == "--kv-cache-dtype"
    analyze = app.get_command(click.Context(app), "analyze")
    assert analyze is not None
    given = {option.name for option in analyze.params}
    assert set(arguments(PlanArgs)) <= given


@pytest.mark.parametrize("value", [[[]], ["nvlink"], {}, 5, True])
@pytest.mark.parametrize("name", ["interconnect", "quantization", "engine", "attention"])
def test_names_are_text(name: str, value: Any) -> None:
    """A page may send anything: a list was looked up in a table, and was a fault."""
    with pytest.raises(BadValue, match=f"{name} must be text"):
        checked(PlanArgs, {name: value})
