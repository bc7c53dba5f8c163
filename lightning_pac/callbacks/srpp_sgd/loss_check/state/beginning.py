"""What a model, its callbacks and what makes batches kept when the training began, beside weights and buffers."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import CellType, MethodType
from typing import Any

import lightning.pytorch as pl
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import (
    CODE,
    Place,
    containers,
    differing,
    digests_of,
    own_attributes,
    set_parts,
    stateful,
    without_large,
)
from lightning_pac.data.records import Scope, Surroundings, copy_small

__all__ = ["Beginning"]


class Beginning:
    """Copies of their attributes, and of variables around their code, before they have seen a record.

    Metrics have none, and large tensors become zeros.

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
        makers = [*_made_of(self._collate_fn), *([] if datamodule is None else [datamodule])]
        layers = list(pl_module.modules())
        parts = [trainer, *layers, *callbacks, *makers, *pl_module.parameters(), *pl_module.buffers()]
        shared = {id(part): part for part in parts}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._kept: list[tuple[Any, dict[str, Any]]] = []
        holders = [*(layer for layer in layers if not isinstance(layer, Metric)), *callbacks]
        holders += [one for one in makers if hasattr(one, "__dict__") and not isinstance(one, CODE)]
        around = Surroundings(pl_module, *callbacks, *schedulers, *makers).scopes
        for holder in (*holders, *around):
            own = _held(holder)
            kept = {name: copy_small(value, shared) for name, value in own.items()}
            self._kept.append((holder, without_large(kept, own)))
        self._digests, self._originals = self._digested(), set[int]()

    @property
    def first(self) -> list[Mapping[str, Any]]:
        """Attributes of each object as they were."""
        return [kept for _, kept in self._kept]

    def changed(self) -> set[Place]:
        """Where they are others by now."""
        self._originals = {id(vars(holder)) for holder, _ in self._kept if not isinstance(holder, Scope)}
        for holder, _ in self._kept:
            self._originals.update(*map(containers, _held(holder).values()))
        return differing(self._digests, self._digested())

    def attributes(self) -> set[tuple[Any, ...]]:
        """The same, with a dictionary or a list, which may get a key in each epoch, as one place."""
        return {(*place[:2], *_as_one(place[2])) for place in self.changed()}

    def held_by(self, probe: Probe) -> list[Mapping[str, Any]]:
        """Those of the copies that a probe runs; of a callback that it lacks, those that were kept."""
        copies = self._copies(probe)
        return [_held(copies[id(holder)]) if id(holder) in copies else kept for holder, kept in self._kept]

    def restore(self, probe: Probe, places: Collection[Place]) -> None:
        """Let the copies that a probe runs, within `Probe.copied`, keep what the originals did in these places."""
        memo = {key: each for key, each in self._copies(probe).items() if not isinstance(each, Scope)}
        numbers = {place[0] for place in places}
        kept = [copy_small(held, memo) if number in numbers else held for number, (_, held) in enumerate(self._kept)]
        self.hand_over(probe, kept, places)

    def hand_over(self, probe: Probe, held: Sequence[Mapping[str, Any]], places: Collection[Place]) -> None:
        """Let them keep, in these places, what those of another copy did, whose attributes are `held`."""
        copies = self._copies(probe)
        for number, (holder, _) in enumerate(self._kept):
            names = {place[1] for place in places if place[0] == number}
            copied = copies.get(id(holder))
            if not names or copied is None:
                continue
            attributes = copied.read(copied.owner) if isinstance(copied, Scope) else vars(copied)
            for name in names:
                ways = [place[2] for place in places if place[:2] == (number, name)]
                set_parts(attributes, held[number], name, ways, self._originals)
            if isinstance(copied, Scope):
                copied.write(copied.owner, attributes)

    def _digested(self) -> dict[Place, bytes]:
        return digests_of([_held(holder) for holder, _ in self._kept])

    def _copies(self, probe: Probe) -> dict[int, Any]:
        """By the identity of what they are copies of."""
        replica = probe.replica
        model, copied = self.pl_module, replica.model
        pairs: list[tuple[Any, Any]] = [
            (self._trainer, replica.view),
            *zip(model.modules(), copied.modules(), strict=True),
            *zip(model.parameters(), copied.parameters(), strict=True),
            *zip(model.buffers(), copied.buffers(), strict=True),
            *zip(replica.originals, replica.callbacks, strict=True),
            *zip(_made_of(self._collate_fn), _made_of(probe.collate_fn), strict=False),
            *((self._datamodule, hook) for hook in probe.hooks),
        ]
        found = {id(original): each for original, each in pairs}
        around = {_key(scope): scope for scope in probe.surroundings.scopes}  # which hold copies
        for holder, _ in self._kept:
            if isinstance(holder, Scope):
                cell = replica.copies.get(id(holder.owner)) if isinstance(holder.owner, CellType) else None
                scope = around.get(_key(holder)) if cell is None else Scope(cell, holder.read, holder.write)
                found |= {} if scope is None else {id(holder): scope}
        return found


def _made_of(collate_fn: Any) -> list[Any]:
    """Objects that a collate function may keep something in."""
    if isinstance(collate_fn, partial):
        return [*_made_of(collate_fn.func), *collate_fn.args, *collate_fn.keywords.values()]
    return [collate_fn.__self__ if isinstance(collate_fn, MethodType) else collate_fn]


def _held(holder: Any) -> dict[str, Any]:
    return stateful(holder.read(holder.owner)) if isinstance(holder, Scope) else own_attributes(holder)


def _key(scope: Scope) -> tuple[int, Any]:
    """The same for what two `Surroundings` find in one place."""
    return id(scope.owner), getattr(scope.write, "func", scope.write)


def _as_one(way: tuple[str, ...]) -> tuple[str, ...]:
    """The way to the first dictionary or list on it."""
    return next((way[:length] for length, step in enumerate(way) if step[0] == "["), way)
