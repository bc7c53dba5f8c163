import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as npst

from lightning_pac.ledger import pack_arrays, smallest_integers, unpack_arrays

ARRAYS = npst.arrays(
    st.sampled_from(["<f8", ">f8", "<f4", "<f2", "<i8", ">i4", "<i2", "|i1", "|u1", "<u2", "<u4"]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(st.lists(ARRAYS, max_size=4))
def test_arrays_come_back_bit_for_bit(arrays: list[np.ndarray]) -> None:
    again = unpack_arrays(pack_arrays(arrays))
    assert len(again) == len(arrays)
    for before, after in zip(arrays, again, strict=True):
        assert after.dtype == before.dtype.newbyteorder("<")
        assert after.shape == before.shape
        assert after.tobytes() == before.astype(after.dtype).tobytes()


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([object()])])
def test_other_types_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"^arrays"):
        pack_arrays([array])


@given(npst.arrays(np.int64, st.integers(0, 5), elements=st.integers(-(2**63), 2**63 - 1)))
def test_labels_keep_their_values_in_fewer_bytes(labels: np.ndarray) -> None:
    small = smallest_integers(labels)
    assert small.astype(np.int64).tolist() == labels.tolist()
    assert small.nbytes <= labels.nbytes


def test_votes_of_up_to_256_classes_take_a_byte() -> None:
    assert smallest_integers(np.array([0, 255])).nbytes == 2
    assert smallest_integers(np.array([0, 256])).nbytes == 4
