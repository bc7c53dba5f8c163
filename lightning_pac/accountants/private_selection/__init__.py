"""The cost of running something private a secret number of times and showing the best of it."""

from lightning_pac.accountants.private_selection.number_of_runs import NumberOfRuns
from lightning_pac.accountants.private_selection.price import SelectionCurve, SelectionPrice

__all__ = ["NumberOfRuns", "SelectionCurve", "SelectionPrice"]
