"""What a decoder is made of, in numbers: by name, from its ``config.json``, or as ``layers=16,hidden=2048,…``."""

from __future__ import annotations

from dataclasses import dataclass


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
