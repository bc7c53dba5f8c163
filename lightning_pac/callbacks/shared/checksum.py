"""A checksum of what a run trained, by which a later change shows."""

import io
import zlib
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["checksum_of"]


def checksum_of(module: nn.Module) -> int | None:
    """A checksum of a module's state and hyperparameters; None where some of it is kept in a way of its own."""
    found = 0
    with suppress(Exception):
        for name, value in module.state_dict().items():
            found = zlib.crc32(name.encode(), found)
            if isinstance(value, Tensor):
                values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                found = zlib.crc32(values.data, found)
            else:  # what a layer adds by `get_extra_state`
                found = _with(value, found)
        with suppress(Exception):  # Lightning leaves out what cannot be saved
            found = _with(dict(getattr(module, "hparams", {})), found)
        return found
    return None


def _with(value: Any, found: int) -> int:
    """A checksum continued by a value as a checkpoint holds it; a mere pickle of a tensor names its place in memory."""
    torch.save(value, written := io.BytesIO())
    return zlib.crc32(written.getbuffer(), found)
