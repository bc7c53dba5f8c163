"""Valid arguments of every public function and constructor, by package: each has a value for each parameter.

A value also says what may stand in its place (`is_of_the_type` in `test_bad_arguments.py`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from lightning_pac import accountants as acc, scenarios as sce
from lightning_pac.mechanisms import Certificate

Recipes = dict[str, dict[str, Any]]

# Types, bases that users do not call, results that the library makes, and what is read back from files.
NOT_CALLED = {
    "accountants": "Notion PrivacyCurve PrivacyEvent Promise ProvenInformation ReferenceDistribution StepFigures "
    "event_from_dict",
    "information": "Array check_budget check_total_budget",
    "scenarios": "Adjacency Sampling SecretIndex SecretSpace register_sampling sampling_from_dict",
}

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
        },
        "TwoWorldScenario.differential_privacy": {},
        "TwoWorldScenario.from_labels": {"labels_a": [0, 1], "labels_b": [0, 0], "secret": "a label"},
        "TwoWorldScenario.from_prevalence": {
            "labels": [0, 1] * 5, "secret_class": 1, "p0": 0.5, "p1": 0.6, "rng": 0, "world": 1,
        },
        "WithReplacement": {"batch_size": 4},
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
    run, event = acc.SRPPRun(account, 1.0, 5), acc.GaussianRelease(0.5)
    promise, proof, counts = acc.EpsilonDelta(1.0, 1e-5), Certificate(0.5, 1.0, "by hand"), [0.25, 0.5, 0.25]
    return {
        "ComposedRuns": {"runs": (run,)},
        "EpsilonDelta": {"epsilon": 1.0, "delta": 1e-5},
        "GaussianCurve": {"mu": 1.0},
        "GaussianReference": {"mean": np.zeros(1), "covariance": np.eye(1)},
        "GaussianRelease": {"mu_squared": 1.0},
        "GroupDPAccountant": {"scenario": WORLDS, "sampling": POISSON, "delta": 1e-5},
        "HybridRDP": {
            "order": 2.0, "divergence_up": 0.1, "tail_up": 0.01, "divergence_down": 0.1, "tail_down": 0.01,
        },
        "LogisticReference": {"scale": 1.0},
        "PoissonSteps": {
            "noise_multiplier": 1.0, "rate": 0.1, "num_steps": 5, "num_differing": 1, "adjacency": "add_remove",
            "nested": True, "holder": "first",
        },
        "PoissonSteps.of": {"scenario": WORLDS, "rate": 0.1, "noise_multiplier": 1.0, "num_steps": 5},
        "ResidualPrivacy": {"entropy": 2.0, "offset": 2.0, "proof": proof},
        "RunningAccount": {
            "accountant": account, "noise_multiplier": 1.0, "stretches": (3,), "planned_steps": 5, "promise": promise,
        },
        "SRPPAccountant": {
            "scenario": WORLDS, "sampling": POISSON, "renyi_order": 4.0, "notion": "ave",
            "slices": acc.SliceCoefficients((1.0,), (1.0,)), "joint_aggregation": "max",
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
        "least_noise": {"promise": promise, "events": lambda noise: [acc.GaussianRelease(noise**-2)]},
        "membership_prior": {"rate": 0.4},
        "membership_success_bound": {"mutual_information": 0.1, "prior": 0.5},
        "most_steps": {"promise": promise, "events": lambda steps: [acc.GaussianRelease(0.01 * steps)]},
        "opposite_mixtures_divergence": {
            "order": 2.0, "noise_multiplier": 1.0, "rate": 0.1, "num_first": 1, "num_second": 1,
        },
        "posterior_disadvantage": {"intrinsic": -0.5, "success": 0.6, "prior": 0.5},
        "privacy_curve": {"events": [event]},
        "promise_of": {"epsilon": 1.0, "delta": 1e-5, "world_success_bound": None, "prior": 0.5},
        "reference_offset": {"values": [[0.1], [0.2]], "reference": acc.LogisticReference()},
        "responses_until": {"epsilon": 1.0, "budget_per_response": 1e-3, "delta": 1e-5},
        "shift_hockey_stick": {"probabilities": counts, "epsilon": [0.5], "shift": 1},
        "subset_recovery_prior": {"memberships": np.eye(3, 2), "num_correct": 1, "weights": [0.5, 0.5]},
        "world_success_bound": {"orders": [2.0], "epsilons": [0.1], "prior": 0.5, "order_index": 0},
    }  # fmt: skip
