"""What other per-example engines get wrong, each against one backward pass for each example in float64."""

import copy
import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from per_example_loop import Loss, assert_same, clipped_sum_by_loop
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import ROUNDING, make_engine
from lightning_pac.gradients.one_backward import OneBackwardEngine
from lightning_pac.gradients.rules import measured_choice

RTOL = 1e-5


def curved(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    output = module(*batch)
    output = output[0] if isinstance(output, tuple) else output
    ramp = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view(output.shape[1:])
    return (torch.sin(output) * ramp).flatten(1).sum(1).mean()


def compare(
    module: nn.Module,
    batch: Sequence[Tensor],
    loss: Loss = curved,
    bound: float = 1.0,
    engine: OneBackwardEngine | None = None,
    batch_dim: int = 0,
) -> None:
    expected = clipped_sum_by_loop(module, batch, loss, bound, batch_dim=batch_dim)
    engine = engine or OneBackwardEngine()
    engine.attach(module)
    for _ in range(2):
        loss(module, batch).backward()
        assert all(parameter.grad is None for parameter in module.parameters())
        assert_same(*engine.clipped_sum(bound), expected, RTOL)
    engine.detach()


class OutOfOrder(nn.Module):
    """Runs its layers in another order than they are registered, and one of them not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.unused, self.first = nn.Linear(5, 2), nn.Linear(2, 2), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.norm(torch.tanh(self.inner(x)))
        return self.outer(x)


class TiedLanguageModel(nn.Module):
    """The table of the embedding is the weight of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixer, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mixer(self.embedding(tokens))))


class BareParameters(nn.Module):
    """A class token and position table owned by the module itself, around layers that have rules."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(4, 4))
        self.encode, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.encode(x)], dim=1) + self.positions
        return self.head(torch.tanh(x).mean(1))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(2, 4, 3, groups=2)
        self.dense, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.elu_(self.convolve(x)).mean((2, 3))
        x = functional.relu_(self.dense(x))
        return self.head(x)


class LowRankAdapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.cell(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(output.mean(1) + last[-1])


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant))


class CheckpointedMethod(nn.Module):
    """What is repeated uses parameters outside of any module's call, also without an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scale, self.left = nn.Linear(3, 6), nn.Parameter(torch.ones(6)), nn.Parameter(torch.randn(6, 2))

    def block(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(functional.linear(y, self.left @ self.left.T))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = checkpoint(self.block, h, h.flip(1), use_reentrant=False)
        return checkpoint(lambda: h * self.scale + self.stem(x), use_reentrant=False)


def parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


MODELS = {
    "other order, unused layer": (OutOfOrder, lambda: [torch.randn(5, 3)]),
    "called several times": (CalledTwice, lambda: [torch.randn(5, 4)]),
    "called several times with positions": (CalledTwice, lambda: [torch.randn(5, 3, 4)]),
    "tied": (TiedLanguageModel, lambda: [torch.randint(11, (4, 7))]),
    "bare parameters": (BareParameters, lambda: [torch.randn(20, 3, 4)]),
    "in place, grouped": (InPlace, lambda: [torch.randn(4, 2, 6, 6)]),
    "low-rank adapter": (LowRankAdapter, lambda: [torch.randn(4, 3, 6)]),
    "LSTM": (lambda: Recurrent(nn.LSTM), lambda: [torch.randn(4, 5, 3)]),
    "GRU": (lambda: Recurrent(nn.GRU), lambda: [torch.randn(4, 5, 3)]),
    "checkpointing, reentrant": (lambda: Checkpointed(True), lambda: [torch.randn(4, 3)]),
    "checkpointing": (lambda: Checkpointed(False), lambda: [torch.randn(4, 3)]),
    "checkpointing a method": (CheckpointedMethod, lambda: [torch.randn(4, 3)]),
    "checkpointing a method, positions": (CheckpointedMethod, lambda: [torch.randn(4, 5, 3)]),
    "parametrized": (parametrized, lambda: [torch.randn(4, 3)]),
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), lambda: [torch.randn(4, 3), torch.randn(4, 4)]),
    "PReLU": (lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2)), lambda: [torch.randn(4, 3)]),
}


