"""Kernels by shape: grids, curves of exact shapes, surfaces of relatives, files of one's own; what the host adds."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import command
from hypothesis import given
from hypothesis import strategies as st

from inferometer import BadFile, analyze
from inferometer.base.symbols import evaluate
from inferometer.base.symbols import names as s
from inferometer.costs import host as overhead
from inferometer.costs.binding import BoundPlan, bind, step_rows, step_seconds
from inferometer.costs.kernels import Terms
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.lookup import Formats, kernel_sources, lookup_key, octaves_lighter, shape_codes
from inferometer.costs.kernels.measured import MeasuredKernel, profile_of, read_rows
from inferometer.costs.kernels.registry import installed, left_out, read_profile
from inferometer.costs.kernels.surfaces import SHAPES, Surface, head_table_key
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.network import families
from inferometer.network.operators import linear
from inferometer.specs import catalog
from inferometer.specs.hosts import host, hosted_engine
from inferometer.specs.structs import Plan

HEAD = "kind,dtype,shape,seconds,source\n"
places = st.floats(-3, 9)


def setup_of(model: str = "llama-3.1-8b", gpu: str = "h200", engine: str = "vllm", **plan: object) -> BoundPlan:
    network = families.build(catalog.model(model).config)
    hosted = hosted_engine(catalog.engine(engine), host("h200-vm"))
    return bind(network, catalog.hardware(gpu), hosted, Plan(**plan))  # type: ignore[arg-type]


def decoding(batch: float, context: float) -> Step:
    return Step((Group(batch, 1, context - 1, 1, True),))


@given(st.lists(places, min_size=3, max_size=3), st.integers(0, 7))
def test_a_grid_of_arrays_is_a_grid_of_floats(where: list[float], as_arrays: int) -> None:
    """Whichever coordinates are arrays, and outside of the grid too."""
    values = [math.sin(i) for i in range(4 * 3 * 2)]
    grid = Surface([[0, 1, 2, 4], [0, 3, 6], [1, 2]], values)
    mixed = [np.array([x, x]) if as_arrays >> i & 1 else x for i, x in enumerate(where)]
    assert np.asarray(grid.at(*mixed)).flat[0] == pytest.approx(grid.at(*where), abs=1e-12)


def test_a_grid_is_exact_at_its_nodes_and_flat_beyond() -> None:
    grid = Surface([[0, 1, 3], [2, 4]], [10, 20, 30, 40, 50, 60])
    assert [grid.at(x, y) for x in (0, 1, 3) for y in (2, 4)] == [10, 20, 30, 40, 50, 60]
    assert grid.at(2, 3) == 45 and grid.at(-9, 2) == 10 and grid.at(99, 99) == 60


def test_a_row_is_priced_as_the_operator_is() -> None:
    device = catalog.hardware("h200")
    found = row_terms("linear", "fp8", {"m": 16, "n": 4096, "k": 1024}, device)
    env = {"m": 16, "n": 4096, "k": 1024, "tp": 1, "act_bytes": 2, "mlp_weight_bytes": 1, "mlp_input_bytes": 1}
    work = linear("x", s.k, s.n, m=s.m).work
    moved = sum(evaluate(x, env) for x in (work.weights, work.reads, work.writes))
    assert found is not None and found.table_key == "fp8"
    assert found.terms.memory == pytest.approx(moved / 4.8e12)
    assert found.terms.compute == pytest.approx(2 * 16 * 4096 * 1024 / 1978.9e12)
    assert row_terms("norm", "bf16", {"m": 1, "n": 64}, device) is None


def test_the_curve_of_a_measured_shape_gives_back_its_row() -> None:
    """qkv_proj of Llama-3.1-8B at one row: 16.051 µs in benchmarks/data/h200_kernels_back_to_back.csv."""
    rows = step_rows(setup_of(), decoding(1, 1024))
    qkv = next(row for row in rows if row.op.name == "qkv_proj")
    assert qkv.origin == "measured" and qkv.seconds == pytest.approx(16.051e-6, rel=2e-3)


def test_shapes_that_were_not_measured_are_fitted_and_other_generations_assumed() -> None:
    def origins(gpu: str) -> set[str]:
        return {
            str(row.origin) for row in step_rows(setup_of("qwen2-7b", gpu), decoding(8, 512)) if row.op.kind == "linear"
        }

    assert origins("h100-sxm") == {"fitted"} and origins("rtx4090") == {"fitted"}
    assert origins("t4") == {"assumed"} and origins("mi300x") == {"assumed"}


def test_a_format_of_its_own_comes_before_one_like_it() -> None:
    """Experts in 4 bits on an H200: vLLM's are on the shelf, and so are bf16 ones that were measured here."""
    assert "w4a16" not in read_profile("h200", "measured").fitted["moe"]  # type: ignore[union-attr]
    rows = step_rows(setup_of("kimi-k2.5", tensor_parallel_size=8, quantization="w4a16"), decoding(64, 1024))
    moe = next(row for row in rows if row.op.kind == "moe")
    assert 310e-6 < float(moe.seconds) < 470e-6, "313 to 466 µs in the table of vLLM 0.24, by how experts are chosen"


