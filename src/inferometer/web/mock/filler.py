"""Tokens of prompts and words of answers, without a tokenizer: prompts are counted by a rule, answers are filler.

A token of text is up to seven Latin letters, three digits, or any other character that is not a space. Answers are
common words, each of which is one token by the same rule: a client that sends an answer back finds it in the cache.

    prompt = PromptTokens.of_text("The quick brown fox")
    prompt.num_tokens, prompt.answer(1).text(0, 3)      # 4, ' would make like'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any
from zlib import crc32

from ...bench.trace_replay import WORDS

_TOKEN = re.compile(r"[A-Za-zÀ-ɏ]{1,7}|\d{1,3}|[^\sA-Za-zÀ-ɏ\d]|\n+|(?P<blank>[^\S\n]{2,})")  # blanks: for speed alone
TAPE = [WORDS[(k * k * 31 + k * 7 + k // 74) % len(WORDS)] for k in range(4096)]  # what answers are read from
_LOOP = TAPE + TAPE


def tokens_of(text: str, limit: int) -> list[str]:
    """The tokens of a text, one more than ``limit`` at most: ``tokens_of("It is 2026.", 9)  # It is 202 6 .``"""
    return list(islice((match[0] for match in _TOKEN.finditer(text) if match.lastgroup is None), limit + 1))


class PromptTokens:
    """A prompt: ``PromptTokens([1, 2, 3])``, token ids or pieces of text; equal ones have equal hashes."""

    def __init__(self, tokens: Sequence[Any]) -> None:
        self.tokens, self.num_tokens = tokens, len(tokens)
        self.chain: list[int] = []  # hashes of its whole blocks
        self.rest: tuple[Any, ...] = ()  # tokens after the last whole block
        self.number = 0  # of its content, from which answers and their lengths follow; the same in every process

    @classmethod
    def of_text(cls, text: str, limit: int = 10**7) -> PromptTokens:
        """``PromptTokens.of_text("Hello there").num_tokens  # 2``"""
        return cls(tokens_of(text, limit))

    def seal(self, size: int) -> None:
        """Keep the hashes of blocks of so many tokens instead of the tokens."""
        before, tokens, whole = 0, self.tokens, self.num_tokens // size * size
        self.number = crc32("\0".join(map(str, tokens)).encode("utf-8", "surrogatepass"))
        for start in range(0, whole, size):
            before = hash((before, *tokens[start : start + size]))
            self.chain.append(before)
        self.rest = tuple(tokens[whole:])
        self.tokens = ()

    def answer(self, seed: int) -> Answer:
        """One of its answers."""
        return Answer(self, seed)


class Answer:
    """The words that follow a prompt, the same ones every time; a `TokenBlocks` for the prefix cache."""

    __slots__ = ("num_tokens", "prompt", "start")

    def __init__(self, prompt: PromptTokens, seed: int) -> None:
        self.prompt, self.num_tokens = prompt, prompt.num_tokens
        self.start = crc32(b"%d %d" % (prompt.number, seed)) % len(TAPE)

    def filler(self, first: int, last: int) -> list[str]:
        """Words ``first`` up to ``last``."""
        begin = (self.start + first) % len(TAPE)
        if last - first <= len(TAPE):
            return _LOOP[begin : begin + last - first]
        return [TAPE[(begin + k) % len(TAPE)] for k in range(last - first)]

    def text(self, first: int, last: int) -> str:
        """The same as text, a space before each."""
        return " " + " ".join(self.filler(first, last)) if last > first else ""

    def hashes(self, size: int) -> Sequence[int]:
        """Of every whole block of the prompt, as `PromptTokens.seal` made them."""
        return self.prompt.chain

    def output_hashes(self, size: int, first: int, last: int) -> Sequence[int]:
        """Of the blocks from ``first`` up to ``last``, with the end of the prompt and the answer."""
        chain, rest = self.prompt.chain, self.prompt.rest
        known = len(chain)
        before = chain[-1] if chain else 0
        tokens = [*rest, *self.filler(0, (last - known) * size - len(rest))]
        hashes = []
        for k in range(last - known):
            before = hash((before, *tokens[k * size : (k + 1) * size]))
            hashes.append(before)
        return hashes[first - known :]
