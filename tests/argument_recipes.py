"""Valid arguments of every public function and constructor, by package: each has a value for each parameter.

A value also says what may stand in its place (`is_of_the_type` in `test_bad_arguments.py`).
"""

import functools
import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from torch.utils.data import DataLoader

from lightning_pac import (
    accountants as acc,
    audits as aud,
    callbacks as cal,
    data as dat,
    evidence as evi,
    ledger as led,
    mechanisms as mec,
    modules as mod,
    report as rep,
    scenarios as sce,
    tuning as tun,
)
from lightning_pac.cards import Estimate, Guarantee, PrivacyCard, Roc
from lightning_pac.gradients import Call, Dense, make_engine
from lightning_pac.gradients.clipping import clip
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.modules import FullGaussian, SoftmaxDecoder
from lightning_pac.randomness import SecureGenerator
from lightning_pac.serve import APIKeys, as_tensor
from lightning_pac.strategies import Ranks, RowShards

Recipes = dict[str, dict[str, Any]]

# Types, bases that users do not call, results that the library makes, and what is read back from files.
NOT_CALLED = {
    "accountants": "Notion PrivacyCurve PrivacyEvent Promise ProvenInformation ReferenceDistribution StepFigures "
    "LedgerTotal PlannedRun ProjectOption ProjectPlan RunFigures Share event_from_dict joint_curve one_promise "
    "share_unit",
    "audits": "AttackResult AttributeAttackResult AuditTest CanaryGame DecoderLeakage MeanComparison MembershipAudit "
    "RecoveryAudit TrainingAudit UNSEEN",
    "evidence": "EvidenceCheck",
    "ledger": "AccountKind Attempt BudgetChange Charge LedgerAccount LedgerArgument Payment ResponseTranscript "
    "TrainingAttempt check_amount pack_arrays smallest_integers",
    "data": "IndexedSample PrivateDataLoader ResumableDataLoader",
    "gradients": "Call Contribution GradientEngine",
    "information": "Array check_budget check_total_budget",
    "modules": "Decoder Learner Perturbation PrivateLabels",
    "mechanisms": "Baseline BatchRelease CanonicalForm Composed FilteredLabels FittedEstimator "
    "GaussianNoise LatticeNoise NoiseRule OutputLaw PrivatizedOutput Release ReleasedMechanism",
    # Every release calls these, and every answer pack_arrays and smallest_integers.
    "randomness": "release_grid round_to_grid round_up",
    # Runs until it is stopped: its own arguments are tried in tests/serve.
    "serve": "serve",
    # Optuna is not installed everywhere.
    "tuning": "OptunaSpace SelectionResult Setting",
    "scenarios": "Adjacency Sampling SecretIndex SecretSpace register_sampling sampling_from_dict",
}

# Arguments that may be anything.
ANYTHING = {
    "LearnerEnsemble.votes": ["features"], "label_privately": ["dataset"], "Ranks.of": ["trainer"],
    "RowShards.cut": ["stacked"],
    "AttributeScenario.prior_of": ["value"], "PACResponder.release": ["inputs"],
    "PACResponder.__call__": ["inputs"],
    "PACResponder.release_outputs": ["outputs"], "SlicedWassersteinMechanism.release": ["data"],
    "Persons": ["of"], "SecretTable.indices_of": ["batch"],
    "StackedNetwork.losses": ["inputs", "targets"], "StackelbergGame.advance": ["batch"],
    "SubsetEnsemble.votes": ["inputs"], "TableTransform.private": ["table"], "TableTransform.__call__": ["table"],
    "per_record_mean": ["batch"], "private_gradients": ["batch"],
    "privatize": ["public"],
}  # fmt: skip

# Arguments without a default that may be None.
OPTIONAL = {
    "AdaptiveComposition": ["secret"], "FixedForest": ["step"], "SlicedWassersteinMechanism": ["query"],
    "PrivateDDPStrategy": ["timeout"], "PrivateFSDPStrategy": ["timeout"],
    "worst_case_square_sum": ["num_records"], "expected_square_sum": ["num_records"],
    "baselines": ["query"],
}  # fmt: skip

# What reads back what the library has written, and what Lightning calls at import.
READ_BACK = ["from_dict", "from_json", "load_state_dict", "register_strategies", "small_cases"]

# Methods that parts of the library call on each other, inside transactions and collectives of their own.
INTERNAL = [
    # What a law, a promise, a scheme and an accountant are asked by the mechanisms and accounts that use them.
    "admit", "along", "check_budget", "reference", "scale", "figure", "is_kept_by", "less", "log_share", "cut",
    "draw_counts", "largest_count", "of_passes", "of_step", "order", "aggregate", "curve_of_units", "events_of_units",
    "LedgerBudget.declare", "LedgerBudget.enough_for", "LedgerBudget.hold", "LedgerBudget.raised_to",
    "LedgerBudget.when", "LedgerPlan.amount",
    "LedgerPlan.holds", "LedgerPlan.share_for", "LedgerPlan.size", "Allowance.check",
    "Allowance.larger_promise", "check_planned", "planned_cost", "cost_of", "use_after", "squares",
    "success_of_units", "unit_price", "units", "arithmetic_of", "on_after_setup", "shown", "words_for",
    "fill_words", "check_separation", "mean_deviation", "precision", "separation", "square_sum",
    # What the design of bands asks a workload, and what every layer's call goes through.
    "SGDWorkload.adjoint", "SGDWorkload.responses", "Call.argument", "Call.by_record", "Call.is_batched",
    "Call.is_free", "drop", "joined", "plus", "weighted_sum",
    # What runs in transactions and collectives of others, and batch by batch.
    "LedgerAccount.add", "ResponseTranscript.append", "Sequential.expected_square_sum",
    "Ranks.check_equal", "Ranks.from_first", "Ranks.release", "StepFigures.epsilon", "StepFigures.success_bound",
    "PrivateDDPStrategy.divide_members", "divide_records",
    "RankShare.fingerprint", "RankShare.largest", "RankShare.of", "RowShards.join",
    "Persons.records_of",
    # What SRPPSGD calls in its own run.
    "CanaryAudit.begin_run", "CanaryAudit.end_run", "CanaryAudit.see_step", "PrivateMetrics.show_noise",
    # Any path is a file to write.
    "ProjectPlan.declare", "ProjectPlan.plot", "TrainingAudit.load", "TrainingAudit.path_beside",
    "TrainingAudit.save",
    "PrivateSelection.run", "PublicProxy.__call__", "Setting.draw", "OptunaSpace.draw", "SecretWorkerSeeds.__call__",
    # What needs a Trainer, or a law that only a forward pass has.
    "SRPACDecoder.certify", "StackelbergGame.tabulate", "GaussianDecoder.normal", "MixtureDecoder.normal",
]  # fmt: skip


class Fresh(NamedTuple):
    """A valid argument that each call needs anew."""

    make: Callable[[], Any]


def methods(target: Any, /, **arguments: dict[str, Any]) -> Recipes:
    """Recipes of an object's methods."""
    return {f"{type(target).__name__}.{name}": {"self": target, **valid} for name, valid in arguments.items()}


WORLDS = sce.TwoWorldScenario(2, num_records=100, adjacency="zero_out")
POISSON = sce.Poisson(0.1)
PERSONS = dat.Persons("user", 2)
BATCHES = {"batch_size": 4, "drop_last": False, "steps_per_pass": 3}


def scheme_methods(scheme: sce.Sampling, *others: str, secret: bool = True) -> Recipes:
    """Recipes of what a sampling scheme is asked."""
    squares = {"num_differing": 2, "num_records": 20, "num_steps": (5,)}
    draws = {"num_records": 20, "generator": SecureGenerator()}
    sized = ["expected_batch_size", "inclusion_rate", "steps_per_epoch", *["check_drawable"] * secret]
    squared = ["worst_case_square_sum", *["expected_square_sum"] * secret]
    return methods(
        scheme,
        amplified_steps={"num_steps": (5,)},
        **dict.fromkeys(("draw_pass", *others), draws),
        **{name: {"num_records": 20} for name in sized},
        **dict.fromkeys(squared, squares),
    )


