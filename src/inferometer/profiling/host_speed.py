"""How fast this machine's host launches kernels and runs Python: the two figures of a host file, in seconds."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.errors import BadValue
from ..base.files import user_path, write_atomic
from ..specs.arguments import flag

REFERENCE_LOOP = 0.032  # s of `_python_loop` on the machines of data/hosts/h200-vm.toml, whose Python is the reference
_LAUNCHES, _REPEATS = 2000, 10


def profile_host(output: str, device: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure this host and write its file: ``profile_host("host.toml", "cuda", print)["launch"]``"""
    launch, where = _launch_seconds(device)
    loop = min(_python_loop() for _ in range(_REPEATS))
    slowdown = loop / REFERENCE_LOOP
    path = user_path(output)
    measured = f"measured {datetime.date.today():%Y-%m-%d}, {_processor()}"
    source = f"{measured}: an in-place add of 16 numbers on {where}, {_LAUNCHES:,} in a row, the least of {_REPEATS}"
    text = (
        f'label = "{platform.node() or "this machine"}, {_processor()}"\n'
        f"launch = {launch:.3g}\n"
        f"slowdown = {slowdown:.3g}\n\n"
        "[source]\n"
        f'launch = "{source}"\n'
        f'slowdown = "{measured}: a loop over a dictionary took {loop * 1e3:.1f} ms, {REFERENCE_LOOP * 1e3:.1f} on the '
        f'reference"\n'
    )
    write_atomic(Path(path), text)
    say(f"{launch * 1e6:.2f} µs to launch a kernel on {where}, Python {slowdown:.2f} × the reference's time")
    say(f"{path} written: give it with {flag('host_profile')}")
    return {"launch": launch, "slowdown": slowdown, "device": where, "output": str(path)}


def _launch_seconds(device: str) -> tuple[float, str]:
    """Seconds to launch one small kernel from PyTorch, and the name of the device."""
    try:
        import torch
    except ImportError:
        raise BadValue("profile needs PyTorch on this machine: pip install 'inferometer[profile]'") from None
    if device not in ("cuda", "cpu"):
        raise BadValue(f"`device` must be cuda or cpu, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("PyTorch sees no GPU here; `device` cpu measures what the processor takes to start an operation")
    numbers = torch.zeros(16, device=device)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    samples = []
    for _ in range(_REPEATS + 1):  # the first warms up
        wait()
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            numbers.add_(1)
        samples.append((time.perf_counter() - began) / _LAUNCHES)
    wait()
    return min(samples[1:]), torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _python_loop() -> float:
    """Seconds of a fixed piece of plain Python, which schedulers and launchers are made of."""
    began = time.thread_time()  # other processes may share the processor
    counts: dict[int, int] = {}
    for number in range(300_000):
        counts[number & 1023] = counts.get(number & 511, 0) + number
    return time.thread_time() - began


def _processor() -> str:
    """The processor's name without what would end a TOML string."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return name.replace('"', "'").replace("\\", "/")
