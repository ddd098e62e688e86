"""The words of the project stay true: flags are documented, examples run, sums add up, links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from conftest import ROOT, Ran

from inferometer import BadValue, analyze, simulate, synthetic
from inferometer.cli.commands import COMMANDS, app
from inferometer.inference.weights import parameters
from inferometer.network import families
from inferometer.network.operators import KINDS
from inferometer.specs import catalog

Run = Callable[..., Ran]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITE = bool(os.environ.get("INFEROMETER_WRITE_DOCS"))  # paste what the commands print now instead of comparing


class Example(NamedTuple):
    """A fenced block of a page: its language, its lines, and where it stands."""

    page: str
    line: int
    language: str
    text: str


def title(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def examples(*languages: str) -> Iterator[Example]:
    """Every fenced block in one of the languages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
            if block[1] in languages:
                yield Example(title(page), text[: block.start()].count("\n") + 1, block[1], block[2])


def name(example: object) -> str:
    return f"{example.page}:{example.line}" if isinstance(example, Example) else str(example)


class Command(NamedTuple):
    """A ``$ inferometer`` line: its arguments, ``# exit code: text`` that it notes, and the lines below it."""

    args: list[str]
    code: int
    expected: str
    below: list[str]


def commands(example: Example) -> Iterator[Command]:
    for piece in re.split(r"^\$ (?!per )", example.text, flags=re.M)[1:]:  # "$ per million output tokens" is output
        first, *rest = re.sub(r"\A(?:.*\\\n)+", lambda lines: lines[0].replace("\\\n", " "), piece).splitlines()
        line, _, note = first.partition(" # ")
        code = re.match(r"exit (\d)(?:: (.*))?$", note)
        if line.startswith("inferometer "):
            yield Command(shlex.split(line)[1:], int(code[1]) if code else 0, (code and code[2]) or "", rest)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run examples in, with the files that the pages show (their first line is their name)."""
    for example in examples("toml", "csv"):
        title = re.match(r"# (\S+\.(?:toml|csv))\n", example.text)
        if title:
            path = tmp_path / title[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(example.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------ flags and links


@cache
def docs() -> tuple[str, set[str]]:
    """The text of all pages, and the flags that it names."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    return text, set(re.findall(r"(?<![\w-])--?\w[\w-]*", text))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_documented(command: str) -> None:
    text, flags_of_pages = docs()
    wrapped = app.get_command(click.Context(app), command)
    assert wrapped is not None
    flags = [f for p in wrapped.params if isinstance(p, click.Option) for f in (*p.opts, *p.secondary_opts)]
    missing = [flag for flag in flags if flag not in flags_of_pages]
    assert not missing, f"docs/*.md do not mention {missing} of inferometer {command}"
    assert f"inferometer {command}" in text


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for link in links:
        if not link.startswith(("http://", "https://")):
            target, _, heading = link.partition("#")
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{page.name} links to {link}"
            if heading:
                titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert heading in slugs, f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_files_that_pages_name_exist(page: Path) -> None:
    to_be_added = ("rtx-3080.toml", "gpt_neo.py", "epyc-vm.toml", "NAME.toml")  # the examples of CONTRIBUTING
    named = re.findall(
        r"`(?:pytest )?((?:src|tests|benchmarks|tools|docs)/[\w./-]+)`", page.read_text(encoding="utf-8")
    )
    assert not [path for path in named if not path.endswith(to_be_added) and not (ROOT / path).exists()]


def test_every_page_is_in_the_index() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        index = page.parent / "README.md"
        if page != index and index.exists():
            assert f"]({page.name})" in index.read_text(encoding="utf-8"), f"{title(index)} does not list {page.name}"


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "img").iterdir():
        assert picture.stat().st_size < 150_000, picture.name


# ------------------------------------------------------------------ examples


SUM = re.compile(r"^  (\w+\.[\w.]+) [=≈] (.+) ([=≈]) ([\d.,e]+)$")
FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?)(%?)")


def bare(line: str) -> tuple[str, list[tuple[float, str]]]:
    """Its words, and its figures without bars and without how long this machine took."""
    line = re.sub(r"\bin [\d.,]+ (?:µs|ms|s)\b", "in a moment", re.sub(r"[─█▓▒░▁▂▃▄▅▆▇▏▕┊ ]+", " ", line)).strip()
    return FIGURE.sub("#", line), [(float(figure.replace(",", "")), unit) for figure, unit in FIGURE.findall(line)]


def same(shown: str, printed: str) -> bool:
    """The same words, and figures within 2% or half a percentage point."""
    (words, figures), (others, values) = bare(shown), bare(printed)
    pairs = zip(figures, values, strict=False)
    return words == others and all(abs(a - b) <= (0.5 if unit else 0.02 * a) for (a, unit), (b, _) in pairs)