def of_scenarios(folder: Path) -> Recipes:
    numbers, secret = itertools.count(), sce.BalancedSubsets(10, 8).draw_secret(folder / "secret.key")
    return {
        "AttributeScenario": {
            "laws": {0: [1.0], 1: [2.0]}, "prior": {0: 0.5, 1: 0.5}, "pairs": [(0, 1)], "exact": True,
            "translates": False,
        },
        "BalancedSubsets": {"num_records": 10, "num_subsets": 8, "seed": 0},
        "ComplementaryHalves": {"num_records": 10, "num_subsets": 8, "seed": 0},
        "BlockedPoisson": {"rate": 0.1, "blocks": 4, "batch_size": 4},
        "CyclicShuffle": BATCHES,
        "EpochShuffle": BATCHES,
        "FixedSize": {"batch_size": 4},
        "AttributeScenario.from_gaussians": {
            "means": {0: [1.0], 1: [2.0]}, "covariance": np.eye(1), "pairs": [(0, 1)], "prior": {0: 0.5, 1: 0.5},
        },
        "AttributeScenario.from_samplers": {
            "samplers": {0: lambda n, g: g.normal(size=(n, 1)), 1: lambda n, g: g.normal(size=(n, 1))},
            "num_samples": 3, "seed": 0, "pairs": [(0, 1)], "prior": {0: 0.5, 1: 0.5},
        },
        "AttributeScenario.from_shifts": {
            "shifts": {0: [1.0], 1: [2.0]}, "pairs": [(0, 1)], "prior": {0: 0.5, 1: 0.5},
        },
        "AttributeScenario.from_table": {
            "world": {"x": np.arange(4.0), "s": [0, 0, 1, 1]}, "secret": "s", "pairs": [(0, 1)],
            "prior": {0: 0.5, 1: 0.5},
        },
        "LabelWorlds": {"labels_a": np.array([0, 1]), "labels_b": np.array([0, 0]), "realized": 0, "secret": "x"},
        "Poisson": {"rate": 0.1, "batch_size": 4, "secret_draws": True},
        "Sequential": BATCHES,
        "SliceProfile": {"directions": np.eye(2), "weights": np.array([0.5, 0.5])},
        "SliceProfile.blocks": {"sizes": [2, 1], "slices_per_block": 2, "seed": 0},
        "SliceProfile.coordinate": {"dimension": 3},
        "SliceProfile.random": {"dimension": 3, "num_slices": 4, "seed": 0},
        "SubsetTable": {"table": np.eye(2), "weights": [0.5, 0.5]},
        "TwoWorldScenario": {
            "num_differing": 1, "num_records": 10, "adjacency": "replace", "nested": True, "secret": "a label",
            "share_differing": None,
        },
        "TwoWorldScenario.differential_privacy": {},
        "TwoWorldScenario.from_labels": {"labels_a": [0, 1], "labels_b": [0, 0], "secret": "a label"},
        "TwoWorldScenario.from_prevalence": {
            "labels": [0, 1] * 5, "secret_class": 1, "p0": 0.5, "p1": 0.6, "rng": 0, "world": 1,
        },
        "WithReplacement": {"batch_size": 4},
        **scheme_methods(sce.BlockedPoisson(0.1, 4)),
        **scheme_methods(sce.CyclicShuffle(4)),
        **scheme_methods(sce.EpochShuffle(4)),
        **scheme_methods(sce.FixedSize(4), "draw_batch"),
        **scheme_methods(sce.Poisson(0.1), "draw_batch"),
        **scheme_methods(sce.WithReplacement(4), "draw_batch"),
        **scheme_methods(sce.Sequential(4), secret=False),
        **{f"Sampling.{name.partition('.')[2]}": recipe for name, recipe in scheme_methods(sce.FixedSize(4)).items()},
        **methods(
            sce.AttributeScenario.from_shifts({"a": [0.0], "b": [1.0]}),
            outputs={"query": None}, prior_of={"value": "a"},
        ),
        **methods(sce.BalancedSubsets(10, 8), membership_table={"records": [0, 1]}),
        **methods(sce.ComplementaryHalves(10, 8), membership={"index": 1}, membership_table={"records": [0, 1]}),
        **methods(sce.SubsetTable(np.eye(2)), membership_table={"records": [0, 1]}),
        "SecretSpace.draw_secret": {
            "self": sce.BalancedSubsets(10, 8), "path": Fresh(lambda: folder / f"{next(numbers)}.key"),
        },
        "SecretSpace.load_secret": {"self": sce.BalancedSubsets(10, 8), "path": secret.path},
        "SecretSpace.membership": {"self": sce.BalancedSubsets(10, 8), "index": 1},
        "SecretSpace.membership_table": {"self": sce.BalancedSubsets(10, 8), "records": [0, 1]},
        "SecretSpace.subset": {"self": sce.BalancedSubsets(10, 8), "index": 1},
        **methods(sce.SliceProfile.coordinate(2), project={"values": np.ones((1, 2))}),
        **methods(sce.TwoWorldScenario(2), resolve={"num_records": 10}, describe_secret={"unit": "person"}),
        "registered_samplings": {},
        "as_stretches": {"num_steps": (5,)},
    }  # fmt: skip


def of_information(folder: Path) -> Recipes:
    law = [0.5, 0.5]
    return {
        "binary_kl": {"p": 0.5, "q": 0.25},
        "entropy": {"weights": law},
        "kl_divergence": {"p": law, "q": law},
        "renyi_divergence": {"p": law, "q": law, "order": 2.0},
    }


