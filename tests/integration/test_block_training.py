"""Clipping in blocks, seen from outside: what the optimizer gets, what is declared, and what a run reveals."""

import itertools
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from scipy import stats
from slow_cases import mostly_slow
from tiny_fits import make_data, make_loader, make_private, make_trainer
from torch import nn

from lightning_pac import EpochShuffle, Poisson, PrivacyLedger, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import SliceCoefficients
from lightning_pac.callbacks.srpp_sgd.step.clipping_blocks import BlockNoise, ClippingBlocks
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.gradients import ROUNDING, make_engine

THRESHOLD = 1e-6  # false alarms of each test on unseeded noise
NORMS = {"backbone": 0.3, "head": 0.9}


class TwoParts(pl.LightningModule):
    """Two submodules, the head listed first; a factor of 0 leaves noise alone."""

    def __init__(self, learning_rate: float = 0.05, factor: float = 1.0) -> None:
        super().__init__()
        self.head, self.backbone = nn.Linear(24, 3), nn.Linear(6, 24)
        self.learning_rate, self.factor = learning_rate, factor

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores = self.head(self.backbone(batch[0]).tanh())
        return nn.functional.cross_entropy(scores, batch[1]) * self.factor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class BlockGradients(pl.Callback):
    """Notes the gradient of each block that the optimizer is about to use."""

    def __init__(self) -> None:
        self.used: list[dict[str, torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: pl.LightningModule, optimizer: Any) -> None:
        self.used.append({name: block_gradient(pl_module, name) for name in NORMS})


def block_gradient(module: nn.Module, block: str) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().clone() for parameter in getattr(module, block).parameters()])


def clipped_by_loop(model: TwoParts, rows: slice) -> dict[str, torch.Tensor]:
    """The sum of gradients that are clipped in each block, one record after the other."""
    inputs, labels = make_data()[rows]
    sums = {name: torch.zeros(0) for name in NORMS}
    for record in range(len(inputs)):
        model.zero_grad()
        model.training_step((inputs[[record]], labels[[record]]), 0).backward()
        for name, norm in NORMS.items():
            gradient = block_gradient(model, name)
            clipped = gradient * min(1.0, norm / float(gradient.norm()))
            sums[name] = clipped if not len(sums[name]) else sums[name] + clipped
    model.zero_grad()
    return sums


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 1), (8, 1), (4, 3)])
def test_every_record_is_clipped_in_each_block(batch_size: int, accumulate: int, tmp_path: Path) -> None:
    model, seen = TwoParts(learning_rate=0.0), BlockGradients()
    private = make_private(noise_multiplier=1e-7, max_grad_norm=NORMS)
    trainer = make_trainer(tmp_path, private, seen, accumulate_grad_batches=accumulate)
    trainer.fit(model, make_loader(batch_size=batch_size, shuffle=False))
    step = batch_size * accumulate
    reached = set()
    for index, used in enumerate(seen.used):
        expected = clipped_by_loop(model, slice(index * step, (index + 1) * step))
        for name, norm in NORMS.items():
            assert torch.allclose(used[name] * step, expected[name], atol=2e-5)
            if step == 1:
                assert float(used[name].norm()) <= norm * (1 + 1e-5)
                reached |= {name} if float(used[name].norm()) > norm * (1 - 1e-4) else set()
    assert step > 1 or reached == set(NORMS), "no record reached a bound, so nothing was tested"


@pytest.mark.parametrize(
    ("sampling", "noise"),
    mostly_slow(
        itertools.product([None, Poisson(rate=0.2)], ["optimal", "isotropic"]),
        *((None, "optimal"), (Poisson(rate=0.2), "isotropic")),
    ),
)
def test_each_block_gets_its_own_noise(noise: BlockNoise, sampling: Any, tmp_path: Path) -> None:
    seen = BlockGradients()
    private = make_private(noise_multiplier=1.5, max_grad_norm=NORMS, block_noise=noise, sampling=sampling)
    trainer = make_trainer(tmp_path, private, seen, max_steps=60, max_epochs=-1)
    trainer.fit(TwoParts(factor=0.0), make_loader())
    batch_size = 12.0 if sampling else 10.0
    # Least power under (0.3 / s1)^2 + (0.9 / s2)^2 = 1 / 1.5^2, found by a search over the first deviation.
    sizes = {"backbone": 6 * 24 + 24, "head": 24 * 3 + 3}
    first = np.linspace(0.4501, 20, 400_000)
    second = 0.9 / np.sqrt(1 / 1.5**2 - (0.3 / first) ** 2)
    best = int(np.argmin(sizes["backbone"] * first**2 + sizes["head"] * second**2))
    expected = {"backbone": first[best], "head": second[best]}
    if noise == "isotropic":
        expected = dict.fromkeys(NORMS, 1.5 * math.hypot(0.3, 0.9))
    for name, deviation in expected.items():
        drawn = (
            torch.cat([used[name] for used in seen.used]).double()
            * batch_size
            / (deviation * math.sqrt(1.01) * (1 + ROUNDING))
        )
        assert stats.kstest(drawn.numpy(), "norm").pvalue > THRESHOLD
        assert stats.kstest(drawn.numpy() * 1.4, "norm").pvalue < THRESHOLD, "other noise would not be noticed"


