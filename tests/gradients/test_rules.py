"""Every rule of the engine passes the check that a user's must pass, and wrong ones do not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_pac.gradients import Call, Contribution, Dense, check_rule, make_engine, register_rule
from lightning_pac.gradients.contributions import checked_squares
from lightning_pac.gradients.rules.table import rule_of, rule_on_trial


def p(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def r(*shape: int) -> Tensor:
    return torch.randn(shape)


def tokens(*shape: int) -> Tensor:
    return torch.randint(7, shape)


CASES: dict[str, tuple[Any, Any]] = {
    "linear": (
        F.linear,
        lambda: [
            (r(6, 4), p(3, 4)),
            (r(6, 4), p(3, 4), p(3)),
            (r(6, 5, 4), p(3, 4), p(3)),
            (r(6, 2, 5, 4), p(3, 4), p(3)),
            (r(4, 2, 20), p(30, 20), p(30)),
            (r(4, 40, 3), p(2, 3), p(2)),
        ],
    ),
    "matmul": (torch.matmul, lambda: [(r(6, 4), p(4, 3)), (r(6, 5, 4), p(4, 3)), (p(3, 5), r(6, 5, 4))]),
    "addmm": (torch.addmm, lambda: [(p(3), r(6, 4), p(4, 3))]),
    "conv1d": (
        F.conv1d,
        lambda: [(r(6, 2, 7), p(3, 2, 3), p(3)), (r(6, 2, 7), p(3, 2, 3)), (r(6, 4, 7), p(4, 1, 3), p(4), 2, 1, 1, 4)],
    ),
    "conv2d": (
        F.conv2d,
        lambda: [
            (r(6, 2, 5, 5), p(3, 2, 3, 3), p(3), 1, 1),
            (r(6, 16, 3, 3), p(40, 16, 3, 3), p(40), 2, 1),
            (r(4, 3, 6, 6), p(2, 3, 1, 1), None),
            (r(4, 3, 6, 6), p(2, 3, 2, 2), None, 1, "same"),
        ],
    ),
    "conv3d": (F.conv3d, lambda: [(r(4, 2, 3, 4, 4), p(3, 2, 2, 2, 2), p(3))]),
    "conv_transpose2d": (
        F.conv_transpose2d,
        lambda: [(r(6, 2, 4, 4), p(2, 3, 3, 3), p(3)), (r(6, 2, 4, 4), p(2, 3, 3, 3), p(3), 2, 1, 1)],
    ),
    "layer_norm": (
        F.layer_norm,
        lambda: [(r(6, 4), (4,), p(4), p(4)), (r(6, 5, 4), (4,), p(4)), (r(6, 3, 5, 4), (5, 4), p(5, 4), p(5, 4))],
    ),
    "rms_norm": (F.rms_norm, lambda: [(r(6, 4), (4,), p(4)), (r(6, 5, 4), (4,), p(4), 1e-3)]),
    "group_norm": (F.group_norm, lambda: [(r(6, 4), 2, p(4), p(4)), (r(6, 4, 3, 3), 2, p(4), p(4))]),
    "instance_norm": (F.instance_norm, lambda: [(r(6, 4, 5), None, None, p(4), p(4))]),
    "mul": (torch.mul, lambda: [(r(6, 4), p(4)), (p(5, 1), r(6, 5, 4)), (r(6, 3), p()), (r(6, 5, 4), p(1, 5, 4))]),
    "add": (torch.add, lambda: [(r(6, 4), p(4)), (p(5, 1), r(6, 5, 4)), (r(6, 3), p())]),
    "sub": (torch.sub, lambda: [(r(6, 4), p(4)), (p(5, 1), r(6, 5, 4)), (r(6, 3), p())]),
    "embedding": (F.embedding, lambda: [(tokens(6), p(7, 3)), (tokens(6, 5), p(7, 3)), (tokens(6, 5), p(7, 3), 2)]),
    "torch.embedding": (torch.embedding, lambda: [(p(7, 3), tokens(6)), (p(7, 3), tokens(6, 5), 2)]),
    "index": (Tensor.__getitem__, lambda: [(p(7, 3), tokens(6)), (p(7, 3), tokens(6, 5))]),
    "embedding_bag": (F.embedding_bag, lambda: [(tokens(6, 5), p(7, 3))]),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_passes_its_check(name: str) -> None:
    torch.manual_seed(0)
    function, cases = CASES[name]
    check_rule(function, rule_of(function).contributions, cases())


def scaled(call: Call, factor: float = 1.0) -> Any:
    inputs, scale = call.args
    products = (call.by_record(inputs) * call.gradient_by_record()).float() * factor
    return [(scale, lambda: Dense(products.flatten(1, -2).sum(1) if products.dim() > 2 else products))]


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum(tuple(range(gradient.dim() - 1)))


def forgets_positions(call: Call) -> Any:
    inputs, scale = call.args
    products = (call.by_record(inputs) * call.gradient_by_record()).float()
    return [(scale, lambda: Dense(products.reshape(len(products), -1, products.shape[-1])[:, 0]))]


def counts_rows_for_records(call: Call) -> Any:
    inputs, scale = call.args
    products = (inputs * call.gradient).float().reshape(len(inputs), -1, inputs.shape[-1]).sum(1)
    return [(scale, lambda: Dense(products.repeat_interleave(1, 0)[: call.count]))]


def takes_each_row_in_order(call: Call) -> Any:
    inputs, scale = call.args
    products = (inputs * call.gradient).float().reshape(call.count, -1, inputs.shape[-1]).sum(1)
    return [(scale, lambda: Dense(products))]


@pytest.mark.parametrize("function", [torch.mul, Scaled])
def test_a_rule_of_the_users_own(function: Any) -> None:
    cases = [(r(6, 4), p(4)), (r(6, 5, 4), p(4))]
    check_rule(function, scaled, cases)
    for wrong in (
        lambda call: scaled(call, 1.001),
        forgets_positions,
        counts_rows_for_records,
        takes_each_row_in_order,
        lambda call: [],
    ):
        with pytest.raises(ValueError, match="is off by a share of"):
            check_rule(function, wrong, cases)


def couples_where(condition: Any) -> Any:
    """A rule that centres records, in company of one kind."""

    def rule(call: Call) -> Any:
        inputs, scale = call.args
        gradient = call.gradient_by_record()
        products = (call.by_record(inputs) * gradient).float()
        if len(products) and condition(products, inputs, gradient):
            products = products - products.nan_to_num(0.0, 0.0, 0.0).mean(0)
        return [(scale, lambda: Dense(products.reshape(len(products), -1, products.shape[-1]).sum(1)))]

    return rule


class TooShort(Dense):
    """Gradients of large records with a norm that is none."""

    def squares(self) -> Tensor:
        return super().squares().clamp(max=1e5)


def claims_short_norms(call: Call) -> Any:
    inputs, scale = call.args
    products = (call.by_record(inputs) * call.gradient_by_record()).float()
    return [(scale, lambda: TooShort(products.reshape(len(products), -1, products.shape[-1]).sum(1)))]


@pytest.mark.parametrize(
    "condition",
    [
        lambda products, inputs, gradient: products.abs().max() > 50,
        lambda products, inputs, gradient: (inputs.flatten(1) == 0).all(1).any(),
        lambda products, inputs, gradient: inputs.isinf().any(),
        lambda products, inputs, gradient: inputs.dtype == torch.bfloat16,
        lambda products, inputs, gradient: not inputs.is_contiguous(),
        lambda products, inputs, gradient: not gradient.is_contiguous(),
        lambda products, inputs, gradient: len(products) > 100,
        lambda products, inputs, gradient: products.abs().max() < 1e-6,
    ],
)
def test_a_rule_that_couples_records_in_some_company(condition: Any) -> None:
    with pytest.raises(ValueError, match="lets one record move the others' sum"):
        check_rule(torch.mul, couples_where(condition), [(r(6, 4), p(4))])


def test_a_rule_whose_norms_are_too_short_for_large_records() -> None:
    with pytest.raises(ValueError, match=r"lets one record give [\d.e+]+ clipping norms"):
        check_rule(torch.mul, claims_short_norms, [(r(6, 4096), p(4096))])  # too wide to be put beside others


def test_bad_cases_and_functions() -> None:
    for case in [(r(6, 4), r(4)), (r(5, 4), p(4)), (r(2, 4), p(4))]:
        with pytest.raises(ValueError, match="an even number of rows, at least four"):
            check_rule(torch.mul, scaled, [case])
    with pytest.raises(ValueError, match="took no call"):  # Python's own functions are not seen
        check_rule(lambda x, scale: x * scale, scaled, [(r(6, 4), p(4))])
    with pytest.raises(TypeError, match="rule is 3, but must be a function"):
        register_rule(torch.mul, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="took no call"):
        check_rule(torch.mul, lambda call: None, [(r(6, 4), p(4))])
    assert rule_of(torch.mul).contributions is not scaled


class Column(Contribution):
    """Gradients of which the sum is written in some types only."""

    def __init__(self, gradients: Tensor, only: torch.dtype | None) -> None:
        self.gradients, self.only = gradients, only

    def squares(self) -> Tensor:
        return self.gradients.double().square().sum(1)

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        if self.only is None:
            torch.matmul(weights, self.gradients, out=out)
        elif out.dtype == self.only:
            out.copy_(weights @ self.gradients)

    def dense(self) -> Tensor:
        return self.gradients

    def drop(self, excluded: Tensor) -> None:
        self.gradients = self.gradients.masked_fill(excluded[:, None], 0.0)


@pytest.mark.parametrize("only", [None, torch.float32])
def test_a_contribution_that_writes_to_float32_alone_is_found(only: torch.dtype | None) -> None:
    """Sums of more than 4,096 records are formed in float64."""

    def rule(call: Call) -> Any:
        gradients = call.gradient_by_record().float() * call.by_record(call.args[0])
        return [(call.args[1], lambda: Column(gradients, only))] if gradients.dim() == 2 else None

    with pytest.raises(ValueError, match="more than 4,096 records"):
        check_rule(torch.mul, rule, [(r(6, 4), p(4))])


@pytest.mark.parametrize(
    "wrong", [lambda g: g[:1], lambda g: g.view(-1, 2, 3).sum(1), lambda g: g[:, :2], lambda g: torch.cat([g, g], 1)]
)
def test_gradients_of_another_shape_are_refused_when_they_come(wrong: Any) -> None:
    """Such a rule may pass its check and err at a size that it was not tried at: in one case memory was released."""

    def rule(call: Call) -> Any:
        gradients = call.gradient_by_record().float() * call.by_record(call.args[0])
        return [(call.args[1], lambda: Dense(wrong(gradients)))]

    engine, model = make_engine(), nn.ParameterList([p(3)])
    engine.attach(model)
    inputs = r(300, 3)
    with rule_on_trial(torch.Tensor.mul, rule), engine.following((inputs,)):
        loss = inputs.mul(model[0]).sum(1).mean()
        with pytest.raises(RuntimeError, match=r"gave gradients of shape .* for 300 records"):
            loss.backward()
    engine.detach()


def test_norms_of_fewer_records_are_refused() -> None:
    few = Column(torch.ones(1, 3), None)
    assert checked_squares(few, 1).tolist() == [3.0]
    with pytest.raises(RuntimeError, match="for 4 records"):
        checked_squares(few, 4)
