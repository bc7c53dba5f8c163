"""Gradients of batches and of their parts, which a mean of losses of single records relates to each other."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, Seed, seeds_of
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS, Readings, Replaced
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.data import batch_sizes
from lightning_pac.gradients import make_engine

__all__ = [
    "MANY",
    "NO_CLIPPING",
    "OF_RANDOMNESS",
    "compare_many",
    "compare_readings",
    "compare_whole",
    "coupled",
    "coupled_later",
    "is_small",
    "woven",
]

TOLERANCE = 1e-4  # of the gradient's norm; float32 leaves about 1e-6

MANY = 64
"""Records that are drawn for the largest batches that are compared with small ones; more are copies of these."""

NO_CLIPPING = 1e30
"""A norm that no gradient has."""

_SECONDS = 1.0
"""That the gradient of a batch of the loader's size may be expected to take, if it is larger."""

_ARRANGEMENTS = (range(8), (0, 4, 1, 5, 2, 6, 3, 7), (0, 1, 4, 5, 2, 3, 6, 7))
"""Places of two groups of four in a batch. In one of them, any two places belong to different groups."""

_NOT_FINITE = "its gradient on synthetic records is not finite"
_EVALUATIONS = 4  # of which all may come to the same by chance
_FAR = 1e3  # a number past every bend that a loss may have

READ = "depends on a number that is read off the batch (a branch on the loss, a scale of all records)"
BENT = "bends a mean over the batch (its absolute value, a clamp, a gate), so that one record turns all others"
WEIGHTED = (
    "divides by the weights of the classes in the batch (weight= of a cross entropy), so that a record of another "
    "class rescales all"
)
DRAWS_IN_TURN = (
    "it draws random numbers for one record after another that are not torch's, or of a generator of its own"
)
_DRAWS_TOGETHER = "its random draws could not be told apart by records"
_CHANGES = "its gradient changes when it is evaluated again"
NOT_THE_MEAN = "is not the mean over the records of a batch (a sum, or a divisor that depends on the batch)"
OF_RANDOMNESS = {DRAWS_IN_TURN, _DRAWS_TOGETHER, _CHANGES}
"""Why a mean could not be asked for that other records do not change."""


def compare_whole(probe: Probe, records: list[Any], number: int) -> tuple[str | None, str | None]:
    """How the loss of a batch is no mean over its records, and why that could not be asked; see `coupled`."""
    found = _compare_whole(probe, records, number)
    if found == (None, _NOT_FINITE):  # as that of a share of labels, of which each half of the records has one
        pairs = zip(records[: 2 * GROUP], records[2 * GROUP :], strict=True)
        found = _compare_whole(probe, [record for pair in pairs for record in pair], number)
    return found


def _compare_whole(probe: Probe, records: list[Any], number: int) -> tuple[str | None, str | None]:
    whole = probe.gradient(records[: 2 * GROUP])
    size = float(whole.norm())
    if not np.isfinite(size):
        return None, _NOT_FINITE
    if not is_small(whole.sub_(probe.gradient(records[: 2 * GROUP])), size):
        return None, _CHANGES
    del whole
    for seed in seeds_of(number) if probe.drew else SEEDS[:1]:
        problem, unchecked = coupled(probe, records, seed, number)
        # Under extreme draws a whole network may be left out.
        if problem is not None or (unchecked is not None and isinstance(seed, int)):
            return problem, unchecked
    with probe.without_randomness():
        # Draws for single records may show under some seeds only.
        for seed in seeds_of(number) if probe.drew_elsewhere else SEEDS[:1]:
            mean = probe.gradient(records[:GROUP], seed).add_(probe.gradient(records[GROUP : 2 * GROUP], seed)).div_(2)
            whole = probe.gradient(records[: 2 * GROUP], seed)
            if not is_small(mean - whole, float(whole.norm())):
                break
        else:
            return None, None
        changes = _changes_under_draws(probe, records[: 2 * GROUP], records[2 * GROUP : 3 * GROUP], seed)
        if changes is not None:
            whole, mean = changes
            if is_small(mean - whole, float(whole.norm())):
                return None, DRAWS_IN_TURN
    # Least squares: the multiple of the halves' mean that is nearest to the whole.
    multiple = float(whole @ mean) / max(float(mean @ mean), 1e-300)
    if probe.drew and not is_small(mean.mul_(multiple).sub_(whole), size):
        return None, _DRAWS_TOGETHER
    return NOT_THE_MEAN, None


