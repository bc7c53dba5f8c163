"""Figures of Poisson-sampled steps by other means than the library's: densities alone, quadrature, and plain sums."""

import itertools
import math

import numpy as np
from scipy import fft, stats
from scipy.special import logsumexp

Array = np.ndarray


def log_density(x: Array, differing: int, rate: float, sigma: float, side: int) -> Array:
    """Of `sum_k Binom(k; d, q) N(side k, sigma^2)`."""
    counts = np.arange(differing + 1)
    log_weights = stats.binom.logpmf(counts, differing, rate)
    return logsumexp(log_weights + stats.norm.logpdf(x[..., None], side * counts, sigma), axis=-1)


def _log_ratio(x: Array, differing: int, rate: float, sigma: float) -> Array:
    weights = stats.binom.pmf(np.arange(differing + 1), differing, rate)
    return np.log(sum(w * np.exp((k * x - k**2 / 2) / sigma**2) for k, w in enumerate(weights)))


def losses(x: Array, rate: float, sigma: float, pair: tuple[int, int]) -> Array:
    return log_density(x, pair[0], rate, sigma, 1) - log_density(x, pair[1], rate, sigma, -1)


def mean_preserving_deltas(
    sigma: float, rate: float, pair: tuple[int, int], steps: int, epsilons: list[float], step: float
) -> list[float]:
    """Delta of a run by a plain Fourier transform: losses at fine quadrature points, divided by their means.

    Neither upper nor lower bound, accurate to the second order in the lattice step.
    """
    reach = 9 * sigma
    x = np.linspace(-reach, pair[0] + reach, 40_001)
    masses = np.exp(log_density(x, pair[0], rate, sigma, 1)) * (x[1] - x[0])
    loss = losses(x, rate, sigma, pair)
    mean, deviation = steps * (masses @ loss), math.sqrt(steps * (masses @ loss**2 - (masses @ loss) ** 2))
    length = fft.next_fast_len(int((40 * deviation + 2 * np.abs(loss).max()) / step))
    places = loss / step
    left = np.floor(places).astype(int)
    law = np.bincount(left % length, masses * (left + 1 - places), length)
    law += np.bincount((left + 1) % length, masses * (places - left), length)
    total = fft.irfft(fft.rfft(law) ** steps, length)
    center = round(mean / step)
    index = center - length // 2 + np.arange(length)
    total = total[index % length]
    return [float(total @ np.maximum(0.0, -np.expm1(epsilon - index * step))) for epsilon in epsilons]


def draw_losses(
    rng: np.random.Generator, sigma: float, rate: float, pair: tuple[int, int], steps: int, draws: int
) -> Array:
    """Losses of whole runs under the first world, shape (draws,)."""
    total = np.zeros(draws)
    for _ in range(steps):
        x = rng.binomial(pair[0], rate, size=draws) + sigma * rng.normal(size=draws)
        total += _log_ratio(x, pair[0], rate, sigma) - _log_ratio(-x, pair[1], rate, sigma)
    return total


def subset_sums(vectors: Array, rate: float) -> tuple[Array, Array]:
    """Centers and weights of a sum of Poisson-sampled vectors, one for each subset."""
    chosen = np.array(list(itertools.product([0, 1], repeat=len(vectors))))
    sizes = chosen.sum(axis=1)
    return chosen @ vectors, rate**sizes * (1 - rate) ** (len(vectors) - sizes)
