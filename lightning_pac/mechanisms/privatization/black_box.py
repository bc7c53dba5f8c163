"""Automatic privatization: any function of the data, released with just enough noise."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_pac._validation import Confidence, Count, validated
from lightning_pac.information import Array, check_budget, entropy
from lightning_pac.ledger import LedgerArgument
from lightning_pac.mechanisms.drowned import warn_if_drowned
from lightning_pac.mechanisms.pac_noise import GaussianNoise, NoiseRule, calibrate_gaussian, calibrate_to_belief
from lightning_pac.mechanisms.privatization.box_runs import Box, check_data, check_fingerprint, run_box, run_twice, take
from lightning_pac.mechanisms.privatization.canonical import CanonicalForm
from lightning_pac.mechanisms.privatization.privatized_output import PrivatizedOutput
from lightning_pac.mechanisms.privatization.secret_account import KeptSecret, SingleRelease
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import SecretIndex, SecretSpace

__all__ = ["privatize"]

_ROWS_PER_BLOCK = 16


@validated
def privatize(
    box: Box,
    secret_space: SecretSpace | SecretIndex,
    budget: float,
    rule: NoiseRule = "logdet",
    *,
    ledger: LedgerArgument | None = None,
    data: Any = None,
    public: Any = None,
    canonicalize: CanonicalForm | Sequence[CanonicalForm] = (),
    workers: Count | None = None,
    cache: str | Path | None = None,
    fingerprint: str | None = None,
    account: str = "privatize",
    confidence: Confidence = 0.99,
    progress: bool = True,
    generator: SecureGenerator | None = None,
) -> PrivatizedOutput:
    r"""Run a black box on a secret subset of the data and release its output with noise for a stated budget.

    The box is run on all m public subsets, so the covariance of its output is known exactly. The output of the secret
    subset is released with the noise of `calibrate_gaussian`, and tells at most `budget` nats about
    which subset it was: $I(S; M(S) + B) \le b$.

    With a `SecretSpace` an index is drawn for this one release and forgotten. Another release about the same table is
    then refused by the ledger, for it would speak of a second subset.

    With a `SecretIndex` (`space.draw_secret(path)`, later `space.load_secret(path)`) any number of releases speak of
    one subset, and each box, budget and reference may be chosen after seeing the earlier values. Noise that is made for
    the prior does not suffice then: an adversary who has learned from the first value asks where they are still in
    doubt. So the noise of each release is made for the *belief*, the posterior given all earlier values, and

    $$I(S; R_1, \dots, R_T) \le \min\Big(\sum_t b_t,\; H(P)\Big).$$

    The ledger keeps belief, values and costs, on the disk before a value is returned (`released_values` reads them
    again). Such a secret answers through this one account, so a `PACResponder` cannot share it.

    Args:
        box: Deterministic function of the records of a subset, returning numbers of one shape for all subsets. Whatever
            reads private records, to normalize, to choose or to order, belongs in it.
        secret_space: The public subsets, or the kept secret index of one.
        budget: Mutual information b of this release in nats.
        rule: `"logdet"`, `"linear"`, `"coordinate"`, `"isotropic"`, or `"exact"` (for a single release only, since its
            certificate holds with a confidence).
        ledger: The ledger, or its path. Needed with a `SecretIndex`. Without one nothing remembers this release.
        data: An array of N records, or a tuple of arrays, of which the box gets the rows of a subset; None gives it
            the indices of the subset.
        public: Public input of the form the box takes, an array or a tuple, on which it is run twice to see whether it
            is deterministic; by default the first subset of the public table, never the secret one.
        canonicalize: Canonical forms, applied to each output in this order. Their references are public.
        workers: Processes; as many as there are processors if None, and 1 to run the box in this one.
        cache: Folder for finished runs, so that an interrupted call continues. It holds outputs without noise, readable
            by the owner only: remove it when you are done.
        fingerprint: Name of this version of box and data, needed for a cache.
        account: Name of the account in the ledger.
        confidence: Of the certificate of the exact rule.
        progress: Whether to show a progress bar.
        generator: Source of noise and index, the process-wide secure generator if None.

    Raises:
        ValueError: If the budget is not positive or not below the entropy, the outputs differ in shape, are not finite
            or empty, there is one subset only, the box is not deterministic, or a reference is one of the outputs.
        RuntimeError: If the box fails.
        BudgetExceededError: If a budget of the ledger would be passed; nothing was released.
        LedgerError: If the release could not be recorded; nothing was released.
        LedgerMismatchError: If the table was released about before, with another secret.

    Source: *PAC-Private Algorithms*, Algorithm 2 and Appendix B; for several releases *PAC-Private Responses*,
    Theorem 3.3.

    Example:
        >>> from lightning_pac.scenarios import ComplementaryHalves
        >>> records = np.random.default_rng(0).normal(size=(100, 2))
        >>> halves = ComplementaryHalves(num_records=100, num_subsets=16)
        >>> private = privatize(lambda rows: rows.mean(axis=0), halves, budget=0.25, data=records, workers=1)
        >>> private.value.shape, private.mutual_information, round(private.membership_success_bound, 3)
        ((2,), 0.25, 0.838)
    """
    secret = secret_space if isinstance(secret_space, SecretIndex) else None
    space = secret_space.space if isinstance(secret_space, SecretIndex) else secret_space
    forms = (canonicalize,) if isinstance(canonicalize, CanonicalForm) else tuple(canonicalize)
    _check_request(space, budget, rule, secret is not None)
    arrays = _as_arrays(data)
    check_data(arrays, space)
    if cache is not None:
        check_fingerprint(fingerprint)
    record = _record(secret, space, ledger, account, generator)
    record.check(budget)
    first_subset = take(arrays, space.subset(0))
    probe = _check_deterministic(box, first_subset if public is None else _as_arguments(public))
    outputs = run_box(box, space, arrays, workers, cache, fingerprint, progress)
    if public is None and cache is not None and not _alike(outputs[0], probe):
        raise ValueError(
            f"The cache {str(cache)!r} holds another output of the box for the first subset: the box has changed, so "
            "give it another fingerprint."
        )
    matrix, shape = _stack(outputs, forms)
    del outputs

    def calibrate(weights: Array, amount: float) -> GaussianNoise:
        if secret is not None:
            return calibrate_to_belief(matrix, amount, weights, rule)
        return calibrate_gaussian(matrix, amount, weights, rule, confidence=confidence, generator=generator)

    event = {
        "rule": rule,
        "budget": budget,
        "shape": list(shape),
        "canonical_forms": [form.describe() for form in forms],
    }
    released = record.release(matrix, shape, calibrate, budget, event)
    warn_if_drowned(
        released.value,
        released.noise.power,
        "return fewer or smaller numbers from the box, subtract public centres, align outputs by a canonical form, or "
        "give a larger budget (four times as much halves the noise)",
    )
    return PrivatizedOutput(
        value=released.value,
        standard_deviations=_deviations(released.noise).reshape(shape),
        mutual_information=released.cost,
        total_mutual_information=released.total,
        power=released.noise.power,
        rule=rule,
        confidence=1.0 if released.noise.certificate is None else released.noise.certificate.confidence,
        space=space,
        num_releases=released.count,
        kept=ledger is not None,
        details=event,
    )


def _check_request(space: SecretSpace, budget: float, rule: str, kept: bool) -> None:
    check_budget(budget)
    if space.num_secrets < 2:
        raise ValueError("A space of one subset hides nothing: give at least two possible subsets.")
    if rule == "exact" and kept:
        raise ValueError(
            "The exact rule's certificate holds with a confidence that would have to be shared among all releases: use "
            "'logdet' with a kept secret."
        )
    if budget >= (most := float(entropy(space.prior))):
        raise ValueError(
            f"budget is {budget:.6g} nats, but must be below the entropy of the secret, {most:.6g}: "
            "releasing the output exactly is within it, so no noise is needed."
        )


def _as_arrays(data: Any) -> tuple[Any, ...] | None:
    if data is None:
        return None
    arrays = data if isinstance(data, tuple) else (data,)
    try:
        return tuple(np.asarray(array) if isinstance(array, list) else array for array in arrays)
    except ValueError as error:
        raise ValueError(f"data is not an array of records: {error}") from None


def _as_arguments(public: Any) -> tuple[Any, ...]:
    return public if isinstance(public, tuple) else (public,)


def _record(
    secret: SecretIndex | None,
    space: SecretSpace,
    ledger: LedgerArgument | None,
    account: str,
    generator: SecureGenerator | None,
) -> "KeptSecret | SingleRelease":
    if secret is None:
        return SingleRelease(space, ledger, account, generator)
    if ledger is None:
        raise ValueError(
            "ledger is None, but a kept secret may answer again, and the next noise depends on all earlier values: "
            "give one that remembers them."
        )
    return KeptSecret(secret, ledger, account, generator)


def _check_deterministic(box: Box, arguments: Sequence[Any]) -> Array:
    first, second = run_twice(box, arguments)
    if first.shape != second.shape or not np.array_equal(first, second, equal_nan=True):
        raise ValueError(
            "Two runs of the box on the same input differ: fix its seeds, or noise would be paid for chance."
        )
    return first


def _alike(cached: Array, fresh: Array) -> bool:
    # Another number of threads may change the last bits.
    return cached.shape == fresh.shape and np.allclose(cached, fresh, rtol=1e-6, equal_nan=True)


def _stack(outputs: list[Array], forms: tuple[CanonicalForm, ...]) -> tuple[Array, tuple[int, ...]]:
    """Canonical outputs as rows, and their shape."""
    shape = outputs[0].shape
    for index, output in enumerate(outputs):
        if output.shape != shape:
            raise ValueError(
                f"The box returned shape {shape} for subset 0 and {output.shape} for subset {index}: pad or summarize "
                "to one shape inside the box."
            )
        if not np.isfinite(output).all():
            raise ValueError(
                f"The output for subset {index} is not finite: mend the box, or map failures to a finite value inside "
                "it."
            )
    if outputs[0].size == 0:
        raise ValueError(f"The box returns nothing (shape {shape}): let it return at least one number.")
    for form in forms:
        _check_reference(form, outputs)
        outputs[:] = [form(output) for output in outputs]
        _check_reference(form, outputs)
    shape = outputs[0].shape
    # Each output is freed once it is a row: both copies of all would double the memory.
    matrix = np.empty((len(outputs), math.prod(shape)))
    for index in range(len(outputs)):
        matrix[index] = outputs[index].ravel()
        outputs[index] = np.empty(0)
    return matrix, shape


def _check_reference(form: CanonicalForm, outputs: list[Array]) -> None:
    if form.public is None:
        return
    equal = [np.array_equal(output, form.public) for output in outputs]
    if any(equal) and not all(equal):
        raise ValueError(
            f"The public reference of {type(form).__name__} is the un-noised output of a private subset: take one from "
            "public data, or an earlier private release."
        )


def _deviations(noise: GaussianNoise) -> Array:
    """Standard deviation of the noise on each coordinate, shape (d,)."""
    total = np.zeros(noise.dimension)
    roots = np.sqrt(noise.variances)
    # Along the coordinate axes every direction is a coordinate.
    if getattr(noise.directions, "basis", 0) is None and not hasattr(noise.directions, "coefficients"):
        return roots
    # diag(U e U^T) as the squares of sqrt(e_i) u_i, a few directions at a time: each may have millions of coordinates.
    for start in range(0, len(roots), _ROWS_PER_BLOCK):
        rows = np.zeros((len(roots[start : start + _ROWS_PER_BLOCK]), len(roots)))
        rows[np.arange(len(rows)), start + np.arange(len(rows))] = roots[start : start + _ROWS_PER_BLOCK]
        expanded = noise.directions.expand(rows)
        total += np.einsum("rd,rd->d", expanded, expanded)
    return np.sqrt(total)
