"""SR-PAC: laws that integrate to one, gradients, the game under Lightning, and certificates that need no decoder."""

import math
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.data import WithIndex
from lightning_pac.mechanisms import BoundedOutputs, calibrate_gaussian, certify_noise
from lightning_pac.mechanisms.certified.certificate import two_point_information
from lightning_pac.modules import (
    DiagonalGaussian,
    FullGaussian,
    GaussianDecoder,
    GaussianMixture,
    IsotropicGaussian,
    LowRankGaussian,
    MembershipDecoder,
    MixtureDecoder,
    PosteriorDecoder,
    SecretTable,
    SoftmaxDecoder,
    SquaredNorm,
    StackelbergGame,
    SubspaceNorm,
    TaskSubspaceGaussian,
    WeightedNorm,
)
from lightning_pac.modules.srpac import Decoder, Perturbation, StackelbergPlay, budget_penalty

FAMILIES = {
    "isotropic": lambda: IsotropicGaussian(3),
    "diagonal": lambda: DiagonalGaussian(3),
    "full": lambda: FullGaussian(3),
    "low rank": lambda: LowRankGaussian(3, 1),
    "mixture": lambda: GaussianMixture(3, 2),
    "task": lambda: TaskSubspaceGaussian(3, [[1.0], [1.0], [0.0]]),
}


@pytest.fixture(autouse=True)
def _fixed_start():
    torch.manual_seed(0)


def shaken(family: str) -> Perturbation:
    perturbation = FAMILIES[family]()
    with torch.no_grad():
        for parameter in perturbation.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return perturbation


def clusters(size: int = 40, seed: int = 0) -> np.ndarray:
    """Outputs that are clearly not Gaussian: two modes, a rare large value and a heavy tail."""
    rng = np.random.default_rng(seed)
    rare = np.zeros(size)
    rare[0] = 8.0
    return np.stack([np.repeat([-1.0, 1.0], size // 2), rare + 0.1 * rng.standard_normal(size),
                     rng.standard_t(3, size)], axis=1)  # fmt: skip


def trainer(max_epochs: int = 1, **kwargs: Any) -> pl.Trainer:
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=max_epochs, enable_model_summary=False, **{**options, **kwargs})


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_has_the_power_density_and_moments_it_says(family):
    perturbation = shaken(family).double()
    noise = perturbation.noise()
    draws, factors = perturbation.rsample(100_000)
    assert noise.power == pytest.approx(perturbation.power().item(), rel=1e-6)
    # Six standard errors of the mean of the squared lengths.
    squares = (draws**2).sum(dim=1)
    assert abs(squares.mean().item() - noise.power) < 6 * squares.std().item() / math.sqrt(len(draws))
    assert bool((factors == 1).all())
    assert perturbation.log_prob(draws[:50]).detach().numpy() == pytest.approx(noise.log_density(draws[:50].detach()))
    moments = (draws.T @ draws / len(draws)).detach().numpy()
    assert np.abs(moments - noise.second_moment()).max() < 0.05 * noise.power


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_carry_the_gradient_of_every_parameter(family):
    """The gradient of an average over draws, against that of the same average as an integral."""
    perturbation = shaken(family).double()
    direction = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    log_weights, means, loadings = perturbation.components()
    frequencies = means @ direction
    spreads = ((loadings.transpose(1, 2) @ direction) ** 2).sum(dim=1)
    # E sin(t B) = sum w sin(t mu) exp(-(t s)^2 / 2), and with the square of B's length besides.
    exact = (log_weights.exp() * torch.sin(frequencies) * torch.exp(-spreads / 2)).sum() + perturbation.power()
    expected = torch.autograd.grad(exact, list(perturbation.parameters()), allow_unused=True)
    draws, factors = perturbation.rsample(200_000)
    average = (factors * (torch.sin(draws @ direction) + (draws**2).sum(dim=1))).mean()
    found = torch.autograd.grad(average, list(perturbation.parameters()), allow_unused=True)
    for want, got in zip(expected, found, strict=True):
        if want is not None:
            assert got.numpy() == pytest.approx(want.numpy(), abs=0.1)


