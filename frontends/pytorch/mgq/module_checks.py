"""Checks of a module before it is exported: what a graph of forward ops cannot tell.

A graph knows neither where PyTorch stops gradients (detach, no_grad, the backward of a
torch.autograd.Function) nor buffers that change. Both would train something else
than PyTorch does, silently.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from mgq.errors import UserError

DETACHES = {torch.detach, torch.detach_, torch.Tensor.detach, torch.Tensor.detach_,
            torch.Tensor.data.__get__}
SAME = 1e-3  # relative difference of gradients that are the same but for rounding


def check_module(module, example, trained, reference):
    """Runs `module` once; returns the names of the parameters of `trained` (name ->
    parameter) that PyTorch gives a gradient.

    Raises UserError where the module does not return a loss, changes its buffers, or
    stops gradients on some of the ways from parameters to the loss.
    """
    with differentiable(module, trained), kept_buffers(module) as changed:
        watch = Watch()
        loss = run(module, example, watch, reference)
        check_loss(loss, reference)
        refuse_changes(changed(), reference)
        if watch.smoothed:
            raise UserError(f"not supported yet: '{reference}': cross_entropy with label_smoothing, "
                            "which PyTorch's exporter leaves out; write the smoothing by hand")
        reached, custom = ancestors(loss)
        names = [name for name, parameter in trained.items() if id(parameter) in reached]
        if names and (watch.stops or custom):
            parameters = [trained[name] for name in names]
            refuse_stops(module, example, dict(zip(names, parameters)), reference)
    return names


def run(module, example, mode, reference):
    """The first output for the example inputs, with gradients, drawing the same numbers
    every time."""
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), mode:
            torch.manual_seed(0)
            output = module(**example)
    except Exception as error:  # the user's code
        raise UserError(
            f"'{reference}': the module fails on its example inputs: "
            f"{type(error).__name__}: {error}"
        ) from error
    return next(iter(tree_leaves(output)), None)


def check_loss(first, reference):
    """The first output must be a float scalar."""
    if not isinstance(first, torch.Tensor):
        found = f"{type(first).__name__}"
    elif first.dim() or not first.is_floating_point():
        found = f"{first.dtype} of shape {list(first.shape)}"
    else:
        return
    raise UserError(f"'{reference}': the module must return a loss, a float scalar, first; "
                    f"it returns {found}")


@contextlib.contextmanager
def differentiable(module, trained):
    """Exactly the parameters `trained` require gradients."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    wanted = {id(parameter) for parameter in trained.values()}
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in wanted)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


@contextlib.contextmanager
def kept_buffers(module):
    """Gives a function that names the buffers which changed; restores them at the end."""
    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}

    def changed():
        now = dict(module.named_buffers())
        return [name for name, value in before.items()
                if name in now and not same_value(now[name], value)]

    try:
        yield changed
    finally:
        now = dict(module.named_buffers())
        with torch.no_grad():
            for name in changed():
                now[name].copy_(before[name])


def same_value(left, right):
    """Whether two tensors are the same, NaNs included."""
    if left.shape != right.shape or left.is_meta:
        return left.shape == right.shape
    return torch.equal(torch.nan_to_num(left), torch.nan_to_num(right))


def refuse_changes(names, reference):
    """Buffers are constants of the graph."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UserError(
            f"not supported yet: '{reference}': the module changes its buffer '{names[0]}'{more} "
            "when it runs, as batch normalization does in training mode; call .eval() on that part"
        )


class Watch(TorchFunctionMode):
    """Counts where gradients stop: `stops`; sees whether labels are `smoothed`."""

    def __init__(self):
        super().__init__()
        self.stops = 0
        self.smoothed = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.smoothed |= func is torch.nn.functional.cross_entropy and \
            bool(kwargs.get("label_smoothing"))
        if func in DETACHES or not torch.is_grad_enabled():
            tensors = [leaf for leaf in tree_leaves((args, kwargs))
                       if isinstance(leaf, torch.Tensor)]
            self.stops += any(tensor.requires_grad for tensor in tensors)
        return func(*args, **kwargs)


class NeverStop(TorchFunctionMode):
    """Lets gradients pass where the module stops them, as a graph of its ops does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch.enable_grad():
            if func in DETACHES:
                return args[0].view_as(args[0])
            return func(*args, **kwargs)


class NoContext:
    """In place of a torch.autograd.Function's context."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors):
        """Nothing to save for."""

    mark_dirty = mark_non_differentiable = save_for_forward = save_for_backward
    set_materialize_grads = save_for_backward


@contextlib.contextmanager
def plain_functions():
    """torch.autograd.Functions run as the ops of their forward."""

    def apply(function, *args, **kwargs):
        own_context = function.setup_context is not torch.autograd.Function.setup_context
        context = () if own_context else (NoContext(),)
        with torch.enable_grad():
            return function.forward(*context, *args, **kwargs)

    before = torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = before


def refuse_stops(module, example, trained, reference):
    """The gradients must be those that the graph of the forward ops has."""
    wanted = gradients(module, example, trained, contextlib.nullcontext(), reference)
    with plain_functions():
        found = gradients(module, example, trained, NeverStop(), reference)
    for name, gradient in wanted.items():
        if (gradient - found[name]).norm() > SAME * gradient.norm():
            raise UserError(
                f"not supported yet: '{reference}': the module stops or changes part of the "
                f"gradient of '{name}' (detach, torch.no_grad or a torch.autograd.Function), "
                "which a graph of its forward pass cannot tell"
            )


def gradients(module, example, trained, mode, reference):
    """name -> gradient of the parameters `trained`, of a run under `mode`."""
    before = [parameter.grad for parameter in trained.values()]
    try:
        for parameter in trained.values():
            parameter.grad = None
        run(module, example, mode, reference).backward()
        return {name: torch.zeros(()) if parameter.grad is None else parameter.grad
                for name, parameter in trained.items()}
    finally:
        for parameter, gradient in zip(trained.values(), before):
            parameter.grad = gradient


def ancestors(loss):
    """(ids of the leaves that `loss` has a gradient for, whether a torch.autograd.Function
    is on the way)."""
    leaves, custom, seen, left = set(), False, set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        custom |= isinstance(node, torch.autograd.function.BackwardCFunction)
        left += [following for following, _ in node.next_functions]
    return leaves, custom
