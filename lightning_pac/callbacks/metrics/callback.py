"""Validation and test metrics with noise, charged like any other release."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from lightning_pac._validation import Noise, validated
from lightning_pac.accountants import Allowance, PrivacyEvent, one_promise, share_terms
from lightning_pac.callbacks.metrics import metric_account
from lightning_pac.callbacks.metrics.asked_rows import MIXED, SOMETIMES, TRAINED, AskedRows
from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords, guard_evaluation
from lightning_pac.callbacks.metrics.kept_values import changed_values, small_values
from lightning_pac.callbacks.metrics.logged_names import LoggedNames, check_names, names_in
from lightning_pac.callbacks.metrics.metric_memory import unsuited_states, why_not_watched
from lightning_pac.callbacks.metrics.noise_of_value import log_beside, tell_values
from lightning_pac.callbacks.metrics.noised_metric import LARGEST_VALUE, PrivateMetric
from lightning_pac.callbacks.shared import (
    HiddenRandomness,
    TrainerCallback,
    check_path,
    fitting_argument,
    order_in,
    refuse_searches,
    watch_logging,
)
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerAccount, LedgerArgument, LedgerHandle
from lightning_pac.randomness import finite_precision
from lightning_pac.scenarios import TwoWorldScenario
from lightning_pac.strategies import Ranks

__all__ = ["PrivateMetrics"]


@validated
class PrivateMetrics(TrainerCallback):
    r"""Replaces logged metrics of private data by noised ones.

    A metric of private records that reaches a logger, a checkpoint's file name or early stopping is a release, and an
    exact one has no price. The metrics named here are computed from sums to which each record adds at most
    `max_contribution`, with Gaussian noise; one value costs

    .. math:: \varepsilon = \frac{a \kappa^2 d^2}{2 \sigma^2}

    at order a, for d differing records among those that are evaluated (worst case and unsliced). Monitors see the
    noised value, so early stopping and model selection on it are free. Once the budget is spent, the last value is
    repeated, with a warning. An estimate of the noise's standard deviation in a value is logged as ``NAME_deviation``,
    and for metrics that count records that of its standard error, the choice of records included, as
    ``NAME_standard_error``; the last of each name are in `deviations` and `standard_errors`.

    On several devices each rank evaluates its own records, none of them twice; rank zero, which alone has the ledger,
    adds up the sums and noises them once, and every rank sees that value.

    Note:
        Log the torchmetrics object itself, ``self.log("val/accuracy", self.accuracy)``, once an epoch, updated with one
        row a record; synthetic records test, on a copy of the model, that no record decides two rows. Each record is
        evaluated on its own, which takes about half a millisecond a record and metric. Others stay as they are.

    Example::

        scenario = TwoWorldScenario(num_differing=10)
        metrics = PrivateMetrics(["val/accuracy"], scenario, epsilon=0.05, renyi_order=16, ledger="study.db")
        trainer = Trainer(callbacks=[SRPPSGD(scenario, epsilon=8.0, renyi_order=16, ledger="study.db"), metrics])

    Args:
        names: Names under which ``validation_step`` and ``test_step`` log torchmetrics.
        scenario: The two worlds, as in training; d counts all records that differ.
        epsilon: Cost of one value of one metric, in nats, with `delta` or with `renyi_order`.
        renyi_order: Order at which epsilon is promised, above 1. With a bound on guessing or `noise_multiplier` it only
            says at which order the ledger counts; left out, that is the order it counts at already, or 16.
        max_contribution: Largest value in a mean, or norm of what a record adds to other sums; counts set their own.
        budget: What all values of these names may cost together at any epsilon; None for the ledger's own budget.
        ledger: Where values are charged before they are computed, a ledger or its path.
        delta: Probability, in (0, 1), with which the epsilon of one value may fail.
        world_success_bound: How often someone who sees one value may guess the right world, in place of epsilon.
        prior: Probability of one of the worlds before anything is released, for `world_success_bound`.
        noise_multiplier: Noise deviation on the sums over the most that a record adds, in place of a promise, as
            `lightning-pac plan` states it.

    Raises:
        ValueError: If an argument is out of range, or not exactly one promise or `noise_multiplier` is given.
        MisconfigurationException: In an evaluation, if a named metric has no bound on what a record adds to it, or
            loaders may deliver a record more than once.
        BudgetExceededError: When a run begins, or `Trainer.validate` or `Trainer.test`, for which too little is left.
    """

    def __init__(
        self,
        names: Sequence[str],
        scenario: TwoWorldScenario,
        epsilon: float | None = None,
        renyi_order: float | None = None,
        max_contribution: float = 1.0,
        budget: float | None = None,
        ledger: LedgerArgument | None = None,
        delta: float | None = None,
        world_success_bound: float | None = None,
        prior: float = 0.5,
        noise_multiplier: Noise | None = None,
    ) -> None:
        super().__init__()
        self.epsilon, self.delta, self.renyi_order = epsilon, delta, renyi_order
        self.world_success_bound, self.prior, self._given_noise = world_success_bound, prior, noise_multiplier
        check_names(names)
        if ledger is None:
            raise ValueError(
                "ledger is None, but values are charged before they are shown: pass that of the training, or another."
            )
        if not 1e-100 <= max_contribution <= 1e100:  # squares of contributions must not vanish
            raise ValueError(f"max_contribution is {max_contribution}, but must lie between 1e-100 and 1e100.")
        self.names = self.noised_names = tuple(dict.fromkeys(names))
        self.scenario, self.max_contribution = scenario, max_contribution
        self.promise = one_promise(self, noise_multiplier)
        self.noise_multiplier = metric_account.noise_of_value(
            metric_account.accountant_of_value(scenario, renyi_order), self.promise, epsilon, noise_multiplier
        )
        self._budget = budget
        self.ledger = LedgerHandle(ledger)
        self._cost = math.nan  # which it has once the ledger says at which order it counts
        self._account: LedgerAccount | None = None
        self._allowance: Allowance | None = None
        self._spent: float | None = None
        self._private: dict[str, PrivateMetric] = {}
        self.deviations: dict[str, float] = {}
        self.standard_errors: dict[str, float] = {}
        self._last: dict[str, Any] = {}
        # Metrics that were found to be private, in validation and, under True, in tests; and where all have been found.
        self._known: dict[bool, set[str]] = {False: set(), True: set()}
        self._complete: set[bool] = set()
        self.asked = AskedRows()
        self._raw: set[str] = set()  # names of values without noise that were warned of
        self._kept: dict[str, Tensor] = {}
        self._undo_evaluation: list[Callable[[], None]] = []
        self._logged = LoggedNames(self.names)
        self._is_open = False
        self._delivered: DeliveredRecords | None = None
        self._undo: list[Callable[[], None]] = []
        self._show_noise: Callable[[str, Tensor], None] | None = None

    def show_noise(self, watcher: Callable[[str, Tensor], None] | None) -> None:
        """Let an audit see the noise of every release, by the metric's name; None for nobody."""
        self._show_noise = watcher

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        refuse_searches(trainer, self, stage)
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if sum(isinstance(callback, PrivateMetrics) for callback in callbacks) > 1:
            raise MisconfigurationException(
                "The Trainer has two PrivateMetrics, and each would noise what the other shows: name all metrics in "
                "one."
            )
        metric_account.declare_ledger(self.ledger, callbacks)
        self._known, self._complete = {False: set(), True: set()}, set()
        self.asked.forget()
        if stage == "fit":
            self._logged.forget()
        if stage != "predict":
            self._undo.append(guard_evaluation(trainer))

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        def see(name: str, value: Any, options: Mapping[str, Any]) -> None:
            if trainer.training and name in self.names:
                raise MisconfigurationException(
                    f"{name!r} is logged while training, where PrivateMetrics noises nothing: log it in "
                    "validation_step or test_step, and what is logged in training under another name."
                )

        self._undo.append(watch_logging(trainer, see))
        self.asked.note_beginning(trainer, pl_module)
        self._open_affordable(trainer, Ranks.of(trainer))

    @override
    def planned_cost(self, ledger: Path, ranks: Ranks) -> float:
        self._open(ranks)  # which all ranks do together, whatever their paths
        is_same = self.ledger.path.resolve() == ledger.resolve()
        return self._logged.num_values() * self._cost if is_same else 0.0

    def planned_events(self) -> tuple[PrivacyEvent, ...]:
        """The values of one validation, as the share of a plan that pays for them is stated."""
        accountant = metric_account.accountant_of_value(self.scenario, self.renyi_order)
        return accountant.events(self.noise_multiplier, max(1, len(names_in(self.names, testing=False))))

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)

    on_test_start = on_validation_start

    @override
    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._records().begin_batch(batch_idx, dataloader_idx)

    on_test_batch_start = on_validation_batch_start

    @override
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_batches()

    on_test_epoch_end = on_validation_epoch_end

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end(trainer, pl_module)

    on_test_end = on_validation_end

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release_resources()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release_resources()

    def _release_resources(self) -> None:
        self._restore()
        while self._undo:
            self._undo.pop()()
        self.ledger.close()
        self._account, self._allowance, self._is_open = None, None, False

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ranks = Ranks.of(trainer)
        self._logged.begin()
        self._hidden_randomness = HiddenRandomness()
        self._undo_evaluation.append(self._hidden_randomness.restore)
        if trainer.state.fn == TrainerFn.FITTING or self._last:  # which has been told, or has a value to repeat
            self._open(ranks)
        else:
            self._open_affordable(trainer, ranks)
        self._delivered = ranks.together(lambda: DeliveredRecords.of(trainer, self.scenario.adjacency))
        self._kept = {} if self._delivered.in_trial else small_values(pl_module)
        for module in pl_module.modules():
            if isinstance(module, MetricCollection):
                # Metrics of one group share states and updates behind their own backs.
                module._enable_compute_groups = False
                module._groups_checked = False
        rows = self.asked.before(trainer, pl_module, self._delivered, self.names, self.scenario, ranks)
        shown = {rows.logged[name] for name in self.names if name in rows.logged}
        known = self._known[trainer.testing]
        about = trainer, pl_module, self._delivered, self.names, self._private
        for name, metric in pl_module.named_modules():
            if not isinstance(metric, Metric) or (trainer.testing in self._complete and name not in known):
                continue
            if metric._defaults and not unsuited_states(metric):
                charge = (lambda: False) if self._delivered.in_trial else partial(self._charge, name)
                private = PrivateMetric(
                    metric, self.max_contribution, self.noise_multiplier, charge, self._delivered, ranks, name
                )
                private.before_release = partial(self.asked.refuse_left_out, *about)
                private.show_noise, private.last = self._show_noise, self._last.get(name)
                private.is_private = name in known or name in shown
                for names, told in ((rows.sometimes, SOMETIMES), (rows.trained, TRAINED), (rows.mixed, MIXED)):
                    if name in names:
                        private.refuse(*told)
                self._private[name] = private
        self._undo_evaluation.append(watch_logging(trainer, self._make_private))

    def _open(self, ranks: Ranks) -> None:
        if not self._is_open:
            check_path(self.ledger.given, ranks)
            ranks.agree(self._own_declaration)
            ranks.from_first(self._open_account)
            self._is_open = True

    def _open_affordable(self, trainer: pl.Trainer, ranks: Ranks) -> None:
        self._open(ranks)
        terms = self.ledger, self._account, self._allowance, self._logged, self._cost, self._fitting
        ranks.from_first(lambda: metric_account.check_affordable(trainer, *terms))

    def _make_private(self, name: str, value: Any, options: Mapping[str, Any]) -> None:
        if not name.startswith("privacy/"):
            self._logged.note(name, value, self._records().loaders)
        if name in self.names:
            if not isinstance(value, Metric):
                raise MisconfigurationException(
                    f"{name!r} is logged as {type(value).__name__}, from which no record's share can be told: log the "
                    "torchmetrics object itself, once an epoch."
                )
            if options.get("on_step"):
                raise MisconfigurationException(f"{name!r} is logged at every step, each a release: log it on_epoch.")
            self._find(name, value).make_private(name)
            self.asked.tell_if_unasked(name)
        elif name not in self._raw and not name.startswith("privacy/"):
            self._raw.add(name)
            rank_zero_warn(
                f"PrivateMetrics: {name!r} is logged from the records that are evaluated, without noise. Unless it is "
                "made of noised values alone, nothing covers it or what is chosen by it: add it to the names of "
                "PrivateMetrics, or log it where the data may be seen."
            )

    def _find(self, name: str, metric: Metric) -> PrivateMetric:
        for private in self._private.values():
            if private.metric is metric:
                return private
        raise MisconfigurationException(why_not_watched(name, metric))

    def _end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last |= {name: private.last for name, private in self._private.items() if private.is_private}
        private = self._private.values()
        self.deviations |= log_beside(trainer, "deviation", {p.logged_as: p.deviation for p in private})
        self.standard_errors |= log_beside(trainer, "standard_error", {p.logged_as: p.standard_error for p in private})
        values = {p.logged_as: (p.last, p.standard_error, p.deviation) for p in private}
        tell_values(trainer, values, self.ledger.path)
        if not trainer.sanity_checking:
            if self._logged.end(trainer.testing):
                self._complete.add(trainer.testing)
            if changed := sorted(changed_values(pl_module, self._kept) - self._raw):
                self._raw |= set(changed)
                rank_zero_warn(
                    f"PrivateMetrics: the evaluation set {', '.join(changed)} of {type(pl_module).__name__}: where "
                    "this is made of the records, the model shows it without noise, so set it by public data."
                )
        self._kept = {}
        self._known[trainer.testing] |= {name for name, private in self._private.items() if private.is_private}
        self._restore()

    def _restore(self) -> None:
        for private in self._private.values():
            private.restore()
        self._private.clear()
        while self._undo_evaluation:
            self._undo_evaluation.pop()()

    def _end_batches(self) -> None:
        self._hidden_randomness.check()
        self._records().end_batches()

    def _records(self) -> DeliveredRecords:
        assert self._delivered is not None
        return self._delivered

    def _fitting(self, left: float) -> str:
        accountant = metric_account.accountant_of_value(self.scenario, self.renyi_order or order_in(self.ledger))
        running = accountant.track(self.noise_multiplier, [1], 1, self.promise, LARGEST_VALUE)
        return fitting_argument(running, 1, left, "epsilon" if self._given_noise is None else "world_success_bound")

    def _open_account(self) -> None:
        accountant = metric_account.accountant_of_value(self.scenario, self.renyi_order or order_in(self.ledger))
        (self._release,) = accountant.events(self.noise_multiplier, 1)
        asked = self.epsilon if self.delta is None else None
        nats = finite_precision(LARGEST_VALUE, accountant.renyi_order)
        self._cost = asked or accountant.epsilon(self.noise_multiplier, 1) + nats
        declaration = {
            "coupling": {"scenario": self.scenario.coupling(), "renyi_order": accountant.renyi_order},
            "epsilon_of_each": self._cost,
            "max_contribution": self.max_contribution,
        }
        name = f"metrics {', '.join(self.names)}"
        try:
            ledger = self.ledger.open()
            declaration |= share_terms(ledger, [self._release], self.ledger.share)
            self._account = metric_account.open_account(ledger, name, declaration, self._budget)
            self._allowance = Allowance(ledger, self._account, [self._release])
        except BaseException:
            self.ledger.close()
            raise

    def _own_declaration(self) -> dict[str, Any]:
        """Everything that must be the same on all ranks."""
        values: dict[str, Any] = {
            **{f"scenario.{name}": value for name, value in self.scenario.to_dict().items()},
            **{name: getattr(self, name) for name in ("names", "epsilon", "delta", "world_success_bound", "prior")},
            **{name: getattr(self, name) for name in ("renyi_order", "max_contribution", "noise_multiplier")},
            "budget": self._budget,
            "ledger": str(self.ledger.given),
        }
        return {f"PrivateMetrics({name}=)": value for name, value in values.items()}

    def _shown_state(self) -> dict[str, Any]:
        return {"spent": self._spent}

    def _charge(self, metric: str) -> bool:
        assert self._account is not None
        assert self._allowance is not None
        event = {"release": "metric", "mu_squared": self._release.mu_squared, "draws": LARGEST_VALUE}
        try:
            number = self._account.num_charges + 1
            self._allowance.check(number, number * LARGEST_VALUE)
            metric_account.check_budget(self.ledger, self._account, self._cost)
            self._spent = self._account.charge(self._cost, event=event)
        except BudgetExceededError as error:
            shown = self._private[metric].logged_as or metric
            rank_zero_warn(f"PrivateMetrics: an older value of {shown} is shown, or nan: {error}")
            return False
        return True
