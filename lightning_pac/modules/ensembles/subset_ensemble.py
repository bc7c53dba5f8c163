"""All models of a subset pool, trained in one Lightning fit."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from typing_extensions import override

from lightning_pac._validation import Count, Seed, validated
from lightning_pac.data.with_index import IndexedSample, WithIndex, batch_inputs
from lightning_pac.modules.ensembles.ensemble_record import (
    KEY,
    EnsembleRecord,
    check_complete,
    from_checkpoint,
    member_indices,
    show_members,
)
from lightning_pac.modules.ensembles.stacked_network import RecordLoss, StackedNetwork
from lightning_pac.scenarios import SecretSpace
from lightning_pac.strategies import PrivateDDPStrategy, Ranks, RowShards

ELEMENTWISE_OPTIMIZERS: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


@validated
class SubsetEnsemble(pl.LightningModule):
    """Train one model on each subset of a pool, all of them in one fit.

    Member j is the model that an ordinary fit on subset j would give with the same batches: all members start from the
    network made under the public `seed`, every batch is shared, and the loss is

        `sum_j (mean of the loss over the records of the batch that are in subset j)`.

    The optimizer sees the stacked parameters of all members, so it must treat every number by itself: SGD, Adam,
    AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop and Rprop do, with momentum and weight decay. Whatever reads
    a norm over all members (LAMB-like optimizers, LBFGS, clipping by norm) or decides by a metric of all of them (early
    stopping, a plateau schedule, a search for the learning rate) would train a member on records outside its subset and
    is refused. A member that has no record in a batch contributes zero loss; its momentum and weight decay still act on
    that step.

    On several devices, under `strategy="ddp_private"`, each rank holds and trains its own share of the members; no
    gradient travels. Every rank sees all batches, and checkpoints and the module after the fit hold all members.

    The seed and the table are public: nothing in training depends on which subset is the secret.

    Training batches come from `WithIndex(dataset)`, as `(inputs, targets)`; validation, test and prediction batches may
    be plain. Logged, as means over the members: `train_loss`, `val_loss`, `val_accuracy`, `test_loss`, `test_accuracy`.

    Args:
        network: Makes one network; a function without arguments, or on the command line a class path.
        pool: The subsets, whose table is public.
        loss: Called as `loss(outputs, targets, reduction="none")`, like the functions of `torch.nn.functional`.
        optimizer: Makes the optimizer from the stacked parameters.
        lr_scheduler: Makes a scheduler from the optimizer, stepped once an epoch.
        members: Which members this module holds, to train shards in separate jobs: indices, or text as `"0-15"`. None
            holds all of them. `SubsetEnsemble.gather` joins the shards' checkpoints.
        chunk_size: How many members run at once, which bounds the memory of activations; None runs all of them.
        seed: Public seed of the initial parameters.

    Raises:
        ValueError: If a member is outside the pool or named twice.

    Example:
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> pool = BalancedSubsets(num_records=100, num_subsets=8, seed=0)
        >>> ensemble = SubsetEnsemble(lambda: nn.Linear(4, 3), pool)
        >>> ensemble(torch.zeros(2, 4)).shape, ensemble.votes(torch.zeros(2, 4)).shape
        (torch.Size([2, 8, 3]), torch.Size([2, 8]))

    References:
        PAC-private responses, section 4.2; training all members at once is ours.
    """

    def __init__(
        self,
        network: Callable[[], nn.Module],
        pool: SecretSpace,
        loss: RecordLoss = F.cross_entropy,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        members: str | Sequence[int] | None = None,
        chunk_size: Count | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.members = self._all_members = member_indices(members, pool.num_secrets)
        self._shards: RowShards | None = None
        self.seed = seed
        self.loss = loss
        self._make_network = network
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        self.stack = StackedNetwork(self._initial_network(), len(self.members), chunk_size)

    @property
    def record(self) -> EnsembleRecord:
        """The public facts that a checkpoint carries."""
        return EnsembleRecord(self.pool.table_hash, self.pool.num_secrets, self._all_members, self.seed)

    @override
    def forward(self, inputs: Any) -> Tensor:
        """Outputs of all members; shape (batch, num_members, ...)."""
        outputs: Tensor = self.stack(inputs)
        return outputs.transpose(0, 1)

    def votes(self, inputs: Any) -> Tensor:
        """The class that each member predicts; integers of shape (batch, num_members).

        Args:
            inputs: What a network takes, with the batch first.

        Raises:
            ValueError: If a member's output is NaN, which has no largest class.
        """
        outputs: Tensor = self(inputs)
        broken = outputs.isnan().any(-1).any(0).nonzero().flatten().tolist()
        if broken:
            raise ValueError(
                f"Members {show_members([self.members[position] for position in broken])} give NaN: train them again "
                "with a smaller learning rate, or look for NaN in the inputs."
            )
        return outputs.argmax(-1)

    def member(self, index: int) -> nn.Module:
        """The network of member `index` (its number in the pool), an ordinary module with its own parameters.

        Raises:
            ValueError: If this module does not hold that member.
        """
        if index not in self.members:
            raise ValueError(f"index is {index}, and this module holds {show_members(self.members)}.")
        network = self._initial_network()
        network.load_state_dict(self.stack.copy_state(self.members.index(index)))
        return network.train(self.training)

    @classmethod
    def gather(
        cls, checkpoints: Iterable[str | Path], network: Callable[[], nn.Module], pool: SecretSpace, **kwargs: Any
    ) -> "SubsetEnsemble":
        """Join the checkpoints of shards into one ensemble of all members.

        Args:
            checkpoints: Files written by fits of modules with `members=`; together they hold each member once.
            network: Makes one network, as in training.
            pool: The pool of training.
            **kwargs: Other arguments of this class, as in training.

        Raises:
            ValueError: If a member is missing or comes twice, or a file is of another table or seed.
        """
        ensemble = cls(network, pool, **kwargs)
        shards = []
        for path in checkpoints:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            ensemble.record.check_same_pool(checkpoint, str(path))
            shards.append((from_checkpoint(checkpoint).members, checkpoint["state_dict"]))
        check_complete([member for members, _ in shards for member in members], pool.num_secrets)
        state = ensemble.state_dict()
        for members, shard in shards:
            for name, tensor in state.items():
                tensor[list(members)] = shard[name]
        return ensemble

    @override
    def configure_optimizers(self) -> Any:
        optimizer = self._make_optimizer(self.parameters())
        if self._make_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self._make_scheduler(optimizer)}

    @override
    def setup(self, stage: str) -> None:
        if stage == "fit":
            _check_callbacks(self.trainer)
        strategy = self.trainer.strategy
        if stage == "fit" and isinstance(strategy, PrivateDDPStrategy):
            self._shards = _divide(self.trainer, len(self._all_members))
            strategy.divide_members(self.trainer, self._shards)
            self._hold(self._all_members[self._shards.own], self._shards.cut)

    @override
    def on_fit_end(self) -> None:
        if self._shards is None:
            return
        for optimizer in self.trainer.optimizers:
            for values in optimizer.state.values():
                values.update(self._shards.join(values))
        self._hold(self._all_members, self._shards.join)
        self._shards = None
        strategy = self.trainer.strategy
        assert isinstance(strategy, PrivateDDPStrategy)
        strategy.end_division()

    @override
    def on_fit_start(self) -> None:
        _check_trainer(self.trainer)
        for optimizer in self.trainer.optimizers:
            if type(optimizer) not in ELEMENTWISE_OPTIMIZERS:
                raise MisconfigurationException(
                    f"{type(optimizer).__name__} may couple the members, because it sees their parameters stacked: "
                    f"use one of {', '.join(kind.__name__ for kind in ELEMENTWISE_OPTIMIZERS)}."
                )

    @override
    def on_train_start(self) -> None:
        loader = self.trainer.train_dataloader
        dataset = getattr(loader, "dataset", None)
        while dataset is not None and not isinstance(dataset, WithIndex):
            dataset = getattr(dataset, "dataset", None)
        if dataset is not None and len(dataset) != self.pool.num_records:
            raise ValueError(
                f"The training dataset has {len(dataset)} records, but the pool was made for {self.pool.num_records}: "
                "make the pool with num_records=len(dataset)."
            )

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not isinstance(batch, IndexedSample):
            raise TypeError(
                f"The training batch is a {type(batch).__name__} without record indices: "
                "wrap the training dataset in lightning_pac.data.WithIndex."
            )
        inputs, targets = batch.sample
        table = torch.from_numpy(self.pool.membership_table(batch.index.cpu().numpy()))  # (batch, num_subsets)
        # (members, batch).
        membership = table.t()[list(self.members)].to(self.device)
        losses = self.stack.losses(inputs, targets, membership, self.loss)
        self._log_mean("train_loss", losses.detach().mean(), len(batch.index), prog_bar=True)
        # A sum, since a mean over members would divide each one's gradient by their number.
        return losses.sum()

    @override
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    @override
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    @override
    def predict_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """The votes of all members, which are not private: `PACResponses` replaces them by one private label each."""
        return self.votes(batch_inputs(batch))

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = self.record.to_dict()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.record.check(checkpoint)
        if self._shards is not None:
            for part in ("state_dict", "optimizer_states"):
                checkpoint[part] = self._shards.cut(checkpoint.get(part, []))

    def _evaluate(self, batch: Any, stage: str) -> None:
        inputs, targets = batch.sample if isinstance(batch, IndexedSample) else batch
        outputs = self(inputs)
        # Flattened, outputs (batch, members, ...) hold all members' answers to one record side by side.
        every = targets.repeat_interleave(len(self.members), dim=0)
        loss = self.loss(outputs.flatten(0, 1), every, reduction="none").mean()
        self._log_mean(f"{stage}_loss", loss, len(targets))
        if targets.dim() == 1 and not targets.is_floating_point():
            accuracy = (outputs.argmax(-1) == targets[:, None]).float().mean()
            self._log_mean(f"{stage}_accuracy", accuracy, len(targets), prog_bar=True)

    def _log_mean(self, name: str, mean: Tensor, batch_size: int, prog_bar: bool = False) -> None:
        """Log the mean over all members, from the mean over those that are here."""
        if self._shards is not None:
            # Ranks may hold different numbers of members: so weighted, its mean over ranks is that over all.
            mean = mean * (len(self.members) * self.trainer.world_size / len(self._all_members))
        self.log(name, mean, batch_size=batch_size, prog_bar=prog_bar, sync_dist=self._shards is not None)

    def _hold(self, members: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> None:
        """Hold other members from now on, whose stacked tensors come from those of the present ones."""
        self.members = members
        self.stack.num_copies = len(members)
        for tensor in [*self.stack.parameters(), *self.stack.buffers()]:
            tensor.data = change(tensor.data)

    def _initial_network(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self._make_network()


def _divide(trainer: pl.Trainer, num_members: int) -> RowShards:
    if num_members < trainer.world_size:
        raise MisconfigurationException(
            f"{trainer.world_size} ranks have only {num_members} members to train: use at most as many devices."
        )
    return RowShards(Ranks.of(trainer), num_members)


def _check_callbacks(trainer: pl.Trainer) -> None:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, EarlyStopping | LearningRateFinder):
            raise MisconfigurationException(
                f"{type(callback).__name__} decides for every member by a metric of all of them: fix the learning rate "
                "and the number of epochs in advance."
            )


def _check_trainer(trainer: pl.Trainer) -> None:
    if trainer.world_size > 1 and not isinstance(trainer.strategy, PrivateDDPStrategy):
        raise MisconfigurationException(
            f"{type(trainer.strategy).__name__} would average the members' gradients over {trainer.world_size} ranks: "
            "use strategy='ddp_private', which gives each rank its own members, or train shards in separate jobs "
            "(members='0-15') and join them with SubsetEnsemble.gather."
        )
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm != "value":
        raise MisconfigurationException(
            f"gradient_clip_val={trainer.gradient_clip_val} clips by the norm over all members, which couples them: "
            "remove it, or set gradient_clip_algorithm='value'."
        )
    if trainer.precision == "16-mixed":
        raise MisconfigurationException(
            "precision='16-mixed' skips a step of all members when one of them overflows: use 'bf16-mixed'."
        )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    if any(isinstance(config.scheduler, plateau) for config in trainer.lr_scheduler_configs):
        raise MisconfigurationException(
            "ReduceLROnPlateau sets one learning rate by a metric of all members: use a schedule fixed in advance."
        )
