"""Recurrent networks, transformers, checkpointing and tables of classes, as people write them."""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

LENGTHS = torch.tensor([4, 2, 3, 4, 1])


class TimeDistributed(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(2, 3, 2)
        self.gn = nn.GroupNorm(1, 3)
        self.l = nn.Linear(3 * 4, 3)
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x):  # n,T,2,3,3
        n, T = x.shape[:2]
        y = self.gn(self.c(x.flatten(0, 1))).flatten(1)
        y = self.l(torch.relu(y)).view(n, T, 3)
        return self.rnn(y)[0]


class Recurrent(nn.Module):
    def __init__(self, kind, **k):
        super().__init__()
        self.r = kind(3, 4, **k)
        self.o = nn.Linear(k.get("proj_size", 4) * (2 if k.get("bidirectional") else 1), 2)
        self.bf = k.get("batch_first", False)

    def forward(self, x):
        if not self.bf:
            x = x.transpose(0, 1)
        o, h = self.r(x)
        if not self.bf:
            o = o.transpose(0, 1)
        h = h[0] if isinstance(h, tuple) else h
        return self.o(torch.tanh(o)).mean(1) + h.sum((0, 2))[:, None] + h[-1][:, :2]


class Packed(nn.Module):
    def __init__(self, sort, kind=nn.LSTM, **k):
        super().__init__()
        self.e = nn.Linear(3, 3)
        self.r = kind(3, 4, batch_first=True, **k)
        self.o = nn.Linear(4 * (2 if k.get("bidirectional") else 1), 2)
        self.sort = sort
        self.p = nn.Linear(2, 2, bias=False)

    def forward(self, x, lengths):
        p = pack_padded_sequence(self.e(x), lengths.cpu(), batch_first=True, enforce_sorted=self.sort)
        o, h = self.r(p)
        h = h[0] if isinstance(h, tuple) else h
        o = PackedSequence(self.o(o.data), o.batch_sizes, o.sorted_indices, o.unsorted_indices)
        o, _ = pad_packed_sequence(o, batch_first=True)
        return self.p(torch.tanh(o)).sum(1) + h[-1][:, :2]


class Cells(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.c = cell(3, 4)
        self.o = nn.Linear(4, 2)
        self.lstm = cell is nn.LSTMCell

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 4)
        c = h.clone()
        for t in range(x.shape[1]):
            if self.lstm:
                h, c = self.c(x[:, t], (h, c))
            else:
                h = self.c(x[:, t], h)
        return self.o(h)


class LearnedState(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.h = nn.Parameter(torch.randn(4, 1, 4))
        self.c = nn.Parameter(torch.randn(4, 1, 4))
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        n = x.shape[0]
        o, _ = self.r(x, (self.h.expand(-1, n, -1).contiguous(), self.c.repeat(1, n, 1)))
        return self.o(o)


class Encoder(nn.Module):
    def __init__(self, bf):
        super().__init__()
        self.e = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=bf), 2)
        self.p = nn.Parameter(torch.randn(5, 8))
        self.o = nn.Linear(8, 2)
        self.bf = bf

    def forward(self, x):
        x = x + self.p
        if not self.bf:
            x = x.transpose(0, 1)
        x = self.e(x)
        if not self.bf:
            x = x.permute(1, 0, 2)
        return self.o(x)


class EncoderOfSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.p = nn.Parameter(torch.randn(5, 1, 8))
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        x = x.transpose(0, 1) + self.p
        return self.o(self.e(x)[0])


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.q = nn.Embedding(3, 8)
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        q = self.q.weight[None].expand(x.shape[0], -1, -1)
        q = q + 0.1
        return self.o(self.d(q, x))


class Checkpointed(nn.Module):
    def __init__(self, re):
        super().__init__()
        self.stem = nn.Linear(3, 6)
        self.b = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6))
        self.o = nn.Linear(6, 2)
        self.re = re
        self.g = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        return self.o(checkpoint(lambda h: self.b(h) * 1.0, self.stem(x), use_reentrant=self.re)) * self.g


