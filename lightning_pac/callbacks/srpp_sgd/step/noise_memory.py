"""Noise that is correlated over steps, as one process draws it for its part of the sum."""

import torch
from torch import Tensor

from lightning_pac.accountants import BandedMatrix
from lightning_pac.randomness import secure_generator

__all__ = ["NoiseMemory"]


class NoiseMemory:
    r"""Draws $x_t = (z_t - \sum_{k=1}^{b-1} c_k x_{t-k}) / c_0$, $z_t$ independent standard normal values.

    Then $C x = z$. The last b - 1 draws are kept, in float64 and in memory only: noise that was stored could be
    subtracted. After an interruption, `begin` starts C anew with noise of its own.

    Args:
        matrix: C.
    """

    def __init__(self, matrix: BandedMatrix) -> None:
        self._matrix = matrix
        self._first, *lagged = matrix.coefficients
        self._lagged = torch.tensor(lagged, dtype=torch.float64)
        self._rows: Tensor | None = None  # (b - 1, n): step t is in row t modulo b - 1
        self._step = 0

    def begin(self) -> None:
        """The next draw is the first of a new block, independent of all before."""
        self._rows, self._step = None, 0

    def draw(self, size: int, device: torch.device) -> Tensor:
        """The noise of the next step, shape (size,), float64; the same size in all steps of a block.

        Args:
            size: Coordinates of this process.
            device: Where the noise is wanted, and kept.
        """
        noise = secure_generator().fill_normal_(torch.empty(size, dtype=torch.float64, device=device))
        bands = len(self._lagged)
        if self._rows is None:
            # Zero for steps before the block's first, where the sum over k ends.
            self._rows = noise.new_zeros(bands, size)
            self._lagged = self._lagged.to(device)
        # Row t - k holds x of k steps before, so the coefficients turn with the ring.
        steps_back = (self._step - 1 - torch.arange(bands, device=device)) % bands
        weights = torch.empty_like(self._lagged)
        weights[steps_back] = self._lagged
        noise.addmv_(self._rows.T, weights, alpha=-1.0).div_(self._first)
        self._rows[self._step % bands] = noise
        self._step += 1
        return noise

    def mean_deviation(self, num_steps: int) -> float:
        """Deviation of the mean of the last `num_steps` draws of this block."""
        return self._matrix.mean_deviation(self._step, num_steps)
