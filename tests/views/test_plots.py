"""The pictures of a report: what they show is what the report says, and every file is a whole one."""

from __future__ import annotations

import functools
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import inferometer
from inferometer.base.errors import BadFile, BadValue
from inferometer.inference.analyze import report_of
from inferometer.inference.report import Report
from inferometer.inference.request import build_request
from inferometer.inference.weights import parameters
from inferometer.network.graph import Model
from inferometer.views.plots.analysis import bars, distribution, memory, parameters_on_gpu, write_plots
from inferometer.views.plots.canvas import Scene, bounds
from inferometer.views.plots.curves import front
from inferometer.views.plots.labels import Frame, crosses, label_width
from inferometer.views.plots.palette import tint
from inferometer.views.plots.roofline import roofline, roofline_chart, roofs
from inferometer.views.plots.structure import graph, structure
from inferometer.views.plots.timeline import timeline
from inferometer.views.plots.tornado import along
from inferometer.views.plots.wiring import ENTRY, EXIT, BlockRows, shape_texts, shown, wire
from inferometer.views.text.search import draw_simulated

PNG = b"\x89PNG\r\n\x1a\n"
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("llama-3.1-8b", "h200", {"batch_size": 8}),
    "moe": ("qwen3-30b-a3b", "h100-sxm", {}),
    "latent": ("deepseek-v3", "h200", {"tensor_parallel_size": 8}),
    "hybrid": ("qwen3-next-80b-a3b", "h200", {"tensor_parallel_size": 2}),
    "diffusion": ("DiT-XL/2", "a6000", {}),
    "parallel": ("falcon-40b", "h200", {}),
    "vision": ("qwen2.5-vl-7b", "h200", {"images": "1x896x896"}),
    "sparse": ("deepseek-v3.2", "h200", {"tensor_parallel_size": 8}),
}


@functools.cache
def made(plan: str) -> tuple[Report, Model]:
    name, gpu, words = PLANS[plan]
    asked = build_request(name, gpu, **words)
    return report_of(asked), asked.model


EACH_PHASE = [
    (plan, phase) for plan in PLANS for phase in ("prefill", "decode") if (plan, phase) != ("diffusion", "decode")
]


def texts(svg: str) -> list[str]:
    return ["".join(t.itertext()) for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def shares(words: list[str]) -> list[float]:
    """The shares among some words; those too small to be written count as half of the smallest."""
    found = [re.match(r"(?:\S+  )?(<)?(\d+\.\d|100)%(?:$|  )", w) for w in words]
    return [0.05 if m[1] else float(m[2]) for m in found if m]


def named(part: BlockRows) -> dict[str, list[int]]:
    """Place by name of the operators that took time."""
    found: dict[str, list[int]] = {}
    for i in part.rows:
        found.setdefault(part.block.ops[i].name, []).append(i)
    return found


@pytest.mark.slow
def test_every_picture_is_written_and_whole(tmp_path: Path) -> None:
    report, model = made("dense")
    files = write_plots(report, tmp_path / "new" / "folder", model)
    names = {f.name for f in files}
    assert names == {
        "distribution_prefill.png",
        "distribution_decode.png",
        "roofline.png",
        "memory.png",
        "structure_prefill.svg",
        "structure_prefill.png",
        "structure_decode.svg",
        "structure_decode.png",
    }
    assert {f.name for f in (tmp_path / "new" / "folder").iterdir()} == names  # no temporary file is left
    for file in files:
        data = file.read_bytes()
        if file.suffix == ".png":
            assert data.startswith(PNG) and data.endswith(b"IEND\xaeB`\x82") and len(data) > 20_000
        else:
            assert ET.fromstring(data).tag.endswith("svg") and len(data) > 5_000


@pytest.mark.slow
def test_other_formats_and_what_was_there_before(tmp_path: Path) -> None:
    report, model = made("diffusion")
    (tmp_path / "memory.svg").write_text("something else")
    files = write_plots(report, tmp_path, model, fmt=("svg", "pdf"))
    assert {f.suffix for f in files} == {".svg", ".pdf"}
    assert not any("decode" in f.name for f in files)
    assert ET.parse(tmp_path / "memory.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "structure_prefill.pdf").read_bytes().startswith(b"%PDF")
    again = {f: f.read_bytes() for f in files}
    write_plots(report, tmp_path, model, fmt=("svg",))
    assert {f: f.read_bytes() for f in files} == again


@pytest.mark.slow
def test_without_the_model_the_rest_is_written_and_pyplot_is_left_alone(tmp_path: Path) -> None:
    import matplotlib

    keys = ("font.size", "axes.spines.top", "text.color", "svg.fonttype")
    before, loaded = [matplotlib.rcParams[k] for k in keys], "matplotlib.pyplot" in sys.modules
    files = write_plots(made("diffusion")[0], tmp_path)
    assert {f.stem for f in files} == {"distribution_prefill", "roofline", "memory"}
    assert [matplotlib.rcParams[k] for k in keys] == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_a_folder_that_cannot_be_made_and_an_unknown_format(tmp_path: Path) -> None:
    report, model = made("dense")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match="file"):
        write_plots(report, tmp_path / "file" / "folder", model)
    with pytest.raises(BadValue, match="'gif'"):
        write_plots(report, tmp_path / "x", model, fmt=("gif",))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("plan", "phase"), EACH_PHASE)
