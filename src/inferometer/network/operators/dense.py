"""Dense operators: matrix products, table look-ups, norms, element-wise work and sampling."""

from __future__ import annotations

from ...base.symbols import Formula, minimum
from ...base.symbols import names as s
from .op import Op, Work, operator, role_bytes


@operator("linear")
def linear(
    name: str,
    k: Formula,
    n: Formula,
    *,
    m: Formula = s.tokens,
    role: str = "mlp",
    shard: str = "",
    local: Formula | None = None,
    bias: bool = False,
    tied: bool = False,
    groups: Formula = 1,
    shared: Formula = 1,
    optional: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """A matrix product of ``m`` rows with an ``n × k`` weight.

    ``shard="column"`` splits n over the tensor-parallel ranks, ``"row"`` splits k. ``local`` gives this rank's share
    of n where it is not n/tp (replicated KV heads). A tied weight is read but stored elsewhere. With ``groups`` the
    weight is block-diagonal; ``shard="group"`` gives each rank whole groups. ``shared=0`` marks a weight that a token's
    pass does not multiply by (vision tower). An ``optional`` product may have no rows in a step, and then its weight is
    not read.
    """
    weight, inp, peak = role_bytes(role)
    my_n = local if local is not None else (n / s.tp if shard in ("column", "group") else n)
    my_k = k / s.tp if shard in ("row", "group") else k
    my_groups = groups / s.tp if shard == "group" else groups
    per_row = my_k * my_n / my_groups
    params = n * k / groups + (n if bias else 0)
    stored = per_row * weight + (my_n * s.act_bytes if bias else 0)  # biases are not quantised
    return Op(
        name,
        "linear",
        Work(
            flops=2 * m * per_row,
            weights=stored * minimum(m, 1) if optional else stored,
            reads=m * my_k * inp,
            writes=m * my_n * s.act_bytes,
            params=0 if tied else params,
            active=params * shared,
            stored=0 if tied else stored,
        ),
        {"m": m, "n": my_n, "k": my_k / my_groups, "groups": my_groups},
        peak,
        inputs,
        m * my_n * s.act_bytes,
        {"input": (m, my_k), "weight": (my_k, my_n), "output": (m, my_n)},
        role=role,
    )


@operator("embedding")
def embedding(
    name: str,
    rows: Formula,
    width: Formula,
    *,
    m: Formula = s.tokens,
    shard: bool = True,
    role: str = "embed",
    inputs: tuple[str, ...] | None = (),
) -> Op:
    """A gather of ``m`` rows from a table."""
    weight, _, _ = role_bytes(role)
    return Op(
        name,
        "embedding",
        Work(
            weights=m * width * weight,
            writes=m * width * s.act_bytes,
            params=rows * width,
            stored=rows * width * weight / (s.tp if shard else 1),
        ),
        {"m": m, "n": width},
        inputs=inputs,
        output=m * width * s.act_bytes,
        shape={"input": (m,), "weight": (rows, width), "output": (m, width)},
        role=role,
    )


@operator("norm")
def norm(
    name: str,
    width: Formula,
    *,
    m: Formula = s.tokens,
    rows: Formula = 1,
    residual: bool = False,
    bias: bool = False,
    weightless: bool = False,
    params: Formula | None = None,
    shared: Formula = 1,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """RMSNorm or LayerNorm over ``m·rows`` vectors of ``width``, with the residual add in the same kernel.

    Norms of the residual stream work on a share of the tokens under sequence parallelism (``sp`` ranks).
    """
    m = m / s.sp if residual and m is s.tokens else m
    size = m * rows * width
    own = (0 if weightless else width * (2 if bias else 1)) if params is None else params
    return Op(
        name,
        "norm",
        Work(
            flops=(5 if residual else 4) * size,
            weights=own * s.norm_bytes,
            reads=size * s.act_bytes * (2 if residual else 1) * s.unfused,
            writes=size * s.act_bytes * (2 if residual else 1) * s.unfused,
            params=own,
            active=own * shared,
            stored=own * s.norm_bytes,
        ),
        {"m": m * rows, "n": width},
        inputs=inputs,
        output=size * s.act_bytes,
        shape={"input": (m * rows, width), "output": (m * rows, width)},
    )


@operator("elementwise")
def elementwise(
    name: str,
    width: Formula,
    out: Formula | None = None,
    *,
    m: Formula = s.tokens,
    flops: Formula = 1,
    params: Formula = 0,
    extra_reads: Formula = 0,
    calls: int = 1,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """``m`` rows of ``width`` in, ``m`` rows of ``out`` (default the same) out; ``flops`` per output element."""
    out = width if out is None else out
    return Op(
        name,
        "elementwise",
        Work(
            flops=flops * m * out,
            weights=params * s.norm_bytes,
            reads=(m * width * s.act_bytes + extra_reads) * s.unfused,
            writes=m * out * s.act_bytes * s.unfused,
            params=params,
            active=params,
            stored=params * s.norm_bytes,
        ),
        {"m": m, "n": width},
        inputs=inputs,
        output=m * out * s.act_bytes,
        shape={"input": (m, width), "output": (m, out)},
        calls=calls,
    )


@operator("sampler")
def sampler(name: str, vocab: Formula) -> Op:
    """Turn logits into tokens: a few passes in fp32 over ``logits × vocab``."""
    size = s.logits * vocab
    return Op(
        name,
        "sampler",
        Work(flops=5 * size, reads=size * (s.act_bytes + 4), writes=size * 4),
        {"m": s.logits, "n": vocab},
        output=size * 4,
        shape={"input": (s.logits, vocab), "output": (s.logits,)},
        calls=4,
    )
