"""What a Hugging Face model does while it runs, under the names that LLM-Profile gives it.

Modules are named by where they stand. What is no module of its own is caught where PyTorch is called: attention's
products, the experts' products and the rotation of queries and keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from .timer import Forward, Spent

LLM_PROFILE_PARTS = frozenset(
    (
        "embedding",
        "input_layernorm",
        "q_proj",
        "k_proj",
        "v_proj",
        "rope",
        "attn",
        "o_proj",
        "post_layernorm",
        "gate_proj",
        "up_proj",
        "act_fn",
        "down_proj",
        "final_layernorm",
        "lm_head",
        "gate",
        "expert.w1",
        "expert.w2",
        "expert.w3",
        "qk_matmul",
        "softmax",
        "sv_matmul",
        "fc1",
        "fc2",
    )
)
W13 = "expert.w13"  # gate and up in one product, as fused experts have it
DISPATCH = "expert.dispatch"  # what fused experts do besides products: sort, gather, weigh, add up

_IN_ATTENTION = dict.fromkeys(("out_proj", "dense", "c_proj", "wo"), "o_proj")
_IN_EXPERT = {"w1": "w1", "gate_proj": "w1", "w3": "w3", "up_proj": "w3", "w2": "w2", "down_proj": "w2"}
_IN_LAYER = {
    "self_attn_layer_norm": "input_layernorm",
    "ln_1": "input_layernorm",
    "post_attention_layernorm": "post_layernorm",
    "final_layer_norm": "post_layernorm",
    "ln_2": "post_layernorm",
    "activation_fn": "act_fn",
    "act": "act_fn",
    "c_fc": "fc1",
    "c_proj": "fc2",
    "dense_h_to_4h": "fc1",
    "dense_4h_to_h": "fc2",
    "router": "gate",
    "rotary_fn": "rope",
}
_OUTSIDE = dict.fromkeys(("norm", "ln_f", "norm_f", "final_norm", "final_layer_norm"), "final_layernorm")
_IDLE = ("Dropout", "Identity")  # do nothing outside training
_PRODUCTS = frozenset(
    (
        "matmul",
        "bmm",
        "mm",
        "linear",
        "addmm",
        "baddbmm",
        "einsum",
        "grouped_mm",
        "_grouped_mm",
        "grouped_mm_fallback",
        "__matmul__",
    )
)


def part_name(path: str) -> str:
    """The name of a module's part: ``part_name("model.layers.0.self_attn.out_proj")  # 'o_proj'``"""
    names = path.split(".")
    last = next(name for name in reversed(names) if not name.isdigit())
    first = next((place for place, name in enumerate(names) if name.isdigit()), None)
    if first is None:
        return _OUTSIDE.get(last, last)
    around = names[first + 1 : -1]
    if "experts" in around:
        return "act_fn" if last.startswith("act") else f"expert.{_IN_EXPERT.get(last, last)}"
    if shared := next((name for name in around if name.startswith("shared_expert")), None):
        return f"{shared}.{_IN_LAYER.get(last, last)}"
    if any("attn" in name or "attention" in name for name in around) and last in _IN_ATTENTION:
        return _IN_ATTENTION[last]
    return _IN_LAYER.get(last, last)


class Clock(Protocol):
    """What times parts."""

    def enter(self, name: str) -> None:
        """A part begins."""

    def leave(self) -> None:
        """The part that began last ends."""

    def record(self, forwards: Iterator[Forward]) -> list[Spent]:
        """What the parts of each forward pass took."""


class _Scope:
    """Attention, or a layer's fused experts, while it runs."""

    def __init__(self, cycle: tuple[str, ...], depth: int, mode: Any) -> None:
        self.cycle = cycle  # the experts' products in the order they come; none for attention
        self.depth = depth  # of open parts when it began: deeper calls belong to those parts
        self.mode = mode
        self.products = 0
        self.softmax = False

    def part(self, call: str, depth: int) -> str | None:
        """The part that a call of PyTorch begins, if it begins one."""
        if call == "scaled_dot_product_attention":
            return "attn"
        if depth > self.depth:
            return None
        if self.cycle:
            if call not in _PRODUCTS:
                return None
            self.products += 1
            return self.cycle[(self.products - 1) % len(self.cycle)]
        if call == "softmax":
            self.softmax = True
            return "softmax"
        return ("sv_matmul" if self.softmax else "qk_matmul") if call in _PRODUCTS else None


