import contextlib
import json
import math
import operator
import pathlib
import time
import warnings

import numpy as np
import pytest
from scipy import integrate, stats

from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import (
    AlignBasis,
    AlignClusters,
    PACResponder,
    calibrate_gaussian,
    privatize,
    released_values,
)
from lightning_pac.mechanisms.pac_noise import GaussianNoise
from lightning_pac.mechanisms.privatization.secret_account import KeptSecret
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves, SubsetTable

RECORDS = np.random.default_rng(0).normal(size=(60, 3))
HALVES = ComplementaryHalves(60, 16)


def mean(rows):
    return rows.mean(axis=0)


def mean_and_count(rows):
    return np.append(rows.mean(axis=0), len(rows))


class Counting:
    """A box that leaves a file for every run, also in other processes."""

    def __init__(self, folder, fail_after=None):
        self.folder = str(folder)
        self.fail_after = fail_after

    def __call__(self, rows):
        done = len(list(pathlib.Path(self.folder).iterdir()))
        if self.fail_after is not None and done >= self.fail_after:
            raise OSError("interrupted")
        pathlib.Path(self.folder, f"{time.monotonic_ns()}").touch()
        return rows.mean(axis=0)


def run(box=mean, space=HALVES, budget=0.25, **options):
    return privatize(box, space, budget, **{"data": RECORDS, "workers": 1, "progress": False, **options})


def test_the_release_is_an_output_plus_noise_of_the_stated_size():
    outputs = np.stack([mean(RECORDS[HALVES.subset(j)]) for j in range(16)])
    noise = calibrate_gaussian(outputs, 0.25)
    generator = SecureGenerator(seed=1)
    values = np.stack([run(generator=generator).value for _ in range(300)])
    total = np.cov(values.T, bias=True)
    expected = noise.covariance() + np.cov(outputs.T, bias=True)
    assert total == pytest.approx(expected, rel=0.35, abs=0.1 * expected.max())
    assert total != pytest.approx(np.cov(outputs.T, bias=True), rel=0.35, abs=0.1 * expected.max())


def test_what_is_returned_is_public_and_charged(tmp_path):
    private = run(ledger=tmp_path / "study.db")
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("mutual_information") == 0.25
        event = ledger.accounts()[0].events()[0].event
    assert private.mutual_information == private.total_mutual_information == 0.25
    assert private.power == pytest.approx(float((private.standard_deviations**2).sum()), rel=1e-9)
    assert event["release"]["rule"] == "logdet"
    card = private.card()
    assert card.guarantees[0].value == pytest.approx(0.83789, abs=1e-5)
    assert "drawn once" in card.conditions[-1]
    json.loads(card.to_json())
    # Nothing but the value may depend on the secret: no output without noise is reachable from the result.
    held = [value for value in vars(private).values() if isinstance(value, np.ndarray)]
    assert {id(value) for value in held} == {id(private.value), id(private.standard_deviations)}


def test_the_number_of_records_in_a_subset_is_hidden_too():
    pool = BalancedSubsets(60, 16)
    private = run(mean_and_count, pool)
    sizes = pool.membership_table().sum(axis=0)
    assert len(set(sizes.tolist())) > 1
    assert private.standard_deviations[3] > sizes.std()
    assert private.value[3] not in sizes
    # Halves are of one size: it is public, released exactly and costs nothing.
    assert run(mean_and_count, HALVES).value[3] == 30


def test_outputs_of_low_rank_leak_nothing_outside_the_kept_span():
    direction, other = np.array([3.0, 4.0, 0.0]) / 5, np.array([0.0, 0.0, 1.0])

    def box(rows):
        # A part far below what the spectrum resolves, which would tell the subset if it were released as it is.
        return rows[:, 0].sum() * 1e6 * direction + rows[:, 1].sum() * 1e-6 * other

    outputs = np.stack([box(RECORDS[HALVES.subset(j)]) for j in range(16)])
    centred = outputs - outputs.mean(axis=0)
    kept = np.linalg.svd(centred)[2][0]

    def outside(deviations):
        return np.linalg.norm(deviations - np.outer(deviations @ kept, kept), axis=1)

    released = np.stack([run(box).value for _ in range(20)])
    # Rounding of numbers of size 1e7 is all there is; the outputs themselves show a hundred times more.
    assert outside(released - outputs.mean(axis=0)).max() < 2e-8
    assert np.median(outside(centred)) > 2e-6


