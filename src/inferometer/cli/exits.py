"""How a process ends: with an exit code, and with one sentence on stderr where it is neither 0 nor 1."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from . import streams

BAD_REQUEST, FAULT, INTERRUPTED = 2, 70, 130
ENDING = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
SECRET_FLAGS = ("--hf-token", "--api-key", "--token")


def exit_code(args: list[str]) -> int:
    """Run a command: ``exit_code(["analyze", "llama-3.1-8b"])  # 0``"""
    streams.prepare()
    debug, code = "--debug" in args, 0
    with _signals_unwind(), warnings.catch_warnings():
        if not debug and not sys.warnoptions:
            warnings.simplefilter("ignore")  # they are written for programmers
        try:
            from .commands import run

            code = run(args)
        except KeyboardInterrupt:
            code = _interrupted()
        except BrokenPipeError:  # of a file that is a pipe, as `-o -`
            code = 0
        except streams.LostOutput as lost:
            # a reader that went away (head, less) has what it wants
            code = 0 if lost.broken_pipe else _refused(f"stdout cannot be written: {lost}")
        except Exception as error:
            code = _explained(error, args, debug)
        return code


LONGEST = 1000  # characters of a refusal: it may repeat what a file or a flag has


def _refused(sentence: str) -> int:
    line = " ".join(sentence.splitlines())  # one line, whatever names have in them
    streams.echo(f"inferometer: {line if len(line) <= LONGEST else line[:LONGEST] + '…'}", err=True)
    return BAD_REQUEST


def _interrupted() -> int:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once
    streams.echo("inferometer: interrupted", err=True)
    return INTERRUPTED


def _explained(error: Exception, args: list[str], debug: bool) -> int:
    """The sentence of a bad request, or what to report of a fault."""
    from .commands import sentence

    if _from_interrupt(error):
        return _interrupted()
    if debug:
        import traceback

        streams.echo("".join(traceback.format_exception(error)), nl=False, err=True)
    bad_request = sentence(error)
    if bad_request is not None:
        return _refused(bad_request)
    streams.echo(fault(error, args), err=True)
    return FAULT


def fault(error: Exception, args: list[str]) -> str:
    """What happened in one line, where, and how to report it, with nothing secret."""
    import platform
    import shlex
    import traceback

    from .. import __version__

    ours = f"{os.sep}inferometer{os.sep}"
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if ours in frame.filename), frames[-1])
    file = place.filename.rpartition(ours)[2]
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return (
        f"inferometer: internal error: {what} ({file}, line {place.lineno})\n"
        f"inferometer {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}; "
        "please report it to the project's issue tracker, with what this prints:\n"
        f"  inferometer {shlex.join([*_without_secrets(args), '--debug'])}"
    )


def _without_secrets(args: list[str]) -> list[str]:
    shown: list[str] = []
    for arg in args:
        name, sign, _ = arg.partition("=")
        if shown and shown[-1] in SECRET_FLAGS:
            shown.append("SECRET")
        elif arg != "--debug":
            shown.append(f"{name}=SECRET" if sign and name in SECRET_FLAGS else arg)
    return shown


# ------------------------------------------------------------------ signals


@contextlib.contextmanager
def _signals_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process like an exception, so that files and workers are tidied up on the way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    before = {n: signal.getsignal(n) for n in numbers}
    hook, sys.unraisablehook = sys.unraisablehook, _unraisable
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            signal.signal(number, _unwind)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    sys.exit(128 + number)


def _unraisable(unraisable: Any) -> None:
    """A signal that falls into a finalizer would be printed and forgotten; it is obeyed instead."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        os._exit(error.code)
    sys.__unraisablehook__(unraisable)


def _from_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: Python 3.11 wraps one that falls into the making of a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
