"""Networks written as people write them, whose parameters meet the batch elsewhere than in a call of their layer."""

import torch
from torch import nn
from torch.nn import functional as F

MASK = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, 6))
        self.pos = nn.Parameter(torch.randn(1, 5, 6))
        self.l = nn.Linear(4, 6)
        self.e = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
        self.drop = nn.Dropout(0.0)
        self.ls = nn.Parameter(torch.full((6,), 0.3))

    def forward(self, x):
        h = torch.cat([self.cls.expand(x.shape[0], -1, -1), self.l(x)], 1) + self.pos
        h = self.drop(h)
        return h + self.e(h) * self.ls


class Positions(nn.Module):
    def __init__(self, batch1=True):
        super().__init__()
        self.t = nn.Embedding(7, 6)
        self.p = nn.Embedding(9, 6)
        self.l = nn.Linear(6, 3)
        self.n = nn.LayerNorm(6)
        self.b = batch1

    def forward(self, x):
        pos = torch.arange(x.shape[1], device=x.device)
        if self.b:
            pos = pos[None]
        return self.l(self.n(self.t(x) + self.p(pos)))


class RelativeBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.table = nn.Parameter(torch.randn(7, 2))
        i = torch.arange(4)
        self.register_buffer("idx", (i[:, None] - i[None] + 3))
        self.o = nn.Linear(6, 6)
        self.temp = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        n, L, _ = x.shape
        q, k, v = self.qkv(x).view(n, L, 3, 2, 3).permute(2, 0, 3, 1, 4)
        bias = self.table[self.idx.view(-1)].view(4, 4, 2).permute(2, 0, 1).contiguous()
        a = (q @ k.transpose(-1, -2)) * self.temp.exp() + bias.unsqueeze(0)
        return self.o((a.softmax(-1) @ v).transpose(1, 2).reshape(n, L, 6))


class WeightOfAnotherLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 6)
        self.w = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        return F.linear(torch.tanh(self.l(x)), self.w.weight * 2, self.l.bias[:6].abs())


class JoinedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 12, bias=False)
        self.q = nn.Parameter(torch.randn(4))
        self.v = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return F.linear(x, self.l.weight, torch.cat([self.q, torch.zeros_like(self.v), self.v]))


class StandardizedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(2, 4, 3)
        self.g = nn.Parameter(torch.ones(4, 1, 1, 1))

    def forward(self, x):
        w = self.c.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5) * self.g
        return F.conv2d(x, w, self.c.bias)


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)
        self.t = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return F.normalize(self.l(x), dim=-1) * torch.clamp(self.t.exp(), max=torch.tensor(100.0))


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)
        self.n = nn.LayerNorm(4)
        self.b = nn.Parameter(torch.randn(4, 4))
        self.o = nn.Linear(4, 2)

    def forward(self, x):  # n,4,4,3
        n = x.shape[0]
        x = torch.roll(x, (1, 1), dims=(1, 2))
        w = x.view(n, 2, 2, 2, 2, 3).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 3)
        w = self.n(self.l(w)) + self.b
        w = self.o(torch.tanh(w))
        return w.view(n, 2, 2, 2, 2, 2).permute(0, 1, 3, 2, 4, 5).reshape(n, 4, 4, 2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(11, 6)
        self.m = nn.Linear(6, 6)

    def forward(self, x):
        return F.linear(torch.tanh(self.m(self.e(x))), self.e.weight)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)
        self.b = nn.Parameter(torch.randn(4))
        self.g = nn.Parameter(torch.randn(4))
        self.m = nn.Parameter(torch.randn(4))
        self.o = nn.Linear(4, 2)

    def forward(self, x):
        h = self.l(x)
        h += self.b
        h *= self.g
        h = torch.tanh(h)
        h = h[:, None].repeat(1, 2, 1)
        h[:, 0] = self.m
        h = h.sum(1)
        y = x.clone()
        y += self.b[:3]
        y *= self.g[:3]
        return self.o(h).add_(y.sum((-1), keepdim=True))


class MaskedFrames(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)
        self.m = nn.Parameter(torch.randn(4))
        self.o = nn.Linear(4, 2)

    def forward(self, x, mask):
        h = self.l(x)
        h[mask] = self.m
        return self.o(h)


class SquaredScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * w, (g * x * 2 * w).sum(tuple(range(g.dim() - 1)))


class Ramp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)


ramp = Ramp.apply


class CustomFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.l = nn.Linear(3, 4)
        self.o = nn.Linear(4, 2)

    def forward(self, x):
        return self.o(ramp(Ramp.apply(SquaredScale.apply(self.l(x), self.w))))


class AddedProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6))
        self.b = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return torch.addmm(self.b, x.view(-1, 4), self.w).view(*x.shape[:-1], 6)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6))
        self.u = nn.Parameter(torch.randn(5, 3))
        self.v = nn.Parameter(torch.randn(2, 6, 3))
        self.q = nn.Parameter(torch.randn(6))

    def forward(self, x):
        h = torch.tanh(x @ self.w)
        h = self.u @ h
        h = h / (self.q**2 + 1)
        return torch.einsum("nld,hdk->nhlk", h, self.v)


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 6).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, 4))
        self.b = nn.Parameter(torch.randn(6, 2))
        self.m = nn.Parameter(torch.randn(6, 1))

    def forward(self, x):
        w = self.w.weight + self.b @ self.a
        w = self.m * w / w.norm(dim=1, keepdim=True)
        return F.linear(x, w, self.w.bias)


