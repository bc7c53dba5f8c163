"""The recurrences between the steps of LSTM, GRU and RNN, and the gradients of what their weights multiply."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

__all__ = ["RECURRENCES", "Recurrence"]

Report = Callable[[Tensor, Tensor], None]


class Recurrence(ABC):
    """A network's step, from gates that hold the part of the inputs."""

    @abstractmethod
    def run(
        self,
        gates: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        steps: range,
        mask: Tensor | None,
        states: list[Tensor],
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Run over the steps.

        Args:
            gates: Shape (T, n, G).
            weight: Acts on the state, shape (G, h).
            bias: Added to that, shape (G,).
            steps: Their numbers, in order.
            mask: Which steps a sequence has, shape (T, n, 1), if not all.
            states: Shape (n, h); those at the end are left there.

        Returns:
            Outputs (T, n, h), the states that the weight multiplied (T, n, h), and what the backward pass needs.
        """

    @abstractmethod
    def back(
        self,
        saved: tuple[Tensor, ...],
        weight: Tensor,
        steps: Sequence[int],
        mask: Tensor | None,
        output: Tensor,
        states: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the gates and of the products with the weight, (T, n, G); those of states are left there."""

    def __call__(
        self,
        gates: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        backwards: bool,
        report: Report | None,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        """Outputs, and the states at the end; `report` is given states and gradients of products in backward."""
        return _Run.apply(self, gates, weight, bias, mask, backwards, report, *states)  # type: ignore[no-any-return]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: Recurrence, *args: Any) -> tuple[Tensor, ...]:
        gates, weight, bias, mask, backwards, report, *states = args
        weight = weight.to(gates.dtype)
        bias = None if bias is None else bias.to(gates.dtype)
        ctx.steps = range(len(gates) - 1, -1, -1) if backwards else range(len(gates))
        ctx.kind, ctx.mask, ctx.report, ctx.types = kind, mask, report, [state.dtype for state in states]
        current = [state.to(gates.dtype) for state in states]
        outputs, previous, saved = kind.run(gates, weight, bias, ctx.steps, mask, current)
        # h_{t-1}, which the weight multiplied, and what the slopes are made of; no graph of single steps.
        ctx.save_for_backward(weight, previous, *saved)
        return (outputs, *[state.clone() for state in current])

    @staticmethod
    def backward(ctx: Any, output: Tensor, *final: Tensor) -> tuple[Any, ...]:
        weight, previous, *saved = ctx.saved_tensors
        states = list(final)
        with torch.no_grad():
            found, products = ctx.kind.back(tuple(saved), weight, ctx.steps[::-1], ctx.mask, output, states)
            if ctx.report is not None:
                # Contributions are float32, whatever casts the backward pass runs under.
                with torch.autocast(output.device.type, enabled=False):
                    ctx.report(previous, products)
        states = [state.to(dtype) for state, dtype in zip(states, ctx.types, strict=True)]
        return (None, found, None, None, None, None, None, *states)


def _keep(mask: Tensor | None, t: int, new: Tensor, old: Tensor) -> Tensor:
    return new if mask is None else torch.where(mask[t], new, old)


class LSTM(Recurrence):
    """Long short-term memory; gates are input, forget, cell and output."""

    @override
    def run(self, gates: Any, weight: Any, bias: Any, steps: Any, mask: Any, states: Any) -> Any:
        width = weight.shape[1]
        active = gates if bias is None else gates.add_(bias)
        shape = (*gates.shape[:2], width)
        outputs, before, cells, tanhs = (gates.new_empty(shape) for _ in range(4))
        h, c = states
        across = weight.t()
        # Views of single steps, taken all at once: one by one they would cost as much as what is computed in them.
        rows = [part.unbind() for part in (active, active[..., : 2 * width], outputs, before, cells, tanhs)]
        i, f, g, o = (part.unbind() for part in torch.split(active, width, dim=2))
        for t in steps:
            # i, f and o are sigmoids, g is a tanh; c_t = f c_{t-1} + i g, h_t = o tanh(c_t).
            step, sigmoids, output, h_before, c_before, tanh = (part[t] for part in rows)
            h_before.copy_(h)
            c_before.copy_(c)
            step.addmm_(h, across)
            sigmoids.sigmoid_()
            o[t].sigmoid_()
            new = torch.addcmul(f[t] * c, i[t], g[t].tanh_())
            torch.mul(o[t], torch.tanh(new, out=tanh), out=output)
            h, c = _keep(mask, t, output, h), _keep(mask, t, new, c)
        states[:] = [h, c]
        return outputs, before, (active, cells, tanhs)

    @override
    def back(self, saved: Any, weight: Any, steps: Any, mask: Any, output: Any, states: Any) -> Any:
        active, cells, tanhs = saved
        width = tanhs.shape[2]
        i, f, g, o = torch.split(active, width, dim=2)
        # Slopes of h_t in c_t, of c_t in i, f and g before their functions, and of h_t in o before its own.
        through = torch.addcmul(o, o * tanhs, tanhs, value=-1)
        found = torch.addcmul(active, active, active, value=-1)
        to_i, to_f, to_g, to_o = torch.split(found, width, dim=2)
        to_i *= g
        to_f *= cells
        torch.addcmul(i, i * g, g, value=-1, out=to_g)
        to_o *= tanhs
        inner_parts = found.view(*found.shape[:2], 4, width)[:, :, :3].unbind()
        rows = [part.unbind() for part in (found, to_o, through, f, output)]
        dh, dc = states
        for t in steps:
            step, last, slope, forget, outer = (part[t] for part in rows)
            # dL/dh_t comes from the next step and from the output, dL/dc_t from the next step and through h_t.
            total = dh + outer
            inner = torch.addcmul(dc, total, slope)
            inner_parts[t].mul_(inner[:, None])
            last.mul_(total)
            if mask is not None:
                step.mul_(mask[t])
            dh, dc = _keep(mask, t, step @ weight, dh), _keep(mask, t, inner * forget, dc)
        states[:] = [dh, dc]
        return found, found


class GRU(Recurrence):
    """Gated recurrent unit; gates are reset, update and new."""

    @override
    def run(self, gates: Any, weight: Any, bias: Any, steps: Any, mask: Any, states: Any) -> Any:
        width = weight.shape[1]
        shape = (*gates.shape[:2], width)
        active = torch.empty_like(gates)
        outputs, before, inner = (gates.new_empty(shape) for _ in range(3))
        (h,) = states
        across = weight.t()
        for t in steps:
            before[t] = h
            product = h @ across if bias is None else torch.addmm(bias, h, across)
            gated = torch.add(
                gates[t, :, : 2 * width], product[:, : 2 * width], out=active[t, :, : 2 * width]
            ).sigmoid_()
            inner[t] = product[:, 2 * width :]
            new = torch.addcmul(gates[t, :, 2 * width :], gated[:, :width], inner[t]).tanh_()
            active[t, :, 2 * width :] = new
            outputs[t] = torch.lerp(new, h, gated[:, width:])
            h = _keep(mask, t, outputs[t], h)
        states[:] = [h]
        return outputs, before, (active, inner, before)

    @override
    def back(self, saved: Any, weight: Any, steps: Any, mask: Any, output: Any, states: Any) -> Any:
        active, inner, before = saved
        length, n, width = inner.shape
        # h_t = (1 - z) n + z h_{t-1} with n = tanh(x_n + r u), u = W_hn h_{t-1} + b_hn.
        r, z, new = active.view(length, n, 3, width).unbind(2)
        to_new = (1 - z) * (1 - new * new)
        to_z = (before - new) * z * (1 - z)
        to_r = to_new * inner * r * (1 - r)
        # Gates and products differ, unlike in the other networks: r multiplies u, and not x_n.
        slopes = torch.stack([to_r, to_z, to_new], dim=2)
        products = torch.stack([to_r, to_z, to_new * r], dim=2)
        (dh,) = states
        for t in steps:
            total = dh + output[t]
            slopes[t] *= total[:, None]
            products[t] *= total[:, None]
            if mask is not None:
                slopes[t] *= mask[t][:, None]
                products[t] *= mask[t][:, None]
            # dL/dh_{t-1}: directly by z, and through the products with W_hh.
            new_dh = torch.addmm(total * z[t], products[t].view(n, -1), weight)
            dh = _keep(mask, t, new_dh, dh)
        states[:] = [dh]
        return slopes.view(length, n, -1), products.view(length, n, -1)


class RNN(Recurrence):
    """Elman's network.

    Args:
        activate: In place.
        slope: Its derivative, from its values.
    """

    def __init__(self, activate: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> None:
        self._activate, self._slope = activate, slope

    @override
    def run(self, gates: Any, weight: Any, bias: Any, steps: Any, mask: Any, states: Any) -> Any:
        active = gates + bias if bias is not None else gates.clone()
        before = torch.empty_like(active)
        (h,) = states
        across = weight.t()
        for t in steps:
            before[t] = h
            h = _keep(mask, t, self._activate(active[t].addmm_(h, across)), h)
        states[:] = [h]
        return active.clone(), before, (active,)

    @override
    def back(self, saved: Any, weight: Any, steps: Any, mask: Any, output: Any, states: Any) -> Any:
        # h_t = a(x_t + W_hh h_{t-1}), with the slope of a from the value a itself.
        slopes = self._slope(saved[0])
        (dh,) = states
        for t in steps:
            slopes[t] *= dh + output[t]
            if mask is not None:
                slopes[t] *= mask[t]
            dh = _keep(mask, t, slopes[t] @ weight, dh)
        states[:] = [dh]
        return slopes, slopes


RECURRENCES: dict[str, Recurrence] = {
    "lstm": LSTM(),
    "gru": GRU(),
    "tanh": RNN(torch.tanh_, lambda values: 1 - values * values),
    "relu": RNN(torch.relu_, lambda values: (values > 0).to(values.dtype)),
}
