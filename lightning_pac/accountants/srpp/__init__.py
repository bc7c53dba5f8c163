"""Prices of private training: SRPP, ms-SRPP and their amplified form, run by run and composed."""

from lightning_pac.accountants.srpp.accountant import Notion, SRPPAccountant
from lightning_pac.accountants.srpp.amplified import amplified_step_cost
from lightning_pac.accountants.srpp.band_choice import BestBands, best_bands
from lightning_pac.accountants.srpp.composed_runs import ComposedRuns, SRPPRun, compose
from lightning_pac.accountants.srpp.group_dp import GroupDPAccountant
from lightning_pac.accountants.srpp.running import RunningAccount
from lightning_pac.accountants.srpp.slices import SliceCoefficients, effective_noise_multiplier

__all__ = [
    "BestBands",
    "ComposedRuns",
    "GroupDPAccountant",
    "Notion",
    "RunningAccount",
    "SRPPAccountant",
    "SRPPRun",
    "SliceCoefficients",
    "amplified_step_cost",
    "best_bands",
    "compose",
    "effective_noise_multiplier",
]
