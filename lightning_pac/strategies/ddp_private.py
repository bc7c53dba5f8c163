"""Several devices under one guarantee: data-parallel training without a reducer of raw gradients."""

from datetime import timedelta
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.constants import default_pg_timeout
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.data import RankShare, describe_loader, rebuild_loader
from lightning_pac.strategies.agreement import model_declaration, share_records
from lightning_pac.strategies.private_strategy import PrivateStrategy, broadcast_tensors
from lightning_pac.strategies.ranks import Ranks
from lightning_pac.strategies.shards import RowShards
from lightning_pac.strategies.spawn_launcher import SpawnLauncher

__all__ = ["PrivateDDPStrategy"]

NAMES: dict[str, Literal["popen", "spawn"]] = {
    "ddp_private": "popen",
    "ddp_private_spawn": "spawn",
    "ddp_private_find_unused_parameters_true": "popen",
    "ddp_private_spawn_find_unused_parameters_true": "spawn",
}


@validated
class PrivateDDPStrategy(PrivateStrategy, DDPStrategy):
    """Data-parallel training in which no gradient leaves its rank before it is clipped.

    Lightning's DDP averages raw gradients during the backward pass, before anything can clip them. Here the model is
    not wrapped: each rank clips the gradients of its own records, and `SRPPSGD` sums them over all ranks, with noise
    added once. Ranks start from rank zero's parameters and take the same steps, so they stay equal to the bit.

    It is registered as ``"ddp_private"`` and ``"ddp_private_spawn"``. The forms that end in
    ``_find_unused_parameters_true`` are the same, since there is no reducer that could miss a parameter. Several nodes
    are launched as with Lightning's DDP (torchrun, SLURM).

    A ``DataLoader``'s ``batch_size`` is that of each rank, as in Lightning; a ``sampling`` descriptor states the batch
    of a whole optimizer step, over ranks and accumulation. Either way train records are drawn by our own samplers,
    once in common, and divided among the ranks without padding; Lightning's sampler shards validation as ever.

    Note:
        A ``SubsetEnsemble`` shards its members over the ranks in place of its records.

    Example::

        from lightning_pac import SRPPSGD, TwoWorldScenario

        private = SRPPSGD(TwoWorldScenario(num_differing=10), world_success_bound=0.6)
        trainer = Trainer(accelerator="gpu", devices=4, strategy="ddp_private", callbacks=[private])

    Args:
        accelerator: As in ``DDPStrategy``.
        parallel_devices: As in ``DDPStrategy``.
        cluster_environment: As in ``DDPStrategy``.
        checkpoint_io: As in ``DDPStrategy``.
        precision_plugin: As in ``DDPStrategy``.
        process_group_backend: ``"nccl"`` or ``"gloo"``; chosen by the device if left out.
        timeout: How long a rank waits for the others before the run ends with an error.
        start_method: ``"popen"`` runs the script once more for each rank, ``"spawn"`` starts functions.

    Raises:
        MisconfigurationException: In ``fit``, if neither `SRPPSGD` nor a `SubsetEnsemble` is trained.
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
        start_method: Literal["popen", "spawn"] = "popen",
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
        )
        self._shards: RowShards | None = None

    def divide_members(self, trainer: pl.Trainer, shards: RowShards) -> None:
        """Give every rank all records and some rows of the model's stacked tensors; until `end_division`.

        Args:
            trainer: Its loaders are not sharded, and its train loader is in the same order on all ranks.
            shards: Joins the tensors of model and optimizer in checkpoints.
        """
        self._begin_division(trainer, whole_validation=True)
        self._shards = shards

    @override
    def end_division(self) -> None:
        super().end_division()
        self._shards = None

    @override
    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            super()._configure_launcher()
        else:
            self._launcher = SpawnLauncher(self, start_method=self._start_method)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        trainer = self.lightning_module.trainer if self.lightning_module is not None else None
        if self._shards is None or trainer is None or not trainer.training:
            return dataloader
        share, sampling = share_records(Ranks.of(trainer), dataloader, "train loader", describe_loader)
        # The members are divided, so every rank takes all of each batch.
        return rebuild_loader(cast(DataLoader[Any], dataloader), sampling, share=RankShare(0, 1, share.key))

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        return state if self._shards is None else dict(self._shards.join(state))

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = super().optimizer_state(optimizer)
        return state if self._shards is None else dict(self._shards.join(state))

    @override
    def configure_ddp(self) -> None:
        if self._shards is not None:
            return  # members of all ranks start from one public seed, or from where an earlier fit left them
        assert self.lightning_module is not None
        module = self.lightning_module
        Ranks(self.global_rank, self.world_size).agree(lambda: model_declaration(module))
        broadcast_tensors({**dict(module.named_parameters()), **dict(module.named_buffers())}.values())

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: Any) -> None:
        for name, start_method in NAMES.items():
            if name not in strategy_registry:
                strategy_registry.register(
                    name, cls, description=f"Private DDP ({start_method})", start_method=start_method
                )