def of_accountants(folder: Path) -> Recipes:
    account = acc.SRPPAccountant(WORLDS, POISSON)
    workload = acc.SGDWorkload(5)
    runs = acc.NumberOfRuns(0.05)
    run, event = acc.SRPPRun(account, 1.0, 5), acc.GaussianRelease(0.5)
    ledger, plan = PrivacyLedger(folder / "accounts.db"), acc.LedgerPlan([event])
    terms = {name: value for name, value in account.to_dict().items() if name != "renyi_order"}
    worlds = {"coupling": {"scenario": WORLDS.coupling(), "renyi_order": 16.0}}
    fitted = PrivacyLedger(folder / "fitted.db").account("fit", "rpp", {**worlds, **terms, "noise_multiplier": 2.0})
    planned = PrivacyLedger(folder / "with a plan.db")
    plan.declare(planned)
    (folder / "plan.json").write_text(json.dumps(plan.to_dict()))
    promise, proof, counts = acc.EpsilonDelta(3.0, 1e-5), mec.Certificate(0.5, 1.0, "by hand"), [0.25, 0.5, 0.25]
    curve, shifts = acc.GaussianCurve(1.0), acc.ShiftComposition(counts, 2, 0.01)
    spent, closed = {"noise_multiplier": 2.0, "num_steps": (5,)}, acc.SRPPAccountant(WORLDS, sce.EpochShuffle(4), 4.0)
    return {
        "Banded": {"bands": "best", "at_most": 2},
        **methods(acc.Banded(2), matrix={"workload": workload}),
        **methods(acc.BandedMatrix((0.8, 0.6)), inverse={"num_steps": 3}, noise_left={"num_steps": 3}),
        "BandedMatrix": {"coefficients": (0.8, 0.6)},
        "BandedMatrix.normalized": {"coefficients": [1.0, 0.5]},
        "BestBands": {"bands": 1, "sampling": sce.EpochShuffle(4), "errors": {1: 1.0}},
        "ComposedRuns": {"runs": (run,)},
        "EpsilonDelta": {"epsilon": 1.0, "delta": 1e-5},
        "GaussianCurve": {"mu": 1.0},
        "GaussianReference": {"mean": np.zeros(1), "covariance": np.eye(1)},
        "GaussianRelease": {"mu_squared": 1.0},
        "GroupDPAccountant": {"scenario": WORLDS, "sampling": POISSON, "delta": 1e-5},
        "HybridRDP": {
            "order": 2.0, "divergence_up": 0.1, "tail_up": 0.01, "divergence_down": 0.1, "tail_down": 0.01,
        },
        "Allowance": {"ledger": ledger, "account": ledger.account("fit", "rpp"), "unit": [event]},
        "LedgerBudget": {
            "epsilon": 3.0, "delta": 1e-5, "world_success_bound": None, "prior": 0.5, "renyi_order": 16.0,
            "num_draws": 1e9,
        },
        "LedgerBudget.of": {"ledger": ledger},
        "LedgerBudget.largest": {"ledger": ledger},
        "LedgerBudget.lost": {"ledger": ledger},
        "LedgerPlan": {"shares": [event], "promise": promise, "num_draws": 1e9},
        "LedgerPlan.of": {"ledger": ledger},
        "LogisticReference": {"scale": 1.0},
        "PlannedAnswers": {"number": 10, "membership_success_bound": 0.6, "prior": 0.5},
        "PlannedTraining": {
            "batch_size": 10, "epochs": 2, "parameters": 5, "weight": 2.0, "runs": runs, "score_share": 0.1,
        },
        "PlannedValues": {"number": 3, "weight": 2.0},
        "plan": {
            "num_records": 100, "releases": {"metrics": acc.PlannedValues(3)}, "epsilon": 3.0, "delta": 1e-5,
            "world_success_bound": None, "prior": 0.5, "scenario": WORLDS, "proxy": None,
        },
        "run_figures": {
            "accountant": account, "num_steps": 5, "batch_size": 10.0, "noise": 2.0, "parameters": 5, "delta": 1e-5,
            "prior": 0.5,
        },
        "PlannedLedger": {
            "given": folder / "planned.db", "witness": folder / "planned.mark", "share": "fit",
            "plan": folder / "plan.json", "epsilon": None,
            "delta": None, "world_success_bound": None, "prior": 0.5, "renyi_order": None,
        },
        "NumberOfRuns": {"gamma": 0.05, "eta": 1.0},
        "NumberOfRuns.expecting": {"mean": 20.0, "eta": 1.0},
        **methods(runs, draw={"generator": SecureGenerator()}, probability={"number": 3}),
        **methods(
            acc.SelectionCurve(curve, runs), renyi={"one_run": 8.0, "order": 16.0}, delta={"epsilon": 1.0},
            epsilon={"delta": 0.1}, error_bounds={"false_positive_rate": 0.1},
        ),
        "SelectionCurve": {"one_run": curve, "runs": runs},
        "SelectionPrice": {"one_run": [event], "runs": runs, "draws": 1e6},
        **methods(acc.SelectionPrice([event], runs), renyi={"order": 8.0}),
        "PoissonSteps": {
            "noise_multiplier": 1.0, "rate": 0.1, "num_steps": 5, "num_differing": 1, "adjacency": "add_remove",
            "nested": True, "holder": "first",
        },
        "SpreadSteps": {
            "noise_multiplier": 1.0, "rate": 0.1, "num_steps": 5, "num_differing": 2, "adjacency": "zero_out",
            "nested": True, "holder": "first",
        },
        "SpreadSteps.of": {"scenario": WORLDS, "rate": 0.1, "noise_multiplier": 1.0, "num_steps": 5},
        "PoissonSteps.of": {"scenario": WORLDS, "rate": 0.1, "noise_multiplier": 1.0, "num_steps": 5},
        "ResidualPrivacy": {"entropy": 2.0, "offset": 2.0, "proof": proof},
        "RunningAccount": {
            "accountant": account, "noise_multiplier": 1.0, "stretches": (3,), "planned_steps": 5, "promise": promise,
            "draws_per_step": 2,
        },
        "SGDWorkload": {
            "num_steps": 2, "learning_rates": (1.0, 0.5), "momentum": 0.9, "weight_decay": 0.01,
        },
        **methods(workload, error={"matrix": acc.BandedMatrix((0.8, 0.6))}),
        "SRPPAccountant": {
            "scenario": WORLDS, "sampling": POISSON, "renyi_order": 4.0, "notion": "ave",
            "slices": acc.SliceCoefficients((1.0,), (1.0,)), "joint_aggregation": "max", "correlation": None,
        },
        "SRPPRun": {"accountant": account, "noise_multiplier": 1.0, "num_steps": (5,)},
        "ShiftComposition": {"probabilities": counts, "compositions": 2, "discretization": 0.01},
        "SliceCoefficients": {"coefficients": (0.5, 1.0), "weights": (0.5, 0.5)},
        "SliceCoefficients.from_blocks": {
            "projection_norms": [[1.0], [1.0]], "clip_norms": [1.0], "noise_stds": [1.0], "weights": [0.5, 0.5],
        },
        "SuccessBound": {"bound": 0.8, "prior": 0.5},
        "UniformReference": {"low": np.zeros(1), "high": np.ones(1)},
        **methods(
            acc.ComposedRuns((acc.SRPPRun(closed, 1.0, 5),)), epsilon_at_delta={"delta": 1e-5},
            world_success_bound={"prior": 0.5},
        ),
        **methods(
            curve, delta={"epsilon": 1.0}, epsilon={"delta": 1e-5}, error_bounds={"false_positive_rate": 0.1},
        ),
        **methods(acc.GaussianReference(np.zeros(1), np.eye(1)), log_density={"values": np.ones((2, 1))}),
        **methods(
            acc.GroupDPAccountant(WORLDS, sce.EpochShuffle(4)), epsilon={"noise_multiplier": 2.0, "num_steps": 5},
            noise_multiplier={"epsilon": 4.0, "num_steps": 5},
        ),
        **methods(acc.hybrid_rdp(counts, 2.0), epsilon={"delta": 0.3, "compositions": 1}),
        **methods(acc.LedgerPlan([event], promise), declare={"ledger": ledger}),
        **methods(
            acc.LogisticReference(), log_density={"values": np.ones((2, 1))}, unit_cube={"values": np.ones((2, 1))}
        ),
        **{
            f"PrivacyCurve.{name.partition('.')[2]}": recipe
            for name, recipe in methods(
                curve, delta={"epsilon": 1.0}, epsilon={"delta": 1e-5}, error_bounds={"false_positive_rate": 0.1},
                success_bound={"prior": 0.5}, trade_off={"false_positive_rate": 0.1},
            ).items()
        },
        **methods(account.track(1.0, planned_steps=5), true_positive_rate={"false_positive_rate": 0.1}),
        **methods(
            closed,
            epsilon={**spent, "order": 4.0},
            epsilon_at_delta={**spent, "delta": 1e-5},
            events=spent,
            noise_for={"promise": promise, "num_steps": 5},
            noise_multiplier={"epsilon": 4.0, "num_steps": 5, "delta": 1e-5},
            num_steps={
                "noise_multiplier": 2.0, "epsilon": 4.0, "delta": 1e-5, "world_success_bound": None, "prior": 0.5,
            },
            step_cost={"noise_multiplier": 2.0, "step": 0},
            track={
                "noise_multiplier": 2.0, "stretches": (3,), "planned_steps": 5, "promise": None, "draws_per_step": 2,
            },
            trade_off=spent,
            unsliced_epsilon={**spent, "order": 4.0},
            world_success_bound={**spent, "prior": 0.5},
        ),
        **methods(shifts, delta={"epsilon": 1.0}, epsilon={"delta": 0.3}),
        **methods(
            acc.SliceCoefficients((1.0,), (1.0,)), average={"cost": 0.1},
            joint={"cost": 0.1, "order": 4.0, "aggregation": "max"},
        ),
        **methods(acc.UniformReference(np.zeros(1), np.ones(1)), log_density={"values": np.ones((2, 1))}),
        "amplified_step_cost": {"scenario": WORLDS, "rate": 0.1, "noise_multiplier": 1.0, "order": 4.0},
        "compose": {"runs": [run]},
        "composed_conditional_entropy": {"conditional_entropies": [1.0, 1.5], "entropy": 2.0},
        "dp_epsilon_for_success": {"success": 0.8, "delta": 1e-5},
        "dp_success_bound": {"epsilon": 1.0, "delta": 1e-5},
        "effective_noise_multiplier": {"clip_norms": [1.0], "noise_stds": [2.0]},
        "epsilon_at_delta": {"orders": [2.0, 4.0], "epsilons": [0.1, 0.2], "delta": 1e-5},
        "hybrid_rdp": {"probabilities": counts, "order": 2.0},
        "hybrid_rdp_epsilon": {"probabilities": counts, "delta": 0.3, "compositions": 1, "order": 2.0},
        "independent_bits_prior": {"num_correct": 3, "num_bits": 4},
        "account_total": {"account": fitted, "delta": 1e-5, "prior": 0.5},
        "accountant_of": {"declaration": fitted.declaration},
        "ledger_events": {"ledger": ledger},
        "ledger_order": {"ledger": ledger},
        "ledger_total": {"ledger": ledger, "delta": 1e-5, "prior": 0.5},
        "total_guarantees": {"total": acc.ledger_total(ledger), "prior": 0.5},
        "least_noise": {"promise": promise, "events": lambda noise: [acc.GaussianRelease(noise**-2)], "others": None},
        "membership_prior": {"rate": 0.4},
        "membership_success_bound": {"mutual_information": 0.1, "prior": 0.5},
        "most_steps": {"promise": promise, "events": lambda steps: [acc.GaussianRelease(0.01 * steps)]},
        "best_bands": {
            "accountant": acc.SRPPAccountant(WORLDS, sce.CyclicShuffle(4)), "num_steps": 4, "noise": lambda terms: 1.0,
            "at_most": 2, "fits": lambda blocks: True,
        },
        "optimal_bands": {"workload": workload, "num_bands": 2},
        "opposite_mixtures_divergence": {
            "order": 2.0, "noise_multiplier": 1.0, "rate": 0.1, "num_first": 1, "num_second": 1,
        },
        "posterior_disadvantage": {"intrinsic": -0.5, "success": 0.6, "prior": 0.5},
        "privacy_curve": {"events": [event], "others": [curve]},
        "renyi_divergence": {"events": [event], "order": 8.0},
        "promise_of": {"epsilon": 1.0, "delta": 1e-5, "world_success_bound": None, "prior": 0.5},
        "reference_offset": {"values": [[0.1], [0.2]], "reference": acc.LogisticReference()},
        "responses_until": {"epsilon": 1.0, "budget_per_response": 1e-3, "delta": 1e-5},
        "share_terms": {"ledger": planned, "unit": [event], "share": "1"},
        "shift_hockey_stick": {"probabilities": counts, "epsilon": [0.5], "shift": 1},
        "fitting_rate": {"ratio": 2.0, "momentum": 0.9, "max_grad_norm": 1.0},
        "signal_of_run": {"ratio": 0.1, "num_steps": 9.0, "num_parameters": 16},
        "signal_to_noise": {"batch_size": 8.0, "noise_multiplier": 1.0, "num_parameters": 16},
        "subset_recovery_prior": {"memberships": np.eye(3, 2), "num_correct": 1, "weights": [0.5, 0.5]},
        "taken_of_shares": {"ledger": ledger, "plan": plan, "without": None},
        "world_success_bound": {"orders": [2.0], "epsilons": [0.1], "prior": 0.5, "order_index": 0},
    }  # fmt: skip


