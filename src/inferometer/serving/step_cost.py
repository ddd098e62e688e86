"""Seconds of engine steps for a simulated run: the graph of ``analyze``, compiled once into tables.

times = StepTime(setup, longest=4096)
times.decode(batch)                              # a step in which everyone decodes
times.mixed(batch, [(7, 512, 0)], ends=1)        # the same, and 512 tokens of request 7's prompt

Operators that know only the step's tokens or its logits are one table each (exact). Attention of answers is a row along
the mean context for each batch size (`Rows`); that of prompts a table for one fresh prompt (exact), and a `Surface` for
any mix. Where prompts are of a few ``usual`` lengths, a step with one of them is a row of its own. What the engine adds
is asked of `evaluate`, so there is one truth about a step, and a test compares the two: they agree within 0.5%, nearly
always within 0.05%.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from ..costs import binding, host, roofline
from ..costs.binding import BoundPlan
from ..costs.step import Group, Step, entries_read, query_key_pairs
from ..inference.speculation import draft_plan
from ..network.graph import Block, Span
from .step_tables import ContextTable, PrefillSurface, Spans, decode_only_parts, split_by_dependence

TABLE = 16384  # counts that a table may have; what is larger is priced when it is met
FIRST = 512  # counts that a table begins with
Chunk = tuple[int, int, int]  # a request, the tokens of its prompt that a step computes, and those before them


class DecodeContexts(Protocol):
    """What a step needs to know of the sequences that decode in it."""

    rows: int  # how many there are

    def total(self) -> int:
        """Tokens before this step, of all sequences together."""
        raise NotImplementedError

    def lengths(self) -> np.ndarray:
        """Tokens before this step, of every sequence."""
        raise NotImplementedError

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps, from step ``first`` on."""
        raise NotImplementedError


