"""State that a model keeps in some steps, and uses in some steps only."""

from typing import Any

from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import move_weights
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import is_small
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP

__all__ = ["remembers_at"]


def remembers_at(probe: Probe, records: list[Any], number: int) -> bool:
    """Whether a gradient depends on the records of a step before it, where both have that number.

    Args:
        probe: Runs the model.
        records: Three groups.
        number: That of the steps, such as 0, which all numbers divide.
    """
    first, second, other = (records[start : start + 2 * GROUP] for start in (0, GROUP, 2 * GROUP))

    def after(before: list[Any]) -> Tensor:
        with probe.copied():
            with probe.at(number):
                probe.run_round(before)
            move_weights(probe.model)
            with probe.at(number):
                return probe.gradient(second)

    try:
        plain, again, changed = after(first), after(first), after(other)
    except Exception:  # it may not run out of its time
        return False
    size = float(plain.norm())
    return is_small(again.sub_(plain), size) and not is_small(changed.sub_(plain), size)
