"""What a terminal shows: every command at four widths, plain text that awk reads, Markdown that renders."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

from inferometer.views.text.document import Cell, Column, Page, Paragraph, ShellCommand, TextTable
from inferometer.views.text.listing import layer_summary, rows_page
from inferometer.views.text.paragraph import to_ascii, width_of, wrapped
from inferometer.views.text.terminal import screen_width

Run = Callable[..., Ran]
WIDTHS = [40, 80, 120, 200]
FIGURE = re.compile(r"(?<![\w.,])[<≥×−+-]?\d[\d,.]*\d(?![\w.])|(?<![\w.,])\d(?![\w.,])")
MODEL = "qwen3-0.6b"
SHOWN = [
    f"analyze {MODEL} --gpu h200 --batch-size 8",
    "analyze mixtral-8x7b-v0.1 --gpu a6000 -tp 4 -pp 2 --all-ops",
    "analyze llama-3.1-405b",
    "analyze deepseek-v3 --explain experts",
    f"sweep {MODEL} --gpu h200,l40s -tp 1,2 -q bf16,fp8 --batch-size 1:64:x4 --input-len 128,1024",
    "sweep llama-3.1-405b --gpu l4 --batch-size 1,2",
    f"sensitivity {MODEL} --gpu h200 --target tpot:2,ttft:10",
    "sensitivity llama-3.1-70b --gpu h200 --batch-size 32 --size",
    "sensitivity llama-2-7b --gpu h200 --compare llama-3.1-8b",
    "sensitivity llama-3.1-8b --gpu h200 --compare-usecases",
    f"simulate {MODEL} --gpu h200 --request-rate 20 --num-prompts 40 --input-len 300 --output-len 20 --goodput ttft:9",
    f"validate {MODEL} --gpu h200 --measured measured.csv",
    f"validate {MODEL} --gpu h200 --measured measured.csv --diagnose",
    "validate qwen3-0.6b --gpu h200 --step-log server.log",
    "simulate qwen3-0.6b --gpu h200 --agents chat,turns=3 --num-sessions 2 --kv-tiers disk:size=9",
    "simulate qwen3-0.6b --gpu h200 --agents chat,turns=2 --num-sessions 2 --kv-offloading-sizes 1,10",
    f"analyze 'vllm serve {MODEL} -tp 2 --max-num-seqs 256 --kv-cache-dtype fp8 --enable-chunkd-prefill' --gpu h200",
    f"train {MODEL} --gpu h100-sxm -tp 2 -dp 4 --tokens 1e12",
    f"search {MODEL} --train --gpu h200 --num-gpus 8 --global-batch-size 8",
    "sensitivity qwen3-0.6b --train --gpu h200",
    "show models",
    "show hardware",
    "show engines",
    "show usecases",
    "show hardware h200",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [
        "input_tokens,output_tokens,TTFT,TPOT,E2E",
        *(f"{n},16,{n / 40},3.1,{n / 40 + 46.5}" for n in (200, 400, 800)),
    ]
    (tmp_path / "measured.csv").write_text("\n".join(rows) + "\n")
    step = "Iteration({}): 0 context requests, 0 context tokens, 8 generation requests, 8 generation tokens"
    head, end = (
        "INFO 11-18 01:00:00 [loggers.py:182] Engine 000: ",
        ", iteration elapsed time: 4.0 ms, GPU KV cache usage: 1.0%",
    )
    (tmp_path / "server.log").write_text("".join(f"{head}{step.format(n)}{end}\n" for n in range(9)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def figures(text: str) -> set[str]:
    """Numbers of a text, without those of sizes of the screen and of wall-clock times."""
    kept = re.sub(r"\(shown\s+in\s+\d+\s+columns|, in [\d.]+ \S+$", "", text, flags=re.M)
    return set(FIGURE.findall(kept))


def check(page: Page, width: int) -> None:
    """No line is longer than the screen, but for an unbreakable word; no figure is cut; what is left out is said."""
    whole, text = page.terminal(), page.terminal(width)
    for line in text.splitlines():
        assert width_of(line) <= width or " " not in line.strip(), f"{width_of(line)} > {width}: {line}"
    assert "…" not in re.sub(r"\d…\d", "", text)
    assert figures(text) <= figures(whole), f"cut: {figures(text) - figures(whole)}"
    for table in (part for part in page.parts if isinstance(part, TextTable) and part.header):
        shown = Page([table]).terminal(width)
        note = re.search(r"left out: (.*?) \(shown in (\d+) columns", " ".join(shown.split()))
        left_out = set(note[1].split(", ")) if note else set()
        heading = " ".join(shown.split("───")[0].split())
        names = [column.label for column in table.columns if not column.elastic]
        assert left_out <= set(names) and "left out" not in Page([table]).terminal(int(note[2]) if note else width)
        missing = [n for n in names if n not in left_out and not any(word in heading for word in n.split())]
        assert not missing or "───" not in shown or all(not c.title for c in table.columns if c.label in missing)


@pytest.mark.slow
@pytest.mark.parametrize("line", SHOWN)
def test_every_command_fits_every_terminal(line: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[Page] = []
    terminal = Page.terminal
    with monkeypatch.context() as patched:  # a command runs once, and what it shows is looked at four times
        patched.setattr(Page, "terminal", lambda page, *_: pages.append(page) or terminal(page))
        assert run(*shlex.split(line)).code in (0, 1)
    page = Page(part for part in pages[0].parts if not isinstance(part, ShellCommand))  # commands are not folded
    assert len(pages) == 1 and "left out" not in page.terminal()
    for width in WIDTHS:
        check(page, width)


@pytest.mark.slow
def test_a_search_fits_every_terminal() -> None:
    from inferometer import search
    from inferometer.views.text.search import shown

    plan = {"num_gpus": 2, "input_len": 500, "output_len": 50, "quantization": "bf16", "mode": "disaggregated"}
    page = shown(search(MODEL, gpu="h200", goodput="ttft:500,tpot:50", **plan))
    commands = [part.line for part in page.parts if isinstance(part, ShellCommand) and not part.line.startswith("#")]
    assert any("vllm serve" in line for line in commands) and any("printf" in line for line in commands)
    for width in WIDTHS:
        check(Page(part for part in page.parts if not isinstance(part, ShellCommand)), width)
        lines = page.terminal(width).replace("\\\n", " ").splitlines()
        printed = {
            shlex.join(shlex.split(line, comments=True))
            for line in lines
            if line.startswith("  ") and "'s " not in line
        }
        assert {shlex.join(shlex.split(line)) for line in commands} <= printed


def test_comments_of_commands_fold() -> None:
    """A comment goes on in the next line as a comment; a command in it is not broken."""
    pages = Page(
        [ShellCommand("# set it on every node; --lr is yours"), ShellCommand("# make it first: python x.py --a b")]
    )
    assert pages.terminal(28).splitlines() == [
        "  # set it on every node;",
        "  # --lr is yours",
        "  # make it first:",
        "  #   python x.py --a b",
    ]
    assert pages.terminal().splitlines()[1] == "  # make it first: python x.py --a b"


@pytest.mark.parametrize("width", WIDTHS)
def test_measured_layers_and_a_benchmark_fit(width: int, run: Run) -> None:
    from inferometer.views.text.validation import benchmark

    phases = {
        p: {"length": 1024, "seconds": {"self_attn_with_a_long_name": 1.5e-3, "mlp": 2e-3}}
        for p in ("prefill", "decode")
    }
    fit = {"factor": 1.04, "mean_error": 0.02, "max_error": 0.1, "points": 1}
    layers = layer_summary({"longest": phases, "calibration": {"num_layers": 28, "prefill": fit, "decode": fit}})
    check(layers, width)
    assert "over 1 point\n" in layers.terminal() and "28 layers" in layers.terminal()
    arguments = ("simulate", MODEL, "--request-rate", "20", "--num-prompts", "1", "--output-len", "4", "--json")
    result = {
        **run(*arguments).json,
        "base_url": "http://localhost:8000",
        "failures": {"HTTP 500": 1},
        "preemptions": 1,
    }
    live = benchmark(result, "", None)
    check(live, width)
    assert "1 request completed" in live.terminal() and "1 preemption\n" in live.terminal()


def on_terminal(columns: int, *args: str, stream: str = "stdout") -> tuple[int, str]:
    """A process behind a pseudo-terminal of some width, which nobody exports: its exit code and what it showed."""
    import fcntl
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: its}
    process = subprocess.Popen([sys.executable, "-m", "inferometer", *args], env=environment, **pipes)
    os.close(its)
    raw = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        raw += piece
    os.close(ours)
    return process.wait(), raw.decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_is_as_wide_as_it_is(columns: int) -> None:
    code, text = on_terminal(columns, "show", "hardware")
    assert code == 0 and "\x1b[1mname" in text and "left out: " in text
    bare = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert columns - 30 < max(map(len, bare.splitlines())) <= columns


@pytest.mark.slow
def test_errors_wrap_at_word_borders() -> None:
    code, text = on_terminal(40, "analyze", MODEL, "--explain", "nothing-like-it", stream="stderr")
    assert code == 2 and text.startswith("inferometer: unknown operator") and text.count("\n") > 3
    assert max(map(len, text.splitlines())) <= 40
    assert "kv_cache_write" in text and "post_attention_layernorm" in text


def test_a_pipe_has_no_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen_width() is None
    ran = run("analyze", MODEL, "--gpu", "h200")
    assert max(map(len, ran.out.splitlines())) > 110 and "\x1b" not in ran.out
    for nonsense in ("0", "-1", "wide", ""):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert screen_width() is None
    monkeypatch.setenv("COLUMNS", "66")
    assert screen_width() == 66


def test_colours_can_be_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in run("analyze", MODEL).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("analyze", MODEL).out


# ------------------------------------------------------------------ tables


def wide() -> TextTable:
    table = TextTable(
        [
            Column("plan", "<", folds=True),
            Column("rate", priority=1),
            Column("shape", priority=3),
            Column("cost", priority=2),
        ]
    )
    table.add_row("two words", "12,345.6", "8192×4096", "1.25")
    return table


def test_columns_leave_in_the_order_of_their_priority() -> None:
    left = [re.search(r"left out: (.*?) \(", " ".join(Page([wide()]).terminal(w).split())) for w in (60, 28, 24, 12)]
    assert [names and names[1] for names in left] == [None, "shape", "shape, cost", "rate, shape, cost"]
    assert "(shown in 36 columns" in " ".join(Page([wide()]).terminal(28).split())


def test_rows_become_blocks_where_nothing_may_leave() -> None:
    table = TextTable([Column("name", "<"), Column("requests/s"), Column("note", "<", folds=True)])
    table.add_row("a-name-of-20-letters", "123,456.7", "twelve letters and more")
    text = Page([table]).terminal(24)
    assert text == "a-name-of-20-letters\n  requests/s 123,456.7\n  note twelve letters\n  and more\n"


def test_texts_fold_and_figures_stay_whole() -> None:
    table = TextTable([Column("operator", "<", folds=True), Column("mean error")])
    table.add_row("post_attention_layernorm_backward", "1,234.5%")
    table.add_row("  rope", "7%")
    assert Page([table]).terminal(28).splitlines() == [
        "operator          mean error",
        "────────────────────────────",
        "post_attention_     1,234.5%",
        "layernorm_",
        "backward",
        "  rope                    7%",
    ]


def test_a_figure_and_its_unit_stay_together() -> None:
    text = "-tp 2 would cut TTFT to 39.3 ms of 1 × h200 · at 5 GPUs"
    for width in range(12, 60):
        lines = [text[a:b] for a, b in wrapped(text, width)]
        assert " ".join(lines) == text
        for pair in ("-tp 2", "39.3 ms", "1 × h200 ·", "5 GPUs"):
            assert any(pair in line for line in lines), (width, lines)


def test_bars_take_the_room_there_is() -> None:
    table = TextTable([Column("", "<"), Column("", "<", elastic=30)], header=False)
    table.add_row("load", lambda width: [Cell("█" * width, "cyan")])
    assert [Page([table]).terminal(width).count("█") for width in (100, 20, 12)] == [30, 14, 0]
    assert Page([table]).plain() == "load\n" and Page([table]).markdown() == "- load\n"


def test_control_characters_do_not_reach_the_terminal() -> None:
    page = Page([Paragraph("a\x1b[31mb\x07\x9b"), rows_page([{"name": "x\x1b]0;title\x07", "memory": 1e9}])])
    for text in (page.terminal(80), page.plain(), page.markdown()):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize("text", ["模型", "e\u0301", "µs"])
def test_widths_are_those_of_terminals(text: str) -> None:
    assert width_of(text) == {"模型": 4, "e\u0301": 1, "µs": 2}[text]


# ------------------------------------------------------------------ plain and Markdown


@pytest.mark.slow
@pytest.mark.parametrize("line", [SHOWN[0], SHOWN[1], SHOWN[4], SHOWN[10], SHOWN[12], "show hardware", "show engines"])
def test_plain_text_is_ascii_that_awk_reads(line: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # means nothing here: programs want all columns
    text = run(*shlex.split(line), "--plain").out
    assert text.isascii() and "\x1b" not in text and "left out" not in text
    tables = [
        block for block in text.split("\n\n") if re.search(r"^(operator|metric|name|gpu|latency) {2}", block, re.M)
    ]
    assert tables
    for block in tables:
        rows = block.strip().split("\n")
        first = next(n for n, row in enumerate(rows) if re.match(r"(operator|metric|name|gpu|latency) {2}", row))
        counts = {len(re.split(r" {2,}", row)) for row in rows[first:]}
        assert len(counts) == 1, block


def test_cells_that_are_empty_or_marks_have_names_in_ascii() -> None:
    table = TextTable([Column("plan", "<"), Column("", "^", name="origin"), Column("now")])
    table.add_row("a  b", Cell("●", ascii="measured"), "")
    assert Page([table]).plain() == "plan  origin    now\na b   measured    -\n"
    assert to_ascii("3 × 2 → 1 µs ≤ ½ é 模") == "3 x 2 -> 1 us <= 1\\u20442 e \\u6a21"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [SHOWN[0], SHOWN[2], SHOWN[4], SHOWN[6], SHOWN[10], SHOWN[11], SHOWN[12], "show hosts"]
)
def test_markdown_has_tables_of_github(line: str, run: Run, folder: Path) -> None:
    text = run(*shlex.split(line), "--markdown").out
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert blocks
    for block in blocks:
        heading, rule, *rows = block.strip().split("\n")
        columns = len(re.findall(r"(?<!\\)\|", heading))
        assert re.fullmatch(r"\|( (:--|--:|:-:) \|)+", rule) and rows
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in (rule, *rows)} == {columns}, block


def test_markdown_shows_what_was_said() -> None:
    table = TextTable([Column("a|b", "<"), Column("x")], "title *")
    table.add_row("<2 | `c`", "1.5")
    parts = [Paragraph("# of 3", style="bold"), Paragraph("  one"), Paragraph("  two"), table]
    page = Page([*parts, ShellCommand("vllm serve m --port 1"), ShellCommand("# 2 × this")])
    assert page.markdown().split("\n") == [
        "**\\# of 3**",
        "",
        "- one",
        "- two",
        "",
        "**title \\***",
        "",
        "| a\\|b | x |",
        "| :-- | --: |",
        "| \\<2 \\| \\`c\\` | 1.5 |",
        "",
        "```bash",
        "  vllm serve m --port 1",
        "  # 2 × this",
        "```",
        "",
    ]


def test_one_form_at_a_time(run: Run) -> None:
    ran = run("analyze", MODEL, "--plain", "--markdown")
    assert ran.code == 2 and "--plain and --markdown are two formats of one result" in ran.err


def test_forms_go_into_files(run: Run, folder: Path) -> None:
    assert run("sweep", MODEL, "--batch-size", "1,2", "--markdown", "-o", "best.md").code == 0
    assert (folder / "best.md").read_text(encoding="utf-8").count("\n| ") >= 3
    assert run("analyze", MODEL, "-o", "report.txt").code == 0
    assert "left out" not in (folder / "report.txt").read_text(encoding="utf-8")


# ------------------------------------------------------------------ words


def test_operators_of_one_name_say_what_they_follow(run: Run) -> None:
    ran = run("analyze", "llama-3.1-8b", "--gpu", "h200", "-tp", "2")
    assert "all_reduce after o_proj" in ran.out and "all_reduce after down_proj" in ran.out
    assert not re.search(r"^all_reduce  ", ran.out, re.M)


def test_borrowed_kernels_name_their_device(run: Run) -> None:
    ran = run("analyze", "qwen2.5-7b", "--gpu", "a6000")
    assert "◐ fitted to kernels of the L40S and A100-SXM-80GB" in ran.out
    assert run("analyze", "qwen2.5-7b", "--gpu", "a6000", "--json").json["engine"]["kernels_of"] == [
        "l40s",
        "a100-sxm-80gb",
    ]
    assert run("analyze", "qwen2.5-7b", "--gpu", "h200", "--json").json["engine"]["kernels_of"] == []


def test_switches_are_on_or_off(run: Run) -> None:
    flags = ("--enable-expert-parallel", "--no-enable-expert-parallel", "-tp", "2", "--batch-size", "1,64")
    text = run("sweep", "mixtral-8x7b-v0.1", "--gpu", "h200", *flags).out
    assert re.search(r"\b(on|off) ", text) and "True" not in text and "False" not in text


def test_names_that_are_allowed_are_all_said(run: Run) -> None:
    ran = run("analyze", "llama-3.1-8b", "--explain", "qk_matmul")
    assert ran.code == 2 and "rope" in ran.err and "sampler" in ran.err and "…" not in ran.err