@pytest.mark.parametrize("case", MODELS)
def test_hazard_equals_the_loop(case: str) -> None:
    torch.manual_seed(1)
    make, batch = MODELS[case]
    compare(make(), batch())


def test_sums_one_after_the_other_are_those_of_all_at_once() -> None:
    for make, batch in MODELS.values():
        torch.manual_seed(1)
        module, inputs = make(), batch()
        engine = OneBackwardEngine()
        engine.attach(module)
        found = []
        for clipped in (engine.clipped_sum, engine.clipped_parts):
            torch.manual_seed(2)
            curved(module, inputs).backward()
            sums, norms = clipped(0.4)
            found.append([*sums, norms])
        engine.detach()
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("poisoned", [False, True])
def test_tied_embeddings_make_no_table_for_each_record(poisoned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two look-ups of one row, rows that are looked up and not multiplied with, and a record that counts as zero."""
    torch.manual_seed(11)
    module = nn.Module()
    module.embedding, module.mixer = nn.Embedding(400, 24), nn.Linear(24, 24)

    def loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        tokens, scale = batch
        hidden = torch.tanh(module.mixer(module.embedding(tokens))) * scale[:, None, None]
        logits = functional.linear(hidden, module.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())

    tokens = torch.randint(400, (6, 7))
    tokens[:, 3] = tokens[:, 5]
    scale, kept = torch.rand(6) + 0.5, [0, 1, 2, 4, 5] if poisoned else [0, 1, 2, 3, 4, 5]
    expected = clipped_sum_by_loop(module, [tokens[kept], scale[kept]], loss, 0.3)
    if poisoned:
        scale[3] = math.inf
    # No table is made unless a clock says, in passing, that one is faster for so small a model.
    monkeypatch.setattr(measured_choice, "_chosen", {})
    monkeypatch.setattr(measured_choice, "_choose", lambda times, kept_bytes: min(kept_bytes, key=kept_bytes.get))
    monkeypatch.setattr("lightning_pac.gradients.contributions.Rows.dense", None)
    engine = OneBackwardEngine()
    engine.attach(module)
    with engine.following([tokens, scale]):
        value = loss(module, [tokens, scale])
    value.backward()
    sums, norms = engine.clipped_sum(0.3)
    engine.detach()
    assert bool((norms[kept].double() >= expected[1] * (1 - 2**-13)).all())
    assert_same(sums, norms[kept], expected, 1e-4)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross", "sizes"])
def test_attention_equals_the_loop_and_the_stock_forward(kind: str, need_weights: bool, batch_first: bool) -> None:
    torch.manual_seed(2)
    sizes = {"kdim": 6, "vdim": 5} if kind == "sizes" else {}
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, **sizes)
    nn.init.normal_(layer.in_proj_bias)
    query, padding = torch.randn(3, 4, 8), torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]]).bool()
    key = torch.randn(3, 4, 6) if kind == "sizes" else torch.randn(3, 4, 8)
    value = torch.randn(3, 4, 5) if kind == "sizes" else torch.randn(3, 4, 8)
    causal = torch.ones(4, 4).triu(1).bool()

    def loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        q, k, v, mask = batch
        k, v = (q, q) if kind == "self" else (k, v)
        if not batch_first:
            q, k, v = (q, q, q) if kind == "self" else (x.transpose(0, 1) for x in (q, k, v))
            if kind == "self":
                q = k = v = batch[0].transpose(0, 1)
        output, weights = module(q, k, v, key_padding_mask=mask, need_weights=need_weights, attn_mask=causal)
        output = output if batch_first else output.transpose(0, 1)
        extra = 0.0 if weights is None else weights.square().sum((1, 2))
        return (torch.sin(output).sum((1, 2)) + extra).mean()

    batch = [query, key, value, padding]
    plain = loss(layer, batch)
    engine = OneBackwardEngine()
    engine.attach(layer)
    assert torch.allclose(loss(layer, batch), plain, rtol=1e-6)
    engine.detach()
    assert "forward" not in vars(layer)
    compare(layer, batch, loss)


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoder(batch_first: bool) -> None:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    batch_dim = 0 if batch_first else 1

    def loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        return torch.sin(module(batch[0])).transpose(0, batch_dim).flatten(1).sum(1).mean()

    shape = (4, 5, 8) if batch_first else (5, 4, 8)
    compare(layer, [torch.randn(shape)], loss, batch_dim=batch_dim)


def test_attention_with_key_biases() -> None:
    torch.manual_seed(4)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
    compare(layer, [torch.randn(3, 4, 8)], lambda m, b: torch.sin(m(b[0], b[0], b[0])[0]).sum((1, 2)).mean())


def test_blocks_are_clipped_each_on_its_own() -> None:
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    blocks = {"first": ["0.weight", "0.bias"], "last": ["2.weight", "2.bias"]}
    batch = [torch.randn(6, 3)]
    expected = clipped_sum_by_loop(module, batch, curved, [0.1, 0.3], blocks)
    for name in ("one_backward", "opacus"):
        engine = make_engine(name)
        engine.attach(module, blocks)
        curved(module, batch).backward()
        assert_same(*engine.clipped_sum([0.1, 0.3]), expected, RTOL)
        engine.detach()


def test_microbatches_and_scale() -> None:
    torch.manual_seed(6)
    module, batch = nn.Linear(3, 2), torch.randn(8, 3)
    expected = clipped_sum_by_loop(module, [batch], curved, 0.5)
    for name in ("one_backward", "opacus"):
        engine = make_engine(name)
        engine.attach(module)
        total, norms = [torch.zeros_like(p) for p in module.parameters()], []
        for part in batch.split([3, 3, 2]):
            (curved(module, [part]) / 3).backward()
            sums, part_norms = engine.clipped_sum(0.5, scale=3)
            norms.append(part_norms)
            total = [t + s for t, s in zip(total, sums, strict=True)]
        engine.detach()
        assert_same(total, torch.cat(norms), expected, RTOL)


@pytest.mark.parametrize("name", ["one_backward", "opacus"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_record_that_is_not_finite_counts_as_zero(name: str, poison: float) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 1))
    batch = torch.randn(5, 2, 4)
    kept = torch.tensor([0, 1, 3, 4])
    expected = clipped_sum_by_loop(module, [batch[kept]], lambda m, b: m(b[0]).sum(1).mean(), 1.0)
    batch[2, 0, 1] = poison
    engine = make_engine(name)
    engine.attach(module)
    module(batch).sum(1).mean().backward()
    sums, norms = engine.clipped_sum(1.0)
    engine.detach()
    assert norms[2] == 0
    assert_same(sums, norms[kept], expected, RTOL)


def test_clipped_norms_never_exceed_the_bound() -> None:
    for seed in range(40):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
        bound = float(10 ** torch.empty(()).uniform_(-3, 2))
        engine = OneBackwardEngine()
        engine.attach(module)
        (100 * curved(module, [torch.randn(1, 7)])).backward()
        sums, _ = engine.clipped_sum(bound)
        engine.detach()
        assert torch.cat([total.double().flatten() for total in sums]).norm() <= bound


def test_bf16_autocast_keeps_norms_in_float32() -> None:
    torch.manual_seed(8)
    module = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 3))
    batch = torch.randn(6, 2, 6, 6)
    expected = clipped_sum_by_loop(module, [batch], curved, 1.0)
    engine = OneBackwardEngine()
    engine.attach(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = curved(module, [batch])
    loss.backward()
    sums, norms = engine.clipped_sum(1.0)
    engine.detach()
    assert norms.dtype == torch.float32
    # Eight bits of mantissa through six layers.
    assert_same(sums, norms, expected, 0.05)
    alone = []
    for i in range(6):
        engine.attach(module)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = 100 * curved(module, [batch[i : i + 1]])
        loss.backward()
        alone.append(torch.cat([total.flatten() for total in engine.clipped_sum(1.0)[0]]).double().norm())
        engine.detach()
    assert max(alone) <= 1.0


def test_empty_batch_gives_zero() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 4))
    engine = OneBackwardEngine()
    engine.attach(module)
    module(torch.zeros(0, 2, 4)).sum().backward()
    sums, norms = engine.clipped_sum(1.0)
    assert norms.shape == (0, 1)
    assert all(bool((total == 0).all()) for total in sums)


def test_frozen_layers_are_not_touched() -> None:
    backbone, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4)).requires_grad_(False), nn.Linear(4, 2)
    model = nn.Sequential(backbone.eval(), head)
    engine = OneBackwardEngine()
    engine.attach(model)
    assert not any(layer._forward_hooks for layer in backbone.modules())
    engine.detach()
    compare(model, [torch.randn(5, 3)])


def test_bias_only_training() -> None:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    compare(model, [torch.randn(4, 2, 4)])


def test_detach_restores_everything() -> None:
    model = nn.Sequential(BareParameters(), nn.TransformerEncoderLayer(3, 1, 4))
    before = copy.deepcopy({name: sorted(vars(layer)) for name, layer in model.named_modules()})
    engine = OneBackwardEngine()
    engine.attach(model)
    engine.detach()
    assert {name: sorted(vars(layer)) for name, layer in model.named_modules()} == before
    for layer in model.modules():
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert not parameter._post_accumulate_grad_hooks
    model[0](torch.randn(2, 3, 4)).sum().backward()
    assert model[0].token.grad is not None


def test_a_forward_that_fails_leaves_the_parameters_in_place() -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    engine = OneBackwardEngine()
    engine.attach(layer)
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.ones(2, 5))
    assert layer.weight is weight


class FunctionalUse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.linear(x), self.linear.weight)


class BatchMixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) * self.scale


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        y = self.linear(x)
        x.add_(1.0)
        return y + x


class PositionTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions, self.linear = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.positions(torch.arange(5)))


def penalized(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return curved(module, batch) + sum(parameter.square().sum() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("module", "batch"), [(FunctionalUse(), torch.randn(4, 3)), (PositionTable(), torch.randn(4, 5, 3))]
)
def test_what_depends_on_no_record_is_followed(module: nn.Module, batch: Tensor) -> None:
    compare(module, [batch])


def test_positions_that_are_as_many_as_records_are_no_records() -> None:
    compare(PositionTable(), [torch.randn(5, 5, 3)])


class WeightsInNumPy(nn.Module):
    """Uses a weight outside of torch's functions and inside of them, on a batch that was made elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.from_numpy(x.detach().numpy())
        return self.linear(x) + 0.0 * x, self.table(hidden)


@pytest.mark.parametrize(
    ("module", "batch", "loss", "sentence"),
    [
        (nn.Linear(3, 3), torch.randn(4, 3), penalized, "weight_decay"),
        (BatchMixing(), torch.randn(4, 3), lambda m, b: curved(m, b) * m.scale.sum(), "'scale' received a gradient"),
        (ChangesItsInput(), torch.randn(4, 3), curved, "'linear.weight'.* was changed in place"),
        (nn.Conv2d(3, 2, 2), torch.randn(3, 5, 5), curved, "without a batch dimension"),
        (
            WeightsInNumPy(),
            torch.randn(4, 3),
            lambda m, b: sum(output.square().sum(1).mean() for output in m(b[0])),
            "'table.(weight|bias)' received a gradient that did not come through",
        ),
    ],
)
def test_what_has_no_per_example_gradient_is_refused_by_name(
    module: nn.Module, batch: Tensor, loss: Loss, sentence: str
) -> None:
    engine = OneBackwardEngine()
    engine.attach(module)
    with pytest.raises(RuntimeError, match=sentence):
        _backward_and_clip(engine, loss, module, batch)
    assert all(parameter.grad is None for parameter in module.parameters())
    engine.detach()


def _backward_and_clip(engine: OneBackwardEngine, loss: Loss, module: nn.Module, batch: Tensor) -> None:
    loss(module, [batch]).backward()
    engine.clipped_sum(1.0)


@pytest.mark.parametrize("name", ["one_backward", "opacus"])
@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "'1' \\(BatchNorm1d\\) normalizes over the batch"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm=None"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.InstanceNorm1d(2, affine=True, track_running_stats=True), "track_running_stats=False"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_modules_that_cannot_be_attached(module: nn.Module, sentence: str, name: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_engine(name).attach(module)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="take the engine one_backward"):
        make_engine("opacus").attach(nn.TransformerEncoderLayer(4, 1))
    with pytest.raises(ValueError, match="must be auto, one_backward or opacus"):
        make_engine("fast")  # type: ignore[arg-type]
    module = nn.Linear(2, 2)
    for blocks, sentence in [
        ({"a": ["weight"]}, "blocks leave out 'bias', which is trainable"),
        ({"a": ["weight", "bias"], "b": ["bias"]}, "name the parameter 'bias' more than once"),
        ({"a": ["weight", "bias", "scale"]}, "'scale', which is not a trainable parameter"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            OneBackwardEngine().attach(module, blocks)
    for name in ("one_backward", "opacus"):
        engine = make_engine(name)
        engine.attach(module)
        with pytest.raises(RuntimeError, match="attached already"):
            engine.attach(module)
        with pytest.raises(RuntimeError, match="No gradient of a record"):
            engine.clipped_sum(1.0)
        for bound, sentence in [(0.0, "must be positive"), ([1.0, 1.0], "2 values for 1 blocks")]:
            curved(module, [torch.ones(2, 2)]).backward()
            with pytest.raises(ValueError, match=sentence):
                engine.clipped_sum(bound)
        engine.detach()


@pytest.mark.parametrize("name", ["one_backward", "opacus"])
def test_two_backward_passes_are_not_merged(name: str) -> None:
    module = nn.Linear(3, 2)
    engine = make_engine(name)
    engine.attach(module)

    def twice() -> None:
        for _ in range(2):
            curved(module, [torch.ones(4, 3)]).backward()
        engine.clipped_sum(1.0)

    with pytest.raises(RuntimeError, match="Two backward passes"):
        twice()
    engine.detach()


def test_an_evaluation_between_two_passes_is_left_alone() -> None:
    resting = False
    module, batch = nn.Linear(3, 2), [torch.randn(4, 3)]
    expected = clipped_sum_by_loop(module, batch, curved, 1.0)
    engine = OneBackwardEngine(rests=lambda: resting)
    engine.attach(module)
    curved(module, batch).backward()
    resting = True
    for _ in range(2):
        inputs = torch.randn(5, 3, requires_grad=True)
        (found,) = torch.autograd.grad(module(inputs).sum(), inputs)
        assert torch.equal(found, module.weight.detach().sum(0).expand(5, 3))
    with pytest.raises(PrivacyViolationError, match="received a gradient that did not come through"):
        module(torch.ones(5, 3)).sum().backward()
    resting = False
    assert_same(*engine.clipped_sum(1.0), expected, RTOL)
    engine.detach()


class Adversarial(nn.Module):
    """Moves its inputs against itself, by a gradient that is no parameter's, and sees them once more."""

    def __init__(self, layer: nn.Module, steps: int) -> None:
        super().__init__()
        self.layer, self.head, self.steps = layer, nn.Linear(4, 2), steps

    def scores(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).flatten(1)[:, -4:])

    def forward(self, x: Tensor) -> Tensor:
        clean, moved = self.scores(x), torch.zeros_like(x, requires_grad=True)
        for _ in range(self.steps):
            distance = (self.scores(x + moved) - clean - 1).square().sum()
            (gradient,) = torch.autograd.grad(distance, moved, retain_graph=True)
            moved = (moved + 0.1 * gradient.sign()).detach().requires_grad_()
        inputs = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(outputs=self.scores(inputs).sum(), inputs=inputs)
        return clean + self.scores((x + moved.detach() + slope).detach())


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.LSTM(3, 4, batch_first=True), nn.Conv1d(5, 4, 3)])
@pytest.mark.parametrize("steps", [1, 3])
def test_inner_gradients_that_are_no_parameters_are_numbers_like_others(layer: nn.Module, steps: int) -> None:
    compare(Adversarial(layer, steps), [torch.randn(6, 5, 3)])


