"""Agreement with the tools that users come from: the same where they are right, different for a named reason elsewhere.

docs/compared.md says what these tests find; a figure that changes there or here fails.
"""

from __future__ import annotations

import importlib

import pytest
from helpers import peers
from helpers.peers import QKV, UP, Ledger, differences, elements, genz, llm_viewer, rows, total

from inferometer import analyze
from inferometer.cli import main

PAGE = peers.ROOT / "docs" / "compared.md"
NAMES = {"llm_viewer": "LLM-Viewer", "llm_profiler": "llm_profiler", "llm_analysis": "llm-analysis", "genz": "GenZ"}
LINEARS = (*QKV, "o_proj", *UP, "down_proj")


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("tool", NAMES)
def test_every_quantity_of_every_case(tool: str) -> None:
    """FLOPs, bytes, roofline times, parameters, weights and cache, as the tool says or as its own doing explains."""
    check = importlib.import_module(f"helpers.peers.{tool}").check
    ledger = Ledger(tool)
    for case in peers.cases(tool):
        ledger.case = case.id
        check(ledger, case)
    assert not ledger.wrong(tolerance=1e-12)
    assert f"| {NAMES[tool]} | {ledger.summary()} |" in page()


def test_collectives() -> None:
    """GenZ's table: a rank sends the bytes that ours sends."""
    ledger = Ledger("collectives")
    genz.check_collectives(ledger)
    assert len(ledger.lines) == 2 * len(peers.table("genz_collectives")) == 150
    assert not ledger.wrong(tolerance=1e-12)


def test_the_sample_that_users_know() -> None:
    """llava-onevision-qwen2-0.5b-ov on A100, prompt 2048, 16 bit, no FlashAttention, from the shipped catalogue."""
    report = analyze(
        "llava-onevision-qwen2-0.5b-ov",
        gpu="nvidia_A100",
        engine="roofline",
        attention="eager",
        dtype="fp16",
        input_len=2048,
        output_len=2,
    )
    decode = report.phases["decode"]
    biases = 24 * (896 + 2 * 128) * 2
    assert elements(rows(decode, *LINEARS)) * 2 == 715_653_120
    assert total(decode, *LINEARS)["load_weight"] == 715_653_120 + biases
    assert total(decode, "lm_head")["load_weight"] == 272_269_312
    assert report.phases["prefill"].memory_consumption_kv_cache == 25_165_824
    assert total(report.phases["prefill"], "attention")["load_kv_cache"] == 25_165_824


def test_the_sample_explained() -> None:
    """Its decode OPs of 1,031,776,256, term by term out of ours at the same context."""
    case = peers.case("llm_viewer", "lv044")
    theirs = case.figures["decode_flops"]
    report = llm_viewer.reports(case)[1]
    assert report is not None
    decode = report.phases["decode"]
    linears, attention = total(decode, *LINEARS)["flops"], total(decode, "attention")["flops"]
    head = total(decode, "lm_head")["flops"]
    assert linears == 24 * 29_818_880
    assert attention == 24 * 2048 * 3584
    assert head == 2 * 896 * 151_936
    assert theirs == linears + attention + 24 * 2048 * 5 * 14 + 24 * 18 * 896 + head / 2 == 1_031_776_256


@pytest.mark.parametrize("start", ["lv035", "lv036", "lv054", "lv055", "lv056", "lv057", "lv058"])
def test_generations_take_about_as_long(start: str) -> None:
    """Prefill and N decode steps: ours is a little longer, with embedding, rotation, final norm and sampler."""
    case = peers.case("llm_viewer", start)
    length, steps, theirs = case.plan["input_len"], case.plan["output_len"], case.figures["e2e_seconds"]
    kwargs = llm_viewer.arguments(case)
    report = peers.run(
        llm_viewer.model(case), llm_viewer.device(case), input_len=length, output_len=steps + 1, **kwargs
    )
    assert report.metrics.e2el_ms is not None
    assert 1.0 < report.metrics.e2el_ms / 1e3 / theirs < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("tool", NAMES)
def test_differences_are_as_the_page_says(tool: str) -> None:
    """Each row of the tool's section: the case, both figures and their ratio; and no row that is not computed."""
    section = page().split(f"\n## {NAMES[tool]}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.count("|") == 7 and not line.startswith(("| what ", "|--"))]
    rows = list(differences.TOOLS[tool]())
    assert all(d.theirs != d.ours for d in rows)
    assert [line[: line.rindex("|", 0, -1) + 1] for line in lines] == [d.row for d in rows]


@pytest.mark.slow
def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands and calls of docs/compared.md and docs/coming-from."""
    pages = [page(), *(path.read_text(encoding="utf-8") for path in sorted((PAGE.parent / "coming-from").glob("*.md")))]
    blocks = "\n".join(pages).split("```")[1::2]
    commands = "\n".join(b for b in blocks if b.startswith("bash\n")).replace("\\\n", " ").splitlines()
    ran = [line.split()[1:] for line in commands if line.startswith("inferometer ")]
    assert len(ran) >= 10
    for args in ran:
        with pytest.raises(SystemExit) as done:
            main(args)
        assert done.value.code in (0, 1), (
            f"{' '.join(args)}: {capsys.readouterr().err}"
        )  # 1: it does not fit, and says so
    calls = [b.removeprefix("python\n") for b in blocks if b.startswith("python\n")]
    assert calls
    for call in calls:
        exec(compile(call, "coming-from", "exec"), {})
