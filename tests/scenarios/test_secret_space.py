import errno
import itertools
import json
import operator
import os
import pickle
import stat
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves, SubsetTable, secret_space

POOLS = [BalancedSubsets(50, 8), BalancedSubsets(50, 6, seed=3), ComplementaryHalves(50, 8), ComplementaryHalves(51, 6)]


@pytest.mark.parametrize("pool", POOLS, ids=repr)
def test_every_record_is_in_exactly_half_of_the_subsets(pool):
    table = pool.membership_table()
    assert table.dtype == np.bool_
    assert table.shape == (pool.num_records, pool.num_secrets)
    assert (table.sum(axis=1) == pool.num_secrets // 2).all()
    assert pool.individual_prior == super(type(pool), pool).individual_prior == 0.5
    assert pool.index_guess_prior == 1 / pool.num_secrets
    for index in range(pool.num_secrets):
        assert (pool.membership(index) == table[:, index]).all()
        assert (pool.subset(index) == np.flatnonzero(table[:, index])).all()
    some = np.array([7, 3, 3, 49])
    assert (pool.membership_table(some) == table[some]).all()


def test_all_balanced_columns_are_equally_likely():
    # Chi-squared with 5 and 69 degrees of freedom on a fixed public table: nothing random is left to fail.
    for num_subsets, records in ((4, 6_000), (8, 70_000)):
        table = BalancedSubsets(records, num_subsets).membership_table()
        counts = Counter(map(tuple, table.tolist()))
        columns = [
            tuple(i in chosen for i in range(num_subsets))
            for chosen in itertools.combinations(range(num_subsets), num_subsets // 2)
        ]
        assert set(counts) <= set(columns)
        assert stats.chisquare([counts[column] for column in columns]).pvalue > 1e-3


def test_memberships_of_different_records_and_subsets_are_nearly_independent():
    table = BalancedSubsets(20_000, 128).membership_table().astype(float) - 0.5
    joint = 4 * table.T @ table / len(table)
    off_diagonal = joint[~np.eye(128, dtype=bool)]
    # Two subsets of a balanced column have correlation -1/127.
    assert abs(off_diagonal.mean() + 1 / 127) < 1e-12
    assert np.abs(off_diagonal + 1 / 127).max() < 6 / np.sqrt(20_000)


def test_the_table_depends_on_the_seed_alone_and_not_on_how_it_is_read(monkeypatch):
    pool = BalancedSubsets(1000, 10, seed=5)
    table = pool.membership_table()
    assert pool.table_hash == BalancedSubsets(1000, 10, seed=5).table_hash != BalancedSubsets(1000, 10).table_hash
    monkeypatch.setattr(secret_space, "CACHE_BYTES", 0)
    monkeypatch.setattr(secret_space, "CHUNK_VALUES", 64)
    uncached = BalancedSubsets(1000, 10, seed=5)
    assert (uncached.membership_table() == table).all()
    assert (uncached.membership(3) == table[:, 3]).all()
    assert (uncached.membership_table([999, 0, 1]) == table[[999, 0, 1]]).all()
    assert uncached.membership_table(np.array([], dtype=int)).shape == (0, 10)
    assert uncached.table_hash == pool.table_hash
    halves = ComplementaryHalves(1000, 10, seed=5)
    monkeypatch.undo()
    assert halves.table_hash == ComplementaryHalves(1000, 10, seed=5).table_hash != pool.table_hash


def test_the_table_of_a_seed_is_the_same_in_every_version():
    # Philox4x64-10 with key 2**128 - 1 everywhere is published with the algorithm (Random123's known answers); numpy
    # counts before it generates, hence the counter one below.
    generator = np.random.Philox(key=2**128 - 1, counter=2**256 - 2)
    published = [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]
    assert generator.random_raw(4).tolist() == published


def test_a_large_table_fits_in_memory():
    pool = BalancedSubsets(300, 2**16)
    assert pool.membership(65535).shape == (300,)
    assert (pool.membership_table([299]).sum(axis=1) == 2**15).all()


def test_explicit_tables_report_their_true_priors():
    rng = np.random.default_rng(0)
    table = rng.random((20, 6)) < 0.5
    weights = rng.dirichlet(np.ones(6))
    space = SubsetTable(table, weights)
    rates = [sum(w for w, member in zip(weights, row, strict=True) if member) for row in table]
    assert space.individual_prior == pytest.approx(max(max(r, 1 - r) for r in rates))
    assert space.index_guess_prior == pytest.approx(weights.max())
    with pytest.raises(ValueError, match="drawn with replacement"):
        SubsetTable(table[:, [0, 1, 1]])
    with pytest.raises(ValueError, match="sum 1"):
        SubsetTable(table, weights * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BalancedSubsets(10, 7), "even"),
        (lambda: BalancedSubsets(10, 2**17), "65536"),
        (lambda: BalancedSubsets(10, 0), "even"),
        (lambda: BalancedSubsets(0), "at least one record"),
        (lambda: BalancedSubsets(10, seed=-1), "negative"),
        (lambda: ComplementaryHalves(1), "two records"),
        (lambda: BalancedSubsets(10, 4).membership(4), "index is 4, but must lie in"),
        (lambda: BalancedSubsets(10, 4).membership_table([10]), "Record indices"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_size_of_the_file_does_not_tell_how_many_digits_the_index_has(tmp_path):
    # Whoever may list the folder sees it. Sixty indices of 0 ... 127 with equally many digits have chance 7e-10.
    pool = BalancedSubsets(10, 128)
    paths = [pool.draw_secret(tmp_path / str(number)).path for number in range(60)]
    assert len({os.stat(path).st_size for path in paths}) == 1
    assert len({len(str(operator.index(pool.load_secret(path)))) for path in paths}) > 1


def test_the_secret_is_drawn_once_into_a_private_file(tmp_path):
    pool = BalancedSubsets(10, 128)
    path = tmp_path / "secret.key"
    secret = pool.draw_secret(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    content = json.loads(path.read_text())
    assert int(content["index"]) == operator.index(secret)
    assert content["table_hash"] == pool.table_hash
    assert len(bytes.fromhex(content["key"])) == 32
    assert content["high_water_mark"] == 0
    with pytest.raises(FileExistsError, match="drawn only once"):
        pool.draw_secret(path)
    assert json.loads(path.read_text()) == content
    again = pool.load_secret(path)
    assert (operator.index(again), again.key) == (operator.index(secret), secret.key)
    assert again.space is secret.space is pool


def test_the_secret_never_shows_itself(tmp_path):
    secret = BalancedSubsets(10, 2**16).draw_secret(tmp_path / "key")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>5}"]
    assert len(set(map(str.strip, shown))) == 1
    assert secret.key.hex() not in shown[0]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)


def test_a_secret_of_another_table_or_a_damaged_one_is_refused(tmp_path):
    pool = BalancedSubsets(10, 4)
    pool.draw_secret(tmp_path / "key")
    with pytest.raises(LedgerMismatchError, match="use the pool it was drawn for"):
        BalancedSubsets(11, 4).load_secret(tmp_path / "key")
    os.chmod(tmp_path / "key", 0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        pool.load_secret(tmp_path / "key")
    os.chmod(tmp_path / "key", 0o600)
    (tmp_path / "key").write_text("{")
    with pytest.raises(LedgerError, match="damaged"):
        pool.load_secret(tmp_path / "key")


def test_the_index_follows_the_prior(tmp_path):
    space = SubsetTable([[True, False, True], [True, True, False]], weights=[0.7, 0.3, 0.0])
    draws = [operator.index(space.draw_secret(tmp_path / str(i))) for i in range(300)]
    # Binomial(300, 0.7) below 150 has probability 4e-13.
    assert draws.count(2) == 0
    assert 150 < draws.count(0) < 285


def test_every_changed_digit_of_a_secret_file_is_noticed(tmp_path):
    pool, path = BalancedSubsets(10, 4), tmp_path / "key"
    secret = pool.draw_secret(path)
    content = json.loads(path.read_text())
    for name in ("index", "key", "seal", "table_hash"):
        for position, old in enumerate(content[name]):
            changed = content[name][:position] + ("1" if old != "1" else "2") + content[name][position + 1 :]
            path.write_text(json.dumps({**content, name: changed}))
            with pytest.raises(LedgerError, match=r"damaged|belongs to the table"):
                pool.load_secret(path)
    del content["seal"]  # as files of earlier versions are
    path.write_text(json.dumps(content))
    assert operator.index(pool.load_secret(path)) == operator.index(secret)


def test_a_secret_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    pool = BalancedSubsets(10, 4)
    with pytest.raises(LedgerError, match=r"cannot be written \(No such file .*no secret was drawn"):
        pool.draw_secret(tmp_path / "missing" / "key")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LedgerError, match="No space left on device"):
        pool.draw_secret(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    pool.draw_secret(tmp_path / "key")
    (tmp_path / "empty").touch()  # what earlier versions left behind
    with pytest.raises(LedgerError, match=r"is empty: .* remove it and draw one"):
        pool.load_secret(tmp_path / "empty")
