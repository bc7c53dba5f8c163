"""What training has changed beside the weights, in a way that steps on synthetic records do not explain."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import is_small
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import is_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state.beginning import Beginning
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import Place, changed_places
from lightning_pac.callbacks.srpp_sgd.loss_check.state.later_steps import begin_anew, trained
from lightning_pac.callbacks.srpp_sgd.loss_check.state.state_watch import SETTINGS, settings_of
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_probe import synthetic_probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["GRADIENT", "UNEXPLAINED", "UnseenChanges", "unseen_changes", "unseen_in_training"]

GRADIENT = "gradient"

UNEXPLAINED = "changed in a way that steps on synthetic records do not explain"

_EPOCHS, _MOST_EPOCHS = 3, 50  # before this one that are begun anew

Found = TypeVar("Found")


@dataclass(frozen=True)
class UnseenChanges:
    """Names of attributes on which something depends.

    Attributes:
        unexplained: Those that nobody knows how training has changed.
        decided: Those that it changes in ways that depend on its records.
        moved: What these decide in turn.
    """

    unexplained: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()


def unseen_changes(
    beginning: Beginning,
    changed: set[Place],
    probe: Probe,
    records: list[Any],
    outcome: Callable[[Probe, dict[int, Any]], Found],
    differing: Callable[[Found, Found], set[str]],
    after_steps: Callable[[Probe, dict[int, Any]], object] = lambda probe, memo: None,
) -> UnseenChanges:
    """What an outcome depends on that training has changed, unless steps show that its records do not decide how.

    Each attribute that is another than at the beginning is set back in a copy. If that changes the outcome, steps are
    repeated on some records and on others, from the beginning and from now on. They explain what they write to, unless
    the outcome is another with what the others leave there: then records decide it. What was kept of the 700th batch of
    an epoch remains unexplained.

    Args:
        beginning: What was kept then.
        changed: Where that is another by now.
        probe: Of the model as it is now.
        records: Four groups of synthetic records.
        outcome: Of the copy that a probe runs, which has the memo.
        differing: Names what differs in two outcomes.
        after_steps: Done now and then while steps are repeated.
    """

    def found(change: Callable[[Probe], None]) -> Found:
        memo: dict[int, Any] = {}
        with probe.copied(memo):
            change(probe)
            return outcome(probe, memo)

    def decides(places: set[Place]) -> bool:
        try:
            return bool(differing(plain, found(partial(beginning.restore, places=places))) - at_random)
        except Exception:  # it does not run without what it has now
            return True

    plain = found(lambda probe: None)
    at_random = differing(plain, found(lambda probe: None))
    if not decides(changed):
        return UnseenChanges()
    deciding = {place for place in changed if decides({place})} or changed
    unexplained, decided, moved = set(deciding), set[Place](), set[str]()
    for begins, epochs in ((True, _EPOCHS), (False, _EPOCHS), (True, _MOST_EPOCHS)):
        if not unexplained - decided:
            break
        with suppress(Exception):  # it may not run out of its time
            one, two, written = _repeated(beginning, changed, probe, begins, epochs, records, after_steps)
            differ = changed_places(one, two) & written & deciding
            unexplained -= written - differ
            if not differ:
                continue
            first, second = (found(partial(beginning.hand_over, held=held, places=differ)) for held in (one, two))
            if names := differing(first, second) - at_random:
                decided, moved = decided | differ, moved | names
            else:
                unexplained -= differ
    return UnseenChanges(_names(unexplained - decided), _names(decided), frozenset(moved))


def _names(places: set[Place]) -> tuple[str, ...]:
    return tuple(sorted({"hparams" if name == "_hparams" else name for _, name, _ in places}))


def _repeated(
    beginning: Beginning,
    changed: set[Place],
    probe: Probe,
    begins: bool,
    epochs: int,
    records: list[Any],
    after_steps: Callable[[Probe, dict[int, Any]], object],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], set[Place]]:
    """What two copies keep that have trained on other records, and where both have written."""
    before = beginning.first if begins else beginning.held_by(probe)
    after = []
    third, fourth = records[2 * GROUP : 3 * GROUP], records[3 * GROUP :]
    # The same ones have a ratio of one, say, also two in turn; with a record in common both may have the largest value.
    for batches in ([records[: 2 * GROUP]], [third, fourth, third + fourth]):
        memo: dict[int, Any] = {}
        with probe.copied(memo):
            if begins:
                begin_anew(probe, beginning, changed, batches)
            for _ in trained(probe, batches, later=True, epochs=epochs):
                after_steps(probe, memo)
            after.append(beginning.held_by(probe))
    one, two = after
    return one, two, changed_places(before, one) & changed_places(before, two)


def unseen_in_training(
    pl_module: pl.LightningModule,
    loader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    callbacks: Sequence[pl.Callback],
    beginning: Beginning,
) -> UnseenChanges:
    """Such attributes on which a step on synthetic records depends; none if that cannot be told.

    That is its gradient, and what hooks and schedules make of weights and rates.

    Args:
        pl_module: The model; copies of it are run, on the CPU.
        loader: Lends the dataset and the collate function.
        datamodule: Its transfer hooks are run as the Trainer would.
        callbacks: Those that the beginning knows.
        beginning: What was kept when the training began.
    """

    def stepped(records: list[Any], probe: Probe, memo: dict[int, Any]) -> dict[str, Any]:
        gradient = probe.next_gradient(records)
        probe.run_round(records)
        weights = [parameter.detach().clone() for parameter in probe.model.parameters()]
        return {GRADIENT: gradient, "weights": weights, SETTINGS: copy.deepcopy(settings_of(probe.replica.optimizer))}

    def differing(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
        found = {name for name in first if name != GRADIENT and not is_equal(first[name], second[name])}
        one, other = first[GRADIENT], second[GRADIENT]
        return found if is_small(other - one, float(one.norm())) else found | {GRADIENT}

    def unseen(whole: WholeCopies | None) -> UnseenChanges:
        probe, examples = synthetic_probe(pl_module, loader, datamodule, callbacks, whole)
        records = SyntheticRecords(examples, probe.accepts).draw(0)
        return unseen_changes(beginning, changed, probe, records, partial(stepped, records[: 2 * GROUP]), differing)

    changed = beginning.changed()
    with suppress(Exception):  # any model, dataset or collate function may run here
        return WholeCopies.in_turn(pl_module, unseen)
    return UnseenChanges()
