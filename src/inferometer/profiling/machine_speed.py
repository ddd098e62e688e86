"""``profile --quick`` and ``--launches``: how fast this machine is, beside what predictions take it for.

Two machines with the same GPU differ: in memory and clocks by some per cent, in launches and Python by a quarter. A
minute of measuring gives a file that corrects predictions for one of them. Each figure is measured on its own, so that
one that cannot be measured is one that is missing.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue
from ..base.extras import load_library
from ..base.files import user_path, write_atomic
from ..base.symbols import scalar
from ..costs.kernels import Formats, rounding, sources
from ..costs.kernels.kernel_rows import row_terms
from ..network.operators import linear
from ..specs import catalog
from ..specs.arguments import flag
from ..specs.device_names import is_same
from ..specs.hosts import REFERENCE, host
from ..specs.structs import Figure, Hardware, Host, HostedEngine
from . import machine
from .engine_steps import STEPS, engine_steps, hosted_seconds
from .microbenchmarks import CASES, KernelBench, Library, reason
from .roofline_limits import catalogue_device
from .timer import median_seconds

_REFERENCE_LOOP = 0.032  # s of `_python_loop` there
_LAUNCHES, _REPEATS = 2000, 10
_SUSTAINED = 3.0  # s of products; the clocks have fallen after one
_SETTLED = 1.0
_SHARED = 1.3  # times as long in one round as in another: others use the same cores
_PAUSE = 0.3  # s without work after which clocks are up again

Log = Callable[[str], None]
Products = tuple[tuple[int, int, int], ...]  # outputs, inputs, how often

# The products of a step of Llama-3.1-8B: what decode reads, and what prompts multiply by.
_LAYER: Products = ((6144, 4096, 32), (4096, 4096, 32), (28672, 4096, 32), (4096, 14336, 32))
_STEP: Products = (*_LAYER, (128256, 4096, 1))
_SMALL: Products = ((1024, 1024, 1), (4096, 1024, 1))  # for processors, in fp32: few of them have units for less


class Quantity(NamedTuple):
    """What is measured: its label in the table, its unit, and how the unit is shown."""

    label: str
    unit: str
    shown: str
    scale: float


QUANTITIES = {
    "matrix_vector": Quantity("memory, weights of a decode step", "B/s", "TB/s", 1e-12),
    "copy": Quantity("memory, a copy of 2 GiB", "B/s", "TB/s", 1e-12),
    "product_burst": Quantity("matrix products, milliseconds", "FLOP/s", "TFLOP/s", 1e-12),
    "product_sustained": Quantity("matrix products, seconds", "FLOP/s", "TFLOP/s", 1e-12),
    "product_fp8": Quantity("fp8 products, milliseconds", "FLOP/s", "TFLOP/s", 1e-12),
    "clock_sustained": Quantity("SM clock under load", "Hz", "MHz", 1e-6),
    "power_sustained": Quantity("power under load", "W", "W", 1.0),
    "launch": Quantity("launch from PyTorch", "s", "µs", 1e6),
    "triton_launch": Quantity("launch of a Triton kernel", "s", "µs", 1e6),
    "graph_node": Quantity("kernel in a CUDA graph", "s", "µs", 1e6),
    "synchronize": Quantity("launch and wait", "s", "µs", 1e6),
    "python_loop": Quantity("loop of plain Python", "s", "ms", 1e3),
    "host_to_device": Quantity("copy from pinned host memory", "B/s", "GB/s", 1e-9),
    "decode_1": Quantity("vLLM decode step, 1 sequence", "s", "ms", 1e3),
    "decode_8": Quantity("vLLM decode step, 8 sequences", "s", "ms", 1e3),
    "decode_64": Quantity("vLLM decode step, 64 sequences", "s", "ms", 1e3),
    "prompt_64": Quantity("vLLM step of 64 tokens, in graphs", "s", "ms", 1e3),
    "prompt_600": Quantity("vLLM step of 600 tokens, no graphs", "s", "ms", 1e3),
    "first_token_64": Quantity("vLLM first token of 64", "s", "ms", 1e3),
    "decode_1_experts": Quantity("decode step with experts", "s", "ms", 1e3),
    "prompt_600_experts": Quantity("600 tokens, with experts", "s", "ms", 1e3),
    "decode_1_recurrent": Quantity("decode step with Mamba-2 layers", "s", "ms", 1e3),
    "prompt_64_recurrent": Quantity("64 tokens, with Mamba-2 layers", "s", "ms", 1e3),
    "prompt_64_beside_recurrent": Quantity("the same beside a decoding sequence", "s", "ms", 1e3),
    "round_spread": Quantity("slowest over fastest round of launches", "1", "×", 1.0),
}


def profile_host(output: str, device: str, say: Log) -> dict[str, Any]:
    """Measure the host alone and write its file: ``profile_host("host.toml", "cuda", print)["launch"]``"""
    torch = _torch(device)
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    launch, loop = _launch_seconds(torch, device), _python_seconds()
    path = user_path(output)
    write_atomic(path, _text(_measured_host(launch, loop, where)))
    slowdown = loop / _REFERENCE_LOOP
    say(f"{launch * 1e6:.2f} µs to launch a kernel on {where}, Python {slowdown:.2f} × the reference's time")
    say(f"{path} written: give it with {flag('host_profile')}")
    return {"launch": launch, "slowdown": slowdown, "device": where, "output": str(path)}


def profile_quick(output: str, device: str, say: Log) -> dict[str, Any]:
    """Measure this machine in some minutes and write its file: ``profile_quick("machine.toml", "cuda", print)``"""
    began, torch = time.monotonic(), _torch(device)
    about = machine.describe(torch, device)
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "cuda", "vllm") if about.get(name))
    say(f"{about['device']}: {versions}")
    values, missing = _measured_values(torch, device, about, say)
    if device == "cuda":
        steps, why = engine_steps(say)
        values, missing = values | steps, missing | why
    if "launch" not in values or "python_loop" not in values:
        raise BadValue(f"launches and Python were not timed, so no file was written: {', '.join(missing.values())}")
    known = catalogue_device(str(about["device"]), float(about["memory"]))
    try:
        references = _references(known)
    except Exception as error:  # what was measured is worth more than what it is compared with
        references = {}
        say(f"references: not known ({reason(error)})")
    figures = {
        name: Figure(value=value, unit=QUANTITIES[name].unit, reference=references.get(name))
        for name, value in values.items()
    }
    measured = msgspec.structs.replace(
        _measured_host(values["launch"], values["python_loop"], about["device"]),
        device=about["device"],
        machine=_about(about),
        figures=figures,
        engines=_seen_engines(values),
    )
    path = user_path(output)
    write_atomic(path, _text(measured))
    for line in table(figures):
        say(line)
    if values.get("round_spread", 1.0) > _SHARED:
        say(
            f"this host has two speeds: launches took up to {values['round_spread']:.1f} times as long in one round as "
            f"in another, as where cores are shared with other machines. Predictions take the mean"
        )
    use = (
        f"give it with {flag('profile')}"
        if known
        else f"the catalogue has no such device: {flag('host_profile')} takes it"
    )
    say(f"{path} written in {time.monotonic() - began:.0f} s: {use}")
    return {
        "device": about["device"],
        "figures": msgspec.to_builtins(figures),
        "missing": missing,
        "seconds": time.monotonic() - began,
        "output": str(path),
    }


def _torch(device: str) -> Any:
    """PyTorch, if it is here and sees the device."""
    torch = load_library("torch", "profile")
    if device not in ("cuda", "cpu"):
        raise BadValue(f"`device` must be cuda or cpu, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("PyTorch sees no GPU here; `device` cpu measures how long the CPU takes to start an operation")
    return torch


# ------------------------------------------------------------------ measuring


def _measured_values(
    torch: Any, device: str, about: Mapping[str, Any], say: Log
) -> tuple[dict[str, float], dict[str, str]]:
    """Every figure that can be measured here, and why the others cannot; an idle device first, a hot one last."""
    bench = KernelBench(torch, device, Library(""), machine.rotation(dict(about)))
    spells: dict[str, Callable[[], float]] = {
        "launch": partial(_launch_seconds, torch, device),
        "python_loop": _python_seconds,
    }
    jobs: dict[str, Callable[[], float]] = {
        "matrix_vector": partial(_matrix_vector, bench),
        "product_burst": partial(_product_burst, bench),
    }
    if device == "cuda":
        jobs |= {
            "triton_launch": partial(_triton_launch, torch),
            "graph_node": partial(_graph_node, torch),
            "synchronize": partial(_synchronize, torch),
            "host_to_device": partial(_host_to_device, torch),
            "copy": partial(_copy, bench),
            "product_fp8": partial(_product_fp8, bench),
        }
    values, missing = dict[str, float](), dict[str, str]()
    seen: dict[str, list[float]] = {name: [] for name in spells}
    for name, job in jobs.items():
        for spell, time_it in spells.items():  # between all others: a neighbour may come or go
            try:
                seen[spell].append(time_it())
            except Exception as error:
                missing[spell] = reason(error)
        try:
            values[name] = job()
        except Exception as error:  # one figure less
            missing[name] = reason(error)
            say(f"{QUANTITIES[name].label}: not measured ({missing[name]})")
        bench.buffers.clear()
    values = {name: statistics.median(each) for name, each in seen.items() if each} | values
    if device == "cuda":
        try:
            values |= _sustained(bench)
        except Exception as error:
            missing["product_sustained"] = reason(error)
            say(f"{QUANTITIES['product_sustained'].label}: not measured ({reason(error)})")
        bench.close()
        torch.cuda.empty_cache()  # the engine needs room
    return values, missing


def _launch_seconds(torch: Any, device: str) -> float:
    """Seconds to launch one small kernel from PyTorch."""
    numbers = torch.zeros(16, device=device)
    return _per_launch(torch, device, lambda: numbers.add_(1))


def _per_launch(torch: Any, device: str, call: Callable[[], object]) -> float:
    """Seconds of the host for one of many calls in a row, the least of some repeats."""
    samples = []
    for _ in range(_REPEATS + 1):  # the first warms up
        _wait(torch, device)
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            call()
        samples.append((time.perf_counter() - began) / _LAUNCHES)
    _wait(torch, device)
    return min(samples[1:])


def _wait(torch: Any, device: str = "cuda") -> None:
    if device == "cuda":
        torch.cuda.synchronize()


_TRITON_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add_one(numbers, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(numbers + at, tl.load(numbers + at) + 1)
"""


