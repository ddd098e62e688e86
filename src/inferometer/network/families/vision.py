"""Vision towers: which one a config's ``vision_config`` describes, and how an image becomes tokens.

    blocks, vision = tower(Config({"model_type": "qwen3_vl", "vision_config": {"depth": 27, …}, …}))

A new tower is one function in this file and one line in ``TOWERS``.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..blocks import encoder, patch_embed, projection
from ..graph import Part, Vision
from ..operators import Op, elementwise, norm
from .clip import clip, gemma3, named
from .config import Config
from .vision_config import Tower, last_norm, mlp_width, pixels, projector, side_of, text_width, tower_sizes


def tower(config: Config) -> Tower | None:
    """The blocks of the vision tower with its projector, and its arithmetic; None where there is none or none known."""
    v = config.section("vision_config") or named(config)
    if v is None:
        return None
    for words in (config, v):  # the whole model's type says more than the tower's: MiniMax calls its own one CLIP
        kind = str(words.get("model_type", default=""))
        for tail in ("_vision_model", "_vision", "_text", "_moe"):
            kind = kind.removesuffix(tail)
        if kind in TOWERS:
            return TOWERS[kind](v, config)
    return None


def _merger(width: int, merge: int, out: int) -> Part:
    merged = width * merge * merge
    return projection(
        "merger", {"merged": merged, "projector_hidden": merged, "out_hidden_size": out}, m=s.image_tokens
    )


def qwen2(v: Config, config: Config) -> Tower:
    """Qwen2-VL, whose ``hidden_size`` is the output's, and Qwen2.5-VL with its windows, gated MLP and RMS norms."""
    newer = v.get("embed_dim") is None
    width = v.size("hidden_size") if newer else v.size("embed_dim")
    out = v.size("out_hidden_size", default=text_width(config)) if newer else v.size("hidden_size")
    patch, merge = v.size("patch_size", default=14), v.size("spatial_merge_size", default=2)
    inner = v.size("intermediate_size") if newer else mlp_width(v, width)
    layers = tower_sizes(Config({**v.data, "hidden_size": width, "intermediate_size": inner}, v.where))
    windowed = newer and v.get("window_size") is not None
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v, v.size("temporal_patch_size", default=2)), bias=False),
        *encoder(
            **layers,
            gated=newer,
            norm_bias=not newer,
            rope=True,
            window=(v.size("window_size") // patch) ** 2 if windowed else 0,
            full=frozenset(i for i in v.items("fullatt_block_indexes") if isinstance(i, int)),
        ),
        projector({"hidden_size": width}, last_norm(not newer), _merger(width, merge, out)),
    )
    cell = (patch * merge) ** 2
    return blocks, Vision(patch, merge, "round", min_pixels=4 * cell, max_pixels=16384 * cell)


def qwen3(v: Config, config: Config) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions besides rotary ones, and DeepStack mergers that feed the first layers."""
    layers = tower_sizes(v)
    width, out = layers["hidden_size"], v.size("out_hidden_size", default=text_width(config))
    patch, merge = v.size("patch_size", default=16), v.size("spatial_merge_size", default=2)
    blocks = [
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v, v.size("temporal_patch_size", default=2)),
            positions=v.size("num_position_embeddings", default=2304),
        ),
        *encoder(**layers, rope=True),
        projector({"hidden_size": width}, last_norm(), _merger(width, merge, out)),
    ]
    deep = len(v.items("deepstack_visual_indexes"))
    if deep:
        first = norm("merger_norm", s.merged, m=s.image_tokens, bias=True, shared=0, inputs=())
        add = elementwise("add_to_layer", 2 * s.out_hidden_size, s.out_hidden_size, m=s.image_tokens)
        blocks.append(projector({}, first, _merger(width, merge, out), add, label="deepstack", times=deep))
    cell = (patch * merge) ** 2
    return tuple(blocks), Vision(patch, merge, "round", min_pixels=64 * cell, max_pixels=16384 * cell)


def gemma4(v: Config, config: Config) -> Tower:
    """Any aspect ratio within a budget of tokens; sandwich norms, a gated MLP, positions by row and by column."""
    layers, patch, merge = tower_sizes(v), v.size("patch_size"), v.size("pooling_kernel_size", default=3)
    width = layers["hidden_size"]
    heads = layers["num_attention_heads"]
    tokens = config.size("vision_soft_tokens_per_image", default=v.size("default_output_length", default=280))
    project = projector(
        {"hidden_size": width, "merge": merge},
        elementwise("pool", s.merge**2 * s.hidden_size, s.hidden_size, m=s.image_tokens, flops=s.merge**2, inputs=()),
        norm("standardize", s.hidden_size, m=s.image_tokens, bias=True, weightless=not v.flag("standardize"), shared=0),
        norm("embedding_norm", s.hidden_size, m=s.image_tokens, weightless=True, shared=0),
        projection(
            "projector", {"hidden_size": width, "out_hidden_size": text_width(config)}, m=s.image_tokens, bias=False
        ),
    )
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            bias=False,
            tables=2,
            positions=v.size("position_embedding_size", default=10240),
        ),
        *encoder(
            **layers,
            attention_width=heads * v.size("head_dim", default=max(1, width // heads)),
            gated=True,
            bias=v.flag("attention_bias"),
            mlp_bias=False,
            norm_bias=False,
            qk_norm=True,
            sandwich=True,
            rope=True,
        ),
        project,
    )
    return blocks, Vision(patch, merge, "budget", tokens=tokens)


def moonvit(v: Config, config: Config) -> Tower:
    """Kimi's MoonViT: native resolution, an interpolated position table; K3 drops the biases and widens attention."""
    layers, patch = tower_sizes(v), v.size("patch_size", default=14)
    kernel = v.items("merge_kernel_size") or [2, 2]
    if not isinstance(kernel[0], int) or kernel[0] < 1:
        raise BadFile(f"{v.where}: 'merge_kernel_size' must hold whole numbers, not {kernel!r}")
    merge, width = kernel[0], layers["hidden_size"]
    out = v.size("text_hidden_size", default=text_width(config))
    second = str(v.get("mm_projector_type", default="patchmerger")) == "patchmergerv2"
    layer_norm = str(v.get("norm_type", default="layernorm")) != "rmsnorm"
    merged = width * merge * merge
    join = projection(
        "projector",
        {"merged": merged, "projector_hidden": merged, "out_hidden_size": out},
        m=s.image_tokens,
        bias=not second,
    )
    extra: list[Part | Op] = (
        [join, norm("projector_norm", s.out_hidden_size, m=s.image_tokens, shared=0)]
        if second
        else [norm("projector_norm", s.hidden_size, m=s.patches, bias=True, shared=0), join]
    )
    places = v.size("init_pos_emb_height", default=64) * v.size("init_pos_emb_width", default=64)
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            positions=places,
            bias=v.flag("patch_embed_proj_bias", default=True),
        ),
        *encoder(
            **layers,
            attention_width=v.size("qkv_hidden_size", default=width),
            rope=True,
            norm_bias=layer_norm,
            bias=v.flag("attn_bias", default=True),
            mlp_bias=v.flag("linear_bias", default=True),
        ),
        projector({"hidden_size": width}, last_norm(layer_norm), *extra),
    )
    limit = 65536 if second else 16384  # patches of one image
    return blocks, Vision(patch, merge, "pad", side=512 * patch, max_pixels=limit * patch * patch)


