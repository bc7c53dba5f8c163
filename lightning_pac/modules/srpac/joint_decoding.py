"""A decoder of everything that several mechanisms release about one secret."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from lightning_pac._validation import Confidence, Count, Draws, Positive, validated
from lightning_pac.audits import DecoderLeakage
from lightning_pac.mechanisms import JointRelease
from lightning_pac.modules.srpac.decoders import Decoder, PosteriorDecoder
from lightning_pac.modules.srpac.perturbations import FixedNoise
from lightning_pac.modules.srpac.secret_table import SecretTable
from lightning_pac.modules.srpac.stackelberg_round import StackelbergPlay

__all__ = ["JointDecoding"]

_STEPS_PER_EPOCH = 100


@validated
class JointDecoding(pl.LightningModule):
    r"""Train one decoder on all releases of a `JointRelease` side by side, and see what it finds.

    Its cross-entropy on fresh releases, $E[-\ln \pi(S \mid R_1, \dots, R_k)]$, is never below the conditional entropy
    of the secret. So `leakage` is a lower bound on what the releases tell together, to set beside the proven upper
    bounds `JointRelease.composed` and `JointRelease.certify`. It can refute a claim and never prove one.

    Logged: `srpac/decoder_cross_entropy` each step, and each epoch `srpac/leakage_lower_bound` and
    `srpac/leakage_estimate`.

    Args:
        joint: The certified mechanisms.
        decoder: Of `joint.dimension` numbers; None for the posterior itself, the best decoder there is, which needs no
            training.
        features: What a record or membership decoder decodes, for each value of the secret, shape (m, p).
        lr: Learning rate of the decoder.
        batch_size: Releases in a step.

    Raises:
        ValueError: If the decoder's support misses the secrets, or it needs features and there are none.

    Source: *Residual-PAC*, section 5.4.

    Example:
        >>> from lightning_pac.mechanisms import FiniteOutputs, MixtureNoise, certify_mechanism
        >>> law, unit = FiniteOutputs(np.array([[-1.0], [1.0]])), MixtureNoise.gaussian([[1.0]])
        >>> joint = JointRelease([certify_mechanism(unit, law, 0.3, secret="One bit.")] * 2)
        >>> found = JointDecoding(joint).leakage()
        >>> 0.3 < found.lower_bound < joint.certify().mutual_information < joint.composed.mutual_information
        True
    """

    def __init__(
        self,
        joint: JointRelease,
        decoder: Decoder | None = None,
        *,
        features: Tensor | None = None,
        lr: Positive = 3e-3,
        batch_size: Count = 256,
    ) -> None:
        super().__init__()
        self.table = SecretTable(
            torch.from_numpy(joint.outputs), torch.from_numpy(joint.weights), features, joint.secret
        )
        noise = FixedNoise(joint.noise)
        if decoder is None:
            decoder = PosteriorDecoder(self.table.get_buffer("outputs"), noise, torch.from_numpy(joint.weights))
        self.play = StackelbergPlay(decoder, noise, joint.composed.mutual_information)
        self.lr, self.batch_size = lr, batch_size
        candidates = self.table.candidates(decoder.decodes)
        size = len(decoder.get_buffer("centre"))
        if size != joint.dimension:
            raise ValueError(
                f"decoder reads releases of {size} numbers, and all releases together have {joint.dimension}: make it "
                "with release_size=joint.dimension."
            )
        if not decoder.covers(candidates):
            raise ValueError(
                f"The support of {type(decoder).__name__} misses the data: some secrets are outside of what it gives "
                "any probability, so its cross-entropy is infinite."
            )
        deviations = torch.from_numpy(np.sqrt(np.diag(joint.noise.second_moment()))).float()
        decoder.standardize(self.table.get_buffer("outputs"), candidates.float(), deviations)

    @override
    def configure_optimizers(self) -> Any:
        if not self.play.trains_decoder:
            raise MisconfigurationException(
                f"{type(self.play.decoder).__name__} has nothing to train: call leakage() without fitting."
            )
        return torch.optim.Adam(self.play.decoder.parameters(), lr=self.lr)

    @override
    def train_dataloader(self) -> Any:
        # Secrets and noise are drawn in the step; the loader only counts the steps of an epoch.
        return DataLoader(TensorDataset(torch.arange(_STEPS_PER_EPOCH)), batch_size=1)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        drawn = self.table.draw(self.batch_size)
        secrets = self.table.candidates(self.play.decoder.decodes)[drawn]
        loss = self.play.decoder_loss(secrets, self.table.get_buffer("outputs")[drawn])
        self.log("srpac/decoder_cross_entropy", loss, prog_bar=True, batch_size=1)
        return loss

    @override
    def on_train_epoch_end(self) -> None:
        found = self.leakage(2048)
        self.log("srpac/leakage_lower_bound", found.lower_bound)
        self.log("srpac/leakage_estimate", found.estimate)

    def leakage(self, num_draws: Draws = 2**14, confidence: Confidence = 0.99) -> DecoderLeakage:
        """A lower bound on what all releases tell together, from fresh releases that the decoder has not seen.

        Args:
            num_draws: Fresh releases of each mechanism.
            confidence: Of the lower bound.
        """
        return self.play.leakage(self.table, num_draws, confidence)
