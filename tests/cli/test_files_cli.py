"""Files, pipes and ends of real processes."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran, refused

Run = Callable[..., Ran]
INFEROMETER = f"{sys.executable} -m inferometer"
REQUESTS = "# requests.csv\nid,arrival_s,input_tokens,output_tokens\n#17,0.0,512,64\n#18,0.4,64,128\n"
DEVICE = "memory = 80e9\nmemory_bandwidth = 3e12\n[flops]\nbf16 = 900e12\n"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = f'set -o pipefail; inferometer() {{ {INFEROMETER} "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_pipes_of_the_page(tmp_path: Path) -> None:
    """Every line of the block in docs/files.md, as it stands there."""
    (tmp_path / "requests.csv").write_text(REQUESTS)
    (tmp_path / "requests.csv.gz").write_bytes(gzip.compress(REQUESTS.encode()))
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    device = re.search(r"```toml\n(# rtx-3080.toml\n.*?)```", contributing, re.S)
    block = re.search(r"```bash\n(.*?)```", (ROOT / "docs" / "files.md").read_text(encoding="utf-8"), re.S)
    assert device and block
    (tmp_path / "rtx-3080.toml").write_text(device[1])
    lines = block[1].splitlines()
    for line in lines:
        ran = shell(line, tmp_path)
        assert ran.returncode == 0 and ran.stdout and not ran.stderr, (line, ran.stderr)
    assert len(lines) == 4


@pytest.mark.slow
@pytest.mark.parametrize("text", ["batch_size = 4", '{"batch_size": 4}'])
def test_flags_come_from_pipes(tmp_path: Path, text: str) -> None:
    ran = shell(f"echo '{text}' | inferometer analyze llama-3.1-8b --config - --json", tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["workload"]["batch_size"] == 4, ran.stderr


@pytest.mark.slow
def test_tables_are_imported_from_pipes(tmp_path: Path) -> None:
    table = "hardware,model,layer_name,input,kv_cache,latency(ns)\nH200,llama-3.1-8b,o_proj,2,0,9000\n"
    (tmp_path / "table.csv").write_text(table)
    ran = shell("cat table.csv | inferometer profile --import - -o out.csv", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "linear,bf16,m=2 n=4096 k=4096,9.0000e-06" in (tmp_path / "out.csv").read_text()


@pytest.mark.slow
def test_results_go_to_where_they_are_sent(tmp_path: Path) -> None:
    tool = "inferometer analyze llama-3.1-8b --json"
    plain = shell(tool, tmp_path).stdout
    assert json.loads(plain)["feasible"]
    ran = shell(f"{tool} -o /dev/stdout", tmp_path)
    assert (ran.stdout, ran.stderr) == (plain, "")
    ran = shell(f"mkfifo fifo; cat fifo > read & {tool} -o fifo; wait", tmp_path)
    assert (tmp_path / "read").read_text() == plain and stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    ran = shell(f"echo old > there; chmod 600 there; ln -s there link; {tool} -o link", tmp_path)
    assert (tmp_path / "there").read_text() == plain and (tmp_path / "link").is_symlink(), ran.stderr
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link", "read", "there"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_ended_leaves_nothing(tmp_path: Path, number: int) -> None:
    axes = ["--batch-size", "1:2600:1", "--input-len", "1:100:1", "-o", "points.csv"]
    command = [sys.executable, "-m", "inferometer", "sweep", "llama-3.1-8b", *axes]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        handles = Path(f"/proc/{running.pid}/fd")
        for _ in range(1000):
            if any(str(tmp_path) in os.readlink(handle) for handle in handles.iterdir() if handle.is_symlink()):
                break
            time.sleep(0.02)
        else:
            pytest.fail("nothing was written")
        running.send_signal(number)
    finally:
        assert running.wait(60) in (-number, 128 + number)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_fifo_that_nothing_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    command = [sys.executable, "-m", "inferometer", "simulate", "llama-3.1-8b", "--trace", "fifo"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stderr.readline() == "inferometer: waiting for data from fifo\n"
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (DEVICE.replace("80e9", '"96GB"'), "`memory` must be a number, not '96GB': without a unit it is 96e9"),
        (DEVICE.replace("80e9", '"80 GiB"'), "`memory` must be a number, not '80 GiB': without a unit it is 8.58993"),
        (DEVICE + 'fp8 = "fast"', "`flops.fp8` must be a number, not 'fast'"),
        (DEVICE + '[links.own]\nbandwidth = 1e9\nlatency = "3us"', "`links.own.latency` must be a number, not '3us'"),
        (DEVICE + "[links.own]\nbandwith = 1e9", "`links.own.bandwith` is not known; did you mean bandwidth?"),
        (DEVICE + "[links.own]\nlatency = 1e-6", "`links.own.bandwidth` is missing; needed: bandwidth"),
        ("memory = 80e9\nflops = 3", "`flops` must be a table, not 3"),
        ("memory = 80e9", "`memory_bandwidth` is missing; needed: memory, memory_bandwidth, flops"),
        ("aliases = ['a', 3]\n" + DEVICE, "`aliases[1]` must be text in quotes, not 3"),
        ("compute_units = 1.5\n" + DEVICE, "`compute_units` must be a whole number, not 1.5"),
    ],
)
def test_device_files_that_do_not_fit(run: Run, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(text)
    refused(run("analyze", "llama-3.1-8b", "--gpu", str(path)), f"hardware chip: {sentence}")


def test_a_device_file_is_found_beside(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mychip.toml").write_text(DEVICE)
    monkeypatch.chdir(tmp_path)
    refused(run("analyze", "llama-3.1-8b", "--gpu", "mychip"), "unknown GPU 'mychip'", "(or its file, ./mychip.toml)")


def test_a_device_without_links_has_none(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "chip.toml"
    path.write_text(DEVICE)
    refused(run("analyze", "llama-3.1-8b", "--gpu", str(path), "-tp", "2"), "has no link", "add [links.NAME]")
    path.write_text(f"{DEVICE}[links.fabric]\nbandwidth = 1e11\n")
    ran = run("analyze", "llama-3.1-8b", "--gpu", str(path), "-tp", "2", "--json")
    assert ran.code == 0 and ran.json["device"]["interconnect"] == "fabric", ran.err


@pytest.mark.parametrize("given", ["-", "/dev/null", "plan.txt"])
def test_what_a_search_writes_into_is_no_folder(given: str) -> None:
    from inferometer.cli.output import Form
    from inferometer.cli.search import names_folder

    assert not names_folder(Form(False, False, given)) and names_folder(Form(False, False, "plan"))
