"""The cost of one padded observation, and the account it is charged to."""

from collections.abc import Callable
from typing import Any, TypeVar

from lightning_pac.callbacks.padding.card import Noise, noise_card
from lightning_pac.callbacks.shared import check_path, in_float32
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, LedgerArgument, LedgerHandle, PrivacyLedger, lost_budgets
from lightning_pac.mechanisms.one_sided import DPNoise, LeakageChannel, PACNoise
from lightning_pac.strategies import Ranks

__all__ = ["Noise", "NoiseAccount"]

Drawn = TypeVar("Drawn")

_Totals = tuple[int, float, float | None]
"""Observations, their cost, and the most that they may cost."""


class NoiseAccount:
    """Charges every observation before it can be made, in the currency of the noise.

    Differentially private noise was designed for a number of releases and costs one release each; maximal leakage and
    mutual information cost nats, which add up. Where several processes make one observation together, rank zero has
    the ledger, charges and draws.

    Under noise for mutual information an observation costs more where someone may choose it by earlier ones. Such
    observations have an account of their own, whose name ends in `_of_queries`.

    Args:
        noise: What pads the observations.
        observable: What is observed: `"time"` or `"batch_size"`, the prefix of the currency.
        ledger: Where to charge; None counts in memory (and in the callback's checkpoint state).
        name: Name of the account in the ledger.
    """

    def __init__(self, noise: Noise, observable: str, ledger: LedgerArgument | None, name: str) -> None:
        if not isinstance(noise, DPNoise | LeakageChannel | PACNoise):
            raise TypeError(
                f"noise must be made by PositiveNoise, so that its guarantee is known, got {type(noise).__name__}."
            )
        self.noise = noise
        self.num_observations = 0
        self._observable, self._name = observable, name
        self.ledger = None if ledger is None else LedgerHandle(ledger)
        self._ranks = Ranks()
        self._account: LedgerAccount | None = None
        self._budget: float | None = None
        self._earlier_conditions: tuple[str, ...] = ()  # of other runs that the account paid for
        self._total: _Totals | None = None  # as rank zero's ledger said last
        self._ranges: list[float | None] = [None]  # of what was padded so far, the last one now
        self._restored = 0  # observations that a checkpoint knows, until the ledger was held against it
        self._unrecorded = 0.0  # what observations cost without a ledger

    @property
    def currency(self) -> str:
        """Its name in the ledger; releases and nats never mix."""
        kinds = {DPNoise: "releases", LeakageChannel: "maximal_leakage", PACNoise: "mutual_information"}
        return f"{self._observable}_{next(kind for noise, kind in kinds.items() if isinstance(self.noise, noise))}"

    @property
    def cost(self) -> float:
        """Cost of one observation."""
        if isinstance(self.noise, DPNoise):
            return 1.0
        if isinstance(self.noise, LeakageChannel):
            return self.noise.leakage
        width = self._ranges[-1]
        return self.noise.mutual_information if width is None else self.noise.adaptive_information(width)

    @property
    def spent(self) -> float:
        """Cost of all observations so far, with a ledger those of other runs too."""
        return self._totals()[1]

    def open(self, ranks: Ranks | None = None, output_range: float | None = None) -> None:
        """Open the ledger, if there is one, on rank zero; called by all ranks.

        Args:
            ranks: The processes.
            output_range: Under noise for mutual information, the width of an interval that holds what is padded, where
                it may be chosen by what was seen before; None where it was fixed beforehand.
        """
        self._ranks = ranks or Ranks()
        started = [] if not self.num_observations or self.ledger is not None else self._ranges
        self._ranges = [*(width for width in started if width != output_range), output_range]
        check_path(None if self.ledger is None else self.ledger.given, self._ranks)
        self._total = self._ranks.from_first(self._open)

    def close(self) -> None:
        """Close the ledger, unless the caller owns it; a rank may call it alone."""
        if self._account is not None:
            self._total = self._totals()
        if self.ledger is not None:
            self.ledger.close()
        self._account = None

    def affords_another(self) -> bool:
        """Whether one more observation stays within the budgets; asked by all ranks."""
        return self._ranks.from_first(self.affords_another_alone)

    def affords_another_alone(self) -> bool:
        """The same, asked by rank zero alone.

        Raises:
            LedgerMismatchError: If the ledger lacks observations that a checkpoint knows.
        """
        if self._account is not None:
            self._check_restored(self._account)
            # Costs that add up to the budget may be rounded above it, for the ledger, too.
            return self._account.remaining >= self.cost * (1.0 - 1e-9)
        return not isinstance(self.noise, DPNoise) or self.num_observations < self.noise.guarantee.compositions

    def pay(self, event: dict[str, Any], draw: Callable[[], Drawn]) -> Drawn:
        """Charge one observation, durably where there is a ledger, and only then draw what pads it; asked by all ranks.

        Args:
            event: What is observed, for the ledger.
            draw: Called on rank zero; every rank receives its value.

        Raises:
            BudgetExceededError: If the noise was designed for fewer releases, or the ledger's budget is spent.
        """

        def paid() -> tuple[Drawn, _Totals | None]:
            return self.pay_alone(event, draw), self._ledger_totals()

        drawn, self._total = self._ranks.from_first(paid)
        self.num_observations += not self._ranks.is_first
        return drawn

    def pay_alone(self, event: dict[str, Any], draw: Callable[[], Drawn]) -> Drawn:
        """The same on rank zero alone."""
        if self._account is not None:
            self._account.charge(self.cost, event)
        elif not self.affords_another_alone():
            assert isinstance(self.noise, DPNoise)
            raise BudgetExceededError(
                f"The noise was designed for {self.noise.guarantee.compositions} releases and all are spent: stop "
                "here, or design it for more (PositiveNoise.for_dp(..., compositions=...))."
            )
        self.num_observations += 1
        self._unrecorded += self.cost
        return draw()

    def card(self, title: str, secret: str, conditions: tuple[str, ...]) -> PrivacyCard:
        """The guarantees (see `noise_card`), kept with the ledger's account while that is open."""
        card = noise_card(
            self.noise, title, secret, conditions, *self._totals(), tuple(self._ranges), self._earlier_conditions
        )
        if self._account is not None and self._account.num_charges:
            self._account.attach_card(card)
        return card

    def metrics(self, unit: float) -> dict[str, float]:
        """Public figures: the mean overhead *by design* (the realised one would give the hidden value away)."""
        figures = {f"privacy/{self.currency}": in_float32(self.spent)}
        if not isinstance(self.noise, LeakageChannel):
            figures[f"privacy/{self._observable}_mean_overhead"] = unit * self.noise.mean
        return figures

    def _open(self) -> _Totals | None:
        if self.ledger is not None and self._account is None:
            releases = float(self.noise.guarantee.compositions) if isinstance(self.noise, DPNoise) else None
            name = self._name if self._ranges[-1] is None else f"{self._name}_of_queries"
            try:
                ledger = self.ledger.open()
                self._account = ledger.account(name, self.currency, self._declaration(), releases)
                earlier = self._account.card
                self._earlier_conditions = () if earlier is None else earlier.conditions
                self._budget = _largest_budget(self._account, ledger)
            except BaseException:
                self.ledger.close()
                raise
        return self._ledger_totals()

    def _totals(self) -> _Totals:
        return self._ledger_totals() or self._total or (self.num_observations, self._unrecorded, None)

    def _ledger_totals(self) -> _Totals | None:
        return None if self._account is None else (self._account.num_charges, self._account.spent, self._budget)

    def _check_restored(self, account: LedgerAccount) -> None:
        """Hold the ledger against a checkpoint, once."""
        known, self._restored = self._restored, 0
        assert self.ledger is not None
        charged = [one.num_charges for one in self.ledger.ledger.accounts() if one.currency == account.currency]
        if known > sum(charged):
            raise LedgerMismatchError(
                f"The checkpoint knows {known} observations, of which {self.ledger.path} has {sum(charged)}: give the "
                "ledger that they were charged to, or none where they were charged to none."
            )

    def noise_facts(self) -> dict[str, Any]:
        """The noise, as a ledger and a checkpoint know it again."""
        if isinstance(self.noise, DPNoise):
            # Two noises that keep a guarantee each may break it in turns: one account holds releases of one noise.
            moments = {key: float(f"{getattr(self.noise, key):.4g}") for key in ("mean", "second_moment")}
            return {**vars(self.noise.guarantee), **moments}
        if isinstance(self.noise, LeakageChannel):
            return {"leakage": self.noise.leakage}
        return {key: getattr(self.noise, key) for key in ("output_variance", "max_value", "second_moment")}

    def _declaration(self) -> dict[str, Any]:
        width = self._ranges[-1] if isinstance(self.noise, PACNoise) else None
        return {**self.noise_facts(), **({} if width is None else {"output_range": width})}

    def restore(self, num_observations: int, spent: float | None, noise: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, of an earlier version where it does not say what was spent, and by which noise.

        Raises:
            LedgerMismatchError: If another noise padded its observations.
        """
        if noise is not None and noise != self.noise_facts():
            raise LedgerMismatchError(
                f"The checkpoint's observations were padded by another noise ({noise}, now {self.noise_facts()}), and "
                "no guarantee speaks of both: resume with that noise."
            )
        self.num_observations = self._restored = num_observations
        self._unrecorded = num_observations * self.cost if spent is None else spent

    @property
    def unrecorded(self) -> float:
        """Cost of what this object has paid for, for checkpoints."""
        return self._unrecorded


def _largest_budget(account: LedgerAccount, ledger: PrivacyLedger) -> float | None:
    """The most that was ever allowed, since what was seen may have lowered it; None where nothing was limited."""
    if lost_budgets(ledger):
        return None
    totals = [one.amount for one in ledger.budget_changes() if (one.account, one.currency) == (None, account.currency)]
    return min((max(budgets) for budgets in (account.budgets, totals) if budgets), default=None)
