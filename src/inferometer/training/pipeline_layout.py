"""Which layers a pipeline rank has: evenly, with fewer on the first and last one, or as Megatron-LM's layout text says.

layer_counts(126, 16, embedding=True, loss=True)        # [7, 8, 8, …, 8, 7]: embedding and loss count as layers
layout_counts("Et*3|(tt|)*29L", 61, 16)                 # (3, 2, 2, …, 0): virtual stages in the order of the model
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base.errors import BadValue, abbreviate

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z])\*(\d+)")
MAX_STAGES = 10_000


def layer_counts(
    num_layers: int,
    stages: int,
    *,
    chunks: int = 1,
    first: int | None = None,
    last: int | None = None,
    embedding: bool = False,
    loss: bool = False,
) -> list[int]:
    """Layers of each virtual stage in the order of the model, ``chunks`` of them on each of ``stages`` ranks.

    ``first`` and ``last`` are the layers of the first and the last rank; ``embedding`` and ``loss`` count as a layer of
    theirs. What does not divide goes to ranks before the last one, from the back.
    """
    if stages == 1:
        return [num_layers]
    given = {0: first, stages - 1: last}
    fixed = sum(count for count in given.values() if count is not None)
    free = [rank for rank in range(stages) if given.get(rank) is None]
    if fixed > num_layers or (fixed < num_layers and not free):
        raise BadValue(
            "`decoder_first_pipeline_num_layers` and `decoder_last_pipeline_num_layers` take "
            f"{fixed} layers, but the model has {num_layers}" + ("" if free else f" for its {stages} stages")
        )
    per, rest = divmod(num_layers - fixed + embedding + loss, len(free) or 1)
    counts = [per] * stages
    for rank, count in given.items():
        counts[rank] = counts[rank] if count is None else count
    order = [rank for rank in reversed(free) if rank != stages - 1] + [rank for rank in free if rank == stages - 1]
    for rank in order[:rest]:
        counts[rank] += 1
    if embedding and first is None:
        counts[0] -= 1
    if loss and last is None:
        counts[-1] -= 1
    return _over_chunks(counts, chunks, embedding and first is None, loss and last is None)


def _over_chunks(counts: Sequence[int], chunks: int, embedding: bool, loss: bool) -> list[int]:
    """The layers of each rank over its virtual stages: what embedding and loss take is of the first and the last."""
    if chunks == 1:
        return list(counts)
    parts: list[list[int]] = []
    for rank, count in enumerate(counts):
        of_embedding, of_loss = embedding and rank == 0, loss and rank == len(counts) - 1
        per, rest = divmod(count + of_embedding + of_loss, chunks)
        part = [per + (chunk < rest) for chunk in range(chunks)]
        part[0] -= of_embedding
        part[-1] -= of_loss
        parts.append(part)
    return [parts[rank][chunk] for chunk in range(chunks) for rank in range(len(counts))]


def layout_counts(text: str, num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each virtual stage in a ``pipeline_model_parallel_layout``: ``"Ett|tt|tt|ttL"``  # (2, 2, 2, 2)

    E is the embedding, t a layer, m a multi-token-prediction module, L the loss; | ends a virtual stage.
    """
    written = text
    while _REPEATED.search(written):
        written = _REPEATED.sub(lambda m: (m[1] or m[3]) * min(int(m[2] or m[4]), MAX_STAGES), written, count=1)
        if len(written) > MAX_STAGES:
            break
    parts = written.rstrip("|").split("|")
    if len(written) > MAX_STAGES:
        raise BadValue(f"`pipeline_model_parallel_layout` {abbreviate(text)} has more than {MAX_STAGES:,} parts")
    if set(written) - set("EtmL|"):
        raise BadValue(
            f"`pipeline_model_parallel_layout` {abbreviate(text)} cannot be read: write E, t, m, L and |, "
            "repeated as t*4 or (tt|)*8"
        )
    counts = tuple(part.count("t") for part in parts)
    if sum(counts) != num_layers:
        raise BadValue(f"`pipeline_model_parallel_layout` has {sum(counts)} layers (t), the model {num_layers}")
    if len(parts) % stages:
        raise BadValue(f"`pipeline_model_parallel_layout` has {len(parts)} stages, which {stages} ranks cannot share")
    return counts
