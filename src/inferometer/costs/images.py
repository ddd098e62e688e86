"""Images as numbers of patches and tokens: sizes in pixels in, the `Images` of a step out."""

from __future__ import annotations

import math

from ..base.errors import BadValue
from ..network.graph import Vision
from .step import Images


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
    if vision.mode == "tiles":
        rows, columns = _smallest_canvas(vision, height, width)
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
