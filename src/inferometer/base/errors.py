"""What can go wrong with a request, as one clear sentence each.

    InferometerError
    ├── UnknownName   a model, GPU, engine, precision, operator … that is not there; names the nearest
    ├── BadValue      a value of the wrong type, sign, size or shape
    ├── BadFile       a file that cannot be read, parsed or lacks something
    └── WorkersLost   processes or a cluster that cannot be reached, or are gone
        └── DeadlyTask    work that killed every worker that tried it

Sentences name arguments in backticks, "`batch_size` must be …": Python prints the keyword, the command line its flag,
and the page marks the control, each with `InferometerError.text`. Something that cannot *work* (a model that does not
fit) is a result, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, ClassVar

_ARGUMENT = re.compile(r"(?<!\\)`([a-z][a-z0-9_]*)`")  # not in what a user typed, where `abbreviate` escapes them


class InferometerError(Exception):
    """Base of all errors that are the request's fault: one sentence, and the arguments that it is about.

    ``InferometerError("`nodes` must be 2").text(lambda name: f"--{name}")  # '--nodes must be 2'``
    """

    marks_arguments: ClassVar[bool] = True  # whether backticks in the sentence are arguments of ours
    suggestions: Sequence[str] = ()  # names that are near to an unknown one
    remedies: Sequence[dict[str, Any]] = ()  # other values that would be allowed: [{"batch_size": 1024}]

    def __init__(self, sentence: str, *, field: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        named = _ARGUMENT.findall(sentence) if self.marks_arguments else []
        self.field: str = field or (named[0] if named else "")  # the argument at fault; empty if it is none

    def text(self, spell: Callable[[str], str]) -> str:
        """The sentence with every argument spelled as a front end does."""
        named = _ARGUMENT.sub(lambda mark: spell(mark[1]), self.sentence) if self.marks_arguments else self.sentence
        return named.replace("\\`", "`")

    def with_sentence(self, sentence: str) -> InferometerError:
        """The same error in other terms: ``error.with_sentence(f"row 3: {error.sentence}")``"""
        return _revived(type(self), sentence, self.field)

    def __str__(self) -> str:
        return self.text(str)

    def __reduce__(self) -> tuple[Any, ...]:  # errors travel between processes
        return _revived, (type(self), self.sentence, self.field)


def _revived(kind: type[InferometerError], sentence: str, field: str) -> InferometerError:
    error = kind.__new__(kind)
    InferometerError.__init__(error, sentence, field=field)
    return error


class UnknownName(InferometerError):
    """``UnknownName("GPU", "h10", ["h100-sxm", "a100"])  # unknown GPU 'h10'; did you mean h100-sxm?``"""

    def __init__(self, what: str, given: object, allowed: Iterable[str], hint: str = "", *, field: str = "") -> None:
        names = sorted(set(allowed))
        near = nearest(str(given)[:200], names)
        if near:
            tail = f"did you mean {' or '.join(near)}?"
        else:
            more = f" and {len(names) - 16} more" if len(names) > 40 else ""  # a short list is shown whole
            shown = ", ".join(names[:16] if more else names) + more
            tail = f"allowed: {shown}" if names else "none are known"
        sentence = f"unknown {what} {abbreviate(str(given))}; {tail}{' ' + hint if hint else ''}"
        super().__init__(sentence, field=field)
        self.suggestions = near


class BadValue(InferometerError):
    """A value that is not allowed, as a sentence or as data.

    ``BadValue(field="share", given=2, allowed="a number in (0, 1]")  # share must be a number in (0, 1], not 2``
    """

    def __init__(self, sentence: str = "", *, field: str = "", given: object = None, allowed: str = "") -> None:
        super().__init__(sentence or f"`{field}` must be {allowed}, not {abbreviate(given)}", field=field)


class BadFile(InferometerError):
    """A file that cannot be used: says which one and why. Backticks in the sentence are keys of the file."""

    marks_arguments = False


class WorkersLost(InferometerError):
    """Workers that cannot be reached or that went away; the question itself may be right."""


class DeadlyTask(WorkersLost):
    """Work over which one worker after the other died; it would end this process, too."""


@contextmanager
def about(field: str) -> Iterator[None]:
    """Errors from inside that name no argument are about this one; for ``with``, and as a decorator.

    ``with about("gpu"): catalog.hardware("h10")``
    """
    try:
        yield
    except InferometerError as error:
        error.field = error.field or field
        raise


LONGEST_NAME = 200  # letters


def nearest(given: str, names: Iterable[str], most: int = 2) -> list[str]:
    """The names closest to what was typed: ``nearest("lama-2-7b", ["llama-2-7b"])  # ["llama-2-7b"]``"""
    from difflib import SequenceMatcher, get_close_matches

    pool, word = list(names), given.lower()
    if len(word) > LONGEST_NAME:
        return []  # near to nothing, and comparing it takes seconds
    same = [n for n in pool if re.sub("[-_]", "", n) == re.sub("[-_]", "", word)]
    if same:  # --batch_size and batchsize mean one thing only
        return same[:most]
    starts = sorted((n for n in pool if len(word) > 1 and n.startswith(word)), key=len)
    close = get_close_matches(word, pool, n=most, cutoff=0.6)
    if not (starts or close) and len(word) > 2:
        close = [n for n in pool if word in n or SequenceMatcher(None, word, n).ratio() > 0.55]
    return list(dict.fromkeys(starts + close))[:most]


def abbreviate(value: object, most: int = 120) -> str:
    """What was given, for a sentence about it; ``abbreviate("x" * 5000)`` ends with an ellipsis."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"
    text = repr(value).replace("`", "\\`")
    return text if len(text) <= most else f"{text[:most]}…"


def _marked(name: str) -> str:
    return f"`{name}`" if name.isidentifier() else name


def check_fraction(name: str, value: Any, ends: str) -> float:
    """The value as a number from 0 to 1: ``check_fraction("overlap", 0.5, "0 (none) and 1 (all)")``

    ``ends`` says what the two ends of the range mean, for the sentence of the error.
    """
    if not is_number(value) or not 0 <= value <= 1:
        raise BadValue(f"{_marked(name)} must be between {ends}, not {abbreviate(value)}")
    return float(value)


def is_number(value: object) -> bool:
    """Whether it is a number: NumPy's count, True and False do not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_positive(name: str, value: float, most: float = 1e15) -> None:
    """Refuse a value that is not a positive finite number below ``most``."""
    if not is_number(value) or not 0 < value <= most:
        raise BadValue(f"{_marked(name)} must be a positive number up to {most:g}, not {abbreviate(value)}")


def check_int(name: str, value: Any, least: int = 1, most: int = 10**9) -> int:
    """The value as an integer in ``[least, most]``: ``check_int("batch_size", 8)  # 8``"""
    if not is_number(value) or value != value or value % 1 != 0:
        raise BadValue(f"{_marked(name)} must be a whole number, not {abbreviate(value)}")
    if not least <= value <= most:
        given = f"{int(value):,}" if abs(value) < 1e100 else abbreviate(value)
        raise BadValue(f"{_marked(name)} must be between {least:,} and {most:,}, not {given}")
    return int(value)
