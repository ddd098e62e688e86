"""What requests share at their beginning, as ids of blocks: one system prompt, or everything said so far in a talk.

Content is named by where it comes from: block k of prefix p, block k of session s. Equal ids are equal content.
"""

from __future__ import annotations

import numpy as np

BLOCK = 16  # tokens that an id stands for: engines cache whole blocks, and 16 is the usual size


def shared_blocks(input_tokens: np.ndarray, output_tokens: np.ndarray, *, prefix: np.ndarray | None = None,
                  prefix_tokens: np.ndarray | None = None, session: np.ndarray | None = None,
                  block_tokens: int = BLOCK) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Ids of the leading blocks of every request.

    ``prefix`` numbers what the first ``prefix_tokens`` of a request are (-1: nothing that others have). ``session``
    numbers the conversation that it is a turn of (-1: none), whose turns begin with everything said before them.
    ``shared_blocks(i, o, prefix=zeros, prefix_tokens=full(n, 100))  # six ids each, the same for all``
    """
    count = len(input_tokens)
    nobody, nothing = np.full(count, -1), np.zeros(count, np.int64)
    group = nobody if prefix is None else prefix
    talk = nobody if session is None else session
    least = nothing if prefix_tokens is None else np.where(group >= 0, np.minimum(prefix_tokens, input_tokens), 0)
    heads = least // block_tokens
    whole = np.where(talk >= 0, (input_tokens + output_tokens) // block_tokens, heads)
    widest, longest = int(heads.max(initial=0)), int(whole.max(initial=0))
    base = (int(group.max(initial=-1)) + 1) * widest  # ids of sessions begin after those of the prefixes
    known: dict[tuple[int, int], np.ndarray] = {}
    found: list[np.ndarray] = []
    for g, s, head, length in zip(group.tolist(), talk.tolist(), heads.tolist(), whole.tolist(), strict=True):
        if s < 0:  # many requests have the very same prefix: they share one array
            key = (g, head)
            if key not in known:
                known[key] = np.arange(g * widest, g * widest + head, dtype=np.int64)
            found.append(known[key])
            continue
        ids = np.arange(base + s * longest, base + s * longest + length, dtype=np.int64)
        ids[:head] = np.arange(g * widest, g * widest + head)
        found.append(ids)
    return tuple(found)


def turns_before(session: np.ndarray) -> np.ndarray:
    """Of every request, the one before it in its session, -1 if there is none: ``[7, 3, 7] -> [-1, -1, 0]``"""
    last: dict[int, int] = {}
    found = np.full(len(session), -1, np.int64)
    for at, talk in enumerate(session.tolist()):
        if talk >= 0:
            found[at] = last.get(talk, -1)
            last[talk] = at
    return found
