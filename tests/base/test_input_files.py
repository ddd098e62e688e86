"""What is read: files, pipes, archives, and what never ends; a wrong one is a sentence, soon and in little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.base import input_file, json_list, tabular
from inferometer.base.errors import BadFile
from inferometer.base.files import read_json, read_toml
from inferometer.base.input_file import descriptor, file_stem, is_piped
from inferometer.base.tabular import open_table
from inferometer.costs.kernels.measured import read_rows

CSV = b"id,input_tokens\n#17,5\n#18,6\n"


def zstd(data: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    out = arrow.BufferOutputStream()
    with arrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return bytes(out.getvalue().to_pybytes())


PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def rows(path: Path) -> list[tuple[Any, ...]]:
    with open_table(path) as table:
        return [row for chunk in table.chunks(table.names) for row in zip(*chunk.columns.values(), strict=True)]


@pytest.mark.parametrize("packing", PACKERS)
def test_archives_are_told_by_their_first_bytes(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "no_ending"
    path.write_bytes(PACKERS[packing](CSV))
    assert rows(path) == [("#17", "5"), ("#18", "6")]
    path.write_bytes(PACKERS[packing](b"memory = 8e9\n"))
    assert read_toml(path) == {"memory": 8e9}
    path.write_bytes(PACKERS[packing](CSV * 1000)[:-20])
    with pytest.raises(BadFile, match="cannot be read: it is broken"):
        rows(path)


def test_zstd_without_a_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv.zst"
    path.write_bytes(zstd(CSV))
    for name in ("compression.zstd", "zstandard", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadFile, match=r"pip install 'inferometer\[parquet\]', or give it as a pipe, <\(zstdcat x"):
        rows(path)


def test_comments_are_above_the_header_or_have_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('# x.csv\n#made by hand, in 2026\nid,tokens\n#17,5\n# a pause\n#18,6\n"# Title",7\n')
    assert rows(path) == [("#17", "5"), ("#18", "6"), ("# Title", "7")]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("memory = 8".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
        (b"memory = 8\0", "is a binary file, not text: it has NUL bytes"),
        (b"a = 1\nb = '\xff'", "line 2: not UTF-8 text"),
        (b"PK\x03\x04....", "is a zip archive"),
        (b"x = 1\n" * (2**24 // 6 + 1), "has more than 16,777,216 bytes"),
        (gzip.compress(bytes(2**25)), "is a binary file"),
    ],
)
@pytest.mark.parametrize("read", [read_toml, read_json, read_rows])
def test_what_is_not_text_is_one_sentence(tmp_path: Path, read: Any, data: bytes, sentence: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(BadFile) as error:
        read(path)
    if read is not read_rows or data[:1] not in b"ax":  # text that is no table is refused for its columns
        assert sentence in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("read", [read_toml, read_json, read_rows, rows])
def test_folders_are_one_sentence(tmp_path: Path, read: Any) -> None:
    with pytest.raises(BadFile, match="cannot be read: it is a folder"):
        read(tmp_path)


def test_marks_and_line_ends_of_other_systems(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
    assert read_toml(path) == {"a": 1, "b": 2}
    path.write_bytes(b'\xef\xbb\xbf\r\n[{"a": 1},\r\n {"a": 2}]\r\n')
    assert rows(path) == [(1,), (2,)]
    path.write_bytes(b"a,b\r1,2\r3,4\r")  # of a Mac, long ago
    assert rows(path) == [("1", "2"), ("3", "4")]


# ------------------------------------------------------------------ pipes


def test_paths_of_open_files(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/stdout")
    (tmp_path / "plain").write_text("")
    given = ["/dev/stdin", "/dev/fd/63", f"/proc/{os.getpid()}/fd/5", "/proc/1/fd/5", link, tmp_path / "plain", "none"]
    assert [descriptor(path) for path in given] == [0, 63, 5, None, 1, None, None]
    assert [is_piped(name) for name in ("-", "/dev/stdin", "llama-3.1-8b")] == [True, True, False]
    assert [file_stem(Path(p)) for p in ("/dev/stdin", "/dev/fd/9", "a/b.toml", "b.toml.gz")] == [
        *("stdin", "pipe", "b", "b")
    ]


def test_a_pipe_is_read_once_and_known_afterwards() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"memory = 8e9\n")
    os.close(theirs)
    path = Path(f"/dev/fd/{ours}")
    assert read_toml(path) == read_toml(path) == {"memory": 8e9}
    os.close(ours)


@pytest.mark.slow
def test_parquet_comes_through_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, fifo = tmp_path / "x.parquet", tmp_path / "fifo"
    parquet.write_table(arrow.table({"a": list(range(40_000))}), path)
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(path.read_bytes(),))
    writer.start()
    piped = rows(fifo)
    writer.join()
    assert piped == rows(path) and len(piped) == 40_000
    monkeypatch.setattr(tabular, "MAX_PARQUET", 10_000)
    writer = threading.Thread(target=fifo.write_bytes, args=(path.read_bytes()[:20_000],))
    writer.start()
    with pytest.raises(BadFile, match="has more than 10,000 bytes: give it as a file rather than as a pipe"):
        rows(fifo)
    writer.join()
    with open_table(path) as table:
        lines = [line for chunk in table.chunks(["a"]) for line in chunk.lines]
    assert lines == list(range(1, 40_001))


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    writer = threading.Timer(0.05, lambda: (os.write(theirs, CSV), os.close(theirs)))
    writer.start()
    assert rows(Path(f"/dev/fd/{ours}")) == [("#17", "5"), ("#18", "6")]
    writer.join()
    os.close(ours)


@pytest.mark.slow
def test_parquet_with_a_byte_changed_is_one_sentence(tmp_path: Path) -> None:
    """pyarrow has errors of every kind, some of them no ValueError."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"a": [1, 2, 3]}), path)
    data = path.read_bytes()
    refused = 0
    for at in range(4, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            rows(path)
        except BadFile as error:
            refused += "cannot be read as Parquet: " in str(error)
    assert refused > 50


def test_what_is_waited_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO without a writer is waited for, as by other tools, but not in silence."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setattr(input_file, "PATIENCE", 0.01)
    said = threading.Event()
    monkeypatch.setattr(input_file, "print", lambda *a, **k: (print(*a, **k), said.set()), raising=False)
    writer = threading.Thread(target=lambda: (said.wait(10), fifo.write_bytes(CSV)))
    writer.start()
    assert len(rows(fifo)) == 2
    writer.join()
    assert capsys.readouterr().err == f"inferometer: waiting for data from {fifo}\n"


# ------------------------------------------------------------------ without an end

MEASURED = r"""
import re, sys
from pathlib import Path
from inferometer.base.errors import BadFile
from inferometer.base.files import read_toml
from inferometer.base.tabular import open_table
def table(path):
    with open_table(path) as opened:
        for chunk in opened.chunks(opened.names): pass
for read in (table,) if sys.argv[1] == "/dev/stdin" else (read_toml, table):
    try:
        read(Path(sys.argv[1]))
    except BadFile as error:
        print(error)
print(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])
"""


def refusal(path: str, feed: str = "") -> tuple[list[str], int]:
    """The sentences about a file that a process gets, and the kB that it took."""
    command = f"{feed} exec {sys.executable} -c '{MEASURED}' {path}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
    *sentences, size = ran.stdout.splitlines()
    return sentences, int(size)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_devices_without_an_end(path: str) -> None:
    sentences, size = refusal(path)
    assert sentences == [f"{path} is a binary file, not text: it has NUL bytes"] * 2
    assert size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "sentence"),
    [
        ("yes | tr -d '\\n'", "line 1: more than 16,777,216 characters"),
        ("(echo a,b; yes \"$(head -c 100000 /dev/zero | tr '\\0' x)\")", "line 2: 1 cell where the header has 2"),
        (
            "(printf '{\"a\": \"'; yes | tr -d '\\n')",
            "has a JSON object of more than 268,435,456 bytes, or is not JSON",
        ),
        ("(printf '[{\"a\": \"'; yes | tr -d '\\n')", "item 1: more than 67,108,864 characters, or not JSON"),
        ("(printf '[{\"a\": 1'; yes)", "item 1: not JSON (Expecting ',' delimiter)"),
    ],
)
def test_pipes_without_an_end(feed: str, sentence: str) -> None:
    sentences, size = refusal("/dev/stdin", f"{feed} |")
    assert sentence in sentences[-1]
    assert size < 500_000


# ------------------------------------------------------------------ JSON

json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.lists(json_values, max_size=5), st.booleans(), st.integers(1, 9))
@settings(deadline=None, max_examples=80)
def test_lists_are_read_in_pieces_of_any_size(items: list[Any], indented: bool, block: int) -> None:
    text = json.dumps(items, ensure_ascii=False, indent=2 if indented else None).encode(errors="surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # half a surrogate pair is no text
    stream = io.BytesIO(text)
    assert [item for _, item in json_list.list_items(lambda _: stream.read(block), "x")] == items


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"a": 1} {"a": 2}]', "'{' where ',' is expected"),
        ('[{"a": 1}, {"a": ', "item 2: not JSON (Expecting value)"),
        ('[{"a": 1}, {"a": "x', "item 2: not JSON (it is cut off)"),
        ('[{"a": 1}', "it is cut off"),
        ('[{"a": 1}] {', "something follows its list"),
        ("[1, 2]", "item 1: 1 is not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('[{"a": ' + "9" * 5000 + "}]", "item 1: not JSON (Exceeds the limit"),
    ],
)
def test_broken_lists_are_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadFile) as error:
        rows(path)
    assert sentence in str(error.value) and len(str(error.value)) < 400