@pytest.mark.parametrize("sampling", [Poisson(rate=0.2), EpochShuffle(batch_size=12)])
def test_blocks_cost_what_one_norm_costs(sampling: Any, tmp_path: Path) -> None:
    """The budget fixes one effective noise multiplier, whatever the blocks; the amplified account takes it too."""
    spent = []
    for index, norms in enumerate([1.0, NORMS]):
        private = make_private(epsilon=3.0, max_grad_norm=norms, sampling=sampling)
        make_trainer(tmp_path / str(index), private, max_epochs=2).fit(TwoParts(), make_loader())
        assert private.account is not None
        spent.append((private.account.noise_multiplier, private.account.epsilon))
    assert spent[0] == spent[1]
    assert spent[0][1] <= 3.0


def test_the_card_and_the_journal_declare_the_blocks(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    private = make_private(noise_multiplier=1.5, max_grad_norm=NORMS, block_noise="isotropic", ledger=path)
    trainer = make_trainer(tmp_path, private, enable_checkpointing=True)
    trainer.fit(TwoParts(), make_loader())
    with PrivacyLedger.read_only(path) as ledger:
        (account,) = ledger.accounts()
        assert account.declaration["max_grad_norm"] == NORMS
        assert account.declaration["block_noise"] == "isotropic"
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    details = torch.load(checkpoint, weights_only=False)["privacy_card"]["details"]
    assert (details["max_grad_norm"], details["block_noise"]) == (NORMS, "isotropic")
    other = make_private(noise_multiplier=1.5, max_grad_norm={**NORMS, "head": 1.0}, block_noise="isotropic")
    with pytest.raises(LedgerMismatchError, match="max_grad_norm"):
        make_trainer(tmp_path, other, max_epochs=2).fit(TwoParts(), make_loader(), ckpt_path=checkpoint)


@pytest.mark.parametrize(
    ("norms", "sentence"),
    [
        ({"backbone": 1.0}, "'head.weight' is in no block"),
        ({"backbone": 1.0, "head": 1.0, "head.bias": 1.0}, "'head.bias' is in the blocks head and head.bias"),
    ],
)
def test_blocks_that_miss_or_repeat_parameters_stop_the_fit(
    norms: dict[str, float], sentence: str, tmp_path: Path
) -> None:
    private = make_private(max_grad_norm=norms)
    with pytest.raises(ValueError, match=sentence):
        make_trainer(tmp_path, private).fit(TwoParts(), make_loader())
    assert not list(tmp_path.rglob("*.db")), "a refused run left a ledger behind"


@pytest.mark.parametrize("noise", ["optimal", "isotropic"])
@pytest.mark.parametrize("order", [2.0, 16.0])
def test_two_training_runs_diverge_by_no_more_than_the_account(noise: BlockNoise, order: float) -> None:
    """Replay one run in both worlds: given its past, each step is two Gaussians whose divergence is known.

    A relabelled record whose gradients are large and opposite comes close to the account, which is for the worst one.
    """
    torch.manual_seed(0)
    multiplier, batch_size = 4.0, 10
    worlds = [make_data(batch_size)[:], make_data(batch_size)[:]]
    # Scaled logits make the record's two gradients opposite and far above both norms.
    worlds[0][0][3] *= 40
    worlds[1] = (worlds[0][0], worlds[0][1].clone())
    worlds[0][1][3], worlds[1][1][3] = 0, 2
    model = TwoParts()
    blocks = ClippingBlocks.of(model, NORMS, noise)
    deviations = blocks.deviations(multiplier)
    engine = make_engine()
    engine.attach(model, blocks.names)
    scenario = TwoWorldScenario(1, batch_size)
    accountant = SRPPAccountant(scenario, Poisson(1.0, secret_draws=False), order, "rpp")
    divergence, largest = 0.0, 0.0
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 31):
        sums = []
        for inputs, labels in worlds:
            model.training_step((inputs, labels), 0).backward()
            sums.append([total.clone() for total in engine.clipped_sum(list(blocks.norms))[0]])
        cost = 0.0
        for (name, parameter), one, other in zip(model.named_parameters(), *sums, strict=True):
            deviation = deviations[blocks.block_of(name)]
            cost += order * float((one - other).square().sum()) / (2 * deviation**2)
            drawn = one + deviation * torch.randn(one.shape, generator=generator)
            parameter.data -= 0.02 * drawn.reshape(parameter.shape) / batch_size
        divergence += cost
        largest = max(largest, cost)
        assert divergence <= accountant.epsilon(multiplier, step) * (1 + 1e-6)
    engine.detach()
    assert largest > 0.4 * accountant.epsilon(multiplier, 1), "the record does too little to test the account"
    # With noise for the first block's norm alone the same run would exceed the account.
    assert divergence * (math.hypot(*NORMS.values()) / NORMS["backbone"]) ** 2 > accountant.epsilon(multiplier, 30)


