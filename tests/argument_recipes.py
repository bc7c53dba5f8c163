"""Valid arguments of every public function and constructor, by package: each has a value for each parameter.

A value also says what may stand in its place (`is_of_the_type` in `test_bad_arguments.py`).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_pac import accountants as acc, mechanisms as mec, scenarios as sce
from lightning_pac.cards import Estimate, Guarantee, Roc
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.modules import FullGaussian, SoftmaxDecoder
from lightning_pac.randomness import SecureGenerator

Recipes = dict[str, dict[str, Any]]

# Types, bases that users do not call, results that the library makes, and what is read back from files.
NOT_CALLED = {
    "accountants": "Notion PrivacyCurve PrivacyEvent Promise ProvenInformation ReferenceDistribution StepFigures "
    "LedgerTotal event_from_dict one_promise",
    "audits": "AttackResult AttributeAttackResult DecoderLeakage MeanComparison MembershipAudit RecoveryAudit",
    "information": "Array check_budget check_total_budget",
    "mechanisms": "Baseline BatchRelease CanonicalForm Composed FilteredLabels FittedEstimator "
    "GaussianNoise LatticeNoise NoiseRule OutputLaw PrivatizedOutput Release ReleasedMechanism",
    # Every release calls these.
    "randomness": "release_grid round_to_grid round_up",
    "scenarios": "Adjacency Sampling SecretIndex SecretSpace register_sampling sampling_from_dict",
}

# Arguments that may be anything.
ANYTHING = {"privatize": ["public"]}

# Arguments without a default that may be None.
OPTIONAL = {
    "AdaptiveComposition": ["secret"], "FixedForest": ["step"], "SlicedWassersteinMechanism": ["query"],
    "baselines": ["query"],
}  # fmt: skip

WORLDS = sce.TwoWorldScenario(2, num_records=100, adjacency="zero_out")
POISSON = sce.Poisson(0.1)
BATCHES = {"batch_size": 4, "drop_last": False, "steps_per_pass": 3}


def of_scenarios(folder: Path) -> Recipes:
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
    run, event = acc.SRPPRun(account, 1.0, 5), acc.GaussianRelease(0.5)
    ledger, plan = PrivacyLedger(folder / "accounts.db"), acc.LedgerPlan([event])
    planned = PrivacyLedger(folder / "with a plan.db")
    plan.declare(planned)
    (folder / "plan.json").write_text(json.dumps(plan.to_dict()))
    promise, proof, counts = acc.EpsilonDelta(3.0, 1e-5), mec.Certificate(0.5, 1.0, "by hand"), [0.25, 0.5, 0.25]
    return {
        "Banded": {"bands": 2},
        "BandedMatrix": {"coefficients": (0.8, 0.6)},
        "BandedMatrix.normalized": {"coefficients": [1.0, 0.5]},
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
        "LedgerPlan": {"shares": [event], "promise": promise, "num_draws": 1e9},
        "LedgerPlan.of": {"ledger": ledger},
        "LogisticReference": {"scale": 1.0},
        "PlannedLedger": {
            "given": folder / "planned.db", "witness": folder / "planned.mark", "share": "fit",
            "plan": folder / "plan.json", "epsilon": None,
            "delta": None, "world_success_bound": None, "prior": 0.5, "renyi_order": None,
        },
        "PoissonSteps": {
            "noise_multiplier": 1.0, "rate": 0.1, "num_steps": 5, "num_differing": 1, "adjacency": "add_remove",
            "nested": True, "holder": "first",
        },
        "PoissonSteps.of": {"scenario": WORLDS, "rate": 0.1, "noise_multiplier": 1.0, "num_steps": 5},
        "ResidualPrivacy": {"entropy": 2.0, "offset": 2.0, "proof": proof},
        "RunningAccount": {
            "accountant": account, "noise_multiplier": 1.0, "stretches": (3,), "planned_steps": 5, "promise": promise,
            "draws_per_step": 2,
        },
        "SGDWorkload": {
            "num_steps": 2, "learning_rates": (1.0, 0.5), "momentum": 0.9, "weight_decay": 0.01,
        },
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
        "ledger_events": {"ledger": ledger},
        "ledger_order": {"ledger": ledger},
        "ledger_total": {"ledger": ledger, "delta": 1e-5, "prior": 0.5},
        "least_noise": {"promise": promise, "events": lambda noise: [acc.GaussianRelease(noise**-2)]},
        "membership_prior": {"rate": 0.4},
        "membership_success_bound": {"mutual_information": 0.1, "prior": 0.5},
        "most_steps": {"promise": promise, "events": lambda steps: [acc.GaussianRelease(0.01 * steps)]},
        "optimal_bands": {"workload": workload, "num_bands": 2},
        "opposite_mixtures_divergence": {
            "order": 2.0, "noise_multiplier": 1.0, "rate": 0.1, "num_first": 1, "num_second": 1,
        },
        "posterior_disadvantage": {"intrinsic": -0.5, "success": 0.6, "prior": 0.5},
        "privacy_curve": {"events": [event]},
        "promise_of": {"epsilon": 1.0, "delta": 1e-5, "world_success_bound": None, "prior": 0.5},
        "reference_offset": {"values": [[0.1], [0.2]], "reference": acc.LogisticReference()},
        "responses_until": {"epsilon": 1.0, "budget_per_response": 1e-3, "delta": 1e-5},
        "share_terms": {"ledger": planned, "unit": [event], "share": "1"},
        "shift_hockey_stick": {"probabilities": counts, "epsilon": [0.5], "shift": 1},
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
    answers = mec.AdaptiveComposition(law, 1).release_batch([[0, 1, 1, 1]], 0.1)
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
        "baselines": {"scenario": attribute, "query": np.asarray, "epsilon": 1.0, "renyi_order": 4.0},
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
    points, scores = np.array([[0.0, 0.0], [1.0, 2.0]]), np.arange(4.0)
    return {
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
        "finite_precision": {"num_draws": 4.0},
        "missing_tail": {"num_draws": 4.0},
        "secure_generator": {},
        "seed_globally_in_secret": {},
    }


def of_cards(folder: Path) -> Recipes:
    roc = Roc((0.0, 1.0), (0.0, 1.0))
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
        "Roc": {"false_positive_rates": (0.0, 1.0), "true_positive_rates": (0.0, 1.0)},
        "Roc.of": {"true_positive_rate": lambda rate: rate},
        "at_most": {"probability": 0.5},
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
        "DPSGD": {
            "epsilon": 1.0, "delta": 1e-5, "sampling": sce.Poisson(0.1, 4), "max_grad_norm": 1.0,
            "block_noise": "optimal", "ledger": folder / "study.db",
        },
        "DummyPadding": {"noise": delays, "ledger": folder / "padding.db"},
        "PACResponses": {
            "responder": None, "secret": folder / "secret.key", "budget_per_response": 0.01,
            "ledger": folder / "answers.db", "budget": 1.0,
        },
        "PositiveDelay": {
            "noise": delays, "unit": 0.001, "max_duration": 1.0, "on_overrun": "raise", "ledger": folder / "delays.db",
        },
        "PrivateMetrics": {"names": ["val/accuracy"], **promise, "max_contribution": 1.0, "budget": 2.0},
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
            "block_noise": "optimal", "noise": None,
        },
    }  # fmt: skip
