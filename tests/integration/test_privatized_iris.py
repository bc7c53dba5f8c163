"""Iris K-Means against the figures that the text of *PAC-Private Algorithms* states for Figure 3."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.preprocessing import PowerTransformer
from sklearn.utils import shuffle

from lightning_pac.mechanisms import AlignClusters, FittedEstimator, calibrate_gaussian
from lightning_pac.mechanisms.privatization.box_runs import run_box
from lightning_pac.scenarios import ComplementaryHalves

BUDGETS = [4, 1, 1 / 2, 1 / 4, 1 / 16, 1 / 64, 1 / 128]
TRIALS = 1000


@pytest.fixture(scope="module")
def experiment():
    features, labels = load_iris(return_X_y=True)
    features, labels = shuffle(PowerTransformer(standardize=False).fit_transform(features), labels, random_state=0)
    test, test_labels = features[101:], labels[101:]
    form = AlignClusters(public=np.stack([test[test_labels == label].mean(axis=0) for label in range(3)]))
    box = FittedEstimator(KMeans(3, n_init=10, random_state=0), "cluster_centers_")
    outputs = run_box(box, ComplementaryHalves(100, 128), (features[:100],), workers=1, progress=False)
    return np.stack([form(output).ravel() for output in outputs]), test, test_labels


def accuracy(experiment, budget, rule):
    """Mean test accuracy of simulated releases, from seeds: the same in every run."""
    outputs, test, labels = experiment
    rng = np.random.default_rng(1)
    chosen = outputs[rng.integers(0, len(outputs), TRIALS)]
    if rule == "paper's isotropic":
        largest = calibrate_gaussian(outputs, budget, rule="coordinate").variances.max()
        draws = rng.normal(scale=np.sqrt(largest), size=chosen.shape)
    else:
        noise = calibrate_gaussian(outputs, budget, rule=rule)
        draws = noise.directions.expand(rng.standard_normal((TRIALS, len(noise.variances))) * noise.variances**0.5)
    centers = (chosen + draws).reshape(TRIALS, 3, 4)
    scores = test @ np.swapaxes(centers, 1, 2) - (centers**2).sum(axis=2)[:, None] / 2
    return float((scores.argmax(axis=2) == labels).mean())


@pytest.mark.parametrize("rule", ["coordinate", "logdet"])
def test_the_figures_of_the_text_are_met(experiment, rule):
    assert accuracy(experiment, 1 / 2, rule) == pytest.approx(0.95, abs=0.005)
    assert accuracy(experiment, 1 / 16, rule) > 0.85


@pytest.mark.parametrize("budget", BUDGETS)
def test_anisotropic_noise_is_not_below_isotropic_noise(experiment, budget):
    # Where nearly nothing is lost the curves meet: the standard error of a difference is about 0.001 there.
    anisotropic = accuracy(experiment, budget, "logdet")
    assert anisotropic > accuracy(experiment, budget, "isotropic") - 0.003
    if budget <= 1 / 16:
        assert anisotropic > accuracy(experiment, budget, "isotropic") + 0.005
        assert accuracy(experiment, budget, "coordinate") > accuracy(experiment, budget, "paper's isotropic") + 0.02
