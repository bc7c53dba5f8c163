"""Random bits that cannot be predicted: uniforms, Gaussian noise, draws, and the grid a release is rounded to.

The bits are the keystream of AES-256 in counter mode (ChaCha20 on a CUDA device), keyed from the operating system;
normals are Box–Muller in float64 on at least 63 bits. A float leaks in its low bits which values its generator can
produce, so a *release* (value plus noise) is rounded to a public grid as the last operation before anything reads it;
rounding the noise alone would publish the value modulo the grid.
"""

from lightning_pac.randomness.generator import SecureGenerator, secure_generator
from lightning_pac.randomness.global_generators import seed_globally_in_secret
from lightning_pac.randomness.grid import finite_precision, missing_tail, release_grid, round_to_grid, round_up

__all__ = [
    "SecureGenerator",
    "finite_precision",
    "missing_tail",
    "release_grid",
    "round_to_grid",
    "round_up",
    "secure_generator",
    "seed_globally_in_secret",
]