def test_the_structure_shows_every_operator_and_all_of_the_time(plan: str, phase: str) -> None:
    report, model = made(plan)
    words = texts(structure(report, model, phase).svg())
    ran = [op for op in report.phases[phase].ops if op.seconds > 0]
    for op in ran:
        assert any(w == op.name or w.startswith(f"{op.name}  ") for w in words), op.name
    idle = {op.name for op in report.phases[phase].ops if op.seconds == 0} - {op.name for op in ran}
    assert not idle & set(words)
    assert sum(shares(words)) == pytest.approx(100, abs=0.05 * len(ran))


@pytest.mark.parametrize(("plan", "phase"), EACH_PHASE)
def test_every_operator_is_connected_downwards(plan: str, phase: str) -> None:
    report, model = made(plan)
    parts, own = shown(model, report.phases[phase])
    assert {row.kind for row in own} <= {"host"}
    for part in parts:
        wiring = wire(part)
        for edge in wiring.edges:
            step = wiring.ranks[edge.end] - wiring.ranks[edge.start]
            assert step > 0 or (edge.kept and step == 0)
        starts, ends = {e.start for e in wiring.edges}, {e.end for e in wiring.edges}
        for i in part.rows:
            assert i in ends
            assert i in starts or part.block.ops[i].kind == "kv_write" or str(part.block.ops[i].output) == "0"
        assert ENTRY in starts and EXIT in ends


def test_a_layer_is_two_residual_parts_in_a_row() -> None:
    report, model = made("dense")
    layer = shown(model, report.phases["prefill"])[0][1]
    wiring, at = wire(layer), {name: places[0] for name, places in named(layer).items()}
    joins = sorted(e.end for e in wiring.edges if e.residual)
    assert [(e.start, e.end) for e in wiring.edges if e.residual] == [(ENTRY, joins[0]), (joins[0], joins[1])]
    read = {(e.start, e.end) for e in wiring.edges if not e.residual}
    assert (at["o_proj"], joins[0]) in read and (joins[0], at["post_attention_layernorm"]) in read
    assert (at["down_proj"], joins[1]) in read and (joins[1], EXIT) in read
    assert (at["rope"], at["attention"]) in read and (at["rope"], at["kv_cache_write"]) in read
    assert [e for e in wiring.edges if e.kept] == [(at["kv_cache_write"], at["attention"], True, False)]


def test_branches_stand_side_by_side_and_meet() -> None:
    report, model = made("latent")
    layer = next(p for p in shown(model, report.phases["decode"])[0] if "experts" in named(p))
    wiring, at = wire(layer), named(layer)
    assert wiring.ranks[at["router"][0]] == wiring.ranks[at["shared_experts"][0]]
    last = at["all_reduce"][-1]
    assert {e.start for e in wiring.edges if e.end == last} == {at["experts"][0], at["shared_experts"][-1]}
    assert {e.start for e in wiring.edges if e.end == at["o_proj"][0]} == {at["v_absorb"][0]}
    attention = {e.start for e in wiring.edges if e.end == at["attention"][0]}
    assert attention == {at["q_absorb"][0], at["kv_cache_write"][0]}


