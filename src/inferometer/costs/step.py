"""A step of the engine as a few sums over its sequences, and a workload as the steps that an engine runs.

    Step((Group(8, new=1024),)).sums({"": Span()})["prefill_qk"]      # query-key pairs of 8 prompts
    prefill(8, 1024, budget=2048)                                     # [(a step of two prompts, 4 times)]
    decode(8, 1024, output=128)                                       # the mean step of the answers

With q new and c cached tokens per sequence: tokens = Σq, seqs = n, kv = what is read of the cache,
qk = Σ(q·c + q(q+1)/2) pairs of query and key, squares = Σq² of prompts (how unlike they are), and logits = rows that
need the LM head. Prefill, decode, chunked mixes and speculative verification are all just groups of sequences. Every
number may be an array, so that the steps of a million workloads are one call.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..base.errors import BadValue
from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..network.graph import Model, Span, Vision

# Nodes on [-1, 1] and weights (that sum to 1) of Gauss-Legendre quadrature of order three.
_GAUSS = ((-0.7745966692414834, 5 / 18), (0.0, 8 / 18), (0.7745966692414834, 5 / 18))


class Group(NamedTuple):
    """``seqs`` equal sequences: ``Group(8, new=1024, cached=0, logits=1)`` is the prefill of 8 prompts."""

    seqs: Value
    new: Value
    cached: Value = 0
    logits: Value = 1  # rows of each sequence that need the LM head
    decode: bool = False


def query_key_pairs(span: Span, n: Value) -> Value:
    """Query-key pairs of the first n positions under the mask: ``query_key_pairs(Span(), 3)  # 6.0``"""
    if span.kind == "chunk":
        chunks = n // span.size
        rest = n - chunks * span.size
        return (chunks * span.size * (span.size + 1) + rest * (rest + 1)) / 2
    if span.size == float("inf"):
        return n * (n + 1) / 2 / span.ratio
    reach = span.size * span.ratio
    near = minimum_of(n, reach)
    return (near * (near + 1) / 2 + (n - near) * reach) / span.ratio


def entries_read(span: Span, cached: Value, new: Value) -> Value:
    """Cache entries that one step of a sequence reads."""
    n = cached + new
    if span.kind == "window":
        return minimum_of(n, span.size + new - 1)
    if span.kind == "top_k":
        return minimum_of(n / span.ratio, new * span.size)
    if span.kind == "chunk":
        return n - cached // span.size * span.size
    return n / span.ratio


def cache_entries(span: Span, n: Value) -> Value:
    """Cache entries that n tokens of a sequence occupy."""
    return minimum_of(n, span.size) if span.kind in ("window", "chunk") else n / span.ratio


class Images(NamedTuple):
    """The images of a step: how many, patches in all, Σ patches² and the tokens they become."""

    count: Value = 0
    patches: Value = 0
    pairs: Value = 0
    tokens: Value = 0


class Step(NamedTuple):
    """What the engine runs at once."""

    groups: tuple[Group, ...]
    images: Images = Images()
    in_a_row: Value = 1.0  # equal steps that follow each other: they keep the chip hot

    def sums(self, spans: dict[str, Span]) -> dict[str, Value]:
        """The named sums that formulas use, for the spans that a model has."""
        suffixed = {f"_{key}" if key else "": span for key, span in spans.items()}
        sums: dict[str, Any] = {"tokens": 0.0, "seqs": 0.0, "logits": 0.0, "prefill_squares": 0.0}
        for phase in ("prefill", "decode"):
            sums |= {f"{phase}_tokens": 0.0, f"{phase}_seqs": 0.0, f"{phase}_dense": 0.0}
            for suffix in suffixed:
                sums[f"{phase}_qk{suffix}"] = sums[f"{phase}_kv{suffix}"] = 0.0
        for group in self.groups:
            phase = "decode" if group.decode else "prefill"
            n, q, c = group.seqs, group.new, group.cached
            sums["tokens"] += n * q
            sums["seqs"] += n
            sums["logits"] += n * group.logits
            sums[f"{phase}_tokens"] += n * q
            sums[f"{phase}_seqs"] += n
            sums[f"{phase}_dense"] += n * q * (c + q)
            if not group.decode:
                sums["prefill_squares"] += n * q * q
            for suffix, span in suffixed.items():
                sums[f"{phase}_qk{suffix}"] += n * (query_key_pairs(span, c + q) - query_key_pairs(span, c))
                sums[f"{phase}_kv{suffix}"] += n * entries_read(span, c, q)
        sums["in_a_row"] = self.in_a_row
        sums |= {"images": self.images.count, "patches": self.images.patches}
        sums |= {"patch_pairs": self.images.pairs, "image_tokens": self.images.tokens}
        return sums


