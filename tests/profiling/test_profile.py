"""Measuring campaigns: they resume, keep to their budget, refuse what cannot be, and say what machine it was."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Ran, command

from inferometer.base.errors import BadFile, BadValue, UnknownName
from inferometer.profiling import campaign, machine, profile_csv, roofline_limits, shape_grid, timer
from inferometer.profiling.microbenchmarks import CASES, KernelBench, Library, Ready
from inferometer.specs import catalog

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
ROWS: list[dict[str, Any]] = [{"kind": "linear", "dtype": "bf16", "m": m, "n": 64, "k": 32} for m in (1, 2, 4)]
H200 = catalog.hardware("h200")


# ------------------------------------------------------------------ the clock


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, 0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def work(self, *seconds: float) -> Callable[[], None]:
        """A call that takes so long, each time the next of these."""
        spans = itertools.cycle(seconds)

        def call() -> None:
            self.now += next(spans)
            self.calls += 1

        return call


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timer, "time", made)
    monkeypatch.setattr(campaign, "time", made)
    return made


def test_the_clock_takes_the_median(watch: Clock) -> None:
    odd = watch.work(0.09, 0.01, 0.5, 0.02, 0.03, 0.0, 0.7, 0.04)  # one to warm up, then seven
    assert timer.median_seconds(None, [odd], "cpu") == pytest.approx(0.03)
    assert watch.calls == 1 + timer.REPLAYS
    watch.calls = 0
    assert timer.median_seconds(None, [watch.work(2.0, 1.0, 9.0, 3.0)], "cpu") == pytest.approx(3.0)
    assert watch.calls == 1 + timer.ENOUGH, "of long ones fewer are enough"
    quick = [watch.work(1e-3) for _ in range(64)]
    watch.calls = 0
    assert timer.median_seconds(None, quick, "cpu") == pytest.approx(1e-3)
    assert watch.calls == 1 + timer.REPLAYS * 20, "20 ms are timed together"


def test_the_clock_stops_in_time(watch: Clock) -> None:
    for within, calls in ((0.0, 0), (0.5, 1), (1.5, 2), (2.5, 3)):  # no time; none to replay; too few for a median
        watch.calls = 0
        with pytest.raises(timer.OutOfTime):
            timer.median_seconds(None, [watch.work(1.0)], "cpu", deadline=watch.now + within)
        assert watch.calls == calls
    watch.calls = 0
    assert timer.median_seconds(None, [watch.work(1.0)], "cpu", deadline=watch.now + 3.5) == 1.0
    assert timer.median_seconds(None, [watch.work(0.09)], "cpu", deadline=watch.now + 0.4) == pytest.approx(0.09)
    assert watch.calls == 4 + 5, "those that the time allows are enough"


class Cuda:
    """As much of ``torch.cuda`` as the clock uses, on a clock that passes only when a call says so."""

    def __init__(self, watch: Clock) -> None:
        self.watch, self.captured = watch, 0
        self.cuda = self
        self.Stream = self.current_stream = lambda: SimpleNamespace(wait_stream=lambda other: None)

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """All is done at once."""

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0)
        event.record = lambda stream=None: setattr(event, "at", self.watch.now)
        event.elapsed_time = lambda last: (last.at - event.at) * 1e3
        return event

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(span=0.0)
        graph.replay = lambda: setattr(self.watch, "now", self.watch.now + graph.span)
        return graph

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any = None) -> Iterator[None]:
        began, calls = self.watch.now, self.watch.calls
        yield
        graph.span, self.watch.now = self.watch.now - began, began
        self.captured += self.watch.calls - calls


def test_graphs_are_replayed_and_divided(watch: Clock) -> None:
    torch = Cuda(watch)
    assert timer.median_seconds(torch, [watch.work(1e-4) for _ in range(4)]) == pytest.approx(1e-4)
    assert torch.captured == 16, "four rounds of four calls fill the pass"
    torch.captured = 0
    assert timer.median_seconds(torch, [watch.work(0.5), watch.work(1.5)]) == pytest.approx(1.0)
    assert torch.captured == 2, "long calls are captured once"
    with pytest.raises(timer.OutOfTime):
        timer.median_seconds(torch, [watch.work(1.0)], deadline=watch.now + 1.5)
    torch._sleep = lambda cycles: watch.work(3e-6)()  # type: ignore[attr-defined]
    torch.captured = 0
    ready = CASES["graph_replay"](KernelBench(torch, "cuda", Library(), 1e4), dtype="bf16", kernels=16)
    assert ready.own is not None and ready.own() == pytest.approx(3e-6) and torch.captured == 16


# ------------------------------------------------------------------ campaigns


class Counted:
    """Stands in for the clock: some seconds a call, and how often it was asked."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.timed, self.seconds = 0, seconds

    def __call__(self, torch: Any, calls: Any, device: str, deadline: float) -> float:
        self.timed += 1
        return self.seconds


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(timer, "median_seconds", counted)
    monkeypatch.setitem(CASES, "linear", lambda bench, **shape: _fails_at_four(**shape))
    return counted


