"""SR-PAC as a LightningModule."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from lightning_pac._validation import Confidence, Count, Draws, Natural, NonNegative, Positive, validated
from lightning_pac.audits import DecoderLeakage
from lightning_pac.data.with_index import batch_inputs
from lightning_pac.mechanisms import OutputLaw, ReleasedMechanism
from lightning_pac.modules.srpac.decoders import Decoder
from lightning_pac.modules.srpac.perturbations import Perturbation
from lightning_pac.modules.srpac.secret_table import SecretTable
from lightning_pac.modules.srpac.stackelberg_round import Penalty, StackelbergPlay
from lightning_pac.randomness import SecureGenerator

__all__ = ["StackelbergGame"]

_STEPS_PER_EPOCH = 100


class _StepCount(TensorDataset):
    """Stands for the steps of an epoch where the mechanism is a table."""


@validated
class StackelbergGame(pl.LightningModule):
    r"""Train the shape of noise against a decoder that tries to find the secret in the release, then certify it.

    The leader minimizes $E\,K(B)$ subject to the follower's cross-entropy $E[-\ln \pi(X \mid M(X) + B)]$ being at
    least $H(X) - b$. A cross-entropy bounds the conditional entropy from above only: a follower that fits badly makes
    any noise look private. So training chooses a shape, and `certify` proves a bound without the decoder.

    What the secret is depends on the mechanism:

    - A `SecretTable`: which of m values, for instance of m training sets. `trainer.fit(game)`.
    - Anything else is a function of a batch of input records, and the secret is which record of the training dataset
      the release was computed from, all equally likely. `trainer.fit(game, datamodule)`. The mechanism is not trained.

    Logged: `srpac/decoder_cross_entropy` and `srpac/noise_power` each step, `srpac/leakage_lower_bound` and
    `srpac/leakage_estimate` each epoch (what the decoder finds: they can refute a claim and never prove one), and
    `privacy/mutual_information_certified` by `certify`.

    Args:
        mechanism: A `SecretTable`, or a module or function from a batch of records to outputs (batch, d).
        decoder: The follower.
        perturbation: The leader's noise.
        budget: Mutual information b in nats for one release.
        utility: What noise costs, a function of draws (n, d); the squared length if None.
        penalty: `"one_sided"` (Algorithm 6) or `"two_sided"` (Algorithm 2).
        penalty_weight: Of the squared miss of the constraint.
        margin: Nats added to the conditional entropy asked for.
        decoder_period: T_phi: after so many steps of the leader the follower makes as many.
        warmup_steps: Steps in which only the follower learns.
        decoder_lr: Its learning rate.
        noise_lr: The leader's learning rate.
        batch_size: Secrets in a step, where the mechanism is a table.
        secret: One sentence for the card, where the mechanism is a function of records.

    Raises:
        ValueError: If the budget is not positive.

    Source: *Residual-PAC*, Algorithms 2 and 6; the certificate is ours.

    Example:
        >>> from lightning_pac.modules import FullGaussian, SecretTable, SoftmaxDecoder
        >>> table = SecretTable(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]))
        >>> game = StackelbergGame(table, SoftmaxDecoder(2, 3), FullGaussian(2), budget=0.5)
        >>> released = game.certify(confidence=0.99)
        >>> released.mutual_information <= 0.5
        True
    """

    def __init__(
        self,
        mechanism: SecretTable | nn.Module | Callable[[Any], Tensor],
        decoder: Decoder,
        perturbation: Perturbation,
        budget: Positive,
        *,
        utility: Callable[[Tensor], Tensor] | None = None,
        penalty: Penalty = "one_sided",
        penalty_weight: Positive = 100.0,
        margin: NonNegative = 0.0,
        decoder_period: Count = 5,
        warmup_steps: Natural = 50,
        decoder_lr: Positive = 3e-3,
        noise_lr: Positive = 2e-2,
        batch_size: Count = 256,
        secret: str = "Which record of the pool a release was computed from.",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.play = StackelbergPlay(decoder, perturbation, budget, utility, penalty, penalty_weight, margin)
        self.table = mechanism if isinstance(mechanism, SecretTable) else None
        self.mechanism = None if self.table is not None else mechanism
        self.decoder_period, self.warmup_steps, self.batch_size = decoder_period, warmup_steps, batch_size
        self.decoder_lr, self.noise_lr, self.secret = decoder_lr, noise_lr, secret
        self.num_steps = 0

    @override
    def configure_optimizers(self) -> Any:
        leader = torch.optim.Adam(self.play.perturbation.parameters(), lr=self.noise_lr)
        if not self.play.trains_decoder:
            return [leader]
        return [leader, torch.optim.Adam(self.play.decoder.parameters(), lr=self.decoder_lr)]

    @override
    def train_dataloader(self) -> Any:
        # Which secrets a step plays is drawn in the step; the loader only counts the steps of an epoch.
        return DataLoader(_StepCount(torch.arange(_STEPS_PER_EPOCH)), batch_size=1)

    @override
    def on_train_start(self) -> None:
        self.adopt(self._known_table() if self.mechanism is None else self.tabulate(self.trainer.train_dataloader))

    @override
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        players = optimizers if isinstance(optimizers, list) else [optimizers]
        metrics = self.advance(batch, players, self.manual_backward)
        for name, value in metrics.items():
            self.log(name, value, prog_bar=name == "srpac/decoder_cross_entropy", batch_size=1)

    def adopt(self, table: SecretTable) -> None:
        """Play with this table; the first one also sets the size that the noise starts from."""
        table.to(self.device)
        if not bool(torch.isfinite(self.play.get_buffer("entropy"))):
            self.play.prepare(table)
        self.table = table

    def advance(
        self, batch: Any, optimizers: Sequence[Any], backward: Callable[[Tensor], Any] = Tensor.backward
    ) -> dict[str, Tensor]:
        """One step of the leader and, when it is their turn, the steps of the follower.

        Args:
            batch: Records; unused where the mechanism is a table.
            optimizers: The leader's, then the follower's if it has one.
            backward: Computes the gradients of a loss.

        Returns:
            Metrics of the step.

        Raises:
            ValueError: If the follower gives the secret no probability.
        """
        if not optimizers or not all(hasattr(optimizer, "zero_grad") for optimizer in optimizers):
            raise TypeError("optimizers must be the leader's, and the follower's if it has one.")
        secrets, outputs = self._draw(batch)
        leader, *followers = optimizers
        warming = bool(followers) and self.num_steps < self.warmup_steps
        if followers and (warming or self.num_steps % self.decoder_period == 0):
            # On the secrets of one step, with fresh noise each time.
            for _ in range(1 if warming else self.decoder_period):
                _minimize(followers[0], self.play.decoder_loss(secrets, outputs), backward)
        loss, cross_entropy = self.play.leader_loss(secrets, outputs)
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"The follower's cross-entropy is {cross_entropy.item()}: the support of "
                f"{type(self.play.decoder).__name__} misses the data, or training diverged."
            )
        if not warming:
            _minimize(leader, loss, backward)
        self.num_steps += 1
        return {
            "srpac/decoder_cross_entropy": cross_entropy.detach(),
            "srpac/noise_power": self.play.perturbation.power().detach(),
        }

    @override
    def on_train_epoch_end(self) -> None:
        found = self.leakage()
        self.log("srpac/leakage_lower_bound", found.lower_bound)
        self.log("srpac/leakage_estimate", found.estimate)

    def leakage(self, num_draws: Draws = 2048, confidence: Confidence = 0.99) -> DecoderLeakage:
        """A lower bound on what one release tells, from fresh releases that the decoder has not seen.

        Args:
            num_draws: Releases to evaluate.
            confidence: Probability that the bound holds.
        """
        return self.play.leakage(self._known_table(), num_draws, confidence)

    def certify(
        self,
        confidence: Confidence = 0.99,
        law: OutputLaw | None = None,
        num_draws: Draws = 2**17,
        generator: SecureGenerator | None = None,
    ) -> ReleasedMechanism:
        """Scale the noise until a proven upper bound meets the budget.

        The decoder plays no part. The log-det rule's shape is certified too, and the cheaper noise is returned.

        Args:
            confidence: Probability that the bound holds.
            law: What is known of the outputs: `BoundedOutputs` or `KnownMoments` for records from outside of the pool.
                None takes the finite table of the secret, for which alone the release is then allowed.
            num_draws: Draws of each sample that chooses or certifies.
            generator: Source of the draws, the process-wide secure generator if None.

        Raises:
            ValueError: If the budget reaches the entropy of the output, or the game was not fitted and has no table.
        """
        table = None if law is not None else self._known_table()
        covered = law if table is None else table.law
        assert covered is not None
        released = self.play.certify(
            covered, self.secret if self.table is None else self.table.secret, confidence, num_draws, generator
        )
        trainer = self._trainer
        for logger in [] if trainer is None else trainer.loggers:
            logger.log_metrics(
                {"privacy/mutual_information_certified": released.mutual_information}, step=self.num_steps
            )
        return released

    def tabulate(self, loader: Any) -> SecretTable:
        """The table of a loader's records under the mechanism as it is now.

        Args:
            loader: One DataLoader of the records.

        Raises:
            MisconfigurationException: If it is not one DataLoader of records.
        """
        mechanism = self.mechanism
        assert mechanism is not None
        # Not refused in `train_dataloader`: Lightning leaves DataLoader patched when that raises.
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, _StepCount):
            raise MisconfigurationException(
                "The secret is each input record, so the game needs the records: pass trainer.fit a datamodule or a "
                "loader, or make the game with a SecretTable."
            )
        if not isinstance(loader, DataLoader):
            raise MisconfigurationException(
                f"The game needs one DataLoader of records, got {type(loader).__name__}: pass trainer.fit a single one."
            )

        def outputs(inputs: Any) -> Tensor:
            return mechanism(inputs.to(self.device) if isinstance(inputs, Tensor) else inputs)

        with _evaluating(mechanism):
            return SecretTable.of_records(outputs, loader, self.secret)

    def _draw(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Secrets and outputs of one step: drawn from the table, or the records of the batch."""
        table = self._known_table()
        candidates = table.candidates(self.play.decoder.decodes)
        if self.mechanism is None:
            drawn = table.draw(self.batch_size)
            return candidates[drawn], table.get_buffer("outputs")[drawn]
        positions = table.indices_of(batch)
        if positions is not None:
            drawn = positions.to(self.device)
            return candidates[drawn], table.get_buffer("outputs")[drawn]
        if self.play.decoder.decodes == "index":
            raise MisconfigurationException(
                f"{type(self.play.decoder).__name__} names the record, and the batches do not say which records they "
                "hold: wrap the training dataset in WithIndex."
            )
        inputs = batch_inputs(batch)
        with torch.no_grad(), _evaluating(self.mechanism):
            return inputs.flatten(1).float(), self.mechanism(inputs)

    def _known_table(self) -> SecretTable:
        if self.table is None:
            raise ValueError(
                "The game does not know the pool of records: fit it first, or give certify the law of the outputs."
            )
        return self.table


def _minimize(optimizer: Any, loss: Tensor, backward: Callable[[Tensor], Any]) -> None:
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


@contextlib.contextmanager
def _evaluating(mechanism: Any) -> Any:
    """The mechanism as it is at inference, which is what is released."""
    modules = [module for module in mechanism.modules() if module.training] if isinstance(mechanism, nn.Module) else []
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module in modules:
            module.training = True