class PartTimer:
    """Times the parts of a model while it is open: ``with PartTimer(torch, model, layers, clock): model(tokens)``

    ``layers`` is the list of the model's decoder layers. ``places`` says in which layers each part was met.
    """

    def __init__(self, torch: Any, model: Any, layers: Any, clock: Clock) -> None:
        self._torch, self._model, self._layers, self._clock = torch, model, layers, clock
        self._undo: list[Callable[[], None]] = []
        self._open: list[str] = []
        self._scopes: list[_Scope] = []
        self._layer: int | None = None
        self.places: dict[str, set[int | None]] = {}
        call = self._call
        self._mode = type(
            "Calls",
            (torch.overrides.TorchFunctionMode,),
            {
                "__torch_function__": lambda mode, function, kinds, args=(), kwargs=None: call(
                    function, args, kwargs or {}
                )
            },
        )

    def __enter__(self) -> PartTimer:
        inputs, outputs = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        numbers = {id(layer): number for number, layer in enumerate(self._layers)}
        for path, module in self._model.named_modules():
            owns = any(True for _ in module.parameters(recurse=False))
            leaf = not any(True for _ in module.children())
            kind = type(module).__name__
            if id(module) in numbers:
                self._around(module, self._layer_setter(numbers[id(module)]), self._layer_setter(None))
            elif module is inputs or module is outputs:
                self._as_part(module, "embedding" if module is inputs else "lm_head")
            elif path.endswith("experts") and owns:
                self._as_part(module, DISPATCH)
                cycle = _cycle([name for name, weight in module.named_parameters(recurse=False) if weight.dim() == 3])
                self._around(module, partial(self._begin, cycle), self._end)
            elif not leaf and ("attention" in kind.lower() or "attn" in kind.lower()):
                self._around(module, partial(self._begin, ()), self._end)
                self._rotations(sys.modules[type(module).__module__])
            elif path and (owns or leaf) and not kind.startswith(_IDLE):
                self._as_part(module, part_name(path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def record(self, forwards: Iterator[Forward]) -> list[Spent]:
        """Time the passes: each part's seconds in one layer, for each pass; halves of a fused product apart."""
        self.places, self._open = {}, []
        passes = []
        for spent in self._clock.record(forwards):
            one = {name: seconds / len(self.places[name]) for name, seconds in spent.items()}
            passes.append(
                {half: one[name] / len(halves) for name in one for halves in [split(name)] for half in halves}
            )
        return passes

    def layers_with(self, forward: Forward) -> dict[str, int]:
        """In how many layers each part is, by running the model once: ``{"embedding": 1, "q_proj": 32, …}``"""
        self.places, self._open = {}, []
        forward()
        return {half: len(where) for name, where in self.places.items() for half in split(name)}

    def _enter(self, name: str) -> None:
        self._open.append(name)
        self.places.setdefault(name, set()).add(self._layer)
        self._clock.enter(name)

    def _leave(self) -> None:
        self._clock.leave()
        self._open.pop()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def _around(self, module: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Run something whenever a module begins and ends, also where it ends with an error."""
        first = module.register_forward_pre_hook(lambda *_: before())
        last = module.register_forward_hook(lambda *_: after(), always_call=True)
        self._undo += [first.remove, last.remove]

    def _as_part(self, module: Any, name: str) -> None:
        self._around(module, partial(self._enter, name), self._leave)

    def _layer_setter(self, number: int | None) -> Callable[[], None]:
        def enter() -> None:
            self._layer = number

        return enter

    def _begin(self, cycle: tuple[str, ...]) -> None:
        self._scopes.append(_Scope(cycle, len(self._open), self._mode()))
        self._scopes[-1].mode.__enter__()

    def _end(self) -> None:
        self._scopes.pop().mode.__exit__(None, None, None)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        call = getattr(function, "__name__", "").partition(".")[0]  # an operator's overload has a dot: mm.default
        name = self._scopes[-1].part(call, len(self._open)) if self._scopes else None
        if name is None:
            return function(*args, **kwargs)
        with self._part(name):
            return function(*args, **kwargs)

    def _rotations(self, code: Any) -> None:
        """Queries and keys are rotated by a plain function of the model's file: it becomes a part, for the time."""
        for name, function in list(vars(code).items()):
            if "apply_rotary" in name and callable(function) and not hasattr(function, "rotates"):
                setattr(code, name, self._rotation(function))
                self._undo.append(partial(setattr, code, name, function))

    def _rotation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def rotate(*args: Any, **kwargs: Any) -> Any:
            with self._part("rope"):
                return function(*args, **kwargs)

        rotate.rotates = True  # type: ignore[attr-defined]
        return rotate


def split(name: str) -> tuple[str, ...]:
    """The rows of a part: gate and up of fused experts, which are equally large, take half of their product each."""
    return ("expert.w1", "expert.w3") if name == W13 else (name,)


def _cycle(weights: list[str]) -> tuple[str, ...]:
    """In which order fused experts multiply by their weights."""
    if any("gate_up" in name for name in weights):
        return (W13, "expert.w2")
    return ("expert.w1", "expert.w3", "expert.w2") if len(weights) > 2 else ("expert.w1", "expert.w2")
