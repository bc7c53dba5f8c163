"""Small buffers that a model's `setup` fills, maybe from private records, and that every checkpoint then holds."""

import re

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

__all__ = ["small_buffers", "tell_of_set_buffers"]

# Numbers in a buffer; those with more are rather tables of positions, or masks.
_MOST = 1024
# Buffers of layers that say nothing about records, by the name of the layer or the buffer.
_PUBLIC_LAYER = re.compile(r"BatchNorm|InstanceNorm|Position\w*(Enc|Emb)|Rotary")
_PUBLIC_NAME = re.compile(r"position|pos_emb|inv_freq|^pe$")


def small_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the small buffers of numbers that a checkpoint of a model would hold, by name, on the CPU."""
    found = {}
    for prefix, part in module.named_modules():
        if any(_PUBLIC_LAYER.search(kind.__name__) for kind in type(part).__mro__):
            continue
        for name, value in part._buffers.items():
            if value is None or name in part._non_persistent_buffers_set or _PUBLIC_NAME.search(name):
                continue
            is_number = not (value.dtype == torch.bool or value.is_complex() or value.is_quantized)
            if is_number and type(value) is Tensor and not value.is_meta and 0 < value.numel() <= _MOST:
                found[f"{prefix}.{name}".lstrip(".")] = value.detach().cpu().clone()
    return found


def tell_of_set_buffers(before: dict[str, Tensor], pl_module: pl.LightningModule, callback: pl.Callback) -> list[str]:
    """Warn of small buffers that are new or other than before, unless their values are plainly public.

    Args:
        before: What `small_buffers` found before the model was set up.
        pl_module: The model as it is now.
        callback: Speaks in its name.

    Returns:
        Sentences on that, for the card.
    """
    named = [
        name
        for name, value in small_buffers(pl_module).items()
        if not _is_plain(value) and (name not in before or not _is_equal(before[name], value))
    ]
    if not named:
        return []
    names, model = " and ".join(named), type(pl_module).__name__
    hook = "setup() or configure_model()" if is_overridden("configure_model", pl_module) else "setup()"
    rank_zero_warn(
        f"{type(callback).__name__}: {hook} set {names} of {model}: where this is made of private records (class "
        "counts, means), every checkpoint shows it without noise, so make it of public numbers."
    )
    return [
        f"Checkpoints hold {names} of {model}, which {hook} set, without noise: that nothing of it was read off the "
        "records is taken on trust."
    ]


def _is_equal(before: Tensor, now: Tensor) -> bool:
    """Whether values are the same but for the precision that the Trainer gave them."""
    return torch.equal(before.to(now.dtype).double().nan_to_num(), now.double().nan_to_num())


def _is_plain(value: Tensor) -> bool:
    """Whether all numbers are the same, as a single one is, or count up from zero."""
    flat = value.double().flatten().nan_to_num()
    return bool((flat == flat[0]).all()) or torch.equal(flat, torch.arange(len(flat), dtype=flat.dtype))