def test_graphs_may_reach_further() -> None:
    usual, wide = (build_request("gpt-oss-120b", max_cudagraph_capture_size=size).engine for size in (None, 2048))
    assert usual.graph_tokens == 1024 and wide.graph_tokens == 2048
    assert overhead.padded_tokens(wide, 1025.0) == 1040 and overhead.padded_tokens(
        wide, 100.0
    ) == overhead.padded_tokens(usual, 100.0)
    short = build_request("gpt-oss-120b", max_cudagraph_capture_size=12).engine
    assert overhead.padded_tokens(short, 9.0) == 12 and overhead.padded_tokens(short, 13.0) == 13
    few, many = (
        analyze("gpt-oss-120b", "h200", tensor_parallel_size=8, max_cudagraph_capture_size=size).metrics
        for size in (512, 2048)
    )
    assert few.ttft_ms and many.ttft_ms and many.ttft_ms < few.ttft_ms / 1.5, "launches of 36 layers are saved"


def test_a_gpu_left_out_has_no_profile_inside() -> None:
    with left_out("h200"):
        assert "h200" not in installed() and read_profile("h200", "measured") is None
        inside = {str(row.origin) for row in step_rows(setup_of(), decoding(1, 1024)) if row.op.kind == "linear"}
        with left_out("b200"):
            assert set(installed()) == {"a100-sxm-80gb", "h100-sxm", "l40s"}
    assert inside == {"fitted"} and "h200" in installed() and read_profile("h200", "vllm") is not None


def test_heads_find_their_sheet() -> None:
    known = {"64": 0, "128": 0, "128-fp8": 0, "576x512": 0}
    assert head_table_key("128", known, "bf16") == "128" and head_table_key("128", known, "fp8") == "128-fp8"
    assert head_table_key("96", known, "bf16") == "128" and head_table_key("80", known, "bf16") == "64"
    assert head_table_key("576x512", known, "bf16") == "576x512"  # latent attention runs kernels of its own
    assert head_table_key("192x128", known, "bf16") == "" and head_table_key("512", known, "bf16") == ""


def test_decoding_walks_over_whole_tiles() -> None:
    """A batch of one length pays for the tile it has begun; a mixed one for half a tile on average."""
    dims = {"seqs": 4.0, "kv_heads": 8, "heads": 32, "qk_dim": 128, "uniform_lengths": 1.0}
    at = {
        context: SHAPES["decode_attention"].step_axes({**dims, "kv": 4.0 * context})[1]
        for context in (100, 256, 257, 384)
    }
    assert at[257] == at[384] == math.log2(384) and at[256] == 8 and at[100] == math.log2(100)
    mixed = SHAPES["decode_attention"].step_axes({**dims, "kv": 4.0 * 1000, "uniform_lengths": 0.0})[1]
    assert mixed == pytest.approx(math.log2(1064))
    wide = SHAPES["decode_attention"].step_axes({**dims, "kv": 4.0 * 144, "qk_dim": 256})[1]
    assert wide == math.log2(160), "tiles of 80 positions for heads of 256"


def attention_seconds(plan: BoundPlan, sequences: float, context: float, uniform: float = 1.0) -> float:
    rows = step_rows(plan._replace(env={**plan.env, "uniform_lengths": uniform}), decoding(sequences, context))
    return float(sum(row.seconds for row in rows if row.op.kind == "decode_attention"))


