"""What the layers see of a batch, one row a record, and clipped gradients of records in other company."""

from typing import Any

import torch

from lightning_pac.callbacks.srpp_sgd.loss_check.company import coupled_in_company
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import NO_CLIPPING, coupled, is_small
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.gradients import flat_sum, make_engine

__all__ = ["compare_company", "compare_varied"]

MEANS_OF_ALL = (
    "a mean over all tokens or targets that count does so, a branch on whether any record holds another number, or "
    "padding that is not masked; average in records, as per_record_mean(model, batch) does where a model computes its "
    "loss, and reduction='none' with .mean() where all have one length"
)

BY_EXTREMES = (
    "a function of the mean, a norm of all rows (even if squared: take x.square().sum()), a scale that the batch "
    "decides, a mean over what is not missing, or an array of NumPy, whose rows no gradient is told apart by: compute "
    "that in the dataset, or with torch"
)

_TOO_LARGE, _TOO_SMALL = 1e18, 1e-15


def compare_varied(
    probe: Probe, records: list[Any], synthetic: SyntheticRecords
) -> tuple[str | None, str | None, bool]:
    """Couplings that equal records do not show: other lengths, ignored targets, and rows that are no records.

    Returns:
        The problem found, what only the data could show, and whether rows keep the order of the records.
    """
    problem, keeps_order = _compare_rows(probe, records)
    if problem is not None:
        return problem, None, keeps_order
    doubt = None
    for variation in synthetic.varied(records, probe.integers.may_be_ignored, frozenset(probe.integers.compared)):
        try:
            with probe.without_randomness():
                problem, unchecked = coupled(probe, variation.records, SEEDS[0])
            rows = _compare_rows(probe, variation.records) if problem is None and unchecked is None else (None, True)
        except Exception:  # these records are no input for the model
            continue
        keeps_order &= rows[1]
        if problem is not None and not variation.occurs:
            doubt = f"it couples records {variation.circumstance}, as the few that were looked at do not"
        elif problem is not None:
            return f"couples records {variation.circumstance} ({MEANS_OF_ALL})", None, keeps_order
        elif rows[0] is not None:
            return f"{rows[0]}, with records {variation.circumstance}", None, keeps_order
    return None, doubt, keeps_order


def _compare_rows(probe: Probe, records: list[Any]) -> tuple[str | None, bool]:
    """Whether an engine clips records: their norms must be the same in other company and at another place.

    The groups are compared with each one twice, every record beside its copy: no order of rows but that of the records
    fits all three. Batches have one size, by which an engine chooses its method, and some methods raise norms.

    Returns:
        The problem found, and whether row i is record i.
    """
    engine = make_engine(public_terms=True)
    with probe.without_randomness():
        twice = [record for record in records[: 2 * GROUP] for _ in range(2)]
        parts = records[: 2 * GROUP], twice[: 2 * GROUP], twice[2 * GROUP :]
        # An error without an engine is none of the engine's.
        ordinary = [probe.gradient(part).to(probe.dtype) for part in parts]
        norms, lengths, errors, public = [], [], [], []
        for part in parts:
            with probe.in_one_state():
                try:
                    engine.attach(probe.model)
                except ValueError:  # says so again when the run attaches its own
                    return None, True
                try:
                    probe.loss(part).backward()  # type: ignore[no-untyped-call]
                    sums, found = engine.clipped_sum(NO_CLIPPING)
                    norms.append(found[:, 0])
                    public.append(engine.public_gradient if engine.public_gradient is not None else torch.zeros(()))
                    mean, want = flat_sum(sums).double().div_(len(found)), ordinary.pop(0).double()
                    lengths.append(float(want.norm()))
                    errors.append(mean.add_(public[-1]).sub_(want).norm())
                    del sums, mean, want
                except Exception as error:
                    return f"cannot be taken apart into records: {str(error).rstrip('.')}", True
                finally:
                    engine.detach()
    whole, again = norms[0].repeat_interleave(2), torch.cat(norms[1:])
    if len(norms[0]) != 2 * GROUP:
        return f"reaches the layers in {len(norms[0])} rows for {2 * GROUP} records", True
    is_large = any(length > _TOO_LARGE for length in lengths)
    if is_large or any(0 < length < _TOO_SMALL for length in lengths):  # none at all is no mistake
        direction = "large" if is_large else "small"
        return f"has gradients so {direction} that no float32 holds their squares, which count as zero", True
    size = float(whole.max())
    if not all(is_small(gradient - public[0], float(public[0].norm())) for gradient in public):
        problem = "adds a term to the mean over the records whose gradient depends on them, or on what is drawn"
        return f"{problem} (fakes of a GAN)", True
    if not all(is_small(error, 10 * size) for error in errors):
        return "has another gradient than the records' gradients together", True
    if not is_small(whole.sort().values - again.sort().values, 10 * size):
        return "reaches the layers in rows that are no records", True
    return None, is_small(whole - again, 10 * size)


def compare_company(
    probe: Probe, synthetic: SyntheticRecords, laws: list[str], keeps_order: bool, number: int
) -> str | None:
    """How clipped gradients depend on extreme, missing and marked numbers of others; see `coupled_in_company`."""
    engine = make_engine(public_terms=True)
    try:
        engine.attach(probe.model)
    except ValueError:  # says so again when the run attaches its own
        return None
    try:
        with probe.without_randomness():
            found = coupled_in_company(probe, engine, synthetic, laws, keeps_order, number)
    finally:
        engine.detach()
    return None if found is None else f"couples records {found} ({BY_EXTREMES})"
