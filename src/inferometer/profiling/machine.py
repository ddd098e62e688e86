"""The machine at hand: its device, what runs on it, how fast it is clocked; kept beside the rows as JSON.

What a figure is worth depends on these. A file of rows belongs to one device: rows of another are refused. Devices are
recognised by the names that drivers, tables and folders give them.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.errors import BadFile, BadValue, abbreviate
from ..base.files import write_atomic
from ..specs.catalog import registered_name
from ..specs.device_names import recognise as recognise

SCHEMA = "inferometer.kernels/1"
CACHE = 64e6  # bytes of last-level cache where the system does not say: as large as that of any common device
ROTATION = 2.0  # times the last-level cache that rotating buffers exceed
SMI_FIELDS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "max_sm_mhz": "clocks.max.sm",
    "watts": "power.draw",
    "limit_watts": "power.limit",
    "celsius": "temperature.gpu",
}


def device_in_path(parts: Sequence[str]) -> str | None:
    """The device that folders or a file name mention, nearest first: ``device_in_path(Path("a100/mlp.csv").parts)``"""
    for part in reversed(parts[-8:]):
        for word in (part, *part.split("__"), *part.split(".")):
            name = registered_name("hardware", word) or registered_name("hardware", word.partition("_")[0])
            if name:
                return name
    return None


# ------------------------------------------------------------------ the device and its versions


def describe(torch: Any, device: str) -> dict[str, Any]:
    """The device and the versions: ``describe(torch, "cuda")["device"]  # 'NVIDIA H200'``"""
    versions: dict[str, Any] = {"schema": SCHEMA, "torch": torch.__version__, "python": platform.python_version()}
    if device != "cuda":
        return {
            "device": processor(),
            **versions,
            "kind": "cpu",
            "compute_units": os.cpu_count() or 1,
            "memory": _memory(),
            "cache": processor_cache(),
        }
    p = torch.cuda.get_device_properties(0)
    return {
        "device": p.name,
        **versions,
        "kind": "cuda",
        "compute_units": p.multi_processor_count,
        "memory": p.total_memory,
        "cache": getattr(p, "L2_cache_size", 0),
        "devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "vllm": _version("vllm"),
        "uuid": _uuid(p),
        **driver(_uuid(p)),
    }


def rotation(machine: dict[str, Any]) -> float:
    """Bytes that rotating buffers must exceed so that the device's cache keeps none of them."""
    return ROTATION * (machine["cache"] or CACHE)


def optional_library(name: str) -> Any:
    """An optional library, loaded now: ``optional_library("torch").cuda``; ImportError if it is not there or broken.

    A string instead of an import statement: torch takes seconds to load, and type checks must pass without it.
    """
    return importlib.import_module(name)


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # not installed as a package
        return None


def processor() -> str:
    """The name of the CPU: ``processor()  # 'AMD EPYC 9654 96-Core Processor'``"""
    with contextlib.suppress(OSError):
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        if names:
            return str(names[0]).strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=20, env={**os.environ, "LC_ALL": "C"})
        names = re.findall(r"^Model name:\s*(.+)$", ran.stdout, re.M)
        if names:
            return str(names[0]).strip()
    return platform.processor() or platform.machine() or "CPU"


def processor_cache() -> int:
    """Bytes of the CPU's last-level cache, 0 where the system does not say."""
    most = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError):
            match = re.fullmatch(r"(\d+)([KM]?)", path.read_text(encoding="utf-8").strip())
            if match:
                most = max(most, int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]])
    return most


def _memory() -> int:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


# ------------------------------------------------------------------ what nvidia-smi says


def _uuid(properties: Any) -> str:
    word = str(getattr(properties, "uuid", "") or "")
    return f"GPU-{word}" if word else ""


def _smi(fields: list[str], uuid: str) -> list[str]:
    """What nvidia-smi answers, nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run([*command, *(["-i", uuid] if uuid else [])], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    line = ran.stdout.strip().partition("\n")[0]
    cells = [cell.strip() for cell in line.split(",")]
    return cells if ran.returncode == 0 and len(cells) == len(fields) else []


def driver(uuid: str = "") -> dict[str, Any]:
    """The driver's version, None where nvidia-smi does not answer."""
    return {"driver": next(iter(_smi(["driver_version"], uuid)), None)}


def clocks(torch: Any, device: str) -> dict[str, float] | None:
    """Clocks, power and temperature of the GPU now: ``{"sm_mhz": 1980.0, "celsius": 34.0, …}``, None if unknown."""
    if device != "cuda":
        return None
    readings: dict[str, float] = {}
    for name, cell in zip(
        SMI_FIELDS, _smi(list(SMI_FIELDS.values()), _uuid(torch.cuda.get_device_properties(0))), strict=False
    ):
        with contextlib.suppress(ValueError):  # "[N/A]"
            readings[name] = float(cell)
    return readings or None


# ------------------------------------------------------------------ the file beside the rows


class MachineRecord:
    """The JSON file beside a profile: which machine, and each run that added rows.

    ``MachineRecord(Path("kernels.csv"), describe(torch, "cuda"))`` refuses a profile of another device.
    """

    def __init__(self, rows: Path, machine: dict[str, Any]) -> None:
        self.path = rows.with_suffix(".json")
        if self.path == rows:
            raise BadValue(f"-o {rows.name} must not end in .json: a .json file beside the rows describes the machine")
        before = _read(self.path)
        here, recorded = machine["device"], before.get("device")
        if before and recorded is None:
            raise BadFile(f"{self.path} exists and does not name its machine; give another name with -o")
        if before and recorded != here and (recognise(str(recorded)) or recorded) != (recognise(here) or here):
            raise BadFile(
                f"{rows} has rows of {abbreviate(recorded)}, but this is {abbreviate(here)}; give another name with -o"
            )
        self.before, self.machine = before, machine

    def write(self, run: dict[str, Any]) -> None:
        """Add a run, and say what the machine is now; what other tools noted there stays."""
        runs = self.before.get("runs")
        data = {**self.before, **self.machine, "runs": [*(runs if isinstance(runs, list) else []), run]}
        write_atomic(self.path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict):
        raise BadFile(f"{path} exists and does not describe a machine; give another name with -o")
    return data


def now() -> str:
    """The time as text: ``now()  # '2026-11-16T07:00:00+00:00'``"""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
