"""Modules for which no per-example gradient exists, or none that can be seen."""

from collections.abc import Iterator

import torch
from torch import nn

__all__ = [
    "may_mix_in_training",
    "mixing_reason",
    "refuse_backward_hooks",
    "refuse_compiled_modules",
    "refuse_complex_parameters",
    "refuse_mixing_layers",
    "refuse_unfit_modules",
    "unfit_modules",
]


def refuse_unfit_modules(module: nn.Module) -> None:
    """Raise a `ValueError` that names what at or below `module` stands in the way of per-example gradients."""
    for problem in unfit_modules(module):
        raise ValueError(problem)


def unfit_modules(module: nn.Module) -> Iterator[str]:
    """Name what at or below `module` stands in the way of per-example gradients: the first of each kind."""
    for refuse in (refuse_backward_hooks, refuse_compiled_modules, refuse_complex_parameters):
        try:
            refuse(module)
        except ValueError as error:
            yield str(error)
    yield from _mixing_layers(module)


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raise a `ValueError` that names the first layer below `module` that mixes the examples of a batch."""
    for problem in _mixing_layers(module):
        raise ValueError(problem)


def _mixing_layers(module: nn.Module) -> Iterator[str]:
    first: dict[str, str] = {}
    for name, layer in module.named_modules():
        reason = mixing_reason(layer)
        if reason:
            first.setdefault(reason, f"The layer {name or '(root)'!r} ({type(layer).__name__}) {reason}")
    yield from first.values()


def refuse_complex_parameters(module: nn.Module) -> None:
    """Raise a `ValueError` that names a trainable parameter below `module` that is complex."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"The parameter {name!r} is complex, and clipped sums are real: keep its real and imaginary parts in a "
                "last dimension of two, and use torch.view_as_complex of that."
            )


def refuse_backward_hooks(module: nn.Module) -> None:
    """Raise a `ValueError` that names a module at or below `module` that has a backward hook."""
    for name, layer in module.named_modules():
        if layer._backward_hooks or layer._backward_pre_hooks:
            raise ValueError(
                f"The module {name or '(root)'!r} has a backward hook, which would be handed raw gradients of a batch "
                "and may rescale them by all of its records: remove it (register_full_backward_hook)."
            )


def mixing_reason(layer: nn.Module) -> str | None:
    """Say how a layer mixes examples and what to do about it, or None if it does not."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not layer.track_running_stats):
        return (
            "normalizes over the batch, so no example has a gradient of its own; call fix_batch_norm(self), from "
            "lightning_pac, at the end of the model's constructor, which makes it a GroupNorm (in a network for a "
            "table, rather leave it out), or keep it in eval mode with frozen parameters."
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "renormalizes the rows that private inputs look up, without noise; set max_norm=None."
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        return "scales gradients by frequencies in the whole batch; set scale_grad_by_freq=False."
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats and layer.training:
        return "keeps running statistics of private inputs that no noise protects; set track_running_stats=False."
    return None


def may_mix_in_training(module: nn.Module) -> dict[str, nn.Module]:
    """Layers below `module`, by name, that mix the examples of a batch in training mode or could come to do so."""
    kinds = nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm | nn.Embedding | nn.EmbeddingBag
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def refuse_compiled_modules(module: nn.Module) -> None:
    """Raise a `ValueError` that names a module below `module` that `torch.jit` has compiled."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"The module {name or '(root)'!r} is compiled by torch.jit, whose graphs hide the layers that "
                "per-example gradients need; train the module that it was made of."
            )