@pytest.mark.parametrize(("cache", "at_128"), [("bf16", 143.7e-6), ("fp8", 176.4e-6)])
def test_a_short_context_takes_a_whole_tile(cache: str, at_128: float) -> None:
    """Public tables of an H200: 512 sequences (32 heads, 8 of keys) take 138 µs at 64 positions and 144 at 128.

    Over an fp8 cache, 146 and 176. The rows measured here begin at 128, and are few over an fp8 cache.
    """
    plan = build_request("llama-3.1-8b", "h200", kv_cache_dtype=cache).bind()
    for uniform in (0.0, 1.0):
        took = [attention_seconds(plan, 512.0, context, uniform) for context in (16.0, 50.0, 64.0, 100.0, 127.0, 129.0)]
        assert all(a <= b * 1.001 for a, b in itertools.pairwise(took)), "time never falls as contexts grow"
        assert took[2] > 0.8 * took[4] and took[0] > 0.7 * took[4], "nearly as long as a whole tile"
    assert attention_seconds(plan, 512.0, 128.0) == pytest.approx(at_128, rel=0.12)


FP8_ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_kernels_fp8_rows.csv"


def product_seconds(formats: Formats, m: Any, n: Any, k: Any, device: str = "h200") -> Any:
    """Seconds of products of an ``mlp`` operator by the first source that has them."""
    op, hardware = linear("product", s.k, s.n, m=s.m), catalog.hardware(device)
    row = row_terms("linear", formats.roles["mlp"], {"m": m, "n": n, "k": k}, hardware)
    assert row is not None
    took = np.full(np.shape(m), np.nan)
    for source in kernel_sources(hardware, "vllm", formats):
        if source.kinds is None or "linear" in source.kinds:
            took = np.where(np.isnan(took), source.answer(op, lambda: {"groups": 1, **row.dims}, row.terms), took)
    return took


def test_fp8_products_jump_where_their_kernel_changes() -> None:
    """CUTLASS on Hopper: 10240 × 8192 takes 36.8 µs with 128 rows, 66.6 with 129, 57.8 with 192 (public tables)."""
    for n in (10240, 10256):  # a curve of this very weight, and the surface
        took = product_seconds(Formats({"mlp": "fp8"}), np.array([128.0, 129, 192, 256]), n, 8192)
        assert 1.3 < took[1] / took[0] < 2
        assert took[2] < 1.1 * took[1] and took[3] <= took[2], "from there on it is level, or falls"


def test_fp8_products_of_part_of_a_tile_take_longer_than_of_all_of_it() -> None:
    """Measured with weights of Llama-3.1-8B; the curve was fitted to the other two of the file's four."""
    every = [row for row in read_rows(FP8_ROWS) if row.sizes["m"] % 256]
    m, n, k, seconds = np.array([(*(row.sizes[x] for x in "mnk"), row.seconds) for row in every]).T
    off = product_seconds(Formats({"mlp": "fp8"}), m, n, k) / seconds - 1
    unseen = ((n == 6144) & (k == 4096)) | ((n == 4096) & (k == 14336))
    assert unseen.sum() == 82 and np.median(np.abs(off[unseen])) < 0.08 and abs(off[unseen].mean()) < 0.05
    whole = product_seconds(Formats({"mlp": "fp8"}, row_tiles=False), m, n, k) / seconds - 1
    assert whole.mean() < -0.15, "without its tiles: of a kernel that is not slower"


def test_only_that_kernel_takes_its_rows_in_tiles() -> None:
    """vLLM's scales per tensor on Hopper: not its blocks, no other engine, no other generation."""
    tiled = {
        (device, engine): set(profile.row_tiles)
        for device in ("a100-sxm-80gb", "l40s", "h100-sxm", "h200", "b200")
        for engine in ("vllm", "trtllm", "measured")
        if (profile := read_profile(device, engine)) is not None
    }
    assert {key for key, formats in tiled.items() if formats} == {
        ("h100-sxm", "vllm"),
        ("h200", "vllm"),
        ("h200", "measured"),
    }
    assert set.union(*tiled.values()) == {"fp8"}
    assert [name for name in catalog.names("engines") if catalog.engine(name).row_tiles] == ["vllm"]
    for dtype in ("bf16", "fp8-block"):
        took = product_seconds(Formats({"mlp": dtype}), np.array([1024.0, 1025]), 10256, 8192)
        assert took[1] == pytest.approx(took[0], rel=0.01), dtype
    falls = {
        name: product_seconds(Formats({"mlp": "fp8"}), np.array([1025.0, 1280]), 10256, 8192, name)
        for name in ("h800", "b200")
    }
    assert falls["h800"][0] > 1.1 * falls["h800"][1], "its donor's kernel"
    assert falls["b200"][0] < falls["b200"][1]