def test_a_parallel_block_has_one_residual_connection() -> None:
    report, model = made("parallel")
    layer = shown(model, report.phases["prefill"])[0][1]
    wiring, at = wire(layer), {name: places[0] for name, places in named(layer).items()}
    assert len([e for e in wiring.edges if e.residual]) == 1
    assert {e.end for e in wiring.edges if e.start == ENTRY and not e.residual} == {
        at["input_layernorm"],
        at["post_attention_layernorm"],
    }


def test_a_hybrid_shows_each_kind_of_layer_once() -> None:
    report, model = made("hybrid")
    words = texts(structure(report, model, "decode").svg())
    assert "×36" in words and "×12" in words
    assert "A · layers 0–2, 4–6, 8–10 …" in words and "B · layers 3, 7, 11 …" in words
    assert any("48 layers, in the order (3 × A, B) × 12" in w for w in words)
    assert words.count("linear_attention") == 1 and words.count("attention") == 1


@pytest.mark.slow
def test_the_page_knows_which_kind_of_layer_follows_which() -> None:
    asked = build_request("gemma-3-27b", "h200")
    drawn = graph(report_of(asked), asked.model)["decode"]
    assert drawn["order"] == "(5 × A, B) × 10, 2 × A"
    first, second = (block for block in drawn["blocks"] if block["stage"] == "layer")
    assert first["next"] == [second["name"]] and second["next"] == [first["name"]]
    assert (first["last"], second["last"]) == (61, 59), "the stream leaves by A"
    long = build_request("deepseek-v4-pro", "b200", tensor_parallel_size=8)
    assert graph(report_of(long), long.model)["decode"]["order"] == "2 × A, B, (C, D) × 29"


def test_folded_layers_and_shapes_are_written() -> None:
    report, model = made("dense")
    words = texts(structure(report, model, "prefill").svg())
    assert "×32" in words and "layers 0–31" in words
    assert "weight 4096 × 28672" in words and "8192 × 14336" in words and "8192 × 4096" in words


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"keys": [34816, 8, 128], "sequences": [32]}, "32 × 1088 × 8 × 128"),
        ({"keys": [33544.5, 8, 128], "sequences": [33]}, "≈ 33 × 1017 × 8 × 128"),
        ({"output": [0.25, 128256]}, "1 × 128256 in 1 of 4 steps"),
        ({"output": [0.3, 128256]}, "1 × 128256 in 30% of steps"),
        ({"output": [57.42, 7168]}, "≈ 57 × 7168"),
        ({"output": [8192.0, 4096.0]}, "8192 × 4096"),
        ({"output": [64, 0]}, ""),
    ],
)
def test_shapes_are_written_as_an_engineer_would(shape: dict[str, list[float]], text: str) -> None:
    assert "".join(shape_texts(shape).values()) == text


def test_attention_says_whose_keys_it_reads() -> None:
    asked = build_request("llama-3.1-8b", "h200", batch_size=32, input_len=32768, output_len=128)
    words = {phase: texts(structure(report_of(asked), asked.model, phase).svg()) for phase in ("prefill", "decode")}
    assert "keys 32 × 32832 × 8 × 128" in words["decode"] and "keys 1 × 20480 × 8 × 128" in words["prefill"]
    assert "1 × 128256 in 1 of 4 steps" in words["prefill"]


def test_prompts_and_decoding_in_one_step() -> None:
    asked = build_request("llama-3.1-8b", "h200", batch_size=8, enable_chunked_prefill=True)
    layer = shown(asked.model, report_of(asked).phases["mixed"])[0][1]
    wiring, at = wire(layer), named(layer)
    first, second = at["attention"]
    assert wiring.ranks[first] == wiring.ranks[second]
    assert {e.start for e in wiring.edges if e.end == at["o_proj"][0]} == {first, second}