def of_mechanisms(folder: Path) -> Recipes:
    halves = sce.BalancedSubsets(8, num_subsets=4)
    secret, other, third = (halves.draw_secret(folder / f"{name}.key") for name in "abc")
    outputs, law, row = np.array([[0.0], [1.0], [2.0], [5.0]]), np.full(4, 0.25), np.ones(3)
    noise, generator = mec.MixtureNoise.gaussian(np.eye(1)), SecureGenerator()
    released = mec.certify_mechanism(noise, mec.FiniteOutputs(outputs), 0.5, secret="a row")
    mec.privatize(lambda rows: np.zeros(1), other, 0.1, ledger=folder / "released.db", workers=1, progress=False)
    released.save(folder / "released.npz")
    attribute, profile = sce.AttributeScenario.from_shifts({0: [0.0], 1: [1.0]}), sce.SliceProfile.coordinate(1)
    game = mec.AdaptiveComposition(law, 1)
    answers = mec.AdaptiveComposition(law, 1).release_batch([[0, 1, 1, 1]], 0.1)
    forest = mec.FixedForest.random(2, 1, 2, 2).fit(np.ones((4, 2)), [0, 1, 0, 1])
    votes = np.array([[0, 1, 1, 1]])
    fourth = halves.draw_secret(folder / "d.key")
    responder = mec.PACResponder(np.asarray, fourth, 0.01, folder / "asked.db")
    responder.release(votes, requests=["first"])
    numbers = itertools.count()
    stream = mec.StreamingCoordinateNoise()
    stream.update([0.5])
    stream.update([1.5])
    draws = np.random.default_rng(0).normal(size=(40, 1))
    sampling = {"confidence": 0.9, "num_draws": 64, "generator": generator}
    sliced = {"epsilon": 1.0, "renyi_order": 4.0, "notion": "joint"}
    moments = {"mean": np.zeros(1), "covariance": np.eye(1)}
    return {
        "AdaptiveComposition": {
            "prior": law, "secret": 1, "rule": "logdet", "total_budget": 1.0, "generator": generator,
        },
        "AlignBasis": {"public": np.eye(2)},
        "AlignClusters": {"public": np.eye(2)},
        **{
            f"{name}.__call__": {"self": form, "output": np.ones((2, 2))}
            for name, form in [
                ("AlignBasis", mec.AlignBasis(public=np.eye(2))), ("FixSigns", mec.FixSigns(public=np.eye(2))),
                ("AlignClusters", mec.AlignClusters(public=np.eye(2))), ("CanonicalForm", mec.SortRows()),
                ("SortRows", mec.SortRows()),
            ]
        },
        "BoundedOutputs": {"centre": np.zeros(1), "radius": 1.0},
        "Certificate": {
            "mutual_information": 0.5, "confidence": 1.0, "method": "by hand", "estimate": 0.4, "about": "the secret",
        },
        "FiniteOutputs": {"outputs": outputs, "weights": law},
        "FixSigns": {"public": np.eye(2)},
        "FixedForest": {
            "feature_orders": [[0, 1, 0]], "num_classes": 2, "step": 0.01, "neighbor_weight": 0.0,
            "threshold_penalty": 0.0, "leaf_weight": 2.0,
        },
        "FixedForest.random": {"num_features": 2, "num_trees": 1, "depth": 2, "num_classes": 2, "seed": 0},
        "JointRelease": {"mechanisms": [released]},
        "KnownMoments": {**moments, "sampler": lambda n: np.zeros((n, 1))},
        "MixtureNoise": {"weights": np.ones(1), "means": np.zeros((1, 1)), "loadings": np.ones((1, 1, 1))},
        "MixtureNoise.gaussian": {"covariance": np.eye(1)},
        "PACResponder": {
            "model": np.asarray, "secret": secret, "budget_per_response": 0.01, "ledger": folder / "responses.db",
            "budget": 1.0, "rule": "logdet", "account": "responses",
        },
        "PACResponder.__call__": {"self": responder, "inputs": votes, "budget": [0.1]},
        "PositiveNoise": {},
        "PositiveNoise.for_dp": {
            "epsilon": 1.0, "delta": 1e-3, "compositions": 1, "max_value": 40, "second_moment": None, "sensitivity": 1,
            "accounting": "exact",
        },
        "PositiveNoise.for_maximal_leakage": {
            "states": [0, 1], "prior": [0.5, 0.5], "cost": [[0.0, 1.0], [0.0, 1.0]], "leakage": 0.5,
        },
        "PositiveNoise.for_pac": {"output_variance": 1.0, "max_value": 10.0, "second_moment": 9.0},
        "ReleasedMechanism.load": {"path": folder / "released.npz"},
        "SlicedWassersteinMechanism": {
            "scenario": attribute, "query": np.asarray, "profile": profile, **sliced, "covariance": "isotropic",
            "joint": "max", "ledger": folder / "sliced.db", "generator": generator,
        },
        "SortRows": {"public": np.eye(2)},
        "StreamingCoordinateNoise": {"tolerance": 1e-6, "check_every": 10, "basis": np.eye(2)},
        "AdaptiveComposition.release": {"self": game, "outputs": [0, 1, 1, 1], "budget": 0.1},
        "AdaptiveComposition.release_batch": {"self": game, "outputs": [[0, 1, 1, 1]], "budget": [0.1]},
        "AdaptiveComposition.replay": {
            "self": game, "outputs": [[0, 1, 1, 1]], "values": answers.values, "budget": [0.1],
        },
        **methods(
            mec.FixedForest.random(2, 1, 2, 2), fit={"features": np.ones((4, 2)), "labels": [0, 1, 0, 1]},
            predict={"vector": forest, "features": np.ones((4, 2))},
        ),
        **methods(
            mec.calibrate_gaussian(outputs, 0.5), draw={"value": [0.0], "generator": generator},
            release={"value": [0.0], "generator": generator}, sample={"size": 2, "generator": generator},
            whiten={"value": np.ones((1, 1))},
        ),
        **methods(
            mec.JointRelease([released]), card={"proven": None, "estimates": ()},
            certify={**sampling, "device": "cpu"}, stack={"releases": [np.zeros(1)]},
        ),
        **methods(
            mec.calibrate_lattice([0, 1], 0.5), probabilities={"noise": [0, 1]},
            release={"value": 0, "generator": generator}, sample={"size": 2, "generator": generator},
        ),
        **methods(
            noise, log_density={"values": np.zeros((2, 1))}, log_normalizer={"component": 0},
            sample={"size": 2, "generator": generator}, scaled={"factor": 2.0},
            whiten={"values": np.ones((2, 1)), "component": 0},
        ),
        **methods(
            responder, place_of={"request": "first"}, recorded_answer={"request": "first"},
            release={"inputs": votes, "budget": 0.01, "requests": [None], "payers": [None], "num_dummies": 0},
            release_outputs={"outputs": votes, "budget": 0.01},
        ),
        **methods(
            released, card={"num_releases": 1}, check={"values": [0.0]},
            open_account={"ledger": responder.ledger, "name": Fresh(lambda: f"release {next(numbers)}"), "budget": 1.0},
            release={"values": [0.0], "generator": generator}, sample={"size": 2, "generator": generator},
            save={"path": folder / "saved.npz"},
        ),
        **methods(
            mec.SlicedWassersteinMechanism(attribute, None, profile, ledger=folder / "query.db", **sliced),
            release={"data": [0.0]},
        ),
        **methods(stream, noise={"budget": 0.5}, update={"output": [0.5]}),
        "baselines": {
            "scenario": attribute,
            "query": np.asarray,
            "epsilon": 1.0,
            "renyi_order": 4.0,
            "cauchy_exponent": 4.0,
        },
        "bayes_filter": {"answers": answers, "alpha": 0.05},
        "bounded_output_information": {"radius": 1.0, "noise": noise},
        "calibrate_gaussian": {
            "outputs": outputs, "budget": 0.5, "weights": law, "rule": "coordinate", "basis": np.eye(1), **sampling,
        },
        "calibrate_lattice": {"outputs": [0, 1], "budget": 0.5, "weights": [0.5, 0.5]},
        "certified_correction": {
            "critic": lambda x: np.zeros(len(x)), "releases": draws, **moments, "bound": 1.0, "confidence": 0.9,
            "generator": generator,
        },
        "certify_finite_secret": {"whitened": outputs, "weights": law, **sampling, "device": "cpu"},
        "certify_mechanism": {
            "noise": noise, "law": mec.FiniteOutputs(outputs), "budget": 0.5, "secret": "a row",
            "loss": lambda x: np.zeros(len(x)), **sampling,
        },
        "certify_noise": {"outputs": outputs, "noise": noise, "weights": law, **sampling, "device": "cpu"},
        "compose_releases": {"mechanisms": [released], "counts": [1]},
        "confidence_auto_pac": {
            "outputs": outputs, "budget": 0.5, "confidence_budget": 0.1, "radius": 5.0, "security": 0.1,
        },
        "coupled_differences": {"outputs": outputs, "memberships": halves.membership_table()},
        "density_critic": {"releases": draws, **moments, "bound": 1.0},
        "donsker_varadhan_correction": {
            "release_scores": np.zeros(9), "gaussian_scores": np.zeros(9), "bound": 1.0, "confidence": 0.9,
        },
        "hypothesis_filter": {"answers": answers, "alpha": 0.05, "paper_level": False},
        "individual_noise": {"outputs": outputs, "memberships": halves.membership_table(), "budget": 0.5},
        "isotropic_covariance": {"sensitivities": np.ones((1, 1)), "profile": profile, **sliced, "joint": "max"},
        "linear_variances": {"eigenvalues": row, "budget": 0.5},
        "logdet_bound": {"eigenvalues": row, "variances": row},
        "logdet_information": {"covariance": np.eye(1), "noise": noise},
        "logdet_variances": {"eigenvalues": row, "budget": 0.5},
        "optimized_covariance": {
            "sensitivities": np.ones((1, 1)), "profile": profile, **sliced, "joint": "max", "floor": 0.05,
        },
        "privatize": {
            "box": lambda rows: np.zeros((2, 2)), "secret_space": third, "budget": 0.1, "rule": "logdet",
            "ledger": folder / "privatize.db", "data": np.ones((8, 1)), "public": np.ones((8, 1)),
            "canonicalize": [mec.SortRows()], "workers": 1, "cache": folder / "cache", "fingerprint": "box",
            "account": "runs", "confidence": 0.9, "progress": False, "generator": generator,
        },
        "released_values": {"secret": other, "ledger": folder / "released.db", "account": "privatize"},
        "slice_sensitivities": {"scenario": attribute, "outputs": attribute.outputs(None), "profile": profile},
        "sliced_cost": {
            "sensitivities": np.ones((1, 1)), "profile": profile, "covariance": np.eye(1), "renyi_order": 4.0,
            "notion": "joint", "joint": "max",
        },
        "sliced_wasserstein_correction": {"releases": draws, **moments, "num_slices": 8, "generator": generator},
        "transport_critic": {"releases": draws, **moments, "bound": 1.0},
        "unsliced_cost": {"differences": [np.ones((1, 1))], "covariance": np.eye(1), "renyi_order": 4.0},
        "wasserstein": {"first": row, "second": row, "p": 1.0},
        "wasserstein_infinity": {"first": row, "second": row},
    }  # fmt: skip


