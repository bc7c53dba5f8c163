"""What a model, its callbacks and what makes batches kept when the training began, beside weights and buffers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import (
    CODE,
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
        trainer: Of the training; its datamodule makes batches, and so does the collate function of its loader, if any.
        pl_module: The model.
        callbacks: The user's own.

    Attributes:
        pl_module: The model.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule, callbacks: Sequence[pl.Callback]) -> None:
        self.pl_module, self._trainer = pl_module, trainer
        loader, datamodule = trainer.train_dataloader, trainer.datamodule  # type: ignore[attr-defined]
        self._collate_fn, self._datamodule = getattr(loader, "collate_fn", None), datamodule
        makers = [one for one in (self._collate_fn, datamodule) if one is not None and not isinstance(one, CODE)]
        layers = list(pl_module.modules())
        parts = [trainer, *layers, *callbacks, *pl_module.parameters(), *pl_module.buffers()]
        shared = {id(part): part for part in parts}
        self._kept: list[tuple[Any, dict[str, Any]]] = []
        for holder in (*(layer for layer in layers if not isinstance(layer, Metric)), *callbacks, *makers):
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

    def held_by(self, probe: Probe) -> list[Mapping[str, Any]]:
        """Those of the copies that a probe runs; of a callback that it lacks, those that were kept."""
        copies = self._copies(probe)
        return [own_attributes(copies[id(holder)]) if id(holder) in copies else kept for holder, kept in self._kept]

    def restore(self, probe: Probe, places: Collection[Place] | None = None) -> None:
        """Let the copies that a probe runs keep what the originals did: all of it, or in these places."""
        memo = self._copies(probe)
        self._set(probe, [copy_small(kept, memo) for _, kept in self._kept], places)

    def hand_over(self, probe: Probe, held: Sequence[Mapping[str, Any]], places: Collection[Place]) -> None:
        """Let them keep, in these places, what those of another copy did, whose attributes are `held`."""
        self._set(probe, held, places)

    def _set(self, probe: Probe, held: Sequence[Mapping[str, Any]], places: Collection[Place] | None) -> None:
        copies = self._copies(probe)
        for number, (holder, _) in enumerate(self._kept):
            if id(holder) not in copies:
                continue
            attributes, given = vars(copies[id(holder)]), held[number]
            for name in own_attributes(copies[id(holder)]).keys() | given.keys():
                chosen = None if places is None else {place[2] for place in places if place[:2] == (number, name)}
                if chosen is None or chosen:
                    set_parts(attributes, given, name, chosen, vars(holder))

    def _copies(self, probe: Probe) -> dict[int, Any]:
        """By the identity of what they are copies of; what makes batches is no copy before `Probe.copy_around`."""
        replica = probe.replica
        model, copied = self.pl_module, replica.model
        pairs: list[tuple[Any, Any]] = [
            (self._trainer, replica.view),
            *zip(model.modules(), copied.modules(), strict=True),
            *zip(model.parameters(), copied.parameters(), strict=True),
            *zip(model.buffers(), copied.buffers(), strict=True),
            *zip(replica.originals, replica.callbacks, strict=True),
            (self._collate_fn, probe.collate_fn),
            *((self._datamodule, hook) for hook in probe.hooks),
        ]
        return {id(original): each for original, each in pairs}
