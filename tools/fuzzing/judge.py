"""What a run amounts to: an answer that keeps the laws, a refusal in one sentence, or a failure with a name.

judge(case, ran, folder)       # Verdict("feasible", []), Verdict("crashed", ["ZeroDivisionError in costs/step.py: …"])
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from . import laws
from .cases import Case
from .runners import Ran, as_process, in_process
from .values import FOLDER

TWICE = 25  # one answered command in so many is asked again: the same question is the same answer
JOBS = 30  # one search in so many is made again by two processes
BETTER = 25  # one analysis in so many is made again with more bandwidth
ROWS = 3  # one sweep in so many has a row compared with the analysis
_FRAME = re.compile(r'File "[^"]*?(inferometer/[^"]+|tools/[^"]+)", line (\d+), in (\S+)')


class Verdict(NamedTuple):
    """An outcome of `tally.OUTCOMES`, and what is wrong."""

    outcome: str
    problems: list[str]


def judge(case: Case, ran: Ran, folder: Path, checked: Counter[str]) -> Verdict:
    """The outcome of a case; ``checked`` counts the laws that were looked at."""
    if ran.crash.startswith("too slow"):
        return Verdict("too slow", [f"{ran.crash.splitlines()[0]} {_where(ran.crash)}"])
    if case.way == "signal":
        checked["signals-leave-nothing"] += 1
        return Verdict("crashed", [f"signal: {ran.crash}"]) if ran.crash else Verdict("interrupted", [])
    if ran.crash or "Traceback (most recent call last)" in ran.err:
        return Verdict("crashed", [_last_line(ran.crash or ran.err)])
    if case.way in ("api", "http"):
        return _judge_reply(case, ran, checked)
    if ran.code == 2:
        return _judge_refusal(ran, checked)
    if ran.code not in (0, 1):
        return Verdict("crashed", [f"exit code {ran.code}"])
    outcome, problems = ("feasible" if ran.code == 0 else "infeasible"), list(_warnings(ran, checked))
    if "--json" in case.argv and case.verb not in ("show", "profile", "bench"):
        problems += _judge_answer(case, ran, folder, checked)
    if case.way == "process":
        problems += _same(case, ran, folder, checked, "process-is-same")
    elif random.Random(case.name).randrange(TWICE) == 0:
        problems += _same(case, ran, folder, checked, "same-question-same-answer")
    return Verdict("law broken" if problems else outcome, problems)


def _last_line(trace: str) -> str:
    """What went wrong: the last line of a traceback, the first of a fault that was told to the user."""
    if "internal error: " in trace:
        return trace.partition("internal error: ")[2].partition("\n")[0]
    line = next((line for line in reversed(trace.strip().splitlines()) if line and not line.startswith(" ")), "")
    return f"{line[:160]} {_where(trace)}"


def _where(trace: str) -> str:
    frames = _FRAME.findall(trace)
    ours = [frame for frame in frames if frame[0].startswith("inferometer/")] or frames
    return f"in {ours[-1][0]}:{ours[-1][1]} ({ours[-1][2]})" if ours else ""


def _warnings(ran: Ran, checked: Counter[str]) -> list[str]:
    checked["no-warnings-of-libraries"] += 1
    lines = [line for line in ran.err.splitlines() if re.search(r"\b[A-Z]\w*Warning: ", line)]
    return [f"no-warnings-of-libraries: {re.sub(r'^.*/', '', line)[:160]}" for line in lines[:1]]


def _judge_refusal(ran: Ran, checked: Counter[str]) -> Verdict:
    """Law `one-sentence`: a refusal is one line on stderr, and nothing of a result is out."""
    checked["one-sentence"] += 1
    problems = _warnings(ran, checked)
    if ran.out:
        problems.append(f"one-sentence: {ran.out[:80]!r} is on stdout")
    if not ran.err.startswith("inferometer: ") or ran.err.count("\n") != 1 or len(ran.err) > 2000:
        problems.append(f"one-sentence: {ran.err[:200]!r} ({len(ran.err)} characters)")
    return Verdict("law broken" if problems else "refused", problems)


def _judge_reply(case: Case, ran: Ran, checked: Counter[str]) -> Verdict:
    """Statuses are 200, 400, 413 and 422; a refusal is a sentence, an answer keeps the laws."""
    if ran.code not in (200, 400, 413, 422):
        return Verdict("crashed", [f"status {ran.code}: {ran.out[:160]} {_last_line(ran.err)}"])
    problems = _warnings(ran, checked)
    try:
        reply = _decoded(ran.out)
    except ValueError as error:
        return Verdict("law broken", [f"json: {error}"])
    if ran.code != 200:
        checked["one-sentence"] += 1
        if set(reply) != {"error", "control", "suggestions", "remedies"} or not reply["error"]:
            problems.append(f"one-sentence: {ran.out[:160]}")
        return Verdict("law broken" if problems else "refused", problems)
    feasible = not isinstance(reply, dict) or bool(reply.get("feasible", True))
    if isinstance(reply, dict):
        problems += _laws(case.verb, reply, 0 if feasible else 1, checked)
    return Verdict("law broken" if problems else "feasible" if feasible else "infeasible", problems)


def _laws(verb: str, result: dict[str, Any], code: int, checked: Counter[str]) -> list[str]:
    checked.update(name for name, _ in laws.LAWS.get(verb, []))
    checked["exit-code"] += 1
    try:
        return laws.broken_laws(verb, result, code)
    except (KeyError, TypeError, AttributeError) as error:
        if "explain" in str(result)[:40] or "schema" not in result:
            return []
        return [f"schema: {type(error).__name__} {error}"]


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _decoded(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _judge_answer(case: Case, ran: Ran, folder: Path, checked: Counter[str]) -> list[str]:
    """The laws of the verb, and those that need another look."""
    try:
        result = _decoded(ran.out)
    except ValueError as error:
        return [f"json: {error}: {ran.out[:80]!r}"]
    if not isinstance(result, dict) or result.get("schema") == "inferometer.cluster/1":
        return []  # an explanation, or what sits where: the laws are of reports
    problems = _laws(case.verb, result, ran.code, checked)
    if "--calibration" in case.argv:  # a factor of the user's own, which may be better than light
        problems = [text for text in problems if "roofline" not in text]
    chosen = random.Random(f"{case.name} more")
    if case.verb in ("simulate", "validate") and (folder / "requests.csv").is_file() and "num_prompts" in result:
        checked["requests-file"] += 1
        rows = list(csv.DictReader(io.StringIO((folder / "requests.csv").read_text(encoding="utf-8"))))
        problems += [f"requests-file: {text}" for text in laws.requests_file(result, rows)]
    if case.verb == "analyze" and "phases" in result and chosen.randrange(BETTER) == 0:
        problems += _never_slower(case, result, folder, checked)
    if case.verb == "search" and result.get("winner"):
        problems += _winner(case, result, folder, checked)
    if case.verb == "search" and case.way == "cli" and chosen.randrange(JOBS) == 0:
        problems += _same(case, ran, folder, checked, "jobs-are-same")
    if case.verb == "sweep" and result.get("rows") and chosen.randrange(ROWS) == 0:
        problems += _row(case, chosen, result, folder, checked)
    return problems


def _argv(case: Case, folder: Path) -> list[str]:
    return [arg.replace(FOLDER, str(folder)) for arg in case.argv]


def _same(case: Case, ran: Ran, folder: Path, checked: Counter[str], law: str) -> list[str]:
    """Law: the same question is the same answer to the last digit; of a search without the seconds that it took."""
    checked[law] += 1
    argv = _argv(case, folder)
    if law == "jobs-are-same":
        again = as_process([argv[0], "--jobs", "2", *argv[1:]], folder)
    else:
        again = in_process(argv, folder)
    texts = [re.sub(r'"seconds": \{[^}]*\}', "", text) for text in (ran.out, again.out)]
    if case.argv[-1] not in ("--json", "--csv"):
        texts = ["", ""]  # tables say how long they took
    if (ran.code, texts[0]) == (again.code, texts[1]):
        return []
    at = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    return [
        f"{law}: codes {ran.code} and {again.code}; {texts[0][at - 40 : at + 20]!r} {texts[1][at - 40 : at + 20]!r}"
    ]


def _never_slower(case: Case, result: dict[str, Any], folder: Path, checked: Counter[str]) -> list[str]:
    """The same plan with half as much bandwidth again."""
    argv = _argv(case, folder)
    if "--gpu" not in argv or ".toml" in argv[argv.index("--gpu") + 1] or "--profile" in argv:
        return []
    at = argv.index("--gpu") + 1
    base = result["device"]["memory_bandwidth"]
    again = in_process(
        [*argv[:at], f"{argv[at]}{',' if ':' in argv[at] else ':'}memory_bandwidth={1.5 * base}", *argv[at + 1 :]],
        folder,
    )
    if again.code not in (0, 1):
        return []
    checked["never-slower"] += 1
    return [f"never-slower: {text}" for text in laws.never_slower(result, _decoded(again.out))]


def _row(case: Case, chosen: random.Random, result: dict[str, Any], folder: Path, checked: Counter[str]) -> list[str]:
    """One row of a sweep beside the analysis of the same plan."""
    row = chosen.choice(result["rows"])
    argv = _argv(case, folder)
    axes = {name for name, values in result["axes"].items() if len(values) > 1}
    spelled = {f"--{name.replace('_', '-')}": name for name in axes}
    single = ["analyze", argv[1]]
    for flag, value in itertools.pairwise(argv[2:]):
        if flag in spelled:
            if spelled[flag] not in row or row[spelled[flag]] is None:
                return []
            single += [flag, str(row[spelled[flag]])]
        elif flag.startswith("--") and flag not in ("--json", "--csv"):
            single += [flag] if value.startswith("--") else [flag, value]
    if "model" in axes or argv.count("--json") != 1:
        return []
    alone = in_process([*single, "--json"], folder)
    if alone.code not in (0, 1):
        return []
    checked["row-is-analysis"] += 1
    return [f"row-is-analysis: {text}" for text in laws.row_is_analysis(row, _decoded(alone.out))]


_POOL_FLAGS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization", "kv_cache_dtype"),
    *("max_num_batched_tokens", "max_num_seqs"),
)
_SHARED_FLAGS = (  # of a search that each of its plans has
    *("--engine", "--frontend", "--dtype", "--interconnect", "--efficiency", "--gpu-memory-utilization"),
    *("--routing-skew", "--gpus-per-node", "--input-len", "--output-len", "--speculative-config"),
)


def _winner(case: Case, result: dict[str, Any], folder: Path, checked: Counter[str]) -> list[str]:
    """Law `winner-fits`: analyze says of each pool of the winner that it works, for one sequence."""
    argv = _argv(case, folder)
    if any(flag in argv for flag in ("--trace", "--profile", "--calibration", "--config", "--prefix-len")):
        return []
    given = {flag: value for flag, value in itertools.pairwise(argv) if flag in _SHARED_FLAGS}
    if any(not given.get(flag, "1").isdigit() for flag in ("--input-len", "--output-len")):
        return []
    problems, gpu = [], result["winner"]["gpu"]
    named = ",".join(value for flag, value in itertools.pairwise(argv) if flag == "--gpu").split(",")
    files = [path for path in named if Path(path).stem == gpu]  # a GPU that a file describes
    for pool in result["winner"]["pools"]:
        flags = [piece for flag, value in given.items() for piece in (flag, value)]
        for name in _POOL_FLAGS:
            flags += [f"--{name.replace('_', '-')}", str(pool[name])]
        flags += ["--enable-expert-parallel"] if pool["enable_expert_parallel"] else []
        checked["winner-fits"] += 1
        alone = in_process(["analyze", argv[1], "--gpu", *(files or [gpu])[:1], *flags, "--json"], folder)
        if alone.code != 0:
            problems.append(f"winner-fits: analyze says {alone.code}: {alone.err[:200]}")
    return problems
