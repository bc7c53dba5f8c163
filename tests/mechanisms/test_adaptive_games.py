"""Games against everything whose costs add: an attacker chooses each query by all answers so far.

Noise on counts (`PositiveNoise.for_dp`) is played against in `tests/accountants/test_shift_composition.py`, exactly.

What they have learned is the prior's entropy less that of the exact posterior, computed here from densities alone, in
the mean over games. It must not pass the sum of costs by more than two standard errors. The closest truths lie one
standard error below their claims (1.16 of 1.2 nats, over 700 games): each of these fails by chance once in 700 runs.
"""

import itertools
import math

import numpy as np
import pytest

from lightning_pac.accountants import SRPPAccountant
from lightning_pac.mechanisms import AdaptiveComposition, FiniteOutputs, MixtureNoise, certify_mechanism
from lightning_pac.mechanisms.one_sided import PositiveNoise, maximal_leakage
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import Poisson, TwoWorldScenario


def told(posteriors):
    """Mean and standard error of the nats that posteriors from a uniform prior hold, shape (games, m)."""
    logs = np.log(np.maximum(posteriors, 1e-300))
    nats = math.log(posteriors.shape[1]) + (posteriors * logs).sum(axis=1)
    return nats.mean(), nats.std() / math.sqrt(len(nats))


def padding_game(noise, num_secrets, releases, adaptive, games=1500):
    """Queries "is the secret j?": in turn, or about the j that is most in doubt."""
    secrets = np.random.default_rng(0).integers(num_secrets, size=games)
    log_posterior = np.full((games, num_secrets), -math.log(num_secrets))
    every = np.arange(games)
    for release in range(releases):
        posterior = np.exp(log_posterior)
        asked = np.argmax(posterior * (1 - posterior), axis=1) if adaptive else np.full(games, release % num_secrets)
        shown = (secrets == asked) + noise.sample(games)
        likelihood = np.repeat(noise.log_prob(shown)[:, None], num_secrets, axis=1)
        likelihood[every, asked] = noise.log_prob(shown - 1.0)
        log_posterior += likelihood
        log_posterior -= np.logaddexp.reduce(log_posterior, axis=1, keepdims=True)
    return told(np.exp(log_posterior))


def test_padding_that_is_calibrated_to_the_prior_adds_for_fixed_queries_only():
    noise = PositiveNoise.for_pac(output_variance=15 / 256, max_value=6.0, second_moment=12.0)
    fixed, fixed_error = padding_game(noise, 16, 24, adaptive=False)
    chosen, chosen_error = padding_game(noise, 16, 24, adaptive=True)
    assert fixed <= 24 * noise.mutual_information + 2 * fixed_error
    # Chosen by what was seen, the same releases tell four tenths more than the sum; the other bound holds.
    assert chosen > 24 * noise.mutual_information + 6 * chosen_error
    assert chosen <= 24 * noise.adaptive_information(1.0) + 2 * chosen_error


@pytest.mark.parametrize("variance", [1e-4, 0.1, 4.0])
def test_the_adaptive_bound_holds_for_every_law_on_the_interval(variance):
    """One release, against quadrature: two points at the ends, in any proportion, and evenly spread ones."""
    noise = PositiveNoise.for_pac(output_variance=variance, max_value=8.0, second_moment=20.0)
    for width in (0.01, 1.0, 7.0):
        bound = noise.adaptive_information(width)
        for points, weights in [([0, 1], [p, 1 - p]) for p in (0.5, 0.2, 0.01)] + [
            (np.linspace(0, 1, 9), np.full(9, 1 / 9))
        ]:
            grid = np.linspace(0, 8.0 + width, 200_001)
            given = np.exp([noise.log_prob(grid - width * point) for point in points])
            marginal = np.asarray(weights) @ given
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.where(given > 0, given * np.log(given / marginal), 0.0)
            assert (np.asarray(weights) @ terms).sum() * (grid[1] - grid[0]) <= bound + 1e-4


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("votes", "logdet"),
        ("scores", "linear"),
        pytest.param("votes", "linear", marks=pytest.mark.slow),
        pytest.param("scores", "logdet", marks=pytest.mark.slow),
    ],
)
def test_adaptive_composition_tells_at_most_the_sum(rule, kind):
    num_secrets, releases, budget, games = 8, 8, 0.15, 250
    rng = np.random.default_rng(1)
    generator = SecureGenerator()
    posteriors = []
    for secret in rng.integers(num_secrets, size=games):
        composition = AdaptiveComposition(np.full(num_secrets, 1 / num_secrets), secret, rule, generator=generator)
        log_posterior = np.zeros(num_secrets)
        for _ in range(releases):
            # The two likeliest secrets apart, the others wherever they fall: what is most in doubt.
            order = np.argsort(-log_posterior)
            labels = rng.integers(3, size=num_secrets)
            labels[order[:2]] = 0, 1
            outputs = (
                labels
                if kind == "votes"
                else labels[:, None] * np.array([1.0, 0.2]) + rng.normal(size=(num_secrets, 2))
            )
            answer = composition.release(outputs, budget)
            if kind == "votes":
                value, rows = answer.value, (labels[:, None] == answer.classes).astype(float)
            else:
                value, rows = answer.value, outputs
            deviations = rows - value
            inverse = np.linalg.pinv(answer.covariance, rcond=1e-9, hermitian=True)
            log_posterior -= 0.5 * np.einsum("jd,de,je->j", deviations, inverse, deviations)
            log_posterior -= log_posterior.max()
        posteriors.append(np.exp(log_posterior) / np.exp(log_posterior).sum())
        assert composition.spent == pytest.approx(releases * budget)
    truth, error = told(np.array(posteriors))
    claim = min(releases * budget, math.log(num_secrets))
    assert truth <= claim + 2 * error
    assert truth > 0.3 * claim  # else the game is none


