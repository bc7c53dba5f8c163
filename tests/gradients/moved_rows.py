"""Networks that move rows along the batch and back; one layer sees them before, meanwhile and after."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Moved(nn.Module):
    def __init__(self, way: Callable[["Moved", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.other, self.norm, self.head = (
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.LayerNorm(4),
            nn.Linear(4, 2),
        )
        self.way = way

    def f(self, h: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.layer(h)))

    def g(self, h: Tensor) -> Tensor:
        return torch.tanh(self.other(h))

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = self.f(x)
        return self.head(self.f(self.way(self, h, order)) + h)


def rows(order: Tensor, h: Tensor) -> Tensor:
    return order[:, None].expand_as(h)


def scatter(m, h, order):
    return m.f(torch.zeros_like(h).scatter(0, rows(order, h), h))[order]


def scatter_in_place(m, h, order):
    out = torch.zeros_like(h)
    out.scatter_(0, rows(order, h), h)
    return m.f(out)[order]


def scatter_add(m, h, order):
    return m.f(torch.zeros_like(h).scatter_add(0, rows(order, h), h))[order]


def index_copy(m, h, order):
    return m.f(torch.zeros_like(h).index_copy(0, order, h))[order]


def index_copy_in_place(m, h, order):
    out = h.new_zeros(h.shape)
    out.index_copy_(0, order, h)
    return m.f(out)[order]


def index_add(m, h, order):
    return m.f(torch.zeros_like(h).index_add(0, order, h))[order]


def set_rows(m, h, order):
    out = torch.zeros_like(h)
    out[order] = h
    return m.f(out)[order]


def put_rows(m, h, order):
    return m.f(torch.zeros_like(h).index_put((order,), h))[order]


def swapped(m, h, order):
    h = h.clone()
    if len(h) > 1:
        h[[0, 1]] = h[[1, 0]]
    h = m.f(h)
    return torch.cat([h[1:2], h[:1], h[2:]]) if len(h) > 1 else h


def sort(m, h, order):
    place = h[:, 0].sort(0)[1]
    return m.f(h[place])[place.argsort()]


def sorted_values(m, h, order):
    values, place = h[:, :1].sort(dim=0)
    return m.g(m.f(h[place[:, 0]]) + values)[place[:, 0].argsort()]


def topk(m, h, order):
    values, place = h[:, 0].topk(len(h))
    return m.g(m.f(h.index_select(0, place)) * values[:, None])[place.argsort()]


def flip(m, h, order):
    return m.f(h.flip(0)).flip(0)


def flipud(m, h, order):
    return torch.flipud(m.f(torch.flipud(h)))


def rot90(m, h, order):
    return torch.rot90(m.f(torch.rot90(h, 2)), 2)


def roll(m, h, order):
    return m.f(h.roll(1, 0)).roll(-1, 0)


def roll_flat(m, h, order):
    return m.f(h.roll(4)).roll(-4)


def experts(m, h, order):
    out, first = torch.zeros_like(h), h[:, 0] > 0
    out[first] = m.f(h[first])
    out[~first] = m.g(h[~first])
    return out


def experts_added(m, h, order):
    out = torch.zeros_like(h)
    for expert, column in ((m.f, 0), (m.g, 1), (m.f, 2)):
        (chosen,) = torch.where(h[:, column] > 0)
        out.index_add_(0, chosen, expert(h[chosen]) * h[chosen, column, None])
    return out


def masked_scatter(m, h, order):
    first = h[:, 0] > 0
    return m.g(h).masked_scatter(first[:, None].expand_as(h), m.f(h[first]))


def nonzero(m, h, order):
    first = (h[:, 0] > 0).nonzero()[:, 0]
    return m.g(h).index_copy(0, first, m.f(h.index_select(0, first)))


def put_and_added(m, h, order):
    first = (h[:, 0] > 0).nonzero()[:, 0]
    return m.g(h).index_put((first,), m.f(h[first]), accumulate=True)


def where_flipped(m, h, order):
    return torch.where(h > 0, m.g(h), m.f(h.flip(0)).flip(0))


def product(m, h, order):
    moves = F.one_hot(order, len(h)).to(h.dtype)
    return moves.t() @ m.f(moves @ h)


def einsum(m, h, order):
    moves = F.one_hot(order, len(h)).to(h.dtype)
    return torch.einsum("ji,jd->id", moves, m.f(torch.einsum("ij,jd->id", moves, h)))


def linear_across(m, h, order):
    moves = F.one_hot(order, len(h)).to(h.dtype)
    return F.linear(m.f(F.linear(h.t(), moves).t()).t(), moves.t()).t()


def halves_swapped(m, h, order):
    moved = m.f(torch.cat([h[2:], h[:2]]))
    return torch.cat([moved[-min(2, len(h)) :], moved[: -min(2, len(h))]])


def restacked(m, h, order):
    return torch.stack(m.f(torch.stack(h.unbind()[::-1])).unbind()[::-1])


def repeated(m, h, order):
    return m.f(h.repeat_interleave(2, 0)).view(len(h), 2, 4).sum(1)


def repeated_outside(m, h, order):
    return m.f(h.repeat(2, 1)).view(2, len(h), 4).sum(0)


def columns_flipped(m, h, order):
    return m.f(h.t().flip(1).t()).t().flip(-1).t()


def indexed_twice(m, h, order):
    moved = m.f(h[order[:, None], torch.arange(4)])
    return moved[order.argsort()]


def taken_along(m, h, order):
    return m.f(torch.take_along_dim(h, order[:, None], 0)).gather(0, rows(order.argsort(), h))


def pooled(m, h, order):
    many = m.f(h.repeat(3, 1))
    return torch.zeros_like(h).index_add(0, torch.arange(len(h)).repeat(3), many)


def mapped(m, h, order):
    return torch.vmap(m.f)(h.flip(0)).flip(0)


def pulled_apart(m, h, order):
    out = torch.empty_like(h)
    for record in order.tolist():
        out[record] = m.f(h[record : record + 1])[0]
    return out


def copied_into(m, h, order):
    out = torch.zeros(len(h) + 2, 4, dtype=h.dtype)
    out[1:-1].copy_(h.flip(0))
    return m.f(out)[1:-1].flip(0)


def transposed(m, h, order):
    return m.f(h.t().contiguous().view(-1).view(4, -1).t().flip(0)).flip(0)


def cumulated(m, h, order):
    sums = m.f(h).cumsum(0)
    return torch.cat([sums[:1], sums.diff(dim=0)])


def unfolded(m, h, order):
    padded = F.pad(h.flip(0), (0, 0, 1, 1))
    return m.f(padded.unfold(0, 3, 1)[:, :, 1]).flip(0)


def lengths(h: Tensor) -> Tensor:
    """Whole numbers of records, far apart for records alone and together."""
    return (1e4 * h.detach().abs().sum(1)).long()


def first_state(m, h, order):
    """As torch packs sequences: by sorted lengths, the first state of parameters alone with them."""
    places = lengths(h).sort(descending=True)[1]
    state = m.g(h.new_ones(h.shape))
    return m.f(h.index_select(0, places) * state.index_select(0, places))[places.argsort()]


def first_state_of_others(m, h, order):
    """As before, with the state in order and the records not."""
    state = m.g(torch.arange(len(h)).to(h)[:, None].expand_as(h))
    return m.f(h * state.index_select(0, lengths(h).argsort()))


WAYS = {
    name: way
    for name, way in list(globals().items())
    if callable(way) and getattr(way, "__module__", None) == __name__ and name not in ("Moved", "rows", "lengths")
}