def trained_decoders() -> list[tuple[Decoder, Tensor]]:
    line = torch.linspace(-40, 40, 16_001)[:, None]
    bits = torch.tensor([[a, b] for a in (0.0, 1.0) for b in (0.0, 1.0)])
    posterior = PosteriorDecoder(torch.randn(5, 2), FullGaussian(2), torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1]))
    return [
        (GaussianDecoder(2, 1), line),
        (MixtureDecoder(2, 1, num_components=3), line),
        (SoftmaxDecoder(2, 5), torch.arange(5)),
        (MembershipDecoder(2, 2), bits),
        (posterior, torch.arange(5)),
    ]


@pytest.mark.parametrize("index", range(5))
def test_every_decoder_is_a_normalized_law(index):
    decoder, candidates = trained_decoders()[index]
    release = torch.randn(1, 2) * 3
    mass = decoder.log_prob(candidates, release.expand(len(candidates), 2)).exp().sum()
    if candidates.is_floating_point() and candidates.shape[1] == 1:
        mass = mass * (candidates[1] - candidates[0]).item()
    assert mass.item() == pytest.approx(1, abs=1e-3)
    log_prior = torch.full((len(candidates),), -math.log(len(candidates)))
    posterior = decoder.log_posterior(torch.randn(4, 2), candidates, log_prior)
    assert posterior.shape == (4, len(candidates))
    assert posterior.exp().sum(dim=1).numpy() == pytest.approx(np.ones(4))


def test_a_density_is_compared_with_the_pools_entropy_only_as_a_probability():
    """The raw score of a record depends on its units; the probability over the pool does not."""
    outputs = torch.linspace(-2, 2, 9)[:, None]
    found, raw = [], []
    for unit in (1.0, 1_000.0):
        torch.manual_seed(1)
        table = SecretTable(outputs, features=outputs * unit)
        play = StackelbergPlay(GaussianDecoder(1, 1), IsotropicGaussian(1), 0.7)
        play.prepare(table)
        torch.manual_seed(2)
        found.append(play.leakage(table).estimate)
        torch.manual_seed(2)
        raw.append(play.decoder_loss(outputs * unit, outputs).item())
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert raw[1] - raw[0] == pytest.approx(math.log(1_000), abs=1e-3)
    # Taken as a lower bound on leakage, entropy minus the raw score in small units would exceed the entropy itself.
    assert math.log(9) - (raw[0] - math.log(1_000)) > math.log(9)


def test_the_penalty_punishes_missing_the_constraint_only():
    below, above = torch.tensor(1.0), torch.tensor(3.0)
    assert budget_penalty(below, 2.0).item() == 1.0
    assert budget_penalty(above, 2.0).item() == 0.0
    assert budget_penalty(above, 2.0, "two_sided").item() == 1.0


def test_utilities_count_what_they_say():
    noise = torch.tensor([[3.0, 4.0]])
    assert SquaredNorm()(noise).item() == 25.0
    assert WeightedNorm(torch.tensor([2.0, 0.0]))(noise).item() == 18.0
    assert SubspaceNorm(torch.tensor([[0.0], [2.0]]), weight=1.0)(noise).item() == pytest.approx(41.0)
    with pytest.raises(ValueError, match="non-negative"):
        WeightedNorm(torch.tensor([-1.0]))


@pytest.mark.slow
def test_the_game_needs_less_noise_than_logdet_for_outputs_that_are_not_gaussian():
    budget = 1.0
    outputs = clusters(64)
    perturbation = FullGaussian(3)
    rows = torch.tensor(outputs)
    game = StackelbergGame(SecretTable(rows), PosteriorDecoder(rows, perturbation), perturbation, budget, noise_lr=0.03)
    trainer(6).fit(game)
    released = game.certify(num_draws=2**17)
    logdet = calibrate_gaussian(outputs, budget)
    assert released.mutual_information <= logdet.mutual_information
    assert released.power < 0.99 * logdet.power
    variances = np.linalg.eigvalsh(released.noise.second_moment())
    assert variances[-1] > 4 * variances[0], "directions that tell more get more noise"
    if released.basis is None:
        fresh = certify_noise(outputs, released.noise, confidence=0.5, num_draws=2**16)
        assert fresh.estimate <= budget


