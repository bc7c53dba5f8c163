"""Exact accounts: how well everything released tells two worlds apart, read as any of three promises."""

from lightning_pac.accountants.privacy_loss.calibration import least_noise, most_steps
from lightning_pac.accountants.privacy_loss.composition import privacy_curve
from lightning_pac.accountants.privacy_loss.curves import GaussianCurve, PrivacyCurve
from lightning_pac.accountants.privacy_loss.events import (
    GaussianRelease,
    PoissonSteps,
    PrivacyEvent,
    SpreadSteps,
    event_from_dict,
)
from lightning_pac.accountants.privacy_loss.promises import EpsilonDelta, Promise, SuccessBound, one_promise, promise_of
from lightning_pac.accountants.privacy_loss.renyi import opposite_mixtures_divergence, renyi_divergence
from lightning_pac.accountants.privacy_loss.running import StepFigures

__all__ = [
    "EpsilonDelta",
    "GaussianCurve",
    "GaussianRelease",
    "PoissonSteps",
    "PrivacyCurve",
    "PrivacyEvent",
    "Promise",
    "SpreadSteps",
    "StepFigures",
    "SuccessBound",
    "event_from_dict",
    "least_noise",
    "most_steps",
    "one_promise",
    "opposite_mixtures_divergence",
    "privacy_curve",
    "promise_of",
    "renyi_divergence",
]
