"""Parameters of which FSDP2 leaves every rank some rows, and sums that are brought to those rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor, Shard

from lightning_pac._validation import checks_itself
from lightning_pac.strategies.ranks import Ranks, reduce_scatter

__all__ = ["Sharding", "check_shards", "held_forms", "held_parameters", "local_part", "sharded_parameters"]

# Numbers that are staged for one reduction, over all ranks: 32 MiB.
_STAGED = 1 << 22


def local_part(tensor: Tensor) -> Tensor:
    """The rows of a sharded tensor that lie on this rank; any other tensor as it is."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # a method of it would make a new tensor


def held_forms(module: nn.Module) -> dict[int, nn.Parameter]:
    """This rank's shard of each whole parameter, by the identity of that."""
    return {id(whole): held for _, held, whole in sharded_parameters(module) if whole is not None}


def held_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by name as an optimizer holds them: this rank's shard, also while the whole is in its place."""
    shards = held_forms(module)
    return {name: shards.get(id(parameter), parameter) for name, parameter in module.named_parameters()}


class Sharding:
    """The trainable parameters of a model whose rows `fully_shard` has divided among the ranks.

    FSDP2 gathers the parameters of one module at a time and lets them go again. The objects that stand in the modules
    meanwhile stay the same, so that what an engine ties to them lasts; only their storage comes and goes.

    Args:
        module: The model, as `check_shards` accepts it.
        ranks: The processes that hold the rows.

    Attributes:
        held: This rank's shards by name, which the optimizer trains.
        gathered: Whole parameters by name, which modules compute with.
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        self._layers = [layer for layer in module.modules() if isinstance(layer, FSDPModule)]
        self.held = {name: shard for name, shard in held_parameters(module).items() if shard.requires_grad}
        for layer, _, whole in list(sharded_parameters(module)):
            if whole is None:  # made by the first gathering
                layer.unshard()
                layer.reshard()
        wholes = {id(held): whole for _, held, whole in sharded_parameters(module)}
        for _, held, whole in sharded_parameters(module):
            whole.requires_grad_(held.requires_grad)  # as it was when it was made, perhaps before parts were frozen
        self.gathered: Mapping[str, nn.Parameter] = MappingProxyType(
            {name: wholes[id(shard)] for name, shard in self.held.items()}
        )

    @classmethod
    def of(cls, module: nn.Module, ranks: Ranks) -> "Sharding | None":
        """That of a model, or None if `fully_shard` was called on no part of it."""
        return cls(module, ranks) if any(isinstance(layer, FSDPModule) for layer in module.modules()) else None

    def let_go(self) -> None:
        """Let go of all that is gathered, as parameters of the outermost module are after a validation."""
        for layer in self._layers:
            layer.reshard()

    @contextmanager
    def gathering(self, needed: bool) -> Iterator[None]:
        """Gather all parameters meanwhile if any rank needs their values; called by all ranks at once."""
        layers = self._layers if self._ranks.anywhere(needed) else []
        for layer in layers:
            layer.unshard()
        try:
            yield
        finally:
            if layers:
                self.let_go()

    def reduce(self, sums: Iterable[Tensor]) -> Iterator[Tensor]:
        """This rank's rows of sums over all ranks, flat and in float64, in order and in pieces of any length.

        Only as much as is staged for one reduction is ever held in float64, and one of the sums at a time.

        Args:
            sums: This rank's part of the sum for each parameter, in order.
        """
        width, staged = max(1, _STAGED // self._ranks.size), 0
        pieces: list[tuple[Tensor, int, int, int]] = []
        for total in sums:
            flat = total.reshape(-1)
            rows = -(-len(total) // self._ranks.size)  # of a rank; the last ones may have fewer, or none
            length, start = rows * total[:1].numel(), 0
            while start < length:
                stop = min(length, start + width - staged)
                pieces.append((flat, length, start, stop))
                staged += stop - start
                start = stop
                if staged == width:
                    yield from self._reduced(pieces, staged)
                    pieces, staged = [], 0
        if pieces:
            yield from self._reduced(pieces, staged)

    def _reduced(self, pieces: list[tuple[Tensor, int, int, int]], width: int) -> Iterator[Tensor]:
        size, own = self._ranks.size, self._ranks.rank
        staged = torch.zeros(size, width, dtype=torch.float64, device=pieces[0][0].device)
        place = 0
        ours: list[slice] = []
        for flat, length, start, stop in pieces:
            for rank in range(size):
                part = flat[rank * length + start : rank * length + stop]
                staged[rank, place : place + len(part)] = part
                if rank == own:
                    ours.append(slice(place, place + len(part)))
            place += stop - start
        reduced = staged.new_empty(width)
        reduce_scatter(reduced, staged.view(-1))
        for part_of_ours in ours:
            yield reduced[part_of_ours]

    @checks_itself
    def release(self, total: Tensor, make_public: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Make the rows of this rank public, which are complete, and what all have in common, if there is any.

        Every rank noises its own rows; rank zero noises the rest, which it sums first and all receive.

        Args:
            total: This rank's rows, flat, and behind them its part of what all have in common; it is overwritten.
            make_public: As in `Ranks.release`.
        """
        rows = sum(local_part(shard).numel() for shard in self.held.values())
        common = total[rows:]
        if len(common):
            dist.all_reduce(common)
        make_public(total if self._ranks.is_first else total[:rows], 0)
        if len(common):
            dist.broadcast(common, src=0)
        return total


