"""Workers of a cluster: Dask and Ray, here on this machine or at an address.

workers = connect("dask", None, "tcp://scheduler:8786")
workers.slots                                               # threads of all its workers
workers.result(workers.start(square, 3))                    # 9

A call takes the content of its files along (`packed`), and a worker with other code refuses it: results would not be
the same to the digit.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .errors import DeadlyTask, InferometerError, WorkersLost, abbreviate
from .files import package_digest, packed, settle

CONNECT = 5.0  # s to wait for a cluster
GONE = 6.0  # s without a single worker, after which a cluster is given up
RESTART = 30.0  # the same on this machine, where dead workers are begun anew
MAX_GREETING = 10**6  # bytes
DASK_SCHEMES = ("", "tcp", "tls", "ucx", "ws", "wss")


def connect(backend: str, jobs: int | None, address: str | None) -> ClusterWorkers:
    """Workers at an address, or begun on this machine: ``connect("ray", 2, None)``"""
    kind = DaskWorkers if backend == "dask" else RayWorkers
    return kind(jobs, address, Passport(package_digest(), _python(), packed({})))


class Passport(NamedTuple):
    """What a call shows to a worker: the code that it was written for, and the files that it opens."""

    code: str
    python: str
    files: bytes
    client: int = 0  # its process id, where the cluster is of one machine and should end with it


# ------------------------------------------------------------------ calls


def _python() -> str:
    return "{}.{}".format(*sys.version_info)


def run_call(call: tuple[Callable[[Any], Any], Any, Passport]) -> tuple[str, Any]:
    """One call on a worker: "" and its result, or where it was and its error."""
    function, item, passport = call
    where = f"{socket.gethostname()}, process {os.getpid()}"
    try:
        if (passport.code, passport.python) != (package_digest(), _python()):
            raise WorkersLost(
                f"it has another inferometer or Python ({package_digest()}, {_python()}) than this client "
                f"({passport.code}, {passport.python}): install the same versions on both"
            )
        settle(passport.files)
        if passport.client:
            _end_with(passport.client)
        return "", function(item)
    except InferometerError as error:
        return where, error
    except Exception as error:
        from traceback import format_exc

        return where, RuntimeError(f"{type(error).__name__}: {error}\n{format_exc()}")


@functools.cache
def _end_with(client: int) -> None:
    """End this worker soon after its client: those of Ray would finish what they have under way first."""

    def watch() -> None:
        while True:
            try:
                os.kill(client, 0)
            except OSError:
                os._exit(0)
            time.sleep(0.5)

    threading.Thread(target=watch, daemon=True).start()


def _nothing(item: Any) -> None:
    """The first call, which shows whether a worker can run any."""


class ClusterWorkers(ABC):
    """What Dask and Ray have in common."""

    slots: int

    def __init__(self, name: str, address: str | None, passport: Passport) -> None:
        self.name, self.address, self.passport = name, address, passport
        self.title = f"the {name} cluster at {address}" if address else f"the {name} cluster on this machine"
        self.seen = time.monotonic()  # when a worker was last there

    def carry(self, files: Mapping[str, Path]) -> None:
        """Files whose content goes with every call from now on."""
        self.passport = self.passport._replace(files=packed(files))

    def start(self, function: Callable[[Any], Any], item: Any) -> Any:
        """Begin a call."""
        return self.submit((function, item, self.passport))

    @abstractmethod
    def submit(self, call: tuple[Any, ...]) -> Any:
        """Begin `run_call`; gives its handle."""

    @abstractmethod
    def fetch(self, handle: Any) -> tuple[str, Any]:
        """What `run_call` gave."""

    def result(self, handle: Any) -> Any:
        """What a call gave; an error of a worker says whose it is."""
        where, value = self.fetch(handle)
        if not where:
            return value
        if isinstance(value, InferometerError):
            value = value.with_sentence(f"a worker of {self.title} ({where}) says: {value.sentence}")
        raise value

    def check_first_call(self, handles: list[Any]) -> None:
        """Whether workers can import this package, and have the same one."""
        deadline = time.monotonic() + 4 * CONNECT
        while handles:
            for handle in self.finished(handles):
                handles.remove(handle)
                self.result(handle)
            if time.monotonic() > deadline:
                raise WorkersLost(f"{self.title} has workers that do not answer within {4 * CONNECT:.0f} s")

    @abstractmethod
    def finished(self, handles: list[Any]) -> list[Any]:
        """Wait until some of the calls are over."""

    @abstractmethod
    def close(self) -> None:
        """Let the cluster go; one that was begun here ends."""

    def note_workers(self, count: float, patience: float) -> None:
        """Give up where there has been no worker for too long."""
        now = time.monotonic()
        if count:
            self.seen = now
        elif now - self.seen > patience:
            raise WorkersLost(f"{self.title} has no workers left")

    def lost(self, error: BaseException) -> WorkersLost:
        """An error of the cluster's own as a sentence."""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return WorkersLost(f"{self.title} is gone or cannot be used: {abbreviate(lines[0])}")


