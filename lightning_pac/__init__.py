"""Provably private training and inference for PyTorch Lightning.

Names are imported on first use: the mathematics (`scenarios`, `accountants`, `mechanisms`, `audits`) needs numpy and
scipy only, and asking for a bound should not take the seconds that importing torch and Lightning does.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_pac.accountants import Estimate as Estimate
    from lightning_pac.accountants import Guarantee as Guarantee
    from lightning_pac.accountants import PrivacyCard as PrivacyCard
    from lightning_pac.accountants import PrivacyLedger as PrivacyLedger
    from lightning_pac.accountants import SRPPAccountant as SRPPAccountant
    from lightning_pac.accountants import SRPPRun as SRPPRun
    from lightning_pac.accountants import membership_success_bound as membership_success_bound
    from lightning_pac.callbacks import SRPPSGD as SRPPSGD
    from lightning_pac.callbacks import DummyPadding as DummyPadding
    from lightning_pac.callbacks import PACResponses as PACResponses
    from lightning_pac.callbacks import PositiveDelay as PositiveDelay
    from lightning_pac.callbacks import PrivateMetrics as PrivateMetrics
    from lightning_pac.callbacks import PrivateOutput as PrivateOutput
    from lightning_pac.callbacks import SRPACDecoder as SRPACDecoder
    from lightning_pac.data import WithIndex as WithIndex
    from lightning_pac.data import describe_loader as describe_loader
    from lightning_pac.data import private_loader as private_loader
    from lightning_pac.gradients import make_engine as make_engine
    from lightning_pac.mechanisms import AdaptiveComposition as AdaptiveComposition
    from lightning_pac.mechanisms import JointRelease as JointRelease
    from lightning_pac.mechanisms import PACResponder as PACResponder
    from lightning_pac.mechanisms import PositiveNoise as PositiveNoise
    from lightning_pac.mechanisms import ReleasedMechanism as ReleasedMechanism
    from lightning_pac.mechanisms import SlicedWassersteinMechanism as SlicedWassersteinMechanism
    from lightning_pac.mechanisms import calibrate_gaussian as calibrate_gaussian
    from lightning_pac.mechanisms import certify_mechanism as certify_mechanism
    from lightning_pac.mechanisms import privatize as privatize
    from lightning_pac.modules import DistilledDataModule as DistilledDataModule
    from lightning_pac.modules import FullGaussian as FullGaussian
    from lightning_pac.modules import JointDecoding as JointDecoding
    from lightning_pac.modules import LearnerEnsemble as LearnerEnsemble
    from lightning_pac.modules import MixtureDecoder as MixtureDecoder
    from lightning_pac.modules import SavedResponder as SavedResponder
    from lightning_pac.modules import SecretTable as SecretTable
    from lightning_pac.modules import SoftmaxDecoder as SoftmaxDecoder
    from lightning_pac.modules import StackelbergGame as StackelbergGame
    from lightning_pac.modules import SubsetEnsemble as SubsetEnsemble
    from lightning_pac.modules import fix_batch_norm as fix_batch_norm
    from lightning_pac.randomness import SecureGenerator as SecureGenerator
    from lightning_pac.scenarios import AttributeScenario as AttributeScenario
    from lightning_pac.scenarios import BalancedSubsets as BalancedSubsets
    from lightning_pac.scenarios import ComplementaryHalves as ComplementaryHalves
    from lightning_pac.scenarios import EpochShuffle as EpochShuffle
    from lightning_pac.scenarios import FixedSize as FixedSize
    from lightning_pac.scenarios import Poisson as Poisson
    from lightning_pac.scenarios import Sequential as Sequential
    from lightning_pac.scenarios import SliceProfile as SliceProfile
    from lightning_pac.scenarios import TwoWorldScenario as TwoWorldScenario
    from lightning_pac.scenarios import WithReplacement as WithReplacement

__version__ = "0.1.0"

# Public name -> module that defines it.
_EXPORTS: dict[str, str] = {
    "AdaptiveComposition": "lightning_pac.mechanisms",
    "AttributeScenario": "lightning_pac.scenarios",
    "BalancedSubsets": "lightning_pac.scenarios",
    "ComplementaryHalves": "lightning_pac.scenarios",
    "DistilledDataModule": "lightning_pac.modules",
    "DummyPadding": "lightning_pac.callbacks",
    "EpochShuffle": "lightning_pac.scenarios",
    "Estimate": "lightning_pac.accountants",
    "FixedSize": "lightning_pac.scenarios",
    "FullGaussian": "lightning_pac.modules",
    "Guarantee": "lightning_pac.accountants",
    "JointDecoding": "lightning_pac.modules",
    "JointRelease": "lightning_pac.mechanisms",
    "LearnerEnsemble": "lightning_pac.modules",
    "MixtureDecoder": "lightning_pac.modules",
    "PACResponder": "lightning_pac.mechanisms",
    "PACResponses": "lightning_pac.callbacks",
    "Poisson": "lightning_pac.scenarios",
    "PositiveDelay": "lightning_pac.callbacks",
    "PositiveNoise": "lightning_pac.mechanisms",
    "PrivacyCard": "lightning_pac.accountants",
    "PrivacyLedger": "lightning_pac.accountants",
    "PrivateMetrics": "lightning_pac.callbacks",
    "PrivateOutput": "lightning_pac.callbacks",
    "ReleasedMechanism": "lightning_pac.mechanisms",
    "SRPACDecoder": "lightning_pac.callbacks",
    "SRPPAccountant": "lightning_pac.accountants",
    "SRPPRun": "lightning_pac.accountants",
    "SRPPSGD": "lightning_pac.callbacks",
    "SavedResponder": "lightning_pac.modules",
    "SecretTable": "lightning_pac.modules",
    "SecureGenerator": "lightning_pac.randomness",
    "Sequential": "lightning_pac.scenarios",
    "SliceProfile": "lightning_pac.scenarios",
    "SlicedWassersteinMechanism": "lightning_pac.mechanisms",
    "SoftmaxDecoder": "lightning_pac.modules",
    "StackelbergGame": "lightning_pac.modules",
    "SubsetEnsemble": "lightning_pac.modules",
    "TwoWorldScenario": "lightning_pac.scenarios",
    "WithIndex": "lightning_pac.data",
    "WithReplacement": "lightning_pac.scenarios",
    "calibrate_gaussian": "lightning_pac.mechanisms",
    "certify_mechanism": "lightning_pac.mechanisms",
    "describe_loader": "lightning_pac.data",
    "fix_batch_norm": "lightning_pac.modules",
    "make_engine": "lightning_pac.gradients",
    "membership_success_bound": "lightning_pac.accountants",
    "private_loader": "lightning_pac.data",
    "privatize": "lightning_pac.mechanisms",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
