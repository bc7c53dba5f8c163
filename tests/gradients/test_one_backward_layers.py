"""Every layer with a rule, in shapes drawn at random, against one backward pass for each example in float64."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn

from lightning_pac.gradients import ROUNDING, contributions
from lightning_pac.gradients.contributions import Contribution, Dense, PositionOuterProducts
from lightning_pac.gradients.one_backward import OneBackwardEngine
from lightning_pac.gradients.rules import measured_choice

RTOL = 1e-5
# Norms from Gram matrices of T positions are raised by up to T times 2 (width + 8) 2^-24, what cancellation may hide.
GRAM_RTOL = 5e-4
Case = tuple[nn.Module, Tensor]
Factors = tuple[Tensor, Tensor]


def squared_output(module: nn.Module, batch: list[Tensor]) -> Tensor:
    """A loss with another gradient at every position and example."""
    output = module(*batch)
    ramp = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view(output.shape[1:])
    return (torch.sin(output) * ramp).flatten(1).sum(1).mean()


def convolution(choose: random.Random, dims: int, transposed: bool) -> Case:
    groups = choose.choice([1, 1, 2])
    channels, out = groups * choose.randint(1, 4), groups * choose.randint(1, 4)
    options = {
        "kernel_size": choose.randint(1, 3),
        "stride": choose.randint(1, 2),
        "groups": groups,
        "dilation": choose.randint(1, 2),
        "bias": choose.random() < 0.7,
    }
    if transposed:
        maker = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][dims - 1]
        spare = max(options["stride"], options["dilation"]) - 1
        options |= {"padding": choose.randint(0, 1), "output_padding": choose.randint(0, spare)}
    else:
        maker = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
        options["padding"] = choose.choice([0, 1, 2, "valid", "same"] if options["stride"] == 1 else [0, 1, 2])
        options["padding_mode"] = choose.choice(["zeros", "zeros", "reflect", "replicate", "circular"])
    size = [choose.randint(5, 7) for _ in range(dims)]
    return maker(channels, out, **options), torch.randn(choose.randint(1, 5), channels, *size)


def linear(choose: random.Random) -> Case:
    leading = [choose.randint(1, 6) for _ in range(choose.randint(1, 4))]
    width = choose.randint(1, 9)
    return nn.Linear(width, choose.randint(1, 9), bias=choose.random() < 0.7), torch.randn(*leading, width)


def embedding(choose: random.Random) -> Case:
    rows = choose.randint(2, 9)
    layer = nn.Embedding(rows, choose.randint(1, 5), padding_idx=choose.choice([None, 0]))
    shape = [choose.randint(1, 6) for _ in range(choose.randint(1, 3))]
    return layer, torch.randint(rows, shape)


def embedding_bag(choose: random.Random) -> Case:
    rows = choose.randint(2, 9)
    mode = choose.choice(["sum", "mean", "max"])
    layer = nn.EmbeddingBag(rows, choose.randint(1, 5), mode=mode, padding_idx=choose.choice([None, 0]))
    return layer, torch.randint(rows, (choose.randint(1, 6), choose.randint(1, 7)))


def trailing_norm(choose: random.Random) -> Case:
    shape = [choose.randint(2, 5) for _ in range(choose.randint(1, 2))]
    leading = [choose.randint(1, 5) for _ in range(choose.randint(1, 3))]
    maker = choose.choice([nn.LayerNorm, nn.RMSNorm])
    return maker(shape), 3.0 * torch.randn(*leading, *shape) + 1.0


def channel_norm(choose: random.Random) -> Case:
    dims = choose.randint(1, 3)
    channels = choose.choice([2, 4, 6])
    inputs = 3.0 * torch.randn(choose.randint(1, 5), channels, *[choose.randint(2, 5) for _ in range(dims)]) + 1.0
    if choose.random() < 0.5:
        return nn.GroupNorm(choose.choice([1, 2, channels]), channels), inputs
    return [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][dims - 1](channels, affine=True), inputs


CASES: dict[str, Callable[[random.Random], Case]] = {
    "linear": linear,
    "embedding": embedding,
    "embedding_bag": embedding_bag,
    "layer and RMS norm": trailing_norm,
    "group and instance norm": channel_norm,
    **{f"conv{d}d": lambda choose, d=d: convolution(choose, d, transposed=False) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": lambda choose, d=d: convolution(choose, d, transposed=True) for d in (1, 2, 3)},
}


def engine_result(module: nn.Module, inputs: Tensor, bound: float) -> tuple[list[Tensor], Tensor]:
    engine = OneBackwardEngine()
    engine.attach(module)
    squared_output(module, [inputs]).backward()
    result = engine.clipped_sum(bound)
    assert all(parameter.grad is None for parameter in module.parameters())
    engine.detach()
    return result


@pytest.mark.parametrize("kind", CASES)
def test_layer_equals_the_loop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(kind)
    for seed in range(12):
        torch.manual_seed(seed)
        # Small gradients are put side by side, or each is taken alone.
        monkeypatch.setattr(contributions, "_FEW", 2**14 * (seed % 2) - 1)
        module, inputs = CASES[kind](choose)
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        expected = clipped_sum_by_loop(module, [inputs], squared_output, 1.0)
        assert_same(*engine_result(module, inputs, 1.0), expected, RTOL)


def test_sums_are_float32_whatever_the_default_type_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        cases = [CASES[kind](random.Random(2)) for kind in ("linear", "embedding", "group and instance norm", "conv2d")]
        for module, inputs in [*cases, (nn.EmbeddingBag(6, 3), torch.randint(6, (4, 5)))]:
            expected = clipped_sum_by_loop(module, [inputs], squared_output, 1.0)
            sums, norms = engine_result(module, inputs, 1.0)
            assert {total.dtype for total in [*sums, norms]} == {torch.float32}
            assert_same(sums, norms, expected, RTOL)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["linear", "conv1d", "conv2d", "conv3d"])
def test_every_method_equals_the_loop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever method is fastest on this machine, all of them must be right."""
    seen = set()

    def build_each(
        layer: str, key: object, factors: Factors, candidates: dict[str, Callable[..., Contribution]], *_: object
    ) -> Contribution:
        method = sorted(candidates)[turn % len(candidates)]
        seen.add(method)
        return candidates[method](*factors)

    monkeypatch.setattr("lightning_pac.gradients.rules.linear.build_fastest", build_each)
    monkeypatch.setattr("lightning_pac.gradients.rules.convolution.build_fastest", build_each)
    for turn in range(3):
        choose = random.Random(turn)
        for seed in range(8):
            torch.manual_seed(seed)
            monkeypatch.setattr(contributions, "_FEW", 2**14 * (seed % 2) - 1)
            if kind == "linear":
                module, inputs = nn.Linear(6, 7), torch.randn(4, 5, 6)
            else:
                dims = int(kind[4])
                maker = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
                stride, dilation = choose.randint(1, 2), choose.randint(1, 2)
                module = maker(8, 13, 3, padding=choose.randint(0, 2), stride=stride, dilation=dilation)
                inputs = torch.randn(3, 8, *[choose.randint(5, 6)] * dims)
            expected = clipped_sum_by_loop(module, [inputs], squared_output, 1.0)
            assert_same(*engine_result(module, inputs, 1.0), expected, GRAM_RTOL)
    assert len(seen) >= 2


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gram_matrices_leave_out_the_padding(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where padding, dilation and stride leave windows partly or wholly outside of the input."""
    used = 0

    def build_gram(
        layer: str, key: object, factors: Factors, candidates: dict[str, Callable[..., Contribution]], *_: object
    ) -> Contribution:
        nonlocal used
        used += "Gram matrices" in candidates
        return candidates.get("Gram matrices", next(iter(candidates.values())))(*factors)

    monkeypatch.setattr("lightning_pac.gradients.rules.convolution.build_fastest", build_gram)
    choose = random.Random(dims)
    for seed in range(25):
        torch.manual_seed(seed)
        options = {
            "kernel_size": [choose.randint(1, 3) for _ in range(dims)],
            "stride": [choose.randint(1, 3) for _ in range(dims)],
            "padding": [choose.randint(0, 4) for _ in range(dims)],
        }
        # The furthest offset stays within the padded input.
        size = [choose.randint(3, 5) for _ in range(dims)]
        reaches = zip(options["kernel_size"], options["padding"], size, strict=True)
        options["dilation"] = [
            1 if kernel == 1 else choose.randint(1, (length + 2 * pad - 1) // (kernel - 1))
            for kernel, pad, length in reaches
        ]
        module = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](8, 16 * dims, **options)
        inputs = torch.randn(3, 8, *size)
        expected = clipped_sum_by_loop(module, [inputs], squared_output, 1.0)
        assert_same(*engine_result(module, inputs, 1.0), expected, GRAM_RTOL)
    assert used >= 10


def test_the_choice_is_measured_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    measured_choice._chosen.clear()
    module = nn.Conv2d(8, 9, 3)
    with caplog.at_level("INFO", logger="lightning_pac.gradients"):
        for _ in range(3):
            engine_result(module, torch.randn(4, 8, 6, 6), 1.0)
    messages = [record.message for record in caplog.records if "Per-example gradients" in record.message]
    assert len(messages) == 1
    assert "grouped convolution" in messages[0]
    assert "ms" in messages[0]


def test_batches_of_like_size_share_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisson batches have another size at every step; measuring each took most of a private step."""
    measured_choice._chosen.clear()
    measured: list[tuple[str, ...]] = []
    measure = measured_choice._measure

    def counted(candidates: dict[str, Any], factors: Factors, out_shape: torch.Size) -> dict[str, float]:
        measured.append(tuple(candidates))
        return measure(candidates, factors, out_shape)

    monkeypatch.setattr(measured_choice, "_measure", counted)
    module = nn.Conv2d(8, 9, 3)
    for size in (17, 30, 22, 32, 19):
        inputs = torch.randn(size, 8, 6, 6)
        assert_same(
            *engine_result(module, inputs, 1.0), clipped_sum_by_loop(module, [inputs], squared_output, 1.0), GRAM_RTOL
        )
    assert len(measured) == 1
    engine_result(module, torch.randn(33, 8, 6, 6), 1.0)
    assert len(measured) == 2


def test_no_record_decides_how_the_others_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many processors take a hundred times as long for subnormal numbers, as this made-up clock does."""

    def seconds(build: Callable[[], PositionOuterProducts | Dense], out_shape: torch.Size) -> float:
        found = build()
        slow = not isinstance(found, Dense) and bool((found.factors[0].abs() < 1e-30).any())
        return 10.0 if slow else 1.0

    monkeypatch.setattr(measured_choice, "_seconds", seconds)
    module, inputs = nn.Linear(96, 96, bias=False), torch.full((64, 40, 96), 0.1)
    # Terms that nearly cancel, whose norms Gram matrices raise.
    pull = (10 * (1 - 2 * (torch.arange(40) % 2)) + 0.1)[:, None]
    sums = []
    for made in (0.1, 1e-41):
        monkeypatch.setattr(measured_choice, "_chosen", {})
        inputs[0] = made
        engine = OneBackwardEngine()
        engine.attach(module)
        (module(inputs) * pull).flatten(1).sum(1).mean().backward()
        sums.append(torch.cat([total.flatten() for total in engine.clipped_sum(1.0)[0]]).double())
        engine.detach()
    assert float((sums[0] - sums[1]).norm()) <= 2.0 * (1 + ROUNDING)


def test_memory_decides_between_methods_of_like_speed() -> None:
    kept = {"large": 100, "small": 10}
    assert measured_choice._choose({"large": 1.0, "small": 1.9}, kept) == "small"
    assert measured_choice._choose({"large": 1.0, "small": 2.1}, kept) == "large"
    assert measured_choice._choose({"large": 1.0, "small": 0.5}, kept) == "small"


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_given_by_offsets(mode: str) -> None:
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(6, 3, mode=mode)
    indices, offsets = torch.tensor([0, 3, 3, 5, 1, 2, 2]), torch.tensor([0, 3, 3, 6])
    bags = [[0, 3, 3], [], [5, 1, 2], [2]]
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0])
    engine = OneBackwardEngine()
    engine.attach(layer)
    (layer(indices, offsets).square().sum(1) * weights).mean().backward()
    sums, norms = engine.clipped_sum(1e6)
    engine.detach()
    rows = []
    for bag, weight in zip(bags, weights, strict=True):
        layer.zero_grad()
        (layer(torch.tensor(bag, dtype=torch.long), torch.tensor([0])).square().sum() * weight).backward()
        rows.append(layer.weight.grad.clone())
    assert torch.allclose(norms[:, 0], torch.stack([row.norm() for row in rows]), rtol=1e-5)
    assert torch.allclose(sums[0], torch.stack(rows).sum(0), rtol=1e-5, atol=1e-6)


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above fails when a rule drops one position."""
    from lightning_pac.gradients.rules import linear as rule

    stock = rule.linear_weight
    monkeypatch.setattr(rule, "linear_weight", lambda name, a, g: stock(name, a[:, 1:], g[:, 1:]))
    module, inputs = nn.Linear(3, 2), torch.randn(4, 5, 3)
    expected = clipped_sum_by_loop(module, [inputs], squared_output, 1.0)
    with pytest.raises(AssertionError):
        assert_same(*engine_result(module, inputs, 1.0), expected, RTOL)
