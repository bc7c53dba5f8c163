import numpy as np
import pytest

from lightning_pac.scenarios import TwoWorldScenario


def test_adjacency_fixes_how_far_a_record_moves_the_sum() -> None:
    assert TwoWorldScenario(3).sensitivity_factor == 2
    assert TwoWorldScenario(3, adjacency="add_remove").sensitivity_factor == 1
    assert TwoWorldScenario(3, adjacency="zero_out").sensitivity_factor == 1


def test_splits_of_what_is_declared() -> None:
    assert TwoWorldScenario(3).splits == ()
    assert TwoWorldScenario(3, adjacency="zero_out").splits == ((3, 0),)
    assert TwoWorldScenario((1, 2), adjacency="zero_out").splits == ((1, 2),)
    assert TwoWorldScenario(4, adjacency="zero_out", nested=False).splits == ((4, 0), (3, 1), (2, 2))
    assert TwoWorldScenario([1, 2], adjacency="zero_out").num_differing == (1, 2)  # type: ignore[arg-type]
    assert TwoWorldScenario((1, 2), adjacency="zero_out").total_differing == 3


def test_the_length_is_bound_where_it_is_public_and_never_read_where_it_is_the_secret() -> None:
    assert TwoWorldScenario(3).resolve(100).num_records == 100
    assert TwoWorldScenario(3, num_records=100).resolve(100).num_records == 100
    with pytest.raises(ValueError, match="declares 100 records, but the dataset has 99"):
        TwoWorldScenario(3, num_records=100).resolve(99)

    class Unreadable(int):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("the length was read")

        __lt__ = __gt__ = __hash__ = __eq__  # type: ignore[assignment]

    scenario = TwoWorldScenario.differential_privacy()
    assert scenario.resolve(Unreadable(5)) is scenario


def test_labels_make_a_scenario() -> None:
    scenario = TwoWorldScenario.from_labels(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 2]))
    assert (scenario.num_differing, scenario.num_records, scenario.adjacency) == (2, 4, "replace")
    with pytest.raises(ValueError, match="equals labels_b, so there is no secret"):
        TwoWorldScenario.from_labels([0, 1], [0, 1])
    with pytest.raises(ValueError, match="both worlds label the same records"):
        TwoWorldScenario.from_labels([0, 1], [0, 1, 1])


@pytest.mark.parametrize(("p0", "p1"), [(0.1, 0.3), (0.3, 0.1), (0.15, 0.25), (0.0, 1.0), (0.9, 0.2)])
def test_prevalence_worlds_are_minimal(p0: float, p1: float) -> None:
    labels = np.random.default_rng(0).integers(5, size=400)
    worlds = TwoWorldScenario.from_prevalence(labels, secret_class=2, p0=p0, p1=p1, rng=1)
    counts = [int((world == 2).sum()) for world in (worlds.labels_a, worlds.labels_b)]
    assert counts == [round(p0 * 400), round(p1 * 400)]
    assert worlds.scenario.num_differing == abs(counts[0] - counts[1]) == len(worlds.differing)
    assert (labels != worlds.labels_a).sum() == abs(counts[0] - int((labels == 2).sum()))
    assert worlds.scenario.resolve(400).num_records == 400
    kept = np.setdiff1d(np.arange(400), worlds.differing)
    assert np.array_equal(worlds.labels_a[kept], worlds.labels_b[kept])


def test_the_realized_world_is_served_and_not_printed() -> None:
    labels = [0] * 50 + [1] * 50
    for world in (0, 1):
        worlds = TwoWorldScenario.from_prevalence(labels, 1, 0.5, 0.6, rng=0, world=world)
        assert np.array_equal(worlds.labels, (worlds.labels_a, worlds.labels_b)[world])
        assert "realized" not in repr(worlds)
        assert "labels" not in repr(worlds)
    drawn = {TwoWorldScenario.from_prevalence(labels, 1, 0.5, 0.6, rng=0).realized for _ in range(40)}
    assert drawn == {0, 1}  # false alarm 2^-39: the world does not follow from the seed of the relabelling


def test_relabelling_draws_the_records_at_random() -> None:
    labels = np.array([0] * 10 + [1] * 10)
    chosen = np.zeros(20)
    for seed in range(400):
        worlds = TwoWorldScenario.from_prevalence(labels, 1, 0.5, 0.6, rng=seed)
        chosen[worlds.differing] += 1
    assert chosen[10:].sum() == 0
    assert np.all(np.abs(chosen[:10] - 80) < 6 * 8)  # Binomial(400, 1/5), seeds fixed


def test_scenarios_survive_a_dictionary() -> None:
    for scenario in (TwoWorldScenario(3, num_records=9), TwoWorldScenario((1, 2), adjacency="zero_out", nested=False)):
        assert TwoWorldScenario.from_dict(scenario.to_dict()) == scenario


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_differing": 0}, "differ in at least one record"),
        ({"num_differing": 11, "num_records": 10}, "num_differing is 11, but there are only 10 records"),
        ({"num_differing": 1, "adjacency": "swap"}, "adjacency is 'swap', but must be replace, add_remove or zero_out"),
        ({"num_differing": (1, 2)}, "under replace a differing record has no direction"),
        ({"num_differing": (0, 0), "adjacency": "zero_out"}, "one record must differ"),
        ({"num_differing": 1, "num_records": 10, "adjacency": "add_remove"}, "the number of records is the secret"),
    ],
)
def test_bad_scenarios_are_one_clear_sentence(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TwoWorldScenario(**arguments)


def test_bad_prevalences_are_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"p1 is 1\.5, but a prevalence lies in"):
        TwoWorldScenario.from_prevalence([0, 1], 1, 0.5, 1.5)
    with pytest.raises(ValueError, match="move them further apart"):
        TwoWorldScenario.from_prevalence([0] * 10, 1, 0.5, 0.52)
    with pytest.raises(ValueError, match="no other class to relabel to"):
        TwoWorldScenario.from_prevalence([1] * 10, 1, 0.5, 0.6)
    with pytest.raises(TypeError, match="an integer or a tuple of 2 integers"):
        TwoWorldScenario("many", adjacency="zero_out")  # type: ignore[arg-type]


def test_a_share_of_the_records_is_rounded_up_once_their_number_is_known() -> None:
    assert TwoWorldScenario(share_differing=0.01).resolve(1_437) == TwoWorldScenario(15, num_records=1_437)
    assert TwoWorldScenario(share_differing=0.07, num_records=100).num_differing == 7, "as a decimal, not in binary"
    assert TwoWorldScenario(share_differing=1, num_records=8, adjacency="zero_out").total_differing == 8
    unknown = TwoWorldScenario(share_differing=0.2)
    assert TwoWorldScenario.from_dict(unknown.to_dict()) == unknown
    with pytest.raises(ValueError, match="a number of records that is not known here"):
        _ = unknown.total_differing
    assert "share_differing" not in unknown.resolve(10).coupling(), "ledgers of before it existed go on"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"share_differing": 0.0}, "share_differing is 0.0, but a share"),
        ({"share_differing": 1.5}, "share_differing is 1.5, but a share"),
        ({"num_differing": 3, "share_differing": 0.5}, "pass exactly one"),
        ({"share_differing": 0.5, "adjacency": "add_remove"}, "is the secret: give num_differing"),
        ({}, "two worlds differ in at least one record"),
    ],
)
def test_a_share_that_names_no_records_is_refused(arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TwoWorldScenario(**arguments)