def test_identical_outputs_are_released_exactly_and_cost_nothing(tmp_path):
    private = run(lambda rows: np.ones(2), ledger=tmp_path / "study.db")
    assert private.value.tolist() == [1.0, 1.0]
    assert private.mutual_information == private.power == 0.0


def test_values_lie_on_a_public_grid():
    one_sided = run(lambda rows: rows[:, :1].mean(axis=0))
    outputs = np.stack([RECORDS[HALVES.subset(j), 0].mean() for j in range(16)])
    step = one_sided.standard_deviations[0] * 2**-10
    steps = (one_sided.value[0] - outputs.mean()) / step
    assert steps == pytest.approx(round(steps), abs=1e-6)


def test_a_second_release_needs_a_kept_secret(tmp_path):
    run(ledger=tmp_path / "study.db")
    with pytest.raises(LedgerMismatchError, match="its index was not kept"):
        run(ledger=tmp_path / "study.db")
    with pytest.raises(LedgerMismatchError, match="already answers about this table"):
        run(ledger=tmp_path / "study.db", account="other")
    with pytest.raises(ValueError, match="give one that remembers"):
        run(space=HALVES.draw_secret(tmp_path / "secret.key"))


def test_a_kept_secret_gets_noise_for_the_belief_and_adds_up(tmp_path):
    secret = HALVES.draw_secret(tmp_path / "secret.key")
    first = run(space=secret, budget=0.5, ledger=tmp_path / "study.db")
    belief = KeptSecret(secret, tmp_path / "study.db", "privatize", None).belief()
    second = run(lambda rows: rows.std(axis=0), HALVES.load_secret(secret.path), 0.3, ledger=tmp_path / "study.db")
    assert (first.total_mutual_information, second.total_mutual_information) == (0.5, 0.8)
    assert second.num_releases == 2
    # Bayes' rule by hand, from public facts and the outputs.
    outputs = np.stack([mean(RECORDS[HALVES.subset(j)]) for j in range(16)])
    precision = np.linalg.inv(calibrate_gaussian(outputs, 0.5).covariance())
    likelihood = np.array([math.exp(-0.5 * (first.value - row) @ precision @ (first.value - row)) for row in outputs])
    assert belief == pytest.approx(likelihood / likelihood.sum(), rel=1e-6)
    spreads = np.stack([RECORDS[HALVES.subset(j)].std(axis=0) for j in range(16)])
    expected = calibrate_gaussian(spreads, 0.3, belief)
    assert second.power == pytest.approx(expected.power, rel=1e-6)
    assert second.power != pytest.approx(calibrate_gaussian(spreads, 0.3).power, rel=1e-6)
    assert [value.tolist() for value in released_values(secret, tmp_path / "study.db")] == [
        first.value.tolist(),
        second.value.tolist(),
    ]


def test_noise_for_the_prior_would_not_compose_adaptively():
    # A rare output gets much noise-to-signal under the prior, but once the first value has made it likely, the same
    # noise tells more than its budget: the reason for the belief. Quadrature, no sampling.
    outputs = np.zeros((16, 1))
    outputs[0] = 1.0
    prior = np.full(16, 1 / 16)
    noise = calibrate_gaussian(outputs, 0.05, prior)
    belief = np.full(16, 0.5 / 15)
    belief[0] = 0.5
    sigma = math.sqrt(noise.variances[0])

    def information(p):
        grid = np.linspace(-12 * sigma, 12 * sigma + 1, 40_001)
        densities = [np.exp(-0.5 * ((grid - x) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi)) for x in (0, 1)]
        mixture = (1 - p) * densities[0] + p * densities[1]
        parts = [
            w * density * (np.log(density) - np.log(mixture)) for w, density in zip((1 - p, p), densities, strict=True)
        ]
        return float(integrate.trapezoid(parts[0] + parts[1], grid))

    assert information(1 / 16) <= 0.05
    assert information(0.5) > 2 * 0.05
    sigma = math.sqrt(calibrate_gaussian(outputs, 0.05, belief).variances[0])
    assert information(0.5) <= 0.05


@pytest.mark.parametrize("rule", ["logdet", "linear", "coordinate", "isotropic"])
@pytest.mark.parametrize(("scale", "message"), [(1e150, "overflows"), (1e300, "overflows")])
def test_outputs_without_a_variance_are_refused(rule, scale, message):
    with pytest.raises(ValueError, match=message):
        run(lambda rows: rows.mean(axis=0) * scale, budget=1e-9, rule=rule)


