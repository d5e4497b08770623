"""Modules that stop gradients, change buffers, or are otherwise more than a graph can tell."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Two(nn.Module):
    """Cross-entropy of `function(module, x)` for two linear layers, `first` and `second`."""

    def __init__(self, function):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 4)
        self.function = function

    def forward(self, x, label):
        return F.cross_entropy(self.function(self, x), label)


def two(function):
    """(module, inputs)."""
    torch.manual_seed(5)
    return Two(function), {"x": torch.randn(3, 6), "label": torch.tensor([0, 3, 1])}


def no_grad():
    """The first layer requires gradients and gets none."""
    def function(module, x):
        with torch.no_grad():
            hidden = module.first(x)
        return module.second(hidden)

    return two(function)


def detached():
    return two(lambda module, x: module.second(module.first(x).detach()))


def harmless():
    """What is detached is the greatest logit, which changes no loss, and what is logged."""
    class Logs(Two):
        def forward(self, x, label):
            logits = self.second(self.first(x))
            shifted = logits - logits.max(-1, keepdim=True).values.detach()
            loss = F.cross_entropy(shifted, label)
            with torch.no_grad():
                right = (logits.argmax(-1) == label).float().mean()
            return {"loss": loss, "right": right, "logged": loss.detach()}

    _, inputs = two(None)
    return Logs(None), inputs


class Square(torch.autograd.Function):
    """x squared, whose backward is its derivative."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient


def custom():
    return two(lambda module, x: module.second(Square.apply(module.first(x))))


def recomputed():
    return two(lambda module, x: module.second(
        checkpoint(F.gelu, module.first(x), use_reentrant=True)))


def partly_detached():
    return two(lambda module, x: module.second(module.first(x) + module.first(x).detach()))


def straight_through():
    def function(module, x):
        hidden = module.first(x)
        return module.second(hidden + (hidden.round() - hidden).detach())

    return two(function)


class Round(torch.autograd.Function):
    """Rounds, but backwards it is the identity."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        return gradient


def custom_round():
    return two(lambda module, x: module.second(Round.apply(module.first(x))))


def batch_norm():
    """In training mode, so its statistics are the batch's."""
    module, inputs = two(lambda module, x: module.second(module.norm(module.first(x))))
    module.norm = nn.BatchNorm1d(6)
    return module, inputs


def batch_norm_eval():
    """With statistics of its own."""
    module, inputs = batch_norm()
    module(**inputs)
    return module.eval(), inputs


def smoothed():
    class Smoothed(Two):
        def forward(self, x, label):
            return nn.CrossEntropyLoss(label_smoothing=0.1)(self.second(self.first(x)), label)

    return Smoothed(None), two(None)[1]


def same_name():
    """An input with the name of a parameter."""
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x, weight):
            return (x * self.weight).mean(-1).mul(weight).sum()

    return Weighted(), {"x": torch.randn(3, 6), "weight": torch.ones(3)}


def eight_bit():
    """A frozen matrix of a type that files cannot hold."""
    module, inputs = two(lambda module, x: module.second(x @ module.matrix.float()))
    module.matrix = nn.Parameter(torch.ones(6, 6, dtype=torch.int8), requires_grad=False)
    return module, inputs


def no_value():
    module, inputs = two(lambda module, x: module.second(module.first(x)))
    module.first.to("meta")
    return module, inputs


def number_metadata():
    return *two(lambda module, x: module.second(x)), {"metadata": {"version": 3}}


def no_match():
    return *two(lambda module, x: module.second(x)), {"trainable": ["second.*", "third.*"]}
