"""Rules of annotations, in the forms in which different versions of NumPy write theirs."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
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
