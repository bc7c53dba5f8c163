"""Releases about a secret subset and what a ledger must keep of them."""

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.special import logsumexp

from lightning_pac._mutex import Mutex
from lightning_pac._validation import validated
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.information import Array, entropy
from lightning_pac.ledger import (
    LedgerAccount,
    LedgerArgument,
    LedgerHandle,
    PrivacyLedger,
    ResponseTranscript,
    pack_arrays,
    read_state,
    unpack_arrays,
)
from lightning_pac.mechanisms.pac_noise import GaussianNoise
from lightning_pac.mechanisms.responses import SMALLEST_MASS, open_answers
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios import SecretIndex, SecretSpace

__all__ = ["KeptSecret", "Released", "SingleRelease", "recorded_belief", "released_values"]

# A ledger has one writing process; within it, no second release comes between the check and the charge of a first.
_one_release = Mutex()

Calibrate = Callable[[Array, float], GaussianNoise]


@dataclasses.dataclass(frozen=True, eq=False)
class Released:
    """One release: its value, and what it and all releases about the secret cost."""

    value: Array
    noise: GaussianNoise
    cost: float
    total: float
    count: int


class SingleRelease:
    """One release about an index that is drawn for it and forgotten."""

    def __init__(
        self,
        space: SecretSpace,
        ledger: LedgerArgument | None,
        account: str,
        generator: SecureGenerator | None,
    ) -> None:
        self._space = space
        self._ledger = ledger
        self._account = account
        self._generator = generator

    def check(self, budget: float) -> None:
        """Raise what a release at this cost would raise, before the box is run."""
        if self._ledger is not None:
            with _open(self._ledger, self._account, self._space) as (_, account):
                self._check_unused(account)
                account.check(budget)

    def release(
        self, outputs: Array, shape: tuple[int, ...], calibrate: Calibrate, budget: float, event: Mapping[str, Any]
    ) -> Released:
        """Draw the index, noise its output, charge, and only then return."""
        noise = calibrate(self._space.prior, budget)
        source = secure_generator() if self._generator is None else self._generator
        value = noise.release(outputs[source.choice(self._space.prior)], source).reshape(shape)
        cost = budget if noise.power > 0 else 0.0
        if self._ledger is not None:
            with _one_release, _open(self._ledger, self._account, self._space) as (_, account):
                self._check_unused(account)
                account.charge(cost, {"release": dict(event), "secret": "drawn for this release"})
        return Released(value, noise, cost, cost, 1)

    def _check_unused(self, account: LedgerAccount) -> None:
        if account.num_charges:
            raise LedgerMismatchError(
                f"Account {account.name!r} has released about this table before, and its index was not kept: a second "
                "release would speak of another subset, and both together of almost everybody; draw the secret into a "
                "file with draw_secret and pass it for all releases."
            )