def reach(name: str, address: str, schemes: tuple[str, ...], example: str) -> None:
    """Refuse an address that is none, or where nothing listens: libraries would try for a minute."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in schemes or not host or not port:
        raise WorkersLost(
            f"`backend_address` of {name} is HOST:PORT, such as {example}, not {abbreviate(address)}",
            field="backend_address",
        )
    try:
        with socket.create_connection((host, port), timeout=CONNECT) as stream:
            # a scheduler of Dask speaks first: the length of its greeting, which anything else would take for 10^18
            greeting = stream.recv(8) if name == "Dask" and parts.scheme in ("", "tcp") else b""
    except OSError as error:
        why = error.strerror or str(error)
        raise WorkersLost(
            f"no {name} cluster can be reached at {abbreviate(address)}: {why}", field="backend_address"
        ) from None
    if int.from_bytes(greeting, "little") > MAX_GREETING:
        raise WorkersLost(f"{abbreviate(address)} is not a {name} cluster", field="backend_address")


# ------------------------------------------------------------------ Dask


class DaskWorkers(ClusterWorkers):
    """A Dask client; without an address, a scheduler and workers of this machine that only it can reach."""

    def __init__(self, jobs: int | None, address: str | None, passport: Passport) -> None:
        super().__init__("Dask", address, passport)
        where: Any = _scheduler_file(address) if address is not None and address.endswith(".json") else address
        if where is not None:
            reach("Dask", where, DASK_SCHEMES, "tcp://10.0.0.1:8786")
        self.distributed: Any = importlib.import_module("distributed")
        for name in (
            "tornado",
            "asyncio",
            *(n for n in logging.root.manager.loggerDict if n.startswith("distributed")),
        ):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what is wrong is said once, by us
        self.cluster = self._local_cluster(jobs or os.cpu_count() or 1) if where is None else None
        where = where or self.cluster
        try:
            self.client: Any = self.distributed.Client(where, timeout=CONNECT, set_as_default=False)
        except Exception as error:  # of many kinds: no scheduler, another protocol, no certificate
            raise self.lost(error) from None
        self.slots = 1
        try:
            self.slots = self._greet(jobs)
        except BaseException:
            self.close()
            raise

    def _local_cluster(self, count: int) -> Any:
        """A scheduler and workers that listen on the loopback interface alone."""
        warnings.filterwarnings("ignore", message="(?s).*Port .* is already in use", module="distributed")
        name, before = "PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS")
        os.environ[name] = "ignore:resource_tracker"  # which warns of semaphores where a signal ended this process
        try:
            return self.distributed.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL + 1,
            )
        finally:
            os.environ.pop(name)
            os.environ.update({name: before} if before is not None else {})

    def _greet(self, jobs: int | None) -> int:
        try:
            self.client.wait_for_workers(1, timeout=RESTART if self.cluster else CONNECT)
            workers = self.client.nthreads()
        except (OSError, self.distributed.TimeoutError):
            raise WorkersLost(f"{self.title} has no workers") from None
        calls = [
            self.client.submit(run_call, (_nothing, None, self.passport), workers=[name], pure=False)
            for name in (workers if self.cluster is None else ())
        ]
        self.check_first_call(calls)
        return jobs or sum(workers.values())

    def submit(self, call: tuple[Any, ...]) -> Any:
        """Begin a call on any worker."""
        try:
            return self.client.submit(run_call, call, pure=False)
        except Exception as error:
            raise self.lost(error) from None

    def finished(self, handles: list[Any]) -> list[Any]:
        """Wait until some of the calls are over, and look after the cluster."""
        while True:
            try:
                with self.client.as_current():
                    over = self.distributed.wait(handles, timeout=1.0, return_when="FIRST_COMPLETED").done
                return [handle for handle in handles if handle in over]
            except (TimeoutError, self.distributed.TimeoutError):
                self._look()
            except Exception as error:  # cancelled: the scheduler is gone
                raise self.lost(error) from None

    def _look(self) -> None:
        if self.client.status != "running":
            raise WorkersLost(f"{self.title} is gone: its scheduler does not answer")
        try:
            count = len(self.client.nthreads())
        except Exception as error:
            raise self.lost(error) from None
        self.note_workers(count, RESTART if self.cluster else GONE)

    def fetch(self, handle: Any) -> tuple[str, Any]:
        """The answer of a call, which the cluster then forgets."""
        while True:
            try:
                answer: tuple[str, Any] = handle.result(timeout=2 * CONNECT)
                break
            except (TimeoutError, self.distributed.TimeoutError):
                self._look()  # its worker may be gone with the answer, and another computes it again
            except ModuleNotFoundError as error:
                raise WorkersLost(
                    f"{self.title} has workers without the package {error.name}: install it there"
                ) from None
            except self.distributed.scheduler.KilledWorker:
                raise DeadlyTask(f"workers of {self.title} died over the same work again and again") from None
            except Exception as error:
                raise self.lost(error) from None
        handle.release()
        return answer

    def close(self) -> None:
        """Let the cluster go."""
        for part in (self.client, self.cluster):
            if part is not None:
                with suppress(Exception):
                    part.close(timeout=CONNECT)


def _scheduler_file(path: str) -> str:
    """The address in a file that ``dask scheduler --scheduler-file`` wrote."""
    from .files import read_json

    return str(read_json(Path(path)).get("address", ""))


# ------------------------------------------------------------------ Ray


class RayWorkers(ClusterWorkers):
    """A Ray driver; without an address, a cluster of this machine that ends with it."""

    def __init__(self, jobs: int | None, address: str | None, passport: Passport) -> None:
        super().__init__("Ray", address, passport)
        if address not in (None, "auto", "local"):
            reach("Ray", str(address), ("", "ray"), "10.0.0.1:6379 or ray://10.0.0.1:10001")
        self.ray: Any = importlib.import_module("ray")
        self.is_own = not self.ray.is_initialized()
        here = address in (None, "local")
        self.passport = passport = passport._replace(client=os.getpid() if here else 0)
        options: dict[str, Any] = {"address": address or "local", "log_to_driver": False}
        if here:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"num_cpus": jobs or os.cpu_count() or 1, "include_dashboard": False}
        try:
            if self.is_own:
                _with_signals(lambda: self.ray.init(**options, logging_level=logging.CRITICAL))
            self.gcs_address = str(self.ray.get_runtime_context().gcs_address)
        except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
            raise self.lost(error) from None
        self.run_call: Any = self.ray.remote(num_cpus=1, max_retries=3)(run_call)
        try:
            self.slots = jobs or int(self._cpus()) or 1
            self.note_workers(self._cpus(), 0.0)
            self.check_first_call([self.submit((_nothing, None, passport))])
        except BaseException:
            self.close()
            raise

    def _cpus(self) -> float:
        return float(self.ray.cluster_resources().get("CPU", 0.0))

    def submit(self, call: tuple[Any, ...]) -> Any:
        """Begin a call on any node."""
        return self.run_call.remote(call)

    def finished(self, handles: list[Any]) -> list[Any]:
        """Wait until some of the calls are over, and look after the cluster."""
        while True:
            over: list[Any] = self.ray.wait(handles, num_returns=1, timeout=1.0)[0]
            if over:
                return over
            if self.address is not None and ":" in self.gcs_address:
                reach("Ray", self.gcs_address, ("",), self.gcs_address)  # without it, Ray ends this process in a minute
            self.note_workers(self._cpus(), GONE)

    def fetch(self, handle: Any) -> tuple[str, Any]:
        """The answer of a call."""
        errors = self.ray.exceptions
        try:
            answer: tuple[str, Any] = self.ray.get(handle)
        except errors.WorkerCrashedError:
            raise DeadlyTask(f"workers of {self.title} died over the same work again and again") from None
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ModuleNotFoundError):
                raise WorkersLost(
                    f"{self.title} has workers without the package {cause.name}: install it there"
                ) from None
            raise self.lost(cause or error) from None
        except errors.RayError as error:
            raise self.lost(error) from None
        return answer

    def close(self) -> None:
        """Let the cluster go."""
        if self.is_own:
            with suppress(Exception):
                self.ray.shutdown()


def _with_signals(begin: Callable[[], Any]) -> None:
    """Begin something that takes SIGTERM for itself, and give it back to whoever had it."""
    before = signal.getsignal(signal.SIGTERM)
    begin()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