def test_mean_numbers_of_rows_have_mean_tiles() -> None:
    """A number of rows with a fraction is a mean over steps; single numbers and arrays agree."""
    tiles = read_profile("h200", "measured").tiles("linear", "fp8")  # type: ignore[union-attr]
    assert tiles is not None
    formats = Formats({"mlp": "fp8"})
    every = product_seconds(formats, np.arange(1025.0, 2049), 10256.0, 4096.0)
    mean = product_seconds(formats, np.array([1536.5]), 10256.0, 4096.0)
    assert mean[0] == pytest.approx(every.mean(), rel=0.02)
    for at in (1, 128, 129, 700, 1024, 1025, 1536.5):
        one = tiles.worked({"m": float(at), "n": 512.0, "k": 4096.0}, Terms(1e-5, 1e-6, 0.0, 0.0))
        many = tiles.worked({"m": np.array([at, at]), "n": 512.0, "k": 4096.0}, Terms(1e-5, 1e-6, 0.0, 0.0))
        assert one[0]["m"] == many[0]["m"][0] and one[1].compute == pytest.approx(many[1].compute[0])
        assert one[2] == pytest.approx(many[2][0])


def test_sparse_curves_follow_a_surface_between_their_rows() -> None:
    """Two of four corners were timed, 0.5 octaves above the surface: the others lie as far above it."""
    device, surface = catalog.hardware("h200"), Surface([[6.0, 12.0], [7.0, 10.0], [2.0]], [0.0, 1.0, 2.0, 3.0])
    shape, rows = SHAPES["decode_attention"], []
    for seqs, context, level in ((8, 128, 0.0), (512, 1024, 3.0)):
        sizes = {"seqs": seqs, "context": context, "heads": 32, "kv_heads": 8, "head_dim": 128}
        terms = row_terms("decode_attention", "bf16", sizes, device)
        assert terms is not None
        seconds = float(shape.base(terms.terms, terms.dims)) * 2 ** (level + 0.5)
        rows.append(MeasuredKernel("decode_attention", "bf16", sizes, seconds))
    made = profile_of(rows, device, "test", surfaces={("decode_attention", "128"): surface})
    assert made.measured["decode_attention"]["128"].shapes["32x8x128"] == pytest.approx([0.5, 1.5, 2.5, 3.5], abs=2e-3)


# ------------------------------------------------------------------ a file of one's own


def profile_file(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "kernels.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return str(path)


def test_your_own_rows_come_first(tmp_path: Path) -> None:
    """gate_up_proj is read off the file; the other products move with it, because the surface does."""
    file = profile_file(
        tmp_path, "linear,bf16,m=1 n=28672 k=4096,1e-3,torch", "linear,bf16,m=8 n=28672 k=4096,2e-3,torch"
    )
    plain = analyze("llama-3.1-8b", gpu="h100-sxm", output_len=2)
    mine = analyze("llama-3.1-8b", gpu="h100-sxm", output_len=2, profile=file)
    ops = [{op.name: op for op in found.phases["decode"].ops} for found in (plain, mine)]
    assert ops[1]["gate_up_proj"].origin == "measured" and ops[0]["gate_up_proj"].origin == "fitted"
    assert ops[1]["gate_up_proj"].seconds == pytest.approx(32 * 1e-3, rel=2e-3)
    assert ops[1]["down_proj"].origin == "fitted" and ops[1]["down_proj"].seconds > 5 * ops[0]["down_proj"].seconds
    assert ops[1]["attention"].seconds == ops[0]["attention"].seconds


def test_flagged_rows_are_passed_over(tmp_path: Path) -> None:
    file = profile_file(
        tmp_path, "linear,bf16,m=1 n=28672 k=4096,1e-3,aiconfigurator vllm !floor", "copy,bf16,bytes=64,1e-6,torch"
    )
    assert [row.kind for row in read_rows(Path(file))] == ["copy"]
    assert profile_of(read_rows(Path(file)), catalog.hardware("h200"), "x").measured == {}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("linear,bf16,m=1 n=8,1e-6,t", "line 2: linear needs a positive k"),
        ("moe,bf16,tokens=1 hidden=8 inner=8 experts=0 top_k=1,1e-6,t", "experts"),
        ("linear,bf16,m=1 n=8 k=8,soon,t", "line 2"),
        ("linear,bf16,m=1 n=8 k=8,-1,t", "cannot be a kernel's time"),
        ("linear,bf61,m=1 n=8 k=8,1e-6,t", "bf16"),
    ],
)
def test_a_broken_row_is_one_sentence(tmp_path: Path, row: str, words: str) -> None:
    ran = command("analyze", "llama-3.1-8b", "--profile", profile_file(tmp_path, row))
    assert ran.code == 2 and words in ran.err and "Traceback" not in ran.err and not ran.out