def _fails_at_four(m: int, **shape: Any) -> Ready:
    if m == 4:
        raise RuntimeError("no kernel for this shape")
    return Ready([lambda: None], "test", cold=1e6)


def quiet(line: str) -> None:
    """Says nothing."""


def measure(rows: list[dict[str, Any]], path: Path, **options: Any) -> campaign.CampaignResult:
    return campaign.measure(rows, path, bench=KernelBench(None, "cpu", Library(), 1e4), **options)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_vllms_configuration_is_left_with_the_bench(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def set_current_vllm_config(config: str) -> Iterator[None]:
        events.append(f"enter {config}")
        try:
            yield
        finally:
            events.append("leave")

    config = SimpleNamespace(set_current_vllm_config=set_current_vllm_config, VllmConfig=lambda: "defaults")
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(config=config))
    monkeypatch.setitem(sys.modules, "vllm.config", config)
    monkeypatch.setattr(campaign, "is_installed", lambda name: True)
    monkeypatch.setattr(campaign, "optional_library", lambda name: SimpleNamespace())
    with contextlib.suppress(KeyboardInterrupt), campaign.kernel_bench("cuda", {"cache": 1e6}) as bench:
        assert events == ["enter defaults"] and bench.rotation == 2e6
        if error:
            raise error
    assert events == ["enter defaults", "leave"]


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path, clocked: Counted) -> None:
    path, said = tmp_path / "k.csv", list[str]()
    assert measure(ROWS[:1], path, budget=60, say=quiet).measured == 1
    outcome = measure([*ROWS, {**ROWS[2], "n": 128}], path, budget=60, say=said.append)
    assert outcome.counts == {"measured": 1, "kept": 1, "failed": 2, "refused": 0, "left": 0}
    assert outcome.reasons == {"linear bf16: RuntimeError: no kernel for this shape": 2}
    assert said == ["linear bf16 m=4 n=64 k=32: RuntimeError: no kernel for this shape"], "one reason is said once"
    assert clocked.timed == 2
    assert list(profile_csv.read_seconds(path)) == [
        ("linear", "bf16", "m=1 n=64 k=32"),
        ("linear", "bf16", "m=2 n=64 k=32"),
    ]


def test_figures_beyond_the_roof_are_refused(tmp_path: Path, clocked: Counted) -> None:
    path, said = tmp_path / "k.csv", list[str]()
    roof = roofline_limits.DeviceLimits(H200.memory_bandwidth, H200)
    clocked.seconds = 1e6 / 4.8e12 * 0.9  # 1 MB in less time than 4.8 TB/s allow
    outcome = measure(ROWS[:2], path, budget=60, say=said.append, limits=roof)
    assert outcome.counts == {"measured": 0, "kept": 0, "failed": 0, "refused": 2, "left": 0}
    assert "faster than the roofline of 2.08e-07 s" in said[0] and not profile_csv.read_seconds(path)
    clocked.seconds = 1e6 / 4.8e12
    assert measure(ROWS[:2], path, budget=60, say=quiet, limits=roof).measured == 2


