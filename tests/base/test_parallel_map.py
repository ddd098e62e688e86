"""Workers: the same results wherever they run, work of dead ones done again, none left behind, one sentence each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferometer.base import cluster_workers, files
from inferometer.base.errors import BadFile, BadValue, DeadlyTask, InferometerError, UnknownName, WorkersLost
from inferometer.base.parallel_map import check_backend, parallel_map, worker_pool

SOURCE = str(Path(files.__file__).parents[2])


def square(number: int) -> int:
    return number * number


def die_once(mark: str) -> str:
    """End this process by SIGKILL, unless it was done before."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(name: str) -> None:
    raise BadFile(f"no calibration file {name!r}")


def content(name: str) -> str:
    return files.user_path(name).read_text()


def speak(text: str) -> str:
    print(text, flush=True)
    return text


@pytest.mark.slow
def test_results_come_in_the_order_of_the_items() -> None:
    assert parallel_map(square, range(7), jobs=2) == [square(n) for n in range(7)]


@pytest.mark.slow
def test_the_work_of_a_dead_process_is_done_again(tmp_path: Path) -> None:
    marks = [str(tmp_path / name) for name in "abc"]
    assert parallel_map(die_once, marks, jobs=2) == ["done"] * 3


@pytest.mark.slow
def test_work_that_kills_every_worker_is_given_up() -> None:
    with pytest.raises(DeadlyTask, match="3 worker processes died on the same work, the last by signal 9"):
        parallel_map(die, [1, 2], jobs=2)


@pytest.mark.slow
def test_an_error_of_a_process_is_the_error_here() -> None:
    with pytest.raises(BadFile, match=r"no calibration file 'x\.toml'"):
        parallel_map(refuse, ["x.toml", "x.toml"], jobs=2)
    with pytest.raises(ValueError, match="invalid literal") as raised:
        parallel_map(int, ["7", "seven"], jobs=2)
    assert "in a worker process" in raised.value.__notes__[0]


@pytest.mark.slow
def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="dask"):
        check_backend("dusk")
    with pytest.raises(BadValue, match="backend_address needs backend dask or ray"):
        check_backend("processes", None, "tcp://host:8786")
    monkeypatch.setenv("INFEROMETER_BACKEND_ADDRESS", "tcp://from:1")
    assert check_backend("processes") is None, "the variable is of a cluster, and none was chosen"
    pytest.importorskip("distributed")
    assert check_backend("dask") == "tcp://from:1"
    assert check_backend("dask", None, "tcp://given:2") == "tcp://given:2"


@pytest.mark.parametrize(
    ("backend", "address", "said"),
    [
        ("dask", "foo", "is HOST:PORT"),
        ("dask", "http://127.0.0.1:80", "is HOST:PORT"),
        ("dask", "tcp://127.0.0.1:99999", "is HOST:PORT"),
        ("ray", "tcp://127.0.0.1:80", "is HOST:PORT"),
        ("dask", "tcp://127.0.0.1:1", "no Dask cluster can be reached"),
        ("ray", "127.0.0.1:1", "no Ray cluster can be reached"),
        ("dask", "tcp://no-such-host.invalid:8786", "no Dask cluster can be reached"),
    ],
)
def test_a_wrong_address_is_said_before_anything_is_loaded(backend: str, address: str, said: str) -> None:
    with pytest.raises(WorkersLost, match=said) as raised:
        cluster_workers.connect(backend, None, address)
    assert raised.value.field == "backend_address"


