"""Recurrent networks, each one function of torch: linear maps of all steps at once, and the recurrence between them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import _pop_mode_temporarily

from lightning_pac.gradients.calls import (
    Batched,
    anchored,
    enclosing_backward,
    free_of,
    record_axis,
    set_tag,
    settle,
    tag_of,
)
from lightning_pac.gradients.rules.linear import linear_bias, linear_weight
from lightning_pac.gradients.rules.recurrences import RECURRENCES, Recurrence

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell", "rnn", "rnn_cell"]

_VF: Any = torch._VF

State = tuple[Tensor, ...]


def lstm(*args: Any) -> Any:
    """The same as `torch.lstm`, for padded and for packed sequences."""
    if isinstance(args[1], Tensor):
        data, sizes, state, weights, biases, layers, dropout, training, bidirectional = args
        if state[0].shape[2] != state[1].shape[2]:
            raise ValueError(
                "Per-example gradients of an LSTM with proj_size are not supported for packed sequences; pad them."
            )
        return _run(
            RECURRENCES["lstm"], data, state, weights, biases, layers, dropout, training, bidirectional, sizes=sizes
        )
    data, state, weights, biases, layers, dropout, training, bidirectional, batch_first = args
    if state[0].shape[2] != state[1].shape[2]:
        return _projected(*args)
    return _run(
        RECURRENCES["lstm"], data, state, weights, biases, layers, dropout, training, bidirectional, batch_first
    )


def _projected(
    data: Tensor,
    state: State,
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM whose state is projected at each step (`proj_size`), out of functions with rules: slow, and seldom."""
    value = data.transpose(0, 1) if batch_first else data
    directions, per_layer = 2 if bidirectional else 1, 5 if biases else 3
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        outputs = []
        for number in range(layer * directions, (layer + 1) * directions):
            *own, projection = weights[number * per_layer : (number + 1) * per_layer]
            h, c = state[0][number], state[1][number]
            found = []
            for step in value.unbind(0) if number % directions == 0 else value.unbind(0)[::-1]:
                h, c = lstm_cell(step, (h, c), *own)
                h = F.linear(h, projection)
                found.append(h)
            outputs.append(torch.stack(found if number % directions == 0 else found[::-1]))
            last.append((h, c))
        value = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        if dropout and training and layer < layers - 1:
            value = F.dropout(value, dropout)
    h_last, c_last = (torch.stack(states) for states in zip(*last, strict=True))
    return value.transpose(0, 1) if batch_first else value, h_last, c_last


def gru(*args: Any) -> Any:
    """The same as `torch.gru`, for padded and for packed sequences."""
    return _simple(RECURRENCES["gru"], args)


def rnn(nonlinearity: str) -> Callable[..., Any]:
    """The same as `torch.rnn_tanh` or `torch.rnn_relu`, for padded and for packed sequences."""
    return lambda *args: _simple(RECURRENCES[nonlinearity], args)


def _simple(kind: Recurrence, args: Sequence[Any]) -> Any:
    if isinstance(args[2], Tensor):
        data, sizes, state, weights, biases, layers, dropout, training, bidirectional = args
        return _run(kind, data, (state,), weights, biases, layers, dropout, training, bidirectional, sizes=sizes)
    data, state, weights, biases, layers, dropout, training, bidirectional, batch_first = args
    return _run(kind, data, (state,), weights, biases, layers, dropout, training, bidirectional, batch_first)


