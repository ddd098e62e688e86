"""``profile MODEL``: parts have LLM-Profile's names, rows are measured once and kept, and calibration adds up."""

from __future__ import annotations

import copy
import csv
import json
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, command
from hypothesis import given
from hypothesis import strategies as st

from inferometer.base.errors import BadFile, BadValue
from inferometer.inference.weights import parameters
from inferometer.network import families as inferometer_models
from inferometer.profiling import hf_model, layers, scaling_factors
from inferometer.profiling.layer_csv import COLUMNS, LayerRows, Length, coarse_first, lengths, planned_lengths
from inferometer.profiling.layer_parts import LLM_PROFILE_PARTS, PartTimer, part_name
from inferometer.profiling.timer import KernelClock, WallClock, kernel_seconds
from inferometer.specs import catalog

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "num_hidden_layers": 3, "torch_dtype": "bfloat16"},
    "mixtral": {**SIZES, **EXPERTS, "num_hidden_layers": 2, "num_local_experts": 4},
    "qwen3_moe": {
        **SIZES,
        **EXPERTS,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "mlp_only_layers": [0],
        "quantization_config": {"quant_method": "fp8"},
    },
    "opt": {**SIZES, "num_hidden_layers": 2, "ffn_dim": 48, "word_embed_proj_dim": 32},
}
LLAMA = {
    "embedding",
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "rope",
    "attn",
    "o_proj",
    "post_layernorm",
    "gate_proj",
    "up_proj",
    "act_fn",
    "down_proj",
    "final_layernorm",
    "lm_head",
}
ROUTED = LLAMA - {"gate_proj", "up_proj", "down_proj"} | {"gate", "expert.w1", "expert.w2", "expert.w3"}
_SPLIT = {"qk_matmul", "softmax", "sv_matmul", "fc1", "fc2"}
OPT = LLAMA - {"gate_proj", "up_proj", "down_proj", "rope", "attn"} | _SPLIT


@pytest.fixture(scope="session")
def torch() -> Any:
    found = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)
    return found