def test_a_pipeline_shows_its_slowest_stage() -> None:
    asked = build_request("deepseek-v3", "h200", tensor_parallel_size=4, pipeline_parallel_size=4)
    words = texts(structure(report_of(asked), asked.model, "decode").svg())
    assert any("the slowest of 4 pipeline stages" in w for w in words)
    assert sum(int(w[1:]) for w in words if w.startswith("×")) in (15, 16)  # of 61 layers
    assert any(w.startswith("pipeline_wait  ") for w in words)


@pytest.mark.slow
def test_adapters_are_in_the_picture(tmp_path: Path) -> None:
    asked = build_request("llama-3.2-1b", "h200", lora_rank=16, output_len=1)
    files = write_plots(report_of(asked), tmp_path, asked.model, fmt=("svg",))
    assert "qkv_proj_lora_a" in texts(next(f for f in files if f.name == "structure_prefill.svg").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("plan", ["dense", "latent", "vision"])
def test_the_distribution_adds_up(plan: str, phase: str) -> None:
    report, model = made(plan)
    params = parameters_on_gpu(report, model, phase)
    rows, data = bars(report.phases[phase], params), report.phases[phase]
    sums = [sum(column) for column in zip(*(row.values for row in rows), strict=True)]
    assert sums == pytest.approx([sum(params.values()), data.OPs, data.memory_access, data.seconds], rel=1e-9)
    assert [row.values[3] for row in rows[:-1]] == sorted((row.values[3] for row in rows[:-1]), reverse=True)
    figure = distribution(report, phase, params)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert sum(shares([t.get_text() for t in axes.texts])) == pytest.approx(100, abs=0.05 * len(rows) + 0.01)


def test_parameters_are_of_the_gpu_whose_flops_are_shown() -> None:
    """On one GPU all of them. On 8, Llama-2-70B's products and tables are an eighth each, its norms whole."""
    for plan in ("dense", "moe", "hybrid", "vision"):
        report, model = made(plan)
        if report.plan["gpus"] == 1:
            total = sum(parameters_on_gpu(report, model, "prefill").values())
            assert total == pytest.approx(report.model.params), plan
    request = build_request("llama-2-70b", "h200", tensor_parallel_size=8)
    on_gpu = parameters_on_gpu(report_of(request), request.model, "decode")
    norms = 161 * 8192
    assert sum(on_gpu.values()) == pytest.approx((parameters(request.model) - norms) / 8 + norms)
    assert on_gpu["down_proj"] == 80 * 28672 * 8192 / 8


def test_parameters_of_a_pipeline_are_of_the_stage_that_is_shown() -> None:
    """Of 80 layers on 4 GPUs the last stage is the slowest: it has 20 of them and the head."""
    request = build_request("llama-3.1-70b", "h200", pipeline_parallel_size=4)
    on_gpu = parameters_on_gpu(report_of(request), request.model, "decode")
    assert on_gpu["down_proj"] == 20 * 28672 * 8192 and on_gpu["lm_head"] == 128256 * 8192


def test_topsare_those_of_the_formats_in_use() -> None:
    assert roofs(made("dense")[0]) == {"bf16": made("dense")[0].device["flops"]["bf16"]}
    assert list(roofs(made("latent")[0])) == ["fp8", "bf16"]


@pytest.mark.slow
def test_roofline_has_a_dot_for_every_operator_with_arithmetic_and_none_above_the_roof() -> None:
    report, _ = made("latent")
    figure = roofline(report)
    assert len(figure.axes) == 2
    for axes, phase in zip(figure.axes, report.phases.values(), strict=True):
        dots = [(x, y) for c in axes.collections for x, y in c.get_offsets()]
        assert len(dots) == sum(op.flops > 0 and op.bytes > 0 and op.seconds > 0 for op in phase.ops)
        bandwidth, peak = report.device["memory_bandwidth"], max(roofs(report).values())
        assert all(y <= min(x * bandwidth, peak) * 1.0001 for x, y in dots)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["dense", "latent", "hybrid", "diffusion"])