class StepCost:
    """How long the steps of one engine take (of one pipeline stage, where there are several)."""

    def __init__(self, bound_plan: BoundPlan, longest: int, usual: Iterable[int] = ()) -> None:
        self.bound_plan, self.spans, self.parts = bound_plan, bound_plan.model.spans, split_by_dependence(bound_plan)
        speculation = bound_plan.plan.speculation
        self.width = 1 + (speculation.num_speculative_tokens if speculation else 0)  # rows of a sequence that decodes
        self.pace = speculation.acceptance_length if speculation else 1.0  # tokens that it gains a step
        self.drafter: BoundPlan | None = None
        if speculation and speculation.method != "ngram":
            drafter = draft_plan(bound_plan)
            self.drafter = drafter._replace(env={**drafter.env, "uniform_lengths": bound_plan.env["uniform_lengths"]})
        used = {key for group in (*self.parts.prefill, *self.parts.decode) for key in group}
        self.windows = any(self.spans[key].size != float("inf") for key in used)
        self.eager = bool(bound_plan.env["eager"])
        self.closed = not self.windows and self.pace == 1  # many decode steps have a closed form
        self.direct = bool(bound_plan.env["overlap"])  # where communication hides, the parts of a step do not add up
        reach, most = longest + self.width, bound_plan.plan.max_num_seqs
        self.whole = ContextTable(self._decode_whole, reach, most)
        self.draft = ContextTable(self._draft, reach, most) if self.drafter else None
        if self.windows:
            self.plain, shared = decode_only_parts(self.parts)
            self.look = {
                key: ContextTable(self._answers(key, group), reach, most) for key, group in self.parts.decode.items()
            }
            self.both = {key: ContextTable(self._answers(key, group), reach, most) for key, group in shared.items()}
            self.back = {key: PrefillSurface(self._prompts(key, group)) for key, group in self.parts.prefill.items()}
        else:  # all sums follow from the tokens before: one function for all spans
            self.look = {(): ContextTable(self._all_answers, reach, most)}
            self.back = {(): PrefillSurface(self._all_prompts, self.eager)}
        self.names = binding.step_env(bound_plan, Step(()))
        lengths = () if self.windows else usual
        self.usual = {
            new: (
                ContextTable(self._with_prompt(new, 0.0), reach, most),
                ContextTable(self._with_prompt(new, 1.0), reach, most),
            )
            for new in lengths
        }  # a step's seconds are linear in the heat
        self.throttled = bound_plan.env["throttle_after"] if bound_plan.env["throttle"] else 0.0
        self.tokens, self.logits, self.fresh = (
            _Table(self._of_tokens),
            _Table(self._of_logits),
            _Table(self._of_fresh),
        )
        self.basis = _Table(self._of_rows)

    # ------------------------------------------------------------------ what the loop asks

    def decode(self, batch: DecodeContexts) -> float:
        """Seconds of a step in which everyone decodes."""
        return float(self._durations(batch, 0, 1)[0]) if self.windows else self.whole.one(batch.rows, batch.total())

    def run(self, batch: DecodeContexts, most: int, gap: float, more: int) -> tuple[int, float, float]:
        """Decode steps until ``gap`` seconds have passed, and ``more`` after that; ``most`` at most, one at least.

        Gives the steps, their seconds, and the seconds without the last one.
        """
        if self.closed:
            return self.whole.search(batch.rows, batch.total(), most, gap, more)
        took = np.zeros(1)
        while took[-1] < gap and len(took) <= most:
            done = len(took) - 1
            more_took = self._durations(batch, done, min(most - done, 256))
            took = np.concatenate([took, took[-1] + np.cumsum(more_took)])
        steps = max(1, min(most, int(np.searchsorted(took, gap)) + more))
        if steps == len(took):  # the steps after the gap
            took = np.append(took, took[-1] + self._durations(batch, steps - 1, 1)[0])
        return steps, float(took[steps]), float(took[steps - 1])

    def mixed(self, batch: DecodeContexts | None, chunks: list[Chunk], ends: int, heat: float = 0.0) -> float:
        """Seconds of a step that computes pieces of prompts, of which some end, while everyone in the batch decodes.

        ``heat`` is how hot the chip is when it begins (`Heat`).
        """
        if self.direct:
            return self._exact(batch, chunks, ends, heat)
        rows, pieces = batch.rows if batch is not None else 0, len(chunks)
        if pieces == 1:
            _, new, cached = chunks[0]
            if not cached and batch is not None and new in self.usual:
                cold, hot = self.usual[new]
                took = cold.one(batch.rows, batch.total())
                return took + heat * (hot.one(batch.rows, batch.total()) - took) if heat else took
            if not cached:
                kernels = self.fresh(new)
            elif self.windows:
                kernels = self._looking_back(new, chunks)
            else:
                kernels = self.back[()].at(new, new * (cached + (new if self.eager else (new + 1) / 2)), cached + new)
        else:
            new = sum([tokens for _, tokens, _ in chunks])
            if self.windows:
                kernels = self._looking_back(new, chunks)
            else:
                read = new + sum([cached for _, _, cached in chunks])
                square = 1.0 if self.eager else 0.5
                seen = sum([tokens * (cached + square * tokens) for _, tokens, cached in chunks]) + (1 - square) * new
                kernels = self.back[()].at(new, seen, read)
        decoding, names, drafting = rows * self.width, self.names, 0.0
        kernels += self.tokens(new + decoding) + self.logits(ends + decoding)
        if batch is not None and rows:
            if self.windows:
                kernels += self._looking(batch)
            else:
                kernels += self.look[()].one(rows, batch.total())
            if self.draft is not None:
                drafting = self.draft.one(rows, batch.total())
        if self.parts.other:
            kernels += float(self._seconds(self.parts.other, self._sums(batch, chunks, ends)))
        names["tokens"], names["logits"], names["seqs"] = new + decoding, ends + decoding, rows + pieces
        names["prefill_tokens"], names["prefill_seqs"] = new, pieces
        names["decode_tokens"], names["decode_seqs"], names["thermal_state"] = decoding, rows, heat
        return float(self._engine(names, kernels)) + drafting

    def _engine(self, names: dict[str, Any], kernels: Any) -> Any:
        """A step's seconds from its kernels': the one place where the engine's own time comes in."""
        added = host.host_seconds(self.bound_plan.model, self.bound_plan.engine, names, kernels)
        return (kernels + added) * binding.calibration_factor(self.bound_plan, names)

    # ------------------------------------------------------------------ tables

    def _of_tokens(self, counts: np.ndarray) -> Any:
        return self._kernels(self.parts.tokens, Step((Group(1, counts, 0),)))

    def _of_logits(self, counts: np.ndarray) -> Any:
        return self._kernels(self.parts.logits, Step((Group(counts, 1, 0),)))

    def _of_fresh(self, counts: np.ndarray) -> Any:
        return self._kernels(_every(self.parts.prefill), Step((Group(1, counts, 0),)))

    def _kernels(self, blocks: tuple[Block, ...], step: Step) -> Any:
        return self._seconds(blocks, binding.step_env(self.bound_plan, step))

    def _seconds(self, blocks: tuple[Block, ...], names: dict[str, Any]) -> Any:
        return roofline.kernel_seconds(blocks, binding.padded_env(self.bound_plan, names), self.bound_plan.sources)

    def _decode_whole(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        step = Step((Group(seqs, self.width, context, self.width, True),))
        drafting = self._draft(seqs, context) if self.drafter else 0.0
        return binding.step_seconds(self.bound_plan, step) + drafting

    def _with_prompt(self, new: int, heat: float) -> Callable[[np.ndarray, np.ndarray], Any]:
        """A step of answers with one fresh prompt of a length that is met again and again."""
        bound_plan = self.bound_plan._replace(env={**self.bound_plan.env, "thermal_state": heat})

        def price(seqs: np.ndarray, context: np.ndarray) -> Any:
            step = Step((Group(1, new, 0), Group(seqs, self.width, context, self.width, True)))
            return binding.step_seconds(bound_plan, step) + (self._draft(seqs, context) if self.drafter else 0.0)

        return price

    def _draft(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        assert self.drafter is not None
        return (self.width - 1) * binding.step_seconds(self.drafter, Step((Group(seqs, 1, context, 1, True),)))

    def _all_answers(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        return self._kernels(_every(self.parts.decode), Step((Group(seqs, self.width, context, self.width, True),)))

    def _all_prompts(self, seqs: np.ndarray, new: np.ndarray, cached: np.ndarray) -> Any:
        return self._kernels(_every(self.parts.prefill), Step((Group(seqs, new, cached),)))

    # ------------------------------------------------------------------ windows: every span has sums of its own

    def _answers(self, key: Spans, blocks: tuple[Block, ...]) -> Callable[[np.ndarray, np.ndarray], Any]:
        """Attention of answers over some spans, for sequences that read ``entries`` each."""

        def price(seqs: np.ndarray, entries: np.ndarray) -> Any:
            sums = self._as_full("decode", key, seqs, self.width, np.maximum(entries - self.width, 0))
            return self._seconds(blocks, {**self.names, **sums})

        return price

    def _prompts(self, key: Spans, blocks: tuple[Block, ...]) -> Callable[[np.ndarray, np.ndarray, np.ndarray], Any]:
        """Attention of prompts over some spans, for prompts that look back over ``cached`` entries."""

        def price(seqs: np.ndarray, new: np.ndarray, cached: np.ndarray) -> Any:
            sums = self._as_full("prefill", key, seqs, new, cached)
            return self._seconds(blocks, {**self.names, **sums})

        return price

    def _as_full(self, phase: str, key: Spans, seqs: Any, new: Any, cached: Any) -> dict[str, Any]:
        """Sums of sequences that see all of ``cached``, put where the spans' own would stand."""
        ratio = _ratio(self.spans, key)
        words = {f"{phase}_tokens": seqs * new, f"{phase}_seqs": seqs, f"{phase}_dense": seqs * new * (cached + new)}
        for number, word in enumerate(key):
            tail = f"_{word}" if word else ""
            words[f"{phase}_kv{tail}"] = seqs * (cached + new) / ratio if not number else 0.0
            words[f"{phase}_qk{tail}"] = seqs * new * (cached + (new + 1) / 2) / ratio if not number else 0.0
        return words

    def _looking_back(self, new: int, chunks: list[Chunk]) -> float:
        found = 0.0
        for key, surface in self.back.items():
            ratio, seen, read = _ratio(self.spans, key), 0.0, 0.0
            for span in self._over(key):
                for _, tokens, cached in chunks:
                    seen += (query_key_pairs(span, cached + tokens) - query_key_pairs(span, cached)) * ratio
                    read += entries_read(span, cached, tokens) * ratio
            found += surface.at(new, seen, read)
        return found

    def _looking(self, batch: DecodeContexts) -> float:
        lengths = batch.lengths()
        return sum(rows.one(batch.rows, float(self._entries(key, lengths).sum())) for key, rows in self.look.items())

    def _entries(self, key: Spans, lengths: np.ndarray) -> np.ndarray:
        """What sequences read of the cache over some spans."""
        ratio = _ratio(self.spans, key)
        read = np.zeros(lengths.shape)
        for span in self._over(key):
            read += entries_read(span, lengths, self.width) * ratio
        return read

    def _over(self, key: Spans) -> list[Span]:
        return [self.spans[word] for word in key] or [Span()]

    def _durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps, each by itself."""
        n, gains = batch.rows, batch.gains(first, steps)
        if not self.windows:
            row = self.whole.row(n)
            found: np.ndarray = np.interp(batch.total() / n + gains, self.whole.nodes, row)
            return found
        lengths = batch.lengths()[:, None] + gains[None, :]
        kernels = np.full(steps, self.basis(n))
        for key, rows in (*self.look.items(), *self.both.items()):
            mean = self._entries(key, lengths).mean(axis=0)
            kernels += np.interp(mean, rows.nodes, rows.row(n))
        names = binding.step_env(self.bound_plan, Step((Group(n, self.width, 0, self.width, True),)))
        took: np.ndarray = self._engine(names, kernels)
        if self.draft is not None:
            took = took + np.interp(batch.total() / n + gains, self.draft.nodes, self.draft.row(n))
        return np.broadcast_to(took, (steps,))

    def _of_rows(self, counts: np.ndarray) -> Any:
        """Decode steps but for what looks back."""
        return self._kernels(self.plain, Step((Group(counts, self.width, 0, self.width, True),)))

    # ------------------------------------------------------------------ without tables

    def _sums(self, batch: DecodeContexts | None, chunks: list[Chunk], ends: int) -> dict[str, Any]:
        """All names of a step, sequence by sequence."""
        share = ends / len(chunks) if chunks else 0.0
        names = binding.step_env(
            self.bound_plan, Step(tuple(Group(1, new, cached, share) for _, new, cached in chunks))
        )
        if batch is not None and batch.rows:
            lengths = batch.lengths()
            each = Step((Group(np.ones(len(lengths)), self.width, lengths, self.width, True),)).sums(self.spans)
            names |= {word: names[word] + float(np.sum(value)) for word, value in each.items() if word != "in_a_row"}
            names["moe_tokens"] = names["tokens"] * self.bound_plan.env["dp"]
        return names

    def _exact(self, batch: DecodeContexts | None, chunks: list[Chunk], ends: int, heat: float) -> float:
        names = {**self._sums(batch, chunks, ends), "thermal_state": heat}
        kernels = self._seconds(self.bound_plan.text, names)
        drafting = self.draft.one(batch.rows, batch.total()) if self.draft and batch and batch.rows else 0.0
        return float(self._engine(names, kernels)) + drafting


class _Table:
    """A function of a count, worked out for many at once and more when they are met: ``_Table(price)(300)``"""

    def __init__(self, price: Callable[[np.ndarray], Any]) -> None:
        self.price = price
        self.known: list[float] = []
        self.large: dict[int, float] = {}

    def __call__(self, count: int) -> float:
        if count < len(self.known):
            return self.known[count]
        if count < TABLE:
            have = len(self.known)
            size = max(FIRST, 1 << count.bit_length())
            values = np.broadcast_to(self.price(np.arange(have, size, dtype=float)), (size - have,))
            self.known += values.tolist()
            return self.known[count]
        if count not in self.large:
            self.large[count] = float(np.ravel(self.price(np.array([float(count)])))[0])
        return self.large[count]


def _every(groups: dict[Spans, tuple[Block, ...]]) -> tuple[Block, ...]:
    return tuple(block for blocks in groups.values() for block in blocks)


def _ratio(spans: dict[str, Span], key: Spans) -> float:
    """Entries are counted as tokens where one span is looked over; several spans' entries add up as they are."""
    return spans[key[0]].ratio if len(key) == 1 else 1.0