def test_two_modes_reach_the_exact_noise():
    """One balanced bit at 0.5 nats: variance 0.500, by quadrature."""
    outputs = torch.tensor([[-1.0], [1.0]])
    perturbation = IsotropicGaussian(1)
    game = StackelbergGame(SecretTable(outputs), PosteriorDecoder(outputs, perturbation), perturbation, 0.5)
    trainer(3).fit(game)
    assert perturbation.power().item() == pytest.approx(0.5, rel=0.15)
    released = game.certify()
    assert released.power == pytest.approx(0.5, rel=0.002)
    assert two_point_information(2 / math.sqrt(released.power), 0.5) <= 0.5 + 1e-12


class Blind(SoftmaxDecoder):
    """A crippled decoder: it says the same of every release."""

    def standard(self, release: Tensor) -> Tensor:
        return torch.zeros_like(release)


class Fixed(SoftmaxDecoder):
    """An untrained decoder that never learns and is wrong with confidence: to it no noise at all looks private."""

    def __init__(self, release_size: int, num_secrets: int) -> None:
        super().__init__(release_size, num_secrets)
        self.requires_grad_(False)
        self.network[-1].weight.data *= 40  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("decoder", [Blind, Fixed])
def test_a_decoder_that_finds_nothing_does_not_let_noise_be_too_small(decoder):
    outputs = clusters(16)
    game = StackelbergGame(
        SecretTable(torch.tensor(outputs)), decoder(3, 16), FullGaussian(3), 0.5, warmup_steps=0, noise_lr=0.1
    )
    trainer(2).fit(game)
    trained = game.play.perturbation.noise()
    found = game.leakage()
    told = certify_noise(outputs, trained, num_draws=20_000).estimate
    # What the game itself believes: no leakage, with noise that tells nearly everything.
    assert found.estimate < 0.1
    assert told > 1.0
    released = game.certify(num_draws=2**15)
    assert released.mutual_information <= 0.5
    projected = outputs if released.basis is None else outputs @ released.basis
    assert certify_noise(projected, released.noise, num_draws=50_000).estimate <= 0.5
    assert released.power > 10 * trained.power


def test_without_a_certificate_that_decoder_would_pass(monkeypatch):
    """The check above can fail: let the scale be what the decoder's own estimate allows."""
    from lightning_pac.mechanisms import Certificate

    monkeypatch.setattr(
        "lightning_pac.mechanisms.certified.output_laws.scale_noise",
        lambda points, mass, noise, budget, *rest: (noise.scaled(1e-3), Certificate(budget, 0.99, "monte_carlo")),
    )
    with pytest.raises(AssertionError):
        test_a_decoder_that_finds_nothing_does_not_let_noise_be_too_small(Blind)


def records(index: bool = False) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    data: Any = TensorDataset(torch.randn(120, 5, generator=generator), torch.zeros(120))
    return DataLoader(WithIndex(data) if index else data, batch_size=30, shuffle=True)


