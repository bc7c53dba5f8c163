"""Memory that a check of copies leaves behind."""

import platform
import resource
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from lightning_pac.strategies.whole_copies import WholeCopies


def resident() -> int:
    """Bytes of the process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is free")
def test_what_is_free_after_an_action_goes_back_to_the_system() -> None:
    kept = []

    def action(copies: object) -> int:
        torch.ones(30 << 20, dtype=torch.uint8)  # from now on all that is smaller comes from the heap
        parts = [torch.ones(1 << 20, dtype=torch.uint8) for _ in range(200)]
        kept.append(parts[-1])  # keeps the heap from ending lower
        return resident()

    most = WholeCopies.in_turn(pl.LightningModule(), action)
    assert resident() < most - (100 << 20)
