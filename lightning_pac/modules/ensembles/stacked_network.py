"""Many copies of one network, their parameters stacked along a new first dimension."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, vmap
from typing_extensions import override

from lightning_pac._validation import Count, Natural, validated
from lightning_pac.modules.ensembles.stacked_bags import StackedBags

RecordLoss = Callable[..., Tensor]


@validated
class StackedNetwork(nn.Module):
    """`num_copies` copies of a network that share one forward pass.

    Every parameter and buffer of shape `s` becomes one of shape `(num_copies, *s)` in the same module tree, so
    state-dict keys, devices and optimizers are those of an ordinary module. Copies run together under
    `torch.func.vmap`. Where that cannot be right they run one after another, over the same storage:

    - in training, if the network holds BatchNorm or its output for one record depends on other records of the batch
      (found by a probe on the first batch): a copy must then be shown its own records only;
    - wherever vmap refuses an operation of the network and a copy alone does not; a warning says which.

    Args:
        network: The network to copy; every copy starts at its parameters.
        num_copies: How many copies.
        chunk_size: How many copies run at once, which bounds the memory of activations; None runs all of them.

    Raises:
        ValueError: If the network has a parameter without a shape yet, or the chunk is not positive.

    Example:
        >>> stack = StackedNetwork(nn.Linear(4, 3), num_copies=5)
        >>> stack(torch.zeros(2, 4)).shape
        torch.Size([5, 2, 3])
    """

    def __init__(self, network: nn.Module, num_copies: Count, chunk_size: Count | None = None) -> None:
        super().__init__()
        for name, parameter in network.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise ValueError(f"network has a lazy parameter {name!r}: give its layer the input size.")
        self.network = copy.deepcopy(network)
        self.num_copies = num_copies
        self.chunk_size = chunk_size or num_copies
        self._together = True
        self._mixes_records: bool | None = True if _has_batch_norm(network) else None
        for tensor in [*self.network.parameters(), *self.network.buffers()]:
            tensor.data = tensor.data.expand(num_copies, *tensor.shape).clone(memory_format=torch.contiguous_format)

    @override
    def forward(self, inputs: Any) -> Tensor:
        """Run all copies on the same inputs; shape (num_copies, batch, ...)."""
        parameters = dict(self.network.named_parameters())

        def part(chunk: slice) -> dict[str, Tensor]:
            return {name: parameter[chunk] for name, parameter in parameters.items()}

        def together() -> Tensor:
            chunks = self._chunks(self.chunk_size)
            return torch.cat([self._run_together(part(chunk), self._buffers_of(chunk), inputs) for chunk in chunks])

        def alone() -> Tensor:
            return torch.stack([self._run_one(part(c), self._buffers_of(c), inputs) for c in self._chunks(1)])

        return self._try_together(together, alone) if self._together else alone()

    def losses(self, inputs: Any, targets: Any, membership: Tensor, loss: RecordLoss) -> Tensor:
        """Each copy's mean loss over its own records of the batch; zero for a copy that has none there.

        Gradients are taken chunk by chunk inside the forward pass, so that the activations of one chunk are all that
        is ever held; the result is differentiable like any loss.

        Args:
            inputs: The network's input: a tensor, or a collection of tensors, batch first.
            targets: The targets of the whole batch.
            membership: Which records belong to which copy; booleans of shape (num_copies, batch).
            loss: Called as `loss(outputs, targets, reduction="none")`; one value per record, or per part of it.

        Returns:
            Losses of shape (num_copies,).
        """
        if self._mixes_records is None:
            self._mixes_records = self._probe(inputs)

        def together(parameters: dict[str, Tensor], chunk: slice) -> Tensor:
            outputs = self._run_together(parameters, self._buffers_of(chunk), inputs)
            records = targets.repeat(len(outputs), *[1] * (targets.dim() - 1))
            losses = loss(outputs.flatten(0, 1), records, reduction="none")
            losses = losses.view(len(outputs), len(targets), -1).mean(-1)  # (copies, batch)
            # Mean over each copy's own records; `where` and no product, since 0 * inf is nan.
            own = membership[chunk].to(losses.dtype)
            return torch.where(membership[chunk], losses, 0).sum(1) / own.sum(1).clamp(min=1)

        def alone(parameters: dict[str, Tensor], chunk: slice) -> Tensor:
            own = membership[chunk.start].nonzero().flatten()
            if len(own) == 0:
                return torch.zeros(1, device=own.device)
            outputs = self._run_one(parameters, self._buffers_of(chunk), _select(inputs, own))
            return loss(outputs, targets[own], reduction="none").mean().view(1)

        def evaluate_alone() -> Tensor:
            return self._evaluate(alone, self._chunks(1))

        if self._mixes_records or not self._together:
            return evaluate_alone()
        return self._try_together(lambda: self._evaluate(together, self._chunks(self.chunk_size)), evaluate_alone)

    def copy_state(self, index: Natural) -> dict[str, Tensor]:
        """State dict of one copy, for a network of the original shape."""
        if index >= self.num_copies:
            raise ValueError(f"index is {index}, but must be below {self.num_copies}, the number of copies.")
        return {name: tensor[index].clone() for name, tensor in self.network.state_dict().items()}

    def _chunks(self, size: int) -> list[slice]:
        return [slice(start, min(start + size, self.num_copies)) for start in range(0, self.num_copies, size)]

    def _buffers_of(self, chunk: slice) -> dict[str, Tensor]:
        return {name: buffer[chunk] for name, buffer in self.network.named_buffers()}

    def _run_together(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Any) -> Tensor:
        def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return _call(self.network, parameters, buffers, inputs)

        with StackedBags():
            return vmap(run, randomness="different")(parameters, buffers)

    def _run_one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Any) -> Tensor:
        # The slices are views, so that a layer's running statistics are written into the stacked buffers.
        only = {name: parameter[0] for name, parameter in parameters.items()}
        return _call(self.network, only, {name: buffer[0] for name, buffer in buffers.items()}, inputs)

    def _evaluate(self, losses: Callable[[dict[str, Tensor], slice], Tensor], chunks: list[slice]) -> Tensor:
        stacked = dict(self.network.named_parameters())
        result: Tensor = _LossByChunk.apply(losses, chunks, tuple(stacked), *stacked.values())
        return result

    @torch.no_grad()
    def _probe(self, inputs: Any) -> bool:
        """Whether the output for a record changes with the other records of the batch."""
        num_records = len(next(iter(_tensors(inputs))))
        kept = max(1, num_records // 2)
        if num_records == 1:
            return False
        first = slice(0, 1)
        parameters = {name: parameter[first] for name, parameter in self.network.named_parameters()}
        dropouts = [module for module in self.network.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
        modes = [module.training for module in dropouts]
        for module in dropouts:
            module.eval()
        outputs = []
        # Once the batch itself and once its first half twice: outputs of that half must not tell the two apart.
        for order in (torch.arange(num_records), torch.arange(num_records) % kept):
            buffers = {name: buffer.clone() for name, buffer in self._buffers_of(first).items()}
            outputs.append(self._run_one(parameters, buffers, _select(inputs, order))[:kept])
        for module, mode in zip(dropouts, modes, strict=True):
            module.train(mode)
        difference = (outputs[0] - outputs[1]).abs().max()
        return bool(difference > 1e-3 * outputs[0].abs().max())

    def _try_together(self, together: Callable[[], Tensor], alone: Callable[[], Tensor]) -> Tensor:
        try:
            return together()
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        result = alone()  # inputs that no copy can take raise here, and say nothing about vmap
        warnings.warn(
            f"The members run one after another, because vmap cannot run this network ({reason}).", stacklevel=4
        )
        # Remembered in training only: there the inputs are the trainer's own, and those of strangers change nothing.
        self._together = not self.training
        return result


class _LossByChunk(torch.autograd.Function):
    """Losses of all copies, with their gradients computed chunk by chunk in the forward pass."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        losses: Callable[[dict[str, Tensor], slice], Tensor],
        chunks: list[slice],
        names: tuple[str, ...],
        *stacked: Tensor,
    ) -> Tensor:
        wanted = [parameter.requires_grad for parameter in stacked]
        needed = any(ctx.needs_input_grad)
        values, gradients = [], []
        for chunk in chunks:
            leaves = [
                parameter[chunk].detach().requires_grad_(want and needed)
                for parameter, want in zip(stacked, wanted, strict=True)
            ]
            with torch.set_grad_enabled(needed):
                value = losses(dict(zip(names, leaves, strict=True)), chunk)
                # A copy's loss depends on its own slices only, so one backward pass of the sum gives all gradients.
                total = value.sum()
            values.append(value.detach())
            if needed:
                trained = [leaf for leaf in leaves if leaf.requires_grad]
                gradients.append(_gradients(total, trained))
        ctx.wanted = wanted
        ctx.gradients = [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*gradients, strict=True)]
        return torch.cat(values)

    @staticmethod
    @override
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        gradients = iter(ctx.gradients)
        ctx.gradients = None
        scaled: list[Tensor | None] = []
        for want in ctx.wanted:
            if not want:
                scaled.append(None)
                continue
            gradient = next(gradients)
            # dL / dloss_c, shape (copies, 1, ...), times the gradient of loss c.
            scaled.append(gradient.mul_(grad_output.view(-1, *[1] * (gradient.dim() - 1))))
        return None, None, None, *scaled


def _gradients(loss: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    if not loss.requires_grad:  # a copy without records in the batch
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def _call(network: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Any) -> Tensor:
    outputs: Tensor = functional_call(network, (parameters, buffers), (inputs,))
    return outputs


def _has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


def _select(inputs: Any, records: Tensor) -> Any:
    return apply_to_collection(inputs, Tensor, lambda tensor: tensor[records.to(tensor.device)])


def _tensors(inputs: Any) -> Sequence[Tensor]:
    found: list[Tensor] = []
    apply_to_collection(inputs, Tensor, found.append)
    return found
