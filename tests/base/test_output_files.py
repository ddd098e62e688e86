"""Results as files: all of one or nothing, through links and pipes, whatever ends the process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inferometer.base.errors import BadFile
from inferometer.base.files import atomic_writer, output_path, write_all, write_atomic

NAMED = "import os; del os.O_TMPFILE\n"  # as on systems whose files have names from the beginning
WRITING = """
import sys, time
from pathlib import Path
from inferometer.base.files import atomic_writer
with atomic_writer(Path(sys.argv[1])) as file:
    for _ in range(64):
        file.write(b"x" * 2**16)
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def process(script: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_fifo_is_written_to_and_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write_atomic(fifo, "a result")
    reader.join()
    assert read == ["a result"] and stat.S_ISFIFO(fifo.stat().st_mode) and os.listdir(tmp_path) == ["fifo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_stays_one(tmp_path: Path) -> None:
    node = tmp_path / "null"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    write_atomic(node, "lost")
    assert stat.S_ISCHR(node.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-", "link"])
def test_standard_output_is_written_to_in_order(tmp_path: Path, name: str) -> None:
    """Into the file that it is, after what is there: neither is replaced."""
    if name == "link":
        (tmp_path / name).symlink_to("/proc/self/fd/1")
        name = str(tmp_path / name)
    script = """
import sys
from inferometer.base.files import output_path, write_atomic
print("before")
write_atomic(output_path(sys.argv[1]), "data\\n")
print("after")
"""
    log = tmp_path / "log"
    log.write_text("old\n")
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", script, name], stdout=file, check=True)
    assert log.read_text() == "old\nbefore\ndata\nafter\n"
    assert set(os.listdir(tmp_path)) <= {"log", "link"}


def test_links_stay_and_modes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link, dangling = tmp_path / "elsewhere" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("elsewhere/target")
    dangling.symlink_to("elsewhere/new")
    before = target.stat().st_ino
    write_atomic(output_path(link), "new")
    write_atomic(output_path(dangling), "made")
    assert link.is_symlink() and dangling.is_symlink()
    assert target.read_text() == "new" and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_ino != before, "it was replaced, not written over"
    assert (tmp_path / "elsewhere" / "new").read_text() == "made"
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["new", "target"]


def test_new_files_have_the_mode_that_is_usual_here(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_all({tmp_path / "plain": "x", tmp_path / "run.sh": "#!/bin/sh"})
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "run.sh")] == [0o640, 0o750]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_is_protected_is_not_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    kept.chmod(0o444)
    with pytest.raises(BadFile, match="kept cannot be written: Permission denied"):
        write_atomic(kept, "new")


def test_several_files_are_all_there_or_none(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadFile, match="folder"):
        write_all({tmp_path / "a": "x", tmp_path / "b" / "c": "y", tmp_path / "folder": "z"})
    assert not (tmp_path / "a").exists() and os.listdir(tmp_path / "b") == []


@pytest.mark.parametrize("named", [False, True])
def test_an_error_while_writing_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "x"
    for _ in range(2):
        write_atomic(path, "old")
        with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
            file.write(b"new")
            raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("named", "number"),
    [
        *((False, number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)),
        *((True, number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_an_end_while_writing_leaves_nothing(tmp_path: Path, named: bool, number: int) -> None:
    path = tmp_path / "points.csv"
    path.write_text("old")
    running = process((NAMED if named else "") + WRITING, path)
    assert running.stdout is not None and running.stdout.readline() == "writing\n", running.communicate()
    running.send_signal(number)
    running.communicate()
    assert running.returncode in (-number, 1, 130)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["points.csv"]


def test_a_reader_that_goes_away_is_no_fault_of_the_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    with pytest.raises(BrokenPipeError), atomic_writer(fifo) as file:
        reader.join()
        file.write(b"x" * 2**20)
        file.flush()


def test_a_full_disk_is_a_sentence() -> None:
    with pytest.raises(BadFile, match="/dev/full cannot be written: No space left on device"):
        write_atomic(Path("/dev/full"), "x" * 2**17)
