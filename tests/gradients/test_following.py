"""Parameters are followed to where they meet the batch; per-record gradients equal those of one record at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from followed_models import MODELS
from followed_sequences import SEQUENCES
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from lightning_pac.gradients import flat_sum, make_engine

CASES: dict[str, Any] = {**MODELS, **SEQUENCES}


def losses(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    output = module(*batch)
    output = output[0] if isinstance(output, tuple) else output
    ramp = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view(output.shape[1:])
    return (torch.sin(output) * ramp).flatten(1).sum(1)


def mean_loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return losses(module, batch).mean()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("case", CASES)
def test_network_equals_the_loop(case: str) -> None:
    """With five records, as many as positions in some of them, with four, and with one."""
    torch.manual_seed(0)
    make, draw = CASES[case]
    module, batch = make(), draw()
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dim() == 1:
            nn.init.normal_(parameter)
    engine = make_engine()
    for size in (5, 4, 1):
        part = [tensor[:size] for tensor in batch]
        expected = clipped_sum_by_loop(module, part, mean_loss, 1.0)
        engine.attach(module)
        for _ in range(2):
            mean_loss(module, part).backward()
            assert all(parameter.grad is None for parameter in module.parameters())
            assert_same(*engine.clipped_sum(1.0), expected, 2e-4 if "orthogonal" in case else 2e-5)
        engine.detach()


class Dropping(nn.Module):
    """Dropout and drop-path below a parameter of the module's own, over layers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.recurrent = nn.LSTM(8, 4, 2, batch_first=True, dropout=0.5, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.cat([self.token.expand(len(x), -1, -1), x], 1), 0.2)
        kept = x.new_empty(len(x), 1, 1).bernoulli_(0.5)
        x = x + kept * self.scale * self.encoder(x)
        return self.head(self.recurrent(x)[0])


def test_random_layers_are_differentiated_under_the_masks_that_were_drawn() -> None:
    """The truth is the slope of each record's loss under the same masks, by differences in float64."""
    torch.manual_seed(0)
    module, batch, engine = Dropping().double(), [torch.randn(6, 4, 8).double()], make_engine()
    directions = [torch.randn_like(parameter) for parameter in module.parameters()]
    engine.attach(module)

    def under_the_masks() -> Tensor:
        torch.manual_seed(1)
        return losses(module, batch)

    under_the_masks().mean().backward()
    norms = engine.clipped_sum(1e6)[1]
    slopes = []
    for i in range(6):
        under_the_masks()[i].div(6).backward()
        sums, own = engine.clipped_sum(1e6)
        slopes.append(sum(float((total * way).sum()) for total, way in zip(sums, directions, strict=True)))
        assert torch.allclose(own[i], norms[i], rtol=1e-5)
        assert float(own.sum() - own[i]) == 0.0
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for parameter, way in zip(module.parameters(), directions, strict=True):
                parameter += step * way
        ends.append(under_the_masks().detach())
    engine.detach()
    assert torch.allclose((ends[0] - ends[1]) / 2e-6, torch.tensor(slopes).double(), rtol=1e-4)


class Biased(nn.Module):
    """Attention under a learned bias, or with learned keys."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(1, 2, 5, 3)) if options.pop("keys", False) else None
        self.bias = nn.Parameter(torch.randn(1, 4, 5, 5)) if self.keys is None else None
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        queries = x.unflatten(-1, (4, 3)).transpose(1, 2)
        keys = queries[:, :2] if self.keys is None else self.keys.expand(len(x), -1, -1, -1)
        mask = None if self.bias is None else self.bias.tanh()
        return F.scaled_dot_product_attention(queries, keys, keys.sin(), mask, enable_gqa=True, **self.options)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"keys": True}, {"keys": True, "is_causal": True}])
def test_attention_that_is_opened_is_the_same(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module, batch, engine = Biased(**options), [torch.randn(4, 5, 12)], make_engine()
    expected = clipped_sum_by_loop(module, batch, mean_loss, 1.0)
    plain = mean_loss(module, batch)
    engine.attach(module)
    loss = mean_loss(module, batch)
    loss.backward()
    assert torch.allclose(loss, plain, rtol=1e-6)
    assert_same(*engine.clipped_sum(1.0), expected, 2e-5)
    engine.detach()


class Masked(nn.Module):
    """A learned vector in the places of a mask that does not come from the batch, as of SpecAugment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.vector = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        mask = torch.tensor([[True, False, False, True, False], [False] * 5, [True] * 5, [False, True] * 2 + [True]])
        x[mask[: len(x)] if len(x) > 1 else mask[self.place][None]] = self.vector
        return x.sin()

    place = 0