def test_a_projected_run_reveals_more_than_the_papers_sum_and_less_than_the_account() -> None:
    """Two equal blocks, a = 2, kappa = 2, sigma = 4, two steps: 0.50 claimed for each slice, and 0.75 true.

    In the second step the records that do not differ write into each block what the first step released in the other:
    40 records whose gradients are the released value over 40, clipped at 1. Whoever sees one block over both steps
    thus sees a part of the other block, too.
    """
    rng = np.random.default_rng(0)
    runs, others, sigma = 400_000, 40, 4.0

    def train(world: int) -> np.ndarray:
        """Both blocks of both releases, shape (runs, steps, blocks); the record that differs has gradient -1 or 1."""
        own = 2.0 * world - 1.0
        first = own + sigma * rng.normal(size=(runs, 2))
        written = others * np.clip(first[:, ::-1] / others, -1.0, 1.0)
        return np.stack([first, own + written + sigma * rng.normal(size=(runs, 2))], axis=1)

    releases = [train(world) for world in (0, 1)]
    # The clip is ten deviations away, so every projection is Gaussian, with one covariance in both worlds.
    true = []
    for block in range(2):
        seen = [released[:, :, block] for released in releases]
        shift = seen[1].mean(axis=0) - seen[0].mean(axis=0)
        true.append(2 / 2 * shift @ np.linalg.solve(np.cov(seen[0].T), shift))
    slices = SliceCoefficients.from_blocks([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [sigma, sigma])
    scenario, sampling = TwoWorldScenario(1, others + 1), Poisson(1.0, secret_draws=False)
    effective = sigma / math.sqrt(2)
    claimed = {
        notion: SRPPAccountant(scenario, sampling, 2.0, notion, slices).epsilon(effective, 2)
        for notion in ("ave", "joint")
    }
    account = SRPPAccountant(scenario, sampling, 2.0, "rpp").epsilon(effective, 2)
    assert claimed == {"ave": pytest.approx(0.50), "joint": pytest.approx(0.50)}
    # The deviation of the estimate is below 0.004.
    assert true == pytest.approx([0.75, 0.75], abs=0.02)
    assert max(claimed.values()) < min(true) < max(true) < account == pytest.approx(1.0)


def test_normalised_gradients_train_resume_and_show_no_clipped_fraction(tmp_path: Path) -> None:
    private = make_private(max_grad_norm="auto")
    trainer = make_trainer(tmp_path, private, enable_checkpointing=True)
    trainer.fit(TwoParts(), make_loader())
    assert "privacy/clipped_fraction" not in trainer.callback_metrics
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    details = torch.load(checkpoint, weights_only=False)["privacy_card"]["details"]
    assert (details["clipping"], details["max_grad_norm"]) == ("normalise", {"all": 1.0})
    with pytest.raises(LedgerMismatchError, match="max_grad_norm"):
        make_trainer(tmp_path, make_private(), max_epochs=2).fit(TwoParts(), make_loader(), ckpt_path=checkpoint)
    with pytest.raises(ValueError, match=r"^max_grad_norm is 'auto' for the block 'head', but"):
        make_private(max_grad_norm={"backbone": 1.0, "head": "auto"})