def test_a_campaign_without_time_measures_nothing(tmp_path: Path, clocked: Counted) -> None:
    assert measure(ROWS, tmp_path / "k.csv", budget=-1, say=quiet).left == 3
    assert clocked.timed == 0


def test_long_shapes_wait_and_those_that_do_not_fit_are_left(
    tmp_path: Path, clocked: Counted, watch: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(torch: Any, calls: Any, device: str, deadline: float) -> float:
        watch.now += 1.0
        return 0.01

    monkeypatch.setattr(timer, "median_seconds", slow)
    long, huge = ({**ROWS[0], "n": 64 * times, "k": 32 * times} for times in (4, 100))  # 16 and 10,000 times the work
    rows, path = [ROWS[0], long, huge, *ROWS[:2]], tmp_path / "k.csv"
    outcome = measure(rows, path, budget=10, say=quiet)
    assert outcome.counts == {"measured": 3, "kept": 1, "failed": 0, "refused": 0, "left": 1}
    assert [shape for _, _, shape in profile_csv.read_seconds(path)] == [
        "m=1 n=64 k=32",
        "m=2 n=64 k=32",
        "m=1 n=256 k=128",
    ]
    assert measure([huge], path, budget=0.5, say=quiet).measured == 1, "nothing is known of its kind"


def test_what_is_not_done_says_nothing_about_others() -> None:
    pace = campaign.CostEstimate()
    copy = {"kind": "copy", "dtype": "bf16", "bytes": 4096}
    product = {"kind": "linear", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096}
    assert pace.expected(product) == 0
    pace.learn(copy, 1e-3)  # 4 KB in a millisecond: nothing is known of FLOPs
    assert pace.expected(copy) == pytest.approx(campaign.CALLS * 1e-3)
    moved = 2 * 4096 * (4096 + 2 * 512)
    assert pace.expected(product) == pytest.approx(campaign.CALLS * 1e-3 * moved / 4096)
    pace.learn(product, 2e-3)
    assert pace.expected({**product, "m": 1024}) == pytest.approx(campaign.CALLS * 4e-3)
    assert pace.expected({"kind": "launch", "dtype": "bf16", "kernels": 64}) == 0


def test_time_that_ends_inside_a_shape_leaves_it(
    tmp_path: Path, clocked: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(torch: Any, calls: Any, device: str, deadline: float) -> float:
        raise timer.OutOfTime

    monkeypatch.setattr(timer, "median_seconds", late)
    assert measure(ROWS[:2], tmp_path / "k.csv", budget=60, say=quiet).left == 2


def test_a_dead_device_ends_the_run_and_keeps_the_rows(
    tmp_path: Path, clocked: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(bench: KernelBench) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(KernelBench, "wait", dead)
    said: list[str] = []
    outcome = measure([ROWS[0], ROWS[2], ROWS[1]], tmp_path / "k.csv", budget=60, say=said.append)
    assert outcome.counts == {"measured": 1, "kept": 0, "failed": 1, "refused": 0, "left": 1}
    assert "stopped answering at linear bf16 m=4" in said[-1] and len(profile_csv.read_seconds(tmp_path / "k.csv")) == 1


# ------------------------------------------------------------------ the file


def test_half_a_line_is_dropped_and_measured_again(tmp_path: Path, clocked: Counted) -> None:
    path = tmp_path / "k.csv"
    measure(ROWS[:2], path, budget=60, say=quiet)
    whole = path.read_bytes()
    for cut in range(1, len(whole)):  # wherever a run was cut off
        path.write_bytes(whole[:cut])
        before = set(profile_csv.read_seconds(path))
        outcome = measure(ROWS[:2], path, budget=60, say=quiet)
        assert outcome.kept == len(before) and outcome.kept + outcome.measured == 2
        assert path.read_bytes() == whole


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    for text, words in (
        ("name,price\nx,1\n", "begins with 'name,price'"),
        ("notes", "begins with"),
        ("kind,dtype,shape,seconds,source\nlinear,bf16,m=1,soon,torch\n", "line 2"),
        ("kind,dtype,shape,seconds,source\nlinear,bf16,m=1 n=2 k=3\nnorm,bf16,m=1 n=2,1e-6,torch\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(BadFile, match=words):
            profile_csv.ProfileWriter(path)
        assert path.read_text() == text
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(BadFile, match="not text"):
        profile_csv.read_seconds(path)


def test_old_files_with_other_line_ends_go_on(tmp_path: Path, clocked: Counted) -> None:
    path = tmp_path / "k.csv"
    path.write_bytes(b"kind,dtype,shape,seconds,source\r\nlinear,bf16,m=1 n=64 k=32,1.0e-06,torch\r\n")
    assert measure(ROWS[:2], path, budget=60, say=quiet).counts["kept"] == 1
    assert len(profile_csv.read_seconds(path)) == 2


# ------------------------------------------------------------------ the machine


def test_the_record_belongs_to_one_device(tmp_path: Path) -> None:
    rows = tmp_path / "k.csv"
    machine.MachineRecord(rows, {"device": "A"}).write({"counts": {"measured": 1}})
    machine.MachineRecord(rows, {"device": "A", "torch": "2"}).write({"counts": {"measured": 2}})
    data = json.loads((tmp_path / "k.json").read_text())
    assert data["torch"] == "2" and [r["counts"]["measured"] for r in data["runs"]] == [1, 2]
    with pytest.raises(BadFile, match="rows of 'A', but this is 'B'"):
        machine.MachineRecord(rows, {"device": "B"})
    machine.MachineRecord(tmp_path / "n.csv", {"device": "h200"}).write({})  # as tables of others name it
    assert machine.MachineRecord(tmp_path / "n.csv", {"device": "NVIDIA H200"}).before["device"] == "h200"
    with pytest.raises(BadValue, match=r"must not end in \.json"):
        machine.MachineRecord(tmp_path / "k.json", {"device": "A"})
    for text in ("[1]", "not json", '{"mine": 1}'):
        (tmp_path / "k.json").write_text(text)
        with pytest.raises(BadFile, match="give another name"):
            machine.MachineRecord(rows, {"device": "A"})
        assert (tmp_path / "k.json").read_text() == text


def test_clocks_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        class cuda:
            @staticmethod
            def get_device_properties(number: int) -> Any:
                return type("Properties", (), {"uuid": "ab-1"})

    assert machine.clocks(Torch, "cpu") is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$4" = GPU-ab-1 ] && echo "1980, 3201, 1980, 121.5, 700.00, [N/A]"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.clocks(Torch, "cuda") == {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "max_sm_mhz": 1980.0,
        "watts": 121.5,
        "limit_watts": 700.0,
    }
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert machine.clocks(Torch, "cuda") is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert machine.clocks(Torch, "cuda") is None and machine.driver() == {"driver": None}


# ------------------------------------------------------------------ the whole command


@needs_torch
def test_a_profile_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, kinds = tmp_path / "kernels.csv", list[str](), "norm,launch,linear,graph_replay"
    tiny = [
        *ROWS,
        *({"kind": kind, "dtype": "bf16", "kernels": 16} for kind in ("launch", "graph_replay")),
        *({"kind": kind, "dtype": "bf16", "m": 4, "n": 64} for kind in ("norm", "sampler")),
        {"kind": "linear", "dtype": "w4a16", "m": 4, "n": 64, "k": 100},
    ]
    asked: list[Any] = []
    monkeypatch.setattr(shape_grid, "all_shapes", lambda *words: asked.append(words) or tiny)
    counts = campaign.profile_kernels(str(path), "60s", "cpu", said.append, kinds=kinds)
    assert asked == [((2,), "gloo")]
    assert counts == {"measured": 5, "kept": 0, "failed": 2, "refused": 0, "left": 0}
    found = profile_csv.read_seconds(path)
    assert [kind for kind, _, _ in found] == ["norm", "launch", "linear", "linear", "linear"], (
        "in the order of their names"
    )
    assert all(seconds > 0 for seconds in found.values())
    about = json.loads((tmp_path / "kernels.json").read_text())
    assert about["device"] == machine.processor() and about["kind"] == "cpu" and about["compute_units"] >= 1
    once = about["runs"][0]
    assert once["counts"] == counts and once["replays"] == timer.REPLAYS and once["began"] <= once["ended"]
    assert once["rotation_bytes"] == machine.rotation(about) and once["kinds"] == kinds.split(",")
    assert once["reasons"]["graph_replay bf16: a CPU has no CUDA graphs"] == 1 and len(once["reasons"]) == 2
    assert "kernels.json" in said[-1] and "5 measured, 2 failed" in said[-1]
    ticks: list[tuple[int, int, str]] = []
    again = campaign.profile_kernels(str(path), "60s", "cpu", quiet, lambda *tick: ticks.append(tick), "norm")
    assert again == {"measured": 0, "kept": 1, "failed": 0, "refused": 0, "left": 0}
    assert ticks[-1][:2] == (1, 1) and len(json.loads((tmp_path / "kernels.json").read_text())["runs"]) == 2


@pytest.mark.slow
@needs_torch
def test_a_run_that_is_broken_off_has_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(timer, "median_seconds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        campaign.profile_kernels(str(tmp_path / "k.csv"), "5s", "cpu", quiet, kinds="launch,norm")
    runs = json.loads((tmp_path / "k.json").read_text())["runs"]
    assert runs[0]["counts"]["measured"] == 3 == len(profile_csv.read_seconds(tmp_path / "k.csv"))


def test_lines_come_now_and_then(watch: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    tell = timer.progress_lines(said.append)
    for later in (0.0, 1.0, 8.5, 1.0, 1.5, 9.0):
        watch.now += later
        tell(7, 1000, f"{watch.now - 100:.0f} of 60 s")
    assert said == [f"7 of 1,000 shapes, {spent} of 60 s" for spent in (0, 10, 21)]


def test_profile_says_what_it_needs(tmp_path: Path) -> None:
    ran = command("profile", "-o", str(tmp_path / "k.csv"))
    assert ran.code == 2 and "--kernels" in ran.err
    ran = command("profile", "--kernels", "--budget", "soon", "-o", str(tmp_path / "k.csv"))
    assert ran.code == 2 and "10m" in ran.err
    for options, kind, sentence in (
        ({"budget": "0s"}, BadValue, "budget must be"),
        ({"device": "tpu"}, UnknownName, "unknown device"),
        ({"kinds": "liner"}, UnknownName, "did you mean linear"),
        ({"kinds": " ,"}, BadValue, "at least one kind"),
        ({"output": str(tmp_path)}, BadFile, "folder"),
        ({"output": str(tmp_path / "no" / "k.csv")}, BadFile, "folder"),
    ):
        defaults = {"output": str(tmp_path / "k.csv"), "budget": "1s", "device": "cpu", "say": quiet}
        with pytest.raises(kind, match=sentence):
            campaign.profile_kernels(**{**defaults, **options})  # type: ignore[arg-type]
    if not HAS_TORCH:
        ran = command("profile", "--kernels", "--budget", "1s", "-o", str(tmp_path / "k.csv"))
        assert ran.code == 2 and "PyTorch" in ran.err


def test_verbose_has_a_line_for_every_step(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]) -> None:
    def measured(
        model: str | None, *, progress: Callable[[int, int, str], None] | None, **words: Any
    ) -> dict[str, Any]:
        if progress is not None:
            progress(1, 8, "input 16")
        return {}

    monkeypatch.setattr(importlib.import_module("inferometer.profiling.profile"), "profile", measured)
    assert "1 of 8  input 16" in run("profile", "--kernels", "--verbose", "--json").err
    assert "input 16" not in run("profile", "--kernels", "--json").err  # no terminal, no bar