class Prompt(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(3, 6)
        self.l = nn.Linear(6, 6)
        self.o = nn.Linear(6, 2)

    def forward(self, x):
        p = self.e(torch.arange(3)).unsqueeze(0).repeat(x.shape[0], 1, 1)
        return self.o(torch.tanh(self.l(torch.cat([p, x], 1))))


class RepeatedPrompt(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(3, 6)
        self.l = nn.Linear(6, 6)
        self.o = nn.Linear(6, 2)

    def forward(self, x):
        tok = torch.arange(3).unsqueeze(0).expand(x.shape[0], -1)
        p = self.e(tok)
        return self.o(torch.tanh(self.l(torch.cat([p, x], 1))))


class RepeatedHeads(nn.Module):  # DeBERTa
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.randn(7, 6))
        self.k = nn.Linear(6, 6)
        self.q = nn.Linear(6, 6)

    def forward(self, x):
        n, L, _ = x.shape
        h = 2
        q = self.q(x).view(n, L, h, 3).permute(0, 2, 1, 3).reshape(n * h, L, 3)
        k = self.k(self.t[None]).view(1, 7, h, 3).permute(0, 2, 1, 3).reshape(h, 7, 3).repeat(n, 1, 1)
        return torch.bmm(q, k.transpose(-1, -2)).view(n, h, L, 7)


class PickedTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)
        self.h = nn.Linear(4, 2)
        self.n = nn.Tanh()

    def forward(self, x, mask):
        h = self.l(x)
        sel = self.n(self.h(torch.tanh(h[mask])))
        out = torch.zeros(*x.shape[:2], 2, dtype=x.dtype)
        out[mask] = sel
        return out


class LearnedQueries(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.randn(1, 2, 3, 4))
        self.l = nn.Linear(8, 16)
        self.o = nn.Linear(8, 2)
        self.t = nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, x):
        n, L, _ = x.shape
        k, v = self.l(x).view(n, L, 2, 2, 4).permute(2, 0, 3, 1, 4)
        q = self.q.expand(n, -1, -1, -1)
        y = F.scaled_dot_product_attention(q, k * self.t, v)
        return self.o(y.transpose(1, 2).reshape(n, 3, 8))


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.w2 = nn.Parameter(torch.randn(4))
        self.l = nn.Linear(4, 3)

    def forward(self, x):
        d = x.dtype
        h = x.to(torch.float64 if d == torch.float64 else torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        h = self.w * h.to(d)
        return self.l(h * (1 + self.w2))


class FrozenStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.BatchNorm2d(3).eval()
        self.b.running_mean.normal_()
        self.c = nn.Conv2d(2, 3, 2)

    def forward(self, x):
        self.b.eval()
        return self.b(self.c(x))


class MaskToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.randn(1, 1, 3))
        self.l = nn.Linear(3, 3)

    def forward(self, x, mask):
        w = mask.unsqueeze(-1).type_as(x)
        return self.l(
            torch.where(mask[..., None], self.m, x) + x * (1 - w) + self.m.expand(x.shape[0], x.shape[1], -1) * w
        )


MODELS = {
    "cls": (ClassToken, lambda: [torch.randn(5, 4, 4)]),
    "arange1": (lambda: Positions(True), lambda: [torch.randint(7, (5, 5))]),
    "arange0": (lambda: Positions(False), lambda: [torch.randint(7, (5, 5))]),
    "relbias": (RelativeBias, lambda: [torch.randn(5, 4, 6)]),
    "direct": (WeightOfAnotherLayer, lambda: [torch.randn(5, 4)]),
    "qkvbias": (JoinedBias, lambda: [torch.randn(5, 3, 4)]),
    "wsconv": (StandardizedWeight, lambda: [torch.randn(5, 2, 5, 5)]),
    "temp": (Temperature, lambda: [torch.randn(5, 4)]),
    "window": (Windows, lambda: [torch.randn(5, 4, 4, 3)]),
    "tied": (Tied, lambda: [torch.randint(11, (5, 4))]),
    "inplace": (InPlace, lambda: [torch.randn(5, 3)]),
    "specaug": (MaskedFrames, lambda: [torch.randn(5, 4, 3), MASK]),
    "custom": (CustomFunctions, lambda: [torch.randn(5, 3)]),
    "hfconv1d": (AddedProduct, lambda: [torch.randn(5, 3, 4)]),
    "matmul": (Products, lambda: [torch.randn(5, 3, 4)]),
    "lora-dora": (Adapter, lambda: [torch.randn(5, 3, 4)]),
    "prompt": (Prompt, lambda: [torch.randn(5, 4, 6)]),
    "promptidx": (RepeatedPrompt, lambda: [torch.randn(5, 4, 6)]),
    "headrepeat": (RepeatedHeads, lambda: [torch.randn(5, 4, 6)]),
    "boolpick": (PickedTokens, lambda: [torch.randn(5, 4, 3), MASK]),
    "sdpa": (LearnedQueries, lambda: [torch.randn(5, 4, 8)]),
    "rms": (RootMeanSquare, lambda: [torch.randn(5, 3, 4)]),
    "bneval": (FrozenStatistics, lambda: [torch.randn(5, 2, 4, 4)]),
    "wheretok": (MaskToken, lambda: [torch.randn(5, 4, 3), MASK]),
    "weight_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 2)), nn.Tanh(), nn.Conv1d(4, 2, 1)),
        lambda: [torch.randn(5, 3, 4)],
    ),
    "ortho": (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2)),
        lambda: [torch.randn(5, 4)],
    ),
    "prelu": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.PReLU(3), nn.Flatten(), nn.Linear(12, 2), nn.PReLU()),
        lambda: [torch.randn(5, 2, 3, 3)],
    ),
}
