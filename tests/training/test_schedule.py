"""The schedule of a pipeline's passes, and which layers its ranks have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadValue, train
from inferometer.training.pipeline_layout import layer_counts, layout_counts
from inferometer.training.schedule import pass_order, run_schedule, schedule_seconds

SIZES = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(1, 7))


@pytest.mark.slow
@given(SIZES)
@settings(max_examples=40, deadline=None)
def test_equal_stages_wait_as_the_closed_form_says(sizes: tuple[int, int, int]) -> None:
    ranks, chunks, rounds = sizes
    n = ranks * rounds
    forward, backward = [[1 / chunks] * chunks] * ranks, [[2 / chunks] * chunks] * ranks
    seconds = n * 3 + (ranks - 1) * 3 / chunks
    schedule = run_schedule(forward, backward, n)
    assert schedule.seconds == pytest.approx(seconds) == schedule_seconds(forward, backward, n)
    assert schedule.idle(0) == pytest.approx((ranks - 1) * 3 / chunks)
    for rank in range(ranks):  # every pass once, none before what it needs
        order = pass_order(rank, ranks, chunks, n)
        assert len(set(order)) == len(order) == 2 * n * chunks
        ends = {(p.microbatch, p.chunk, p.backward): (p.start, p.end) for p in schedule.passes[rank]}
        assert all(ends[m, c, True][0] >= ends[m, c, False][1] for m, c, back in ends if back)


@given(st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.1, 4)), min_size=1, max_size=6), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_unequal_stages_take_as_long_as_the_slowest_and_the_others_once(
    stages: list[tuple[float, float]], n: int
) -> None:
    forward, backward = [[f] for f, _ in stages], [[b] for _, b in stages]
    seconds = schedule_seconds(forward, backward, n)
    totals = [f + b for f, b in stages]
    assert n * max(totals) <= seconds * (1 + 1e-9)
    slowest = max(f for f, _ in stages) + max(b for _, b in stages)
    assert seconds <= (n + len(stages) - 1) * slowest * (1 + 1e-9)
    more = schedule_seconds(forward, backward, n + 1)
    assert 1 - (n + 1) * max(totals) / more <= 1 - n * max(totals) / seconds + 1e-9, "the bubble's share grew"


@given(st.integers(1, 150), st.integers(1, 16), st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_layers_are_dealt_out_evenly(layers: int, stages: int, chunks: int, embedding: bool, loss: bool) -> None:
    if layers < stages * chunks + 2:
        return
    counts = layer_counts(layers, stages, chunks=chunks, embedding=embedding, loss=loss)
    assert sum(counts) == layers and len(counts) == (stages * chunks if stages > 1 else 1)
    if stages > 1:
        loads = [
            sum(counts[rank::stages]) + (embedding and rank == 0) + (loss and rank == stages - 1)
            for rank in range(stages)
        ]
        assert max(loads) - min(loads) <= 1
        assert max(counts) - min(counts) <= 2


def test_layouts_as_megatron_writes_them() -> None:
    assert layer_counts(126, 16, embedding=True, loss=True) == [7, *[8] * 14, 7]
    assert layer_counts(61, 8, first=5, last=7) == [5, 8, 8, 8, 8, 8, 9, 7]
    assert layout_counts("Et*4|(t*4|)*14tmL", 61, 4) == (*[4] * 15, 1)
    assert layout_counts("Ett|tt|tt|ttL", 8, 2) == (2, 2, 2, 2)
    for text, sentence in (
        ("Exx|tL", "cannot be read"),
        ("Et|tL", "has 2 layers"),
        ("Ett|t|tL", "3 stages, which 2 ranks"),
    ):
        with pytest.raises(BadValue, match=sentence):
            layout_counts(text, 4, 2)
    report = train("smollm2-360m", pipeline_parallel_size=2, pipeline_model_parallel_layout="Et*10|t*22L")
    even = train("smollm2-360m", pipeline_parallel_size=2)
    virtual = {"pipeline_parallel_size": 2, "global_batch_size": 8}
    written = train("smollm2-360m", pipeline_model_parallel_layout="Et*8|t*8|t*8|t*8L", **virtual)
    assert written.step_seconds == train("smollm2-360m", interleave=2, **virtual).step_seconds
    with pytest.raises(BadValue, match="has 2 virtual stages per rank"):
        train("smollm2-360m", interleave=4, pipeline_model_parallel_layout="Et*8|t*8|t*8|t*8L", **virtual)
    with pytest.raises(BadValue, match="take 40 layers, but the model has 32"):
        train("smollm2-360m", pipeline_parallel_size=2, decoder_first_pipeline_num_layers=40)
    idle = train("smollm2-360m", expert_model_parallel_size=4, reduce_every_microbatch=True)
    assert sum("changes nothing" in text or "change nothing" in text for text in idle.warnings) == 2
    assert report.step_seconds > even.step_seconds and report.memory.stage == 1


def test_context_and_expert_parallel_ranks_that_cannot_be() -> None:
    for kwargs, reason in (
        ({"context_parallel_size": 3}, "2,048 tokens do not divide into 2 × cp 3 pieces"),
        ({"context_parallel_size": 2, "cp_comm_type": "a2a"}, "15 attention heads do not divide by tp 1 × cp 2"),
    ):
        report = train("smollm2-360m", **kwargs)
        assert not report.feasible and report.reason and reason in report.reason
    report = train("qwen3-30b-a3b", data_parallel_size=8, expert_model_parallel_size=3)
    assert report.reason and "8 ranks of tp 1 × cp 1 × dp 8 do not divide by ep 3 × etp 1" in report.reason


def test_context_parallel_ranks_share_the_work() -> None:
    options = {"gpu": "h100-sxm", "seq_len": 16384, "recompute": "full", "zero": 1}
    alone = train("llama-3.2-1b", data_parallel_size=4, **options)
    shared = train("llama-3.2-1b", context_parallel_size=4, **options)
    assert shared.model_flops * 4 == pytest.approx(alone.model_flops)
    assert shared.memory.activation_bytes * 4 == pytest.approx(alone.memory.activation_bytes, rel=0.01)
    assert shared.memory.optimizer_bytes == alone.memory.optimizer_bytes, "ZeRO shards over dp × cp ranks"
    gathered = train("llama-3.2-1b", context_parallel_size=4, cp_comm_type="all_gather", **options)
    assert gathered.breakdown.cp_comm > shared.breakdown.cp_comm == 0, "a ring hides behind attention"


@pytest.mark.slow
@given(st.sampled_from([(2, 1), (4, 1), (4, 2), (8, 1)]), st.integers(1, 12), st.integers(1, 6))
@settings(max_examples=12)
def test_more_micro_batches_never_raise_the_share_of_the_bubble(layout: tuple[int, int], few: int, more: int) -> None:
    stages, chunks = layout
    shares = []
    for groups in (few, few + more):
        report = train(
            "llama-3.1-8b",
            gpu="h100-sxm",
            tensor_parallel_size=8,
            pipeline_parallel_size=stages,
            interleave=chunks,
            global_batch_size=groups * stages,
        )
        shares.append(report.breakdown.pp_bubble / report.step_seconds)
    assert shares[1] <= shares[0] * (1 + 1e-9)


@pytest.mark.parametrize("how", ["p2p", "a2a", "all_gather"])
def test_one_context_parallel_rank_and_one_virtual_stage_change_nothing(how: str) -> None:
    given = {"gpu": "h100-sxm", "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "global_batch_size": 8}
    plain = train("llama-3.1-8b", **given)
    alike = train("llama-3.1-8b", context_parallel_size=1, cp_comm_type=how, interleave=1, **given)
    assert (alike.step_seconds, alike.memory, alike.breakdown) == (plain.step_seconds, plain.memory, plain.breakdown)
    assert not any(op.sent for phase in alike.phases.values() for op in phase.ops if op.name.startswith("context"))


def test_what_each_zero_stage_keeps_by_hand() -> None:
    """Llama-3.1-8B on 8 ranks: 2 bytes of weights, 4 of gradients and 12 of AdamW for each of 8,030,261,248 parameters.

    ZeRO-3 also has room for the two largest units: the embedding and the head, 128,256 × 4,096 in 16 bits each.
    """
    parameters, table = 8_030_261_248, 128_256 * 4096 * 2
    kept = {
        stage: train("llama-3.1-8b", gpu="h100-sxm", data_parallel_size=8, zero=stage, recompute="full").memory
        for stage in range(4)
    }
    by_hand = {
        0: (2, 4, 12),
        1: (2, 4, 12 / 8),
        2: (2, 4 / 8, 12 / 8),  # one micro-batch: gradients leave as soon as they are there
        3: (2 / 8, 4 / 8, 12 / 8),
    }
    for stage, (weights, gradients, optimizer) in by_hand.items():
        units = 2 * table if stage == 3 else 0
        assert kept[stage].weights_bytes == pytest.approx(parameters * weights + units, rel=1e-5)
        assert kept[stage].gradients_bytes == pytest.approx(parameters * gradients, rel=1e-6)
        assert kept[stage].optimizer_bytes == pytest.approx(parameters * optimizer, rel=1e-6)