def test_second_derivatives_are_refused() -> None:
    module = nn.Linear(3, 2)
    engine = OneBackwardEngine()
    engine.attach(module)
    x = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(curved(module, [x]), x, create_graph=True)
    engine.detach()


def test_parameters_unfrozen_after_attach_are_named() -> None:
    module = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2))
    engine = OneBackwardEngine()
    engine.attach(module)
    module[0].requires_grad_(True)
    curved(module, [torch.ones(4, 3)]).backward()
    with pytest.raises(PrivacyViolationError, match=r"'0.weight' was unfrozen after attach"):
        engine.clipped_sum(1.0)


def test_compiled_parts_run_as_they_were_written_while_they_are_followed() -> None:
    torch.manual_seed(9)
    module, batch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    expected = clipped_sum_by_loop(module, [batch], curved, 1.0)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    in_place = nn.Sequential(*module)
    in_place.compile(backend=backend)
    for compiled in (nn.Sequential(torch.compile(module, backend=backend)), nn.Sequential(in_place)):
        engine = OneBackwardEngine()
        engine.attach(compiled)
        curved(compiled, [batch]).backward()
        assert_same(*engine.clipped_sum(1.0), expected, RTOL)
        assert not graphs
        engine.detach()
        compiled(batch)
        assert graphs  # as usual again
        graphs.clear()
        with pytest.raises(ValueError, match="Opacus' hooks see nothing"):
            make_engine("opacus").attach(compiled)


