"""The public names of lightning-pac and where each is defined, read by type checkers and by the lazy import."""

from .accountants import (
    Banded as Banded,
    SRPPAccountant as SRPPAccountant,
    SRPPRun as SRPPRun,
    membership_success_bound as membership_success_bound,
    plan as plan,
)
from .callbacks import (
    DPSGD as DPSGD,
    SRPPSGD as SRPPSGD,
    CanaryAudit as CanaryAudit,
    DummyPadding as DummyPadding,
    PACResponses as PACResponses,
    PositiveDelay as PositiveDelay,
    PrivateMetrics as PrivateMetrics,
    PrivateOutput as PrivateOutput,
    SRPACDecoder as SRPACDecoder,
)
from .cards import Estimate as Estimate, Guarantee as Guarantee, PrivacyCard as PrivacyCard
from .data import (
    Persons as Persons,
    TableTransform as TableTransform,
    WithIndex as WithIndex,
    describe_loader as describe_loader,
    private_loader as private_loader,
)
from .gradients import (
    make_engine as make_engine,
    per_record_mean as per_record_mean,
    private_gradients as private_gradients,
)
from .ledger import PrivacyLedger as PrivacyLedger
from .mechanisms import (
    AdaptiveComposition as AdaptiveComposition,
    JointRelease as JointRelease,
    PACResponder as PACResponder,
    PositiveNoise as PositiveNoise,
    ReleasedMechanism as ReleasedMechanism,
    SlicedWassersteinMechanism as SlicedWassersteinMechanism,
    calibrate_gaussian as calibrate_gaussian,
    certify_mechanism as certify_mechanism,
    privatize as privatize,
)
from .modules import (
    DistilledDataModule as DistilledDataModule,
    FullGaussian as FullGaussian,
    JointDecoding as JointDecoding,
    LearnerEnsemble as LearnerEnsemble,
    MixtureDecoder as MixtureDecoder,
    SavedResponder as SavedResponder,
    SecretTable as SecretTable,
    SoftmaxDecoder as SoftmaxDecoder,
    StackelbergGame as StackelbergGame,
    SubsetEnsemble as SubsetEnsemble,
    fix_batch_norm as fix_batch_norm,
)
from .randomness import SecureGenerator as SecureGenerator
from .scenarios import (
    AttributeScenario as AttributeScenario,
    BalancedSubsets as BalancedSubsets,
    BlockedPoisson as BlockedPoisson,
    ComplementaryHalves as ComplementaryHalves,
    CyclicShuffle as CyclicShuffle,
    EpochShuffle as EpochShuffle,
    FixedSize as FixedSize,
    Poisson as Poisson,
    Sequential as Sequential,
    SliceProfile as SliceProfile,
    TwoWorldScenario as TwoWorldScenario,
    WithReplacement as WithReplacement,
)

__version__: str