def test_labels_of_the_roofline_do_not_overlap(plan: str) -> None:
    figure = roofline(made(plan)[0])
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        flat = [t for t in axes.texts if not t.get_rotation() and t.get_text()]
        boxes = [t.get_window_extent(renderer) for t in flat]
        assert any(w.get_text().endswith("%") for w in flat)
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert not (a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1)


@pytest.mark.parametrize("plan", ["dense", "latent", "diffusion", "vision"])
def test_names_on_the_page_cover_no_dot_no_line_and_no_name(plan: str) -> None:
    report, _ = made(plan)
    chart = roofline_chart(report)
    for phase, drawn in chart["phases"].items():
        ops = report.phases[phase].ops
        largest = sorted((ops[dot["op"]] for dot in drawn["dots"]), key=lambda op: -op.share)[:4]
        for field in drawn["fields"]:
            frame = Frame(chart["x"], chart["y"], field["width"], field["height"])
            texts = " ".join(name["text"] for name in field["names"])
            assert frame.width < 400 or all(op.name in texts for op in largest if op.share > 0.005)
            boxes = [box_of(name, frame) for name in field["names"]]
            middles = [
                (*frame.at(op.intensity, op.flops / op.seconds), op.share)
                for op in (ops[d["op"]] for d in drawn["dots"])
            ]
            dots = [(x - r, y - r, x + r, y + r) for x, y, share in middles for r in [0.7 * (8.6 + 553 * share) ** 0.5]]
            tops = [roof["flops"] for roof in chart["roofs"]]
            knee = tops[0] / chart["bandwidth"]
            lines = [(frame.at(chart["x"][0], chart["x"][0] * chart["bandwidth"]), frame.at(knee, tops[0]))]
            lines += [(frame.at(top / chart["bandwidth"], top), frame.at(chart["x"][1], top)) for top in tops]
            for i, box in enumerate(boxes):
                assert not [other for other in [*dots, *boxes[:i]] if overlap(box, other)], field["names"][i]
                assert not [line for line in lines if crosses(line, box)], field["names"][i]
                assert box[0] >= -1 and box[2] <= frame.width + 1


def box_of(name: dict[str, Any], frame: Frame) -> tuple[float, float, float, float]:
    x, y, half = name["x"] * frame.width, name["y"] * frame.height, label_width(name["text"]) / 2
    return x - half, y - 6, x + half, y + 6


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("plan", ["dense", "latent", "diffusion"])
def test_the_strip_of_a_roofline_is_all_of_the_time_largest_first(plan: str) -> None:
    report, _ = made(plan)
    for phase, drawn in roofline_chart(report)["phases"].items():
        time = drawn["time"]
        assert sum(part["share"] for part in time) == pytest.approx(1.0, abs=1e-6)
        assert sum(part["seconds"] for part in time) == pytest.approx(report.phases[phase].seconds)
        without = {op.name for op in report.phases[phase].ops if op.seconds > 0 and not (op.flops > 0 and op.bytes > 0)}
        beside = [part for part in time if not part["dots"]]
        assert {part["name"] for part in beside} == without
        assert [part["share"] for part in beside] == sorted((part["share"] for part in beside), reverse=True)
        if beside and beside[0]["share"] >= 0.0005:
            texts = [text for text, _ in drawn["legend"]]
            first = beside[0]["name"].replace("host_overhead", "host overhead")
            assert texts[texts.index("no arithmetic:") + 1].startswith(first)


@pytest.mark.slow
def test_pictures_of_a_run_have_ticks_with_units_and_scale_to_what_there_is() -> None:
    trace = inferometer.synthetic(num_prompts=40, request_rate=8, input_len=512, output_len=32)
    figure = timeline(inferometer.simulate("llama-3.1-8b", "h200", trace=trace), "")
    figure.canvas.draw()
    waits, cache = figure.axes[3], figure.axes[1]
    ticks = [label.get_text() for label in waits.get_yticklabels() if label.get_text()]
    assert len(ticks) >= 2 and all(re.search(r"[0-9] (ms|s|µs)$|^0$", tick) for tick in ticks)
    assert cache.get_ylim()[1] < 20, "a cache that is nearly empty is still seen"