class Classifier(nn.Module):
    """Its outputs differ between training and inference, as those of most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("kind", ["mixture", "softmax"])
def test_the_secret_can_be_each_input_record(kind, tmp_path):
    model = Classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decoder = MixtureDecoder(2, 5, num_components=2) if kind == "mixture" else SoftmaxDecoder(2, 120)
    game = StackelbergGame(model, decoder, FullGaussian(2), 1.0, warmup_steps=4)
    logger = CSVLogger(tmp_path)
    trainer(3, logger=logger, log_every_n_steps=1).fit(game, records(index=kind == "softmax"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    released = game.certify(num_draws=2**14)
    assert released.secret == "Which record of the pool a release was computed from."
    with torch.no_grad():
        outputs = model.eval()(records().dataset.tensors[0])
    assert released.release(outputs[:7]).shape == (7, 2)
    logger.save()
    header = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    for name in (
        "srpac/decoder_cross_entropy",
        "srpac/noise_power",
        "srpac/leakage_lower_bound",
        "srpac/leakage_estimate",
        "privacy/mutual_information_certified",
    ):
        assert name in header.split(",")


def test_the_follower_learns_and_its_bound_stays_below_the_truth():
    outputs = torch.tensor(clusters(8, seed=4))
    game = StackelbergGame(SecretTable(outputs), SoftmaxDecoder(3, 8), IsotropicGaussian(3), 1.0, noise_lr=1e-6)
    trainer(1).fit(game)
    truth = certify_noise(outputs.numpy(), game.play.perturbation.noise(), num_draws=2**16).estimate
    found = game.leakage(num_draws=20_000)
    assert 0.7 * truth < found.estimate
    assert found.lower_bound < truth


def test_membership_bits_can_be_the_secret():
    rng = np.random.default_rng(5)
    bits = torch.tensor(rng.permuted(np.tile([0.0, 1.0], (12, 3)), axis=1)).float()
    outputs = bits @ torch.randn(6, 2)
    table = SecretTable(outputs, features=bits, secret="Which half of the records was used.")
    game = StackelbergGame(table, MembershipDecoder(2, 6), DiagonalGaussian(2), 0.5)
    trainer(1).fit(game)
    assert game.leakage().lower_bound < 0.5
    assert game.certify(num_draws=2**14).mutual_information <= 0.5


def test_outputs_of_any_law_are_certified_on_a_ball():
    game = StackelbergGame(Classifier(), MixtureDecoder(2, 5), FullGaussian(2), 0.3)
    released = game.certify(law=BoundedOutputs(np.zeros(2), 1.0))
    assert released.certificate.confidence == 1.0
    assert released.release(torch.randn(5, 2) * 100).shape == (5, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0.0}, "positive and finite"),
        ({"budget": math.nan}, "budget is nan"),
        ({"penalty": "none"}, "one_sided"),
        ({"penalty_weight": 0.0}, "penalty_weight is 0.0, but must be positive"),
        ({"decoder_period": 0}, "decoder_period is 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    options = {"budget": 0.5, **arguments}
    table = SecretTable(torch.tensor([[0.0], [1.0], [3.0]]))
    with pytest.raises(ValueError, match=message):
        StackelbergGame(table, SoftmaxDecoder(1, 3), IsotropicGaussian(1), **options)


def test_what_does_not_fit_together_is_refused():
    table = SecretTable(torch.tensor([[0.0], [1.0], [3.0]]))
    with pytest.raises(ValueError, match="The support of SoftmaxDecoder misses the data"):
        trainer().fit(StackelbergGame(table, SoftmaxDecoder(1, 2), IsotropicGaussian(1), 0.5))
    bits = SecretTable(table.get_buffer("outputs"), features=torch.tensor([[0.0], [0.5], [1.0]]))
    with pytest.raises(ValueError, match="The support of MembershipDecoder misses the data"):
        trainer().fit(StackelbergGame(bits, MembershipDecoder(1, 1), IsotropicGaussian(1), 0.5))
    with pytest.raises(ValueError, match="make it with dimension 1"):
        trainer().fit(StackelbergGame(table, SoftmaxDecoder(1, 3), IsotropicGaussian(2), 0.5))
    with pytest.raises(ValueError, match="of which SecretTable was given none"):
        trainer().fit(StackelbergGame(table, GaussianDecoder(1, 2), IsotropicGaussian(1), 0.5))
    with pytest.raises(ValueError, match="releasing the output exactly is within it"):
        trainer().fit(StackelbergGame(table, SoftmaxDecoder(1, 3), IsotropicGaussian(1), 1.2))
    with pytest.raises(MisconfigurationException, match=r"pass trainer\.fit a datamodule"):
        trainer().fit(StackelbergGame(Classifier(), MixtureDecoder(2, 5), FullGaussian(2), 0.5))
    with pytest.raises(MisconfigurationException, match="wrap the training dataset in WithIndex"):
        trainer().fit(StackelbergGame(Classifier(), SoftmaxDecoder(2, 120), FullGaussian(2), 0.5), records())
    with pytest.raises(ValueError, match="fit it first"):
        StackelbergGame(Classifier(), MixtureDecoder(2, 5), FullGaussian(2), 0.5).certify()
    with pytest.raises(ValueError, match="Output 1 is not finite"):
        SecretTable(torch.tensor([[0.0], [math.nan]]))
    with pytest.raises(ValueError, match="hides nothing"):
        SecretTable(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="dimension is 0"):
        IsotropicGaussian(0)
    with pytest.raises(ValueError, match="linearly independent"):
        TaskSubspaceGaussian(3, torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]))


def test_unnoised_outputs_stay_out_of_checkpoints():
    table = SecretTable(torch.tensor([[0.0], [1.0], [3.0]]), features=torch.ones(3, 2))
    game = StackelbergGame(table, SoftmaxDecoder(1, 3), IsotropicGaussian(1), 0.5)
    assert not any("outputs" in name or "features" in name for name in game.state_dict())