def of_audits(folder: Path) -> Recipes:
    halves = sce.BalancedSubsets(8, num_subsets=4)
    beliefs, secrets, rng = np.full((3, 4), 0.25), [0, 1, 2], np.random.default_rng(0)
    attack = aud.membership_attack(beliefs, secrets, halves)
    audit = aud.simulate_beliefs([[0, 1, 1, 1]], 0.1, 2, [1])
    recovery = aud.recovery_attack(beliefs, secrets, halves, [0, 1], 1)
    points, scores = np.array([[0.0, 0.0], [1.0, 2.0]]), np.arange(4.0)
    return {
        **methods(attack, refutes={"bound": 0.5}),
        **methods(
            audit, bound={"space": halves}, plot={"space": halves, "path": folder / "audit.png"},
            success={"space": halves},
        ),
        **methods(recovery, bound={"mutual_information": 0.5}, refutes={"mutual_information": 0.5}),
        "alarms": {"tests": [aud.AuditTest("a", 0.5, "")], "rate": 0.1},
        "claim_p_value": {"num_canaries": 9, "num_guesses": 5, "num_right": 4, "curve": acc.GaussianCurve(1.0)},
        "count_test": {"name": "a", "number": 3, "trials": 9, "rate": 0.5},
        "deviation_test": {"name": "a", "sum_of_squares": 3.0, "number": 9, "deviation": 0.5},
        "epsilon_lower_bound": {
            "num_canaries": 9, "num_guesses": 5, "num_right": 4, "delta": 1e-3, "confidence": 0.9,
        },
        "exact_test": {"name": "a", "holds": True, "seen": "b"},
        "gaussian_lower_bound": {"num_canaries": 9, "num_guesses": 5, "num_right": 4, "confidence": 0.9},
        "guess_coins": {
            "attacker": "white-box", "scores": scores, "coins": scores > 1, "curve": acc.GaussianCurve(1.0),
            "num_guesses": 2, "delta": 1e-3, "confidence": 0.9,
        },
        "law_test": {"name": "a", "noise": scores},
        "pure_p_value": {"num_canaries": 9, "num_guesses": 5, "num_right": 4, "epsilon": 1.0, "delta": 1e-3},
        "cluster_confidence": {"centers": points, "records": points},
        "compare_private_means": {
            "records": rng.random((8, 2)), "space": halves, "mutual_information": 0.5, "rule": "logdet",
            "num_trials": 4, "rng": 0,
        },
        "decoder_leakage": {
            "log_posteriors": np.log(beliefs[0, :3]), "secrets": secrets, "prior": np.full(4, 0.25), "confidence": 0.9,
            "smoothing": 0.01,
        },
        "empirical_likelihood_attack": {
            "scores": rng.random((6, 5)), "memberships": np.arange(30).reshape(6, 5) % 2, "confidence": 0.9,
        },
        "gaussian_map_attack": {
            "answers": np.zeros((3, 1)), "secrets": [0, 1, 1], "means": {0: [0.0], 1: [1.0]}, "prior": {0: 0.5, 1: 0.5},
            "noise_covariance": np.eye(1), "law_covariances": {0: np.eye(1), 1: np.eye(1)}, "confidence": 0.9,
        },
        "gaussian_mixture_divergence": {
            "first": np.zeros(2), "second": np.ones(2), "deviation": 1.0, "renyi_order": 2.0,
        },
        "informed_membership_prior": {"space": halves, "num_known": 1, "num_trials": 4, "rng": 0},
        "likelihood_ratio_attack": {
            "scenario": WORLDS, "sampling": POISSON, "noise_multiplier": 2.0, "num_steps": 2, "num_runs": 40,
            "confidence": 0.9, "rng": 0,
        },
        "loss_threshold_attack": {"member_losses": scores, "nonmember_losses": scores, "confidence": 0.9, "rng": 0},
        "margin_confidence": {"hyperplanes": [[1.0, 0.0, 0.5]], "records": points},
        "membership_attack": {"beliefs": beliefs, "secrets": secrets, "space": halves, "confidence": 0.9},
        "membership_posterior": {"beliefs": beliefs, "memberships": halves.membership_table()},
        "proportion_interval": {"successes": 3, "trials": 9, "confidence": 0.9},
        "recovery_attack": {
            "beliefs": beliefs, "secrets": secrets, "space": halves, "records": [0, 1], "num_correct": 1,
            "confidence": 0.9,
        },
        "simulate_beliefs": {
            "votes": [[0, 1, 1, 1]], "budget": 0.1, "num_trials": 2, "checkpoints": [1], "rule": "logdet",
            "generator": SecureGenerator(),
        },
        "sliced_divergence": {
            "first": points, "second": points + 1, "covariance": np.eye(2), "profile": sce.SliceProfile.coordinate(2),
            "renyi_order": 2.0,
        },
    }  # fmt: skip


def of_randomness(folder: Path) -> Recipes:
    return {
        "SecureGenerator": {"seed": 1},
        "SecureGenerator.from_key": {"key": bytes(32)},
        **methods(
            SecureGenerator(),
            bernoulli={"rate": 0.5, "size": (2,)},
            bytes={"count": 2},
            choice={"weights": [0.5, 0.5]},
            fill_normal_={"tensor": torch.zeros(2)},
            integers={"high": 2**40, "size": (2,)},
            normal={"size": (2,)},
            release_={"total": torch.zeros(2), "deviation": 1.0, "step": 0.5},
            uniform={"size": (2,)},
        ),
        "finite_precision": {"num_draws": 4.0, "order": 3.0},
        "missing_tail": {"num_draws": 4.0},
        "secure_generator": {},
        "seed_globally_in_secret": {},
    }


