"""A torchmetrics metric whose sums are clipped record by record and noised before anything is computed from them."""

import copy
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from lightning_pac.callbacks.metrics.clipped_contribution import clipped_contribution
from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords
from lightning_pac.callbacks.metrics.influential_states import influential_states
from lightning_pac.callbacks.metrics.metric_memory import KEEPS, ONE_ROW, constant_states, other_than_rows, remembered
from lightning_pac.callbacks.metrics.noise_of_value import (
    COUNTS,
    noise_of_value,
    norm_bound,
    refuse_several_values,
    value_of,
    warn_if_clipped,
    warn_if_noisy,
)
from lightning_pac.callbacks.metrics.standard_error import standard_error
from lightning_pac.data.quiet_copies import without_graphs
from lightning_pac.data.records import Surroundings
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.mechanisms.drowned import signal_to_noise, warn_if_drowned
from lightning_pac.randomness import secure_generator
from lightning_pac.strategies import Ranks

__all__ = ["LARGEST_VALUE", "PrivateMetric"]

LARGEST_VALUE = 2**20
"""Sums that a metric may keep: its noise, which comes from finite random bits, is paid for as so many values of it."""


class PrivateMetric:
    r"""Stands between a metric and the code that updates and computes it while an evaluation loop runs.

    A metric that only keeps sums is a function of $\sum_i s_i$, where $s_i$ is what record i adds. Each $s_i$ is
    clipped to norm C, and the sum is released once an evaluation as $\sum_i \mathrm{clip}_C(s_i) + N(0, \sigma^2 C^2
    I)$, rounded to a public grid; the value is computed from the release. Sums that the value does not depend on are
    left at zero instead of being released, and constants are what the metric was made with.

    Which metrics are private shows only when they are logged, after their first update: until `is_private` is set,
    the metric keeps its own sums as well.

    Several ranks add up their sums on rank zero, which charges and draws the noise once; all compute the value from the
    same release. What is wrong with one rank's records is raised by all of them.

    Args:
        metric: The metric; see `unsuited_states`.
        max_contribution: C.
        noise_multiplier: Sigma.
        charge: Called before the noise is drawn, on rank zero; returns whether the release is paid for.
        delivered: The records that this rank was given, of which no more can be added; None bounds nothing.
        ranks: The processes that evaluate together.
        name: Its name in the module, by which the ranks tell that they release the same metric.

    Attributes:
        batches: Numbers of the batches of this evaluation that it had rows of.
    """

    def __init__(
        self,
        metric: Metric,
        max_contribution: float,
        noise_multiplier: float,
        charge: Callable[[], bool],
        delivered: DeliveredRecords | None = None,
        ranks: Ranks | None = None,
        name: str = "",
    ) -> None:
        self.metric = metric
        self.is_private = False
        self.last: Any = None
        self.logged_as: str | None = None
        self.deviation: float | None = None  # of the noise in the value that is shown; nan where none was paid for
        self.standard_error: float | None = None  # of that value
        self.show_noise: Callable[[str, Tensor], None] | None = None
        self.before_release: Callable[[], None] | None = None
        self._max_contribution = max_contribution
        self._noise_multiplier = noise_multiplier
        self._charge = charge
        self._delivered = delivered
        self._ranks = ranks or Ranks()
        self._name = name
        self._blank = copy.deepcopy(metric, without_graphs(metric))
        self._blank.reset()
        self._blank.distributed_available_fn = _alone  # what it computes from is the sum over all ranks already
        self._scratch = copy.deepcopy(self._blank)
        self._problem: str | None = None
        self._advice = ONE_ROW
        self._constants = constant_states(self._blank)
        self._memory = self._remembered(self._scratch, self._constants)
        self._exact_memory = self._remembered(metric)
        self._surroundings = Surroundings(metric)
        self._keeps = self._was_shown = False
        self._influential = influential_states(self._blank)
        self._bound = norm_bound(metric, max_contribution, self._influential)
        self._total = torch.zeros_like(self._flatten(self._blank))
        self._released: Any = None
        self._inside_forward = self._was_updated = False
        self._rows, self._has_one_label = 0, True
        self._loaders: set[int] = set()
        self._rows_in_batch = (0, 0)  # of the batch of that number
        self.batches: set[int] = set()
        self._own = {name: getattr(metric, name) for name in ("forward", "update", "compute", "reset")}
        self._stand_between()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivateMetric":
        """Called where the metric is copied, whose copy would release the same records once more.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(
            f"{type(self.metric).__name__} is copied during an evaluation in which PrivateMetrics may noise it: copy "
            "it, or the module that holds it, before the evaluation or after it."
        )

    def refuse(self, problem: str, advice: str) -> None:
        """Refuse the metric if it becomes private, in words that follow its name: what it does, and what to do."""
        self._problem, self._advice = problem, advice

    def make_private(self, logged_as: str | None = None) -> None:
        """From now on, show the noised value only, under that name.

        Raises:
            MisconfigurationException: If the metric has several values, updates do not fall into records, or the metric
                keeps some of what it saw where no noise is added; several ranks raise it together, later.
        """
        if len(self._total) > LARGEST_VALUE:
            raise MisconfigurationException(
                f"{type(self.metric).__name__} keeps {len(self._total):,} sums, but noise is paid for up to "
                f"{LARGEST_VALUE:,}: log a smaller metric, such as a mean over classes."
            )
        if not self.is_private:
            if self._keeps or self._remembered(self.metric) != self._exact_memory:
                self._problem = self._problem or KEEPS
            elif self._was_shown:
                self._problem = self._problem or "was computed without noise before it was logged"
            self._forget_exact_states()
        if self._released is None and self.last is None:
            refuse_several_values(self.metric, self._value_of_nothing())
        self.is_private, self.logged_as = True, logged_as
        if self._ranks.size == 1:
            self._require_records()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let the metric be copied meanwhile, which has its own methods."""
        self._set_aside()
        try:
            yield
        finally:
            self._stand_between()

    def restore(self) -> None:
        """Give the metric its own methods back; what it holds exactly is forgotten."""
        self._set_aside()
        if self.is_private:
            self.metric.reset()

    def _stand_between(self) -> None:
        for name in self._own:
            setattr(self.metric, name, getattr(self, f"_{name}"))

    def _set_aside(self) -> None:
        for name, method in self._own.items():
            setattr(self.metric, name, method)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_private:
            self._update(*args, **kwargs)
            return torch.tensor(float("nan"))
        self._add(*args, **kwargs)
        self._inside_forward = True
        try:
            return self._exactly("forward", *args, **kwargs)
        finally:
            self._inside_forward = False

    def _update(self, *args: Any, **kwargs: Any) -> None:
        if not self._inside_forward:
            self._add(*args, **kwargs)
        if self.is_private:
            self._released = None
            # Lightning computes only what was updated.
            self.metric._update_count += 1
        elif self._inside_forward:
            self._own["update"](*args, **kwargs)
        else:
            self._exactly("update", *args, **kwargs)

    def _exactly(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the metric itself does, noting whether its code keeps something beside it."""
        before = self._surroundings.digest()
        found = self._own[method](*args, **kwargs)
        self._keeps = self._keeps or self._surroundings.digest() != before
        return found

    def _forget_exact_states(self) -> None:
        count = self.metric._update_count  # Lightning computes only what was updated
        self._own["reset"]()
        self.metric._update_count = count

    def _compute(self) -> Any:
        if self._inside_forward:
            return self._own["compute"]()
        if not self.is_private:
            self._was_shown = True
            return self._exactly("compute")
        if not self._was_updated and self.metric._update_count:
            self._problem = self._problem or "was updated by a method that was kept from before the evaluation"
            self._advice = ", so nothing of it is known here: call its own update or forward"
        if self._released is None:
            if self.before_release is not None:
                self.before_release()
            is_first, sums = self.last is None, self._ranks.exchange(self._own_share, self._release)
            if sums is not None:
                self.last = self._evaluate(sums)
                evaluate = partial(self._evaluate, noised=self._blank.clone())
                deviation = self._noise_multiplier * self._bound
                states = self._states(sums)
                possible = torch.cat([part.reshape(-1) for part in states.values()])
                self.deviation = noise_of_value(evaluate, possible, deviation)
                self.standard_error = None
                if self._has_one_label:  # pixels and tokens of a record are no independent draws
                    self.standard_error = standard_error(self.metric, evaluate, states, self._bound, self.deviation)
                name = self.logged_as or type(self.metric).__name__
                warn_if_clipped(self.metric, name, self.last, self._max_contribution)
                if is_first and signal_to_noise(sums.numpy(), len(sums) * deviation**2) >= 1:  # less is told before
                    warn_if_noisy(self.metric, name, self.last, self.deviation, self._max_contribution)
            self._released = self._unpaid() if self.last is None else self.last
        return self._released

    def _value_of_nothing(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._evaluate(torch.zeros_like(self._total))

    def _unpaid(self) -> Any:
        """What is shown where no value was ever paid for: the shape of one, without a number that reads like one."""
        self.deviation, self.standard_error, value = math.nan, None, self._value_of_nothing()
        return torch.full_like(value, torch.nan) if isinstance(value, Tensor) and value.is_floating_point() else value

    def _require_records(self) -> None:
        if self._problem is not None:
            raise MisconfigurationException(f"{type(self.metric).__name__} {self._problem}{self._advice}.")

    def _own_share(self) -> tuple[str, Tensor]:
        self._require_records()
        return f"{self._name} (at most {self._bound:.6g} a record)", self._total

    def _release(self, shares: list[tuple[str, Tensor]]) -> Tensor | None:
        """The sums of all ranks with noise, or None if a release is not paid for; called on rank zero."""
        names = {name for name, _ in shares}
        if len(names) > 1:
            raise PrivacyViolationError(
                f"The ranks release different metrics at once ({', '.join(sorted(names))}), so sums of one would "
                "enter another: log the same metrics in the same order on every rank."
            )
        if not self._charge():
            return None
        deviation = self._noise_multiplier * self._bound
        # A record is evaluated on one rank, so it enters the total once, clipped to C.
        total = torch.stack([share for _, share in shares]).sum(0)
        released = secure_generator().release_(total.clone(), deviation)
        if self.show_noise is not None:
            self.show_noise(self._name, released - total)
        if self.last is None:
            warn_if_drowned(
                released.numpy(),
                len(released) * deviation**2,
                f"evaluate {type(self.metric).__name__} on more records, or less often with a larger promise for "
                "PrivateMetrics",
            )
        return released

    def _reset(self) -> None:
        if not self._inside_forward:
            self._total = torch.zeros_like(self._total)
            self._released = None
            self._rows, self._rows_in_batch = 0, (0, 0)
            self._loaders.clear()
            self.batches.clear()
        self._own["reset"]()

    def _add(self, *args: Any, **kwargs: Any) -> None:
        self._was_updated = True
        if self._delivered is not None and self._delivered.in_batch == 0:
            return
        sizes: set[int] = set()
        other = other_than_rows((args, kwargs))
        if other is None:
            apply_to_collection((args, kwargs), Tensor, lambda tensor: sizes.add(len(tensor)))
        else:
            self._problem = self._problem or f"was updated with {other}, which may be made of other records"
        self._problem = self._problem or self._problem_of(sizes)
        if self._problem is not None:
            # Other ranks wait for this one's share, with which they learn of the problem.
            if self.is_private and self._ranks.size == 1:
                self._require_records()
            return
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if isinstance(target, Tensor) and target.numel() != len(target):
            self._has_one_label = False
        one, beside = self._scratch, self._surroundings.digest()
        for record in range(sizes.pop()):
            one.reset()
            alone = slice(record, record + 1)
            part_args, part_kwargs = apply_to_collection((args, kwargs), Tensor, lambda tensor, row=alone: tensor[row])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a value is not finite would tell of a record
                one.update(*part_args, **part_kwargs)
            if self._remembered(one, self._constants) != self._memory or self._surroundings.digest() != beside:
                self._problem = self._problem or KEEPS
                return
            added = self._flatten(one)
            # As with gradients, a contribution that is not finite counts as zero.
            if bool(added.isfinite().all()):
                self._total += clipped_contribution(added, self._bound)

    def _problem_of(self, sizes: set[int]) -> str | None:
        """Why an update with tensors of these lengths does not add each record once."""
        if len(sizes) != 1:
            # Numbers of records stay unsaid: under add_remove they are the secret.
            return "was updated with tensors of several lengths" if sizes else "was updated without a tensor"
        if self._delivered is None:
            return None
        rows, delivered = next(iter(sizes)), self._delivered
        self._rows += rows
        batch, in_batch = self._rows_in_batch
        self._rows_in_batch = (delivered.batch, rows + (in_batch if batch == delivered.batch else 0))
        if rows and delivered.in_batch is not None:
            self.batches.add(delivered.batch)
        if delivered.in_batch is not None and self._rows_in_batch[1] > delivered.in_batch:
            return "was updated with more rows in a batch than it has records"
        if self._rows > delivered.in_all:
            return "was updated with more rows than there are records"
        self._loaders |= delivered.loaders
        if delivered.share_records(frozenset(self._loaders)):
            return "was updated with the rows of several loaders, which hold the same records"
        return None

    def _remembered(self, metric: Metric, constants: Collection[str] = ()) -> bytes:
        try:
            return remembered(metric, constants)
        except TypeError as error:
            self._problem = f"cannot be watched ({str(error).rstrip('.')})"
            return b""

    def _flatten(self, metric: Metric) -> Tensor:
        states = [getattr(metric, name).detach().reshape(-1).to("cpu", torch.float64) for name in self._influential]
        return torch.cat(states)

    def _evaluate(self, sums: Tensor, noised: Metric | None = None) -> Any:
        """The value at these sums."""
        noised = self._blank.clone() if noised is None else noised
        for name, part in self._states(sums).items():
            setattr(noised, name, part.to(self.metric.device, torch.float32))
        if "fn" in self._blank._defaults and "fn" not in self._influential:
            # It only says whether there is such a class: without it, macro averages leave out one that is never named.
            noised.fn = torch.ones_like(self._blank._defaults["fn"])  # type: ignore[arg-type]
        noised._update_count, noised._computed = 1, None
        return value_of(noised)

    def _states(self, sums: Tensor) -> dict[str, Tensor]:
        """States of the metric by name. Counts are kept from being negative, which noise can make them.

        Where it is not released how many records of a class there are, as for a precision, one of which no count is
        beyond its noise counts as never named: its share would be that of noise in noise.
        """
        blanks = [getattr(self._blank, name) for name in self._influential]
        parts = zip(blanks, torch.split(sums, [blank.numel() for blank in blanks]), strict=True)
        kept = [part if blank.is_floating_point() else part.clamp(min=0.0) for blank, part in parts]
        unknown = set(self._blank._defaults) == COUNTS and "fn" not in self._influential
        if unknown and len(kept) > 1 and len(kept[0]) > 1:
            there_is = torch.stack(kept).amax(0) >= 2 * self._noise_multiplier * self._bound
            kept = [torch.where(there_is, part, 0.0) for part in kept]
        return {n: part.reshape(b.shape) for n, b, part in zip(self._influential, blanks, kept, strict=True)}


def _alone() -> bool:
    return False
