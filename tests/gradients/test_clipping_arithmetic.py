"""Records made to defeat the rounding of float32: none gets past its clipping norm, and none drowns the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_pac.gradients import make_engine
from lightning_pac.gradients.arithmetic import CANCELLATION, ieee_float32, squared_norm_of_sum
from lightning_pac.gradients.contributions import Contribution, Dense, OuterProduct, PositionOuterProducts, Rows
from lightning_pac.gradients.rules import convolution, linear

SMALL = 0.01  # length of the gradients of the ordinary records


def cancelling_positions(size: float, rest: float) -> Contribution:
    """Eight records; the first has two positions whose parts cancel but for a share `rest` of them."""
    torch.manual_seed(0)
    inputs, gradients = torch.randn(8, 4, 64), torch.randn(8, 4, 64)
    inputs, gradients = inputs / 64**0.5, SMALL * gradients / 64**0.5
    inputs[0], gradients[0] = 0.0, 0.0
    direction = nn.functional.normalize(torch.randn(64), dim=0)
    inputs[0, 0], inputs[0, 1] = direction, -(1 - rest) * direction
    gradients[0] = size * nn.functional.normalize(torch.randn(64), dim=0)
    return PositionOuterProducts(inputs, gradients)


def cancelling_convolution(size: float, rest: float) -> Contribution:
    torch.manual_seed(0)
    inputs, gradients = torch.randn(8, 16, 2, 1) / 4, SMALL * torch.randn(8, 64, 2, 1) / 8
    direction = nn.functional.normalize(torch.randn(16), dim=0)
    inputs[0, :, 0, 0], inputs[0, :, 1, 0] = direction, -(1 - rest) * direction
    gradients[0] = size * nn.functional.normalize(torch.randn(64), dim=0)[:, None, None]
    geometry = convolution._Geometry(torch.Size((64, 16, 1, 1)), (1, 1), (0, 0), (1, 1), 1)
    return convolution._GramConvolution(geometry, inputs, gradients)


def cancelling_rows(size: float, rest: float) -> Contribution:
    torch.manual_seed(0)
    examples, rows = torch.arange(8).repeat_interleave(2), torch.zeros(16, dtype=torch.long)
    gradients = SMALL * torch.randn(16, 32) / 32**0.5
    gradients[0] = size * nn.functional.normalize(torch.randn(32), dim=0)
    gradients[1] = -(1 - rest) * gradients[0]
    return Rows(8, 3, examples, rows, gradients)


def clipped(contribution: Contribution, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    norms = contribution.squares().sqrt()
    total = torch.empty(shape)
    contribution.weighted_sum((1.0 / norms).clamp(max=1.0), total)
    return total.double(), norms


@pytest.mark.parametrize("rest", [0.0, 1e-4, 3e-4])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (cancelling_positions, (64, 64)),
        (cancelling_convolution, (64, 16, 1, 1)),
        (cancelling_rows, (3, 32)),
    ],
)
def test_parts_that_cancel_neither_pass_the_bound_nor_drown_other_records(
    make: Callable[[float, float], Contribution], shape: tuple[int, ...], size: float, rest: float
) -> None:
    with_record, norms = clipped(make(size, rest), shape)
    without = make(size, rest)
    without.drop(torch.arange(8) == 0)
    moved = (with_record - clipped(without, shape)[0]).norm()
    assert moved <= 1.0 + 1e-4
    assert norms[0] >= 0.999 * size * rest


@pytest.mark.parametrize("terms", [2, 8, 64])
@pytest.mark.parametrize("width", [16, 64, 1024])
def test_what_is_added_covers_the_rounding(width: int, terms: int) -> None:
    torch.manual_seed(width + terms)
    same = 0.1 * torch.ones(16, terms, width) * (1 + 0.1 * torch.rand(16, terms, 1))
    signs = (1 - 2 * (torch.arange(terms) % 2).float())[:, None]
    for inputs, gradients in (
        (same, 0.3 * signs.expand(16, terms, width).contiguous()),
        (torch.rand(16, terms, width), torch.rand(16, terms, width)),
        (torch.randn(16, terms, width), torch.randn(16, terms, width)),
    ):
        found = PositionOuterProducts(inputs, gradients).squares().double()
        a, g = inputs.double(), gradients.double()
        true = (g.mT @ a).square().sum((1, 2))
        sizes = (a.norm(dim=2) * g.norm(dim=2)).sum(1)
        assert bool((found >= true * (1 - 1e-7)).all())
        assert bool((found <= true + 2 * CANCELLATION * sizes.square()).all())


def test_ordinary_norms_are_hardly_raised() -> None:
    squares, sizes = torch.tensor([64.0]), torch.tensor([64.0])  # 64 terms of length one in random directions
    assert float(squared_norm_of_sum(squares, sizes)) < 64.0 * (1 + 2e-4)


def test_a_factor_below_the_smallest_float_still_counts() -> None:
    contribution = OuterProduct(torch.full((1, 1), 1e19), torch.full((1, 10_000), 2.6e-23))
    total, norms = clipped(contribution, (10_000, 1))
    assert float(norms) >= float(total.norm())


@pytest.mark.parametrize("width", [3, 1000, 3000, 100_003, 2_400_000])
def test_norms_of_long_gradients_are_as_precise_as_the_slack(width: int) -> None:
    torch.manual_seed(0)
    for gradients in (torch.randn(2, width), torch.full((2, width), 0.1)):
        found = Dense(gradients).squares().double().sqrt()
        assert bool((found / gradients.double().norm(dim=1) - 1).abs().max() < 1e-6)  # the engine's slack is 2e-6


@pytest.mark.parametrize("chosen", ["highest", "high", "medium"])
def test_clipping_takes_no_short_cuts_in_precision(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning advises 'medium' where there are tensor cores; products then have 8 or 11 bits."""
    seen: list[str] = []

    def note(method: Any) -> Any:
        def noting(*arguments: Any) -> Any:
            seen.extend(
                operation.fp32_precision for operation in (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
            )
            return method(*arguments)

        return noting

    for method in ("squares", "weighted_sum"):
        monkeypatch.setattr(linear.OuterProduct, method, note(getattr(OuterProduct, method)))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(chosen)
        model, engine = nn.Linear(3, 2), make_engine()
        engine.attach(model)
        model(torch.randn(4, 3)).square().sum(1).mean().backward()
        engine.clipped_sum(1.0)
        assert torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["ieee"] * 4
    with pytest.raises(ZeroDivisionError), ieee_float32():
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before
