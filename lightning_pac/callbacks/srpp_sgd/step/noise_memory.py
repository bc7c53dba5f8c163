"""Noise that is correlated over steps, as one process draws it for its part of the sum."""

import torch
from torch import Tensor

from lightning_pac.accountants import BandedMatrix
from lightning_pac.randomness import secure_generator

__all__ = ["NoiseMemory"]

# Coordinates that are read at a time: few rows of so many stay in a core's cache.
_CHUNK, _CHUNK_OF_DEVICE = 1 << 14, 1 << 21


class NoiseMemory:
    r"""Draws $x_t = (z_t - \sum_{k=1}^{b-1} c_k x_{t-k}) / c_0$, $z_t$ independent standard normal values.

    Then $C x = z$. The last b - 1 draws are kept, in float64 and in memory only: noise that was stored could be
    subtracted. After an interruption, `begin` starts C anew with noise of its own.

    Reading the rows takes the time, so they are read once for the next steps together, about the root of b of them: the
    shares that old rows have in each lie in its row, where the oldest draw is no longer needed.

    Args:
        matrix: C.
    """

    def __init__(self, matrix: BandedMatrix) -> None:
        self._matrix = matrix
        self._first, *lagged = matrix.coefficients
        self._shares = [-coefficient / self._first for coefficient in lagged]  # -c_k / c_0 for k = 1, ..., b - 1
        self._ahead = max(1, round(len(lagged) ** 0.5))
        self._rows: Tensor | None = None  # (b - 1, n): step t is in row t modulo b - 1
        self._step = 0

    def begin(self) -> None:
        """The next draw is the first of a new block, independent of all before."""
        self._rows, self._step = None, 0

    def draw(self, size: int, device: torch.device) -> Tensor:
        """The noise of the next step, shape (size,), float64, until the draw after it; the same size in all of a block.

        Args:
            size: Coordinates of this process.
            device: Where the noise is wanted, and kept.
        """
        noise = secure_generator().fill_normal_(torch.empty(size, dtype=torch.float64, device=device))
        bands = len(self._shares)
        if self._rows is None:
            # Zero for steps before the block's first, where the sum over k ends.
            self._rows = noise.new_zeros(bands, size)
        since = self._step % self._ahead
        if not since:
            self._look_ahead(self._rows)
        # z_t / c_0, what the rows up to the last look ahead have in it, and the shares of those drawn since.
        own = self._rows[self._step % bands].add_(noise, alpha=1 / self._first)
        for k in range(1, since + 1):
            own.add_(self._rows[(self._step - k) % bands], alpha=self._shares[k - 1])
        self._step += 1
        return own

    def _look_ahead(self, rows: Tensor) -> None:
        """Put the shares of all rows in each of the next steps into its row."""
        bands, size = rows.shape
        # Row j holds x of `back` steps before this one, and has the share c_(back + s) in the step s later.
        weights = rows.new_zeros(self._ahead, bands)
        for j in range(bands):
            back = (self._step - 1 - j) % bands + 1
            reached = self._shares[back - 1 : back - 1 + self._ahead]
            weights[: len(reached), j] = rows.new_tensor(reached)
        own = (self._step + torch.arange(self._ahead, device=rows.device)) % bands
        chunk = _CHUNK if rows.is_cpu else _CHUNK_OF_DEVICE
        for start in range(0, size, chunk):
            part = rows[:, start : start + chunk]
            part[own] = weights @ part

    def mean_deviation(self, num_steps: int) -> float:
        """Deviation of the mean of the last `num_steps` draws of this block."""
        return self._matrix.mean_deviation(self._step, num_steps)
