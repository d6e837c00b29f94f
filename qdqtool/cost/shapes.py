"""What a decoder is made of, in numbers: by name, from its ``config.json``, or as ``layers=16,hidden=2048,…``."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """A decoder without its weights.

    Args:
        name: what it is called.
        layers: blocks of attention and MLP.
        hidden: width between the layers.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: width of a head.
        ffn: width inside the MLP.
        vocab: words.
        ffn_mats: matrices of an MLP: 3 with a gate, else 2.
        tied: whether the head is the embedding.
        window: tokens that a layer with a sliding window sees; 0 without.
        global_every: every how many layers one sees all tokens.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    ffn_mats: int = 3
    tied: bool = False
    window: int = 0
    global_every: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's products."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.ffn_mats * self.hidden * self.ffn

    @property
    def head_weights(self) -> int:
        """Weights of the product with the words' vectors."""
        return self.hidden * self.vocab

    @property
    def weights(self) -> int:
        """Weights that a token is multiplied by: of all layers and the head."""
        return self.layers * self.layer_weights + self.head_weights

    @property
    def cache_per_token(self) -> int:
        """Elements of keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim

    def attended(self, context: int) -> int:
        """Tokens that are attended to in all layers together, of ``context`` there are."""
        if not self.window or not self.global_every:
            return self.layers * context
        everywhere = self.layers // self.global_every
        return everywhere * context + (self.layers - everywhere) * min(context, self.window)

    def attended_pairs(self, tokens: int, before: int = 0) -> float:
        """Pairs of tokens in all layers together when a prefill of ``tokens`` follows ``before`` that are in the cache."""

        def pairs(context: int) -> float:
            return self.attended(context) * context / 2 if not self.window else self._windowed(context)

        return pairs(before + tokens) - pairs(before)

    def _windowed(self, tokens: int) -> float:
        everywhere = self.layers // self.global_every if self.global_every else 0
        seen = min(tokens, self.window)
        return everywhere * tokens**2 / 2 + (self.layers - everywhere) * (seen * tokens - seen**2 / 2)


def shape_named(text: str) -> DecoderShape | None:
    """The shape of a published name: ``llama_v3_2_1b_instruct`` → Llama3.2-1B; None where the table has none."""
    return _by_key().get(_key(text))


#: Ends of a name that do not change the shape.
_SUFFIX = re.compile(r"(?:instruct|chat|it|hf|preview|base)$")
#: A version's "v".
_VERSION = re.compile(r"(?<=[a-z])v(?=\d)")


def _key(text: str) -> str:
    key = re.sub(r"[^a-z0-9]", "", text.rsplit("/", 1)[-1].lower())
    while (short := _SUFFIX.sub("", key)) != key:
        key = short
    return _VERSION.sub("", key)


@functools.cache
def table() -> dict[str, DecoderShape]:
    """The shapes of shapes.toml by name."""
    data = tomllib.loads(resources.files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))
    return {name: DecoderShape(name=name, **{k: v for k, v in one.items() if k != "aliases"}) for name, one in data.items()}


@functools.cache
def _by_key() -> dict[str, DecoderShape]:
    data = tomllib.loads(resources.files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))
    return {_key(text): table()[name] for name, one in data.items() for text in (name, *one.get("aliases", ()))}