def lost_lines(shown: list[str], printed: list[str]) -> list[str]:
    """The lines that were not printed, in this order; where no line is `…`, also those that are not shown."""
    rest = iter(printed)
    lost = [line for line in shown if line.strip() not in ("", "…") and not any(same(line, said) for said in rest)]
    if not lost and "…" not in shown:
        lost = [f"not shown: {line}" for line in rest if line.strip()]
    return lost


def pasted(shown: list[str], printed: list[str]) -> list[str]:
    """The shown lines as they are printed now: all of them, or those that have the same words where a part is shown."""
    if "…" not in shown:
        return [line.rstrip() for line in printed]
    rest = iter(printed)

    def now(line: str) -> str:
        words, _ = bare(line)
        return line if words in ("", "…") else next((said.rstrip() for said in rest if bare(said)[0] == words), line)

    return [now(line) for line in shown]


@pytest.mark.slow
@pytest.mark.parametrize("example", list(examples("console")), ids=name)
def test_commands_run(example: Example, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exits as the page says. What it shows below is what is printed; INFEROMETER_WRITE_DOCS=1 pastes it."""
    monkeypatch.setenv("COLUMNS", "110")  # what GitHub shows without a scroll bar
    for args, code, expected, below in commands(example):
        if "--plot" in args:  # pictures take seconds and have tests of their own
            at = args.index("--plot")
            del args[at : at + 2]
        ran = run(*args)
        assert ran.code == code, f"{shlex.join(args)}: {ran.err or ran.out}"
        assert expected in " ".join((ran.out + ran.err).split()), f"{shlex.join(args)} does not say {expected!r}"
        if any(re.match(r"  \w+\.[\w.]+ [=≈] ", line) for line in below) or not any(line.strip() for line in below):
            continue
        printed = (ran.out + ran.err).splitlines()
        lost = lost_lines(below, printed)
        if lost and WRITE:
            page = ROOT / example.page
            before, after = "\n".join(below), "\n".join(pasted(below, printed))
            page.write_text(page.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
        else:
            assert not lost, f"{shlex.join(args)}: run again with INFEROMETER_WRITE_DOCS=1"


@pytest.mark.slow
@pytest.mark.parametrize("example", [e for e in examples("python") if "import inferometer" in e.text], ids=name)
def test_python_runs(example: Example, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example.text, f"{example.page}:{example.line}", "exec"), {})


def test_counts_of_the_readme() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/README.md"))
    compared = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w-]+ \| (\d+) cases: ([\d,]+) quantities the same", compared, re.M)
    same, cases = sum(int(b.replace(",", "")) for _, b in rows), sum(int(a) for a, _ in rows)
    assert f"{same:,} values in {cases} cases" in text
    have = {
        "models in the catalogue": catalog.names("models"),
        "model types": families.families(),
        "devices with sources": catalog.names("hardware"),
    }
    for noun, names in have.items():
        stated = re.search(rf"over (\d+) {noun}", text)
        assert stated and int(stated[1]) <= len(names) < int(stated[1]) + 50, noun


def test_errors_of_the_readme_are_those_of_accuracy() -> None:
    """Each error and each number of runs of its table stands in the summary, which is made from measurements."""
    readme, summary = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/accuracy.md"))
    rows = readme.partition("## What to trust")[2].partition("\n\nFind your row")[0].splitlines()[4:]
    assert len(rows) == 6
    stated = [error for row in rows for error in re.findall(r"[\d.]+%", row)]
    assert len(stated) > 10 and not [error for error in stated if error not in summary]
    assert "1,381 public runs" in readme and "| 1381 |" in summary


def test_pages_speak_of_what_they_show() -> None:
    """A figure with a fraction in the prose of the tutorial stands in an output of it, which is compared."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"^```.*?^```$", text, re.M | re.S))
    figures = re.findall(r"\d+\.\d+", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    assert len(figures) > 10 and not [figure for figure in figures if figure not in shown]


# ------------------------------------------------------------------ sums


def value(data: Any, path: str) -> float:
    """``memory.weights_bytes``; after ``ops`` comes an operator's name, and rows of that name are added."""
    keys = path.split(".")
    for place, key in enumerate(keys):
        if isinstance(data, list):
            rows = [row for row in data if row["name"] == key]
            assert rows, f"no operator {key!r} for {path}"
            return float(sum(row[keys[place + 1]] for row in rows))
        data = data[key]
    return float(data)


def by_hand(formula: str) -> float:
    """A sum as people write it: ``80 · 2 · (1 - 0.8^4)``"""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", formula).replace("·", "*").replace("^", "**").replace("−", "-")
    tree = ast.parse(text.strip(), mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    assert all(isinstance(node, allowed) for node in ast.walk(tree)), f"not a sum: {formula}"
    return float(eval(compile(tree, "sum", "eval"), {"__builtins__": {}}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [e for e in examples("console") if any(map(SUM.match, e.text.splitlines()))], ids=name
)
def test_sums_by_hand_are_what_the_command_says(example: Example, run: Run, folder: Path) -> None:
    """``=`` is right to the digits shown, ``≈`` to 2 %."""
    for args, code, _, below in commands(example):
        sums = [line for line in map(SUM.match, below) if line]
        if not sums:
            continue
        ran = run(*args, "--json")
        assert ran.code == code, ran.err
        for line in sums:
            path, formula, sign, text = line[1], line[2], line[3], line[4].replace(",", "")
            written = float(text)
            digits = len(text.partition(".")[2]) if "e" not in text else 0
            slack = 0.5000001 * 10**-digits if sign == "=" else 0.02 * abs(written)
            assert by_hand(formula) == pytest.approx(written, abs=slack), f"{example.page}: {formula} is not {text}"
            said = value(ran.json, path)
            assert said == pytest.approx(written, abs=slack), f"{example.page}: {path} is {said}, not {text}"


def test_the_sums_are_found() -> None:
    lines = [line for e in examples("console") if e.page == "docs/parallelism.md" for line in e.text.splitlines()]
    assert sum(bool(SUM.match(line)) for line in lines) >= 20, (
        "the pages lost their sums, or the pattern no longer fits"
    )


def test_the_table_of_precisions() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ([\d.]+) \|", page.partition("## Precisions")[2], re.M)
    written = {word: float(size) for names, size in rows for word in re.findall(r"`([\w-]+)`", names)}
    assert written == {k: pytest.approx(p.bytes, rel=1e-3) for k, p in catalog.precisions().items()}


# ------------------------------------------------------------------ the worked examples of CONTRIBUTING


def contributing(mark: str, language: str) -> str:
    return next(e.text for e in examples(language) if e.page == "CONTRIBUTING.md" and mark in e.text)


def test_adding_a_gpu(folder: Path) -> None:
    text = contributing("rtx-3080.toml", "toml")
    path = folder / "rtx-3080.toml"
    device, written = catalog.hardware(str(path)), tomllib.loads(text)
    figures = [k for k, v in written.items() if isinstance(v, int | float) and k != "gpus_per_node"]
    assert not [k for k in (*figures, "flops", *(f"links.{w}" for w in device.links)) if k not in device.source]
    assert "rtx-3080" not in catalog.names("hardware"), "the example is in the catalogue now: choose another"
    assert analyze("qwen3-0.6b", gpu=str(path)).feasible


def test_adding_a_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    line = contributing('"arcee"', "python").strip().rstrip(",")
    assert "arcee" not in families.families(), "the example is a family now: choose another"
    for key, relative in ast.literal_eval(f"{{{line}}}").items():
        monkeypatch.setitem(families.RELATIVES, key, relative)
    arcee = {
        "model_type": "arcee",
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    }
    model = families.build(arcee)
    layer = 4 * 2560 * 2560 + 2 * 2560 * 18432 + 2 * 2560
    assert parameters(model) == 32 * layer + 2 * 32000 * 2560 + 2560 and not model.warnings


def test_an_entry_like_another() -> None:
    written = tomllib.loads(contributing("qwen3-4b-2507.toml", "toml"))
    assert written == tomllib.loads((catalog.DATA / "models" / "qwen3-4b-2507.toml").read_text(encoding="utf-8"))


def test_adding_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, check = contributing("GPT-Neo: a GPT-2", "python"), contributing("def test_gpt_neo", "python")
    assert "gpt_neo" not in families.families(), "the example is a family now: choose another"
    (tmp_path / "gpt_neo.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    names: dict[str, Any] = {}
    exec(compile(check, "CONTRIBUTING.md", "exec"), names)
    try:
        names["test_gpt_neo"]()
    finally:
        sys.modules.pop("inferometer.network.families.gpt_neo", None)


def test_adding_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is run where the page says that it belongs."""
    assert "hadamard" not in KINDS
    try:
        for mark, place, word in (
            ('@operator("hadamard")', "network.operators.dense", "hadamard"),
            ("def rotated_mlp", "network.blocks.mlp", "rotated_mlp"),
        ):
            home = importlib.import_module(f"inferometer.{place}")
            names = dict(vars(home))
            exec(compile(contributing(mark, "python"), home.__name__, "exec"), names)
            monkeypatch.setattr(home, word, names[word], raising=False)
        names = {}
        exec(compile(contributing("def test_hadamard", "python"), "CONTRIBUTING.md", "exec"), names)
        names["test_hadamard"]()
    finally:
        KINDS.pop("hadamard", None)


def test_pages_are_finished() -> None:
    for page in PAGES:
        assert not [w for w in page.read_text(encoding="utf-8").split() if w.startswith("@") and w.endswith("@")], page


def test_adding_a_flag() -> None:
    """The field of the page, as text, is an argument with a flag, bounds and a control."""
    from inferometer.specs import arguments, plan_args

    source = contributing("swap_space", "python")
    names = {**vars(plan_args), "Args": arguments.Args}
    exec(compile(f"class More(Args):\n{source}", "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    argument = arguments.arguments(names["More"])["swap_space"]
    assert (argument.flag, argument.kind, argument.default, argument.label) == (
        "--swap-space",
        "float",
        4.0,
        "Swap space",
    )
    assert "swap_space" not in arguments.arguments(plan_args.PlanArgs), "the example is a flag now: choose another"
    with pytest.raises(BadValue, match="swap_space must be between 0 and 10,000"):
        arguments.check_value(argument, -1)


def test_adding_a_router() -> None:
    from inferometer.serving import router as routers

    try:
        exec(compile(contributing("last_replica", "python"), "CONTRIBUTING.md", "exec"), vars(routers))
        trace = synthetic(num_prompts=4, request_rate=4)
        outcome = simulate("llama-3.1-8b", gpu="h200", trace=trace, data_parallel_size=2, router="last_replica")
        assert set(outcome.replica.tolist()) == {1}
    finally:
        routers.ROUTERS.pop("last_replica", None)
        vars(routers).pop("last_replica", None)


def test_adding_a_scheduler() -> None:
    """Requests that come while others decode wait for their end."""
    from inferometer.serving import schedulers

    assert "drain" not in schedulers.SCHEDULERS
    try:
        exec(compile(contributing("def drain", "python"), "CONTRIBUTING.md", "exec"), vars(schedulers))
        trace = synthetic(num_prompts=2, request_rate=50, burstiness=1e6, input_len=64, output_len=64)
        drained, mixed = (
            simulate("llama-3.1-8b", gpu="h200", trace=trace, scheduler=name) for name in ("drain", "vllm")
        )
        assert drained.first_token_s[1] > drained.finished_s[0] and mixed.first_token_s[1] < mixed.finished_s[0]
    finally:
        schedulers.SCHEDULERS.pop("drain", None)
        vars(schedulers).pop("drain", None)


def test_adding_an_engine_version(folder: Path) -> None:
    """The file of the page on its own, and its rule at the end of the shipped rules for the new version alone."""
    from inferometer.inference.request import build_request

    rule = "[[when]]" + contributing("vllm-next.toml", "toml").partition("[[when]]")[2]
    line = contributing("version_at_least", "toml")
    shipped = (catalog.DATA / "engines" / "vllm.toml").read_text(encoding="utf-8")
    newest = tomllib.loads(shipped)["versions"][-1]
    assert catalog.engine("vllm").version == newest != "0.29", "the example is a version now: choose the next"
    text = shipped.replace(f'"{newest}",\n]', f'"{newest}", "0.29",\n]').replace(
        "\n[launches]", f"\n{rule}{line}\n[launches]"
    )
    (folder / "with-0.29.toml").write_text(text, encoding="utf-8")
    seqs = {
        name: build_request("llama-3.1-8b", "b200", engine=name).engine.max_num_seqs
        for name in ("./vllm-next.toml", "./with-0.29.toml", f"./with-0.29.toml@{newest}", "vllm")
    }
    assert list(seqs.values()) == [2048, 2048, 1024, 1024], seqs


def test_adding_a_host(folder: Path) -> None:
    from inferometer.specs.hosts import host

    added, reference = host("./epyc-vm.toml"), host()
    assert "epyc-vm" not in catalog.names("hosts"), "the example is in the catalogue now: choose another"
    assert {"launch", "slowdown"} <= set(added.source) and added.launch < reference.launch
    ours, theirs = (analyze("qwen3-30b-a3b", gpu="h200", host_profile=name) for name in ("./epyc-vm.toml", "server"))
    assert ours.metrics.ttft_ms < theirs.metrics.ttft_ms


def test_adding_a_file_reader(tmp_path: Path) -> None:
    from inferometer import read_trace
    from inferometer.serving import trace_formats

    path = tmp_path / "gateway.csv"
    path.write_text("received_ms,tokens_in,tokens_out\n1000,512,64\n1250,128,7\n", encoding="utf-8")
    try:
        exec(compile(contributing("def _gateway", "python"), "CONTRIBUTING.md", "exec"), vars(trace_formats))
        trace = read_trace(path)
    finally:
        trace_formats.TRACE_FORMATS[:] = [f for f in trace_formats.TRACE_FORMATS if f.name != "our gateway"]
        vars(trace_formats).pop("_gateway", None)
    assert trace.input_tokens.tolist() == [512, 128] and trace.output_tokens.tolist() == [64, 7]
    assert trace.arrival_s[1] - trace.arrival_s[0] == pytest.approx(0.25)
