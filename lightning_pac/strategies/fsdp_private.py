"""Models that are too large for one device: parameters, gradients and the optimizer's state in shards."""

from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.distributed.tensor import DTensor
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.strategies.agreement import model_declaration
from lightning_pac.strategies.private_strategy import PrivateStrategy, broadcast_tensors
from lightning_pac.strategies.ranks import Ranks
from lightning_pac.strategies.sharding import check_shards

__all__ = ["PrivateFSDPStrategy"]


@validated
class PrivateFSDPStrategy(PrivateStrategy, ModelParallelStrategy):
    """Fully sharded training (FSDP2) in which no gradient leaves its rank before it is clipped.

    Each rank keeps some rows of every parameter, of its gradient and of the optimizer's state, and gathers the
    parameters of one module at a time while it computes with them. No gradient of a weight is ever formed, so FSDP2
    has none to reduce: `SRPPSGD` clips each record on the rank that has it, sums one parameter after the other, and
    adds the noise of every row once, on the rank that keeps it.

    It is registered as ``"fsdp_private"``, and the model says in `configure_model` what is sharded, as with Lightning's
    `ModelParallelStrategy`. Records are divided among the ranks as with `PrivateDDPStrategy`. A checkpoint is one file
    with the whole model, which one device loads as well.

    Example::

        class Model(LightningModule):
            def configure_model(self):
                mesh = self.device_mesh["data_parallel"]
                for block in self.network.blocks:
                    fully_shard(block, mesh=mesh)
                fully_shard(self.network, mesh=mesh)

        trainer = Trainer(accelerator="gpu", devices=4, strategy="fsdp_private", callbacks=[private])

    Args:
        process_group_backend: ``"nccl"`` or ``"gloo"``; chosen by the device if left out.
        timeout: How long a rank waits for the others before the run ends with an error.

    Raises:
        MisconfigurationException: In ``fit``, if `SRPPSGD` is not among the callbacks, or nothing is sharded.
    """

    def __init__(
        self, process_group_backend: str | None = None, timeout: timedelta | None = default_pg_timeout
    ) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        module = self.lightning_module
        assert module is not None
        if trainer.state.fn != TrainerFn.FITTING:
            return
        ranks = Ranks.of(trainer)
        ranks.together(lambda: check_shards(module, ranks.size))
        ranks.agree(lambda: model_declaration(module))
        tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
        broadcast_tensors(tensor for tensor in tensors if not isinstance(tensor, DTensor))

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: Any) -> None:
        if "fsdp_private" not in strategy_registry:
            strategy_registry.register("fsdp_private", cls, description="Private FSDP2")