def _triton_launch(torch: Any) -> float:
    """Seconds to launch a kernel by Triton, whose launcher is Python."""
    with tempfile.TemporaryDirectory() as folder:  # Triton reads the source of a kernel from its file
        path = Path(folder) / "inferometer_triton_kernel.py"
        path.write_text(_TRITON_KERNEL, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        numbers = torch.zeros(16, device="cuda")
        return _per_launch(torch, "cuda", lambda: module.add_one[(1,)](numbers, SIZE=16))


def _graph_node(torch: Any) -> float:
    """Seconds of the smallest kernel inside a CUDA graph."""
    numbers = torch.zeros(16, device="cuda")
    return median_seconds(torch, [partial(numbers.add_, 1)] * 100)


def _synchronize(torch: Any) -> float:
    """Seconds to launch one kernel and to learn that it has run."""
    numbers, samples = torch.zeros(16, device="cuda"), []
    for _ in range(200):
        torch.cuda.synchronize()
        began = time.perf_counter()
        numbers.add_(1)
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def _host_to_device(torch: Any) -> float:
    """Bytes/s from pinned memory of the host."""
    size = 1 << 28
    source, target = (
        torch.empty(size, dtype=torch.int8, **where) for where in ({"pin_memory": True}, {"device": "cuda"})
    )
    return size / _event_seconds(torch, lambda: target.copy_(source, non_blocking=True), 5)


def _event_seconds(torch: Any, call: Callable[[], object], times: int) -> float:
    """Mean seconds of calls in a row, by the device's clock."""
    call()
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / times


def _copy(bench: KernelBench) -> float:
    """Bytes/s of a large copy inside the device, those read and those written."""
    torch = bench.torch
    size = min(1 << 31, int(torch.cuda.mem_get_info()[0]) // 4)
    source, target = (torch.empty(size, dtype=torch.int8, device="cuda") for _ in range(2))
    return 2 * size / _event_seconds(torch, lambda: target.copy_(source), 20)


def _product_seconds(bench: KernelBench, rows: int, products: Products, dtype: str = "bf16") -> float:
    """Seconds of some products, each timed as ``profile --kernels`` does: graph replays over rotating weights."""
    seconds = 0.0
    for n, k, times in products:
        if bench.gpu:
            calls = CASES["linear"](bench, dtype=dtype, m=rows, n=n, k=k).calls
            time.sleep(_PAUSE)
        else:
            x, weight = bench.torch.randn(rows, k), bench.torch.randn(n, k)
            calls = [partial(bench.torch.nn.functional.linear, x, weight)]
        seconds += times * median_seconds(bench.torch, calls, bench.device)
        bench.buffers.clear()
    return seconds


def _matrix_vector(bench: KernelBench) -> float:
    """Bytes of weights a second as decode reads them: a step of Llama-3.1-8B with one sequence, without attention."""
    products, size = (_STEP, 2) if bench.gpu else (_SMALL, 4)
    moved = sum(size * n * k * times for n, k, times in products)
    return moved / statistics.median(_product_seconds(bench, 1, products) for _ in range(3))


_PROMPT, _SMALL_PROMPT = 4096, 64  # tokens


def _product_burst(bench: KernelBench, dtype: str = "bf16") -> float:
    """FLOP/s of products as prompts have them, too short for clocks to fall."""
    products, rows = (_LAYER, _PROMPT) if bench.gpu else (_SMALL, _SMALL_PROMPT)
    flops = sum(2 * rows * n * k * times for n, k, times in products)
    return flops / statistics.median(_product_seconds(bench, rows, products, dtype) for _ in range(3))


def _product_fp8(bench: KernelBench) -> float:
    if "fp8" not in _formats(bench):
        raise BadValue("no units for fp8")
    return _product_burst(bench, "fp8")


def _formats(bench: KernelBench) -> tuple[str, ...]:
    return ("bf16", "fp8") if bench.torch.cuda.get_device_capability() >= (8, 9) else ("bf16",)


def _sustained(bench: KernelBench) -> dict[str, float]:
    """FLOP/s, clock and watts of large products once the power limit has lowered the clocks."""
    torch, size, batch = bench.torch, 8192, 100
    a, b = bench.random(size, size), bench.random(size, size)
    began, rates, readings = time.monotonic(), [], []
    while time.monotonic() - began < _SUSTAINED:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(batch):
            torch.mm(a, b)
        last.record()
        reading = machine.clocks(torch, "cuda")  # while the products run
        torch.cuda.synchronize()
        if time.monotonic() - began > _SETTLED:
            rates.append(2 * size**3 * batch / (float(first.elapsed_time(last)) / 1e3))
            readings.append(reading or {})
    clocks = [reading["sm_mhz"] for reading in readings if "sm_mhz" in reading]
    watts = [reading["watts"] for reading in readings if "watts" in reading]
    values = {"product_sustained": statistics.median(rates)}
    values |= {"clock_sustained": statistics.median(clocks) * 1e6} if clocks else {}
    return values | ({"power_sustained": statistics.median(watts)} if watts else {})


def _python_seconds() -> float:
    return min(_python_loop() for _ in range(_REPEATS))


def _python_loop() -> float:
    """Seconds of a fixed piece of plain Python, which schedulers and launchers are made of."""
    began = time.thread_time()  # other processes may share the processor
    counts: dict[int, int] = {}
    for number in range(300_000):
        counts[number & 1023] = counts.get(number & 511, 0) + number
    return time.thread_time() - began


# ------------------------------------------------------------------ what predictions take them for


def _references(device: Hardware | None) -> dict[str, float]:
    """The same figures of the reference: kernels by the shipped profile, the host and the rest by its file."""
    where = host(REFERENCE)
    figures = {name: figure.value for name, figure in where.figures.items()}
    references = {"launch": where.launch, "python_loop": _REFERENCE_LOOP} | {name: figures[name] for name in STEPS}
    if device is None:
        return references
    step, prompt = (_predicted_seconds(device, rows, products) for rows, products in ((1, _STEP), (_PROMPT, _LAYER)))
    references["matrix_vector"] = sum(2 * n * k * times for n, k, times in _STEP) / step
    references["product_burst"] = sum(2 * _PROMPT * n * k * times for n, k, times in _LAYER) / prompt
    if is_same(where.device, device):
        references |= figures
    return references


def _predicted_seconds(device: Hardware, rows: int, products: Products) -> float:
    """Seconds of some products in bf16, as predictions for a device have them."""
    engine = catalog.engine("vllm")
    formats = Formats({"mlp": "bf16"}, "bf16", rounding(engine, device))
    chain = [one for one in sources(engine, device=device, formats=formats) if not one.kinds or "linear" in one.kinds]
    seconds = 0.0
    for n, k, times in products:
        terms = row_terms("linear", "bf16", {"m": rows, "n": n, "k": k}, device)
        assert terms is not None
        answers = (
            one.answer(linear("product", k, n, m=rows), partial(dict, terms.dims, groups=1), terms.terms)
            for one in chain
        )
        seconds += times * next(float(answer) for answer in answers if scalar(answer) and answer == answer)
    return seconds


def _seen_engines(values: Mapping[str, float]) -> dict[str, HostedEngine]:
    seen = hosted_seconds(values, values["launch"])
    return {} if seen is None else {"vllm": seen}


# ------------------------------------------------------------------ the file and the table


def _measured_host(launch: float, loop: float, where: str) -> Host:
    """The two figures that every host file has, and how they were taken."""
    measured = f"measured {machine.now()[:10]}, {machine.processor()}"
    return Host(
        label=f"{platform.node() or 'this machine'}, {machine.processor()}",
        launch=launch,
        slowdown=loop / _REFERENCE_LOOP,
        source={
            "launch": f"{measured}: an in-place add of 16 numbers on {where}, {_LAUNCHES:,} in a row, the least of "
            f"{_REPEATS}; of several such tries the median",
            "slowdown": f"{measured}: a loop over a dictionary took {loop * 1e3:.1f} ms, {_REFERENCE_LOOP * 1e3:.1f} "
            f"on the reference",
        },
    )


def _about(about: Mapping[str, Any]) -> dict[str, str]:
    """Which machine it was, as text."""
    known = {**about, "measured": machine.now()}
    names = ("uuid", "driver", "torch", "cuda", "vllm", "python", "measured")
    return {name: str(known[name]) for name in names if known.get(name)}


def _text(measured: Host) -> str:
    """A host as TOML, a figure a line, with what predictions take it for beside it."""
    lines = [f"label = {_quoted(measured.label)}"]
    lines += [f"device = {_quoted(measured.device)}"] if measured.device else []
    lines += [f"launch = {measured.launch:.4g}", f"slowdown = {measured.slowdown:.4g}"]
    if measured.machine:
        lines += ["", "[machine]", *(f"{name} = {_quoted(text)}" for name, text in measured.machine.items())]
    if measured.figures:
        lines += ["", "[figures]  # reference: what predictions take an uncorrected machine for"]
        for name, figure in measured.figures.items():
            reference = "" if figure.reference is None else f", reference = {figure.reference:.4g}"
            lines.append(f"{name} = {{ value = {figure.value:.4g}, unit = {_quoted(figure.unit)}{reference} }}")
    for engine, seen in measured.engines.items():
        given = {name: value for name, value in msgspec.structs.asdict(seen).items() if isinstance(value, float)}
        lines += ["", f"[engines.{engine}]", *(f"{name} = {value:.4g}" for name, value in given.items())]
        lines += ["", f"[engines.{engine}.launch]", *(f"{kind} = {value:.4g}" for kind, value in seen.launch.items())]
    lines += ["", "[source]", *(f"{name} = {_quoted(text)}" for name, text in measured.source.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a string of JSON is one of TOML


def table(figures: Mapping[str, Figure]) -> list[str]:
    """Lines of a table: what, this machine, the reference, the ratio; ``table({"launch": figure})``"""
    rows = [("", "this machine", "reference", "ratio")]
    for name, figure in figures.items():
        quantity = QUANTITIES[name]
        reference = "–" if figure.reference is None else f"{figure.reference * quantity.scale:.3g}"
        ratio = "–" if figure.reference is None else f"{figure.value / figure.reference:.3f}"
        rows.append((quantity.label, f"{figure.value * quantity.scale:.3g} {quantity.shown}", reference, ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(
            (row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
        )
        for row in rows
    ]
