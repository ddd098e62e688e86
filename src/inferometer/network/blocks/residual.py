"""What stands between the layers of a network where that is more than a sum."""

from __future__ import annotations

from ...base.symbols import names as s
from ..graph import Part
from ..operators import Op, elementwise, linear


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
