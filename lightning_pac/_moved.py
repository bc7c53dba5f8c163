"""Import paths of version 0.1.0 that have moved, and how an import of one finds the module in its new place."""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "lightning_pac."

# Old module -> new module, both below the package.
MODULES = {
    "audits.decoder_leakage": "audits.decoder_estimate",
    "audits.sliced_divergence": "audits.sliced_estimate",
    "mechanisms.one_sided.biased_laplace": "mechanisms.one_sided.laplace",
    "mechanisms.one_sided.maximal_leakage": "mechanisms.one_sided.leakage_channels",
    "accountants.account": "ledger.account",
    "accountants.amplified": "accountants.srpp.amplified",
    "accountants.array_codec": "ledger.array_codec",
    "accountants.blocks": "accountants.srpp.slices",
    "accountants.card": "cards",
    "accountants.composition": "accountants.srpp.composed_runs",
    "accountants.conditions": "accountants.srpp.conditions",
    "accountants.currencies": "ledger.currencies",
    "accountants.file_system": "ledger.files.file_system",
    "accountants.group_dp": "accountants.srpp.group_dp",
    "accountants.high_water_mark": "ledger.files.high_water_mark",
    "accountants.hybrid_rdp": "accountants.noised_counts.hybrid",
    "accountants.journal": "ledger.attempts",
    "accountants.ledger": "ledger.ledger",
    "accountants.loss_induction": "accountants.noised_counts.loss_induction",
    "accountants.mixture": "accountants.privacy_loss.renyi",
    "accountants.running": "accountants.srpp.running",
    "accountants.shift_composition": "accountants.noised_counts.shift_composition",
    "accountants.storage": "ledger.storage",
    "accountants.transcript": "ledger.transcript",
    "accountants.writer_lock": "ledger.files.writer_lock",
    "callbacks.dummy_padding": "callbacks.padding.dummy_padding",
    "callbacks.pac_responses": "callbacks.predictions.pac_responses",
    "callbacks.positive_delay": "callbacks.padding.positive_delay",
    "callbacks.private_metrics": "callbacks.metrics.callback",
    "callbacks.private_output": "callbacks.predictions.private_output",
    "gradients.measured_choice": "gradients.rules.measured_choice",
    "gradients.watching": "gradients.calls.watching",
    "mechanisms.auto_pac": "mechanisms.pac_noise.auto_pac",
    "mechanisms.belief": "mechanisms.responses.belief",
    "mechanisms.box_runs": "mechanisms.privatization.box_runs",
    "mechanisms.canonical": "mechanisms.privatization.canonical",
    "mechanisms.canonical.forest": "mechanisms.privatization.canonical.forest",
    "mechanisms.canonical.forms": "mechanisms.privatization.canonical.forms",
    "mechanisms.certificate": "mechanisms.certified.certificate",
    "mechanisms.composition": "mechanisms.responses.adaptive_composition",
    "mechanisms.coordinate": "mechanisms.pac_noise.streaming_coordinate",
    "mechanisms.directions": "mechanisms.pac_noise.directions",
    "mechanisms.divergence_sample": "mechanisms.certified.divergence_sample",
    "mechanisms.estimators": "mechanisms.privatization.estimators",
    "mechanisms.exact": "mechanisms.certified.scaling",
    "mechanisms.filters": "mechanisms.responses.filters",
    "mechanisms.gaussian": "mechanisms.pac_noise.gaussian",
    "mechanisms.individual": "mechanisms.pac_noise.individual",
    "mechanisms.joint_release": "mechanisms.certified.joint_release",
    "mechanisms.lattice": "mechanisms.pac_noise.lattice",
    "mechanisms.mixture_noise": "mechanisms.certified.mixture_noise",
    "mechanisms.model_outputs": "mechanisms.responses.model_outputs",
    "mechanisms.noise_certificate": "mechanisms.certified.noise_certificate",
    "mechanisms.non_gaussianity": "mechanisms.certified.non_gaussianity",
    "mechanisms.one_sided.composed_release": "mechanisms.one_sided.repeated_release",
    "mechanisms.output_laws": "mechanisms.certified.output_laws",
    "mechanisms.privatized_output": "mechanisms.privatization.privatized_output",
    "mechanisms.recorded_answers": "mechanisms.responses.recorded_answers",
    "mechanisms.release": "mechanisms.responses.answer",
    "mechanisms.released": "mechanisms.certified.released_mechanism",
    "mechanisms.replay": "mechanisms.responses.replay",
    "mechanisms.responder": "mechanisms.responses.responder",
    "mechanisms.responder_card": "mechanisms.responses.card",
    "mechanisms.secret_account": "mechanisms.privatization.secret_account",
    "mechanisms.sliced_calibration": "mechanisms.sliced_wasserstein.calibration",
    "mechanisms.span": "mechanisms.deviation_span",
    "mechanisms.vote_table": "mechanisms.responses.vote_table",
    "mechanisms.votes": "mechanisms.responses.votes",
    "mechanisms.wasserstein": "mechanisms.sliced_wasserstein.distances",
    "mechanisms.wasserstein_baselines": "mechanisms.sliced_wasserstein.other_mechanisms",
    "scenarios.secret_index": "scenarios.secret_space",
    "modules.distilled_data_module": "modules.distillation.distilled_data_module",
    "modules.ensemble_record": "modules.ensembles.ensemble_record",
    "modules.learner_ensemble": "modules.ensembles.learner_ensemble",
    "modules.private_labels": "modules.distillation.private_labels",
    "modules.saved_responder": "modules.distillation.saved_responder",
    "modules.srpac.play": "modules.srpac.stackelberg_round",
    "modules.stacked_network": "modules.ensembles.stacked_network",
    "modules.subset_ensemble": "modules.ensembles.subset_ensemble",
}

# Old package -> names that its face no longer holds -> the package that does.
NAMES = {
    "accountants": {
        "cards": ("Estimate", "Guarantee", "PrivacyCard"),
        "ledger": (
            "Attempt",
            "BudgetChange",
            "Charge",
            "LedgerAccount",
            "PrivacyLedger",
            "ResponseTranscript",
            "TrainingAttempt",
            "adopt_ledger",
            "describe_currency",
        ),
    }
}


class _MovedModule(MetaPathFinder, Loader):
    """Answers an import of an old path with the module itself, so that its classes stay the same classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.removeprefix(_PACKAGE) in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_PACKAGE + MODULES[spec.name.removeprefix(_PACKAGE)])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the old path into the module: give it its own back.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let imports of old paths succeed, from now on in this process."""
    sys.meta_path.insert(0, _MovedModule())


def names_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package's face, for the names that have left it."""
    homes = {name: home for home, names in NAMES[package].items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {_PACKAGE + package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_PACKAGE + homes[name]), name)

    return find


def keep_function(package: str, name: str) -> None:
    """Register the old path of a module under which the package's face holds a function of the same name.

    The import system writes an imported module into its package, over the function; not so where it is loaded already.
    """
    old = f"{package}.{name}"
    sys.modules[_PACKAGE + old] = importlib.import_module(_PACKAGE + MODULES[old])
