"""Both ends of a decoder: token embedding in, final norm, LM head and sampling out."""

from __future__ import annotations

from ...base.symbols import names as s
from ..graph import Block
from ..operators import all_gather, all_reduce, embedding, linear, norm, sampler


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