def test_something_else_that_listens_is_no_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def greet() -> None:
            with server.accept()[0] as stream:
                stream.sendall(b"220 mail server\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(WorkersLost, match="is not a Dask cluster"):
            cluster_workers.connect("dask", None, f"tcp://127.0.0.1:{server.getsockname()[1]}")


# ------------------------------------------------------------------ no process stays behind

_PARENT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
import sys, time
from inferometer.base.parallel_map import worker_pool
if __name__ == "__main__":
    with worker_pool(sys.argv[1], 2) as pool:
        pool.run(abs, [1, 2])
        print("begun", flush=True)
        pool.run(time.sleep, [60, 60])
"""


def _children(parent: int) -> list[int]:
    """Processes that a process began, and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = [parent]
    for one in family:
        family += [child for child, of in parents.items() if of == one]
    return family[1:]


def _is_running(pid: int) -> bool:
    """Whether a process is there; two idle agents of Ray look for their cluster for up to a minute."""
    try:
        name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")[::2]
    except OSError:
        return False
    return state.split()[0] not in "ZX" and name not in ("ray::DashboardA", "ray::RuntimeEnv")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *(("processes", name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")),
        *((cluster, name) for cluster in ("dask", "ray") for name in ("SIGTERM", "SIGKILL")),
    ],
)
def test_signals_leave_no_process(tmp_path: Path, backend: str, name: str) -> None:
    """Whoever reads the pipe sees its end, and all workers are gone soon."""
    if backend != "processes":
        pytest.importorskip({"dask": "distributed", "ray": "ray"}[backend])
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen(
        [sys.executable, str(script), backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    workers = _children(process.pid)
    assert len(workers) >= 2
    process.send_signal(getattr(signal, name))
    assert process.communicate(timeout=60)[0] == b"", "the end of the pipe, and nothing of a cluster's log"
    for _ in range(300):
        if not any(map(_is_running, workers)):
            break
        time.sleep(0.1)
    assert not [worker for worker in workers if _is_running(worker)]


@pytest.mark.slow
def test_what_a_worker_prints_is_not_in_the_result() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_parallel_map as t
print(t.parallel_map(t.speak, ["a", "b"], jobs=2))
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout == "['a', 'b']\n" and {"a", "b"} == set(ran.stderr.replace("\n", ""))


# ------------------------------------------------------------------ clusters


def test_files_travel_with_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in another folder opens what the client opened, under the same name and the same stem."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "My-Model-FP8").mkdir(parents=True)
    there.mkdir()
    (here / "truth.toml").write_text("prefill = 1.5")
    (here / "My-Model-FP8" / "config.json").write_text("{}")
    monkeypatch.chdir(here)
    with files.noted_files() as noted:
        for name in ("truth.toml", "./My-Model-FP8", "llama-3.1-8b"):
            files.user_path(name)
    files.user_path("output.csv")
    packed = files.packed(noted)
    monkeypatch.chdir(there)
    try:
        files.settle(packed)
        assert content("truth.toml") == "prefill = 1.5" and files.user_path("truth.toml").stem == "truth"
        assert files.user_path("./My-Model-FP8").name == "My-Model-FP8"
        assert files.user_path("./My-Model-FP8").is_dir() and "llama-3.1-8b" not in files.settled
        files.settle(files.packed({}))
        assert not files.user_path("truth.toml").exists(), "files of earlier work are forgotten"
    finally:
        files.settled.clear()


def test_a_worker_with_other_code_refuses() -> None:
    passport = cluster_workers.Passport("0000", "3.11", files.packed({}))
    where, error = cluster_workers.run_call((square, 3, passport))
    assert where and isinstance(error, InferometerError) and "install the same versions on both" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_real_cluster(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, errors that name the worker, files of the client, and the work of a dead worker."""
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[backend])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "truth.toml").write_text("prefill = 1.5")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{Path(__file__).parent}")
    import test_parallel_map as here  # by this name, workers can import it

    with worker_pool(backend, 2) as pool:
        assert pool.slots == 2
        assert pool.run(here.square, [1, 2, 3]) == [1, 4, 9]
        with pytest.raises(BadFile, match=r"a worker of .* says: no calibration file 'x'"):
            pool.run(here.refuse, ["x"])
        assert pool.run(here.die_once, [str(tmp_path / "mark")]) == ["done"]
        with files.noted_files() as noted:
            files.user_path("truth.toml")
        pool.carry(noted)
        (tmp_path / "truth.toml").unlink()
        assert pool.run(here.content, ["truth.toml"]) == ["prefill = 1.5"]
        assert not pool.lost
        if backend == "dask":
            address = pool.workers.cluster.scheduler_address  # type: ignore[attr-defined]
            assert address.startswith("tcp://127.0.0.1:"), "no other machine can reach it"