def of_cards(folder: Path) -> Recipes:
    roc = Roc((0.0, 1.0), (0.0, 1.0))
    card = PrivacyCard("Title", "a label", (Guarantee("epsilon", 1.0, "nats", "a bound"),), ("none",))
    return {
        "Estimate": {
            "name": "epsilon", "value": 1.0, "unit": "nats", "meaning": "a guess", "method": "by hand",
            "interval": (0.5, 1.5), "confidence": 0.9,
        },
        "Guarantee": {"name": "epsilon", "value": 1.0, "unit": "nats", "meaning": "a bound"},
        "PrivacyCard": {
            "title": "Title", "secret": "a label", "guarantees": (Guarantee("epsilon", 1.0, "nats", "a bound"),),
            "conditions": ("none",), "estimates": (Estimate("epsilon", 1.0, "nats", "a guess"),), "details": {"a": 1},
            "roc": roc,
        },
        **methods(card, save={"directory": folder / "cards", "stem": "card"}, to_markdown={"picture": "roc.png"}),
        **methods(roc, at={"false_positive_rate": 0.5}),
        "Roc": {"false_positive_rates": (0.0, 1.0), "true_positive_rates": (0.0, 1.0)},
        "Roc.of": {"true_positive_rate": lambda rate: rate},
        "at_most": {"probability": 0.5},
        "downwards": {"bound": 3.0, "digits": 4},
        "upwards": {"bound": 3.0, "digits": 4},
        "draw_rocs": {"curves": {"run": roc}},
    }  # fmt: skip


def of_callbacks(folder: Path) -> Recipes:
    secret = sce.BalancedSubsets(8, num_subsets=4).draw_secret(folder / "secret.key")
    responder = mec.PACResponder(np.asarray, secret, 0.01, folder / "answers.db")
    responder.close()
    noise = mec.MixtureNoise.gaussian(np.eye(1))
    released = mec.certify_mechanism(noise, mec.FiniteOutputs(np.eye(4)[:, :1]), 0.5, secret="a row")
    promise = {
        "scenario": WORLDS, "epsilon": 1.0, "renyi_order": 4.0, "ledger": folder / "study.db", "delta": None,
        "world_success_bound": None, "prior": 0.5,
    }  # fmt: skip
    delays = mec.PositiveNoise.for_dp(1.0, 1e-3)
    return {
        "CanaryAudit": {
            "canaries": [torch.zeros(2)], "others": [torch.ones(2)], "false_alarm_rate": 0.01, "delta": 1e-5,
            "num_guesses": 1, "generator": SecureGenerator(),
        },
        "DPSGD": {
            "epsilon": 1.0, "delta": 1e-5, "sampling": sce.Poisson(0.1, 4), "max_grad_norm": 1.0,
            "block_noise": "optimal", "ledger": folder / "study.db", "views": 2, "unit": None, "noise_multiplier": None,
        },
        "DummyPadding": {"noise": delays, "ledger": folder / "padding.db"},
        "PACResponses": {
            "responder": None, "secret": folder / "secret.key", "budget_per_response": 0.01,
            "ledger": folder / "answers.db", "budget": 1.0,
        },
        "PositiveDelay": {
            "noise": delays, "unit": 0.001, "max_duration": 1.0, "on_overrun": "raise", "ledger": folder / "delays.db",
        },
        **methods(cal.PositiveDelay(delays, max_duration=1.0), padded_duration={"duration": 0.5}),
        "PrivateMetrics": {
            "names": ["val/accuracy"], **promise, "noise_multiplier": None, "max_contribution": 1.0, "budget": 2.0,
        },
        "PrivateOutput": {
            "released": released.save(folder / "released"), "ledger": folder / "outputs.db", "budget": 1.0,
            "account": "predictions",
        },
        "SRPACDecoder": {
            "decoder": SoftmaxDecoder(1, 4), "perturbation": FullGaussian(1), "budget": 1.0, "utility": torch.sum,
            "penalty": "one_sided", "decoder_period": 5, "warmup_steps": 50, "decoder_lr": 1e-3, "noise_lr": 1e-2,
        },
        "SRPPSGD": {
            **promise, "noise_multiplier": None, "notion": "rpp", "sampling": POISSON, "max_grad_norm": 1.0,
            "block_noise": "optimal", "noise": None, "views": 2, "unit": PERSONS,
        },
    }  # fmt: skip


def of_ledger(folder: Path) -> Recipes:
    ledger = led.PrivacyLedger(folder / "study.db")
    account, plain = ledger.account("fit", "rpp", kind="training"), ledger.account("plain")
    secret = sce.BalancedSubsets(8, num_subsets=4).draw_secret(folder / "secret.key")
    transcript = led.ResponseTranscript(ledger, ledger.account("answers"), secret.key, secret.path, 1)
    transcript.append(b"answer", 1, 0.1, requests=["first"])
    new, old = led.PrivacyLedger(folder / "planned.db"), led.PrivacyLedger(folder / "old.db")
    old.close()
    led.backup_ledger(folder / "old.db", folder / "old.backup")
    card = PrivacyCard("Title", "a label", (Guarantee("epsilon", 1.0, "nats", "a bound"),), ("none",))
    attempt, numbers = account.start_attempt(), itertools.count()
    name = Fresh(lambda: folder / f"{next(numbers)}.db")
    return {
        **methods(led.LedgerHandle(folder / "study.db"), declare_as={"other": folder / "study.db"}),
        "copies_of_ledgers": {"folder": folder},
        "LedgerHandle": {"given": folder / "study.db", "witness": folder / "study.witness", "share": "a"},
        "PrivacyLedger": {"path": name, "budget": {"rpp": 1.0}, "witness": folder / "witness"},
        "PrivacyLedger.ensure": {"ledger": folder / "study.db", "witness": folder / "study.witness"},
        "PrivacyLedger.read_only": {"path": folder / "study.db"},
        **methods(
            ledger,
            account={
                "name": Fresh(lambda: f"account {next(numbers)}"), "currency": "carbon", "declaration": {},
                "budget": 1.0, "kind": "training", "table_hash": Fresh(lambda: f"table {next(numbers)}"),
            },
            budget={"currency": "rpp"},
            remaining={"currency": "rpp"},
            set_budget={"currency": "rpp", "amount": 1e9},
            spent={"currency": "rpp"},
        ),
        **methods(
            plain,
            attach_card={"card": card},
            book={"cost": 0.1, "event": {"release": 1}},
            charge={"cost": 0.1, "event": {"release": 1}},
            charge_many={"costs": [0.1], "events": [{"release": 1}]},
            check={"cost": 0.1},
            is_in={"storage": ledger.storage},
            set_budget={"amount": 1e9},
            start_attempt={"first_step": 2},
        ),
        **methods(
            transcript,
            entries={"after": 0},
            find={"request": "first"},
        ),
        "TrainingAttempt.start_step": {
            "self": attempt, "cost": 0.1, "step": Fresh(lambda: attempt.num_steps),
        },
        "adopt_ledger": {"ledger": ledger, "witness": folder / "adopted.mark"},
        "answers_for": {"ledger": ledger, "account": account, "key": secret.key, "index": 1},
        "backup_ledger": {"path": folder / "study.db", "target": name},
        "declare_plan": {"ledger": new, "plan": {"events": []}},
        "declare_budget": {
            "ledger": led.PrivacyLedger(folder / "promised.db"), "stated": {"epsilon": 1.0}, "amounts": {"rpp": 1.0},
        },
        "declared_budgets": {"ledger": new},
        "declared_plan": {"ledger": new},
        "describe_currency": {"currency": "rpp"},
        "change_promise": {"path": folder / "study.db", "options": "--epsilon 3.0"},
        "exact": {"value": 0.1},
        "first_charge": {"ledger": ledger},
        "lost_budgets": {"ledger": ledger},
        "promised_since": {"ledger": ledger},
        "public_journal": {"ledger": ledger},
        "read_entries": {"ledger": ledger, "account": account},
        "read_state": {"ledger": ledger, "account": account},
        "replay_journal": {"entries": led.public_journal(ledger), "path": name},
        "restore_ledger": {"path": folder / "old.db", "amounts": {}, "backup": folder / "old.backup", "otherwise": 0.0},
        "unpack_arrays": {"payload": led.pack_arrays([np.ones(2)])},
    }  # fmt: skip


def of_serve(folder: Path) -> Recipes:
    keys = APIKeys(folder / "keys.json")
    keys.add("alice")
    numbers = itertools.count()
    options = {
        "open_responder": lambda: None, "ledger": folder / "answers.db", "keys": folder / "keys.json",
        "host": "127.0.0.1",
    }  # fmt: skip
    return {
        "APIKey": {"name": "alice", "sha256": "0" * 64, "budget": 1.0},
        "APIKeys": {"path": folder / "keys.json"},
        **methods(
            keys,
            add={"name": Fresh(lambda: f"key-{next(numbers)}"), "budget": 1.0},
            find={"text": "a key"},
            remove={"name": Fresh(lambda: keys.add(name := f"gone-{next(numbers)}") and name)},
            set_budget={"name": "alice", "budget": 1.0},
        ),
        "as_tensor": {"inputs": [[1.0]], "shape": (1,)},
        "build_server": {
            **options, "collate": as_tensor, "max_batch_size": 2, "batch_timeout": 0.1, "max_request_bytes": 100,
            "rate_limit": "10/second", "timeout": 1.0, "shutdown_timeout": 1,
        },
    }  # fmt: skip