def coupled(probe: Probe, records: list[Any], seed: Seed, number: int = 0) -> tuple[str | None, str | None]:
    """How records of a batch change what others do to its gradient, and why that could not be asked.

    Args:
        probe: Runs the model.
        records: Four groups.
        seed: Of the model's draws.
        number: Of the arrangement, see `woven`.
    """
    first, second, other_first, other_second = (records[start : start + GROUP] for start in range(0, 4 * GROUP, GROUP))
    # The gradient of a mean over records is f(a) + g(b), whose mixed difference is zero. It is added up as it comes,
    # so that no more than two gradients are held at once.
    mixed = probe.gradient(woven(first, second, number), seed)
    sizes = [float(mixed.norm())]
    for sign, a, b in ((-1, other_first, second), (-1, first, other_second), (1, other_first, other_second)):
        corner = probe.gradient(woven(a, b, number), seed)
        sizes.append(float(corner.norm()))
        mixed.add_(corner, alpha=sign)
        del corner
    size = max(sizes)
    if not np.isfinite(size) or (not np.isfinite(sum(sizes)) and _spoil_themselves(probe, records)):
        return None, _NOT_FINITE
    if size == 0:
        return None, "its gradient on synthetic records is zero"
    if not is_small(mixed, size):
        examples = (
            "class weights, a mean over all tokens, which per_record_mean(model, batch) replaces, a contrastive loss, "
            "MixUp (also in a collate_fn), shapes (B, 1) and (B,)"
        )
        return f"couples the records of a batch ({examples})", None
    return None, None


def _spoil_themselves(probe: Probe, records: list[Any]) -> bool:
    """Whether losses that are not finite, as means over no token, leave the gradients of all other records as they are.

    Those of a record have one norm in two batches, and not all are zero, which gradients are that are not finite, but
    in the last of three batches, where all records may be without a token.
    """
    engine, (a, b, c, d) = make_engine(public_terms=True), _quarters(records)
    norms, losses = [], []
    for part in (a + b, a + c, c + d):
        with probe.without_randomness(), probe.in_one_state():
            try:
                engine.attach(probe.model)
                loss = probe.loss(part)
                loss.backward()  # type: ignore[no-untyped-call]
                norms.append(engine.clipped_sum(NO_CLIPPING)[1][:, 0])
                losses.append(float(loss.detach()))
            except Exception:
                return False
            finally:
                engine.detach()
    if any(len(found) != 2 * GROUP for found in norms) or not (norms[0].any() and norms[1].any()):
        return False
    if all(map(math.isfinite, losses)):
        return False
    size = float(torch.cat(norms).max())
    first, second, third = norms
    return is_small(first[:GROUP] - second[:GROUP], size) and is_small(second[GROUP:] - third[:GROUP], size)


def _quarters(records: list[Any]) -> list[list[Any]]:
    return [records[start : start + GROUP] for start in range(0, 4 * GROUP, GROUP)]


def woven(first: list[Any], second: list[Any], number: int) -> list[Any]:
    """A batch of two groups, in halves, in turns, or in pairs by that number.

    Neighbours that are coupled belong to one group in some of these, which then shows nothing.
    """
    records = first + second
    return [records[place] for place in _ARRANGEMENTS[number % len(_ARRANGEMENTS)]]


