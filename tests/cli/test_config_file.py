"""--config and --save-config: what a file may say, what wins, and that every command gets back what it was given."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Ran, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.cli.commands import COMMANDS, app
from inferometer.cli.config_file import _keys, save_config

Run = Callable[..., Ran]
MODEL = "llama-3.1-8b"


def write(folder: Path, text: str, name: str = "plan.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def parsed(verb: str, args: list[str]) -> dict[str, Any]:
    """What a command's function would get."""
    root = click.Context(app, info_name="inferometer")
    command = app.get_command(root, verb)
    assert command is not None
    return command.make_context(verb, args, parent=root).params


@pytest.mark.parametrize("name", ["plan.toml", "plan.json"])
def test_a_file_is_as_good_as_flags(run: Run, tmp_path: Path, name: str) -> None:
    flags = {"model": MODEL, "gpu": "h200", "batch-size": 8, "quantization": "fp8", "fusion": False, "json": True}
    text = json.dumps(flags) if name.endswith("json") else "".join(f"{k} = {json.dumps(v)}\n" for k, v in flags.items())
    ran = run("analyze", "--config", write(tmp_path, text, name))
    typed = run("analyze", MODEL, "--gpu", "h200", "--batch-size", "8", "-q", "fp8", "--no-fusion", "--json")
    assert ran == typed and ran.code == 0


def test_what_is_typed_wins(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "qwen3-8b"\ngpu = "a100"\nbatch_size = 4\nfusion = true\ncsv = true\n')
    params = parsed("analyze", ["--config", path, MODEL, "--batch-size", "16", "--no-fusion", "--json"])
    assert (params["model"], params["gpu"], params["batch_size"]) == (MODEL, "a100", 16)
    assert (params["fusion"], params["as_json"], params["as_csv"]) == (False, True, False)
    axes = parsed("sweep", [MODEL, "--config", path.replace("csv", ""), "--batch-size", "1,2", "--batch-size", "8"])
    assert axes["batch_size"] == ("1,2", "8"), "lists are replaced, not joined"
    assert parsed("sweep", ["--no-fusion", "--config", path])["fusion"] is False


def test_a_table_for_each_command(tmp_path: Path) -> None:
    path = write(tmp_path, f'model = "{MODEL}"\n[simulate]\nrequest-rate = 4\n[analyze]\nbatch-size = 2\n')
    assert parsed("simulate", ["--config", path])["request_rate"] == 4.0
    assert parsed("analyze", ["--config", path])["batch_size"] == 2
    assert parsed("train", ["--config", path])["model"] == MODEL


def test_lists_and_tables_are_spelled_as_flags_are(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'model = "m"\ngoodput = {ttft = 500, tpot = 50.5}\nefficiency = {flops = 0.7, hbm = 0.8}\n'
        'speculative-config = {method = "mtp", num_speculative_tokens = 1}\n'
        'pool = [{gpu = "h200", role = "prefill"}, {gpu = "l40s", enable_expert_parallel = true}]\n',
    )
    params = parsed("simulate", ["--config", path])
    assert params["goodput"] == ("ttft:500,tpot:50.5",) and params["efficiency"] == "flops=0.7,hbm=0.8"
    assert json.loads(params["speculative_config"]) == {"method": "mtp", "num_speculative_tokens": 1}
    assert params["pools"] == ("gpu=h200,role=prefill", "gpu=l40s,enable_expert_parallel=true")
    search = write(tmp_path, "model = 'm'\ntensor-parallel-size = [1, 2]\nfinalists = 3\n")
    assert parsed("search", ["--config", search])["tensor_parallel_size"] == "1,2"
    sweep = write(tmp_path, "model = ['a', 'b']\nbatch-size = [1, '8:64:x2']\nfusion = [true, false]\n")
    axes = parsed("sweep", ["--config", sweep])
    assert (axes["model"], axes["batch_size"], axes["fusion"], axes["no_fusion"]) == ("a,b", ("1", "8:64:x2"), 1, 1)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("batchsize = 8", ["batchsize", "did you mean batch-size?"]),
        ("[analyze]\nbatch-sizes = 8", ["batch-sizes", "did you mean batch-size"]),
        ("batch-size = 1.5", ["--batch-size", "1.5"]),
        ("batch-size = 0", ["--batch-size", "between 1 and"]),
        ("batch-size = true", ["`batch-size` takes a value, not true"]),
        ("batch-size = [[1]]", ["`batch-size` takes one value"]),
        ("fusion = 3", ["`fusion` must be true or false, not 3"]),
        ('engine = "vlm"', ["vlm", "vllm"]),
        ("config = 'x'", ["unknown key", "config"]),
        ("batch-size = ", ["plan.toml is not valid TOML"]),
    ],
)
def test_what_is_wrong_is_a_sentence(run: Run, tmp_path: Path, text: str, parts: list[str]) -> None:
    refused(run("analyze", MODEL, "--config", write(tmp_path, text)), *parts)


