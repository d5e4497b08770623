"""Modules that return a loss, as users write them, and functions that go wrong."""

import torch
from torch import nn
from torch.nn import functional as F


class Perceptron(nn.Module):
    """Two linear layers and a mean square."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, target):
        return F.mse_loss(self.second(torch.tanh(self.first(x))), target)


def perceptron():
    """The number of samples stays symbolic."""
    torch.manual_seed(1)
    inputs = {"x": torch.randn(4, 6), "target": torch.randn(4, 3)}
    batch = {0: "batch"}
    return Perceptron(), inputs, {"dynamic": {"x": batch, "target": batch},
                                  "metadata": {"origin": "a test"}}


class Decoder(nn.Module):
    """A decoder of one block whose head is its embedding."""

    def __init__(self, vocabulary=32, width=16, length=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.1 * torch.randn(length, width))
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.position
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2)
                   for part in self.attention(self.norm(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        logits = self.head(x)[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, ids[:, 1:].flatten())


def tied_decoder():
    """All of it trains."""
    torch.manual_seed(2)
    return Decoder(), {"ids": torch.randint(32, (2, 8))}


def encoder():
    """In evaluation mode, so without dropout; only its head trains."""
    torch.manual_seed(3)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 4)

        def forward(self, x, label):
            return F.cross_entropy(self.head(self.encoder(x).mean(1)), label)

    model = Classifier().eval()
    model.encoder.requires_grad_(False)
    return model, {"x": torch.randn(3, 5, 16), "label": torch.tensor([0, 3, 1])}


def gpt2():
    """Hugging Face's, with its loss before its other outputs."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(4)
    config = GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=2, n_head=2,
                        use_cache=False)
    ids = torch.randint(40, (2, 8))
    return GPT2LMHeadModel(config).eval(), {"input_ids": ids, "labels": ids}


def module_alone():
    """Without example inputs."""
    torch.manual_seed(1)
    return Perceptron()


class Loss(nn.Module):
    """Returns what `function` gives for x and the weight."""

    def __init__(self, function, trains=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), trains)
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight)


def bad_vector():
    return Loss(lambda x, w: x * w), {"x": torch.ones(3)}


def bad_integer():
    return Loss(lambda x, w: x.long().sum()), {"x": torch.ones(3)}


def bad_frozen():
    return Loss(lambda x, w: (x * w).sum(), trains=False), {"x": torch.ones(3)}


def bad_branch():
    return Loss(lambda x, w: (x * w).sum() if x.sum() > 1 else w.sum()), {"x": torch.ones(3)}


def bad_inputs():
    return Loss(lambda x, w: (x * w).sum()), {"y": torch.ones(3)}


def bad_example():
    return Loss(lambda x, w: (x * w).sum()), [torch.ones(3)]


def bad_dynamic():
    return Loss(lambda x, w: (x * w).sum()), {"x": torch.ones(3)}, {"dynamic": {"y": {0: "n"}}}


def bad_settings():
    return Loss(lambda x, w: (x * w).sum()), {"x": torch.ones(3)}, {"training": "*"}


def bad_return():
    return torch.ones(3)


def bad_factory():
    raise KeyError("no such thing")
