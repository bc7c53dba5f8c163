"""What a model and its callbacks kept when the training began, beside weights and buffers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import (
    Place,
    differing,
    digests_of,
    own_attributes,
    set_parts,
    without_large,
)
from lightning_pac.data.records import copy_small

__all__ = ["Beginning"]


class Beginning:
    """Copies of their attributes, before they have seen a record, but for metrics, and zeros for large tensors.

    Args:
        trainer: Of the training.
        pl_module: The model.
        callbacks: The user's own.

    Attributes:
        pl_module: The model.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule, callbacks: Sequence[pl.Callback]) -> None:
        self.pl_module, self._trainer = pl_module, trainer
        layers = list(pl_module.modules())
        parts = [trainer, *layers, *callbacks, *pl_module.parameters(), *pl_module.buffers()]
        shared = {id(part): part for part in parts}
        self._kept: list[tuple[Any, dict[str, Any]]] = []
        for holder in (*(layer for layer in layers if not isinstance(layer, Metric)), *callbacks):
            own = own_attributes(holder)
            kept = copy_small(own, shared)
            if kept is not own:  # which is too large
                self._kept.append((holder, without_large(kept, own)))
        self._digests = digests_of([own_attributes(holder) for holder, _ in self._kept])

    @property
    def first(self) -> list[Mapping[str, Any]]:
        """Attributes of each object as they were."""
        return [kept for _, kept in self._kept]

    def changed(self) -> set[Place]:
        """Where they are others by now."""
        return differing(self._digests, digests_of([own_attributes(holder) for holder, _ in self._kept]))

    def attributes(self) -> set[tuple[Any, ...]]:
        """The same, with a dictionary, which may get a key in each epoch, as one place."""
        holders = [holder for holder, _ in self._kept]
        return {
            place[:2] if isinstance(vars(holders[place[0]]).get(place[1]), dict) else place for place in self.changed()
        }

    def held_by(self, replica: Replica) -> list[Mapping[str, Any]]:
        """Those of the copies in a replica; of a callback that it lacks, those that were kept."""
        copies = self._copies(replica)
        return [own_attributes(copies[id(holder)]) if id(holder) in copies else kept for holder, kept in self._kept]

    def restore(self, replica: Replica, places: Collection[Place] | None = None) -> None:
        """Let copies keep what the originals did: all of it, or in these places."""
        memo = self._copies(replica)
        self._set(replica, [copy_small(kept, memo) for _, kept in self._kept], places)

    def hand_over(self, replica: Replica, held: Sequence[Mapping[str, Any]], places: Collection[Place]) -> None:
        """Let copies keep, in these places, what those of another replica did, whose attributes are `held`."""
        self._set(replica, held, places)

    def _set(self, replica: Replica, held: Sequence[Mapping[str, Any]], places: Collection[Place] | None) -> None:
        copies = self._copies(replica)
        for number, (holder, _) in enumerate(self._kept):
            if id(holder) not in copies:
                continue
            attributes, given = vars(copies[id(holder)]), held[number]
            for name in own_attributes(copies[id(holder)]).keys() | given.keys():
                chosen = None if places is None else {place[2] for place in places if place[:2] == (number, name)}
                if chosen is None or chosen:
                    set_parts(attributes, given, name, chosen, vars(holder))

    def _copies(self, replica: Replica) -> dict[int, Any]:
        """By the identity of what they are copies of."""
        model, copied = self.pl_module, replica.model
        pairs: list[tuple[Any, Any]] = [
            (self._trainer, replica.view),
            *zip(model.modules(), copied.modules(), strict=True),
            *zip(model.parameters(), copied.parameters(), strict=True),
            *zip(model.buffers(), copied.buffers(), strict=True),
            *zip(replica.originals, replica.callbacks, strict=True),
        ]
        return {id(original): each for original, each in pairs}
