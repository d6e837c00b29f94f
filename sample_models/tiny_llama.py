"""A tiny LLaMA with seeded weights, exported by torch's dynamo exporter with a KV cache and dynamic lengths.

Two layers, width 64, four heads on two KV heads, head size 16, vocabulary 256 (bytes), untied embedding. Inputs, B
batch, S new tokens, P cached: `input_ids` int64 [B, S], `attention_mask` int64 [B, P+S], `position_ids` int64 [B, S],
`past_key_values.<i>.key|value` float32 [B, 2, P, 16]; outputs `logits` [B, S, 256] and `present.<i>.key|value` [B, 2,
P+S, 16]. Nodes keep torch's module paths (`model.layers.0.self_attn`).

Two channels of every norm have 32 times larger gains and 32 times smaller weights behind them: the function is that
of plain random weights, the inputs of the linear layers have the outliers that cost language models their accuracy in
8 bit.
"""

from pathlib import Path

import torch
from _export import export, give_outliers
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

OUT = Path(__file__).resolve().parent / "tiny_llama.onnx"
SEED = 17
LAYERS, WIDTH, HEADS, KV_HEADS, VOCABULARY = 2, 64, 4, 2, 256
OUTLIERS = {13: 32.0, 50: 32.0}


class FlatLlama(LlamaForCausalLM):
    """LLaMA with its cache as flat inputs and outputs: key, value of layer 0, key, value of layer 1."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        k0: Tensor,
        v0: Tensor,
        k1: Tensor,
        v1: Tensor,
    ) -> tuple[Tensor, ...]:
        cache = DynamicCache([(k0, v0), (k1, v1)])
        result = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [part for layer in result.past_key_values.layers for part in (layer.keys, layer.values)]
        return result.logits, *present


def build() -> FlatLlama:
    """The model from the seed; its weights are larger than the library's default, so that tokens differ."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=2048,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    model = FlatLlama(config).eval()
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        readers = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        give_outliers(layer.input_layernorm.weight, readers, OUTLIERS)
        give_outliers(layer.post_attention_layernorm.weight, [mlp.gate_proj.weight, mlp.up_proj.weight], OUTLIERS)
    give_outliers(model.model.norm.weight, [model.lm_head.weight], OUTLIERS)
    return model


def feeds(batch: int, new: int, cached: int) -> dict[str, Tensor]:
    """Inputs for `new` tokens behind a random cache of `cached` tokens."""
    source = torch.Generator().manual_seed(SEED + new)
    values = {
        "input_ids": torch.randint(0, VOCABULARY, (batch, new), generator=source),
        "attention_mask": torch.ones(batch, cached + new, dtype=torch.int64),
        "position_ids": torch.arange(cached, cached + new).repeat(batch, 1),
    }
    for layer in range(LAYERS):
        for part in ("key", "value"):
            shape = (batch, KV_HEADS, cached, WIDTH // HEADS)
            values[f"past_key_values.{layer}.{part}"] = torch.randn(shape, generator=source)
    return values


def main() -> None:
    """Export, and compare with torch on lengths that the exporter did not see, an empty cache among them."""
    example = feeds(2, 5, 7)
    dynamic = {
        "input_ids": {0: "batch_size", 1: "sequence_length"},
        "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
        "position_ids": {0: "batch_size", 1: "sequence_length"},
    }
    dynamic |= {name: {0: "batch_size", 2: "past_sequence_length"} for name in example if name.startswith("past")}
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in example if name.startswith("past"))]
    export(build(), example, outputs, dynamic, OUT, checks=[feeds(1, 11, 0), feeds(1, 1, 11), feeds(3, 4, 6)])


if __name__ == "__main__":
    main()