@pytest.mark.slow
def test_names_beside_curves_stay_in_their_panel() -> None:
    figure = along(inferometer.sensitivity("llama-3.1-8b", gpu="h200", curves=True))
    renderer = figure.canvas.get_renderer()
    left, right = figure.axes
    names = [text.get_window_extent(renderer).x1 for text in left.texts]
    assert names and max(names) < right.get_tightbbox(renderer).x0
    assert max(text.get_window_extent(renderer).x1 for text in right.texts) < figure.bbox.x1


@pytest.mark.slow
def test_names_on_a_front_are_in_the_colour_of_their_line() -> None:
    axes = front(inferometer.sweep("llama-3.1-8b", gpu="h200", batch_size=[1, 64], tensor_parallel_size=[1, 4])).axes[0]
    lines = {
        tuple(map(float, xy)): line.get_color()
        for line in axes.lines
        for xy in line.get_xydata()
        if line.get_marker() == "o"
    }
    named = [text for text in axes.texts if "batch" in text.get_text()]
    assert named and all(lines[tuple(map(float, text.xy))] == text.get_color() for text in named)
    assert any(text.get_text().startswith("tp ") for text in named)


@pytest.mark.slow
def test_plans_that_were_simulated_are_in_the_legend_of_a_front_once() -> None:
    from matplotlib.figure import Figure

    metrics = SimpleNamespace(output_throughput_per_user=1.0, output_throughput_per_gpu=2.0)
    plans = [SimpleNamespace(simulated=metrics, verdict=verdict) for verdict in ("holds", "wins", "ties", "holds")]
    axes = Figure().subplots()
    draw_simulated(axes, SimpleNamespace(plans=plans))  # type: ignore[arg-type]
    assert sorted(axes.get_legend_handles_labels()[1]) == [
        "others, simulated",
        "the winner, simulated",
    ]


def test_memory_is_one_bar_with_its_limits() -> None:
    report, _ = made("dense")
    axes = memory(report).axes[0]
    widths = [bar.get_width() for bar in axes.patches[:4]]
    m = report.memory
    assert widths == [m.weights_bytes, m.kv_cache_bytes, m.activation_bytes, m.overhead_bytes]
    assert [line.get_xdata()[0] for line in axes.lines] == [m.usable_bytes, m.capacity_bytes]
    assert sum(shares([re.sub(r".*\((.*)\)", r"\1", t.get_text()) for t in axes.get_legend().texts])) == pytest.approx(
        100, abs=0.2
    )


def test_memory_says_what_does_not_fit() -> None:
    asked = build_request("llama-3.1-70b", "h200")
    report = report_of(asked)
    assert any("does not fit: needs" in t.get_text() for t in memory(report).texts)


@pytest.mark.slow
def test_odd_names_are_escaped(tmp_path: Path) -> None:
    report, model = made("diffusion")
    name = 'a<b>&"$x$\x07_{'
    odd = msgspec.structs.replace(report, model=msgspec.structs.replace(report.model, name=name))
    files = write_plots(odd, tmp_path, model, fmt=("png", "svg"))
    for file in files:
        if file.suffix == ".svg":
            assert ET.parse(file)
    assert any('a<b>&"$x$ _{' in w for w in texts((tmp_path / "structure_prefill.svg").read_text()))


def test_scene_draws_the_same_in_both_ways() -> None:
    scene = Scene(200, 100, "both")
    scene.box(10, 10, 50, 20, fill="#eeeeee", radius=4)
    scene.text(20, 24, "name", bold=True)
    scene.curve((30, 30), (80, 90), smooth=True)
    svg, figure = ET.fromstring(scene.svg()), scene.figure()
    assert [child.tag.split("}")[1] for child in svg] == ["title", "rect", "rect", "text", "path", "polygon"]
    assert len(figure.axes[0].patches) == 3 and figure.axes[0].texts[0].get_text() == "name"
    assert tuple(figure.get_size_inches() * 100) == (200, 100)


def test_colours() -> None:
    assert tint("#000000", 0.5) == "#808080" and tint("#0072B2", 1) == "#0072b2"
    assert list(bounds(["host", "memory", "new"])) == ["memory-bound", "host", "new-bound"]