def test_your_rows_of_mamba_layers_serve_their_states_format(tmp_path: Path) -> None:
    """Nemotron-Nano-9B-v2 keeps its states in fp32: rows of bf16 states say nothing about it."""
    path, sizes = tmp_path / "rows.csv", "heads=128 value_dim=80 key_dim=128 groups=8"
    rows = [
        f"state_update,fp32,seqs={n} {sizes},{n * 4e-6},x\nstate_update,bf16,seqs={n} {sizes},9e-3,x" for n in (8, 32)
    ]
    rows += [f"chunk_scan,fp32,m={n} seqs=1 {sizes} chunk=128,{n * 2e-7},x" for n in (1024, 8192)]
    path.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    plan = build_request("nemotron-nano-9b-v2", "h200", profile=str(path)).bind()

    def scan(step: Step) -> tuple[float, str]:
        row = next(row for row in step_rows(plan, step) if row.op.name == "ssm_scan" and row.seconds)
        return float(row.seconds), row.origin

    for step, seconds in ((decoding(8, 500), 32e-6), (decoding(32, 500), 128e-6), (Step((Group(1, 8192),)), 1.64e-3)):
        assert scan(step) == (pytest.approx(seconds, rel=0.03), "measured")  # the convolution's history besides
    two = build_request("nemotron-nano-9b-v2", "h200", profile=str(path), tensor_parallel_size=2).bind()
    row = next(row for row in step_rows(two, decoding(64, 500)) if row.op.kind == "state_update")
    assert row.seconds == pytest.approx(128e-6, rel=0.03), "half of the heads, twice the sequences"


def test_tables_of_states_are_of_their_own_width() -> None:
    """A plan's weights in bf16 do not make a table of fp32 states one of wider calls."""
    ops = [op for block in build_request("nemotron-nano-9b-v2", "h200").bind().model.blocks for op in block.ops]
    for kind, table, octaves in (("state_update", "fp32", 0.0), ("chunk_scan", "bf16", -1.0), ("sampler", "bf16", 0.0)):
        op = next(op for op in ops if op.kind == kind)
        assert octaves_lighter(op, Formats({}, state="fp32"), table) == octaves
        assert lookup_key(op, {}, {table: None}, Formats({}, state="fp32")) == (table, octaves == 0.0)


def test_your_rows_of_the_sampler_are_read_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [
        f"sampler,bf16,m={m} n=128256{more},{m * us}e-6,x"
        for m in (8, 64)
        for more, us in (("", 7), (" method=gumbel", 9))
    ]
    path.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    plan = build_request("llama-3.1-8b", "h200", profile=str(path)).bind()
    row = next(row for row in step_rows(plan, decoding(64, 500)) if row.op.kind == "sampler")
    assert (float(row.seconds), row.origin) == (pytest.approx(64 * 7e-6, rel=1e-3), "measured")


def test_another_table_is_not_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadFile, match="kind,dtype,shape,seconds,source"):
        read_rows(path)


def test_rows_beyond_the_roof_are_not_measured_and_said(tmp_path: Path) -> None:
    path = tmp_path / "fast.csv"
    good = "linear,bf16,m=8 n=28672 k=4096,6e-5,x\n"
    path.write_text(HEAD + good + "".join(f"linear,bf16,m={m} n=4096 k=4096,1e-12,x\n" for m in (1, 8)))
    report = analyze("llama-3.1-8b", "h200", batch_size=8, profile=str(path))
    origins = {op.name: op.origin for op in report.phases["decode"].ops}
    assert origins["gate_up_proj"] == "measured"
    impossible = next(op for op in report.phases["decode"].ops if op.name == "o_proj")
    assert impossible.origin != "measured" and impossible.efficiency < 0.99
    assert f"2 of 3 rows of {path} are faster than h200 can be, and are not used" in report.warnings


