"""Runs a case: in this process, as one of its own, by the server's function, over HTTP, or cut short by a signal.

run(case, folder)      # Ran(code=0, out='{…', err='', seconds=0.03, crash='')
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from inferometer.cli import main
from inferometer.cli.exits import FAULT

from .cases import CSV_LINES, Case
from .values import FOLDER

# s of CPU: dozens of plans are simulated, hundreds for a calibration; --compare-usecases sizes some thousand plans
LIMIT = {"search": 60.0, "validate": 60.0, "sensitivity": 60.0}
PLAN_LIMIT = 10.0  # s of CPU for one plan, as long as a command of one plan may take
HANG = 900.0  # s by the clock: a busy machine is slow, and no hang
MEMORY = 6 * 2**30
SLOW_START = 6.0  # s after the start at which a signal comes at the latest


class TooLong(BaseException):
    """Raised in a case that took more than its share; nothing in the package may catch it."""


class Ran(NamedTuple):
    """What a case did; ``code`` is the exit code or the HTTP status."""

    code: int
    out: str
    err: str
    seconds: float  # of CPU
    crash: str = ""  # the traceback, or what is left of a run that was cut short


def limit_memory() -> None:
    """No case takes the machine down: more than `MEMORY` is a MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run(case: Case, folder: Path) -> Ran:
    """Run a case in a folder of its own, which gets its files."""
    for name, data in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    argv = [arg.replace(FOLDER, str(folder)) for arg in case.argv]
    if case.way == "cli":
        return in_process(argv, folder)
    if case.way == "process":
        return as_process(argv, folder)
    if case.way == "signal":
        return interrupted(argv, folder, case.signal, case.after)
    return over_http(case) if case.way == "http" else by_function(case)


@contextlib.contextmanager
def _limits(verb: str) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TooLong("CPU" if number == signal.SIGPROF else "hangs")

    before = [signal.signal(which, stop) for which in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, LIMIT.get(verb, PLAN_LIMIT))
    signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for which, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(which, handler)


def _captured(verb: str, folder: Path, call: Callable[[], int]) -> Ran:
    """Call something with its streams taken, in its folder, within its time."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2))
    home, began, crash, code = os.getcwd(), time.process_time(), "", -1
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), _limits(verb):
            warnings.simplefilter("always")
            try:
                code = call()
            except SystemExit as stopped:
                code = stopped.code if isinstance(stopped.code, int) else 0
                if code in (129, 143):  # SIGHUP or SIGTERM: the campaign itself is to end
                    os._exit(code)
    except TooLong as stopped:
        crash = f"too slow: {stopped}\n{traceback.format_exc()}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        crash = traceback.format_exc()
    finally:
        os.chdir(home)
    seconds = time.process_time() - began
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ran(code, texts[0], texts[1], seconds, crash)


def in_process(argv: list[str], folder: Path) -> Ran:
    """``in_process(["analyze", "gpt2", "--json"], folder)``"""

    def call() -> int:
        sys.warnoptions[:] = ["always"]  # a process is silent about what libraries warn of; a campaign is not
        main(argv)
        return 0

    ran = _captured(argv[0] if argv else "", folder, call)
    return ran._replace(crash=ran.err) if ran.code == FAULT else ran


def by_function(case: Case) -> Ran:
    """What the server's worker does with a body."""
    from inferometer.web.endpoints import answer

    reply: list[bytes] = []

    def call() -> int:
        status, body = answer(case.verb, case.body)
        reply.append(body)
        return status

    ran = _captured(case.verb, Path.cwd(), call)
    return ran._replace(out=reply[0].decode() if reply else "")


# ------------------------------------------------------------------ processes


def as_process(argv: list[str], folder: Path, limit: float = HANG) -> Ran:
    """A command as a shell would start it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "inferometer", *argv]
    try:
        ended = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return Ran(-1, "", "", limit, "too slow: hangs")
    texts = [text.decode("utf-8", "replace") for text in (ended.stdout, ended.stderr)]
    return Ran(ended.returncode, *texts, _cpu_since(before))


def _cpu_since(before: Any) -> float:
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime


def interrupted(argv: list[str], folder: Path, name: str, after: float) -> Ran:
    """Start a command in a session of its own, send it a signal, and look at what it leaves."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out, err = folder / ".stdout", folder / ".stderr"
    work = folder / "work"
    work.mkdir(exist_ok=True)
    argv = [arg.replace(str(folder), str(work)) for arg in argv]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "inferometer", *argv],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    sent = False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after * SLOW_START)
    if process.poll() is None:
        process.send_signal(getattr(signal, name))
        sent = True
    try:
        code = process.wait(60)
        crash = ""
    except subprocess.TimeoutExpired:
        code, crash = -1, f"too slow: hangs after {name}"
    crash = crash or _left_behind(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    texts = [path.read_text("utf-8", "replace") for path in (out, err)]
    ran = Ran(code, *texts, _cpu_since(before), crash)
    return ran if crash else ran._replace(crash=_wrong_end(ran, name if sent else "", work))


def _left_behind(session: int, patience: float = 20.0) -> str:
    """Processes of a session that outlive its first one: it is what waits for them that would wait."""
    until = time.monotonic() + patience
    while (left := _members(session)) and time.monotonic() < until:
        time.sleep(0.5)
    return f"{len(left)} processes are left: {left}" if left else ""


def _members(session: int) -> list[str]:
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = stat.read_text().rpartition(")")
            fields = tail.split()
            if int(fields[3]) == session and fields[0] != "Z":
                members.append(head.partition("(")[2])
    return members


def _wrong_end(ran: Ran, name: str, work: Path) -> str:
    """What a run that was cut short must not leave: another exit code, a traceback, half a file, litter."""
    number = int(getattr(signal, name)) if name else 0
    allowed = {0, 1, 2} if not name else {0, 1, 2, 128 + number, -number}
    if ran.code not in allowed:
        return f"exit code {ran.code} after {name or 'no signal'}"
    if "Traceback" in ran.err:
        return f"a traceback after {name}:\n{ran.err[-2000:]}"
    for path in work.iterdir():
        if path.name not in ("out.csv", "out.json") and name != "SIGKILL":  # which leaves no time to tidy up
            return f"{path.name} is left after {name}"
        if path.name.startswith("out.") and not _whole(path):
            return f"half of {path.name} is left after {name}"
    return ""


def _whole(path: Path) -> bool:
    data = path.read_bytes()
    if path.suffix == ".csv":
        return data.count(b"\n") == CSV_LINES
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------ the server


class _Server:
    """A server of this machine, for as long as the campaign runs."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inferometer", "web", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        atexit.register(self.stop)
        if "http://" not in line:
            raise SystemExit(f"`inferometer web` does not start here: {line!r}, exit code {self.process.wait(10)}")
        self.address = line.partition("http://")[2].partition("/")[0]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


@functools.cache
def _server() -> _Server:
    return _Server()


def over_http(case: Case) -> Ran:
    """A body, sent to a server."""
    connection = http.client.HTTPConnection(_server().address, timeout=HANG)
    try:
        connection.request("POST", f"/api/{case.verb}", case.body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return Ran(reply.status, reply.read().decode("utf-8", "replace"), "", 0.0)
    except (OSError, http.client.HTTPException) as error:
        return Ran(-1, "", "", 0.0, f"no answer: {type(error).__name__}: {error}")
    finally:
        connection.close()
