"""A checksum of what a run trained, by which a later change shows."""

import pickle
import zlib
from contextlib import suppress

import torch
from torch import Tensor, nn

__all__ = ["checksum_of"]


def checksum_of(module: nn.Module) -> int | None:
    """A checksum over the names and values of a module's state; None where some of it is kept in a way of its own."""
    found = 0
    with suppress(Exception):
        for name, value in module.state_dict().items():
            found = zlib.crc32(name.encode(), found)
            if isinstance(value, Tensor):
                values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                found = zlib.crc32(values.data, found)
            else:  # what a layer adds by `get_extra_state`
                found = zlib.crc32(pickle.dumps(value), found)
        return found
    return None
