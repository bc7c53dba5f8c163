"""The sum of clipped gradients of one optimizer step, and its noised release."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lightning_pac.randomness import SecureGenerator, release_grid, round_to_grid, secure_generator

__all__ = ["CLIP_CHANNEL", "NoisySum"]

CLIP_CHANNEL = 0.1
r"""$s$: a record whose gradient was clipped adds $s C$ to one further coordinate of the sum."""


class NoisySum:
    r"""Accumulates clipped gradients and releases their sum with noise.

    A drawn record contributes $(\mathrm{clip}(g_i), s C \, 1[\lVert g_i \rVert > C])$, of norm at most
    $C \sqrt{1 + s^2}$, so noise of deviation $\sigma C \sqrt{1 + s^2}$ on *all* coordinates is the Gaussian mechanism
    at noise multiplier $\sigma$, the fraction of clipped records included. The release is rounded to a public grid, a
    power of two at most $2^{-10}$ of the deviation.

    Args:
        parameters: Those whose gradients are summed, in the engine's order.
        max_grad_norm: Clipping norm $C$ of a record.
        noise_multiplier: $\sigma$.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], max_grad_norm: float, noise_multiplier: float) -> None:
        self.max_grad_norm = max_grad_norm
        self.noise_multiplier = noise_multiplier
        self.num_parameters = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device
        # float64 holds every multiple of the grid that a sum can reach; Apple's devices have none.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sum = torch.zeros(self.num_parameters + 1, dtype=dtype, device=device)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.max_grad_norm * math.sqrt(1.0 + CLIP_CHANNEL**2)

    @property
    def grid(self) -> float:
        """Step of the grid that the release is rounded to."""
        return release_grid(self.deviation)

    def add(self, sums: Sequence[Tensor], norms: Tensor) -> None:
        """Add a microbatch: the engine's clipped sums, and the norms before clipping, shape (n, blocks)."""
        start = 0
        for total in sums:
            self._sum[start : start + total.numel()] += total.reshape(-1)
            start += total.numel()
        clipped = (norms > self.max_grad_norm).any(dim=1).sum()
        self._sum[-1] += CLIP_CHANNEL * self.max_grad_norm * clipped

    def clear(self) -> None:
        """Forget what was added."""
        self._sum.zero_()

    def release(self, reduce: Callable[[Tensor], Tensor], generator: SecureGenerator | None = None) -> Tensor:
        """Reduce the sum over devices, add noise, round, and forget the sum.

        Args:
            reduce: Sums a tensor over all devices.
            generator: Source of the noise; the process-wide secure generator if left out.

        Returns:
            The release, shape (parameters + 1,): the last coordinate belongs to the fraction of clipped records.
        """
        total = reduce(self._sum)
        noise = (generator or secure_generator()).fill_normal_(torch.empty_like(total))
        released = round_to_grid(total + noise.mul_(self.deviation), self.grid)
        self.clear()
        return released

    def clipped_fraction(self, released: Tensor, batch_size: float) -> Tensor:
        """The released fraction of clipped records, with its noise: an estimate that may leave [0, 1]."""
        return released[-1] / (CLIP_CHANNEL * self.max_grad_norm * batch_size)

    def clipped_fraction_deviation(self, batch_size: float) -> float:
        """Standard deviation of the noise in `clipped_fraction`."""
        return self.deviation / (CLIP_CHANNEL * self.max_grad_norm * batch_size)

    def signal_to_noise(self, batch_size: float) -> float:
        """The largest ratio a step can have: all records clipped and aligned, over the expected norm of the noise."""
        return batch_size * self.max_grad_norm / (self.deviation * math.sqrt(self.num_parameters))
