"""Seconds of engine steps for a simulated run: the graph of ``analyze``, compiled once into tables.

cost = step_cost(bound_plan, longest=4096)
cost.decode_seconds(batch)                              # a step in which every sequence decodes
cost.mixed_seconds(batch, [(7, 512, 0)], 1)             # the same, and 512 tokens that complete request 7's prompt

Operators that know only the step's tokens or its logits are one table each (exact). Attention of decodes is a row along
the mean context for each batch size (`ContextTable`); that of prompts a table for one fresh prompt (exact), and a
`PrefillSurface` for any mix. What the engine adds comes from `costs.host`, so there is one truth about a step, and
a test compares the two: they agree within 0.5%, nearly always within 0.05%.

Two classes stand behind the protocol `StepCost`: `FullAttentionCost`, where all sums follow from the total context and
many decode steps have a closed form; and `WindowedCost`, where some layers look back over a window (or a part) of the
context and every span has sums of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from ..costs import binding, host, roofline
from ..costs.binding import BoundPlan
from ..costs.step import Group, Step, entries_read, query_key_pairs
from ..inference.speculation import draft_plan
from ..network.graph import Block, Span
from .batch import DecodeContexts, JoinedBatch, are_joining
from .engine_time import EngineTime
from .step_tables import (
    ContextTable,
    CountTable,
    PrefillSurface,
    Spans,
    StepParts,
    decode_only_parts,
    split_by_dependence,
    steps_within,
)

Chunk = tuple[int, int, int]  # a request, the tokens of its prompt that a step computes, and those before them


class StepCost(Protocol):
    """How long the steps of one engine take (of one pipeline stage, where there are several)."""

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decoding sequence computes in a step: one, and those that are drafted."""
        raise NotImplementedError

    @property
    def accepted_per_step(self) -> float:
        """Tokens that it gains in a step: one, and those of the draft that are accepted, on average."""
        raise NotImplementedError

    @property
    def throttle_after(self) -> float:
        """The time constant (s) by which prompts heat the chip (`Throttle`); 0: it keeps its clocks."""
        raise NotImplementedError

    @property
    def cooling(self) -> float:
        """The share of time more that decode steps take while all of that heat is there."""
        raise NotImplementedError

    @property
    def closed_form(self) -> ContextTable | None:
        """Seconds of decode steps as a table to look many steps up in; None if they must be summed."""
        raise NotImplementedError

    @property
    def frequent(self) -> dict[int, tuple[ContextTable, ContextTable]]:
        """Prompt length -> tables of decode steps with one fresh prompt of it, cold and throttled (linear between)."""
        raise NotImplementedError

    def decode_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of a step in which every sequence decodes."""
        raise NotImplementedError

    def decode_steps(self, batch: DecodeContexts, max_steps: int, gap: float, extra: int) -> tuple[int, float, float]:
        """Decode steps until ``gap`` seconds have passed, and ``extra`` after that; from one to ``max_steps``.

        Gives the steps, their seconds, and the seconds without the last one.
        """
        raise NotImplementedError

    def decode_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps from step ``first`` on, each by itself: (steps,)."""
        raise NotImplementedError

    def mixed_seconds(
        self,
        batch: DecodeContexts | None,
        chunks: list[Chunk],
        num_completed: int,
        thermal_state: float = 0.0,
        ahead: float = 0.0,
    ) -> float:
        """Seconds of a step that computes chunks of prompts, and completes some, while the batch decodes.

        ``thermal_state`` is how far the chip is throttled when it begins (`Throttle.fraction_at`), ``ahead`` by how
        many seconds the host is free to launch it before the device is.
        """
        raise NotImplementedError

    def host_seconds(self, num_new: int, num_decoding: int, num_seqs: int) -> float:
        """Seconds that planning and launching a step keep the host busy, with so many tokens of prompts and others."""
        raise NotImplementedError


def step_cost(bound_plan: BoundPlan, longest: int, frequent_prompts: Iterable[int] = ()) -> StepCost:
    """Compile the steps of a plan for sequences of up to ``longest`` tokens; ``frequent_prompts`` have own tables."""
    parts = split_by_dependence(bound_plan)
    if any(
        bound_plan.model.spans[span].size != float("inf") for group in (*parts.prefill, *parts.decode) for span in group
    ):
        return WindowedCost(bound_plan, parts, longest)
    return FullAttentionCost(bound_plan, parts, longest, frequent_prompts)


