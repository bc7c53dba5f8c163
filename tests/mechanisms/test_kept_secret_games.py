"""Games against real releases about one kept secret, each query chosen by every value so far, without chance.

By the chain rule, what all values tell is the mean of what each tells beyond the earlier ones. That is the information
of a mixture of Gaussians with the posterior's weights, by quadrature here; the posterior is the observer's own, from
the values, the outputs and what is published of the noise. No term may pass the price of its release on any path, so
no sum can on average.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder, privatize, released_values
from lightning_pac.scenarios import BalancedSubsets

NUM_SECRETS = 8
POOL = BalancedSubsets(num_records=20, num_subsets=NUM_SECRETS)
INDEX = {tuple(POOL.subset(index)): index for index in range(NUM_SECRETS)}


def told_by_a_release(posterior: np.ndarray, outputs: np.ndarray, deviation: float) -> float:
    """I(S; output of S + noise) in nats for a secret that is distributed as the posterior, by quadrature."""
    noise = np.linspace(-9.0, 9.0, 2001)
    weights = np.exp(-0.5 * noise**2) / np.exp(-0.5 * noise**2).sum()
    apart = (outputs[:, None] - outputs) / deviation  # (secret, another)
    with np.errstate(divide="ignore"):
        ratios = np.log(posterior)[None, :, None] - apart[:, :, None] * (0.5 * apart[:, :, None] + noise)
    return float(-posterior @ logsumexp(ratios, axis=1) @ weights)


def chosen_query(posterior: np.ndarray, attacker: str, generator: np.random.Generator) -> np.ndarray:
    """One number for each secret: the two likeliest apart, or the one most in doubt, or half of the mass."""
    order = np.argsort(-posterior)
    if attacker == "apart":
        outputs = generator.integers(3, size=NUM_SECRETS) + 0.3 * generator.normal(size=NUM_SECRETS)
        outputs[order[:2]] = 0.0, 1.0
        return outputs
    outputs = np.zeros(NUM_SECRETS)
    if attacker == "doubting":
        outputs[np.argmax(posterior * (1 - posterior))] = 1.0
        return outputs
    for index in order:  # an even split, as far as the likeliest allow one
        outputs[index] = posterior[outputs == 1.0].sum() < 0.5 * posterior[order[: 1 + list(order).index(index)]].sum()
    return outputs


def updated(posterior: np.ndarray, outputs: np.ndarray, shown: float, deviation: float) -> np.ndarray:
    likely = posterior * np.exp(-0.5 * ((outputs - shown) ** 2 - ((outputs - shown) ** 2).min()) / deviation**2)
    return likely / likely.sum()


def test_noise_for_the_prior_tells_more_than_its_price_where_the_posterior_is_in_doubt() -> None:
    """What the games below would see if the noise were not made for the belief."""
    outputs = np.eye(NUM_SECRETS)[0]
    deviation = math.sqrt(outputs.var() / math.expm1(2 * 0.2))
    prior, doubt = np.full(NUM_SECRETS, 1 / NUM_SECRETS), np.array([0.5, 0.5, *np.zeros(NUM_SECRETS - 2)])
    assert told_by_a_release(prior, outputs, deviation) < 0.2 < 0.3 < told_by_a_release(doubt, outputs, deviation)


@pytest.mark.parametrize("rule", ["logdet", "linear", "coordinate", "isotropic"])
def test_no_value_of_privatize_tells_more_than_its_price(tmp_path: Path, rule: str) -> None:
    generator, budget = np.random.default_rng(0), 0.2
    secret, posterior = POOL.draw_secret(tmp_path / "s.key"), np.full(NUM_SECRETS, 1 / NUM_SECRETS)
    for release in range(12):
        outputs = chosen_query(posterior, ("apart", "doubting", "halving")[release % 3], generator)
        private = privatize(
            lambda rows, outputs=outputs: outputs[[INDEX[tuple(rows)]]],
            secret,
            budget,
            rule,
            ledger=tmp_path / "l.db",
            workers=1,
            progress=False,
        )
        deviation = float(private.standard_deviations[0])
        assert told_by_a_release(posterior, outputs, deviation) <= budget + 1e-9
        # What is booked ends at the entropy of the secret, which no number of values passes.
        assert private.total_mutual_information == pytest.approx(min((release + 1) * budget, math.log(NUM_SECRETS)))
        posterior = updated(posterior, outputs, float(private.value[0]), deviation)
    assert len(released_values(secret, tmp_path / "l.db")) == 12


@pytest.mark.parametrize("rule", ["logdet", "linear"])
def test_no_answer_of_a_responder_tells_more_than_its_price(tmp_path: Path, rule: str) -> None:
    """Single answers and batches, which are chosen at once, over several starts of the responder."""
    generator, budget = np.random.default_rng(1), 0.1
    posterior = np.full(NUM_SECRETS, 1 / NUM_SECRETS)
    secret = POOL.draw_secret(tmp_path / "s.key")
    for _ in range(3):
        with PACResponder(lambda rows: rows, secret, budget, tmp_path / "l.db", rule=rule) as responder:
            for size in (1, 3, 1):
                attackers = ["doubting"] * (size - 1) + ["halving"]
                queries = [chosen_query(posterior, attacker, generator) for attacker in attackers]
                before = responder.spent
                released = responder.release_outputs(np.array(queries, dtype=int))
                for votes, shown in zip(queries, released.values, strict=True):
                    # Two classes lie along one direction.
                    outputs, value = votes * math.sqrt(2.0), (shown[1] - shown[0] + 1.0) / math.sqrt(2.0)
                    share = float(np.clip(posterior @ votes, 2.0**-40, 1 - 2.0**-40))  # the least noise there is
                    scale = math.expm1(2 * budget) if rule == "logdet" else 2 * budget
                    deviation = math.sqrt(2 * share * (1 - share) / scale)
                    assert told_by_a_release(posterior, outputs, deviation) <= budget + 1e-9
                    posterior = updated(posterior, outputs, float(value), deviation)
                assert responder.spent <= before + size * budget + 1e-12
                # The observer's belief is the responder's, so the noise was the one above.
                assert responder.belief == pytest.approx(posterior, abs=1e-6)
    with PrivacyLedger.read_only(tmp_path / "l.db") as ledger:
        assert ledger.spent("mutual_information") <= min(15 * budget, math.log(NUM_SECRETS)) + 1e-12