def test_kernels_of_another_device_are_said(tmp_path: Path) -> None:
    path, record = tmp_path / "k.csv", tmp_path / "k.json"
    path.write_text(HEAD + "linear,bf16,m=8 n=28672 k=4096,6e-3,x\n")

    def warnings(gpu: str = "h200") -> list[str]:
        return [w for w in analyze("llama-3.1-8b", gpu, profile=str(path)).warnings if "were measured on" in w]

    assert not warnings(), "a file without a record says nothing"
    record.write_text('{"device": "Intel(R) Xeon(R) Platinum"}')
    assert warnings() == [f"the kernels of {path} were measured on 'Intel(R) Xeon(R) Platinum', not on h200"]
    record.write_text('{"device": "NVIDIA H200", "gpu": "h200"}')
    assert not warnings() and not warnings("h200:memory_bandwidth=5e12") and warnings("a100-80g")
    record.write_text("[]")
    assert not warnings()


# ------------------------------------------------------------------ what host and chip add


def test_steps_are_padded_to_captured_sizes() -> None:
    vllm = catalog.engine("vllm")
    sizes = {1: 1, 2: 2, 3: 4, 5: 8, 33: 40, 256: 256, 257: 272, 512: 512, 513: 513}
    assert {n: overhead.padded_tokens(vllm, float(n)) for n in sizes} == sizes
    assert overhead.padded_tokens(vllm, np.array(list(sizes), float)).tolist() == list(sizes.values())
    rows = {n: step_rows(setup_of(), decoding(n, 512)) for n in (33, 40)}
    product = {n: next(row for row in found if row.op.name == "gate_up_proj") for n, found in rows.items()}
    assert product[33].seconds == product[40].seconds and product[33].work["flops"] < product[40].work["flops"]


def test_a_small_prefill_waits_for_its_launches_and_a_long_one_does_not() -> None:
    bound_plan = setup_of()
    short, long = Step((Group(1, 16, 0),)), Step((Group(1, 8192, 0),))
    host = {step: step_rows(bound_plan, step)[-1].seconds for step in (short, long)}
    host_alone = 32 * 2.5e-4 + 1.95e-3 + 1.8e-5  # launches of attention, then the step and its one sequence
    assert step_seconds(bound_plan, short) == pytest.approx(host_alone + 1.7e-4, rel=3e-3)
    assert host[long] < 0.1 * step_seconds(bound_plan, long)
    eager = setup_of(engine="hf")
    assert step_seconds(eager, decoding(1, 512)) > 32 * 1e-3  # without graphs answers wait, too


def test_clocks_fall_under_prompts_and_under_answers_that_compute_as_long_as_they_read() -> None:
    bound_plan = setup_of()

    def lost(step: Step, kernels: float = 0.1) -> float:
        env = {**bound_plan.env, **step.sums(bound_plan.model.spans)}
        return float(overhead.throttle_seconds(env, kernels))

    once, often = Step((Group(1, 4096, 0),)), Step((Group(1, 4096, 0),), in_a_row=16.0)
    few, many, all_of_it = (lost(decoding(n, 4096), 0.01) for n in (8, 256, 500))
    assert few < 1e-7 < many < all_of_it == pytest.approx(0.01 * bound_plan.device.throttle)
    assert lost(decoding(256, 4096), 0.02) < many / 3, "a step that reads twice as long computes half as densely"
    assert lost(decoding(0, 4096)) < 1e-9
    eight_bit = setup_of(quantization="fp8")
    env = {**eight_bit.env, **decoding(500, 4096).sums(eight_bit.model.spans)}
    assert overhead.throttle_seconds(env, 0.01) == 0, "seen with 16-bit products alone"
    mixture = setup_of("qwen3-30b-a3b")
    assert mixture.env["hot_seconds"] < 0.5 * bound_plan.env["hot_seconds"], "few of its weights work for a token"
    assert 0 < lost(once) < lost(often) < 0.1 * bound_plan.device.throttle
    roofline = analyze("llama-3.1-8b", gpu="h200", input_len=8192, engine="roofline")
    assert roofline.metrics.ttft_ms == roofline.roofline.ttft_ms


