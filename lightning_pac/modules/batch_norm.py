"""Replace layers that mix the records of a batch by layers that do not."""

from typing import Any

from torch import Tensor, nn

from lightning_pac._validation import validated

__all__ = ["fix_batch_norm"]

MAX_GROUPS = 32

CHANNELS = 8
"""In a group at least: two values are normalized to plus and minus one whatever they were, one value to zero."""


@validated
def fix_batch_norm(model: nn.Module) -> nn.Module:
    """Replace the layers under which no record has a gradient of its own, or that keep statistics of private inputs.

    - Batch normalization of any dimension becomes `GroupNorm` with as many groups, up to 32, as divide its channels and
      leave eight or more in each; fewer channels are one group. A trained scale and shift are kept, and so are modules
      that a layer holds to be applied after them, as those of timm hold their activation.
    - Instance normalization stops to keep running statistics, which no noise would protect.

    The model is changed in place; a normalization layer that is the whole model is replaced in what is returned.

    Args:
        model: Any module.

    Returns:
        The model. Where a layer of one channel is run on a single position, it raises a `ValueError`, since a value
        that is normalized alone is always zero.

    Raises:
        ValueError: If a lazy layer does not know its number of channels, or a layer does more than is known.

    Example:
        >>> fix_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        6
    """
    replacement = _replacement(model)
    if replacement is not None:
        return replacement
    done: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # `named_children` would show a layer with two names once
            if child is None:
                continue
            fixed = done.setdefault(id(child), _replacement(child) or child)
            if fixed is not child:
                setattr(parent, name, fixed)
    return model


def _replacement(layer: nn.Module) -> nn.Module | None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
            raise ValueError(
                f"{type(layer).__name__} does not know its number of channels yet: run the model once on a batch of "
                "zeros before fix_batch_norm."
            )
        channels = layer.num_features
        groups = max(count for count in range(1, MAX_GROUPS + 1) if channels % count == 0 and _suffice(channels, count))
        kind = _GroupNormThen if _does_more(layer) else nn.GroupNorm
        fixed = kind(groups, channels, eps=layer.eps, affine=layer.affine)
        for name, child in layer.named_children():
            fixed.add_module(name, child)
        if channels == 1:
            fixed.register_forward_pre_hook(_refuse_single_value)
        if layer.affine:
            fixed.weight, fixed.bias = layer.weight, layer.bias
        return fixed.train(layer.training)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return None


class _GroupNormThen(nn.GroupNorm):
    """Group normalization, and the modules below it."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape (n, channels, ...), as it is returned."""
        outputs = super().forward(inputs)
        for child in self.children():
            outputs = child(outputs)
        return outputs


def _does_more(layer: nn.Module) -> bool:
    """Whether a layer applies modules of its own after batch normalization."""
    own = type(layer).forward.__module__.split(".")[0] != "torch"
    if own and not len(list(layer.children())):
        raise ValueError(
            f"{type(layer).__name__} computes more than batch normalization, and fix_batch_norm would drop what it is: "
            "replace it by GroupNorm and that."
        )
    return own


def _suffice(channels: int, groups: int) -> bool:
    return groups == 1 or channels // groups >= CHANNELS


def _refuse_single_value(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    if inputs[0][0].numel() == 1:
        raise ValueError(
            "A layer that was batch normalization of one channel is given a single value of each record, and would "
            "make it zero: leave the layer out, or place it where a record has more values."
        )