def of_data(folder: Path) -> Recipes:
    records = [0.0] * 20
    loader = dat.private_loader(records, sce.EpochShuffle(4))
    batches = {"num_records": 20, "batch_size": 4, "num_batches": 2, "generator": SecureGenerator()}
    passes = {"drop_last": False, "shuffle": True, "generator": SecureGenerator(), "keeps_order": False}
    share = dat.RankShare(0, 2, bytes(32))
    ours = {"sampling": POISSON, "num_microbatches": 2, "share": share, "persons": None, "views": 2}
    stock = DataLoader(records, batch_size=4)
    table = {"age": [30, ""], "job": ["clerk", None], "zip": ["1", "2"]}
    return {
        "FixedSizeBatchSampler": batches,
        "Persons": {"of": "user", "at_most": 2},
        "PoissonBatchSampler": {"num_records": 20, "rate": 0.1, "num_batches": 2, "generator": SecureGenerator()},
        **methods(loader, skip_microbatches={"count": 1}),
        "PrivateDataLoader.skip_microbatches": {"self": dat.private_loader(records, POISSON), "count": 1},
        "RankShare": {"rank": 0, "num_ranks": 2, "key": bytes(32)},
        **methods(dat.RankShare(0, 2, bytes(32)), generator={"num_passes": 1}),
        "SecretWorkerSeeds": {"then": lambda worker: None, "check": lambda dataset: None},
        "ShuffledBatchSampler": {"num_records": 20, "batch_size": 4, **passes},
        **methods(dat.ShuffledBatchSampler(20, 4), state_dict={"num_batches": 1}),
        "TableTransform": {"columns": {"age": [20, 60], "job": ["clerk"], "zip": 4}},
        "TableTransform.private": {
            "table": table,
            "columns": {"age": [20, 60], "job": ["clerk"], "zip": 4},
            "ledger": folder / "table.db",
            "scenario": WORLDS,
            "epsilon": 1.0,
            "delta": 1e-5,
            "world_success_bound": None,
            "prior": 0.5,
            "coverage": 0.9,
            "bins": 8,
            "account": "table",
        },
        "TableTransform.__call__": {"self": dat.TableTransform({"age": [20, 60]}), "table": table},
        **methods(dat.TableTransform({"age": [20, 60]}), invented_rows={"number": 3, "seed": 1}),
        "WithIndex": {"dataset": records},
        "WithReplacementBatchSampler": batches,
        "batch_sizes": {"dataloader": stock},
        "check_records_alone": {"dataset": records, "of_persons": False},
        "count_records": {"dataloader": stock},
        "describe_loader": {"dataloader": stock},
        "hide_worker_seeds": {"dataloader": stock},
        "most_records": {"expected": 400.0, "num_differing": 1, "expected_differing": 1.0},
        "order_is_public": {"dataloader": stock},
        "private_loader": {"dataset": records, **ours},
        "rebuild_loader": {"dataloader": stock, **ours},
    }


class Stepping:
    """An engine that attaches for each call."""

    def __init__(self) -> None:
        self.engine, self.linear = make_engine(), torch.nn.Linear(2, 1)

    def attach(
        self,
        module: torch.nn.Module,
        blocks: Any = None,
        rows_per_record: int = 1,
        gathered: Any = None,
        gathering: Any = nullcontext,
    ) -> None:
        self.engine.attach(module, blocks, rows_per_record, gathered, gathering)
        self.engine.detach()

    def clipped_sum(
        self,
        max_grad_norm: float,
        scale: float = 1.0,
        num_records: int | None = None,
        rule: Any = clip,
        unused_rows: Any = None,
    ) -> Any:
        return self._clipped("clipped_sum", max_grad_norm, scale, num_records, rule, unused_rows)

    def clipped_parts(
        self,
        max_grad_norm: float,
        scale: float = 1.0,
        num_records: int | None = None,
        rule: Any = clip,
        unused_rows: Any = None,
    ) -> Any:
        return self._clipped("clipped_parts", max_grad_norm, scale, num_records, rule, unused_rows)

    def _clipped(self, method: str, *args: Any) -> Any:
        self.engine.attach(self.linear)
        try:
            self.linear(torch.ones(3, 2)).mean().backward()
            sums, norms = getattr(self.engine, method)(*args)
            return list(sums), norms
        finally:
            self.engine.detach()