def test_an_engine_like_another_has_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'like = "vllm"\nlabel = "Mine"\nstep_overhead = 1e-3\n[kernels.norm]\nfixed = 5e-6\nsource = "me"\n'
    )
    mine, vllm = catalog.engine(str(path)), catalog.engine("vllm")
    assert (mine.label, mine.step_overhead, mine.kernels["norm"].fixed) == ("Mine", 1e-3, 5e-6)
    assert mine.launch == vllm.launch and mine.kernels["sampler"] == vllm.kernels["sampler"]
    path.write_text('like = "vlm"\n')
    ran = command("analyze", "llama-3.1-8b", "--engine", str(path))
    assert ran.code == 2 and "did you mean vllm" in ran.err


def test_the_shelf_is_whole() -> None:
    """Every surface has a value for each of its nodes, and none is absurd."""
    for device, engines in installed().items():
        for whose in (*engines, "measured"):
            profile = read_profile(device, whose)
            for kind, sheets in (profile.fitted if profile else {}).items():
                for sheet, grid in sheets.items():
                    assert len(grid.values) == math.prod(map(len, grid.axes)), (device, whose, kind, sheet)
                    assert all(axis == sorted(set(axis)) for axis in grid.axes) and max(map(abs, grid.values)) < 9


def test_a_card_with_curves_and_no_surfaces_borrows_the_others() -> None:
    """The RTX 4090: shapes that were timed are met; for others an L40S's kernels stand in, at this card's speed."""
    own, other = (
        {row.op.name: row for row in step_rows(setup_of(model, "rtx4090"), decoding(32, 1024)) if row.seconds}
        for model in ("llama-3.1-8b", "qwen3-8b")
    )
    timed = {"qkv_proj": 60.817e-6, "gate_up_proj": 271.747e-6, "lm_head": 1190.84e-6, "attention": 181.391e-6}
    for name, seconds in timed.items():
        assert own[name].seconds == pytest.approx(seconds, rel=0.003) and own[name].origin == "measured"
    assert other["gate_up_proj"].origin == "fitted" and "rtx4090" not in installed()
    bandwidth = 2 * 4096 * 24576 / other["gate_up_proj"].seconds
    assert 0.75 < bandwidth / catalog.hardware("rtx4090").memory_bandwidth < 0.95


def test_ones_own_rows_take_the_place_of_a_guessed_share(tmp_path: Path) -> None:
    """Surfaces that lie where the rows do need no further correction, whatever share of its peaks a card reaches."""
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + "".join(f"linear,bf16,m={m} n=8192 k=4096,{3e-4 * m / 1024:.3e},me\n" for m in (2048, 4096)))
    near = [
        next(
            op.seconds
            for op in analyze("llama-3.1-8b", gpu=f"rtx4090:reach_flops={share}", input_len=2048, profile=str(path))
            .phases["prefill"]
            .ops
            if op.name == "qkv_proj"
        )
        for share in (0.5, 1.0)
    ]
    assert near[0] == near[1]


def test_a_format_timed_on_a_relative_comes_before_another_format_timed_here() -> None:
    """4-bit products were timed on an H200 alone: an H100 has theirs, not twice the speed of its 16-bit ones."""
    took = {
        q: analyze("llama-3.1-8b", "h100-sxm", batch_size=8, quantization=q).metrics.tpot_ms or 0.0
        for q in ("bf16", "w4a16")
    }
    assert 0.7 < took["w4a16"] / took["bf16"] < 0.9


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.sampled_from([1.0, 5.25, 5.5, 4096.0, 1e6, 1_048_583.0])] * 5), min_size=1, max_size=40))
def test_codes_are_equal_where_all_sizes_are(rows: list[tuple[float, ...]]) -> None:
    codes = shape_codes([np.array(column) for column in zip(*rows, strict=True)])
    assert [[a == b for b in codes] for a in codes] == [[a == b for b in rows] for a in rows]


def test_codes_of_many_sizes_stay_apart() -> None:
    """Five columns of 10,000 values each are more combinations than an int64 has numbers."""
    rng = np.random.default_rng(0)
    columns = [rng.permutation(10_000).astype(float) for _ in range(5)]
    assert len(np.unique(shape_codes(columns))) == 10_000
