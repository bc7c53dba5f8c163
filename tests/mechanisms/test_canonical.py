import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import optimize
from scipy.stats import entropy, ortho_group

from lightning_pac.mechanisms import (
    AlignBasis,
    AlignClusters,
    FittedEstimator,
    FixedForest,
    FixSigns,
    SortRows,
    privatize,
)
from lightning_pac.scenarios import ComplementaryHalves


def test_clusters_are_matched_at_the_least_distance_of_all_permutations():
    rng = np.random.default_rng(0)
    for _ in range(20):
        reference, centers = rng.normal(size=(2, 5, 3))
        aligned = AlignClusters(public=reference)(centers)
        best = min(((centers[list(order)] - reference) ** 2).sum() for order in itertools.permutations(range(5)))
        assert ((aligned - reference) ** 2).sum() == pytest.approx(best, rel=1e-12)
        assert sorted(aligned.tolist()) == sorted(centers.tolist())


def test_a_basis_is_rotated_within_its_span_as_close_as_a_search_finds():
    rng = np.random.default_rng(1)
    for _ in range(5):
        reference, basis = (ortho_group.rvs(5, random_state=rng)[:2] for _ in range(2))
        aligned = AlignBasis(public=reference)(basis)
        assert aligned @ aligned.T == pytest.approx(np.eye(2), abs=1e-12)
        assert aligned.T @ aligned == pytest.approx(basis.T @ basis, abs=1e-12)

        def distance(angle, sign, reference=reference, basis=basis):
            turn = np.array([[math.cos(angle), -math.sin(angle)], [sign * math.sin(angle), sign * math.cos(angle)]])
            return ((reference - turn @ basis) ** 2).sum()

        best = min(
            optimize.minimize_scalar(distance, bounds=(start, start + 1), method="bounded", args=(sign,)).fun
            for sign in (-1, 1)
            for start in np.arange(-3.2, 3.2, 0.5)
        )
        assert ((reference - aligned) ** 2).sum() == pytest.approx(best, abs=1e-6)


def test_the_printed_claim_is_no_rotation():
    # Claim 1: the leading block of V_A V_B^T. With orthonormal rows that is A B^T, a contraction.
    rng = np.random.default_rng(2)
    reference, basis = (ortho_group.rvs(4, random_state=rng)[:2] for _ in range(2))
    printed = reference @ basis.T
    assert np.linalg.norm(printed @ printed.T - np.eye(2)) > 0.1
    aligned = AlignBasis(public=reference)(basis)
    assert ((reference - printed @ basis) ** 2).sum() < ((reference - aligned) ** 2).sum()


def test_equal_subspaces_become_equal_outputs():
    rng = np.random.default_rng(3)
    basis = ortho_group.rvs(6, random_state=rng)[:3]
    form = AlignBasis(public=np.eye(3, 6))
    for _ in range(5):
        assert form(ortho_group.rvs(3, random_state=rng) @ basis) == pytest.approx(form(basis), abs=1e-12)


def test_signs_and_order_are_fixed():
    rows = np.array([[3.0, -1.0], [-1.0, 2.0], [1.0, 1.0]])
    signs = FixSigns(public=[1.0, 0.3])
    assert signs(rows) == pytest.approx(signs(-rows))
    assert (signs(rows) @ [1.0, 0.3] >= 0).all()
    assert SortRows()(rows[[2, 0, 1]]).tolist() == SortRows()(rows).tolist()
    assert SortRows(public=[0.0, -1.0])(rows)[:, 1].tolist() == [2.0, 1.0, -1.0]


