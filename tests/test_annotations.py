"""Rules of annotations, in the forms in which different versions of NumPy write theirs."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from typing_extensions import TypeAliasType

from lightning_pac._annotations import rule_of

Scalar = TypeVar("Scalar", bound=np.generic)
ARRAY: Any = TypeAliasType("ARRAY", np.ndarray[Any, np.dtype[Scalar]], type_params=(Scalar,))
ARRAY_LIKE: Any = TypeAliasType("ARRAY_LIKE", npt.ArrayLike)


@pytest.mark.parametrize("array", [npt.NDArray, ARRAY])
def test_arrays_are_converted_also_where_their_type_is_an_alias(array: Any) -> None:
    """From 2.5 on, NumPy's types are aliases of their own kind, and arguments were not checked as arrays."""
    rule = rule_of(array[np.float64])
    assert rule is not None
    assert rule.accept([1, 2]).dtype == np.float64
    with pytest.raises(TypeError, match="must be an array of real numbers"):
        rule.check("text", "values")


@pytest.mark.parametrize("array_like", [npt.ArrayLike, ARRAY_LIKE])
def test_other_unions_are_no_arrays(array_like: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias has no parameters, all of which every annotation has: a string or None had to be an array."""
    monkeypatch.setattr(npt, "ArrayLike", array_like)
    text, numbers = rule_of(str | None), rule_of(array_like | None)
    assert text is not None
    assert numbers is not None
    assert (text.words, numbers.words) == ("a string or None", "an array of real numbers or None")


@pytest.mark.parametrize(
    "short",
    [
        np.array([-100, 100], dtype=np.int8), np.array([200, 3], dtype=np.uint8), np.array([7, 0], dtype=np.uint64),
        [np.int16(-30_000), np.int16(30_000)], np.array([300.0, -300.0], dtype=np.float16), np.int32(2**31 - 1),
        torch.tensor([-100, 100], dtype=torch.int8),
    ],
)  # fmt: skip
def test_short_numbers_are_given_in_64_bits(short: Any) -> None:
    """Squares and differences wrapped around in 8 bits."""
    rule = rule_of(npt.ArrayLike)
    assert rule is not None
    given, whole = rule.accept(short), np.asarray(short).astype(np.float64)
    assert np.asarray(given).dtype in (np.int64, np.float64)
    assert (np.square(given - np.flip(given)) == np.square(whole - np.flip(whole))).all()


@pytest.mark.parametrize("annotation", [npt.ArrayLike, npt.NDArray[np.float64]])
def test_bfloat16_is_taken_as_it_is(annotation: Any) -> None:
    """NumPy has no such type: tensors of mixed precision were said to be no numbers."""
    values = [300.0, -(2.0**-120), 1 + 2.0**-7, 3e38]
    tensor = torch.tensor(values, dtype=torch.bfloat16)
    rule = rule_of(annotation)
    assert rule is not None
    given = rule.accept(tensor)
    assert given.dtype == np.float64
    assert given.tolist() == tensor.tolist()
    assert given.tolist()[:3] == values[:3]


@pytest.mark.parametrize("annotation", [Sequence[float], tuple[float, ...], Mapping[str, float], tuple[float, float]])
def test_numbers_in_collections_are_converted_to_pythons_own(annotation: Any) -> None:
    numbers: Any = np.array([100, 100], dtype=np.int8)
    is_mapping = annotation == Mapping[str, float]
    rule = rule_of(annotation)
    assert rule is not None
    accepted = rule.accept(dict(zip("ab", numbers, strict=True)) if is_mapping else numbers)
    assert sum(accepted.values() if is_mapping else accepted) == 200.0


def test_collections_that_need_no_conversion_are_left_alone() -> None:
    for annotation, value in ((Sequence[float], [1.0, 2.0]), (Mapping[str, float], {"a": 1.0})):
        rule = rule_of(annotation)
        assert rule is not None
        assert rule.accept(value) is value