def test_a_vector_written_to_the_places_of_a_mask_is_followed() -> None:
    torch.manual_seed(0)
    module, inputs, engine = Masked(), torch.randn(4, 5, 3), make_engine()
    truth = []
    for i in range(4):
        Masked.place = i
        truth.append(torch.autograd.grad(mean_loss(module, [inputs[i : i + 1]]), list(module.parameters())))
    engine.attach(module)
    mean_loss(module, [inputs]).backward()
    sums, norms = engine.clipped_sum(1e6)
    engine.detach()
    for total, parts in zip(sums, zip(*truth, strict=True), strict=True):
        assert torch.allclose(total, torch.stack(parts).sum(0), rtol=1e-4, atol=1e-5)
    expected = torch.stack([torch.cat([part.flatten() for part in parts]).norm() for parts in truth])
    assert torch.allclose(norms[:, 0], expected, rtol=1e-4)


class PackedPairs(nn.Module):
    """Two sequences a record, packed inside."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        records, sequences, steps, _ = x.shape
        packed = pack_padded_sequence(x.flatten(0, 1), torch.full((records * sequences,), steps), batch_first=True)
        state = self.recurrent(packed)[1]
        last = (state[0] if isinstance(state, tuple) else state)[-1]
        return self.head(last.view(records, sequences, -1)).sum(1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_all_packed_sequences_of_a_record_count(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    module, inputs, engine = PackedPairs(kind), [torch.randn(4, 2, 5, 3)], make_engine()
    engine.attach(module)
    mean_loss(module, inputs).backward()
    sums, norms = engine.clipped_sum(0.5)
    engine.detach()
    assert_same(sums, norms, clipped_sum_by_loop(module, inputs, mean_loss, 0.5), 1e-4)


class PackedBefore(nn.Module):
    """A sequence a record, packed where the batch is put together."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.recurrent, self.head = nn.Linear(3, 3), nn.LSTM(3, 4, bidirectional=True), nn.Linear(8, 1)

    def forward(self, sequences: PackedSequence, targets: Tensor) -> Tensor:
        outputs, (state, _) = self.recurrent(sequences._replace(data=self.embed(sequences.data)))
        firsts = pad_packed_sequence(outputs, batch_first=True)[0][:, 0]
        return (self.head(firsts).squeeze(1) + state[-1].sum(1) - targets).square()


@pytest.mark.parametrize("lengths", [(5, 4, 4, 2, 1), (2, 5, 1, 4, 4)])
def test_packed_sequences_come_with_the_batch(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, targets, engine = PackedBefore(), torch.randn(len(lengths)), make_engine()
    sequences = [torch.randn(length, 3) for length in lengths]
    ordered = list(lengths) == sorted(lengths, reverse=True)
    batch = pack_sequence(sequences, enforce_sorted=ordered), targets
    parameters = list(module.parameters())
    alone = [(pack_sequence([one]), targets[i : i + 1]) for i, one in enumerate(sequences)]
    gradients = [torch.autograd.grad(module(*one).mean(), parameters) for one in alone]
    truth = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
    engine.attach(module)
    module(*batch).mean().backward()
    sums, norms = engine.clipped_sum(0.5)
    engine.detach()
    size = truth.norm(dim=1, keepdim=True)
    assert torch.allclose(norms, size, rtol=1e-4)
    assert torch.allclose(flat_sum(sums), (truth * (0.5 / size).clamp(max=1.0)).sum(0), rtol=1e-4, atol=1e-5)


class TokenForMissing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x.isnan().any(-1)] = self.token
        return self.head(x).sum(1)


def test_a_parameter_takes_the_place_of_missing_values() -> None:
    torch.manual_seed(0)
    module, inputs, engine = TokenForMissing(), torch.randn(4, 5, 3), make_engine()
    inputs[0, 1], inputs[2, 3, 1] = torch.nan, torch.inf - torch.inf
    engine.attach(module)
    mean_loss(module, [inputs]).backward()
    sums, norms = engine.clipped_sum(0.5)
    engine.detach()
    assert_same(sums, norms, clipped_sum_by_loop(module, [inputs], mean_loss, 0.5), 1e-4)


def test_rms_norm_of_halves_has_the_epsilon_of_float32() -> None:
    torch.manual_seed(0)
    module, inputs, engine = nn.RMSNorm(8).bfloat16(), 0.01 * torch.randn(4, 8).bfloat16(), make_engine()
    ordinary = torch.autograd.grad(mean_loss(module, [inputs]), list(module.parameters()))
    engine.attach(module)
    mean_loss(module, [inputs]).backward()
    sums, _ = engine.clipped_sum(1e6)
    engine.detach()
    assert torch.allclose(sums[0] / len(inputs), ordinary[0].float(), rtol=0.05, atol=0.02 * float(ordinary[0].norm()))