def test_evaluation_passes_leave_no_trace() -> None:
    module = nn.Linear(3, 2)
    expected = clipped_sum_by_loop(module, [torch.ones(4, 3)], curved, 1.0)
    engine = OneBackwardEngine()
    engine.attach(module)
    with torch.no_grad():
        module(torch.ones(9, 3))
    module(torch.ones(7, 3))
    curved(module, [torch.ones(4, 3)]).backward()
    assert_same(*engine.clipped_sum(1.0), expected, RTOL)
    engine.detach()


@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")
def test_a_compiled_function_around_the_module_runs_it_uncompiled() -> None:
    torch.manual_seed(10)
    module, batch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    expected = clipped_sum_by_loop(module, [batch], curved, 1.0)
    engine = OneBackwardEngine()
    engine.attach(module)
    compiled = torch.compile(lambda x: curved(module, [x]), backend="eager")
    for _ in range(2):
        compiled(batch).backward()
        assert_same(*engine.clipped_sum(1.0), expected, RTOL)
    engine.detach()


def test_checkpointing_still_saves_memory() -> None:
    """The engine keeps a checkpointed layer's inputs as autograd does: recomputed, not held."""
    inner, outer = nn.Linear(4, 4), nn.Linear(4, 4)
    engine = OneBackwardEngine()
    engine.attach(nn.Sequential(inner, outer))
    held: list[weakref.ref[Tensor]] = []

    def block(x: Tensor) -> Tensor:
        hidden = torch.tanh(inner(x))
        held.append(weakref.ref(hidden))
        return outer(hidden)

    loss = checkpoint(block, torch.randn(3, 4), use_reentrant=False).square().mean()
    assert held[0]() is None
    loss.backward()
    sums, _ = engine.clipped_sum(1.0)
    assert all(bool(total.any()) for total in sums)
    engine.detach()


