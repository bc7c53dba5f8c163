"""JSON as a model can take it: one reading of every text, finite numbers, and no deeper than arrays go."""

import json
from typing import Any

__all__ = ["parse_json"]

_DEEPEST = 64  # as many dimensions as an array of NumPy may have
_INFINITIES = (float("inf"), float("-inf"))


def parse_json(body: bytes) -> Any:
    """The value that a body means.

    Args:
        body: JSON in UTF-8.

    Raises:
        ValueError: If it is not JSON, names a member twice, has a number that is not finite or a whole number of more
            than 64 bits, or is nested too deeply.

    Example:
        >>> parse_json(b'{"input": [1, 2.5]}')
        {'input': [1, 2.5]}
        >>> parse_json(b'[1e999]')
        Traceback (most recent call last):
        ValueError: The body has a number that is not finite: send finite numbers.
    """
    too_deep = f"The body is nested more than {_DEEPEST} levels deep: send arrays of numbers."
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_unique, parse_int=_read_integer, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError(too_deep) from None
    except UnicodeDecodeError:
        raise ValueError("The body is not UTF-8: send JSON in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"The body is not JSON ({error.msg} at character {error.pos}).") from None
    level = [value]
    for _ in range(_DEEPEST):
        _check_numbers(level)
        level = [part for whole in level if isinstance(whole, list | dict) for part in _parts(whole)]
        if not level:
            return value
    raise ValueError(too_deep)


def _parts(whole: list[Any] | dict[str, Any]) -> Any:
    return whole if isinstance(whole, list) else whole.values()


def _check_numbers(values: list[Any]) -> None:
    if any(infinity in values for infinity in _INFINITIES):
        raise ValueError("The body has a number that is not finite: send finite numbers.")


def _read_integer(text: str) -> int:
    # By its length first: Python refuses thousands of digits in words of its own.
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("The body has a whole number of more than 64 bits: send it as a decimal number.")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("The body names a member twice: send each once.")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"The body has {name}, which is not JSON: send finite numbers.")
