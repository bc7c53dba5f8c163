"""A generator keyed from the operating system."""

import functools
import hashlib
import math
import os
import reprlib
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from lightning_pac._mutex import Mutex
from lightning_pac._validation import Positive, Probability, checks_itself, validated
from lightning_pac.randomness.grid import release_grid
from lightning_pac.randomness.normal import fill_array, fill_normal_, release_

if TYPE_CHECKING:
    import torch

    from lightning_pac.randomness.chacha20 import ChaCha20Keystream

__all__ = ["SecureGenerator", "secure_generator"]

Size = int | tuple[int, ...]

# Short enough to stay in a second-level cache.
_ZEROS = bytes(1 << 18)

_forks = 0


@validated
class SecureGenerator:
    """Cryptographically secure uniforms, normals and draws.

    Without a seed the key comes from the operating system, a forked child is keyed anew, and a pickled or copied
    generator is a fresh one: no stream is ever repeated. Threads may share one.

    Args:
        seed: Makes every draw reproducible, hence public. For tests only; it warns.

    Raises:
        TypeError: If the seed is not an integer.

    Example:
        >>> generator = SecureGenerator()
        >>> generator.normal((2, 3)).shape
        (2, 3)
        >>> bool(generator.bernoulli(0.0, 4).any())
        False
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._shared = None if seed is None else b"lightning-pac %d" % seed
        self._mutex = Mutex()
        self._rekey()
        if seed is not None:
            warnings.warn(
                f"Noise and draws seeded with {seed} can be reproduced by anyone and protect nothing: for tests only.",
                UserWarning,
                stacklevel=3,
            )

    @classmethod
    def from_key(cls, key: bytes) -> "SecureGenerator":
        """A generator for processes that must draw the same: those with the same secret key do.

        Args:
            key: At least 32 bytes from the operating system's randomness, for this generator only and never stored.

        Raises:
            ValueError: If the key has less than 32 bytes.

        Example:
            >>> key = os.urandom(32)
            >>> SecureGenerator.from_key(key).bytes(8) == SecureGenerator.from_key(key).bytes(8)
            True
        """
        if len(key) < 32:
            raise ValueError(f"key has {len(key)} bytes, but must have at least 32: draw it with os.urandom(32).")
        generator = cls()
        generator._shared = b"lightning-pac key " + key
        generator._rekey()
        return generator

    @property
    def seeded(self) -> bool:
        """Whether the draws are reproducible, which no release may be."""
        return self._seed is not None

    @checks_itself
    def bytes(self, count: int) -> bytes:
        """Return `count` random bytes.

        Args:
            count: How many.

        Raises:
            ValueError: If the count is negative.
        """
        count = _natural("count", count)
        return self._words(-(-count // 8)).tobytes()[:count]

    @checks_itself
    def uniform(self, size: Size = ()) -> npt.NDArray[np.float64]:
        """Uniform float64 values in the open interval (0, 1), with 64 random bits each and fine near zero."""
        words = self._words(math.prod(_shape(size))).view(np.uint64)
        # Where a float has no room for the half, the largest would become one.
        values = np.minimum((words.astype(np.float64) + 0.5) * 2.0**-64, 1.0 - 2.0**-53)
        return values.reshape(_shape(size))

    @checks_itself
    def normal(self, size: Size = ()) -> npt.NDArray[np.float64]:
        """Independent standard normal float64 values, by Box and Muller (1958)."""
        values = np.empty(_shape(size))
        fill_array(values.reshape(-1), self._host_words, np)
        return values

    @overload
    def integers(self, high: int, size: None = None) -> int: ...
    @overload
    def integers(self, high: int, size: Size) -> npt.NDArray[np.int64]: ...
    @checks_itself
    def integers(self, high: int, size: Size | None = None) -> int | npt.NDArray[np.int64]:
        """Unbiased integers from 0 to `high - 1`: one `int` without a size, else an int64 array.

        Args:
            high: From 1 to 2**63.
            size: Shape of the array.

        Raises:
            ValueError: If `high` is out of range.
        """
        high = high if type(high) is int else _natural("high", high)
        if not 1 <= high <= 2**63:
            raise ValueError(f"high must be from 1 to 2**63, got {high}.")
        shape = _shape(size if size is not None else ())
        count = math.prod(shape)
        # Words past the largest multiple of `high` would make small results likelier: they are drawn again.
        limit = np.uint64(2**64 // high * high - 1)
        accepted: list[npt.NDArray[np.uint64]] = []
        missing = count
        while missing > 0:
            words = self._words(missing).view(np.uint64)
            accepted.append(words[words <= limit])
            missing -= accepted[-1].size
        kept = np.concatenate(accepted) if accepted else np.empty(0, np.uint64)
        values = (kept % np.uint64(high)).astype(np.int64).reshape(shape)
        return int(values) if size is None else values

    def choice(self, weights: npt.ArrayLike) -> int:
        """Draw one index with the given probabilities.

        Args:
            weights: Non-negative probabilities, shape (m,), with sum one.

        Raises:
            ValueError: If the weights are not one row of non-negative numbers with sum one.
        """
        probabilities = np.asarray(weights, dtype=np.float64)
        total = float(probabilities.sum()) if probabilities.size else 0.0
        if probabilities.ndim != 1 or not math.isclose(total, 1.0, abs_tol=1e-9) or bool((probabilities < 0).any()):
            raise ValueError(f"weights must be one row of non-negative numbers with sum 1, got a sum of {total!r}.")
        cumulative = np.cumsum(probabilities)
        # Scaled by the computed sum, which may miss 1; a product rounded up to it goes to the last index of any weight.
        index = int(np.searchsorted(cumulative, float(self.uniform()) * cumulative[-1], side="right"))
        return min(index, int(np.flatnonzero(probabilities)[-1]))

    def bernoulli(self, rate: Probability, size: Size) -> npt.NDArray[np.bool_]:
        """Independent coins that are True with probability `rate`.

        Args:
            rate: Probability of True, in [0, 1].
            size: Shape of the array.

        Raises:
            ValueError: If the rate is not a probability.
        """
        return self.uniform(size) < rate

    def fill_normal_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Fill a floating-point tensor with standard normal values in place, on its device, and return it.

        Values are computed in float64 and then rounded to the tensor's type. What is to be made public goes through
        `release_` instead, or through float64: float32 draws tell by their low bits what they were added to. One call
        on one flat buffer is much faster than one call per parameter.

        Args:
            tensor: Of a floating-point type, on any device.
        """
        _check_tensor("tensor", tensor)
        return fill_normal_(tensor, self._words_on)

    def release_(self, total: "torch.Tensor", deviation: Positive, step: Positive | None = None) -> "torch.Tensor":
        r"""Make a tensor public in place: $h \, \mathrm{round}((x + \sigma Z) / h)$, and return it.

        Block by block, so that the noise is never held as a whole and every pass over it stays in the cache.

        Args:
            total: x, contiguous, float32 or float64; under several devices the sum over them.
            deviation: Standard deviation of the noise on each coordinate, positive.
            step: h, a power of two; `release_grid(deviation)` if left out.

        Example:
            >>> import torch
            >>> release = SecureGenerator().release_(torch.zeros(5), deviation=1.0)
            >>> bool((release % 2.0**-10 == 0).all())
            True
        """
        _check_tensor("total", total)
        return release_(total, self._words_on, deviation, release_grid(deviation) if step is None else step)

    @checks_itself
    def words_for(self, device: "torch.device", most: int) -> Callable[[int], "torch.Tensor"]:
        """Return a source of up to `most` random 64-bit words at a time, in a tensor that is used again.

        On a CUDA device they are ChaCha20 computed there; torch's generator for it is not cryptographic.
        """
        import torch

        from lightning_pac.randomness import chacha20

        if device.type == "cuda" and self._shared is None and chacha20.is_available():
            keystream = self._keystream_on(device)
            on_device = torch.empty(most, dtype=torch.int64, device=device)
            return lambda count: keystream.fill_(on_device[:count].view(torch.int32)).view(torch.int64)
        words = np.empty(most, dtype=np.int64)

        def fill(count: int) -> torch.Tensor:
            self.fill_words(words[:count])
            return torch.from_numpy(words[:count]).to(device)

        return fill

    def _keystream_on(self, device: "torch.device") -> "ChaCha20Keystream":
        from lightning_pac.randomness.chacha20 import ChaCha20Keystream

        with self._mutex:
            if self._generation != _forks:
                self._rekey()
            if device not in self._device_keystreams:
                self._device_keystreams[device] = ChaCha20Keystream(device)
            return self._device_keystreams[device]

    def _words_on(self, device: "torch.device") -> Callable[[int], Callable[[int], "torch.Tensor"]]:
        return functools.partial(self.words_for, device)

    def _host_words(self, most: int) -> Callable[[int], npt.NDArray[np.int64]]:
        return self._words

    def _words(self, count: int) -> npt.NDArray[np.int64]:
        """Return `count` random 64-bit words."""
        words = np.empty(count, dtype=np.int64)
        self.fill_words(words)
        return words

    @checks_itself
    def fill_words(self, words: npt.NDArray[np.int64]) -> None:
        """Fill a contiguous array of 64-bit words with keystream, in place."""
        target = words.view(np.uint8).data
        with self._mutex:
            if self._generation != _forks and self._shared is None:
                self._rekey()
            for start in range(0, target.nbytes, len(_ZEROS)):
                part = target[start : start + len(_ZEROS)]
                # Encrypted zeros are the keystream itself, written without a copy.
                self._keystream.update_into(_ZEROS[: part.nbytes] if part.nbytes < len(_ZEROS) else _ZEROS, part)

    def _rekey(self) -> None:
        # A 256-bit key and the first 128-bit counter block of AES-256 in counter mode.
        secret = os.urandom(48) if self._shared is None else hashlib.sha384(self._shared).digest()
        cipher = Cipher(algorithms.AES(secret[:32]), modes.CTR(secret[32:]))
        self._keystream: CipherContext = cipher.encryptor()
        self._device_keystreams: dict[torch.device, ChaCha20Keystream] = {}
        self._generation = _forks

    def __reduce__(self) -> tuple[type["SecureGenerator"], tuple[()]]:
        if self._shared is not None:
            raise TypeError("This SecureGenerator cannot be copied or pickled: its copy would repeat its draws.")
        return SecureGenerator, ()


def secure_generator() -> SecureGenerator:
    """Return the generator that the whole process shares; it has no seed."""
    global _shared
    if _shared is None:
        _shared = SecureGenerator()
    return _shared


_shared: SecureGenerator | None = None


def _shape(size: Size) -> tuple[int, ...]:
    if isinstance(size, tuple | list):
        return tuple(_natural("size", length) for length in size)
    return (_natural("size", size),)


def _check_tensor(name: str, value: Any) -> None:
    # Torch is imported where a tensor was given alone.
    if not (hasattr(value, "is_floating_point") and value.is_floating_point()):
        raise TypeError(f"{name} must be a floating-point tensor, got {getattr(value, 'dtype', type(value).__name__)}.")


def _natural(name: str, value: Any) -> int:
    """The number, refused if it is no integer from 0."""
    if type(value) is not int:
        value = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(
                f"{name} is {reprlib.repr(value)}, but must be an integer{', or several' * (name == 'size')}."
            )
    if not 0 <= value <= sys.maxsize:
        raise ValueError(f"{name} is {reprlib.repr(value)}, but must lie between 0 and {sys.maxsize}.")
    return value


def _count_fork() -> None:
    """Make every generator of a forked child draw a key of its own at its next use."""
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)
