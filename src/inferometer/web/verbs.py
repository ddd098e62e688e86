"""The verbs of the package for a page: a body as it came in JSON, the same functions as the command line's, JSON back.

answer("analyze", b'{"model": "llama-3.1-8b", "gpu": "h200"}')      # Answer(status=200, body=b'{"schema": …')
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, InferometerError, UnknownName, abbreviate
from ..inference.analyze import PHASES, check_phase, report_of
from ..inference.explain import explain
from ..inference.request import Request, build_request
from ..specs import catalog
from .runs import capacity, search, sensitivity, simulate, sweep
from .words import Plan, command, concerns, plan_of

Tell = Callable[[float | None, str], None]  # how far it is (None: nobody knows), and with what


class Answer(NamedTuple):
    """What goes back to the page."""

    status: int
    body: bytes


def analyze(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """A plan is its own body: the report, the command that makes it, and the network to be drawn."""
    from .graph import graph

    plan, asked = _asked(given, folder)
    report = report_of(asked)
    return {**report.to_dict(), "command": command("analyze", plan), "graph": graph(report, asked.model)}


def explained(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """One operator: as ``analyze --explain OP --json``."""
    op, phase = given.get("op"), given.get("phase", "all")
    if not isinstance(op, str):
        raise BadValue(f"the operator must be a name, not {abbreviate(op)}")
    if not isinstance(phase, str) or phase not in (*PHASES, "vision"):
        raise UnknownName("--phase", phase, (*PHASES, "vision"))
    _, asked = _asked(_plan(given, "op", "phase"), folder)
    if phase != "vision":
        check_phase(asked, phase)
    return explain(asked, op, phase)


def _asked(given: Any, folder: Path) -> tuple[Plan, Request]:
    plan = plan_of(given, folder)
    if "," in plan.gpu.partition(":")[0]:
        raise BadValue("analyze looks at one GPU type at a time; give one name to --gpu")
    return plan, build_request(plan.model, plan.gpu, **plan.words)


def _plan(given: dict[str, Any], *others: str) -> Any:
    for name in given:
        if name not in ("plan", *others):
            raise UnknownName("word", name, ("plan", *others))
    return given.get("plan", {})


def swept(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """Columns of every combination of the axes."""
    return sweep(plan_of(_plan(given, "axes", "figures"), folder), given.get("axes"), given.get("figures"))


def moved(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """What moves a plan."""
    plan = plan_of(_plan(given, "target", "size", "compare", "compare_usecases", "curves"), folder)
    return sensitivity(plan, {word: value for word, value in given.items() if word != "plan"})


def searched(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """The best deployment; words as of the verb, beside the plan."""
    words = {name: value for name, value in given.items() if name not in ("plan", "trace")}
    return search(plan_of(given.get("plan", {}), folder), words, _trace(given, folder), tell)


def simulated(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """Requests through an engine, or the highest rate that holds."""
    plan, words = plan_of(_plan(given, "traffic", "trace"), folder), given.get("traffic") or {}
    if not isinstance(words, Mapping):
        raise BadValue(f'traffic is an object such as {{"request_rate": 8}}, not {abbreviate(words)}')
    find = words.get("find_capacity", False)
    if not isinstance(find, bool):
        raise BadValue(f"--find-capacity must be True or False, not {abbreviate(find)}")
    rest = {name: value for name, value in words.items() if name != "find_capacity" and value is not None}
    return (capacity if find else simulate)(plan, rest, _trace(given, folder), tell)


def _trace(given: Mapping[str, Any], folder: Path) -> Path | None:
    """A trace that came as text, as a file."""
    sent = given.get("trace")
    if sent is None:
        return None
    name, text = (sent.get("name", "trace.csv"), sent.get("text")) if isinstance(sent, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str):
        raise BadValue(f'a trace is {{"name": "trace.csv", "text": "…"}}, not {abbreviate(sent)}')
    from .words import safe

    path = folder / safe(name.replace("\\", "/").rpartition("/")[2])
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def listed(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """What there is to choose from."""
    from .catalogue import catalogue

    return catalogue()


def accuracy(given: dict[str, Any], folder: Path, tell: Tell) -> Any:
    """Predicted beside measured, as it stood when this version was made."""
    return catalog.accuracy()


VERBS: dict[str, Callable[[dict[str, Any], Path, Tell], Any]] = {
    "analyze": analyze,
    "explain": explained,
    "sweep": swept,
    "sensitivity": moved,
    "search": searched,
    "simulate": simulated,
    "catalogue": listed,
    "accuracy": accuracy,
}


# ------------------------------------------------------------------ from JSON to JSON


def answer(verb: str, body: bytes, tell: Tell = lambda share, words: None) -> Answer:
    """Whatever comes, an answer: the result, or one sentence and the control that it concerns."""
    with _folder() as folder:
        away = f"{folder}{os.sep}"
        try:
            found = msgspec.json.encode(VERBS[verb](_decoded(body), folder, tell))
            return Answer(200, found.replace(away.encode(), b""))
        except InferometerError as error:
            return wrong(400, str(error).replace(away, ""))
        except (MemoryError, RecursionError):
            return wrong(422, "this needs more memory than a page may ask for; the command line has no such limit")
        except Exception as error:
            traceback.print_exc()
            return wrong(500, f"inferometer made a mistake ({type(error).__name__}); please report it with this plan")


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="inferometer-") as name:
        yield Path(name)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"what was sent is not JSON: {abbreviate(str(error))}") from None
    if not isinstance(found, dict):
        raise BadValue(f"what is sent must be a JSON object, not {abbreviate(found)}")
    return found


def wrong(status: int, sentence: str, control: str | None = None) -> Answer:
    """A refusal: the sentence of the command line, and the control that it concerns."""
    return Answer(status, msgspec.json.encode({"error": sentence, "control": control or concerns(sentence)}))