def test_releases_of_one_certified_mechanism_tell_at_most_the_sum():
    outputs = np.array([[0.0], [1.0], [1.5], [4.0]])
    released = certify_mechanism(
        MixtureNoise.gaussian([[1.0]]), FiniteOutputs(outputs), 0.2, secret="A test.", num_draws=2**14
    )
    secrets = np.random.default_rng(2).integers(4, size=1500)
    log_posterior = np.zeros((1500, 4))
    for _ in range(4):
        shown = released.release(outputs[secrets])
        log_posterior -= 0.5 * (shown - outputs[:, 0]) ** 2 / released.power
    posterior = np.exp(log_posterior - log_posterior.max(axis=1, keepdims=True))
    truth, error = told(posterior / posterior.sum(axis=1, keepdims=True))
    assert 0.3 < truth <= 4 * released.mutual_information + 2 * error


def test_leakage_adds_whichever_channel_is_chosen_next():
    """Exactly: every way to choose the second channel by what the first one showed."""
    states, prior = np.arange(4), np.full(4, 0.25)
    costs = [np.tile(np.arange(4.0) ** power, (4, 1)) for power in (1, 3)]
    channels = [PositiveNoise.for_maximal_leakage(states, prior, cost, math.log(1.5)) for cost in costs]
    for choice in itertools.product((0, 1), repeat=4):
        for first in channels:
            joint = [first.transition[:, [y]] * channels[choice[y]].transition for y in range(4)]
            assert maximal_leakage(np.hstack(joint)) <= 2 * max(channel.leakage for channel in channels) + 1e-12


@pytest.mark.parametrize("attacker", ["steady", "doubting", "turning"])
def test_steps_of_a_run_tell_at_most_the_account_of_their_number(attacker):
    """A record's gradient may depend on all noised sums so far: every model that training passes through is seen.

    The steady attacker is the worst there is and reaches the bound, so the seed is fixed.
    """
    rate, sigma, steps, games = 0.4, 1.5, 12, 40_000
    accountant = SRPPAccountant(TwoWorldScenario(num_differing=1), Poisson(rate), renyi_order=4)
    generator = np.random.default_rng(3)
    world = generator.integers(2, size=games)
    log_odds = np.zeros(games)
    for step in range(steps):
        sizes = {
            "steady": np.ones(games),
            "doubting": np.where(np.abs(log_odds) < 2.0, 1.0, 0.3),
            "turning": np.where(log_odds > 0, 1.0, -1.0) * (0.5 + 0.5 * (step % 2)),
        }[attacker]
        drawn = generator.random(games) < rate
        # The record of one world pulls by `sizes`, that of the other as far to the other side: both are of norm <= 1.
        shown = sizes * np.where(world == 1, 1.0, -1.0) * drawn + sigma * generator.normal(size=games)
        here, there = (np.exp(-0.5 * ((shown - shift) / sigma) ** 2) for shift in (sizes, -sizes))
        absent = np.exp(-0.5 * (shown / sigma) ** 2)
        log_odds += np.log(rate * here + (1 - rate) * absent) - np.log(rate * there + (1 - rate) * absent)
    guess = np.abs(1 / (1 + np.exp(-log_odds)) - 0.5) + 0.5
    success, error = guess.mean(), guess.std() / math.sqrt(games)
    bound = accountant.world_success_bound(sigma, steps)
    assert success <= bound + 2 * error
    assert success - 0.5 > 0.5 * (bound - 0.5)  # else the game is none
    # Rényi divergence of what was shown, at the order of the account, from the games of one world.
    likely = np.exp(-3.0 * log_odds[world == 0])  # (p/q)^(a-1) under p, with p the world of label 0
    divergence = math.log(likely.mean()) / 3.0
    assert (
        divergence <= accountant.epsilon(sigma, steps) + 2 * likely.std() / likely.mean() / math.sqrt(len(likely)) / 3.0
    )
