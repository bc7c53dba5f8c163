"""Functions that lead to a copied object: in its deep copy they lead to the copy, others stay the same."""

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

from lightning_pac.data.quiet_copies import deep_copied


def outer(value: Any) -> Any:
    return value


class Model(nn.Module):
    """Calls itself by functions of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0
        self.by_closure = lambda inputs: self.layer(inputs)
        self.by_default = lambda model=self: model
        self.by_name = lambda *, model=self: model
        self.by_partial = functools.partial(lambda layer, _: layer, self.layer)
        self.in_tables = {"one": lambda: self, "others": [self.count, lambda: self.by_closure]}
        self.forward = self.decorated(self.forward)  # type: ignore[method-assign]
        self.layer.register_forward_hook(lambda *_: self.count())
        self.others = [outer, len, functools.partial(outer, 1), lambda: outer]

        def recursive(depth: int) -> Any:
            return recursive(depth - 1) if depth else self

        self.recursive = recursive

    @staticmethod
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    def count(self) -> None:
        self.calls += 1

    def forward(self, inputs: Tensor) -> Tensor:
        return self.by_closure(inputs)


def test_functions_of_a_copy_lead_to_it() -> None:
    model, inputs = Model(), torch.ones(1, 2)
    for found in (deep_copied(model), deep_copied(deep_copied(model))):
        nn.init.zeros_(found.layer.weight)
        nn.init.zeros_(found.layer.bias)
        assert not found(inputs).any()
        assert not found.by_closure(inputs).any()
        assert found.by_default() is found.by_name() is found.in_tables["one"]() is found.recursive(3) is found
        assert found.by_partial(0) is found.layer
        assert found.in_tables["others"][1]() is found.by_closure
        found.in_tables["others"][0]()
        assert found.calls == 3  # of the hook, twice, and the table
        assert found.forward.__name__ == "forward"
    assert model.calls == 0
    assert model(inputs).any()


class Hooked(nn.Module):
    """Its first layer has a hook that writes to what is copied after it, and two functions share a count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, kept, count = nn.Linear(2, 2), list[Tensor](), 0

        def write(output: Tensor) -> None:
            kept.append(output)
            self.last.add_(1)

        self.first.register_forward_hook(lambda layer, inputs, output: write(output))
        self.last, self.kept = nn.Buffer(torch.zeros(2)), kept

        def up() -> int:
            nonlocal count
            count += 1
            return count

        def even(number: int) -> Any:
            return odd(number - 1) if number else self

        def odd(number: int) -> Any:
            return even(number - 1)

        self.up, self.count, self.even = up, lambda: count, even


def test_what_is_copied_after_a_function_is_led_to_as_well() -> None:
    model = Hooked()
    found = deep_copied(model)
    found.first(torch.ones(1, 2)).sum()
    assert (len(found.kept), len(model.kept)) == (1, 0)
    assert (float(found.last.sum()), float(model.last.sum())) == (2.0, 0.0)
    assert found.up() == found.count() == 1
    assert model.count() == 0
    assert found.even(4) is found


def test_other_functions_stay_the_same_objects_and_other_copies_are_as_before() -> None:
    model = Model()
    found = deep_copied(model)
    assert found.others[:2] == [outer, len]
    assert found.others[3] is model.others[3]
    assert deep_copied(outer) is outer
    assert copy.deepcopy(model).in_tables["one"]() is model
