"""A checksum of what a run trained, by which a later change shows."""

import io
import zlib
from contextlib import suppress

import torch
from torch import Tensor, nn

__all__ = ["checksum_of"]


def checksum_of(module: nn.Module) -> int | None:
    """A checksum of a module's state and hyperparameters; None where some of it is kept in a way of its own."""
    found = 0
    with suppress(Exception):
        saved = module.state_dict()
        if kept := getattr(module, "hparams", None):
            saved["hyper_parameters"] = dict(kept)
        for name, value in saved.items():
            found = zlib.crc32(name.encode(), found)
            if isinstance(value, Tensor):
                values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                found = zlib.crc32(values.data, found)
            else:  # as a checkpoint holds it: a pickle of a tensor alone names the place in memory
                torch.save(value, written := io.BytesIO())
                found = zlib.crc32(written.getbuffer(), found)
        return found
    return None