@pytest.fixture(scope="session")
def models(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny models, each a config.json."""
    root = tmp_path_factory.mktemp("models")
    for kind, config in CONFIGS.items():
        (root / kind).mkdir()
        (root / kind / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    return root


Profile = Callable[..., Ran]


@pytest.fixture
def profile(models: Path, tmp_path: Path) -> Profile:
    """``profile("llama", "--repeat", "3")``: a short run on the CPU, into this test's folder."""

    def run(model: str, *args: str) -> Ran:
        short = ["--device", "cpu", "--hardware", "here", "--warmup", "1", "--repeat", "2", "-o", str(tmp_path)]
        given = {"--prefill-max": "8", "--decode-max": "8", "--step": "4"}
        for flag, value in given.items():
            short += [] if flag in args else [flag, value]
        return command("profile", str(models / model), *short, *args)

    return run


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------ lengths


def test_lengths_double_and_then_step() -> None:
    assert lengths(512, 128) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512]
    assert lengths(300, 100) == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]
    assert lengths(2048)[-17:] == [64, *range(128, 2049, 128)] and lengths(2048)[0] == 1
    assert (lengths(0), lengths(1), lengths(3)) == ([0], [1], [1, 2, 3])
    assert all(16 <= sum(n % (m // 16) == 0 for n in lengths(m)) <= 33 for m in (64, 2048, 8192))


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=80))
def test_the_ends_come_first_and_nothing_is_lost(values: set[int]) -> None:
    found = coarse_first(sorted(values))
    assert sorted(found) == sorted(values)
    assert found[0] == min(values) and max(values) in found[:2]
    half = sorted(found[: len(found) // 2 + 1])  # already half of them leave no gap of more than three out
    places = [sorted(values).index(value) for value in half]
    assert all(b - a <= 4 for a, b in pairwise(places))


def test_both_phases_take_turns_within_the_positions() -> None:
    found = planned_lengths("both", 2048, 2048, None, 1024)
    assert found[:3] == [Length(1, 0), Length(1024, 0), Length(1, 1023)] and len(set(found)) == len(found)
    assert all(n.input + n.kv_cache <= 1024 and (n.input == 1 or n.kv_cache == 0) for n in found)
    assert {n for n in found if not n.kv_cache} == set(planned_lengths("prefill", 2048, 2048, None, 1024))
    assert {n for n in found if n.input == 1} == set(planned_lengths("decode", 2048, 2048, None, 1024))


def test_a_device_gives_the_folder_its_name() -> None:
    assert layers.folder_label("NVIDIA H200") == "H200" and layers.folder_label("NVIDIA GeForce RTX 3090") == "RTX-3090"
    assert layers.folder_label("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz") == "Xeon-Platinum-8481C"


# ------------------------------------------------------------------ names and clocks


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model.layers.11.self_attn.out_proj", "o_proj"),
        ("model.decoder.layers.0.final_layer_norm", "post_layernorm"),
        ("model.decoder.final_layer_norm", "final_layernorm"),
        ("model.norm", "final_layernorm"),
        ("model.layers.0.mlp.experts.3.w2", "expert.w2"),
        ("model.layers.0.mlp.experts.0.up_proj", "expert.w3"),
        ("model.layers.2.mlp.experts.act_fn", "act_fn"),
        ("transformer.h.0.attn.c_proj", "o_proj"),
        ("transformer.h.0.mlp.c_proj", "fc2"),
        ("model.layers.0.mlp.shared_experts.up_proj", "shared_experts.up_proj"),
        ("model.layers.0.mlp.shared_expert_gate", "shared_expert_gate"),
        ("model.layers.0.self_attn.q_norm", "q_norm"),
        ("model.layers.5.mlp.router", "gate"),
        ("model.rotary_emb", "rotary_emb"),
    ],
)
def test_names_of_modules(path: str, name: str) -> None:
    assert part_name(path) == name


def test_kernels_belong_to_the_part_that_launched_them() -> None:
    def mark(name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": "user_annotation", "name": f"inferometer/{name}", "ts": ts, "dur": dur, "args": {}}

    def launch(number: int, ts: float, dur: float, cat: str = "kernel") -> list[dict[str, Any]]:
        link = {"correlation": number, "stream": 7}
        runs = {"ph": "X", "cat": cat, "name": "gemm", "ts": 1e4 + number, "dur": dur, "args": link}
        return [runs, {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts, "dur": 2, "args": link}]

    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        *launch(1, 5, 100),  # before the pass: filling the cache
        mark("forward", 10, 80),
        mark("expert.dispatch", 20, 30),
        mark("act_fn", 30, 10),
        mark("q_proj", 60, 5),
        *launch(2, 22, 3.0),
        *launch(3, 31, 4.5),
        *launch(4, 45, 1.0, "gpu_memset"),  # around the inner part, and in it
        *launch(5, 55, 50),  # between parts: a residual
        mark("forward", 100, 50),
        mark("q_proj", 110, 20),
        *launch(6, 111, 7.0),
        *launch(7, 129, 0.5),
        {"ph": "X", "cat": "gpu_user_annotation", "name": "inferometer/q_proj", "ts": 2e4, "dur": 9, "args": {}},
    ]
    first, second = kernel_seconds(json.dumps({"traceEvents": events}).encode())
    assert first == pytest.approx({"expert.dispatch": 4e-6, "act_fn": 4.5e-6, "q_proj": 0.0})
    assert second == pytest.approx({"q_proj": 7.5e-6})


def test_an_outer_part_does_not_count_its_inner_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 5.0, 6.0, 7.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    clock = WallClock()

    def forward() -> None:
        clock.enter("outer")
        clock.enter("inner")
        clock.leave()
        clock.leave()
        clock.enter("inner")
        clock.leave()

    assert clock.record([forward]) == [{"outer": 2.0, "inner": 6.0}]


class OneEach:
    """Stands in for a clock: every part takes a second each time it is entered."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def enter(self, name: str) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + 1.0

    def leave(self) -> None: ...

    def record(self, forwards: Iterator[Callable[[], object]]) -> list[dict[str, float]]:
        for forward in forwards:
            forward()
        return [self.spent]


def build(models: Path, kind: str, number: int) -> hf_model.Built:
    return hf_model.build(hf_model.checkpoint(str(models / kind)), number, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number", "expected", "own"),
    [
        ("llama", 3, LLAMA, {"rotary_emb"}),
        ("mixtral", 2, ROUTED, {"rotary_emb", "expert.dispatch"}),
        ("qwen3_moe", 3, ROUTED | LLAMA, {"rotary_emb", "expert.dispatch", "q_norm", "k_norm"}),
        ("opt", 2, OPT, {"embed_positions"}),
    ],
)
def test_every_part_of_a_layer_is_named(
    torch: Any, models: Path, kind: str, number: int, expected: set[str], own: set[str]
) -> None:
    built = build(models, kind, number)
    with torch.no_grad(), PartTimer(torch, built.model, built.layers, OneEach()) as parts:
        (found,) = parts.record(iter([lambda: built.run(built.tokens(4))]))
        counts = parts.layers_with(lambda: built.run(built.tokens(4)))
    assert set(found) == expected | own and set(found) - LLM_PROFILE_PARTS == own
    halves = {"expert.w1", "expert.w3"} if "expert.dispatch" in own else set()
    assert {name: seconds for name, seconds in found.items() if seconds != 1.0} == dict.fromkeys(halves, 0.5)
    once = {"embedding", "final_layernorm", "lm_head", "rotary_emb", "embed_positions"}
    if kind == "qwen3_moe":  # its first layer is dense
        assert [counts[name] for name in ("gate_proj", "expert.w2", "act_fn", "lm_head")] == [1, 2, 3, 1]
    else:
        assert all(counts[name] == (1 if name in once else number) for name in counts)


def test_watching_changes_nothing_and_leaves_nothing_behind(torch: Any, models: Path) -> None:
    built = build(models, "llama", 2)
    code = __import__("transformers.models.llama.modeling_llama", fromlist=["_"])
    before, tokens = code.apply_rotary_pos_emb, built.tokens(5)
    with torch.no_grad():
        plain = built.run(tokens).logits
        with PartTimer(torch, built.model, built.layers, WallClock()):
            assert code.apply_rotary_pos_emb is not before
            watched = built.run(tokens).logits
            with pytest.raises(Exception, match="index"):
                built.run(tokens + 10_000)  # a pass that fails in the middle of a part
            assert torch.equal(built.run(tokens).logits, plain)
    assert torch.equal(plain, watched) and code.apply_rotary_pos_emb is before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in built.layers.modules())


def test_the_profiler_sees_the_same_parts(torch: Any, models: Path) -> None:
    built = build(models, "mixtral", 1)
    clock = KernelClock(torch)
    with torch.no_grad(), PartTimer(torch, built.model, built.layers, clock) as parts:
        found = clock.traced([lambda: built.run(built.tokens(3))] * 2)
        assert len(found) == 2 and set(found[0]) == set(found[1]) == set(parts.places)
        if not torch.cuda.is_available():
            assert not any(found[0].values())
            with pytest.raises(BadValue, match="saw no kernels"):
                clock.record([lambda: built.run(built.tokens(3))])


# ------------------------------------------------------------------ the file


def test_rows_are_in_llm_profiles_columns(profile: Profile, tmp_path: Path) -> None:
    ran = profile("llama", "--json")
    found = ran.json
    assert ran.code == 0 and found["counts"] == {"measured": 8, "kept": 0, "failed": 0, "left": 0}
    assert found["own_names"] == ["rotary_emb"] and found["weights"] == "random weights" and "rotary_emb" in ran.err
    path = tmp_path / "here" / "llama.csv"
    assert found["file"] == str(path)
    assert path.read_text().splitlines()[0] == "hardware,model,layer_name,input,kv_cache,latency(ns)"
    rows = rows_of(path)
    assert {(r["hardware"], r["model"]) for r in rows} == {("here", "llama")}
    assert {r["layer_name"] for r in rows} == LLAMA | {"rotary_emb"} and all(int(r["latency(ns)"]) > 0 for r in rows)
    seen = {(int(r["input"]), int(r["kv_cache"])) for r in rows}
    assert seen == {(1, 0), (2, 0), (4, 0), (8, 0), (1, 1), (1, 2), (1, 4), (1, 8)}
    assert len(rows) == found["rows"] == len(seen) * 16
    how = json.loads((tmp_path / "here" / "llama.json").read_text())
    assert how["repeat"] == 2 and how["num_layers"] == 1 and how["clock"] == "wall" and how["dtype"] == found["dtype"]


def test_what_was_measured_is_not_measured_again(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profile("llama", "--mode", "prefill", "--json").json["counts"]["measured"] == 4
    path = tmp_path / "here" / "llama.csv"
    before = path.read_text()
    timed = []
    monkeypatch.setattr(layers, "_timed", lambda built, parts, length, passes: timed.append(length) or {"attn": 1e-6})
    again = profile("llama", "--mode", "prefill", "--json").json["counts"]
    assert again == {"measured": 0, "kept": 4, "failed": 0, "left": 0} and path.read_text() == before
    more = profile("llama", "--prefill-max", "12", "--json").json["counts"]
    assert more["kept"] == 4 and more["measured"] == len(timed) == 5
    assert set(timed) == {Length(12, 0), Length(1, 1), Length(1, 2), Length(1, 4), Length(1, 8)}
    assert path.read_text().startswith(before)


def test_an_interrupted_run_loses_nothing(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = layers._timed, []

    def stops(ending: type[BaseException]) -> Any:
        def timed(built: Any, parts: Any, length: Length, passes: Any) -> Any:
            if len(done) == 3:
                raise ending
            done.append(length)
            return real(built, parts, length, passes)

        return timed

    monkeypatch.setattr(layers, "_timed", stops(KeyboardInterrupt))
    assert profile("llama").code == 130
    assert list(LayerRows(tmp_path / "here" / "llama.csv", "here", "llama").rows) == done
    done.clear()
    monkeypatch.setattr(layers, "_timed", stops(layers.OutOfTime))
    counts = profile("llama", "--json").json["counts"]
    assert counts == {"measured": 3, "kept": 3, "failed": 0, "left": 2}
    monkeypatch.setattr(layers, "_timed", stops(layers.OutOfTime))
    ran = profile("llama", *GRID, "--json")  # what was measured is kept, and the rest of the request waits
    assert ran.code == 0 and ran.json["calibration"] is None and "run it again to continue" in ran.err


def test_a_spent_budget_measures_nothing(torch: Any, models: Path, tmp_path: Path) -> None:
    built, table = build(models, "llama", 1), LayerRows(tmp_path / "x.csv", "here", "llama")
    counts = layers._measure(
        built, table, [Length(1, 0), Length(1, 4)], layers.Repeats(1, 1, -1.0), print, lambda *_: None
    )
    assert counts["left"] == 2 and not counts["measured"] and not (tmp_path / "x.csv").exists()


def test_a_length_that_fails_is_said_and_the_others_are_measured(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hf_model.Built.filled

    def filled(self: hf_model.Built, cached: int) -> dict[str, Any]:
        if cached == 4:
            raise RuntimeError("CUDA out of memory.\nTried to allocate")
        return real(self, cached)

    monkeypatch.setattr(hf_model.Built, "filled", filled)
    ran = profile("llama", "--mode", "decode", "--json")
    assert ran.json["counts"] == {"measured": 4, "kept": 0, "failed": 1, "left": 0}
    assert "input 1 after 4: CUDA out of memory. Tried to allocate" in ran.err


def table(tmp_path: Path, text: str, end: str = "\n") -> Path:
    path = tmp_path / "m.csv"
    path.write_text("\n".join([",".join(COLUMNS), *text.split()]) + end)
    return path


def test_a_torn_line_costs_its_length_alone(tmp_path: Path) -> None:
    path = table(tmp_path, "h,m,attn,1,0,5 h,other,attn,1,0,6 h,m,attn,4,0,7 h,m,rope,4,0,8 h,m,q_pr", end="")
    found = LayerRows(path, "h", "m")
    assert found.rows == {Length(1, 0): {"attn": pytest.approx(5e-9)}}
    assert path.read_text().splitlines()[1:] == ["h,other,attn,1,0,6", "h,m,attn,1,0,5"]
    found.add(Length(4, 0), {"attn": 7.4e-9, "rope": 1e-12})
    assert path.read_text().endswith("h,m,attn,4,0,7\nh,m,rope,4,0,1\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h,m,attn,1,0,soon", "line 2: 'h,m,attn,1,0,soon'"),
        ("h,m,attn,1,0,5 h,m,attn,0,0,5", "line 3"),
        ("h,m,attn,1,0", "line 2"),
        ("h,m,attn,1,0,-5", "line 2"),
        ("h,m,attn,1,0,nan", "line 2"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = table(tmp_path, text)
    before = path.read_text()
    with pytest.raises(BadFile, match=words):
        LayerRows(path, "h", "m")
    assert path.read_text() == before


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("kind,dtype,shape\n")
    with pytest.raises(BadFile, match="does not have the columns hardware,model"):
        LayerRows(tmp_path / "m.csv", "h", "m")


def test_rows_of_another_set_up_are_not_mixed_in(profile: Profile, tmp_path: Path) -> None:
    assert profile("llama", "--mode", "prefill", "--prefill-max", "1").code == 0
    before = (tmp_path / "here" / "llama.csv").read_text()
    ran = profile("llama", "--num-layers", "2")
    assert ran.code == 2 and "were measured with num_layers 1, not 2" in ran.err
    assert (tmp_path / "here" / "llama.csv").read_text() == before


def test_real_weights_are_used_where_there_are_some(torch: Any, models: Path, tmp_path: Path) -> None:
    whole = build(models, "llama", 3)
    folder = tmp_path / "tuned"
    whole.model.save_pretrained(folder)
    part = build(tmp_path, "tuned", 2)
    assert part.weights == f"weights from {folder}" and len(part.layers) == 2
    assert torch.equal(part.layers[1].mlp.up_proj.weight, whole.layers[1].mlp.up_proj.weight)
    (folder / "model.safetensors").unlink()
    assert build(tmp_path, "tuned", 2).weights == "random weights"


def test_quantised_models_say_that_they_are_measured_plain(profile: Profile) -> None:
    ran = profile("qwen3_moe", "--mode", "prefill", "--prefill-max", "1")
    assert ran.code == 0 and "its quantisation is ignored" in ran.err
    assert "--num-layers 2 would measure every kind" in ran.err
    assert "layer" in ran.out and "prefill 1" in ran.out and "q_norm" in ran.out


def test_lists_per_layer_are_cut(models: Path) -> None:
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "c", "d"],
        "sizes": [1, 2, 3],
        "pattern": "M-M*",
        "name": "four",
    }
    before = copy.deepcopy(config)
    assert hf_model.shortened(config, 2) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "sizes": [1, 2, 3],
        "pattern": "M-",
        "name": "four",
    }
    assert config == before
    assert hf_model.shortened({"text_config": {"n_layer": 5}}, 1) == {"text_config": {"n_layer": 1}}
    sketch, sketched = hf_model.outline(hf_model.checkpoint(str(models / "qwen3_moe")), 4)
    assert hf_model.layers_of_every_kind(sketched) == 2
    each = sum(w.numel() * w.element_size() for w in sketched.parameters()) / 4
    rest = sum(w.numel() * w.element_size() for w in sketch.parameters()) - 4 * each
    assert [hf_model.layers_that_fit(sketch, sketched, rest + share * each) for share in (-1, 0.9, 2.1, 99)] == [
        0,
        0,
        2,
        4,
    ]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "opt-6.7b", "gpt-oss-20b"])
def test_what_is_built_is_what_is_predicted(torch: Any, name: str) -> None:
    """transformers and our own reading of a config agree on every parameter, so rows are of the right sizes."""
    check = hf_model.checkpoint(name)
    sketch, _ = hf_model.outline(check, check.layers)
    expected = parameters(inferometer_models.build(catalog.model(name).config))
    assert sum(weight.numel() for weight in sketch.parameters()) == pytest.approx(expected, rel=1e-5)


def test_what_a_catalogue_entry_leaves_out_is_null(torch: Any, models: Path) -> None:
    sketch, _ = hf_model.outline(hf_model.checkpoint("mistral-7b-v0.3"), 1)
    assert sketch.config.sliding_window is None
    (models / "sliding").mkdir(exist_ok=True)
    config = {**CONFIGS["llama"], "model_type": "mistral"}
    (models / "sliding" / "config.json").write_text(json.dumps(config))
    sketch, _ = hf_model.outline(hf_model.checkpoint(str(models / "sliding")), 1)
    assert sketch.config.sliding_window == 4096, "in a config.json the library's defaults hold"


# ------------------------------------------------------------------ calibration


def test_factors_are_medians_and_errors_what_is_left() -> None:
    points = [
        scaling_factors.CalibrationPoint("prefill", n, 0, took, 1.0) for n, took in ((1, 1.0), (2, 2.0), (3, 4.0))
    ]
    found = scaling_factors.fit_factor(
        [*points, scaling_factors.CalibrationPoint("decode", 1, 1, 30.0, 10.0)], "prefill"
    )
    assert found["factor"] == 2.0 and found["points"] == 3
    assert found["mean_error"] == pytest.approx((1.0 + 0.0 + 0.5) / 3) and found["max_error"] == pytest.approx(1.0)
    assert (
        scaling_factors.fit_factor([scaling_factors.CalibrationPoint("decode", 1, 1, 30.0, 10.0)], "decode")["factor"]
        == 3.0
    )


def test_a_sum_takes_each_part_as_often_as_it_is_there() -> None:
    rows = {0: {"q_proj": 1.0, "lm_head": 10.0}, 4: {"q_proj": 3.0, "lm_head": 10.0}}
    assert scaling_factors.sum_of_parts(rows, {"q_proj": 32, "lm_head": 1}, 1) == pytest.approx(32 * 1.5 + 10)


def test_a_grid_beyond_the_rows_is_refused() -> None:
    asked = scaling_factors.calibration_grid(None, 4, 12, 4, 1)
    assert asked.inputs == (4, 8, 12)
    enough = [Length(1, 0), Length(12, 0), Length(1, 27)]
    scaling_factors.check_covered(asked, enough, "has")
    with pytest.raises(BadValue, match="prefill rows from 4 to 12 tokens, but the file has from 1 to 11"):
        scaling_factors.check_covered(asked, [Length(1, 0), Length(11, 0), Length(1, 40)], "has")
    with pytest.raises(BadValue, match="decode rows from 4 to 27 tokens, but the file has from 0 to 26"):
        scaling_factors.check_covered(asked, [*enough[:2], Length(1, 26)], "has")
    with pytest.raises(BadValue, match="none at all"):
        scaling_factors.check_covered(asked, [Length(4, 0), Length(12, 0)], "has")


GRID = [
    "--calibrate",
    "--scaling-input-min",
    "4",
    "--scaling-input-max",
    "8",
    "--scaling-input-step",
    "4",
    "--scaling-repeat",
    "1",
    "--decode-max",
    "24",
]


@pytest.mark.slow
def test_the_whole_model_scales_the_rows(profile: Profile, tmp_path: Path) -> None:
    ran = profile("llama", *GRID, "--force", "--json")  # however noisy this machine is
    found = ran.json["calibration"]
    assert ran.code == 0 and found["num_layers"] == 3 and found["inputs"] == [4, 8]
    assert "calibrating with 3 of 3 layers" in ran.err
    assert (found["prefill"]["points"], found["decode"]["points"]) == (2, 6)
    plain, scaled = rows_of(tmp_path / "here" / "llama.csv"), rows_of(tmp_path / "here" / "llama.scaled.csv")
    assert len(plain) == len(scaled) > 100
    for one, other in zip(plain, scaled, strict=True):
        assert list(one.values())[:5] == list(other.values())[:5]
        factor = found["decode" if one["input"] == "1" else "prefill"]["factor"]
        assert int(other["latency(ns)"]) == pytest.approx(int(one["latency(ns)"]) * factor, rel=1e-3, abs=5)
    for phase in ("prefill", "decode"):  # how large the factor is depends on the machine's clock: no test does
        assert found[phase]["factor"] > 0 and 0 <= found[phase]["mean_error"] <= found[phase]["max_error"]
    text = profile("llama", *GRID).out
    assert "whole model, 3 layers" in text and "over 6 points" in text


def test_the_factors_are_right(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole model that takes exactly twice its rows' sum in prefill, and five times in decode."""
    assert profile("llama", "--decode-max", "24").code == 0
    rows = LayerRows(tmp_path / "here" / "llama.csv", "here", "llama")
    once = {"embedding", "rotary_emb", "final_layernorm", "lm_head"}

    def total(length: Length) -> float:
        return sum(seconds * (1 if name in once else 2) for name, seconds in rows.rows[length].items())

    monkeypatch.setattr(scaling_factors, "STEPS", (1,))
    monkeypatch.setattr(
        scaling_factors, "_run", lambda built, new: [2 * total(Length(new, 0)), 5 * total(Length(1, new))]
    )
    found = profile("llama", *GRID, "--scaling-num-layers", "2", "--json").json["calibration"]
    assert found["num_layers"] == 2
    assert (found["prefill"]["factor"], found["decode"]["factor"]) == pytest.approx((2.0, 5.0))
    assert max(found[phase]["max_error"] for phase in ("prefill", "decode")) < 1e-9
    scaled = LayerRows(tmp_path / "here" / "llama.scaled.csv", "here", "llama").rows
    ratios = [scaled[Length(8, 0)][name] / rows.rows[Length(8, 0)][name] for name in LLAMA]
    assert statistics.median(ratios) == pytest.approx(2.0, rel=1e-3)


def test_worthless_factors_are_not_written(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_factors, "STEPS", (1,))
    monkeypatch.setattr(scaling_factors, "_run", lambda built, new: [1.0 if new == 4 else 9.0, 1.0])
    ran, scaled = profile("llama", *GRID, "--json"), tmp_path / "here" / "llama.scaled.csv"
    assert ran.code == 1 and not scaled.exists() and ran.json["calibration"]["file"] is None
    assert "these factors are worthless: measure again on an idle machine" in ran.err and "prefill" in ran.err
    forced = profile("llama", *GRID, "--force", "--json")
    assert forced.code == 0 and scaled.exists() and "worthless" in forced.err


def test_rows_of_other_threads_are_not_mixed(profile: Profile, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile("llama").code == 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 96)
    ran = profile("llama", "--prefill-max", "9")
    assert ran.code == 2 and "were measured with threads" in ran.err and "not 96" in ran.err


def test_what_was_measured_of_an_own_model_can_be_imported(profile: Profile, tmp_path: Path) -> None:
    assert profile("llama").code == 0
    rows, kernels = tmp_path / "here" / "llama.csv", tmp_path / "kernels.csv"
    direct = command("analyze", "llama-3.1-8b", "--gpu", "h200", "--profile", str(rows))
    assert direct.code == 0 and f"the kernels of {rows} were measured on" in " ".join(direct.out.split())
    ran = command("profile", "--import", str(rows), "--gpu", "h200", "-o", str(kernels))
    assert ran.code == 0 and "warning: rows say that they were measured on 'here', but are imported as h200" in ran.err
    kinds = {row["kind"] for row in rows_of(kernels)}
    assert {"linear", "norm", "decode_attention", "prefill_attention"} <= kinds
    used = command("analyze", "llama-3.1-8b", "--gpu", "h200", "--profile", str(kernels), "--json")
    assert f"the kernels of {kernels} were measured on 'here', not on h200" in used.json["warnings"], "each time"


# ------------------------------------------------------------------ requests that cannot be


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "profile needs exactly one of: a MODEL, --kernels, --quick, --launches or --import PATH"),
        (["llama-2-7b", "--kernels"], "not MODEL and --kernels"),
        (["--kernels", "--import", "x.csv"], "not --kernels and --import"),
        (["--kernels", "--repeat", "100"], "--repeat belongs to profile MODEL, not to profile --kernels"),
        (["--import", "x.csv", "--device", "cpu"], "--device belongs to profile MODEL, not to profile --import"),
        (["llama-2-7b", "--gpu", "h200"], "--gpu belongs to profile --import, not to profile MODEL"),
        (["llama-2-7b", "--kinds", "moe"], "--kinds belongs to profile --kernels, not to profile MODEL"),
        (["llama-2-7b", "--scaling-repeat", "3"], "--scaling-repeat needs --calibrate"),
        (["llama-2-7b", "--mode", "prefil"], "did you mean prefill"),
        (["llama-2-7b", "--repeat", "0"], "--repeat must be"),
        (["llama-2-7b", "--budget", "soon"], "such as 90s, 10m or 1h, not 'soon'"),
        (["llama-2-7b", "--num-layers", "33"], "--num-layers is 33, but llama-2-7b has 32 layers"),
        (["llama-2-7b", "--calibrate", "--scaling-input-max", "64"], "at least --scaling-input-min, 128, not 64"),
        (["llama-2-7", "--device", "cpu"], "did you mean llama-2-7b"),
        (["llama-2-7b", "-o", ""], "-o"),
    ],
)
def test_one_sentence_for_a_bad_request(args: list[str], words: str) -> None:
    ran = command("profile", *args)
    assert ran.code == 2 and ran.out == "" and ran.err.count("\n") == 1
    assert words in ran.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--device", "gpu"], "unknown --device 'gpu'"),
        (["--hardware", "../up"], "plain name such as H200, not '../up'"),
        (["--hardware", ".."], "plain name"),
        (["--calibrate"], "prefill rows from 128 to 1,024 tokens, but"),
        ([*GRID, "--mode", "prefill"], "decode rows from 4 to 23 tokens, but the file would have from 0 to 0"),
        (["--prefill-max", "0"], "--prefill-max must be between 1"),
        (["--step", "0"], "--step must be between 1"),
    ],
)
def test_one_sentence_before_anything_is_measured(
    profile: Profile, tmp_path: Path, args: list[str], words: str
) -> None:
    ran = profile("llama", *args)
    assert ran.code == 2 and words in ran.err and "Traceback" not in ran.err
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_models_that_cannot_be_measured(profile: Profile, models: Path, tmp_path: Path) -> None:
    for kind, config, words in [
        ("strange", {"num_hidden_layers": 2}, "has no models of type 'strange'"),
        ("llama", {"hidden_size": 32}, "must say how many layers it has"),
        ("llama", {**CONFIGS["llama"], "hidden_size": "wide"}, "cannot build"),
        ("vit", {"num_hidden_layers": 2}, "not a text generation model"),
    ]:
        (models / "bad").mkdir(exist_ok=True)
        (models / "bad" / "config.json").write_text(json.dumps({"model_type": kind, **config}))
        ran = profile("bad")
        assert ran.code == 2 and words in ran.err and ran.err.count("\n") == 1, ran.err
    ran = profile("qwen3_moe", *GRID)
    assert ran.code == 2 and "have them all; give --num-layers 2" in ran.err
    (tmp_path / "file").write_text("mine")
    ran = profile("llama", "-o", str(tmp_path / "file"))
    assert ran.code == 2 and "-o names the folder" in ran.err and (tmp_path / "file").read_text() == "mine"


def test_positions_end_the_lengths(profile: Profile) -> None:
    ran = profile("opt", "--prefill-max", "80", "--decode-max", "80", "--step", "64", "--repeat", "1", "--json")
    assert ran.code == 0 and "opt has 64 positions: longer lengths are skipped" in ran.err
    assert ran.json["longest"]["prefill"]["length"] == 64 and ran.json["longest"]["decode"]["length"] == 63
    assert ran.json["counts"]["failed"] == 0 and ran.json["attention"] == "eager"
