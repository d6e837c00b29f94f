"""A tiny LLaMA, trained here on free text, exported by torch's dynamo exporter with a KV cache and dynamic lengths.

Four layers, width 128, four heads on two KV heads, head size 32, SwiGLU of 384, RoPE, RMSNorm, vocabulary 1024 (byte-level
BPE, `tokenizer.json`), untied embedding: 1,049,728 parameters. Inputs, B batch, S new tokens, P cached: `input_ids` int64
[B, S], `attention_mask` int64 [B, P+S], `position_ids` int64 [B, S], `past_key_values.<i>.key|value` float32 [B, 2, P, 32];
outputs `logits` [B, S, 1024] and `present.<i>.key|value` [B, 2, P+S, 32]. Nodes keep torch's module paths
(`model.layers.0.self_attn`).

The text is `text/train.txt`; `text/held_out.txt` is never trained on. Outliers are not built in: the pass `inject-outliers` makes
them without changing the function."""

import json
from pathlib import Path

import torch
from _export import export
from _text import END, HELD_OUT, TRAIN, topics
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
OUT, TOKENIZER, GENERATION = HERE / "tiny_llama.onnx", HERE / "tokenizer.json", HERE / "generation_config.json"
SEED = 17
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 4, 128, 384, 4, 2, 1024, 1024
STEPS, BATCH, LENGTH, PEAK_RATE, WARM_UP = 700, 16, 256, 4e-3, 50


class FlatLlama(LlamaForCausalLM):
    """LLaMA with its cache as flat inputs and outputs: key, value of layer 0, key, value of layer 1…"""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        k0: Tensor,
        v0: Tensor,
        k1: Tensor,
        v1: Tensor,
        k2: Tensor,
        v2: Tensor,
        k3: Tensor,
        v3: Tensor,
    ) -> tuple[Tensor, ...]:
        cache = DynamicCache([(k0, v0), (k1, v1), (k2, v2), (k3, v3)])
        result = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [part for layer in result.past_key_values.layers for part in (layer.keys, layer.values)]
        return result.logits, *present


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE of the training text; token 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics(TRAIN), trainer)
    tokenizer.save(str(TOKENIZER))
    GENERATION.write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 0}, indent=1) + "\n")
    return tokenizer


def tokens_of(path: Path, tokenizer: Tokenizer) -> Tensor:
    """All topics of `path` one behind the other, each ended by token 0: int64 [N]."""
    ids = [token for text in topics(path) for token in (*tokenizer.encode(text).ids, 0)]
    return torch.tensor(ids)


def build() -> LlamaForCausalLM:
    """The model before training."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    return FlatLlama(config)


def loss_of(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Mean of -log p(token | tokens before it), nats; ids [B, N]."""
    logits = LlamaForCausalLM.forward(model, input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def train(model: LlamaForCausalLM, tokens: Tensor) -> None:
    """AdamW, one cycle of the rate, windows drawn with the seed."""
    source = torch.Generator().manual_seed(SEED)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=STEPS, pct_start=WARM_UP / STEPS)
    model.train()
    for step in range(STEPS):
        starts = torch.randint(0, len(tokens) - LENGTH, (BATCH,), generator=source).tolist()
        loss = loss_of(model, torch.stack([tokens[start : start + LENGTH] for start in starts]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    model.eval()


def perplexity(model: LlamaForCausalLM, tokens: Tensor) -> float:
    """exp of the mean loss over disjoint windows of `LENGTH` tokens."""
    windows = tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)
    with torch.no_grad():
        return float(torch.exp(torch.stack([loss_of(model, row[None]) for row in windows]).mean()))


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
    """Train, export, and compare with torch on lengths that the exporter did not see, an empty cache among them."""
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    held_out = tokens_of(HELD_OUT, tokenizer)
    model = build()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, perplexity {perplexity(model, held_out):.1f}")
    train(model, tokens_of(TRAIN, tokenizer))
    print(f"perplexity of the held-out text {perplexity(model, held_out):.2f} over {len(held_out)} tokens")
    example = feeds(2, 5, 7)
    dynamic = {
        "input_ids": {0: "batch_size", 1: "sequence_length"},
        "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
        "position_ids": {0: "batch_size", 1: "sequence_length"},
    }
    dynamic |= {name: {0: "batch_size", 2: "past_sequence_length"} for name in example if name.startswith("past")}
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in example if name.startswith("past"))]
    export(model, example, outputs, dynamic, OUT, checks=[feeds(1, 11, 0), feeds(1, 1, 11), feeds(3, 4, 6)])


if __name__ == "__main__":
    main()
