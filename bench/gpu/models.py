"""What run.sh times: parts of MiniGPT4Qwen in plain PyTorch.

Frozen weights are stored as bf16; products take the type of the activations. So the same
module is exported (activations f32, `--precision=layered` rounds operands) and runs in
PyTorch in bf16. As a program it prints what run.py needs to know of both.
"""

import json

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, HIDDEN, BLOCKS, LENGTH, RANK = 4096, 32, 11008, 8, 512, 8
VIT = {"width": 1408, "heads": 16, "hidden": 6144, "blocks": 39, "length": 257}
# Of the inputs, f32, of one sample.
SHAPES = {
    "stage": {"hidden": (1, LENGTH, WIDTH), "target": (1, LENGTH, WIDTH)},
    "vit_g": {"hidden": (1, VIT["length"], VIT["width"]), "target": (1, VIT["length"], 64)},
}


def frozen(*shape):
    return nn.Parameter(torch.randn(shape).mul_(0.02).bfloat16(), requires_grad=False)


def product(x, weight):
    return x @ weight.to(x.dtype)


class Lora(nn.Module):
    """A frozen product with an adapter of rank RANK."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = frozen(inputs, outputs)
        self.lora_A = nn.Parameter(torch.randn(inputs, RANK) * 0.01)
        self.lora_B = nn.Parameter(torch.zeros(RANK, outputs))

    def forward(self, x):
        low = product(product(x, self.lora_A), self.lora_B)
        return product(x, self.weight) + low * 4.0


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rms_norm(x, weight):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * scale * weight).to(x.dtype)


class QwenBlock(nn.Module):
    """RMSNorm, rotary attention, SwiGLU; adapters on q and v."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.norm2 = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.q, self.v = Lora(WIDTH, WIDTH), Lora(WIDTH, WIDTH)
        self.k, self.o = frozen(WIDTH, WIDTH), frozen(WIDTH, WIDTH)
        self.gate, self.up = frozen(WIDTH, HIDDEN), frozen(WIDTH, HIDDEN)
        self.down = frozen(HIDDEN, WIDTH)

    def forward(self, x, cos, sin):
        def heads(y):
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        y = rms_norm(x, self.norm1)
        q, k = rotate(heads(self.q(y)), cos, sin), rotate(heads(product(y, self.k)), cos, sin)
        y = functional.scaled_dot_product_attention(q, k, heads(self.v(y)), is_causal=True)
        x = x + product(y.transpose(1, 2).flatten(2), self.o)
        y = rms_norm(x, self.norm2)
        gated = functional.silu(product(y, self.gate)) * product(y, self.up)
        return x + product(gated, self.down)


class Stage(nn.Module):
    """Blocks of a stage in the middle of a 7B model; all its gradients pass through."""

    def __init__(self):
        super().__init__()
        self.entry = nn.Parameter(torch.zeros(WIDTH))  # Gradients go down to it.
        self.blocks = nn.ModuleList(QwenBlock() for _ in range(BLOCKS))
        angles = torch.outer(torch.arange(LENGTH), 1e4 ** -torch.arange(0, 1, 2 * HEADS / WIDTH))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, hidden, target):
        x = hidden + self.entry.to(hidden.dtype)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype))
        return (x.float() - target.float()).square().mean()


class VitBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width).requires_grad_(False)
        self.norm2 = nn.LayerNorm(width).requires_grad_(False)
        self.qkv, self.proj = frozen(width, 3 * width), frozen(width, width)
        self.up, self.down = frozen(width, hidden), frozen(hidden, width)

    def forward(self, x):
        y = product(self.norm1(x), self.qkv)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in y.chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + product(y.transpose(1, 2).flatten(2), self.proj)
        return x + product(functional.gelu(product(self.norm2(x), self.up)), self.down)


class Vit(nn.Module):
    """The blocks of EVA-ViT-g, frozen, and a projection that trains."""

    def __init__(self, width, heads, hidden, blocks, length):
        super().__init__()
        self.blocks = nn.ModuleList(VitBlock(width, heads, hidden) for _ in range(blocks))
        self.projection = nn.Parameter(torch.randn(width, 64) * 0.02)

    def forward(self, hidden, target):
        x = hidden
        for block in self.blocks:
            x = block(x)
        return (product(x, self.projection).float() - target.float()).square().mean()


def inputs(name):
    return {key: torch.randn(shape) for key, shape in SHAPES[name].items()}


def stage():
    """The module, and inputs of one sample."""
    return Stage(), inputs("stage")


def vit_g():
    """The module, and inputs of one picture."""
    return Vit(**VIT), inputs("vit_g")


def flops(name):
    """Of a training step's products: forward, and what gradients need."""
    if name == "stage":
        weights = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN
        attention = 2 * LENGTH * WIDTH  # causal: half of the scores, twice
        return BLOCKS * LENGTH * (2 * 2 * weights + 3 * attention)
    weights = 4 * VIT["width"] ** 2 + 2 * VIT["width"] * VIT["hidden"]
    attention = 2 * 2 * VIT["length"] * VIT["width"]
    return VIT["blocks"] * VIT["length"] * (2 * weights + attention)


if __name__ == "__main__":
    print(json.dumps({name: {"flop": flops(name), "inputs": SHAPES[name]} for name in SHAPES}))
