"""Sweeps as folders: the same rows as one table, resumed after any end, in shards and on workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inferometer import sweep
from inferometer.base.errors import BadFile, BadValue
from inferometer.base.files import write_atomic
from inferometer.sweep import partitions, points
from inferometer.sweep.grid import Grid
from inferometer.sweep.partitions import Tally, sweep_to_folder

pytest.importorskip("pyarrow", reason="parts are Parquet files")
AXES: dict[str, Any] = {"batch_size": "1:40:1", "input_len": "100:2000:100", "tensor_parallel_size": [1, 2]}
SOURCE = str(Path(points.__file__).parents[2])
_compute_part = partitions._compute_part


def small_parts(patch: pytest.MonkeyPatch) -> None:
    """1,600 points in parts of at most 300: 800 of each case in boxes of 100."""
    patch.setattr(points, "CHUNK_POINTS", 100)
    patch.setattr(points.parts, "__defaults__", (300,))
    patch.setattr(points.part_chunks, "__defaults__", (None, 100))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)


def compute_in_small_chunks(work: Any) -> Any:
    """A part on a worker, which knows nothing of what was patched here."""
    small_parts(pytest.MonkeyPatch())
    return _compute_part(work)


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows, as one line of pyarrow reads them."""
    from pyarrow import dataset

    table: list[dict[str, Any]] = dataset.dataset(str(folder)).to_table().to_pylist()
    return table


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".parquet")


@pytest.mark.slow
def test_parts_are_the_table(tmp_path: Path) -> None:
    tally = sweep_to_folder(tmp_path / "points", "llama-3.1-8b", "h200", **AXES)
    whole = list(sweep("llama-3.1-8b", "h200", **AXES).rows())
    assert rows(tmp_path / "points") == whole
    assert tally.points == 1600 and tally.feasible == sum(row["feasible"] for row in whole)
    assert names(tmp_path / "points") == [f"part-{n:05}.parquet" for n in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 99, 100, 250, 799, 800, 1600, 10**6])
def test_parts_cover_every_row_once(most: int) -> None:
    grid = Grid("llama-3.1-8b", "h200", **AXES)
    some = list(points.parts(grid, most))
    assert [part.number for part in some] == list(range(len(some)))
    starts = [part.start for part in some]
    assert starts == [sum(part.points for part in some[:n]) for n in range(len(some))]
    assert sum(part.points for part in some) == grid.points
    seen = [(chunk.start, len(chunk)) for chunk in points.part_chunks(grid, some)]
    assert [start for start, _ in seen] == [sum(size for _, size in seen[:n]) for n in range(len(seen))]


@pytest.mark.slow
def test_resume_does_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "points"
    first = sweep_to_folder(folder, "llama-3.1-8b", "h200", **AXES)
    before, kept = rows(folder), (folder / "part-00002.parquet").stat().st_mtime_ns
    (folder / "part-00001.parquet").unlink()
    (folder / "part-00004.parquet").write_bytes(b"cut off")
    with pytest.raises(BadValue, match="already has parts of this sweep: use resume"):
        sweep_to_folder(folder, "llama-3.1-8b", "h200", **AXES)
    again = sweep_to_folder(folder, "llama-3.1-8b", "h200", resume=True, **AXES)
    assert rows(folder) == before and again == first
    assert (folder / "part-00002.parquet").stat().st_mtime_ns == kept


@pytest.mark.slow
def test_another_sweep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "points"
    sweep_to_folder(folder, "llama-3.1-8b", "h200", shard="1/3", **AXES)
    with pytest.raises(BadFile, match="has a sweep with other axes"):
        sweep_to_folder(folder, "llama-3.1-8b", "h100-sxm", resume=True, **AXES)
    with monkeypatch.context() as other:
        other.setattr(partitions, "package_digest", lambda: "0000")
        with pytest.raises(BadFile, match="another version of inferometer"):
            sweep_to_folder(folder, "llama-3.1-8b", "h200", resume=True, **AXES)
    write_atomic(tmp_path / "other" / "notes.txt", "mine")
    with pytest.raises(BadFile, match="files that do not belong to a sweep"):
        sweep_to_folder(tmp_path / "other", "llama-3.1-8b", "h200", **AXES)