Steps = list[tuple[Step, Value]]  # steps, and how often each of them runs


def prefill(batch: Value, new: Value, cached: Value = 0, *, budget: Value) -> Steps:
    """The prompts of ``batch`` sequences, ``new`` tokens each after ``cached`` ones, at most ``budget`` tokens a step.

    The prompts are laid end to end and cut every ``budget`` tokens: some full steps, and a last one with the rest. All
    full steps are represented by their mean, which has the same tokens and the mean context of their queries; that is
    exact where attention's cost is linear in the context. If the rest is less than a prompt, the last prompt is cut in
    two: its head runs in the full steps, its tail is the last step. Tokens, query-key pairs and logits of all steps add
    up to those of the prompts, whatever the budget.

    Three prompts of 1,000 tokens with a budget of 2,048 are one full step (two prompts, and a head of 48 tokens) and a
    last step of 952 tokens after 48 cached ones:

        prefill(3, 1000, budget=2048)
        # [(Step((Group(2, 1000, 0, logits=1), Group(1, 48, 0, logits=0))), 1), (Step((Group(1, 952, 48),)), 1)]
    """
    total = batch * new
    full_steps = total // budget
    rest = total - full_steps * budget
    has_rest = rest > 0
    is_cut = has_rest * 1.0 * (rest < new)  # 1 where the last prompt is cut in two
    head = is_cut * (new - rest)  # its tokens in the full steps
    whole_prompts = is_cut * (batch - 1) + (1 - is_cut) * full_steps * budget / new  # other prompts in the full steps
    # One full step runs `chunk` tokens of a prompt, so a prompt takes new / chunk steps; likewise the head.
    chunk, head_chunk = minimum_of(new, budget), minimum_of(maximum_of(head, 1), budget)
    divisor = maximum_of(full_steps, 1)  # the mean over no step is not used, but must not divide by 0
    full = Step(
        (
            Group(whole_prompts * new / chunk / divisor, chunk, cached + (new - chunk) / 2, chunk / new),
            Group(head / head_chunk / divisor, head_chunk, cached + (head - head_chunk) / 2 * is_cut, 0),
        ),
        in_a_row=full_steps + has_rest,
    )
    tail = minimum_of(new, maximum_of(rest, 1))  # tokens of each prompt in the last step
    last = Step((Group(rest / tail, tail, cached + new - tail),), in_a_row=full_steps + 1)
    steps: Steps = [(full, full_steps * 1.0), (last, has_rest * 1.0)]
    return [(step, often) for step, often in steps if not scalar(often) or often > 0]


def decode(batch: Value, context: Value, output: Value) -> Step:
    """One step at the mean context of output tokens 2..N: ``decode(8, 1024, 128)``"""
    return Step((Group(batch, 1, context + maximum_of(output - 2, 0) / 2, 1, True),))


def decode_quadrature(model: Model, batch: Value, context: Value, output: Value) -> Steps:
    """Steps and weights whose weighted sum of seconds is that of the mean decode step of output tokens 2..N.

    With full attention the cost is linear in the context, and one step at the mean context is exact. A window or top-k
    makes it bend; Gauss-Legendre quadrature with three nodes then integrates over the contexts of the answer.
    """
    if all(span.size == float("inf") for span in model.spans.values()):
        return [(decode(batch, context, output), 1.0)]
    half_range = maximum_of(output - 2, 0) / 2
    middle = context + half_range
    return [(Step((Group(batch, 1, middle + x * half_range, 1, True),)), weight) for x, weight in _GAUSS]


# ------------------------------------------------------------------ images: pixels as patches and tokens


def image_tokens(vision: Vision, height: int, width: int) -> tuple[int, int]:
    """Patches that the tower sees of one image, and tokens that the decoder gets.

    ``image_tokens(model.vision, 1008, 1008)  # (5184, 1296) for Qwen2.5-VL``
    """
    patches, _, tokens = _count(vision, height, width)
    return patches, tokens


def images(vision: Vision, height: int, width: int, count: int = 1) -> Images:
    """``count`` images of one size as the work of a step; crops of an image do not see each other."""
    patches, crops, tokens = _count(vision, height, width)
    return Images(count * crops, count * patches, count * patches * patches / crops, count * tokens)


