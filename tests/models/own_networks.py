"""Networks that people write themselves."""

from collections.abc import Sequence

import torch
from batches import LENGTH, RECORDS, WORDS, Batch
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    """Packed sequences of different lengths through two recurrent layers."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8, padding_idx=0)
        self.recur = kind(8, 6, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, _ = nn.utils.rnn.pad_packed_sequence(self.recur(packed)[0], batch_first=True, total_length=LENGTH)
        return self.head(outputs.sum(1) / lengths[:, None])


def padded_tokens() -> Batch:
    tokens = torch.randint(1, WORDS, (2 * RECORDS, LENGTH))
    tokens[torch.arange(LENGTH) >= torch.tensor([7, 4, 5, 3, 6, 2, 7, 5])[:, None]] = 0
    return tokens, torch.arange(2 * RECORDS) % 3


class Variational(nn.Module):
    """A variational autoencoder; its draws are records' own."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8))
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 6))

    def loss(self, inputs: Tensor) -> Tensor:
        mean, log_variance = self.encode(inputs).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(self.decode(code), inputs) + 0.1 * divergence


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3, padding=1),
        nn.ConvTranspose2d(4, 8, 2, stride=2), nn.PReLU(8), nn.Conv2d(8, 3, 3, padding=1),
    )  # fmt: skip


class Transcriber(nn.Module):
    """Frames through a convolution and an LSTM, under CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 12, 3, padding=1)
        self.recur = nn.LSTM(12, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.recur(torch.relu(self.conv(frames)).transpose(1, 2))[0]).log_softmax(-1)


def transcripts() -> Batch:
    return torch.randn(2 * RECORDS, 8, 20), torch.randint(1, 5, (2 * RECORDS, 4)), torch.randint(2, 5, (2 * RECORDS,))


def ctc(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    frames, targets, lengths = batch
    found = network(frames).transpose(0, 1)
    inputs = torch.full((found.shape[1],), found.shape[0])
    return F.ctc_loss(found, targets, inputs, lengths, reduction="none").mean()


class TimeDistributed(nn.Module):
    """Frames go through one network as if they were records, and are put together after it."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, clips: Tensor) -> Tensor:
        frames = self.frame(clips.flatten(0, 1))
        return self.head(frames.view(*clips.shape[:2], -1).mean(1))
