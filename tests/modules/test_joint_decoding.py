"""A decoder of several releases: its lower bound stays below the truth, which is below the proven bounds."""

import math
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_pac.audits import DecoderLeakage
from lightning_pac.mechanisms import (
    Certificate,
    Composed,
    FiniteOutputs,
    JointRelease,
    MixtureNoise,
    ReleasedMechanism,
    certify_noise,
)
from lightning_pac.mechanisms.certified.certificate import two_point_information
from lightning_pac.modules import JointDecoding, MembershipDecoder, SoftmaxDecoder

SECRET = "Which of the possible values it is."
ROWS = torch.randn(8, 3, generator=torch.Generator().manual_seed(4)).numpy().astype(float)


@pytest.fixture(autouse=True)
def _fixed_start():
    torch.manual_seed(0)


def mechanism(rows: Any, variance: float = 1.0) -> ReleasedMechanism:
    """One with noise of a given variance and its own certificate."""
    table = np.asarray(rows, dtype=float)
    noise = MixtureNoise.gaussian(variance * np.eye(table.shape[1]))
    proof = certify_noise(table, noise, num_draws=2**14)
    return ReleasedMechanism(noise, proof, FiniteOutputs(table), SECRET)


def fit(decoding: JointDecoding, max_epochs: int = 4) -> JointDecoding:
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(decoding)
    assert {"srpac/decoder_cross_entropy", "srpac/leakage_lower_bound", "srpac/leakage_estimate"} <= set(
        trainer.callback_metrics
    )
    return decoding


def test_the_posterior_finds_what_two_equal_answers_tell():
    """Quadrature: two answers at distance 2 are one at distance 2 sqrt 2."""
    joint = JointRelease([mechanism([[-1.0], [1.0]])] * 2)
    truth = two_point_information(math.sqrt(8), 0.5)
    found = JointDecoding(joint).leakage(40_000)
    assert isinstance(found, DecoderLeakage)
    # Six standard errors of 40,000 draws in [0, ln 2], and what mixing with the prior costs.
    assert abs(found.estimate - truth) < 6 * math.log(2) / 200 + 0.01
    assert found.lower_bound < truth
    single = joint.mechanisms[0].mutual_information
    assert single < found.lower_bound
    proven = joint.certify()
    assert isinstance(proven, Composed)
    assert found.lower_bound < proven.mutual_information == pytest.approx(truth)
    assert proven.mutual_information < joint.composed.mutual_information == pytest.approx(2 * single)


def test_a_trained_decoder_of_both_finds_more_than_either_tells():
    joint = JointRelease([mechanism(ROWS[:, :2], 0.5), mechanism(ROWS[:, 1:], 0.5)])
    decoding = fit(JointDecoding(joint, SoftmaxDecoder(4, 8), lr=1e-2))
    found = decoding.leakage()
    truth = joint.certify(num_draws=2**16)
    assert max(one.mutual_information for one in joint.mechanisms) < found.lower_bound
    assert 0.85 * truth.mutual_information < found.estimate
    assert found.lower_bound < truth.mutual_information < joint.composed.mutual_information


def test_an_untrained_decoder_says_nothing_that_is_not_so():
    """It finds less than nothing, and the proven bounds are what they were."""
    joint = JointRelease([mechanism(ROWS), mechanism(ROWS)])
    decoder = SoftmaxDecoder(6, 8)
    decoder.network[-1].weight.data *= 40  # type: ignore[union-attr,operator]
    found = JointDecoding(joint, decoder).leakage()
    assert found.estimate < 0
    assert joint.certify(num_draws=2**14).mutual_information > 0.3


def test_a_bound_that_leaves_out_what_answers_share_is_refuted():
    """Broken on purpose: certificates at half of what each answer tells."""
    honest = mechanism([[-1.0], [1.0]])
    claimed = Certificate(honest.mutual_information / 4, 1.0, "quadrature")
    broken = ReleasedMechanism(honest.noise, claimed, honest.law, SECRET)
    joint = JointRelease([broken, broken])
    assert JointDecoding(joint).leakage().lower_bound > joint.composed.mutual_information


def test_membership_bits_are_decoded_from_all_releases():
    bits = torch.tensor(np.random.default_rng(5).permuted(np.tile([0.0, 1.0], (12, 3)), axis=1)).float()
    outputs = (bits @ torch.randn(6, 2)).numpy()
    joint = JointRelease([mechanism(outputs[:, [0]]), mechanism(outputs[:, [1]])])
    decoding = fit(JointDecoding(joint, MembershipDecoder(2, 6), features=bits), 1)
    assert decoding.leakage().lower_bound < joint.certify(num_draws=2**14).mutual_information


def test_what_does_not_fit_together_is_refused():
    joint = JointRelease([mechanism(ROWS), mechanism(ROWS[:, :1])])
    with pytest.raises(MisconfigurationException, match="PosteriorDecoder has nothing to train"):
        fit(JointDecoding(joint))
    with pytest.raises(ValueError, match="all releases together have 4"):
        JointDecoding(joint, SoftmaxDecoder(3, 8))
    with pytest.raises(ValueError, match="The support of SoftmaxDecoder misses the data"):
        JointDecoding(joint, SoftmaxDecoder(4, 7))
    with pytest.raises(ValueError, match="of which SecretTable was given none"):
        JointDecoding(joint, MembershipDecoder(4, 6))
    with pytest.raises(ValueError, match=r"lr is 0.0, but must be positive"):
        JointDecoding(joint, lr=0.0)
