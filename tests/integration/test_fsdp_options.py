"""Whatever SRPPSGD is given, shards end with the weights of one device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import on_ranks
from test_fsdp_private import Sharded, weights, with_test_noise
from tiny_fits import make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

from lightning_pac import Banded, CyclicShuffle, Persons, Poisson, Sequential, TwoWorldScenario
from lightning_pac.randomness import SecureGenerator
from lightning_pac.strategies import agreement

ADD_REMOVE = TwoWorldScenario(num_differing=1, adjacency="add_remove")


class Owned(Dataset[Any]):
    """Records of twenty persons, three each."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return *make_data(60)[index], index // 3


class Labelled(Sharded):
    """Leaves the person of a record out."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch[:2], batch_idx)


class LowRank(nn.Module):
    """A frozen layer and a trained one of rank 2 beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.up(self.down(inputs))


class Adapted(Labelled):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(LowRank(6, 8), nn.Tanh(), LowRank(8, 3))

    def configure_model(self) -> None:
        if self._device_mesh is not None:
            for part in (self.network[0], self.network[2], self.network):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])


BLOCKS = {"network.inputs": 0.1, "network.places": 0.2, "network.inner": 0.3, "network.outputs": 0.4}

# Models, arguments of SRPPSGD, and of the Trainer.
CASES: dict[str, tuple[Callable[[], Sharded], dict[str, Any], dict[str, Any]]] = {
    "correlated noise": (Labelled, {"noise": Banded(bands=2), "sampling": CyclicShuffle(7)}, {}),
    "blocks": (Labelled, {"max_grad_norm": BLOCKS, "sampling": Sequential(7)}, {}),
    "add or remove": (Labelled, {"scenario": ADD_REMOVE, "sampling": Poisson(0.1, 6), "max_grad_norm": 0.1}, {}),
    "persons": (Labelled, {"unit": Persons(of=2, at_most=3), "sampling": Sequential(4)}, {}),
    "views": (Labelled, {"views": 2, "sampling": Sequential(5)}, {}),
    "automatic norms": (Labelled, {"max_grad_norm": "auto", "sampling": Sequential(7)}, {}),
    "low rank": (Adapted, {"sampling": Sequential(7)}, {}),
    "microbatches of one record": (Labelled, {"sampling": Sequential(6)}, {"accumulate_grad_batches": 6}),
}


def weights_of(rank: int, size: int, folder: Path, strategy: str, names: list[str]) -> dict[str, Any]:
    """Of three steps, or four microbatches of one record and more, with one draw and one noise for all."""
    with_test_noise()
    SecureGenerator.fill_normal_ = lambda self, tensor: tensor.fill_(0.3)  # type: ignore[method-assign]
    agreement.os = type("", (), {"urandom": bytes})  # type: ignore[assignment]
    found: dict[str, Any] = {}
    for name in names:
        make, arguments, options = CASES[name]
        torch.manual_seed(0)
        model, private = make(), make_private(ledger=folder / f"{name}.db", **arguments)
        options = {"strategy": strategy, "devices": size, "max_steps": 3, "max_epochs": 9, **options}
        trainer = make_trainer(folder, private, **options)
        try:
            trainer.fit(model, DataLoader(Owned(), batch_size=5))
            found[name] = weights(model)
        except Exception as error:  # compared with the weights, which it is not equal to
            found[name] = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.slow
def test_weights_are_those_of_one_device_whatever_is_given(tmp_path: Path) -> None:
    (alone,) = on_ranks(weights_of, 1, tmp_path / "alone", "ddp_private", list(CASES))
    first, second = on_ranks(weights_of, 2, tmp_path / "shards", "fsdp_private", list(CASES))
    for name, expected in alone.items():
        # Adam's step is a gradient over its own size, so that the rounding of small ones is seen in the weights.
        torch.testing.assert_close(first[name], expected, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert torch.equal(first[name], second[name])