def _count(vision: Vision, height: int, width: int) -> tuple[int, int, int]:
    """Patches in all crops of an image, crops, tokens."""
    if min(height, width) < 1:
        raise BadValue(f"an image of {height} × {width} pixels has no pixels")
    if vision.mode == "resize":
        per_side = vision.side // vision.patch
        return per_side**2, 1, (per_side // vision.merge) ** 2
    if vision.mode == "anyres":
        return _anyres(vision, height, width)
    if vision.mode in ("tiles", "aspect"):
        choose = _smallest_canvas if vision.mode == "tiles" else _closest_shape
        rows, columns = choose(vision, height, width)
        crops = rows * columns + (1 if rows * columns > 1 else 0)  # the whole image is one more tile
        per_side = vision.side // vision.patch
        return crops * per_side**2, crops, crops * (per_side // vision.merge) ** 2
    cell = vision.patch * vision.merge
    if vision.mode == "budget":  # the tower pads what it sees to the budget
        scale = math.sqrt(vision.tokens * cell * cell / (height * width))
        rows, columns = max(1, int(scale * height / cell)), max(1, int(scale * width / cell))
        return vision.tokens * vision.merge**2, 1, min(vision.tokens, rows * columns)
    rows, columns = (_padded if vision.mode == "pad" else _rounded)(vision, height, width, cell)
    return rows * columns * vision.merge**2, 1, rows * columns


def _rounded(vision: Vision, height: int, width: int, cell: int) -> tuple[int, int]:
    """Rows and columns of tokens: sides go to the nearest multiple, and into the limits on pixels."""
    down, across = max(1, round(height / cell)), max(1, round(width / cell))
    area = down * across * cell * cell
    if vision.max_pixels and area > vision.max_pixels:
        shrink = math.sqrt(height * width / vision.max_pixels)
        return max(1, int(height / shrink / cell)), max(1, int(width / shrink / cell))
    if area < vision.min_pixels:
        grow = math.sqrt(vision.min_pixels / (height * width))
        return math.ceil(height * grow / cell), math.ceil(width * grow / cell)
    return down, across


def _padded(vision: Vision, height: int, width: int, cell: int) -> tuple[int, int]:
    """Rows and columns of tokens: too large an image is scaled down, then the sides are padded upwards."""
    patch = vision.patch
    patches = max(1, height // patch) * max(1, width // patch)
    limit = vision.max_pixels / patch**2 if vision.max_pixels else patches
    scale = min(1.0, math.sqrt(limit / patches), vision.side / width, vision.side / height)
    return math.ceil(max(1, int(height * scale)) / cell), math.ceil(max(1, int(width * scale)) / cell)


def _anyres(vision: Vision, height: int, width: int) -> tuple[int, int, int]:
    """LLaVA-NeXT and OneVision, one image a prompt: crops of the best grid, without their padding, and the whole.

    Each row of tokens ends with one more for the line break; above 1.1 times the limit the map is scaled down to it.
    """
    side = vision.side
    per_side = side // vision.patch

    def fit(grid: tuple[int, int]) -> tuple[float, float]:
        scale = min(grid[0] * side / height, grid[1] * side / width)
        kept = min(int(height * scale) * int(width * scale), height * width)
        return kept, kept - grid[0] * grid[1] * side * side  # most of the image, then least padding

    rows, columns = max(vision.grids, key=fit)
    down, across = per_side * rows, per_side * columns
    if width / height > across / down:
        down -= 2 * ((down - int(height * across / width)) // 2)
    else:
        across -= 2 * ((across - int(width * down / height)) // 2)
    over = math.sqrt(down * across / vision.tokens) if vision.tokens else 0.0
    if over > 1.1:
        down, across = int(down / over), int(across / over)
    crops = rows * columns + 1
    return crops * per_side**2, crops, down * (across + 1) + per_side**2


def _smallest_canvas(vision: Vision, height: int, width: int) -> tuple[int, int]:
    """Llama 4: the canvas that enlarges the image least, else the one that shrinks it least; then the smallest."""

    def scale(grid: tuple[int, int]) -> float:
        return min(grid[0] * vision.side / height, grid[1] * vision.side / width)

    large = [scale(g) for g in vision.grids if scale(g) >= 1]
    best = min(large) if large else max(scale(g) for g in vision.grids)
    return min((g for g in vision.grids if scale(g) == best), key=lambda g: g[0] * g[1])


def _closest_shape(vision: Vision, height: int, width: int) -> tuple[int, int]:
    """InternVL: the grid nearest in shape; of equal ones the largest that the image fills by half."""
    best, nearest = (1, 1), math.inf
    for grid in sorted(vision.grids, key=lambda g: g[0] * g[1]):
        away = abs(width / height - grid[1] / grid[0])
        fills = height * width > 0.5 * vision.side**2 * grid[0] * grid[1]
        if away < nearest or (away == nearest and fills):
            best, nearest = grid, away
    return best