class KeptSecret:
    """Releases about one kept index, each with noise for the belief that the earlier ones left."""

    def __init__(
        self,
        secret: SecretIndex,
        ledger: LedgerArgument,
        account: str,
        generator: SecureGenerator | None,
    ) -> None:
        self._secret = secret
        self._space = secret.space
        self._ledger = ledger
        self._account = account
        self._generator = generator

    def check(self, budget: float) -> None:
        """Raise what a release at this cost would raise, before the box is run."""
        with self._transcript() as (account, _):
            account.check(self._cost(budget, account.spent))

    def release(
        self, outputs: Array, shape: tuple[int, ...], calibrate: Calibrate, budget: float, event: Mapping[str, Any]
    ) -> Released:
        """Noise the output for the current belief, record value, cost and new belief, and only then return."""
        with self._transcript() as (account, transcript):
            log_belief = _read_belief(transcript, self._space)
            # A secret that is all but excluded still gets some noise; the sum in excess of 1 comes off the budget,
            # since the log-det bound grows at most in proportion to the covariance.
            weights = np.where(self._space.prior > 0, np.maximum(np.exp(log_belief), SMALLEST_MASS), 0.0)
            excess = max(1.0, float(weights.sum()))
            noise = calibrate(weights / weights.sum(), budget / excess)
            drawn = noise.draw(outputs[operator.index(self._secret)], self._generator)
            value = noise.shown(drawn).reshape(shape)
            cost = self._cost(budget, account.spent) if noise.power > 0 else 0.0
            updated = _update(log_belief, noise, outputs, drawn)
            transcript.append(pack_arrays([value]), 1, cost, pack_arrays([updated]))
            return Released(value, noise, cost, account.spent, account.num_charges)

    def values(self) -> list[Array]:
        """All values so far, each checked against the ledger's chain."""
        with self._transcript() as (_, transcript):
            return [unpack_arrays(entry.payload)[0] for entry in transcript.entries()]

    def belief(self) -> Array:
        """Posterior of the secret given all values, shape (m,): for auditors."""
        with self._transcript() as (_, transcript):
            return np.asarray(np.exp(_read_belief(transcript, self._space)))

    def _cost(self, budget: float, spent: float) -> float:
        # All releases together never tell more than the secret.
        return min(budget, max(0.0, float(entropy(self._space.prior)) - spent))

    @contextmanager
    def _transcript(self) -> Iterator[tuple[LedgerAccount, ResponseTranscript]]:
        with _open(self._ledger, self._account, self._space) as (ledger, account):
            transcript = ResponseTranscript(
                ledger, account, self._secret.key, self._secret.path, operator.index(self._secret)
            )
            try:
                yield account, transcript
            finally:
                transcript.close()


@validated
def released_values(secret: SecretIndex, ledger: LedgerArgument, account: str = "privatize") -> list[Array]:
    """Values that `privatize` released about a kept secret, in order; it costs nothing to read them again.

    Args:
        secret: From `SecretSpace.load_secret`.
        ledger: The ledger of the releases, or its path.
        account: Their account.

    Raises:
        LedgerError: If an entry was changed or is missing.
        LedgerMismatchError: If the secret answers through another account or ledger.
    """
    return KeptSecret(secret, ledger, account, None).values()


def recorded_belief(ledger: PrivacyLedger, account: LedgerAccount) -> Array:
    """Posterior of the secret given all released values, as the ledger has it, shape (m,): for auditors.

    The chain is not checked, so it needs no secret file.

    Raises:
        ValueError: If the account has released nothing about a kept secret.
    """
    state = read_state(ledger, account)
    if state is None:
        raise ValueError(f"Account {account.name!r} of {ledger.path} has released nothing about a kept secret.")
    return np.asarray(np.exp(unpack_arrays(state)[0]))


@contextmanager
def _open(ledger: LedgerArgument, name: str, space: SecretSpace) -> Iterator[tuple[PrivacyLedger, LedgerAccount]]:
    with LedgerHandle(ledger) as opened:
        yield opened, open_answers(opened, name, space, "privatize", "privatize")


def _read_belief(transcript: ResponseTranscript, space: SecretSpace) -> Array:
    if transcript.snapshot is not None:
        return np.array(unpack_arrays(transcript.snapshot.state)[0])
    # A secret of prior 0 stays at -inf, whatever is released.
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(space.prior))


def _update(log_belief: Array, noise: GaussianNoise, outputs: Array, drawn: Array) -> Array:
    """Bayes' rule with the Gaussian density of what was drawn around each output, along the noised directions."""
    if not len(drawn):
        return log_belief
    # Row by row: all deviations from the mean at once would double the memory of the outputs.
    distances = [float(((noise.whiten(row) - drawn) ** 2).sum()) for row in outputs]
    updated = log_belief - 0.5 * np.array(distances)
    # All densities may underflow together; their logarithms do not.
    return np.asarray(updated - logsumexp(updated))
