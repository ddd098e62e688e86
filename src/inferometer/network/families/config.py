"""A Hugging Face config.json, read with care: synonyms, nested sections, and sentences about what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...base.errors import BadFile, abbreviate

HUGE = 10**9  # no size of a network is larger than this

MOST_LAYERS = 10_000

# Keys that say how layers are built: a decoder that has one of them is not a stack of equal attention layers.
_STRUCTURE = re.compile(
    r"(mamba|ssm|rwkv|lru|kda|altup|hc|zero_expert|compress|linear_(num|key|value|conv|attn))_.+"
    r"|attn_(layer_.+|type_list|res_block_size)|(full|global)_attn_.+|full_attention_interval|cross_attention_layers"
    r"|hybrid_.+|layers?_(block_)?types?|mlp_layer_types|block_(types?|configs)|sliding_window_lay.+|interleaved_sliding_window"
    r"|layer_group_size|sparse_attention_.+|conv_L_cache|state_size|time_step_rank|num_kv_shared_layers|hidden_size_per_layer_input"
    r"|is_encoder_decoder|(num_)?(encoder|decoder)_layers"
)
WINDOWED = ("sliding_attention", "local_attention", "chunked_attention")  # layer types that see a part of the past
_READ = {  # structural keys that a plain decoder understands, and the words that it knows in them
    "layer_types": {"full_attention", "attention", *WINDOWED},
    "mlp_layer_types": {"dense", "sparse"},
}
_ENCODERS = re.compile(  # model types that answer with vectors, labels or speech, or read with a second network
    r"(al|cam\w*|distil|modern|nomic_)?bert|m?deberta(-v2)?|(xlm-)?roberta(-xl)?|electra|esm|mpnet|new|xlm|xlnet"
    r"|clip|dinov2|siglip|vit|hubert|speech_to_text|wav2vec2(-bert)?|wavlm|whisper"
    r"|m?bart|m2m_100|marian|pegasus|switch_transformers|(long|m|um)?t5"
)


class Config:
    """``Config({"hidden_size": 4096}).size("hidden_size", "n_embd")  # 4096``"""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data, self.where = data, where

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of the keys that is there and not null."""
        for key in keys:
            if self.data.get(key) is not None:
                return self.data[key]
        return default

    def size(self, *keys: str, default: int | None = None, least: int = 1, most: int = HUGE) -> int:
        """A whole number from ``least`` to ``most``; an error names the key when it is missing or absurd."""
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
                raise BadFile(f"{self.where}: {key!r} must be a whole number, not {abbreviate(value)}")
            if not least <= value <= most:
                raise BadFile(f"{self.where}: {key!r} must be between {least} and {most:,}, not {abbreviate(value)}")
            return int(value)
        if default is not None:
            return default
        others = f" (or {', '.join(map(repr, keys[1:]))})" if len(keys) > 1 else ""
        raise BadFile(f"{self.where} lacks {keys[0]!r}{others}, which sets the size of the network")

    def number(self, *keys: str, default: float) -> float:
        """A finite number."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise BadFile(f"{self.where}: {keys[0]!r} must be a number, not {abbreviate(value)}")
        return float(value)

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A yes or no."""
        return bool(self.get(*keys, default=default))

    def items(self, key: str, length: int | None = None) -> list[Any]:
        """A list, of ``length`` entries if that is given; empty if it is missing."""
        value = self.get(key, default=[])
        if not isinstance(value, list | tuple):
            raise BadFile(f"{self.where}: {key!r} must be a list, not {abbreviate(value)}")
        if value and length is not None and len(value) < length:
            raise BadFile(f"{self.where}: {key!r} has {len(value)} entries for {length} layers")
        return list(value)

    def section(self, *keys: str) -> Config | None:
        """A nested table such as ``text_config``, or None."""
        for key in keys:
            value = self.data.get(key)
            if isinstance(value, Mapping) and value:
                return Config(value, f"{self.where}, {key}")
        return None

    @property
    def text(self) -> Config:
        """The language model's own section of a multimodal config, with the outer keys behind it."""
        inner = self.section("text_config", "llm_config", "language_config")
        return Config({**self.data, **inner.data}, inner.where) if inner else self

    @property
    def layers(self) -> int:
        """How many layers there are."""
        number = self.size("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")
        if number > MOST_LAYERS:
            raise BadFile(f"{self.where}: {number:,} layers exceed the maximum of {MOST_LAYERS:,} that any network has")
        return number

    @property
    def tied(self) -> bool:
        """Whether the LM head shares the embedding's weights."""
        return self.flag("tie_word_embeddings")

    def unread_structure(self) -> str:
        """What says that this is no plain decoder: ``"'attn_layer_period' is 8"``, or nothing."""
        kind = str(self.get("model_type", default=""))
        if _ENCODERS.fullmatch(kind):
            return f"'model_type' is {kind!r}, an encoder or a model that has one"
        for key, value in self.data.items():
            strange = [w for w in value if str(w) not in _READ[key]] if key in _READ and _is_list(value) else []
            if strange:
                return f"{key!r} has {abbreviate(strange[0])}"
            if value and key not in _READ and _STRUCTURE.fullmatch(key):
                return f"{key!r} is {abbreviate(value, 40)}"
        return ""


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