class Mean(torch.nn.Module):
    """A model that computes its loss."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.mean()


def scaled(call: Call) -> Any:
    """A rule of products with a row of factors."""
    values, factors = call.args
    if not (call.is_batched(values) and call.is_free(factors) and factors.shape == values.shape[-1:]):
        return None
    products = call.by_record(values) * call.gradient_by_record()
    return [(factors, lambda: Dense(products.flatten(1, -2).sum(1) if products.dim() > 2 else products))]


def of_gradients(folder: Path) -> Recipes:
    stepping = Stepping()
    engine, linear, other = make_engine(), torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    engine.attach(linear)
    clipping: dict[str, Any] = {"max_grad_norm": 1.0, "scale": 1.0, "num_records": 2, "rule": clip}
    clipping["unused_rows"] = torch.zeros(3, dtype=torch.bool)
    return {
        "GradientEngine.attach": {
            "self": stepping, "module": other, "blocks": {"all": ["weight", "bias"]}, "rows_per_record": 1,
            "gathered": dict(other.named_parameters()), "gathering": nullcontext,
        },
        "GradientEngine.clipped_sum": {"self": stepping, **clipping},
        "GradientEngine.clipped_parts": {"self": stepping, **clipping},
        "coupling_error": {
            "engine": engine, "loss": lambda rows: linear(torch.ones(4, 2)[rows]).mean(), "num_records": 4,
        },
        "Dense": {"gradients": torch.zeros(2, 1)},
        "check_rule": {
            "function": torch.mul, "rule": scaled, "cases": [(torch.ones(4, 2), torch.nn.Parameter(torch.ones(2)))],
        },
        "per_record_mean": {"model": Mean(), "batch": torch.ones(4, 2)},
        "private_gradients": {
            "module": other, "loss_fn": lambda module, batch: module(batch).mean(), "batch": torch.ones(4, 2),
            "max_grad_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 4.0, "scenario": WORLDS, "sampling": POISSON,
            "num_records": 3,
        },
        "register_rule": {
            "function": lambda values: values, "rule": scaled, "needs_values": True, "prepare": lambda *call: None,
        },
        "flat_sum": {"sums": [torch.zeros(2)]},
        "make_engine": {"name": "auto", "public_terms": False, "rests": bool},
    }  # fmt: skip


def of_strategies(folder: Path) -> Recipes:
    ranks = Ranks()
    shards, trainer = RowShards(ranks, 3), pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    return {
        "FixedScalePrecision": {"scale": 2.0, "device": "cuda"},
        "PrivateDDPStrategy": {
            "accelerator": None, "parallel_devices": [torch.device("cpu")], "cluster_environment": None,
            "checkpoint_io": None, "precision_plugin": None, "process_group_backend": "gloo",
            "timeout": timedelta(seconds=1), "start_method": "spawn",
        },
        "PrivateFSDPStrategy": {"process_group_backend": "gloo", "timeout": timedelta(seconds=1)},
        "Ranks": {"rank": 0, "size": 1, "device": torch.device("cpu")},
        "Ranks.of": {"trainer": trainer},
        **methods(
            ranks,
            agree={"declare": dict},
            anywhere={"flag": True},
            exchange={"bring": int, "answer": sum},
            together={"action": int},
        ),
        "RowShards": {"ranks": ranks, "num_rows": 3},
        **methods(shards, cut={"stacked": torch.zeros(3)}),
    }  # fmt: skip


def of_tuning(folder: Path) -> Recipes:
    space = tun.SearchSpace({"lr": tun.Uniform(0.1, 1.0)})
    generator = SecureGenerator()
    event = acc.GaussianRelease(0.5)
    return {
        "Choice": {"values": [1, "a"]},
        "Integers": {"low": 1, "high": 3},
        "LogUniform": {"low": 0.1, "high": 1.0},
        "PrivateSelection": {
            "space": space, "score": "val/accuracy", "one_run": {"fit": event}, "scenario": WORLDS,
            "ledger": folder / "study.db", "folder": folder / "selection", "runs": acc.NumberOfRuns(0.05),
            "mode": "max", "renyi_order": 16.0, "wall_time": 1.0, "num_draws": 1e6,
        },
        "PublicProxy": {
            "make_module": pl.LightningModule, "train": DataLoader([1]), "evaluation": DataLoader([1]),
            "score": "val/accuracy", "max_grad_norm": 1.0,
        },
        "SearchSpace": {"settings": space.settings},
        **methods(space, draw={"generator": generator}),
        "SelectionRun": {"settings": {"lr": 0.1}, "folder": folder, "plan": acc.LedgerPlan({"fit": event})},
        **methods(tun.SelectionRun({}, folder, acc.LedgerPlan({"fit": event})), ledger={"share": "fit"}),
        "Uniform": {"low": 0.1, "high": 1.0},
        **methods(space.settings["lr"], draw={"generator": generator}),
        **methods(tun.Integers(1, 3), draw={"generator": generator}),
        **methods(tun.LogUniform(0.1, 1.0), draw={"generator": generator}),
        **methods(tun.Choice([1]), draw={"generator": generator}),
    }  # fmt: skip


def of_report(folder: Path) -> Recipes:
    run = rep.Run("run")
    (folder / "log").mkdir()
    (folder / "log" / "metrics.csv").write_text("step,loss\n1,2\n")
    return {
        "Run": {
            "name": "run",
            "metrics": {"loss": rep.Series((1,), (2.0,))},
            "card": None,
            "folder": folder,
            "hparams": {"lr": 0.1},
        },
        "Series": {"steps": (1,), "values": (2.0,)},
        "find_runs": {"directory": folder / "log"},
        "left_out": {"directories": [folder / "log"], "runs": [run]},
        "summarize": {"run": run},
        "page_environment": {"folder": folder},
        "write_report": {"directory": folder / "log", "output": folder / "report.html", "runs": [run]},
    }


def of_evidence(folder: Path) -> Recipes:
    numbers = itertools.count()
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(key)
    with PrivacyLedger(folder / "proven.db") as ledger:
        ledger.account("clusters").charge(0.25)
    evi.write_evidence(folder / "proven.db", folder / "evidence", key=folder / "key.pem")
    return {
        "verify_evidence": {"folder": folder / "evidence", "key": folder / "key.pem"},
        "write_evidence": {
            "ledger": folder / "proven.db", "output": Fresh(lambda: folder / f"evidence {next(numbers)}"),
            "delta": 1e-5, "prior": 0.5, "statements": {"data": "Visits."}, "released": [folder / "key.pem"],
            "key": folder / "key.pem",
        },
    }  # fmt: skip


class Constant:
    """A learner that predicts one class."""

    def fit(self, features: Any, labels: Any) -> None: ...

    def predict(self, features: Any) -> Any:
        return np.zeros(len(features), dtype=np.int64)


def of_modules(folder: Path) -> Recipes:
    pool, outputs, features = sce.BalancedSubsets(8, num_subsets=4), torch.eye(4)[:, :1], torch.ones(4, 2)
    table, noise = mod.SecretTable(outputs), mod.FullGaussian(1)
    law = mec.FiniteOutputs(outputs.double().numpy())
    released = mec.certify_mechanism(mec.MixtureNoise.gaussian(np.eye(1)), law, 0.5, secret="a row")
    game = mod.StackelbergGame(table, mod.SoftmaxDecoder(1, 4), noise, 0.5)
    game.adopt(table)
    leader, follower = (torch.optim.SGD(part.parameters(), lr=1e-9) for part in (noise, game.play.decoder))
    joint = mod.JointDecoding(mec.JointRelease([released]))
    network = functools.partial(torch.nn.Linear, 2, 2)
    ensemble, learners = mod.SubsetEnsemble(network, pool), mod.LearnerEnsemble(Constant, pool)
    learners.fit(np.ones((8, 2)), np.zeros(8, int), progress=False).save(folder / "learners")
    torch.save(_checkpoint(ensemble), folder / "shard")
    stack = mod.StackedNetwork(torch.nn.Linear(2, 2), 3)
    secret = pool.draw_secret(folder / "secret.key")
    responder = mec.PACResponder(ensemble, secret, 0.01, folder / "answers.db")
    loader = DataLoader(features, batch_size=2)
    sizes = {"release_size": 1, "hidden_size": 4}
    chosen = {"members": [0, 1], "seed": 0}
    draws = {"num_draws": 64, "confidence": 0.9}
    decoder = mod.GaussianDecoder(1, 2)
    standard = {"outputs": outputs, "secrets": features, "noise_deviation": torch.ones(1)}
    return {
        "DiagonalGaussian": {"dimension": 2},
        "DistilledDataModule": {
            "responder": responder, "public_dataset": [0.0, 1.0], "alpha": 0.1, "filter": "bayes", "balance": False,
            "mix": "mixup", "num_classes": 3, "transform": np.asarray, "batch_size": 2, "num_workers": 1,
            "val_dataset": [0.0],
        },
        "FixedNoise": {"noise": released.noise},
        "FullGaussian": {"dimension": 2},
        "GaussianDecoder": {**sizes, "secret_size": 2},
        "GaussianMixture": {"dimension": 2, "num_components": 2},
        "IsotropicGaussian": {"dimension": 2},
        "JointDecoding": {
            "joint": mec.JointRelease([released]), "decoder": mod.SoftmaxDecoder(1, 4), "features": features,
            "lr": 0.1, "batch_size": 2,
        },
        **methods(joint, leakage=draws),
        "LearnerEnsemble": {"learner": Constant, "pool": pool, **chosen},
        "LearnerEnsemble.gather": {
            "checkpoints": [folder / "learners"], "learner": Constant, "pool": pool, "seed": 0,
        },
        **methods(
            learners,
            fit={"features": np.ones((8, 2)), "labels": np.zeros(8, int), "progress": False},
            member={"index": 1},
            save={"path": folder / "saved"},
            votes={"features": np.ones((8, 2))},
        ),
        "LowRankGaussian": {"dimension": 2, "rank": 1},
        "MembershipDecoder": {**sizes, "num_records": 3},
        **methods(decoder, standardize=standard),
        **methods(mod.MixtureDecoder(1, 2), standardize=standard),
        "MixtureDecoder": {**sizes, "secret_size": 2, "num_components": 2},
        "PosteriorDecoder": {"outputs": outputs, "perturbation": noise, "prior": torch.full((4,), 0.25)},
        **{
            name.replace("GaussianDecoder", "Decoder"): recipe
            for name, recipe in methods(
                decoder,
                covers={"candidates": features},
                log_posterior={"release": outputs, "candidates": features, "log_prior": torch.zeros(4)},
                log_prob={"secret": features, "release": outputs},
                standard={"release": outputs},
                standardize=standard,
            ).items()
        },
        **{
            name.replace("FullGaussian", "Perturbation"): recipe
            for name, recipe in methods(
                mod.FullGaussian(1), log_prob={"noise": outputs}, rsample={"size": 2}, scale_={"factor": 1.0}
            ).items()
        },
        "SavedResponder": {
            "checkpoints": ["a.ckpt"], "network": network, "pool": pool, "secret": "secret.key", "ledger": "a.db",
            "budget_per_response": 0.1, "budget": 1.0, "seed": 0, "device": "cpu",
        },
        "SecretTable": {"outputs": outputs, "weights": torch.full((4,), 0.25), "features": features, "secret": "a row"},
        "SecretTable.of_records": {"mechanism": lambda rows: rows, "loader": loader, "secret": "a row"},
        **methods(table, candidates={"decodes": "index"}, draw={"size": 2}, indices_of={"batch": None}),
        "SoftmaxDecoder": {**sizes, "num_secrets": 4},
        "SquaredNorm": {},
        "StackedNetwork": {"network": torch.nn.Linear(2, 2), "num_copies": 3, "chunk_size": 2},
        **methods(
            stack,
            copy_state={"index": 1},
            losses={
                "inputs": features, "targets": torch.zeros(4, dtype=torch.long),
                "membership": torch.ones(3, 4, dtype=torch.bool), "loss": torch.nn.functional.cross_entropy,
            },
        ),
        "StackelbergGame": {
            "mechanism": table, "decoder": mod.SoftmaxDecoder(1, 4), "perturbation": noise, "budget": 0.5,
            "utility": torch.sum, "penalty": "one_sided", "penalty_weight": 1.0, "margin": 0.1, "decoder_period": 2,
            "warmup_steps": 2, "decoder_lr": 0.1, "noise_lr": 0.1, "batch_size": 4, "secret": "a row",
        },
        **methods(
            game,
            adopt={"table": table},
            advance={"batch": None, "optimizers": [leader, follower], "backward": torch.Tensor.backward},
            certify={**draws, "law": law, "generator": SecureGenerator()},
            leakage=draws,
        ),
        "SubsetEnsemble": {
            "network": network, "pool": pool, "loss": torch.nn.functional.cross_entropy, "optimizer": torch.optim.SGD,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR, **chosen, "chunk_size": 2,
        },
        "SubsetEnsemble.gather": {"checkpoints": [folder / "shard"], "network": network, "pool": pool},
        **methods(ensemble, member={"index": 1}, votes={"inputs": features}),
        "SubspaceNorm": {"task_basis": torch.eye(2)[:, :1], "weight": 2.0},
        "TaskSubspaceGaussian": {"dimension": 2, "task_basis": torch.eye(2)[:, :1]},
        "WeightedNorm": {"weights": torch.ones(2)},
        "fix_batch_norm": {"model": torch.nn.Linear(2, 2)},
        "label_privately": {
            "responder": responder, "dataset": [torch.ones(2), torch.zeros(2)], "alpha": 0.9, "filter_name": "bayes",
            "batch_size": 2,
        },
    }  # fmt: skip


def _checkpoint(ensemble: mod.SubsetEnsemble) -> dict[str, Any]:
    checkpoint = {"state_dict": ensemble.state_dict()}
    ensemble.on_save_checkpoint(checkpoint)
    return checkpoint