def test_attention_weights_that_are_tied_to_a_layer() -> None:
    """Their parts were counted one by one and the layer's gradient as a whole, and one overwrote the other."""
    attention, layer = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(4, 12, bias=False)
    layer.weight = attention.in_proj_weight

    def loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        (inputs,) = batch
        attended = module[0](inputs, inputs + 1.0, inputs)[0]
        return (attended + module[1](inputs)[..., :4]).square().flatten(1).sum(1).mean()

    compare(nn.ModuleList([attention, layer]), [torch.randn(2, 3, 4)], loss)


def test_sums_are_float32_whatever_the_default_type_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        engine, model = make_engine(), nn.Linear(3, 2)
        engine.attach(model)
        model(torch.randn(4, 3)).square().sum(1).mean().backward()
        sums, _ = engine.clipped_sum(1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {total.dtype for total in sums} == {torch.float32}


def test_hooks_on_tensors_of_the_batch_are_refused() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.layer(inputs)
            hidden.register_hook(lambda gradient: gradient / gradient.norm())
            return hidden

    engine, hooked = make_engine(), Hooked()
    engine.attach(hooked)
    with pytest.raises(RuntimeError, match="given a hook on its gradient"):
        hooked(torch.randn(4, 3))


class WritesInBackward(torch.autograd.Function):
    """Gives its memory to others once it is done with it, as reversible layers do."""

    @staticmethod
    def forward(ctx, inputs, noticed):
        ctx.output, ctx.noticed = inputs * 1.0, noticed
        return ctx.output

    @staticmethod
    def backward(ctx, gradient):
        (ctx.output if ctx.noticed else ctx.output.data).mul_(1e3)
        return gradient, None


@pytest.mark.parametrize("positions", [(), (3,)])
@pytest.mark.parametrize("noticed", [True, False])
def test_what_a_backward_pass_writes_to_is_clipped_as_it_is_summed(noticed: bool, positions: tuple[int, ...]) -> None:
    class Reversible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(200, 200), nn.Linear(200, 200)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.second(WritesInBackward.apply(self.first(inputs), noticed))

    engine, model = make_engine(), Reversible()
    engine.attach(model)
    model(torch.randn(1, *positions, 200)).square().flatten(1).sum(1).mean().backward()
    sums, _ = engine.clipped_sum(1.0)
    assert torch.cat([total.flatten() for total in sums]).norm() <= 1 + ROUNDING


COMPLEX = {
    "a product of spectra": lambda x, p: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(p), n=6),
    "a spectrum of weights": lambda x, p: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(p[:, 0], n=6), n=6),
    "a complex matrix": lambda x, p: (x[:, :4].to(x.dtype.to_complex()) @ torch.view_as_complex(p)[:, None]).abs(),
    "parts put together": lambda x, p: (x[:, :4] * torch.complex(p[:, 0], 2 * p[:, 1])).abs(),
    "real weights on complex records": lambda x, p: (torch.fft.rfft(x) * p[:, 0]).abs(),
}


@pytest.mark.parametrize("how", COMPLEX)
def test_complex_numbers_have_both_parts_of_their_gradients(how: str) -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 2))

        def forward(self, inputs: Tensor) -> Tensor:
            return COMPLEX[how](inputs, self.weight)

    torch.manual_seed(0)
    compare(Spectral(), (torch.randn(5, 6),))


def test_a_complex_parameter_is_refused_by_name() -> None:
    layer = nn.Linear(3, 2, dtype=torch.complex64)
    with pytest.raises(ValueError, match="The parameter 'weight' is complex"):
        make_engine().attach(layer)