def test_a_kept_secret_survives_outputs_without_a_variance(tmp_path):
    secret = HALVES.draw_secret(tmp_path / "key")
    with pytest.raises(ValueError, match="overflows"):
        run(lambda rows: rows.mean(axis=0) * 1e300, secret, 1e-3, rule="coordinate", ledger=tmp_path / "ledger.db")
    # A belief that had become NaN would be in the ledger now, and nothing could ever be released again.
    assert run(mean, secret, 0.1, ledger=tmp_path / "ledger.db").total_mutual_information == pytest.approx(0.1)


def test_the_belief_is_updated_with_what_was_drawn_and_not_with_a_value_that_is_rounded(tmp_path):
    # Floats near 1e15 are 1/8 apart, which is more than these means differ by and as much as the noise.
    secret, ledger = HALVES.draw_secret(tmp_path / "key"), tmp_path / "ledger.db"
    outputs = np.stack([1e15 + mean(RECORDS[HALVES.subset(j)]) for j in range(16)])
    drawn = []
    draw = GaussianNoise.draw

    def note(noise, value, generator=None):
        drawn.append((noise, draw(noise, value, generator)))
        return drawn[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "draw", note)
        run(lambda rows: 1e15 + rows.mean(axis=0), secret, 1.0, ledger=ledger)
    ((noise, coordinates),) = drawn
    likelihood = np.array([stats.norm.pdf(coordinates - noise.whiten(row)).prod() for row in outputs])
    assert KeptSecret(secret, ledger, "privatize", None).belief() == pytest.approx(likelihood / likelihood.sum())


def test_a_second_secret_in_a_ledger_is_warned_of_once(tmp_path):
    secret = HALVES.draw_secret(tmp_path / "secret.key")
    run(space=secret, ledger=tmp_path / "study.db")
    others = ComplementaryHalves(num_records=len(RECORDS), num_subsets=16, seed=1)
    with pytest.warns(UserWarning, match="learns more than either bound says, so divide the records"):
        run(space=others, ledger=tmp_path / "study.db", account="other")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*another table")
        run(space=secret, ledger=tmp_path / "study.db")


def test_a_secret_serves_one_account(tmp_path):
    secret = HALVES.draw_secret(tmp_path / "secret.key")
    run(space=secret, ledger=tmp_path / "study.db")
    with pytest.raises(LedgerMismatchError, match="already answers about this table"):
        PACResponder(lambda x: x, secret, 0.01, ledger=tmp_path / "study.db")
    with pytest.raises(LedgerMismatchError, match="another ledger"):
        run(space=secret, ledger=tmp_path / "other.db")


def test_a_passed_budget_releases_nothing_and_runs_nothing(tmp_path):
    secret = HALVES.draw_secret(tmp_path / "secret.key")
    with PrivacyLedger(tmp_path / "study.db", budget={"mutual_information": 0.3}) as ledger:
        run(space=secret, ledger=ledger)
        (tmp_path / "runs").mkdir()
        with pytest.raises(BudgetExceededError):
            run(Counting(tmp_path / "runs"), secret, ledger=ledger)
        assert not list((tmp_path / "runs").iterdir())
        assert ledger.spent("mutual_information") == 0.25
    assert len(released_values(secret, tmp_path / "study.db")) == 1


def test_nothing_is_returned_if_the_charge_fails(tmp_path, monkeypatch):
    secret = HALVES.draw_secret(tmp_path / "secret.key")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("lightning_pac.ledger.transcript.ResponseTranscript.append", fail)
    with pytest.raises(OSError, match="disk full"):
        run(space=secret, ledger=tmp_path / "study.db")


def test_processes_and_this_process_agree_and_resume(tmp_path):
    (tmp_path / "runs").mkdir()
    options = {"cache": tmp_path / "cache", "fingerprint": "mean-1", "generator": SecureGenerator(seed=3)}
    with pytest.raises(RuntimeError, match="OSError, as above"):
        run(Counting(tmp_path / "runs", fail_after=9), **options)
    finished = list((tmp_path / "cache").glob("*/*.npy"))
    assert 0 < len(finished) < 16
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*finished, finished[0].parent])
    before = len(list((tmp_path / "runs").iterdir()))
    private = run(Counting(tmp_path / "runs"), workers=2, **{**options, "generator": SecureGenerator(seed=3)})
    assert len(list((tmp_path / "runs").iterdir())) - before == 16 - len(finished) + 2
    assert private.value.tolist() == run(generator=SecureGenerator(seed=3)).value.tolist()
    with pytest.raises(ValueError, match="another fingerprint"):
        run(lambda rows: rows.mean(axis=0) + 1, **options)
    finished[0].write_bytes(b"torn")
    run(**options)