def check_shards(module: nn.Module, size: int) -> None:
    """Refuse a model whose trainable parameters are not divided by rows among all ranks.

    Raises:
        MisconfigurationException: Says what to shard, and how.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, FSDPModule)]
    if not layers:
        raise MisconfigurationException(
            f"configure_model of {type(module).__name__} shards nothing, so every rank would hold the whole "
            "model: call torch.distributed.fsdp.fully_shard there, or use strategy='ddp_private'."
        )
    if any(isinstance(group.offload_policy, CPUOffloadPolicy) for group, _ in _groups(layers)):
        raise MisconfigurationException(
            "CPUOffloadPolicy keeps shards on the host, where their noise would be drawn slowly, and is not supported: "
            "leave offload_policy out."
        )
    for name, parameter in held_parameters(module).items():
        if not parameter.requires_grad:
            continue
        if not isinstance(parameter, DTensor):
            raise MisconfigurationException(
                f"The parameter {name!r} is in no module that fully_shard was called on, so every rank would "
                "train one of its own: call fully_shard on the model, too, after its parts, or freeze the parameter."
            )
        by_rows = size == 1 or parameter.placements == (Shard(0),)
        if parameter.device_mesh.shape != (size,) or not by_rows:
            raise MisconfigurationException(
                f"The parameter {name!r} is divided as {parameter.placements} over a mesh of shape "
                f"{parameter.device_mesh.shape}, and only rows divided among all ranks are supported: call "
                "fully_shard(..., mesh=self.device_mesh['data_parallel']), without tensor parallelism, replicas or a "
                "shard_placement_fn."
            )


def _groups(layers: Iterable[nn.Module]) -> Iterator[tuple[Any, Any]]:
    """Groups that FSDP2 gathers at once, each with the module that does so."""
    for layer in layers:
        if isinstance(layer, FSDPModule):
            for group in layer._get_fsdp_state()._fsdp_param_groups:
                yield group, layer


def sharded_parameters(module: nn.Module) -> Iterator[tuple[Any, nn.Parameter, Any]]:
    """Parameters of FSDP2: the module that gathers each, the shard, and the whole (at first None)."""
    for group, layer in _groups(module.modules()):
        for parameter in group.fsdp_params:
            yield layer, parameter.sharded_param, getattr(parameter, "_unsharded_param", None)
