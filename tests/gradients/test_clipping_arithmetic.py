"""Records made to defeat the rounding of float32: none gets past its clipping norm, and none drowns the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_pac.gradients import ROUNDING, make_engine
from lightning_pac.gradients.arithmetic import (
    accumulate,
    block_layout,
    ieee_float32,
    squared_norm_of_sum,
    sum_type,
)
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
    norms = contribution.squares().sqrt().float()
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
    assert moved <= 1.0 + ROUNDING
    assert norms[0] >= 0.999 * size * rest


@pytest.mark.parametrize("positions", [2, 3])
@pytest.mark.parametrize("width", [1024, 16384])
def test_a_wide_layer_whose_terms_all_but_cancel(width: int, positions: int) -> None:
    """Entries of Gram matrices of nearly parallel inputs are rounded alike, and their errors add up with the width."""
    model, engine = nn.Linear(width, 64, bias=False), make_engine()
    engine.attach(model)
    try:
        for ratio in (1.00522, 1.001, 1.0002):
            sums = []
            for present in (1.0, 0.0):
                inputs = torch.zeros(2, positions, width)
                inputs[0, 0], inputs[0, 1] = present, present * ratio
                pull = torch.zeros(2, positions, 64)
                pull[0, 0], pull[0, 1] = 1e4, -1e4
                (model(inputs) * pull).flatten(1).sum(1).mean().backward()
                sums.append(engine.clipped_sum(1.0)[0][0].double().clone())
            assert float((sums[0] - sums[1]).norm()) <= 1.0 + ROUNDING
    finally:
        engine.detach()


@pytest.mark.parametrize("terms", [2, 8, 64])
@pytest.mark.parametrize("width", [16, 64, 1024, 16384])
def test_what_is_added_covers_the_rounding(width: int, terms: int) -> None:
    torch.manual_seed(width + terms)
    same = 0.1 * torch.ones(4, terms, width) * (1 + 0.1 * torch.rand(4, terms, 1))
    signs = (1 - 2 * (torch.arange(terms) % 2).float())[:, None]
    for inputs, gradients in (
        (same, 0.3 * signs.expand(4, terms, 16).contiguous()),
        (1e-22 * same, 3e18 * signs.expand(4, terms, 16).contiguous()),  # squares below the smallest float
        (torch.rand(4, terms, width), torch.rand(4, terms, 16)),
        (torch.randn(4, terms, width), torch.randn(4, terms, 16)),
    ):
        found = PositionOuterProducts(inputs, gradients).squares()
        a, g = inputs.double(), gradients.double()
        true = (g.mT @ a).square().sum((1, 2))
        assert bool((found >= true * (1 - 2.0**-13)).all())
        if inputs.min() < 0:
            assert bool((found <= true * (1 + terms * (width + 8) * 2.0**-20)).all()), "random terms gain little"


def test_terms_that_cancel_stay_comparable_with_the_norm() -> None:
    squares, sizes = torch.tensor([64.0, 1e-3]).double(), torch.tensor([64.0, 64.0]).double()
    found = squared_norm_of_sum(squares, sizes, width=128, terms=64)
    assert float(found[0]) < 64.0 * (1 + 4e-3), "64 terms of length one in random directions"
    assert float(sizes[1] / found[1].sqrt()) == pytest.approx(block_layout(64)[1])


def test_the_stated_rounding_is_what_the_blocks_add_up_to() -> None:
    """The sums in `accumulate`'s proof: for record j of a block, the layer whose rounding is largest."""
    unit, layouts = 2.0**-24, {terms: block_layout(terms) for terms in range(1, 5000)}
    inside, added = [0.0] * 4096, [0.0] * 4096
    assert sum_type(4096, torch.device("cpu")) is torch.float32
    assert sum_type(4097, torch.device("cpu")) is torch.float64
    rounded = 2 * unit * 4096  # the sum itself, to float32
    for terms, (block, ratio) in layouts.items():
        for record in range(max(1, block // terms)):
            inside[record] = max(inside[record], block * ratio)
        # As the code chooses it: additions of a span, and the records that it holds.
        share = min(block, max(terms, block // terms * terms)) / terms
        for longest, most in ((1.0, 2**12), (ratio, 2**10)):  # of one function, and of a table that is multiplied, too
            span = max(s for s in range(1, 17) if (s - 1) * (s * share * longest + ratio) <= most)
            for record in range(int(span * share + ratio / longest) + 1):
                added[record] = max(added[record], (span - 1) * longest)
    total = 4 * unit * sum(inside) + 2 * unit * sum(added) + rounded + 2.0**-13
    assert total <= ROUNDING


@pytest.mark.parametrize(("records", "terms"), [(1, 1), (97, 1), (500, 1), (3000, 1), (33, 2), (40, 64), (9, 200)])
def test_a_record_leaves_the_blocks_of_others_as_they_are(records: int, terms: int) -> None:
    """Every row is summed once, and a record only meets those of its block."""
    seen: list[slice] = []
    out = torch.empty(1)
    accumulate(out, records, terms, lambda rows, part: (seen.append(rows), part.fill_(rows.stop - rows.start)))
    assert [row for rows in seen for row in range(rows.start, rows.stop)] == list(range(records * terms))
    assert float(out) == records * terms
    more: list[slice] = []
    accumulate(torch.empty(1), records + 1, terms, lambda rows, part: (more.append(rows), part.zero_()))
    assert more[: len(seen) - 1] == seen[:-1]
    for rows in seen:
        whole = rows.start % terms == 0 and rows.stop % terms == 0
        assert whole or rows.start // terms == (rows.stop - 1) // terms
    accumulate(out, 0, terms, lambda rows, part: part.fill_(1.0))
    assert float(out) == 0.0


@pytest.mark.parametrize("kind", ["perceptron", "positions", "table", "scale"])
@pytest.mark.parametrize("records", [64, 700, 3000])
def test_one_record_moves_the_rounding_of_all_others_within_the_stated_share(kind: str, records: int) -> None:
    """Equal records, whose rounding has one sign, and a small one among them: the worst that a sum in order knows."""
    torch.manual_seed(records)
    models = {
        "perceptron": (nn.Linear(7, 5), torch.rand(1, 7)),
        "positions": (nn.Linear(60, 50), torch.rand(1, 4, 60)),
        "table": (nn.Embedding(4, 3), torch.zeros(1, 6, dtype=torch.long)),
        "scale": (nn.LayerNorm(5), torch.rand(1, 5)),
    }
    model, row = models[kind]
    inputs, engine = row.repeat(records, *[1] * (row.dim() - 1)), make_engine()
    pull = torch.rand(1, *model(row).shape[1:]).expand(records, *model(row).shape[1:]).clone()
    engine.attach(model)
    sums = []
    for present in (1.0, 1.3e-3, 0.0):
        pull[0] = present * pull[1]
        ((model(inputs) * pull).flatten(1).sum(1) * 100).mean().backward()
        sums.append(torch.cat([total.flatten() for total in engine.clipped_sum(1.0)[0]]).double())
    engine.detach()
    for with_record in sums[:-1]:
        assert float((with_record - sums[-1]).norm()) <= 1.0 + ROUNDING


@pytest.mark.parametrize("bring", ["clipped_sum", "clipped_parts"])
@pytest.mark.parametrize("records", [4096, 300_000])
def test_one_record_moves_a_sum_of_very_many_by_its_own(records: int, bring: str) -> None:
    """A sum of 300,000 lengths C has steps of 2^-5 C in float32: which way each coordinate is rounded is looked for."""
    others, width = 2_000, 40
    model, engine = nn.Linear(width, 1, bias=False), make_engine()
    engine.attach(model)
    inputs = torch.zeros(records, width)
    inputs[:] = 1e3
    moved = torch.zeros(width, dtype=torch.double)
    for try_ in range(4):
        inputs[:others] = 1e-3 * torch.rand(width, generator=torch.Generator().manual_seed(try_)) / others**0.5
        sums = []
        for present in (1.0, 0.0):
            inputs[-1] = 1e3 * present
            model(inputs).squeeze(1).mean().backward()
            (total,) = getattr(engine, bring)(1.0)[0]
            sums.append(total.flatten().double().clone())
        moved = torch.maximum(moved, (sums[0] - sums[1]).abs())
    engine.detach()
    # Coordinates are rounded apart, so that the worst of each may come together.
    assert float(moved.norm()) <= 1.0 + ROUNDING


def test_look_ups_and_products_of_one_table_that_cancel() -> None:
    """A sum of products alone is then kappa times as long as what records are clipped to."""
    records, width, vocabulary = 80_000, 40, 40
    table, engine = nn.Embedding(vocabulary, width), make_engine()
    engine.attach(table)
    inputs, index = torch.ones(records, 4, width), torch.zeros(records, 4, dtype=torch.long)
    looked_up = torch.full((records,), 1e3)
    looked_up[-1] = 0.0
    moved = torch.zeros(width, dtype=torch.double)
    for try_ in range(2):
        inputs[0] = 3 * torch.rand(width, generator=torch.Generator().manual_seed(try_))
        sums = []
        for present in (1e3, 0.0):
            multiplied = torch.cat([torch.full((records - 1,), 1e3), torch.tensor([present])])
            with engine.following((inputs, index, looked_up, multiplied)):
                products = nn.functional.linear(inputs, table.weight)[..., 0].sum(1)
                loss = (multiplied * products - looked_up * (table(index) * inputs).sum((1, 2))).mean()
            loss.backward()
            (total,), norms = engine.clipped_sum(1.0)
            assert float(norms[1]) == pytest.approx(8 * 1e3 * width**0.5 / 6, rel=1e-3), "cancels but for kappa"
            sums.append(total[0].double().clone())
        moved = torch.maximum(moved, (sums[0] - sums[1]).abs())
    engine.detach()
    assert float(moved.norm()) <= 1.0 + ROUNDING


def test_a_factor_below_the_smallest_float_still_counts() -> None:
    contribution = OuterProduct(torch.full((1, 1), 1e19), torch.full((1, 10_000), 2.6e-23))
    total, norms = clipped(contribution, (10_000, 1))
    assert float(norms) >= float(total.norm())


@pytest.mark.parametrize("width", [3, 1000, 3000, 100_003, 2_400_000])
def test_norms_of_long_gradients_are_as_precise_as_stated(width: int) -> None:
    torch.manual_seed(0)
    for gradients in (torch.randn(2, width), torch.full((2, width), 0.1)):
        found = Dense(gradients).squares().sqrt()
        assert bool((found / gradients.double().norm(dim=1) - 1).abs().max() < 2.0**-14)


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
        model, engine = nn.Linear(200, 100), make_engine()
        engine.attach(model)
        model(torch.randn(4, 200)).square().sum(1).mean().backward()
        engine.clipped_sum(1.0)
        assert torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["ieee"] * 4
    with pytest.raises(ZeroDivisionError), ieee_float32():
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("terms", [64, 256])
def test_clipping_takes_no_short_cuts_under_autocast(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms that cancel, whose Gram matrices have entries 1 + 2^-9 and 1 - 2^-9: in bfloat16 all are 1."""

    def gram(
        layer: str, key: object, factors: tuple[Tensor, Tensor], candidates: dict[str, Any], *_: object
    ) -> Contribution:
        found: Contribution = candidates["Gram matrices"](*factors)
        return found

    monkeypatch.setattr("lightning_pac.gradients.rules.linear.build_fastest", gram)
    small = torch.cat([torch.zeros(1), torch.full((126,), 2.0**-8), torch.zeros(129)])
    large, sign = torch.eye(256)[0], (1.0 - 2.0 * (torch.arange(terms) % 2))[:, None]
    model, engine = nn.Linear(256, 256, bias=False), make_engine()
    engine.attach(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (model((large + sign * small)[None]) * (sign * large + small)).sum((1, 2)).mean().backward()
        (total,), norms = engine.clipped_sum(0.5)
    engine.detach()
    assert float(norms) >= terms * (2 * 126) ** 0.5 * 2.0**-8 * (1 - 2.0**-13)
    assert float(total.double().norm()) <= 0.5 * (1 + ROUNDING)


def test_a_layer_at_no_position_gives_nothing() -> None:
    total, norms = clipped(PositionOuterProducts(torch.zeros(4, 0, 3), torch.zeros(4, 0, 2)), (2, 3))
    assert not total.any()
    assert norms.tolist() == [0.0] * 4