def test_a_cache_of_other_data_is_not_used(tmp_path):
    options = {"cache": tmp_path / "cache", "fingerprint": "mean-1"}
    run(**options)
    run(data=RECORDS + 1, **options)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_indices_and_several_arrays():
    labels = np.arange(60) % 2
    by_rows = run(lambda rows, classes: rows[classes == 1].mean(axis=0), data=(RECORDS, labels))
    by_index = run(lambda index: RECORDS[index][labels[index] == 1].mean(axis=0), data=None)
    assert by_rows.power == pytest.approx(by_index.power)
    assert run(lambda rows: np.mean(rows), data=list(range(60))).value.shape == ()


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (lambda rows: rows[: 3 + (rows[0, 0] > 0)], r"shape \(\d, 3\) for subset 0 and \(\d, 3\) for subset"),
        (lambda rows: np.where(rows[0] > 0, np.nan, 1.0), "The output for subset .* is not finite"),
        (lambda rows: np.empty(0), "returns nothing"),
        (lambda rows: np.random.default_rng().normal(size=2), "Two runs of the box on the same input differ"),
        (lambda rows: [[1.0], [1.0, 2.0]], "padded or summarized"),
        (lambda rows: np.fft.fft(rows[:, 0]), "return an array of real numbers"),
        (lambda rows: None, "The box returned NoneType on the first input"),
    ],
)
def test_bad_boxes(box, message):
    with pytest.raises(ValueError, match=message):
        run(box)


def test_a_failing_box_names_the_subset_and_no_record():
    with pytest.raises(RuntimeError, match=r"failed on subset \d+ \(ZeroDivisionError"):
        run(lambda rows: 1 / (len(rows) - 30), public=RECORDS)
    with pytest.raises(RuntimeError, match=r"^The box failed on the first input \(KeyError, as above\)"):
        run(lambda rows: {}[rows[0, 0]])


def test_the_public_input_decides_whether_the_box_is_deterministic():
    def box(rows):
        return rows.mean(axis=0) + (np.random.default_rng().normal() if len(rows) == 5 else 0)

    run(box)
    with pytest.raises(ValueError, match="same input differ"):
        run(box, public=RECORDS[:5])


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_bad_budgets(budget):
    with pytest.raises(ValueError, match=r"^budget(_per_response)? is "):
        run(budget=budget)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rule": "log-det"}, ValueError, "rule is 'log-det', but must be linear, logdet"),
        ({"confidence": 1.5, "rule": "exact"}, ValueError, "confidence is 1.5, but must lie strictly between 0 and 1"),
        ({"budget": "0.25"}, TypeError, "budget is '0.25', but must be a real number"),
    ],
)
def test_what_is_asked_for_is_checked_before_the_box_is_run(options, error, message):
    def box(rows):
        raise AssertionError("The box was run.")

    arguments = {"budget": 0.25, "data": RECORDS, "workers": 1, **options}
    with pytest.raises(error, match=message):
        privatize(box, HALVES, **arguments)


def test_a_budget_above_the_entropy_says_that_the_output_may_be_released_exactly():
    with pytest.raises(ValueError, match=r"2\.77259: releasing the output exactly is within it"):
        run(budget=2.8)
    with pytest.raises(ValueError, match="releasing the output exactly is within it"):
        run(lambda rows: float((rows == RECORDS[0]).all(axis=1).any()), budget=0.7)


def test_bad_spaces():
    with pytest.raises(ValueError, match="one subset hides nothing"):
        run(space=SubsetTable(np.ones((60, 1), dtype=bool)))
    with pytest.raises(ValueError, match="drawn with replacement"):
        SubsetTable(np.ones((60, 2), dtype=bool))
    with pytest.raises(ValueError, match="data has 60 records and the space 50"):
        run(space=ComplementaryHalves(50, 4))
    with pytest.raises(TypeError, match="must be a SecretSpace or a SecretIndex"):
        run(space=RECORDS)