class CheckpointedPositions(nn.Module):
    def __init__(self, re):
        super().__init__()
        self.stem = nn.Linear(3, 6)
        self.b = PositionsInside()
        self.o = nn.Linear(6, 2)
        self.re = re

    def forward(self, x):
        return self.o(checkpoint(self.b, self.stem(x), use_reentrant=self.re))


class PositionsInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Embedding(9, 6)
        self.l = nn.Linear(6, 6)

    def forward(self, h):
        return torch.tanh(self.l(h + self.p(torch.arange(h.shape[1])) * 0.5))


class ColumnsOfLabels(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.randn(5, 3))
        self.t = nn.Parameter(torch.randn(2, 3, 4))

    def forward(self, x, y):
        return (x - self.c[:, y].t()).square() + self.t.log_softmax(1)[:, y, :].sum((0, 2))[:, None]


SEQUENCES = {
    "columns": (ColumnsOfLabels, lambda: [torch.randn(5, 5), torch.randint(3, (5,))]),
    "timedist": (TimeDistributed, lambda: [torch.randn(5, 3, 2, 3, 3)]),
    **{
        f"{k.__name__}-{bf}-{bi}-{nl}": (
            (lambda k=k, bf=bf, bi=bi, nl=nl: Recurrent(k, num_layers=nl, bidirectional=bi, batch_first=bf)),
            lambda: [torch.randn(5, 5, 3)],
        )
        for k in (nn.LSTM, nn.GRU, nn.RNN)
        for bf in (True, False)
        for bi, nl in ((False, 1), (True, 2))
    },
    **{
        f"projected-{bf}": (
            (lambda bf=bf: Recurrent(nn.LSTM, num_layers=2, bidirectional=bf, batch_first=bf, proj_size=2)),
            lambda: [torch.randn(5, 4, 3)],
        )
        for bf in (True, False)
    },
    "rnnrelu": (
        lambda: Recurrent(nn.RNN, nonlinearity="relu", batch_first=True, bias=False),
        lambda: [torch.randn(5, 3, 3)],
    ),
    **{
        f"packed-{k.__name__}-{bi}": (
            (lambda k=k, bi=bi: Packed(False, k, num_layers=2, bidirectional=bi)),
            lambda: [torch.randn(5, 4, 3), LENGTHS],
        )
        for k in (nn.LSTM, nn.GRU, nn.RNN)
        for bi in (True, False)
    },
    "packed-sorted": (lambda: Packed(True), lambda: [torch.randn(5, 4, 3), LENGTHS.sort(descending=True)[0]]),
    "lstmcell": (lambda: Cells(nn.LSTMCell), lambda: [torch.randn(5, 4, 3)]),
    "grucell": (lambda: Cells(nn.GRUCell), lambda: [torch.randn(5, 4, 3)]),
    "rnncell": (lambda: Cells(nn.RNNCell), lambda: [torch.randn(5, 4, 3)]),
    "learnedstate": (LearnedState, lambda: [torch.randn(5, 4, 3)]),
    "enc-bf": (lambda: Encoder(True), lambda: [torch.randn(5, 5, 8)]),
    "enc-sf": (lambda: Encoder(False), lambda: [torch.randn(5, 5, 8)]),
    "enc-sfhead": (EncoderOfSequences, lambda: [torch.randn(5, 5, 8)]),
    "dec": (Decoder, lambda: [torch.randn(5, 4, 8)]),
    "ckpt-re": (lambda: Checkpointed(True), lambda: [torch.randn(5, 4, 3)]),
    "ckpt": (lambda: Checkpointed(False), lambda: [torch.randn(5, 4, 3)]),
    "ckptpos-re": (lambda: CheckpointedPositions(True), lambda: [torch.randn(5, 5, 3)]),
    "ckptpos": (lambda: CheckpointedPositions(False), lambda: [torch.randn(5, 5, 3)]),
}
