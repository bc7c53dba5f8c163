"""One training step with each engine: forward, backward, clipping, noise and the update."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from lightning_pac.gradients import flat_sum, make_engine
from lightning_pac.randomness import SecureGenerator

Step = Callable[[], None]
NOISE, NORM, RATE = 1.0, 1.0, 1e-3


def ordinary(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(trainable(model), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def ordinary_with_noise(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    """No clipping: what is left of the cost of a private step when clipping is free."""
    parameters = trainable(model)
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    generator = SecureGenerator()

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        write(parameters, [parameter.grad * len(labels) for parameter in parameters], generator, len(labels))
        optimizer.step()

    return step


def one_backward(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    parameters = trainable(model)
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    generator = SecureGenerator()
    engine = make_engine("one_backward")
    engine.attach(model)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        sums, _ = engine.clipped_sum(NORM)
        write(parameters, sums, generator, len(labels))
        optimizer.step()

    return step


def opacus_hooks(model: nn.Module, inputs: Tensor, labels: Tensor, functorch: bool = False) -> Step:
    model = with_opacus_layers(model)
    wrapped = GradSampleModule(model, force_functorch=functorch)
    optimizer = DPOptimizer(
        torch.optim.SGD(trainable(model), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=NORM,
        expected_batch_size=len(labels),
    )

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()

    return step


def opacus_functorch(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    return opacus_hooks(model, inputs, labels, functorch=True)


def opacus_ghost(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    model = with_opacus_layers(model)
    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(trainable(model), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=NORM,
        expected_batch_size=len(labels),
    )
    criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        scores = wrapped(inputs)
        if labels.dim() == 1:
            criterion(scores, labels).backward()
        else:  # a score for each word: one row a word, and the shape that says whose they are
            criterion(scores.transpose(1, 2).flatten(0, 1), labels.flatten(), shape=labels.shape).backward()
        optimizer.step()

    return step


def chunked_vmap(model: nn.Module, inputs: Tensor, labels: Tensor, chunk: int = 16) -> Step:
    """Whole-model `vmap(grad)`, a chunk of examples at a time."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.SGD(list(named.values()), lr=RATE)

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output = torch.func.functional_call(model, parameters, (x[None],))
        return functional.cross_entropy(output, y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        optimizer.zero_grad()
        detached = {name: parameter.detach() for name, parameter in named.items()}
        sums = {name: torch.zeros_like(value) for name, value in detached.items()}
        for x, y in zip(inputs.split(chunk), labels.split(chunk), strict=True):
            found = gradients(detached, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
            factors = (NORM / (norms + 1e-6)).clamp(max=1.0)
            for name, gradient in found.items():
                sums[name] += torch.einsum("n,n...->...", factors, gradient)
        for name, parameter in named.items():
            noise = torch.normal(0.0, NOISE * NORM, parameter.shape, device=parameter.device)
            parameter.grad = (sums[name] + noise) / len(labels)
        optimizer.step()

    return step


ENGINES: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "ordinary": ordinary,
    "ordinary + noise": ordinary_with_noise,
    "one backward (ours)": one_backward,
    "Opacus hooks": opacus_hooks,
    "Opacus functorch": opacus_functorch,
    "Opacus ghost": opacus_ghost,
    "chunked vmap": chunked_vmap,
}


def with_opacus_layers(model: nn.Module) -> nn.Module:
    """Opacus has no rule for torch's attention and recurrent layers and brings its own; its hooks bear no writing."""
    for layer in model.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False
    if any(isinstance(layer, nn.MultiheadAttention | nn.RNNBase) for layer in model.modules()):
        return ModuleValidator.fix(model)
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def write(parameters: Sequence[nn.Parameter], sums: Sequence[Tensor], generator: SecureGenerator, size: int) -> None:
    """Release the sums in one flat buffer, rounded to the grid, as the gradients of a mean over `size` records."""
    flat = flat_sum(sums)
    generator.release_(flat, NOISE * NORM).div_(size)
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)