def test_an_unbalanced_space_states_its_prior():
    table = np.random.default_rng(1).random((60, 16)) < 0.9
    table[0] = True
    private = run(space=SubsetTable(table))
    assert private.membership_success_bound == 1.0
    assert any("in all subsets or in none" in condition for condition in private.card().conditions)


def test_the_exact_rule_needs_less_noise_and_is_for_one_release(tmp_path):
    box = lambda rows: float((rows == RECORDS[0]).all(axis=1).any())  # noqa: E731
    exact, logdet = run(box, rule="exact"), run(box)
    assert exact.power < logdet.power
    with pytest.raises(ValueError, match="shared among all releases"):
        run(box, HALVES.draw_secret(tmp_path / "secret.key"), rule="exact", ledger=tmp_path / "study.db")


def test_workers_and_caches_that_cannot_work(tmp_path):
    with pytest.raises(RuntimeError, match="top level of a module, or run it in this process by workers=1"):
        run(lambda rows: rows.mean(axis=0), workers=2)
    with pytest.raises(ValueError, match="workers is 0, but must be at least 1"):
        run(workers=0)
    with pytest.raises(ValueError, match="fingerprint is None"):
        run(cache=tmp_path)


def test_references_are_public_by_construction():
    clusters = lambda rows: np.sort(rows[:, :2], axis=0)[[5, 20]]  # noqa: E731
    leaked = clusters(RECORDS[HALVES.subset(3)])
    with pytest.raises(ValueError, match="un-noised output of a private subset"):
        run(clusters, canonicalize=AlignClusters(public=leaked))
    with pytest.raises(ValueError, match="un-noised output of a private subset"):
        run(clusters, canonicalize=AlignClusters(public=leaked[::-1]))
    run(clusters, canonicalize=AlignClusters(public=[[-1.0, -1.0], [1.0, 1.0]]))
    with pytest.raises(TypeError, match=r"canonicalize is .*, but must be a CanonicalForm"):
        run(clusters, canonicalize=lambda output: output)
    with pytest.raises(TypeError, match="public"):
        AlignBasis()


def test_the_secret_is_drawn_from_the_prior_and_is_the_one_released():
    # With a budget near the entropy the value names the subset: the release is of the drawn index, not of another.
    weights = np.array([0.7, 0.1, 0.1, 0.1])
    table = np.eye(4, dtype=bool)
    space = SubsetTable(table, weights)
    generator = SecureGenerator(seed=5)
    values = [
        run(lambda rows: rows.sum() * 1.0, space, 0.9, data=np.array([0.0, 100.0, 200.0, 300.0]), generator=generator)
        for _ in range(400)
    ]
    near_zero = np.mean([abs(value.value) < 50 for value in values])
    assert 0.3 < near_zero < 0.95


def test_a_kept_secret_is_the_one_released(tmp_path):
    space = SubsetTable(np.eye(4, dtype=bool))
    secret = space.draw_secret(tmp_path / "secret.key")
    values = np.array([0.0, 1.0, 2.0, 3.0])
    # Later calls are refused once the belief has less entropy left than the budget.
    with contextlib.suppress(ValueError):
        for _ in range(6):
            run(lambda rows: rows.sum(), secret, 1.0, data=values, ledger=tmp_path / "study.db")
    belief = KeptSecret(secret, tmp_path / "study.db", "privatize", None).belief()
    # A posterior calls the true secret less likely than x with probability at most 4 x.
    assert belief[operator.index(secret)] > 1e-7


@pytest.mark.parametrize(("size", "drowned"), [(1.0, True), (1e3, False)])
def test_noise_that_drowns_is_told_from_the_release_alone(size: float, drowned: bool) -> None:
    halves = ComplementaryHalves(num_records=64, num_subsets=64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Outputs at a distance of 1, or a public centre of 1000 about which they lie as close: the noise is the same.
        released = privatize(
            lambda rows: np.full(64, size) + rows.mean(axis=0),
            halves,
            1e-4,
            data=np.eye(64),
            workers=1,
            progress=False,
            generator=SecureGenerator(seed=0),
        )
    told = [str(warning.message) for warning in caught if "drowns" in str(warning.message)]
    assert bool(told) == drowned == (released.signal_to_noise < 1)
    squares = float((released.value**2).sum())
    assert released.signal_to_noise == pytest.approx(np.sqrt(max(0.0, squares / released.power - 1)))
    if told:
        assert f"noise of {np.sqrt(released.power / 64):.3g} was added to each" in told[0]
        assert "larger budget" in told[0]
