"""Whose turns the requests of a trace are: sessions with a main agent and its sub-agents.

plain_sessions(np.array([0, 1, 0]))     # two conversations, of two turns and of one
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Sessions(NamedTuple):
    """Which session, agent and turn every request of a trace is; one entry per request but for the last two."""

    session: np.ndarray  # int64: number of its session, from 0 on
    agent: np.ndarray  # int64: who of the session asks: 0 is the main agent, others are its sub-agents
    turn: np.ndarray  # int64: its number among the turns of that agent, from 0 on
    joins: np.ndarray  # int64, (pairs, 2): a request, and one more that must end before it is sent, beside `after`
    names: tuple[str, ...] = ()  # of the sessions, where they have any

    def __len__(self) -> int:
        return int(self.session.max(initial=-1)) + 1

    def at(self, rows: np.ndarray) -> Sessions:
        """Those of some requests, which are renumbered: ``sessions.at(np.arange(10))``"""
        place = np.full(len(self.session), -1, np.int64)
        place[rows] = np.arange(len(rows))
        joins = place[self.joins] if len(self.joins) else self.joins
        numbers, session = np.unique(self.session[rows], return_inverse=True)
        names = tuple(self.names[n] for n in numbers.tolist()) if self.names else ()
        return Sessions(session, self.agent[rows], self.turn[rows], joins[(joins >= 0).all(axis=1)], names)


def plain_sessions(session: np.ndarray, names: tuple[str, ...] = ()) -> Sessions:
    """Conversations without sub-agents; -1 is a request by itself: ``plain_sessions(np.array([0, 1, 0, -1]))``"""
    alone = session < 0
    number = np.where(alone, len(names) + np.cumsum(alone) - 1, session) if names else session.copy()
    if not names and alone.any():
        number[alone] = int(session.max(initial=-1)) + np.arange(1, int(alone.sum()) + 1)
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], number[order])
    turn = np.empty(len(number), np.int64)
    turn[order] = np.arange(len(number)) - first
    zeros, labels = np.zeros(len(number), np.int64), (*names, *([""] * int(alone.sum())))
    return Sessions(number, zeros, turn, np.zeros((0, 2), np.int64), labels if names else ())
