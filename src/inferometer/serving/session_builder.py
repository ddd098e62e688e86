"""Sessions, put together turn by turn: they wait for turns before them, for tools, for people, for sub-agents.

    build = SessionBuilder()
    build.session("task 1", start_s=0.0)
    plan = build.turn(input_tokens=9_000, output_tokens=300)
    reads = [build.turn(4_000, 200, after=[plan], agent=k) for k in (1, 2)]     # two sub-agents
    build.turn(12_000, 500, after=[plan, *reads], wait_s=1.5, extends=plan)
    trace = session_trace(build, "made by hand")

A turn is a request of a `Trace`. It is sent ``wait_s`` seconds after the last of those that it comes ``after`` has
ended; those without one are sent when their session starts.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .prefix_forest import PrefixForest
from .sessions import Sessions


class SessionBuilder:
    """Turns, put together to the columns of a `Trace`; it keeps some numbers for each, however long its prompt is."""

    def __init__(self) -> None:
        self.forest = PrefixForest()
        self.input_tokens, self.output_tokens = array("q"), array("q")
        self.arrival_s, self.wait_s = array("d"), array("d")
        self.after, self.session_of, self.agent, self.number, self.leaf = (array("q") for _ in range(5))
        self.joins = array("q")
        self.names: list[str] = []
        self.start_s = 0.0
        self.last_of: dict[int, int] = {}  # agent of this session -> its last turn
        self.turns_of: dict[int, int] = {}  # agent of this session -> its turns

    def __len__(self) -> int:
        return len(self.input_tokens)

    def session(self, name: str = "", start_s: float = 0.0) -> None:
        """The turns that follow are of a new session."""
        self.names.append(name)
        self.start_s = start_s
        self.last_of, self.turns_of = {}, {}

    def turn(
        self,
        input_tokens: int,
        output_tokens: int,
        *,
        after: Sequence[int] = (),
        wait_s: float = 0.0,
        agent: int = 0,
        extends: int = -1,
        shared_tokens: int | None = None,
        prefix: tuple[Hashable, int] | None = None,
        leaf: int | None = None,
    ) -> int:
        """A turn; gives its number, by which others come ``after`` it.

        Its prompt begins with the ``shared_tokens`` first tokens of the turn that it ``extends`` and of its answer (all
        of them), or with a ``prefix`` of so many tokens; a reader that has put ids into the forest gives the ``leaf``.
        """
        row, total = len(self.input_tokens), input_tokens + output_tokens
        if leaf is None:
            if extends >= 0:
                whole = self.input_tokens[extends] + self.output_tokens[extends]
                shared = min(whole if shared_tokens is None else shared_tokens, whole, input_tokens)
                leaf = self.forest.grow(self.leaf[extends], shared, total)
            else:
                name, length = prefix or ("", 0)
                length = min(length, input_tokens)
                leaf = self.forest.grow(self.forest.root(name, length), length, total)
        self.leaf.append(leaf)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.arrival_s.append(self.start_s)
        self.wait_s.append(wait_s)
        self.after.append(max(after, default=-1))
        for other in after:
            if other != self.after[row]:
                self.joins.extend((row, other))
        self.session_of.append(len(self.names) - 1)
        self.agent.append(agent)
        self.number.append(self.turns_of.get(agent, 0))
        self.turns_of[agent] = self.number[row] + 1
        self.last_of[agent] = row
        return row

    def columns(self, *, shares: bool = True) -> dict[str, Any]:
        """All turns as the columns of a trace; ``shares``: whether it is known what they have in common."""
        session, agent, turn, after, tokens, answers = (
            np.array(values, np.int64)
            for values in (
                self.session_of,
                self.agent,
                self.number,
                self.after,
                self.input_tokens,
                self.output_tokens,
            )
        )
        joins = np.array(self.joins, np.int64).reshape(-1, 2)
        return {
            "input_tokens": tokens,
            "output_tokens": answers,
            "arrival_s": np.array(self.arrival_s),
            "after": after,
            "think_s": np.array(self.wait_s),
            "prefixes": self.forest.build(self.leaf) if shares else None,
            "sessions": Sessions(session, agent, turn, joins, tuple(self.names) if any(self.names) else ()),
        }