def _changes_under_draws(
    probe: Probe, records: list[Any], others: list[Any], seed: Seed = SEEDS[0]
) -> tuple[Tensor, Tensor] | None:
    """What others in place of the first records change in the gradient of all, and should, as a mean over records.

    A mean differs from that of its parts where records get other draws at other places. The first of a batch get the
    same in any batch, if each draws in its turn.

    Returns:
        None where nothing is drawn that is not held fixed.
    """
    with probe.copied():  # a generator that is kept in an attribute goes on
        first = probe.next_gradient(records, seed)
        again = (probe.next_gradient(records, seed).sub_(first) for _ in range(_EVALUATIONS))
        if not probe.drew_elsewhere and all(is_small(change, float(first.norm())) for change in again):
            return None
    step, changed = len(others), [*others, *records[len(others) :]]
    whole = probe.gradient(changed, seed).sub_(probe.gradient(records, seed))
    part = probe.gradient(others, seed).sub_(probe.gradient(records[:step], seed))
    return whole, part.mul_(step / len(records))


def compare_many(
    probe: Probe, synthetic: SyntheticRecords, dataloader: DataLoader[Any]
) -> tuple[str | None, str | None]:
    """Whether more records than the few that were compared are coupled, or as many as are in a batch of the loader.

    Returns:
        The problem found, and why that could not be asked.
    """
    pool = [record for number in range(MANY // (4 * GROUP)) for record in synthetic.draw(number)]
    with probe.without_randomness():
        for size, step in (*_sizes(dataloader), *_large(probe, pool, dataloader)):
            records = (pool * -(-size // MANY))[:size]
            parts = [records[start : start + step] for start in range(0, size, step)]
            try:
                mean = probe.gradient(parts[0]).mul_(len(parts[0]) / size)
                for number, part in enumerate(parts[1:], 1):
                    if step < MANY or len(part) < step:
                        mean.add_(probe.gradient(part), alpha=len(part) / size)
                    elif number == 1:  # all others are the same
                        mean.mul_(size // step)
            except Exception:
                if min(map(len, parts)) > 1:
                    raise
                continue  # some models take no single record
            is_finite, whole = np.isfinite(float(mean.norm())), probe.gradient(records)
            if is_finite and not is_small(mean.sub_(whole), float(whole.norm())):
                changes = _changes_under_draws(probe, records, [*pool[GROUP:], *pool[:GROUP]][:step])
                if changes is not None and is_small(changes[0] - changes[1], float(changes[0].norm())):
                    return None, DRAWS_IN_TURN
                return f"couples the records of a batch of {size}, which it does not in one of {step}", None
            del mean, whole
    return None, None


def _sizes(dataloader: DataLoader[Any]) -> list[tuple[int, int]]:
    """Of batches that are compared with their parts, and of those: the loader's own, two of them, an odd number."""
    largest = getattr(dataloader.batch_sampler, "batch_size", None) or MANY
    several = min(MANY, 2 * GROUP * -(-2 * largest // (2 * GROUP)))
    own = {size for size in batch_sizes(dataloader) or () if size <= MANY}
    sizes = sorted({several, *(own or {several - 1})} - {0, 1, 2 * GROUP})
    return [(size, 2 * GROUP if size % (2 * GROUP) == 0 else -(-size // 2)) for size in sizes]


def _large(probe: Probe, pool: list[Any], dataloader: DataLoader[Any]) -> list[tuple[int, int]]:
    """The loader's largest size, if it is above that of the pool and a batch of it takes no time."""
    draws: Any = getattr(dataloader.batch_sampler, "batches", None)
    drawn = 0 if draws is None else round(draws.sampling.expected_batch_size(draws.num_records))
    largest = max(batch_sizes(dataloader) or (drawn,))
    if largest <= MANY:
        return []
    started = time.process_time()
    probe.gradient(pool)
    return [(largest, MANY)] * ((time.process_time() - started) * largest < _SECONDS * MANY)


def compare_readings(probe: Probe, records: list[Any]) -> str | None:
    """Whether numbers of a batch decide its gradient: read off it, compared with others, or bent by a function.

    Of what belongs to single records there is more in a larger batch; what belongs to the batch is as much, of the same
    shapes. In arrays of records' numbers, rows take another value in turn: that must add up, as gradients do. A mean of
    losses that is taken for another number may not change the gradient but in proportion (weights of tasks do that).
    """

    def gradient(number: int, level: float | None = None, times: int = 1, **replaced: Any) -> tuple[Tensor, Readings]:
        with probe.copied(), probe.reading(level, Replaced(**replaced), number * times) as readings:
            return probe.gradient(records[:number] * times), readings

    with probe.without_randomness():
        whole, found = gradient(2 * GROUP)
        if not (found.count or found.weighted or any(found.shapes.values())):
            return None
        _, half = gradient(GROUP)
        if 0 < found.weighted == half.weighted:  # each of a batch, of whatever classes
            return WEIGHTED
        numbers, size = half.count == found.count > 0, float(whole.norm())
        of_batch = {kind: _same(found.shapes[kind], half.shapes[kind]) for kind in found.shapes}
        arrays, orderings, bent = (of_batch[kind] for kind in ("arrays", "orderings", "bent"))
        read: dict[str, Any] = {"numbers": numbers, "arrays": arrays, "orderings": orderings}
        for level in LEVELS:
            try:
                if any(read.values()) and not is_small(gradient(2 * GROUP, level, **read)[0].sub_(whole), size):
                    return READ
                if len(found.shapes["arrays"]) > len(arrays):
                    first, second, both = (gradient(2 * GROUP, level, rows=rows)[0] for rows in ((0,), (1,), (0, 1)))
                    sizes = (size, *(float(one.norm()) for one in (first, second, both)))
                    # Not finite is what the model makes of such numbers, in each record alone.
                    mixed = both.sub_(first).sub_(second).add_(whole)
                    if np.isfinite(sum(sizes)) and not is_small(mixed, max(sizes)):
                        return READ
            except Exception:  # the model refuses such numbers
                continue
        if bent and _is_bent(lambda level: gradient(2 * GROUP, level, bent=bent)[0]):
            # Those of one class may be a single record in both; of records that come twice there are two.
            _, twice = gradient(GROUP, times=2)
            bent &= _same(half.shapes["bent"], twice.shapes["bent"])
            return BENT if bent and _is_bent(lambda level: gradient(2 * GROUP, level, bent=bent)[0]) else None
        return None


def _same(shapes: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> frozenset[int]:
    if len(shapes) != len(others):
        return frozenset()
    return frozenset(number for number, (shape, other) in enumerate(zip(shapes, others, strict=True)) if shape == other)


def _is_bent(gradient: Callable[[float], Tensor]) -> bool:
    """Whether a gradient is no affine function of a number that is small or large, of either sign."""
    try:
        low, down, up, high = (gradient(level) for level in (-_FAR, -1.0, 1.0, _FAR))
    except Exception:  # the model refuses such numbers
        return False
    size = sum(float(each.norm()) for each in (low, down, up, high))
    centre, slope = (high + low) - (up + down), (high - low).div_(_FAR) - (up - down)
    return bool(np.isfinite(size)) and not (is_small(centre, size) and is_small(slope, size))


def coupled_later(probe: Probe, records: list[Any], step: int, number: int) -> tuple[str | None, str | None]:
    """As at that step of the run, if the model can be run out of its time, and in that arrangement."""
    try:
        with probe.at(step):
            found = coupled(probe, records, SEEDS[0], number)
    except Exception:
        found = None, "it does not run"
    return found if found[1] is None else coupled(probe, records, SEEDS[0], number)


def is_small(difference: Tensor, size: float) -> bool:
    """Whether a difference of two gradients is rounding, beside a gradient of that norm."""
    return float(difference.norm()) <= TOLERANCE * size