def llama4(v: Config, config: Config) -> Tower:
    """Tiles of 336 × 336 pixels, each with a class token; a pixel shuffle joins 2 × 2 patches before the adapter."""
    layers, (patch, side, per_side) = tower_sizes(v), side_of(v)
    width = layers["hidden_size"]
    merge = max(1, round(1 / max(v.number("pixel_shuffle_ratio", default=0.5), 0.05)))
    adapter = {
        "merged": width * merge * merge,
        "projector_input_dim": v.size("projector_input_dim"),
        "projector_output_dim": v.size("projector_output_dim"),
        "out_hidden_size": text_width(config),
    }
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            positions=per_side**2 + 1,
            bias=False,
            class_token=True,
            pre_norm=True,
        ),
        *encoder(**layers, rope=True, class_token=True),
        projector(
            {"hidden_size": width},
            last_norm(),
            projection("adapter", adapter, m=s.image_tokens, bias=v.flag("multi_modal_projector_bias")),
        ),
    )
    most = 16  # tiles, besides the one of the whole image
    grids = tuple((a, b) for a in range(1, most + 1) for b in range(1, most + 1) if a * b <= most)
    return blocks, Vision(patch, merge, "tiles", side, grids=grids)


def minimax(v: Config, config: Config) -> Tower:
    """MiniMax-M3: CLIP's layers with rotary positions and native resolution, and a second MLP that merges patches."""
    layers, patch = tower_sizes(v), v.size("patch_size", default=14)
    shrink = v.section("img_token_compression_config") or Config({}, v.where)
    merge, frames = shrink.size("spatial_merge_size", default=2), shrink.size("temporal_patch_size", default=2)
    width, out = layers["hidden_size"], text_width(config)
    inner = config.size("projector_hidden_size", default=out)
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v, frames), bias=False, pre_norm=True),
        *encoder(**layers, rope=True),
        projector(
            {},
            projection(
                "projector", {"hidden_size": width, "projector_hidden": inner, "out_hidden_size": out}, m=s.patches
            ),
            projection(
                "merger",
                {"merged": merge * merge * out, "projector_hidden": inner, "out_hidden_size": out},
                m=s.image_tokens,
            ),
        ),
    )
    side = v.size("image_size", default=2016)
    return blocks, Vision(patch, merge, "round", min_pixels=(patch * merge) ** 2, max_pixels=side * side)


TOWERS: dict[str, Callable[[Config, Config], Tower]] = {
    "qwen2_vl": qwen2,
    "qwen2_5_vl": qwen2,
    "qwen3_vl": qwen3,
    "qwen3_5": qwen3,
    "clip": clip,
    "siglip": clip,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "kimi_k25": moonvit,
    "kimi_k3": moonvit,
    "llama4": llama4,
    "minimax_m3_vl": minimax,
}
