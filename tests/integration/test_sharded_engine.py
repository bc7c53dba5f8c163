"""The engine on modules whose parameters come and go: norms and clipped sums to the bit those of the whole module."""

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from gloo_ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from lightning_pac.gradients import make_engine
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.sharding import Sharding


class Tied(nn.Module):
    """A table that is looked up and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.table(x))))


class Repeated(nn.Sequential):
    """A block that repeats its forward pass inside, as layers of transformers do."""

    reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return super().forward(x)
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class Checkpointed(nn.Module):
    """Forward passes of blocks that are repeated during the backward pass; the last ends in a parameter."""

    def __init__(self, reentrant: bool, inside: bool = False) -> None:
        super().__init__()
        self.stem, self.reentrant, self.inside = nn.Linear(3, 6), reentrant, inside
        self.blocks = nn.ModuleList([Repeated(nn.Linear(6, 6), nn.Tanh()), Repeated(nn.Tanh(), nn.LayerNorm(6))])
        for block in self.blocks if inside else ():
            block.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden) if self.inside else checkpoint(block, hidden, use_reentrant=self.reentrant)
        return hidden


class Pairs(nn.Module):
    """Ends in a function without a rule, whose way back reads the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pairs = nn.Linear(3, 6), nn.Bilinear(6, 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        return self.pairs(hidden, hidden)


def positions() -> nn.Module:
    """What is computed from parameters alone, before it meets records."""
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), nn.GELU(), nn.Linear(5, 5)]
    return nn.Sequential(nn.Sequential(*layers[:2]), layers[2])


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    return Last()


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Sequential(nn.ReLU(), nn.Conv1d(4, 3, 1))
    )


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)


HALF = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, Any]]] = {
    "tied": (Tied, lambda: torch.randint(11, (4, 7)), {}),
    "checkpointing": (lambda: Checkpointed(False), lambda: torch.randn(4, 3), {}),
    "checkpointing, reentrant": (lambda: Checkpointed(True), lambda: torch.randn(4, 3), {}),
    "checkpointing inside": (lambda: Checkpointed(False, True), lambda: torch.randn(4, 3), {}),
    "checkpointing inside, reentrant": (lambda: Checkpointed(True, True), lambda: torch.randn(4, 3), {}),
    "without a rule": (Pairs, lambda: torch.randn(4, 3), {}),
    "parametrized": (positions, lambda: torch.randn(4, 6, 3), {}),
    "LSTM": (recurrent, lambda: torch.randn(4, 5, 3), {}),
    "convolutions": (convolutions, lambda: torch.randn(4, 2, 9), {}),
    "attention": (attention, lambda: torch.randn(4, 5, 8), {}),
    "kept after the forward pass": (attention, lambda: torch.randn(4, 5, 8), {"reshard_after_forward": False}),
    "bf16": (attention, lambda: torch.randn(4, 5, 8), HALF),
}


def curved(output: Tensor) -> Tensor:
    return (output.float() ** 3 + torch.sin(output.float())).flatten(1).mean(1).mean()


def clipped(engine: Any, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Of two microbatches, of which the second is half as large."""
    found = []
    for part in (x, x[:2]):
        curved(module(part)).backward()
        parts, norms = engine.clipped_parts(0.05)
        found += [*parts, norms]
        assert all(parameter.grad is None for parameter in module.parameters())
    return found


def parts_of(module: nn.Module) -> list[nn.Module]:
    """What is sharded by itself, the whole last."""
    if isinstance(module, Tied):
        return [module.inner, module]
    lists = [child if isinstance(child, nn.ModuleList) else [child] for child in module.children()]
    return [part for part in [*chain.from_iterable(lists), module] if any(True for _ in part.parameters())]


def sharded_run(rank: int, size: int) -> dict[str, str]:
    os.environ["RANK"] = str(rank)
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh("cpu", (size,))
    outcome = {}
    for name, (make, batch, options) in CASES.items():
        torch.manual_seed(0)
        whole, sharded = make(), make()
        sharded.load_state_dict(whole.state_dict())
        for part in parts_of(sharded):
            fully_shard(part, mesh=mesh, **options)
        torch.manual_seed(1 + rank)
        x = batch()
        try:
            engine, reference = make_engine(), make_engine()
            reference.attach(whole.bfloat16() if options is HALF else whole)
            expected = clipped(reference, whole, x.bfloat16() if options is HALF else x)
            sharding = Sharding(sharded, Ranks(rank, size))
            engine.attach(sharded, gathered=sharding.gathered, gathering=sharding.gathering)
            found = clipped(engine, sharded, x)
            same = [torch.equal(one, other) for one, other in zip(found, expected, strict=True)]
            outcome[name] = "" if all(same) else f"differ: {same}"
            engine.detach()
        except Exception as error:
            outcome[name] = f"{type(error).__name__}: {error}"
    torch.distributed.destroy_process_group()
    return outcome


def test_sums_are_those_of_the_whole_module() -> None:
    for outcome in on_ranks(sharded_run, 2):
        assert outcome == dict.fromkeys(CASES, "")
