"""Roots on the safe side."""

import itertools

from lightning_pac._roots import moved_until


def test_a_number_is_moved_in_few_steps_and_not_much_further_than_needed() -> None:
    for sign, distance in itertools.product((1, -1), (0.0, 1e-13, 1e-9, 1.0, 1e6)):
        asked = []

        def holds(number: float, asked: list[float] = asked, goal: float = sign * distance) -> bool:
            asked.append(number)
            return abs(number) >= abs(goal)

        found = moved_until(holds, 0.0, sign * 1e-13)
        assert distance <= sign * found <= 2 * distance + 1e-13
        assert len(asked) < 70