def test_canonical_forms_save_noise_and_compose():
    rng = np.random.default_rng(4)
    centers = np.array([[0.0, 0.0], [5.0, 5.0], [0.0, 9.0]])
    records = np.repeat(centers, 30, axis=0) + rng.normal(size=(90, 2))
    halves = ComplementaryHalves(90, 16)

    def shuffled_means(rows):
        near = ((rows[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        means = np.stack([rows[near == cluster].mean(axis=0) for cluster in range(3)])
        return means[np.random.default_rng(int(rows.sum() * 1e6) % 2**31).permutation(3)]

    options = {"data": records, "workers": 1, "progress": False}
    plain = privatize(shuffled_means, halves, 0.5, **options)
    aligned = privatize(shuffled_means, halves, 0.5, canonicalize=AlignClusters(public=centers + 0.5), **options)
    assert aligned.power < plain.power / 20
    twice = privatize(shuffled_means, halves, 0.5, canonicalize=(SortRows(), FixSigns(public=[1, 1])), **options)
    assert [form["form"] for form in twice.card().details["canonical_forms"]] == ["SortRows", "FixSigns"]


@pytest.mark.parametrize(
    ("form", "output", "message"),
    [
        (AlignClusters(public=np.eye(2)), np.ones((3, 2)), r"reference has shape \(2, 2\) and the output \(3, 2\)"),
        (AlignBasis(public=np.eye(2)), np.ones(2), "must be a finite matrix"),
        (FixSigns(public=[1.0, 0.0, 0.0]), np.ones((2, 2)), "do not fit an output"),
        (SortRows(public=[1.0]), np.ones((2, 2)), "does not fit an output"),
    ],
)
def test_outputs_that_do_not_fit_the_reference(form, output, message):
    with pytest.raises(ValueError, match=message):
        form(output)


def test_references_must_be_numbers():
    with pytest.raises(ValueError, match="public must be a finite matrix"):
        AlignClusters(public=[[np.nan]])


def brute_force_threshold(values, labels, forest):
    def disorder(threshold):
        sides = [labels[values < threshold], labels[values >= threshold]]
        return sum(
            len(side) * entropy(np.bincount(side, minlength=forest.num_classes)) for side in sides if len(side)
        ) / len(values)

    grid = [round(index * forest.step, 10) for index in range(round(1 / forest.step) + 1)]
    found = []
    for place, threshold in enumerate(grid):
        around = [disorder(grid[at]) for at in (place - 1, place + 1) if 0 <= at < len(grid)]
        score = (1 - forest.neighbor_weight) * disorder(threshold) + forest.neighbor_weight * np.mean(around)
        found.append((1 - forest.threshold_penalty) * score + forest.threshold_penalty * threshold)
    return grid[int(np.flatnonzero(np.array(found) <= min(found) + 1e-12)[0])]


@pytest.mark.parametrize(("neighbors", "penalty"), [(0.0, 0.0), (0.4, 0.0), (0.2, 0.3), (0.0, 1.0)])
def test_thresholds_are_those_of_a_search(neighbors, penalty):
    rng = np.random.default_rng(5)
    forest = FixedForest([[0, 1]], 3, 0.1, neighbors, penalty)
    for _ in range(5):
        rows, labels = rng.random((40, 2)), rng.integers(0, 3, 40)
        vector = forest.fit(rows, labels)
        first = brute_force_threshold(rows[:, 0], labels, forest)
        assert vector[0] == pytest.approx(first)
        left = rows[:, 0] < vector[0]
        for place, side in ((1, left), (2, ~left)):
            expected = brute_force_threshold(rows[side, 1], labels[side], forest) if side.any() else 0.0
            assert vector[place] == pytest.approx(expected)


def test_a_forest_without_a_grid_is_as_good_as_a_tree_of_scikit_learn():
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(6)
    rows = rng.random((200, 1))
    labels = (rows[:, 0] > 0.37).astype(int)
    forest = FixedForest([[0]], 2, step=None)
    tree = DecisionTreeClassifier(max_depth=1, criterion="entropy", random_state=0).fit(rows, labels)
    queries = rng.random((300, 1))
    agree = forest.predict(forest.fit(rows, labels), queries) == tree.predict(queries)
    assert agree.mean() > 0.98


def test_leaves_are_part_of_what_is_released():
    # Same thresholds, other labels: a release of thresholds alone would have the same law, and its exact leaves would
    # tell the two apart.
    rows = np.array([[0.1], [0.4], [0.6], [0.9]])
    forest = FixedForest([[0]], 2, step=0.25)
    one, other = forest.fit(rows, np.array([0, 0, 1, 1])), forest.fit(rows, np.array([1, 1, 0, 0]))
    assert one[0] == other[0]
    assert len(one) == forest.size == 1 + 2 * 2
    assert (one[1:] != other[1:]).all()


def test_all_subsets_give_vectors_of_one_length():
    rng = np.random.default_rng(7)
    rows, labels = rng.random((60, 4)), rng.integers(0, 3, 60)
    forest = dataclasses.replace(FixedForest.random(4, num_trees=3, depth=3, num_classes=3), leaf_weight=5.0)
    private = privatize(forest.fit, ComplementaryHalves(60, 8), 0.5, data=(rows, labels), workers=1, progress=False)
    assert private.value.shape == (forest.size,)
    assert forest.predict(private.value, rows).shape == (60,)
    assert forest.fit(rows[:0], labels[:0]).shape == (forest.size,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_orders": [[0], [0, 1]]}, "same depth"),
        ({"num_classes": 1}, "num_classes is 1, but must be at least 2"),
        ({"step": 0.9}, "0 < step <= 0.5"),
        ({"neighbor_weight": 1.5}, r"\[0, 1\]"),
    ],
)
def test_bad_forests(options, message):
    with pytest.raises(ValueError, match=message):
        FixedForest(**{"feature_orders": [[0]], "num_classes": 2, **options})


def test_labels_outside_the_public_classes():
    forest, rows = FixedForest([[0]], 2), [[0.2], [0.7]]
    for labels in ([0, 2], [0, 0.5], [-1, 0]):
        with pytest.raises(ValueError, match=r"0 \.\.\. 1"):
            forest.fit(rows, labels)
    for labels in ([False, True], [0.0, 1.0]):
        assert (forest.fit(rows, labels) == forest.fit(rows, [0, 1])).all()


def test_estimators_return_what_they_learned():
    from sklearn.cluster import KMeans
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    rng = np.random.default_rng(8)
    rows, labels = rng.normal(size=(60, 4)), np.arange(60) % 3
    box = FittedEstimator(LinearSVC(random_state=0, max_iter=10_000), "coef_", "intercept_")
    fitted = LinearSVC(random_state=0, max_iter=10_000).fit(rows, labels)
    assert box(rows, labels) == pytest.approx(np.column_stack([fitted.coef_, fitted.intercept_]))
    centers = FittedEstimator(KMeans(3, n_init=1, random_state=0), "cluster_centers_", "inertia_")(rows)
    assert centers.shape == (3 * 4 + 1,)
    with pytest.raises(ValueError, match="random_state of KMeans is None"):
        FittedEstimator(KMeans(3), "cluster_centers_")
    with pytest.raises(ValueError, match="kmeans__random_state of Pipeline is None"):
        FittedEstimator(make_pipeline(KMeans(3)), "steps")
    with pytest.raises(ValueError, match="No fitted attribute"):
        FittedEstimator(KMeans(3, random_state=0))
