"""Strategies for several devices, and a precision; importing this package registers their names with Lightning."""

from lightning.pytorch.strategies import StrategyRegistry

from lightning_pac.strategies.ddp_private import PrivateDDPStrategy
from lightning_pac.strategies.fixed_scale import FixedScalePrecision
from lightning_pac.strategies.fsdp_private import PrivateFSDPStrategy
from lightning_pac.strategies.ranks import Ranks
from lightning_pac.strategies.shards import RowShards

__all__ = ["FixedScalePrecision", "PrivateDDPStrategy", "PrivateFSDPStrategy", "Ranks", "RowShards"]

PrivateDDPStrategy.register_strategies(StrategyRegistry)
PrivateFSDPStrategy.register_strategies(StrategyRegistry)
