"""The residual stream of a decoder: token embedding in, mixing between layers where that is more than a sum, and
final norm, LM head and sampling out.
"""

from __future__ import annotations

from ...base.symbols import names as s
from ..graph import Block, Part
from ..operators import Op, all_gather, all_reduce, elementwise, embedding, linear, norm, sampler


def embed(*, vocab_size: int, hidden_size: int, positions: int = 0, norms: int = 0, width: int = 0) -> Block:
    """Token embedding, with learned ``positions``, an embedding norm, or a narrower table with a projection."""
    dims: dict[str, float] = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    narrow = bool(width) and width != hidden_size
    if narrow:
        dims["word_embed_proj_dim"] = width
    table = s.word_embed_proj_dim if narrow else s.hidden_size
    ops = [embedding("embed_tokens", s.vocab_size, table)]
    ops.append(all_reduce("all_reduce", table))  # the vocabulary is sharded: each rank holds some rows
    if narrow:
        ops.append(linear("embed_project_in", s.word_embed_proj_dim, s.hidden_size, role="embed"))
    if positions:
        dims["max_position_embeddings"] = positions
        ops.append(embedding("embed_positions", s.max_position_embeddings, s.hidden_size, shard=False, inputs=None))
    if norms:
        ops.append(norm("embed_layernorm", s.hidden_size, bias=norms == 2))
    return Block("embed", tuple(ops), dims, stage="embed", residual=False)


def head(
    *,
    vocab_size: int,
    hidden_size: int,
    tied: bool = False,
    bias: bool = False,
    norm_bias: bool = False,
    final_norm: bool = True,
    width: int = 0,
) -> Block:
    """Final norm over all tokens, LM head only for the rows that need logits, then sampling."""
    dims: dict[str, float] = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    narrow = bool(width) and width != hidden_size
    ops = [norm("norm", s.hidden_size, residual=True, bias=norm_bias)] if final_norm else []
    if narrow:
        dims["word_embed_proj_dim"] = width
        ops.append(linear("embed_project_out", s.hidden_size, s.word_embed_proj_dim, role="embed"))
    into = s.word_embed_proj_dim if narrow else s.hidden_size
    ops.append(
        linear(
            "lm_head", into, s.vocab_size, m=s.logits, role="head", shard="column", tied=tied, bias=bias, optional=True
        )
    )
    ops.append(all_gather("all_gather", s.vocab_size, m=s.logits))
    ops.append(sampler("sampler", s.vocab_size))
    return Block("head", tuple(ops), dims, stage="head", residual=False)


def attention_residual(name: str, *, hidden_size: int, num_layers: int, block_size: int) -> Part:
    """Attention residuals (Kimi-K3): a learned mix of the embedding, the sums of finished blocks, and the current one.

    A layer of the n-th block of ``block_size`` layers mixes n + 2 states; the mean of all layers stands for each.
    """
    sources = 2 + sum(i // block_size for i in range(num_layers)) / num_layers
    mix = elementwise(
        name, s.residual_sources * s.hidden_size, s.hidden_size, flops=8 * s.residual_sources, params=2 * s.hidden_size
    )
    return Part((mix,), {"hidden_size": hidden_size, "residual_sources": sources})


def hyper_connected(name: str, part: Part, *, hidden_size: int, hc_mult: int) -> Part:
    """A part between hyper-connections (DeepSeek-V4): ``hc_mult`` residual streams are mixed into its input, and its
    output into each of them, by weights that a small product of all streams gives and Sinkhorn steps balance.
    """
    streams = s.hc_mult * s.hidden_size
    before = (
        linear(f"hc_{name}_fn", streams, (2 + s.hc_mult) * s.hc_mult, role="router", bias=True, inputs=()),
        elementwise(f"hc_{name}_pre", streams, s.hidden_size, flops=2 * s.hc_mult, params=3),
    )
    after = elementwise(f"hc_{name}_post", streams + s.hidden_size, streams, flops=2 * (s.hc_mult + 1))
    dims = {"hidden_size": hidden_size, "hc_mult": hc_mult}
    return Part((*before, *part.ops, after), {**dims, **part.dims})


def hyper_head() -> tuple[Op, ...]:
    """The residual streams of hyper-connections become one again; its block names hidden_size and hc_mult."""
    streams = s.hc_mult * s.hidden_size
    return (
        linear("hc_head_fn", streams, s.hc_mult, role="router", bias=True, inputs=()),
        elementwise("hc_head", streams, s.hidden_size, flops=2 * s.hc_mult, params=1),
    )
