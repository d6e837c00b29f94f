"""A small vision transformer with seeded weights, exported by torch's dynamo exporter.

The module paths are kept on its nodes. Input `input` [N, 3, 32, 32], output `logits` [N, 10]: a patch embedding (Conv
8x8, 16 patches), two pre-norm blocks of width 64 with four heads (MatMul, Softmax, MatMul) and a GELU MLP, mean over
the patches, a linear head. Two channels have 16 times larger gains in both norms of each block and 16 times smaller
weights behind them: the function is that of plain random weights, the activations have the outlier channels that make
transformers hard to quantize.
"""

from pathlib import Path

import torch
from _export import export, give_outliers
from torch import Tensor, nn

OUT = Path(__file__).resolve().parent / "vit_block.onnx"
SEED = 5
WIDTH, HEADS, PATCHES, DEPTH = 64, 4, 16, 2
OUTLIERS = {9: 16.0, 41: 16.0}


class Attention(nn.Module):
    """Multi-head self-attention [N, T, D] -> [N, T, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers with GELU between, [N, T, D] -> [N, T, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()
        give_outliers(
            self.norm1.weight, [self.attn.q.weight, self.attn.k.weight, self.attn.v.weight], OUTLIERS, self.norm1.bias
        )
        give_outliers(self.norm2.weight, [self.mlp.fc1.weight], OUTLIERS, self.norm2.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Images [N, 3, 32, 32] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.pos_embed = nn.Parameter(torch.randn(1, PATCHES, WIDTH) * 0.3)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def build() -> Vit:
    """The network from the seed."""
    torch.manual_seed(SEED)
    return Vit().eval()


def main() -> None:
    """Export, and print the largest difference to torch on a batch that the exporter did not see."""
    net = build()
    example = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(SEED))
    other = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(SEED + 1))
    export(net, {"input": example}, ["logits"], {"input": {0: "N"}}, OUT, checks=[{"input": other}])


if __name__ == "__main__":
    main()