def test_files_that_are_not_there(run: Run, tmp_path: Path) -> None:
    refused(run("analyze", MODEL, "--config", str(tmp_path / "no.toml")), "no.toml cannot be read")
    refused(run("analyze", MODEL, "--config", ""), "--config needs the name of a file")
    refused(run("analyze", MODEL, "--save-config", str(tmp_path / "no" / "x.toml")), "cannot be written")


def test_what_is_saved_differs_from_the_defaults(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    args = ("--batch-size", "1", "--output-len", "64", "--dtype", "auto", "--fusion", "--hf-token", "hf_secret")
    ran = run("analyze", MODEL, *args, "--gpu", "h100-sxm", "--json", "--save-config", str(path))
    head, *lines = path.read_text().splitlines()
    assert ran.code == 0 and ran.err == f"wrote {path}\n" and head.startswith("# Flags of inferometer analyze")
    assert lines == ['model = "llama-3.1-8b"', "fusion = true", "output-len = 64", "json = true"]
    assert run("analyze", "--config", str(path)).out == ran.out


def test_a_default_that_something_else_would_set_is_saved(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.toml")
    args = ("analyze", MODEL, "--usecase", "chatbot", "--batch-size", "1", "--json")
    assert run(*args, "--save-config", path).out == run("analyze", "--config", path).out
    assert tomllib.loads(Path(path).read_text())["batch-size"] == 1


# ------------------------------------------------------------------ there and back, for every command

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(
    lambda text: text.strip() and not text.startswith("-")
)
NUMBERS = st.floats(allow_nan=False).map(str) | st.integers(-(10**12), 10**12).map(str)


@st.composite
def command_lines(draw: st.DrawFn, verb: str) -> list[str]:
    """Flags of a command with values that it can parse; whether they make sense is not the file's business."""
    command = app.get_command(click.Context(app), verb)
    assert command is not None
    known = list(_keys(command).values())
    positional = [draw(TEXTS) for parameter in known if isinstance(parameter, click.Argument)]
    flags = [parameter for parameter in known if isinstance(parameter, click.Option)]
    some = draw(st.lists(st.sampled_from(flags), max_size=6, unique_by=id))
    required = [flag for flag in flags if flag.required and flag not in some]
    options = [arg for flag in (*some, *required) for arg in draw(spelled(flag))]
    forms = [arg for arg in options if arg in ("--json", "--csv", "--plain", "--markdown")]
    return [arg for arg in options if arg not in forms[1:]] + ["--", *positional]


def spelled(option: click.Option) -> st.SearchStrategy[list[str]]:
    flag = option.opts[-1]
    if option.is_flag:
        return st.sampled_from([[name] for name in (flag, *option.secondary_opts)])
    if isinstance(option.type, click.Choice):
        return st.sampled_from(list(option.type.choices)).map(lambda choice: [f"{flag}={choice}"])
    if isinstance(option.type, click.types.IntParamType):
        return st.integers(-(10**9), 10**9).map(lambda number: [f"{flag}={number}"])
    if isinstance(option.type, click.types.FloatParamType):
        return NUMBERS.map(lambda number: [f"{flag}={number}"])
    values = st.lists(TEXTS | NUMBERS, min_size=1, max_size=3 if option.multiple else 1)
    return values.map(lambda texts: [f"{flag}={text}" for text in texts])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["toml", "json"])
@pytest.mark.parametrize("verb", COMMANDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_there_and_back(verb: str, suffix: str, tmp_path: Path, data: st.DataObject) -> None:
    command = app.get_command(click.Context(app), verb)
    assert command is not None
    before = parsed(verb, data.draw(command_lines(verb)))
    path = str(tmp_path / f"plan.{suffix}")
    save_config(path, command, before)
    after = parsed(verb, ["--config", path])
    for option in command.params:
        name, value = str(option.name), before.get(str(option.name))
        default = getattr(option, "schema_default", None)
        if value != after.get(name) and not getattr(option, "secret", False):
            assert after.get(name) in (None, False) and value in (default, str(default), False), name
