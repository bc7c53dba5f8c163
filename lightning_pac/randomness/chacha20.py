"""ChaCha20 keystream (RFC 8439) computed on a CUDA device, where torch's own generator, Philox, is not cryptographic.

The kernel needs Triton, which comes with CUDA builds of torch. Without it the keystream of the host is copied over.
"""

# Triton has no types and reads annotations as code of its own.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped"

import os
from typing import TYPE_CHECKING

import numpy as np

from lightning_pac._mutex import Mutex

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if TYPE_CHECKING:
    import torch

__all__ = ["ChaCha20Keystream", "is_available"]

# A block has 16 words of 32 bits (RFC 8439, section 2.3), and each program computes 128 blocks side by side.
_BLOCKS_PER_PROGRAM = 128
_WORDS = 16
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")


def is_available() -> bool:
    """Whether the kernel can be compiled here."""
    return triton is not None


class ChaCha20Keystream:
    """A keystream on a device, keyed from the operating system; keyed anew before its 32-bit counter ends.

    Threads may share one: each gets blocks of its own.

    Args:
        device: Where the keystream is computed.
        key: 32 bytes, for tests against published vectors; random if left out.
        nonce: 12 bytes, likewise.
        counter: Number of the first block.
    """

    def __init__(
        self, device: "torch.device | str", key: bytes | None = None, nonce: bytes | None = None, counter: int = 0
    ) -> None:
        if not is_available():
            raise RuntimeError("The ChaCha20 kernel needs Triton; install a CUDA build of torch, which includes it.")
        self._device = device
        self._mutex = Mutex()
        self._set_key(os.urandom(32) if key is None else key, os.urandom(12) if nonce is None else nonce, counter)

    def fill_(self, words: "torch.Tensor") -> "torch.Tensor":
        """Fill a contiguous int32 tensor with keystream, in place."""
        blocks = -(-words.numel() // _WORDS)
        with self._mutex:
            # A counter that came round would repeat the keystream.
            if self._counter + blocks >= 2**32:
                self._set_key(os.urandom(32), os.urandom(12), 0)
            state, first = self._state, self._counter
            self._counter += blocks
        grid = (-(-blocks // _BLOCKS_PER_PROGRAM),)
        _chacha20_kernel[grid](words, state, self._signed(first), words.numel(), _BLOCKS_PER_PROGRAM)
        return words

    def _set_key(self, key: bytes, nonce: bytes, counter: int) -> None:
        import torch

        # Words 0-3 are the constants, 4-11 the key, 12 the counter and 13-15 the nonce; the kernel sets the counter.
        parts = [_CONSTANTS, np.frombuffer(key, "<u4"), np.zeros(1, "<u4"), np.frombuffer(nonce, "<u4")]
        state = np.concatenate(parts).astype(np.uint32).view(np.int32)
        self._state = torch.from_numpy(state.copy()).to(self._device)
        self._counter = counter

    @staticmethod
    def _signed(value: int) -> int:
        # The kernel takes the 32 bits of the counter as a signed integer.
        return value - 2**32 if value >= 2**31 else value


if triton is not None:

    @triton.jit
    def _rotate(x, bits: tl.constexpr):
        return (x << bits) | (x >> (32 - bits))

    @triton.jit
    def _quarter_round(a, b, c, d):
        a += b
        d = _rotate(d ^ a, 16)
        c += d
        b = _rotate(b ^ c, 12)
        a += b
        d = _rotate(d ^ a, 8)
        c += d
        b = _rotate(b ^ c, 7)
        return a, b, c, d

    # A counter of one must stay a number of the kernel, not become a constant of its source.
    @triton.jit(do_not_specialize=["counter"])
    def _chacha20_kernel(out, state, counter, size, BLOCKS: tl.constexpr):
        block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
        # Spreads a word of the state over the blocks of this program.
        zero = (block * 0).to(tl.uint32)
        s0 = zero + tl.load(state + 0).to(tl.uint32, bitcast=True)
        s1 = zero + tl.load(state + 1).to(tl.uint32, bitcast=True)
        s2 = zero + tl.load(state + 2).to(tl.uint32, bitcast=True)
        s3 = zero + tl.load(state + 3).to(tl.uint32, bitcast=True)
        s4 = zero + tl.load(state + 4).to(tl.uint32, bitcast=True)
        s5 = zero + tl.load(state + 5).to(tl.uint32, bitcast=True)
        s6 = zero + tl.load(state + 6).to(tl.uint32, bitcast=True)
        s7 = zero + tl.load(state + 7).to(tl.uint32, bitcast=True)
        s8 = zero + tl.load(state + 8).to(tl.uint32, bitcast=True)
        s9 = zero + tl.load(state + 9).to(tl.uint32, bitcast=True)
        s10 = zero + tl.load(state + 10).to(tl.uint32, bitcast=True)
        s11 = zero + tl.load(state + 11).to(tl.uint32, bitcast=True)
        s12 = block.to(tl.uint32) + counter.to(tl.uint32)
        s13 = zero + tl.load(state + 13).to(tl.uint32, bitcast=True)
        s14 = zero + tl.load(state + 14).to(tl.uint32, bitcast=True)
        s15 = zero + tl.load(state + 15).to(tl.uint32, bitcast=True)
        x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
        x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
        # Twenty rounds: ten of the columns of the 4 x 4 state, each followed by one of its diagonals.
        for _ in range(10):
            x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
        # 64-bit offsets: a large tensor has more than 2**31 bytes of keystream.
        base = block.to(tl.int64) * 16
        tl.store(out + base + 0, (x0 + s0).to(tl.int32, bitcast=True), mask=base + 0 < size)
        tl.store(out + base + 1, (x1 + s1).to(tl.int32, bitcast=True), mask=base + 1 < size)
        tl.store(out + base + 2, (x2 + s2).to(tl.int32, bitcast=True), mask=base + 2 < size)
        tl.store(out + base + 3, (x3 + s3).to(tl.int32, bitcast=True), mask=base + 3 < size)
        tl.store(out + base + 4, (x4 + s4).to(tl.int32, bitcast=True), mask=base + 4 < size)
        tl.store(out + base + 5, (x5 + s5).to(tl.int32, bitcast=True), mask=base + 5 < size)
        tl.store(out + base + 6, (x6 + s6).to(tl.int32, bitcast=True), mask=base + 6 < size)
        tl.store(out + base + 7, (x7 + s7).to(tl.int32, bitcast=True), mask=base + 7 < size)
        tl.store(out + base + 8, (x8 + s8).to(tl.int32, bitcast=True), mask=base + 8 < size)
        tl.store(out + base + 9, (x9 + s9).to(tl.int32, bitcast=True), mask=base + 9 < size)
        tl.store(out + base + 10, (x10 + s10).to(tl.int32, bitcast=True), mask=base + 10 < size)
        tl.store(out + base + 11, (x11 + s11).to(tl.int32, bitcast=True), mask=base + 11 < size)
        tl.store(out + base + 12, (x12 + s12).to(tl.int32, bitcast=True), mask=base + 12 < size)
        tl.store(out + base + 13, (x13 + s13).to(tl.int32, bitcast=True), mask=base + 13 < size)
        tl.store(out + base + 14, (x14 + s14).to(tl.int32, bitcast=True), mask=base + 14 < size)
        tl.store(out + base + 15, (x15 + s15).to(tl.int32, bitcast=True), mask=base + 15 < size)
