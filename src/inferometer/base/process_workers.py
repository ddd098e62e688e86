"""Processes of this machine that run calls, and that live no longer than the process that began them.

A worker reads calls from a pipe. The pipe closes when its parent is gone, however it went (Ctrl-C, SIGTERM, SIGKILL),
and the worker ends at once. It has no hold on the parent's stdout, so that whoever reads that sees its end, and a
session of its own, so that Ctrl-C in a terminal ends the parent alone.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from .errors import DeadlyTask, WorkersLost
from .files import is_stream, packed, settle

ATTEMPTS = 3  # workers that may die over one call
_LENGTH = struct.Struct("<Q")  # before every message
_COMMAND = (  # the parent's sys.path comes first: this package may not be on the one that a new Python has
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from inferometer.base.process_workers import serve; serve()"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # a worker is one of many
Task = tuple[bytes, "Future[Any]"]


class ProcessWorkers:
    """``workers = ProcessWorkers(2); workers.result(workers.start(square, 3))  # 9``"""

    def __init__(self, count: int) -> None:
        self.slots = count
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._files = packed({})
        self._closed = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def carry(self, files: Mapping[str, Path]) -> None:
        """What came through a pipe goes with every call from now on; other files of this machine are there."""
        self._files = packed({name: path for name, path in files.items() if is_stream(path)})

    def start(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        """Begin a call on the next worker that is free."""
        future: Future[Any] = Future()
        self._tasks.put((pickle.dumps((function, item, self._files), pickle.HIGHEST_PROTOCOL), future))
        if len(self._threads) < self.slots:
            self._threads.append(threading.Thread(target=self._drive, daemon=True))
            self._threads[-1].start()
        return future

    def finished(self, handles: list[Future[Any]]) -> list[Future[Any]]:
        """Wait until some of the calls are over."""
        over = wait(handles, return_when=FIRST_COMPLETED).done
        return [handle for handle in handles if handle in over]

    def result(self, handle: Future[Any]) -> Any:
        """What a call gave, or the error that it raised."""
        return handle.result()

    def close(self) -> None:
        """End the workers, busy or not."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(5)

    def _drive(self) -> None:
        """One worker's thread here: hands it calls, and begins another where one died."""
        process: subprocess.Popen[bytes] | None = None
        while (task := self._tasks.get()) is not None and not self._closed:
            message, future = task
            answer = None
            for _ in range(ATTEMPTS):
                try:
                    process = process or self._spawn()
                    answer = _exchange(process, message)
                except OSError as error:
                    future.set_exception(WorkersLost(f"no worker process can be started: {error.strerror}"))
                    break
                if answer is not None or self._closed:
                    break
                code, process = self._end(process), None
            if answer is not None:
                _settle(future, answer)
            elif not future.done():
                how = f"signal {-code}" if not self._closed and code < 0 else "itself"
                future.set_exception(
                    DeadlyTask(f"{ATTEMPTS} worker processes died on the same work, the last by {how}")
                )
        if process is not None:
            self._end(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise OSError(0, "the run is over")
            process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ},
                start_new_session=True,
            )
            self._processes.add(process)
        assert process.stdin is not None
        with suppress(OSError):  # one that is dead already is noticed at the first call
            pickle.dump(sys.path, process.stdin)
            process.stdin.flush()
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        process.kill()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        code = process.wait()
        with self._lock:
            self._processes.discard(process)
        return code


def _exchange(process: subprocess.Popen[bytes], message: bytes) -> bytes | None:
    """Send a call and wait for its answer; None if the worker died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        _send(process.stdin, message)
    except OSError:
        return None
    return _receive(process.stdout)


def _settle(future: Future[Any], answer: bytes) -> None:
    """The result of a call, or its error with the lines of the worker that raised it."""
    worked, value, trace = pickle.loads(answer)
    if worked:
        future.set_result(value)
    else:
        if trace:
            value.add_note(f"in a worker process:\n{trace}")
        future.set_exception(value)


def _send(stream: BinaryIO | Any, message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    message: bytes = stream.read(length)
    return message if len(message) == length else None


# ------------------------------------------------------------------ inside of a worker


def serve() -> None:
    """Run calls from stdin until it closes; whatever else would be printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    with suppress(OSError):  # where stderr is closed
        os.dup2(2, 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, calls), daemon=True).start()
    while True:
        answer = _answer(calls.get())
        try:
            _send(answers, answer)
        except OSError:
            os._exit(0)


def _listen(stream: BinaryIO | Any, calls: queue.SimpleQueue[bytes]) -> None:
    while (message := _receive(stream)) is not None:
        calls.put(message)
    os._exit(0)  # the parent is gone, or is done with this worker: its result is not waited for


def _answer(message: bytes) -> bytes:
    """A call's result, or its error, as a message."""
    from traceback import format_exc

    from .errors import InferometerError

    try:
        function, item, files = pickle.loads(message)
        settle(files)
        return pickle.dumps((True, function(item), ""), pickle.HIGHEST_PROTOCOL)
    except InferometerError as error:
        return pickle.dumps((False, error, ""))
    except Exception as error:
        trace = format_exc()
        try:
            return pickle.dumps((False, error, trace))
        except Exception:  # an error that cannot travel
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"), trace))
