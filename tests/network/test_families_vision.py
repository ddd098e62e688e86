"""Vision towers, the families that only add one to a known decoder, and diffusion transformers."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest

from inferometer.base.errors import BadFile, BadValue
from inferometer.base.symbols import evaluate
from inferometer.costs.step import Group, Images, Step, image_tokens, images
from inferometer.inference.weights import ALONE
from inferometer.network.families import build
from inferometer.network.graph import Block, Model

ONE_DEVICE = {**ALONE, "eager": 0}


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((files("inferometer") / f"data/models/{name}.toml").read_text())["config"]
    return found


def model(name: str) -> Model:
    return build(config(name), name)


def params(blocks: tuple[Block, ...], field: str = "params") -> float:
    return sum(b.count * evaluate(getattr(op.work, field), {**b.dims, **ONE_DEVICE}) for b in blocks for op in b.ops)


def tower(found: Model) -> tuple[Block, ...]:
    return tuple(b for b in found.blocks if b.stage == "vision")


def products(found: Model, blocks: tuple[Block, ...], step: Step, tp: int = 1) -> float:
    """FLOPs of matrix products and attention."""
    env = {**step.sums(found.spans), **ONE_DEVICE, "tp": tp}
    kinds = ("linear", "prefill_attention")
    ops = [(b, op) for b in blocks for op in b.ops if op.kind in kinds]
    return sum(b.count * evaluate(op.work.flops, {**env, **b.dims}) for b, op in ops)


TOTALS = {
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3-vl-32b": 33_357_390_064,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen2-vl-7b": 8_291_375_616,
    "llava-1.5-7b": 7_063_427_072,
    "llava-onevision-qwen2-0.5b-ov": 893_618_208,
    "llava-onevision-qwen2-7b-ov": 8_030_348_832,
}


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_total_parameters(name: str, total: int) -> None:
    assert params(model(name).blocks) == total


def test_kimi_total_without_its_small_buffers() -> None:
    assert params(model("kimi-k2.5").blocks) == pytest.approx(1026.9e9, rel=1e-3)


TOWERS = {
    "qwen3.5-27b": 460_730_096,
    "gemma-3-27b": 416_866_032 + 1152 * 5376 + 1152,
    "gemma-4-26b-a4b": 569_550_384 - 2 * 1152 + 1152 * 2816,  # the catalogue leaves `standardize` out
    "kimi-k2.5": 416_866_032 + 54_277_888,
    "kimi-k3": 401_214_464 + 46_144_512,
}


@pytest.mark.parametrize(("name", "size"), TOWERS.items())
def test_tower_parameters(name: str, size: int) -> None:
    assert params(tower(model(name))) == size


LLAMA4 = {
    "model_type": "llama4_vision_model",
    "hidden_size": 1408,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 4096,
}
MINIMAX = {
    "model_type": "clip_vision_model",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "image_size": 2016,
    "patch_size": 14,
    "position_embedding_type": "rope",
    "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
}


def test_towers_whose_catalogue_entries_have_text_only() -> None:
    scout = build({**config("llama-4-scout-17b-16e"), "vision_config": LLAMA4})
    assert params(tower(scout)) == 871_932_416
    minimax = {**config("minimax-m3"), "model_type": "minimax_m3_vl", "projector_hidden_size": 6144}
    assert params(tower(build({**minimax, "vision_config": MINIMAX}))) == 631_185_920 + 234_381_312


@pytest.mark.parametrize("name", [*TOTALS, *TOWERS])
def test_no_text_token_multiplies_by_the_tower(name: str) -> None:
    assert params(tower(model(name)), "active") == 0


TOKENS = [  # height, width -> patches, tokens
    ("qwen2.5-vl-7b", 1008, 1008, 5184, 1296),
    ("qwen2-vl-7b", 10, 10, 16, 4),  # no less than 56 × 56 pixels
    ("qwen3-vl-8b", 1024, 1024, 4096, 1024),
    ("qwen3-vl-8b", 8192, 8192, 65536, 16384),  # no more than 4096 × 4096 pixels
    ("qwen3-vl-8b", 256, 256, 256, 64),
    ("llava-1.5-7b", 100, 2000, 576, 576),
    ("gemma-3-27b", 480, 640, 4096, 256),
    ("gemma-4-31b", 1024, 1024, 2520, 256),
    ("gemma-4-31b", 672, 960, 2520, 280),
    ("kimi-k2.5", 1000, 1000, 5184, 1296),
    ("llava-onevision-qwen2-7b-ov", 384, 384, 2 * 729, 27 * 28 + 729),
    ("llava-onevision-qwen2-7b-ov", 1152, 1152, 10 * 729, 81 * 82 + 729),
    ("llava-onevision-qwen2-7b-ov", 2304, 2304, 37 * 729, 81 * 82 + 729),
]


@pytest.mark.parametrize(("name", "height", "width", "patches", "tokens"), TOKENS)
def test_tokens_of_an_image(name: str, height: int, width: int, patches: int, tokens: int) -> None:
    vision = model(name).vision
    assert vision is not None
    assert image_tokens(vision, height, width) == (patches, tokens)


def test_tokens_of_tiles() -> None:
    vision = build({**config("llama-4-scout-17b-16e"), "vision_config": LLAMA4}).vision
    assert vision is not None
    assert image_tokens(vision, 300, 300) == (576, 144)
    assert image_tokens(vision, 1008, 1008) == (10 * 576, 10 * 144)
    assert image_tokens(vision, 5000, 5000) == (17 * 576, 17 * 144)


def test_llava_next_cuts_a_square_in_four_and_adds_line_breaks() -> None:
    vision = build({**config("llava-1.5-7b"), "model_type": "llava_next"}).vision
    assert vision is not None
    assert image_tokens(vision, 672, 672) == (5 * 576, 48 * 49 + 576)


def test_crops_do_not_see_each_other() -> None:
    vision = model("llava-onevision-qwen2-7b-ov").vision
    assert vision is not None
    assert images(vision, 1152, 1152, count=2) == Images(20, 20 * 729, 20 * 729**2, 2 * 7371)


def test_an_image_has_pixels() -> None:
    vision = model("qwen3-vl-8b").vision
    assert vision is not None
    with pytest.raises(BadValue):
        image_tokens(vision, 0, 100)


def test_work_of_a_tower() -> None:
    """CLIP-L/14 at 336 pixels does 191.1 GMACs when its last layer runs; LLaVA leaves that out and projects."""
    found = build({**config("llava-1.5-7b"), "vision_feature_layer": -1})
    assert found.vision is not None
    step = Step((Group(1, 600),), images(found.vision, 336, 336))
    whole = products(found, tower(found), step)
    projector = 2 * 576 * (1024 * 4096 + 4096 * 4096)
    assert whole - projector == pytest.approx(2 * 191.1e9, rel=2e-3)
    usual = model("llava-1.5-7b")
    assert products(usual, tower(usual), step) - projector == pytest.approx(2 * 191.1e9 * 23 / 24, rel=5e-3)
    assert products(usual, tower(usual), step, tp=2) == pytest.approx(products(usual, tower(usual), step) / 2, rel=5e-3)


def test_windows_bound_the_pairs_of_qwen_2_5() -> None:
    found = model("qwen2.5-vl-7b")
    assert found.vision is not None
    step = Step((Group(1, 1300),), images(found.vision, 1008, 1008))
    env = {**step.sums(found.spans), **ONE_DEVICE}
    pairs = {
        b.name: evaluate(op.dims["pairs"], {**env, **b.dims})
        for b in tower(found)
        for op in b.ops
        if op.kind == "prefill_attention"
    }
    assert pairs == {"vision.window_layers": 5184 * 64, "vision.layers": 5184**2}
    assert [b.count for b in tower(found) if "layers" in b.name] == [28, 4]


def test_flat_llava_config_names_its_tower() -> None:
    nested = config("llava-onevision-qwen2-7b-ov")
    flat = {**nested["text_config"], "model_type": "llava_qwen", "mm_vision_tower": "google/siglip-so400m-patch14-384"}
    assert params(build(flat).blocks) == TOTALS["llava-onevision-qwen2-7b-ov"]


def test_llava_with_the_sizes_that_llama_config_fills_in() -> None:
    short = config("llava-1.5-7b")
    short["text_config"] = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    assert params(build(short).blocks) == TOTALS["llava-1.5-7b"]


def test_unknown_tower_is_left_out_and_said() -> None:
    found = build({**config("llama-3.1-8b"), "vision_config": {"model_type": "eagle_eye", "hidden_size": 64}})
    assert found.vision is None
    assert any("vision tower" in note for note in found.warnings)


BROKEN = [
    ("qwen3-vl-8b", {"hidden_size": None}),
    ("qwen3-vl-8b", {"patch_size": 0}),
    ("qwen2-vl-7b", {"mlp_ratio": float("inf")}),
    ("qwen2-vl-7b", {"mlp_ratio": -1}),
    ("llava-1.5-7b", {"patch_size": 1000}),
    ("llava-1.5-7b", {"image_size": [336, 336]}),
    ("kimi-k2.5", {"merge_kernel_size": ["two"]}),
    ("gemma-3-27b", {"num_attention_heads": "many"}),
]


@pytest.mark.parametrize(("name", "change"), BROKEN)
def test_broken_vision_config_is_a_sentence(name: str, change: dict[str, Any]) -> None:
    whole = config(name)
    whole["vision_config"] = {k: v for k, v in {**whole["vision_config"], **change}.items() if v is not None}
    with pytest.raises(BadFile):
        build(whole)


DIT = {  # parameters, and the GMACs that the paper calls Gflops, at 256 × 256 pixels
    "dit-s-2": (33e6, 6.06),
    "dit-b-2": (130e6, 23.01),
    "dit-l-2": (458e6, 80.71),
    "dit-xl-2": (675_129_632, 118.64),
    "dit-s-4": (33e6, 1.41),
    "dit-b-4": (130e6, 5.56),
    "dit-l-4": (458e6, 19.70),
    "dit-xl-4": (675e6, 29.05),
    "dit-s-8": (33e6, 0.36),
    "dit-b-8": (131e6, 1.42),
    "dit-l-8": (459e6, 5.01),
    "dit-xl-8": (676e6, 7.39),
}


@pytest.mark.parametrize(("name", "published"), DIT.items())
def test_diffusion_transformer(name: str, published: tuple[float, float]) -> None:
    found = model(name)
    total, macs = published
    assert params(found.blocks) == (total if name == "dit-xl-2" else pytest.approx(total, rel=6e-3))
    assert products(found, found.blocks, Step((Group(1, found.max_position),))) == pytest.approx(2e9 * macs, rel=8e-3)


def test_broken_diffusion_config_is_a_sentence() -> None:
    for change in ({"mlp_ratio": float("inf")}, {"patch_size": 64}, {"hidden_size": 0}):
        with pytest.raises(BadFile):
            build({**config("dit-xl-2"), **change})


@pytest.mark.parametrize(
    ("height", "width", "tiles"),
    [(448, 448, 1), (300, 300, 1), (1000, 1000, 10), (896, 1344, 7), (1344, 896, 7), (100, 5000, 13)],
)
def test_internvl_takes_the_grid_nearest_in_shape(height: int, width: int, tiles: int) -> None:
    """Of equal shapes the largest that the image fills by half; more than one tile has the whole image besides."""
    vision = model("internvl3-8b").vision
    assert vision is not None
    assert image_tokens(vision, height, width) == (tiles * 1024, tiles * 256)


def test_more_tiles_than_an_image_ever_has_are_refused() -> None:
    with pytest.raises(BadFile, match="'max_dynamic_patch' must be between 1 and 1,000"):
        build({**config("internvl3-8b"), "max_dynamic_patch": 12000})


def test_towers_of_internvl_and_kimi_vl() -> None:
    assert params(tower(model("internvl3-8b"))) == pytest.approx(304e6 + 27.5e6, rel=0.01)  # 300M, and the projector
    assert params(tower(model("internvl3-78b"))) == pytest.approx(5.54e9 + 0.172e9, rel=0.01)  # 6B without 3 layers
    assert params(tower(model("kimi-vl-a3b"))) == pytest.approx(413e6 + 34.5e6, rel=0.02)  # MoonViT, and the projector
    sides = config("internvl3-8b")
    sides["vision_config"] |= {"image_size": [448, 448], "patch_size": [14, 14]}
    assert params(tower(build(sides))) == params(tower(model("internvl3-8b")))
