"""The sum of clipped gradients of one optimizer step, and its noised release."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from lightning_pac.accountants import BandedMatrix
from lightning_pac.callbacks.srpp_sgd.step.clipping_blocks import ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step.noise_memory import NoiseMemory
from lightning_pac.gradients import ROUNDING
from lightning_pac.randomness import release_grid, secure_generator
from lightning_pac.randomness.normal import place_of_float64, release_with_
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.sharding import Sharding

__all__ = ["CLIP_CHANNEL", "NoisySum"]

CLIP_CHANNEL = 0.1
r"""$s$: a record whose gradient was clipped adds up to $s C$ to one further coordinate of the sum."""


class NoisySum:
    r"""Accumulates clipped gradients and releases their sum with noise.

    A drawn record contributes $(\mathrm{clip}(g_i), s C \, r(\lVert g_i \rVert / C))$, C being the largest norm of a
    whole clipped gradient and $r(x) = \min(1, \max(0, x - 1/2))$: half at the clipping norm itself, and nowhere a jump
    that roundings of the norms could make for all records at once. With $\eta$ = `ROUNDING` and noise of deviation
    $(1 + \eta) \sqrt{1 + s^2} \, s_b$ on block b and $(1 + \eta) \sqrt{1 + s^2} \, \sigma C$ on the last coordinate,
    the release is the Gaussian mechanism at noise multiplier $\sigma$, the clipped fraction and what rounding adds to a
    record's share included. Where norms clip nothing (`ClippingBlocks.counts_clipped`), s is 0 and there is no last
    coordinate. It is rounded to public grids, powers of two at most $2^{-10}$ of each deviation.

    Args:
        parameters: What is summed on this rank by name, in the engine's order: parameters, or this rank's rows of them.
        blocks: Their clipping norms and shares of the noise.
        noise_multiplier: $\sigma$.
        correlation: How the noise of a step returns in later ones; independent noise if left out.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        blocks: ClippingBlocks,
        noise_multiplier: float,
        correlation: BandedMatrix | None = None,
    ) -> None:
        self._memory = None if correlation is None else NoiseMemory(correlation)
        self.blocks = blocks
        self.noise_multiplier = noise_multiplier
        self.num_parameters = sum(blocks.sizes)
        self.num_here = sum(parameter.numel() for parameter in parameters.values())
        device = next(iter(parameters.values())).device
        # float64 holds every multiple of the grid that a sum can reach; Apple's devices have none.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._partial: Tensor | None = None
        self._scale = (1.0 + ROUNDING) * math.sqrt(1.0 + blocks.counts_clipped * CLIP_CHANNEL**2)
        self.deviations = tuple(self._scale * deviation for deviation in blocks.deviations(noise_multiplier))
        self._segments = self._noise_segments(parameters)
        self._norms = torch.tensor(blocks.norms, dtype=dtype, device=device)

    @property
    def channel_deviation(self) -> float:
        """Standard deviation of the noise on the coordinate that counts clipped records."""
        return self._scale * self.noise_multiplier * self.blocks.total_norm

    @property
    def total(self) -> Tensor:
        """A copy of the exact sum, which nobody but an audit of a run may see."""
        return self._sum.clone()

    @property
    def _sum(self) -> Tensor:
        """What was added so far; it has no memory before the first microbatch of a step."""
        if self._partial is None:
            self._partial = self._zero.repeat(self.num_here + self.blocks.counts_clipped)
        return self._partial

    @property
    def grids(self) -> tuple[float, ...]:
        """Steps of the grids that the blocks are rounded to."""
        return tuple(release_grid(deviation) for deviation in self.deviations)

    def add(self, sums: Iterable[Tensor], norms: Tensor) -> None:
        """Add a microbatch: clipped sums, one after the other, and the norms before clipping, shape (n, blocks)."""
        start, partial = 0, self._partial
        if partial is None:
            # Zeros, to add to, would be two passes more.
            partial = self._zero.new_empty(self.num_here + self.blocks.counts_clipped)
            for total in sums:
                partial[start : start + total.numel()] = total.reshape(-1)
                start += total.numel()
            partial[start:] = 0.0
            self._partial = partial
        else:
            for total in sums:
                partial[start : start + total.numel()] += total.reshape(-1)
                start += total.numel()
        if not self.blocks.counts_clipped:
            return
        # r of the ratio in the block that is clipped most: at most 1 a record, however many blocks there are.
        clipped = (norms / self._norms - 0.5).amax(dim=1).clamp(0.0, 1.0).sum()
        partial[-1] += CLIP_CHANNEL * self.blocks.total_norm * clipped

    def begin_stretch(self) -> None:
        """From here on the noise is independent of all before, as the account has it where a pass begins anew."""
        if self._memory is not None:
            self._memory.begin()

    def clear(self) -> None:
        """Forget what was added."""
        self._partial = None

    def release(self, ranks: Ranks | Sharding | None = None) -> Tensor:
        """Sum over all ranks, add noise, round, and forget the sum.

        Args:
            ranks: Those that take part, each with a sum of its own, or with the sum of its rows; None for this process
                alone.

        Returns:
            The release, equal on all ranks but for rows of their own: one value for each parameter, and one that
            belongs to the fraction of clipped records if those are counted, which all ranks are given.
        """
        total = self._sum
        self.clear()  # what is released lies where the sum lay: there is no room for both
        return (ranks or Ranks()).release(total, self._make_public)

    def clipped_fraction(self, released: Tensor, batch_size: float) -> Tensor | None:
        """The released fraction of clipped records, with its noise: an estimate that may leave [0, 1]."""
        if not self.blocks.counts_clipped:
            return None
        return released[-1] / (CLIP_CHANNEL * self.blocks.total_norm * batch_size)

    def clipped_fraction_deviation(self, batch_size: float, num_steps: int = 1) -> float:
        """Standard deviation of the noise in the mean of `clipped_fraction` over the last `num_steps` releases."""
        # Independent noise averages out; of correlated noise the matrix says how far it does.
        share = 1 / math.sqrt(num_steps) if self._memory is None else self._memory.mean_deviation(num_steps)
        return share * self.channel_deviation / (CLIP_CHANNEL * self.blocks.total_norm * batch_size)

    def signal_to_noise(self, batch_size: float) -> float:
        """The largest ratio a step can have: all records clipped and aligned, over the expected norm of the noise."""
        return batch_size * self.blocks.total_norm / (self._scale * math.sqrt(self.blocks.power(self.noise_multiplier)))

    def _noise_segments(self, parameters: Mapping[str, Tensor]) -> list[tuple[slice, float]]:
        """Runs of coordinates with one deviation, the clipped records' own coordinate last if there is one."""
        parts = [(part.numel(), self.deviations[self.blocks.block_of(name)]) for name, part in parameters.items()]
        if self.blocks.counts_clipped:
            parts.append((1, self.channel_deviation))
        segments: list[tuple[slice, float]] = []
        stop = 0
        for size, deviation in parts:
            start, stop = stop, stop + size
            if segments and segments[-1][1] == deviation:
                start = segments.pop()[0].start
            segments.append((slice(start, stop), deviation))
        return segments

    def _make_public(self, total: Tensor, start: int) -> Tensor:
        """Noise and round the coordinates from `start` on, in place."""
        noise = None if self._memory is None else self._memory.draw(total.numel(), place_of_float64(total.device))
        for segment, deviation in self._segments:
            # Segments count from the whole sum's first coordinate, this part from `start`.
            own = slice(max(0, segment.start - start), max(0, segment.stop - start))
            part = total[own]
            if not part.numel():
                continue
            if noise is None:
                secure_generator().release_(part, deviation)
            else:
                release_with_(part, noise[own], deviation, release_grid(deviation))
        return total