class CompiledCost(ABC):
    """What both kinds of step have in common: operators that do not look back, the engine's own time, the draft."""

    def __init__(self, bound_plan: BoundPlan, parts: StepParts, longest: int) -> None:
        self.bound_plan, self.spans, self.parts = bound_plan, bound_plan.model.spans, parts
        speculation = bound_plan.plan.speculation
        self.tokens_per_decode = 1 + (speculation.num_speculative_tokens if speculation else 0)
        self.accepted_per_step = speculation.acceptance_length if speculation else 1.0
        self.throttle_after: float = bound_plan.env["throttle_after"] if bound_plan.env["throttle"] else 0.0
        self.draft_plan: BoundPlan | None = None
        if speculation and speculation.method != "ngram":
            drafter = draft_plan(bound_plan)
            self.draft_plan = drafter._replace(
                env={**drafter.env, "uniform_lengths": bound_plan.env["uniform_lengths"]}
            )
        # where communication hides behind computation, the parts of a step do not add up: mixed steps are exact then
        self.parts_overlap = bool(bound_plan.env["overlap"])
        self.table_size = (longest + self.tokens_per_decode, bound_plan.plan.max_num_seqs)
        self.draft_table = ContextTable(self._draft_seconds, *self.table_size) if self.draft_plan else None
        self.frequent: dict[int, tuple[ContextTable, ContextTable]] = {}
        self.by_tokens = CountTable(self._of_tokens)
        self.by_logits = CountTable(self._of_logits)
        self.by_fresh_prompt = CountTable(self._of_fresh_prompt)
        self.launch_s = host.launch_seconds(bound_plan.model, bound_plan.engine)
        self.env = binding.step_env(bound_plan, Step(()))
        self.engine_time = EngineTime(bound_plan, self.env)
        self.cooling = self._cooling() if self.throttle_after else 0.0

    def _cooling(self) -> float:
        """See `StepCost`: nothing where decode steps wait for the host (without CUDA graphs, small models)."""
        busy = float(binding.step_activity(self.bound_plan, Step((self._decode_group(1, 1),))).busy)
        return float(self.env.get("cooling", 0.0)) * (busy > self.host_seconds(0, self.tokens_per_decode, 1))

    def decode_steps(self, batch: DecodeContexts, max_steps: int, gap: float, extra: int) -> tuple[int, float, float]:
        """Decode steps until ``gap`` seconds have passed, and ``extra`` after that; see `StepCost`."""
        return steps_within(lambda first, steps: self.decode_durations(batch, first, steps), max_steps, gap, extra)

    def mixed_seconds(
        self,
        batch: DecodeContexts | None,
        chunks: list[Chunk],
        num_completed: int,
        thermal_state: float = 0.0,
        ahead: float = 0.0,
    ) -> float:
        """Seconds of a step that computes chunks of prompts while the batch decodes; see `StepCost`."""
        if are_joining(chunks):
            return self.decode_seconds(JoinedBatch(batch, chunks))
        if self.parts_overlap:
            return self._exact_mixed_seconds(batch, chunks, num_completed, thermal_state, ahead)
        num_seqs = batch.num_seqs if batch is not None else 0
        num_chunks = len(chunks)
        _, num_new, num_cached = chunks[0]
        if num_chunks == 1 and not num_cached:
            if batch is not None and num_new in self.frequent:
                return self._frequent_seconds(batch, num_new, thermal_state)
            kernels = self.by_fresh_prompt(num_new)
        else:
            num_new = sum([new for _, new, _ in chunks])
            kernels = self.prompt_attention_seconds(num_new, chunks)
        decoding, drafting = num_seqs * self.tokens_per_decode, 0.0
        kernels += self.by_tokens(num_new + decoding) + self.by_logits(num_completed + decoding)
        if batch is not None and num_seqs:
            kernels += self.decode_attention_seconds(batch)
            if self.draft_table is not None:
                drafting = self.draft_table.one(num_seqs, batch.total_context())
        if self.parts.other:
            kernels += float(self.padded_seconds(self.parts.other, self.exact_env(batch, chunks, num_completed)))
        prompts, decodes, logits = (num_new, num_chunks), (decoding, num_seqs), num_completed + decoding
        return self.engine_time.step_seconds(kernels, prompts, decodes, logits, thermal_state, ahead) + drafting

    def host_seconds(self, num_new: int, num_decoding: int, num_seqs: int) -> float:
        """Seconds that planning and launching a step keep the host busy; see `StepCost`."""
        return self.engine_time.busy_seconds(num_new, num_decoding, num_seqs)

    def _frequent_seconds(self, batch: DecodeContexts, num_new: int, thermal_state: float) -> float:
        """Seconds of a decode step with one fresh prompt of a frequent length."""
        cold, hot = self.frequent[num_new]
        num_seqs, context = batch.num_seqs, batch.total_context()
        seconds = cold.one(num_seqs, context)
        if thermal_state:
            seconds += thermal_state * (hot.one(num_seqs, context) - seconds)
        return seconds

    @abstractmethod
    def decode_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of a step in which every sequence decodes."""

    @abstractmethod
    def decode_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps; see `StepCost`."""

    @abstractmethod
    def look_back_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of what looks back over the context in some decode steps, each by itself: (steps,)."""

    @abstractmethod
    def prompt_attention_seconds(self, num_new: int, chunks: list[Chunk]) -> float:
        """Seconds of the chunks' attention, unless they are one fresh prompt."""

    @abstractmethod
    def decode_attention_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of the batch's attention."""

    def with_engine_time(self, env: dict[str, Any], kernels: Any, ahead: float = 0.0) -> Any:
        """A step's seconds from its kernels': the one place where the engine's own time comes in."""
        bound_plan = self.bound_plan
        added = host.host_seconds(bound_plan.model, bound_plan.engine, env, kernels, self.launch_s, ahead)
        return (kernels + added) * binding.calibration_factor(bound_plan, env)

    # ------------------------------------------------------------------ what the tables are made of

    def _of_tokens(self, counts: np.ndarray) -> Any:
        return self._kernels(self.parts.tokens, Step((Group(1, counts, 0),)))

    def _of_logits(self, counts: np.ndarray) -> Any:
        return self._kernels(self.parts.logits, Step((Group(counts, 1, 0),)))

    def _of_fresh_prompt(self, counts: np.ndarray) -> Any:
        return self._kernels(_all_blocks(self.parts.prefill), Step((Group(1, counts, 0),)))

    def _kernels(self, blocks: tuple[Block, ...], step: Step) -> Any:
        return self.padded_seconds(blocks, binding.step_env(self.bound_plan, step))

    def padded_seconds(self, blocks: tuple[Block, ...], env: dict[str, Any]) -> Any:
        """Seconds of some kernels of a step, its tokens padded to a captured graph."""
        return roofline.kernel_seconds(blocks, binding.padded_env(self.bound_plan, env), self.bound_plan.sources)

    def _decode_group(self, seqs: Any, context: Any) -> Group:
        return Group(seqs, self.tokens_per_decode, context, self.tokens_per_decode, True)

    def _draft_seconds(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        if self.draft_plan is None:
            return 0.0
        one = binding.step_seconds(self.draft_plan, Step((Group(seqs, 1, context, 1, True),)))
        return (self.tokens_per_decode - 1) * one

    # ------------------------------------------------------------------ without tables

    def exact_env(self, batch: DecodeContexts | None, chunks: list[Chunk], num_completed: int) -> dict[str, Any]:
        """All names of a step, summed sequence by sequence."""
        share = num_completed / len(chunks) if chunks else 0.0
        env = binding.step_env(self.bound_plan, Step(tuple(Group(1, new, cached, share) for _, new, cached in chunks)))
        if batch is not None and batch.num_seqs:
            contexts = batch.contexts()
            sums = Step((self._decode_group(np.ones(len(contexts)), contexts),)).sums(self.spans)
            env |= {name: env[name] + float(np.sum(value)) for name, value in sums.items() if name != "in_a_row"}
            env["moe_tokens"] = env["tokens"] * self.bound_plan.env["dp"]
        return env

    def _exact_mixed_seconds(
        self, batch: DecodeContexts | None, chunks: list[Chunk], num_completed: int, thermal_state: float, ahead: float
    ) -> float:
        env = {**self.exact_env(batch, chunks, num_completed), "thermal_state": thermal_state}
        kernels = self.padded_seconds(self.bound_plan.text, env)
        drafting = 0.0
        if self.draft_table is not None and batch is not None and batch.num_seqs:
            drafting = self.draft_table.one(batch.num_seqs, batch.total_context())
        return float(self.with_engine_time(env, kernels, ahead)) + drafting


class FullAttentionCost(CompiledCost):
    """Steps whose sums all follow from the total context: one function of it for all layers."""

    def __init__(
        self, bound_plan: BoundPlan, parts: StepParts, longest: int, frequent_prompts: Iterable[int] = ()
    ) -> None:
        super().__init__(bound_plan, parts, longest)
        self.eager = bool(bound_plan.env["eager"])  # eager attention computes all pairs, whatever the mask
        self.decode_table = ContextTable(self._decode_step, *self.table_size)
        self.closed_form = self.decode_table if self.accepted_per_step == 1 else None
        self.decode_attention = ContextTable(self._decode_kernels, *self.table_size)
        self.look_back = ContextTable(self._look_back_kernels, *self.table_size)
        self.prefill_attention = PrefillSurface(self._prefill_kernels, self.eager)
        self.frequent = {
            num_new: (
                ContextTable(self._with_fresh_prompt(num_new, 0.0), *self.table_size),
                ContextTable(self._with_fresh_prompt(num_new, 1.0), *self.table_size),
            )
            for num_new in (() if self.parts_overlap else frequent_prompts)
            if self._computes_longer_than_it_launches(num_new)
        }

    def _computes_longer_than_it_launches(self, num_new: int) -> bool:
        """Whether launches (with 64 answers beside) are hidden; else it matters how far the host is ahead."""
        if not (self.bound_plan.engine.results_after_launches or self.throttle_after):
            return True
        return self.by_fresh_prompt(num_new) + self.by_tokens(num_new) > self.host_seconds(num_new, 64, 64)

    def decode_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of a step in which every sequence decodes."""
        return self.decode_table.one(batch.num_seqs, batch.total_context())

    def decode_steps(self, batch: DecodeContexts, max_steps: int, gap: float, extra: int) -> tuple[int, float, float]:
        """Decode steps until ``gap`` seconds have passed, and ``extra`` after that; see `StepCost`."""
        if self.closed_form is None:
            return super().decode_steps(batch, max_steps, gap, extra)
        return self.closed_form.search(batch.num_seqs, batch.total_context(), max_steps, gap, extra)

    def prompt_attention_seconds(self, num_new: int, chunks: list[Chunk]) -> float:
        """Seconds of the chunks' attention, unless they are one fresh prompt."""
        if len(chunks) == 1:
            cached = chunks[0][2]
            seen = num_new * (cached + (num_new if self.eager else (num_new + 1) / 2))
            return self.prefill_attention.at(num_new, seen, cached + num_new)
        read = num_new + sum([cached for _, _, cached in chunks])
        square = 1.0 if self.eager else 0.5
        seen = sum([new * (cached + square * new) for _, new, cached in chunks]) + (1 - square) * num_new
        return self.prefill_attention.at(num_new, seen, read)

    def decode_attention_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of the batch's attention."""
        return self.decode_attention.one(batch.num_seqs, batch.total_context())

    def decode_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps; see `StepCost`."""
        mean = batch.total_context() / batch.num_seqs + batch.gains(first, steps)
        return np.asarray(np.interp(mean, self.decode_table.nodes, self.decode_table.row(batch.num_seqs)))

    def look_back_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of what looks back over the context in some decode steps, each by itself: (steps,)."""
        mean = batch.total_context() / batch.num_seqs + batch.gains(first, steps)
        return np.asarray(np.interp(mean, self.look_back.nodes, self.look_back.row(batch.num_seqs)))

    def _decode_step(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        step = Step((self._decode_group(seqs, context),))
        return binding.step_seconds(self.bound_plan, step) + self._draft_seconds(seqs, context)

    def _with_fresh_prompt(self, num_new: int, thermal_state: float) -> Callable[[np.ndarray, np.ndarray], Any]:
        """A decode step with one fresh prompt of a length that is met again and again."""
        bound_plan = self.bound_plan._replace(env={**self.bound_plan.env, "thermal_state": thermal_state})

        def estimate(seqs: np.ndarray, context: np.ndarray) -> Any:
            step = Step((Group(1, num_new, 0), self._decode_group(seqs, context)))
            return binding.step_seconds(bound_plan, step) + self._draft_seconds(seqs, context)

        return estimate

    def _decode_kernels(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        return self._kernels(_all_blocks(self.parts.decode), Step((self._decode_group(seqs, context),)))

    def _look_back_kernels(self, seqs: np.ndarray, context: np.ndarray) -> Any:
        blocks = _all_blocks(self.parts.decode) + _all_blocks(decode_only_parts(self.parts)[1])
        return self._kernels(blocks, Step((self._decode_group(seqs, context),)))

    def _prefill_kernels(self, seqs: np.ndarray, new: np.ndarray, cached: np.ndarray) -> Any:
        return self._kernels(_all_blocks(self.parts.prefill), Step((Group(seqs, new, cached),)))


class WindowedCost(CompiledCost):
    """Steps of models some of whose layers look back over a part of the context: every span has sums of its own."""

    closed_form: ContextTable | None = None

    def __init__(self, bound_plan: BoundPlan, parts: StepParts, longest: int) -> None:
        super().__init__(bound_plan, parts, longest)
        self.decode_only_blocks, both_phases = decode_only_parts(self.parts)
        self.decode_attention = {
            spans: ContextTable(self._decode_kernels(spans, blocks), *self.table_size)
            for spans, blocks in self.parts.decode.items()
        }
        self.both_phases_attention = {
            spans: ContextTable(self._decode_kernels(spans, blocks), *self.table_size)
            for spans, blocks in both_phases.items()
        }
        self.prefill_attention = {
            spans: PrefillSurface(self._prefill_kernels(spans, blocks)) for spans, blocks in self.parts.prefill.items()
        }
        self.by_num_seqs = CountTable(self._of_num_seqs)
        self.decode_envs: dict[int, dict[str, Any]] = {}  # sequences -> all names of a step but for the contexts

    def decode_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of a step in which every sequence decodes."""
        n = batch.num_seqs
        if n not in self.decode_envs:
            self.decode_envs[n] = binding.step_env(self.bound_plan, Step((self._decode_group(n, 0),)))
        kernels = self.by_num_seqs(n) + self._look_back_seconds(
            batch, self.decode_attention, self.both_phases_attention
        )
        drafting = self.draft_table.one(n, batch.total_context()) if self.draft_table is not None else 0.0
        return float(self.with_engine_time(self.decode_envs[n], kernels)) + drafting

    def prompt_attention_seconds(self, num_new: int, chunks: list[Chunk]) -> float:
        """Seconds of the chunks' attention, unless they are one fresh prompt."""
        seconds = 0.0
        for spans, surface in self.prefill_attention.items():
            ratio, seen, read = self._ratio(spans), 0.0, 0.0
            for span in self._spans(spans):
                for _, new, cached in chunks:
                    seen += (query_key_pairs(span, cached + new) - query_key_pairs(span, cached)) * ratio
                    read += entries_read(span, cached, new) * ratio
            seconds += surface.at(num_new, seen, read)
        return seconds

    def decode_attention_seconds(self, batch: DecodeContexts) -> float:
        """Seconds of the batch's attention."""
        return self._look_back_seconds(batch, self.decode_attention)

    def _look_back_seconds(self, batch: DecodeContexts, *tables: dict[Spans, ContextTable]) -> float:
        """Seconds of what looks back over the context in one step, from tables by the spans that they look over."""
        contexts = batch.contexts()
        return sum(
            table.one(batch.num_seqs, float(self._entries_read(spans, contexts).sum()))
            for by_spans in tables
            for spans, table in by_spans.items()
        )

    def decode_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps; see `StepCost`."""
        n, gains = batch.num_seqs, batch.gains(first, steps)
        kernels = self.by_num_seqs(n) + self.look_back_durations(batch, first, steps)
        env = binding.step_env(self.bound_plan, Step((self._decode_group(n, 0),)))
        seconds: np.ndarray = self.with_engine_time(env, kernels)
        if self.draft_table is not None:
            mean = batch.total_context() / n + gains
            seconds = seconds + np.interp(mean, self.draft_table.nodes, self.draft_table.row(n))
        return np.broadcast_to(seconds, (steps,))

    def look_back_durations(self, batch: DecodeContexts, first: int, steps: int) -> np.ndarray:
        """Seconds of what looks back over the context in some decode steps, each by itself: (steps,)."""
        contexts = batch.contexts()[:, None] + batch.gains(first, steps)[None, :]  # (num_seqs, steps)
        kernels = np.zeros(steps)
        for spans, table in (*self.decode_attention.items(), *self.both_phases_attention.items()):
            mean = self._entries_read(spans, contexts).mean(axis=0)
            kernels += np.interp(mean, table.nodes, table.row(batch.num_seqs))
        return kernels

    def _of_num_seqs(self, counts: np.ndarray) -> Any:
        """Decode steps but for what looks back."""
        return self._kernels(self.decode_only_blocks, Step((self._decode_group(counts, 0),)))

    def _decode_kernels(self, spans: Spans, blocks: tuple[Block, ...]) -> Callable[[np.ndarray, np.ndarray], Any]:
        """Attention of decodes over some spans, for sequences that read ``entries`` of the cache each."""

        def estimate(seqs: np.ndarray, entries: np.ndarray) -> Any:
            cached = np.maximum(entries - self.tokens_per_decode, 0)
            return self.padded_seconds(
                blocks, {**self.env, **self._as_full("decode", spans, seqs, self.tokens_per_decode, cached)}
            )

        return estimate

    def _prefill_kernels(
        self, spans: Spans, blocks: tuple[Block, ...]
    ) -> Callable[[np.ndarray, np.ndarray, np.ndarray], Any]:
        """Attention of prompts over some spans, for prompts that look back over ``cached`` entries."""

        def estimate(seqs: np.ndarray, new: np.ndarray, cached: np.ndarray) -> Any:
            return self.padded_seconds(blocks, {**self.env, **self._as_full("prefill", spans, seqs, new, cached)})

        return estimate

    def _as_full(self, phase: str, spans: Spans, seqs: Any, new: Any, cached: Any) -> dict[str, Any]:
        """Sums of sequences that see all of ``cached``, put where the spans' own would stand."""
        ratio = self._ratio(spans)
        sums = {f"{phase}_tokens": seqs * new, f"{phase}_seqs": seqs, f"{phase}_dense": seqs * new * (cached + new)}
        for number, span in enumerate(spans):
            tail = f"_{span}" if span else ""
            sums[f"{phase}_kv{tail}"] = seqs * (cached + new) / ratio if not number else 0.0
            sums[f"{phase}_qk{tail}"] = seqs * new * (cached + (new + 1) / 2) / ratio if not number else 0.0
        return sums

    def _entries_read(self, spans: Spans, contexts: np.ndarray) -> np.ndarray:
        """Cache entries that sequences read over some spans: the shape of ``contexts``."""
        each = (entries_read(span, contexts, self.tokens_per_decode) for span in self._spans(spans))
        return self._ratio(spans) * sum(each, np.zeros(contexts.shape))

    def _spans(self, names: Spans) -> list[Span]:
        return [self.spans[name] for name in names] or [Span()]

    def _ratio(self, names: Spans) -> float:
        """Entries are counted as tokens where one span is looked over; several spans' entries add up as they are."""
        return self.spans[names[0]].ratio if len(names) == 1 else 1.0


def _all_blocks(groups: dict[Spans, tuple[Block, ...]]) -> tuple[Block, ...]:
    return tuple(block for blocks in groups.values() for block in blocks)