def lstm_cell(
    inputs: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> State:
    """The same as `torch.lstm_cell`."""
    # c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c').
    gates = F.linear(inputs, w_ih, b_ih) + F.linear(state[0], w_hh, b_hh)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(
    inputs: Tensor, state: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """The same as `torch.gru_cell`."""
    from_inputs, from_state = F.linear(inputs, w_ih, b_ih).chunk(3, 1), F.linear(state, w_hh, b_hh).chunk(3, 1)
    # n = tanh(x_n + r h_n), h' = (1 - z) n + z h, written with one product less.
    r, z = ((x + h).sigmoid() for x, h in zip(from_inputs[:2], from_state[:2], strict=True))
    new = (from_inputs[2] + r * from_state[2]).tanh()
    return new + z * (state - new)


def rnn_cell(nonlinearity: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The same as `torch.rnn_tanh_cell` or `torch.rnn_relu_cell`."""

    def cell(
        inputs: Tensor,
        state: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        return nonlinearity(F.linear(inputs, w_ih, b_ih) + F.linear(state, w_hh, b_hh))

    return cell


def _run(
    kind: Recurrence,
    data: Tensor,
    states: State,
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
    sizes: Tensor | None = None,
) -> Any:
    per_layer = 4 if biases else 2
    directions = 2 if bidirectional else 1
    steps = _Steps(data, sizes, batch_first)
    states = tuple(steps.with_records(state) for state in states)
    last: list[list[Tensor]] = [[] for _ in states]
    value = steps.inputs
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = weights[number * per_layer : (number + 1) * per_layer]
            bias = (own[2], own[3]) if biases else (None, None)
            # W_ih x + b_ih of all steps is one linear map, which has a rule; W_hh h + b_hh is left to the recurrence.
            gates = F.linear(value, own[0], bias[0])
            with _pop_mode_temporarily():
                first = tuple(state[number] for state in states)
                output, final = steps.recur(kind, gates, first, own[1], bias[1], direction == 1)
            set_tag(output, steps.tag)
            outputs.append(output)
            for ends, end in zip(last, final, strict=True):
                ends.append(end)
        value = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        if dropout and training and layer < layers - 1:
            value = F.dropout(value, dropout)
    result = [value.transpose(0, 1) if batch_first and sizes is None else value]
    with _pop_mode_temporarily():
        stacked = [torch.stack(ends) for ends in last]
    for state in stacked:
        set_tag(state, steps.tag_of_states(len(state)))
    return (*result, *stacked)


class _Steps:
    """Sequences, time first, and where their records are.

    Args:
        data: Shape (T, n, width), (n, T, width) with `batch_first`, or the rows of packed sequences.
        sizes: Of each step, for packed ones.
    """

    def __init__(self, data: Tensor, sizes: Tensor | None, batch_first: bool) -> None:
        tag = tag_of(data)
        if type(tag) is not Batched:
            raise RuntimeError(
                "A recurrent network was given a sequence that is not computed from the batch, so its gradients "
                "cannot be taken apart into records; give it one for each record."
            )
        self._pass, self._sizes = tag.owner, sizes
        count = tag.owner.count
        if sizes is not None:
            rows = tag.rows
            if rows is None and tag.outer == 1 and len(data) % max(1, count) == 0:
                rows = torch.arange(len(data), device=data.device) // max(1, len(data) // max(1, count))
            if rows is None or bool((rows < 0).any()):
                raise RuntimeError("The records of packed sequences are unknown; pack them inside the model.")
            self.inputs, self.tag = data, tag
            self._records: Tensor | None = rows[: int(sizes[0])]
            return
        place = 0 if batch_first else 1
        settle(data, place)
        tag = tag_of(data)
        records = tag.rows
        permuted = records is None or torch.equal(records.sort()[0], torch.arange(count, device=records.device))
        if tag.outer is None or not permuted or record_axis(data.shape, tag, count) != place:
            raise RuntimeError(
                f"A recurrent network was given sequences of shape {tuple(data.shape)}, whose dimension {place} is "
                f"not that of the {count} records of the batch; give it one for each record."
            )
        self.inputs = data.transpose(0, 1) if batch_first else data
        self.tag = tag_of(self.inputs)
        self._records = records

    def with_records(self, state: Tensor) -> Tensor:
        """A state that is learned is one of every record's."""
        if type(tag_of(state)) is Batched or not state.requires_grad:
            return state
        # Adding zeros of the batch is a call with a rule, from which each record's gradient of the state comes.
        zeros = state.new_zeros(state.shape)
        set_tag(zeros, self.tag_of_states(state.shape[0]))
        return state + zeros

    def tag_of_states(self, layers: int) -> Batched:
        """The tag of states, shape (layers, n, width)."""
        return Batched(self._pass, layers, self._records)

    def recur(
        self,
        kind: Recurrence,
        gates: Tensor,
        first: State,
        weight: Tensor,
        bias: Tensor | None,
        backwards: bool,
    ) -> tuple[Tensor, State]:
        """Outputs of all steps, in the form of the inputs, and the states at the end."""
        mask: Tensor | None = None
        lengths: Tensor | None = None
        if self._sizes is not None:
            gates, lengths = _VF._pad_packed_sequence(gates, self._sizes, False, 0.0, len(self._sizes))
            assert lengths is not None
            # (T, n, 1): whether step t is within a sequence's length.
            mask = (torch.arange(len(gates))[:, None] < lengths)[:, :, None].to(gates.device)
        trained = [tensor for tensor in (weight, bias) if tensor is not None and free_of(tensor) is not None]
        if trained and torch.is_grad_enabled() and not gates.requires_grad:
            gates = anchored(gates)
        outer = enclosing_backward()
        receiver, count, records = self._pass.receiver, self._pass.count, self._records

        def by_record(values: Tensor) -> Tensor:
            # (T, sequences, width) to (n, T, width), or (n, T of all its sequences, width).
            if records is None:
                values = values.transpose(0, 1)
                return values if len(values) == count else values.reshape(count, -1, values.shape[-1])
            # Sequences of one record stand behind one another: each has a place among those of its record.
            places = (records[:, None] == records).tril(-1).sum(dim=1)
            found = values.new_zeros(count, int(places.max()) + 1, len(values), values.shape[-1])
            found[records, places] = values.transpose(0, 1)
            return found.flatten(1, 2)

        def report(previous: Tensor, gradient: Tensor) -> None:
            def name() -> str:
                return f"the recurrence of {receiver.describe(trained)}"

            if receiver.is_paused:
                return
            receiver.check_backward(name, outer, gradient)
            receiver.check_count(name, count)
            if free_of(weight) is not None:
                # dW_hh = sum_t d_t h_{t-1}^T: a linear map of the states before each step, at T positions.
                receiver.receive(weight, linear_weight(name, by_record(previous), by_record(gradient)))
            if bias is not None and free_of(bias) is not None:
                receiver.receive(bias, linear_bias(by_record(gradient)))

        shift = None if bias is None else bias.detach()
        found = kind(gates, weight.detach(), shift, mask, backwards, report if trained else None, *first)
        output, final = found[0], found[1:]
        if lengths is not None:
            output = _VF._pack_padded_sequence(output, lengths, False)[0]
        return output, final
