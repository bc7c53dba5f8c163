"""The audit of a private run: is it the mechanism that is accounted for, and what do its canaries show?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import override

from lightning_pac._validation import Count, OpenProbability, validated
from lightning_pac.accountants import PrivacyCurve
from lightning_pac.audits import UNSEEN, TrainingAudit, guess_coins
from lightning_pac.callbacks.canary_audit.auditable import check_loader, check_run, check_trainer
from lightning_pac.callbacks.canary_audit.draw_secrecy import draws_are_secret
from lightning_pac.callbacks.canary_audit.joined_records import JoinedRecords, check_canaries, over
from lightning_pac.callbacks.canary_audit.metric_noise import MetricNoise
from lightning_pac.callbacks.canary_audit.record_gradients import RecordGradients
from lightning_pac.callbacks.canary_audit.white_box_tests import WhiteBoxTests, declared_scale
from lightning_pac.callbacks.srpp_sgd import StepWatcher, WatchedRun, WatchedStep
from lightning_pac.cards import Estimate
from lightning_pac.data import PrivateDataLoader
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios import Poisson

__all__ = ["CanaryAudit"]


# The command line finds subclasses of a plain Dataset only, not of Dataset[Any].
@validated
class CanaryAudit(StepWatcher):
    r"""Audits a private training from the inside, and by canaries from the outside.

    It belongs to a training of its own, a twin of the real one, since it sees what stays secret there: nothing but its
    verdict may be shown. Canaries join the private records, each in or out by a secret coin (or one of two contents,
    where records are replaced). Every step is held against plain backward passes of single records.

    - *White-box tests* say whether the run is the mechanism that is accounted for: the deviation of the noise in every
      layer and its law, the clipped sum, the number of draws, their secrecy, how often a record was drawn at once, and
      the noise of the metrics that `PrivateMetrics` releases meanwhile.
    - *The canary game* says what can be told: someone who sees every step (white-box), or the trained model alone
      (black-box), guesses the coins. More right guesses than the claimed curve allows are an alarm as well, and show a
      lower limit of epsilon (`lightning_pac.audits.guess_coins`), which is an estimate.

    All alarms together are false with the stated probability at most. Neither instrument sees what no step and no
    canary shows: losses that mix the records of a batch, side channels, what happens before a record is read, and
    noise that can be foretold though its law is right. The verdict is saved beside the ledger, where
    ``lightning-pac audit training`` reads it, and is on the privacy card.

    Example::

        private = DPSGD(epsilon=3, delta=1e-5, sampling=Poisson(rate=0.01, batch_size=64))
        audit = CanaryAudit(canaries)
        Trainer(max_epochs=5, callbacks=[private, audit]).fit(module, datamodule)
        print(audit.verdict.summary())

    Args:
        canaries: Records, as the train dataset returns them; unlike the others and each other, so that they can be
            told. A hundred and more.
        others: What stands in a canary's place if its coin shows tails. The adjacency ``replace`` needs it; under
            ``zero_out`` and ``add_remove`` a canary is in or out.
        false_alarm_rate: Probability of any alarm in a run that is as declared.
        delta: Failure probability of the limits on epsilon, well below one in the number of canaries.
        num_guesses: Guesses about the coins; a fifth of them, and no fewer than 20, if left out.
        generator: Source of the coins, for tests.

    Raises:
        ValueError: If there are no canaries, or not as many others; in ``fit``, if a canary is no record.
        MisconfigurationException: In ``fit``, if the run is none that it can audit.
    """

    def __init__(
        self,
        canaries: Sequence[Any] | Dataset,  # type: ignore[type-arg]
        others: Sequence[Any] | Dataset | None = None,  # type: ignore[type-arg]
        false_alarm_rate: OpenProbability = 0.01,
        delta: OpenProbability = 1e-5,
        num_guesses: Count | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        super().__init__()
        self._canaries, self._others = _listed(canaries), None if others is None else _listed(others)
        if not self._canaries:
            raise ValueError("canaries is empty, so there is no coin to guess: give a hundred records or more.")
        if self._others is not None and len(self._others) != len(self._canaries):
            raise ValueError(
                f"others has {len(self._others)} records for {len(self._canaries)} canaries: give one for each."
            )
        self.false_alarm_rate, self.delta, self.num_guesses = false_alarm_rate, delta, num_guesses
        self._coins = (generator or secure_generator()).bernoulli(0.5, len(self._canaries))
        self._joined: JoinedRecords | None = None
        self._strategy: Any = None
        self.verdict: TrainingAudit | None = None

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_trainer(trainer)
        self.verdict = self._joined = None
        self._metrics = MetricNoise(trainer.callbacks)  # type: ignore[attr-defined]
        self._strategy = trainer.strategy
        hand_out = self._strategy.process_dataloader

        def process_dataloader(dataloader: object) -> object:
            return hand_out(self._join(trainer, dataloader) if trainer.training else dataloader)

        self._strategy.process_dataloader = process_dataloader

    @override
    def begin_run(self, run: WatchedRun, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_run(run, self._joined, self._others is not None)
        blocks = run.blocks
        self._run = run
        self._gradients = RecordGradients(run.make_copy, run.make_batch, list(blocks.names.values()), blocks.norms)
        if self._gradients.draws_at_random(self._canaries[0]):
            raise MisconfigurationException(
                "CanaryAudit: the loss of a record draws at random (dropout), so no second pass gives the "
                "gradient that was summed: audit a twin without."
            )
        self._gradients.hold_against(self._canaries[:2])
        scale, deviations = declared_scale(blocks.counts_clipped), blocks.deviations(run.running.noise_multiplier)
        layers = [
            (name, parameter.numel(), scale * deviations[blocks.block_of(name)])
            for name, parameter in pl_module.named_parameters()
            if parameter.requires_grad
        ]
        sampling = run.running.accountant.sampling
        assert isinstance(sampling, Poisson)
        assert self._joined is not None
        assert isinstance(run.loader, PrivateDataLoader)
        self._tests = WhiteBoxTests(layers, max(blocks.norms), len(self._joined), sampling.rate)
        self._num_parameters = sum(size for _, size, _ in layers)
        self._scores = np.zeros(len(self._canaries))
        self._secret = draws_are_secret(run.loader)

    @override
    def see_step(self, step: WatchedStep, pl_module: pl.LightningModule) -> None:
        assert self._joined is not None
        if step.has_public_terms:
            raise MisconfigurationException(
                "CanaryAudit: the loss has terms that no record enters (a penalty on the weights), which single passes "
                "cannot tell from a record's own: audit a twin without, or give the optimizer weight_decay."
            )
        self._gradients.follow(pl_module)
        whole = torch.zeros(self._num_parameters, dtype=torch.float64)
        without_canaries, every_index = whole.clone(), list[int]()
        for batch, indices in step.batches:
            start = 0
            for rows in self._gradients.of_rows(batch, len(indices)):
                is_canary = torch.tensor([self._joined.is_canary(index) for index in indices[start:][: len(rows)]])
                whole += rows.sum(dim=0)
                without_canaries += rows[~is_canary].sum(dim=0)
                start += len(rows)
            every_index += indices
        released = step.released[: self._num_parameters].cpu().double()
        self._tests.see(every_index, step.clipped_sum[: self._num_parameters].cpu().double(), whole, released)
        # What the drawn records add is known to the strongest attacker, but for the canaries.
        residual = released - without_canaries
        self._scores += self._projections(self._canaries, residual)
        if self._others is not None:
            self._scores -= self._projections(self._others, residual)

    @override
    def end_run(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._tests.num_steps:
            rank_zero_warn("CanaryAudit saw no step of the run, so it has no verdict.")
            return
        self._gradients.follow(pl_module)
        gains = -np.array(self._gradients.losses(self._canaries))
        if self._others is not None:
            gains += np.array(self._gradients.losses(self._others))
        curve = self._claim()
        games = tuple(
            guess_coins(attacker, scores, self._coins, curve, self.num_guesses, self.delta)
            for attacker, scores in (("white-box", self._scores), ("black-box", gains))
        )
        tests = (*self._tests.tests(self._secret), *self._metrics.tests())
        self.verdict = TrainingAudit(tests, games, self.false_alarm_rate)
        self.verdict.save(TrainingAudit.path_beside(self._run.ledger, self._run.account))
        tell = rank_zero_warn if self.verdict.alarms else rank_zero_info
        tell(f"CanaryAudit: {self.verdict.summary()}")

    @override
    def estimates(self) -> tuple[Estimate, ...]:
        return () if self.verdict is None else self.verdict.to_estimates()

    @override
    def conditions(self) -> tuple[str, ...]:
        watched = "CanaryAudit saw the sums and draws of this run, and its verdict is not covered by the figures above."
        found = () if self.verdict is None or not self.verdict.alarms else (self.verdict.summary(),)
        return (*found, watched, UNSEEN)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._leave_loaders()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._leave_loaders()

    def _leave_loaders(self) -> None:
        if self._strategy is not None:
            self._strategy.__dict__.pop("process_dataloader", None)
            self._strategy = None
            self._metrics.close()

    def _join(self, trainer: pl.Trainer, loader: object) -> object:
        """The train loader over the records and the canaries that their coins put among them."""
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return loader  # which the private run refuses
        check_loader(trainer, loader)
        dataset: Any = loader.dataset
        check_canaries("canaries", self._canaries, dataset[0])
        check_canaries("others", self._others or [], dataset[0])
        self._joined = JoinedRecords(dataset, self._canaries, self._others, self._coins.tolist())
        return over(self._joined, loader)

    def _projections(self, records: Sequence[Any], residual: Tensor) -> np.ndarray[Any, Any]:
        """How far a residual points along the gradient of each record."""
        return torch.cat([rows @ residual for rows in self._gradients.of_records(records)]).numpy()

    def _claim(self) -> PrivacyCurve:
        """What is claimed of one record, to which each coin belongs, after all steps."""
        running = self._run.running
        one = replace(running.accountant.scenario, num_differing=1, share_differing=None)
        accountant = replace(running.accountant, scenario=one, notion="rpp", slices=None)
        return accountant.curve_of_units(running.noise_multiplier, accountant.units(list(running.stretches)))


def _listed(records: Any) -> list[Any]:
    return [records[number] for number in range(len(records))]