@pytest.mark.slow
def test_a_changed_calibration_is_another_sweep(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("prefill = 1.2\n")
    axes = {**AXES, "calibration": str(file)}
    sweep_to_folder(tmp_path / "points", "llama-3.1-8b", "h200", shard="1/3", **axes)
    file.write_text("prefill = 1.3\n")
    with pytest.raises(BadFile, match="another version of inferometer, or of a file"):
        sweep_to_folder(tmp_path / "points", "llama-3.1-8b", "h200", resume=True, **axes)


@pytest.mark.slow
def test_shards_make_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "points"
    tallies = [sweep_to_folder(folder, "llama-3.1-8b", "h200", shard=f"{n}/4", **AXES) for n in (2, 4, 1, 3)]
    assert sum(tally.points for tally in tallies) == 1600 and len(names(folder)) == 6
    sweep_to_folder(tmp_path / "one", "llama-3.1-8b", "h200", **AXES)
    assert rows(folder) == rows(tmp_path / "one")
    for wrong in ("0/4", "5/4", "1", "a/b", "1/0", ""):
        with pytest.raises(BadValue, match="shard must be a part and the number of parts, such as 1/4"):
            sweep_to_folder(folder, "llama-3.1-8b", "h200", shard=wrong, **AXES)


@pytest.mark.parametrize("flags", [["--resume"], ["--shard", "1/2"], ["--jobs", "2"], ["--backend", "dask"]])
def test_flags_of_a_folder_need_one(run: Any, tmp_path: Path, flags: list[str]) -> None:
    for output in ([], ["-o", str(tmp_path / "points.csv")]):
        ran = run("sweep", "llama-3.1-8b", "--batch-size", "1,2", *flags, *output)
        assert ran.code == 2 and f"{flags[0]} needs a folder for the results: -o DIR/" in ran.err


_LARGE = {"batch_size": "1:164:1", "input_len": "16:16000:16", "output_len": "64:128:64"}  # a whole part and a quarter
_PARTS_OF_A_CHUNK = """
from inferometer.sweep import points
points.parts.__defaults__ = (points.CHUNK_POINTS,)
from inferometer.cli import main
main()
"""


@pytest.mark.slow
def test_kill_9_and_resume(tmp_path: Path) -> None:
    """What was written stays, no process and no other file is left, and the rest is done afterwards."""
    folder = tmp_path / "points"
    flags = [text for name, value in _LARGE.items() for text in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-c", _PARTS_OF_A_CHUNK, "sweep", "llama-3.1-8b", "--gpu", "h200", *flags, "--jobs", "2"]
    command += ["-o", f"{folder}/"]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(folder.glob("part-*.parquet")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)  # which ends when no worker holds the pipes
    done = names(folder)
    assert 1 <= len(done) <= 2 and all(len(name) == len("part-00000.parquet") for name in done)
    ran = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and "328,000 points" in ran.stderr and not ran.stdout
    import pyarrow.parquet as parquet

    counts = [parquet.read_metadata(folder / name).num_rows for name in names(folder)]
    assert sum(counts) == 328_000 and len(counts) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["_manifest.json", *names(folder)]


@pytest.fixture(scope="module")
def one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tally]:
    folder = tmp_path_factory.mktemp("sweep") / "points"
    with pytest.MonkeyPatch.context() as patch:
        small_parts(patch)
        return folder, sweep_to_folder(folder, "llama-3.1-8b", "h200", **AXES)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["processes", "dask", "ray"])
def test_workers_write_the_same_files(
    tmp_path: Path, backend: str, one_after_the_other: tuple[Path, Tally], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend != "processes":
        pytest.importorskip({"dask": "distributed", "ray": "ray"}[backend])
    monkeypatch.setattr(partitions, "_compute_part", compute_in_small_chunks)
    here, tally = one_after_the_other
    there = sweep_to_folder(tmp_path, "llama-3.1-8b", "h200", backend=backend, jobs=2, **AXES)
    assert there == tally and names(tmp_path) == names(here) and len(names(here)) == 6
    for name in names(here):
        assert (here / name).read_bytes() == (tmp_path / name).read_bytes()
