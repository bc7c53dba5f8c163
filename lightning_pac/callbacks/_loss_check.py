"""Does the loss give every record a gradient of its own? Asked of synthetic records, on a copy of the model."""

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader

__all__ = ["LossCheck", "check_loss"]

RECORDS = 4
TOLERANCE = 1e-4  # of the gradient's norm; float32 leaves about 1e-6

# Upper ends for synthetic integers: the first that the model accepts (a class index or token must exist) is taken.
INTEGER_RANGES = (1000, 100, 10, 5, 3, 2)


@dataclass(frozen=True)
class LossCheck:
    """What running `training_step` on synthetic records showed.

    Attributes:
        problem: How the loss couples records, or None.
        unchecked: Why nothing could be shown, or None.
        logged: Names that `training_step` logs.
        buffers: Names of buffers that take up what the records hold, as running statistics do.
    """

    problem: str | None
    unchecked: str | None
    logged: tuple[str, ...]
    buffers: tuple[str, ...]


def check_loss(
    pl_module: pl.LightningModule, dataloader: DataLoader[Any], datamodule: pl.LightningDataModule | None = None
) -> LossCheck:
    """Compare gradients of synthetic batches that a loss of single records relates to each other.

    Records only lend their structure (shapes and types); their values are drawn at random, so that what is found says
    nothing about the data. Replacing one half of a batch must change the gradient by the same amount whatever the
    other half is, and the gradient of a batch must be the mean of those of its halves. A class-weighted mean, a
    contrastive loss, in-batch negatives, MixUp in the collate function and a sum in place of a mean all fail.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        dataloader: Lends the dataset and the collate function.
        datamodule: Its transfer hooks are run as the Trainer would.
    """
    logged: list[str] = []
    buffers: tuple[str, ...] = ()
    try:
        model = _detached_copy(pl_module, logged)
        hooks = [source for source in (datamodule, model) if source is not None]
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        template = dataloader.dataset[0]

        def gradient(records: list[Any], seed: int = 1) -> Tensor:
            with _seeded(seed):
                return _gradient(model, parameters, _collate(records, dataloader.collate_fn, hooks))

        records = _synthetic_records(template, gradient)
        buffers = _taking_up_records(model, gradient, records)
        problem, unchecked = _compare(gradient, records)
    except Exception as error:  # any model, dataset or collate function may run here
        problem, unchecked = None, f"{type(error).__name__}: {error}".split("\n")[0]
    return LossCheck(problem, unchecked, tuple(dict.fromkeys(logged)), buffers)


def _compare(gradient: Callable[..., Tensor], records: list[Any]) -> tuple[str | None, str | None]:
    """The problem found, and the reason why none could be found."""
    first, second, other_first, other_second = (records[start : start + RECORDS] for start in range(0, 16, RECORDS))
    whole = gradient(first + second)
    corners = [gradient(other_first + second), gradient(first + other_second), gradient(other_first + other_second)]
    size = max(float(corner.norm()) for corner in [whole, *corners])
    if not np.isfinite(size):
        return None, "its gradient on synthetic records is not finite"
    if size == 0:
        return None, "its gradient on synthetic records is zero"
    if not _is_small(gradient(first + second) - whole, size):
        return None, "its gradient changes when it is evaluated again"
    if not _is_small(whole - corners[0] - corners[1] + corners[2], size):
        return "couples the records of a batch (a class-weighted mean, a contrastive loss or MixUp does so)", None
    deterministic = _is_small(gradient(first + second, seed=2) - whole, size)
    if deterministic and not _is_small((gradient(first) + gradient(second)) / 2 - whole, size):
        return "is not the mean over the records of a batch (a sum, or a divisor that depends on the batch)", None
    return None, None


def _taking_up_records(
    model: pl.LightningModule, gradient: Callable[..., Tensor], records: list[Any]
) -> tuple[str, ...]:
    """Buffers that end up different after different records."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outcomes = []
    for part in (records[: 2 * RECORDS], records[2 * RECORDS :]):
        gradient(part)
        outcomes.append({name: buffer.clone() for name, buffer in model.named_buffers()})
        for name, buffer in model.named_buffers():
            if name in before:
                buffer.copy_(before[name])
    first, second = outcomes
    return tuple(name for name in first if name in second and not torch.equal(first[name], second[name]))


def _is_small(difference: Tensor, size: float) -> bool:
    return float(difference.norm()) <= TOLERANCE * size


def _detached_copy(pl_module: pl.LightningModule, logged: list[str]) -> pl.LightningModule:
    model = copy.deepcopy(pl_module).cpu().float()

    def log(name: str, *args: Any, **kwargs: Any) -> None:
        logged.append(name)

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        logged.extend(dictionary)

    model.log = log  # type: ignore[method-assign]
    model.log_dict = log_dict  # type: ignore[assignment, method-assign]
    return model


def _gradient(model: pl.LightningModule, parameters: list[torch.nn.Parameter], batch: Any) -> Tensor:
    explicit = is_param_in_hook_signature(model.training_step, "batch_idx", min_args=2)
    with torch.enable_grad():
        output = model.training_step(batch, 0) if explicit else model.training_step(batch)
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise TypeError("training_step returned no loss.")
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    parts = [torch.zeros(1) if part is None else part.to_dense().reshape(-1).double() for part in gradients]
    return torch.cat([part.double() for part in parts])


def _collate(records: list[Any], collate_fn: Callable[[list[Any]], Any], hooks: list[Any]) -> Any:
    batch = apply_to_collection(collate_fn(records), Tensor, lambda t: t.float() if t.is_floating_point() else t)
    for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
        source = next((hook for hook in hooks if is_overridden(name, hook)), None)
        if source is not None:
            batch = getattr(source, name)(batch, 0)
    return batch


def _synthetic_records(template: Any, gradient: Callable[[list[Any]], Tensor]) -> list[Any]:
    """Sixteen records like the template, with the widest range of integers that the model accepts."""
    for high in INTEGER_RANGES:
        with _seeded(high):
            records = [_synthetic(template, high) for _ in range(4 * RECORDS)]
        try:
            gradient(records)
        except Exception:
            if high == INTEGER_RANGES[-1]:
                raise
            continue
        return records
    raise AssertionError("INTEGER_RANGES is empty")


def _synthetic(template: Any, high: int) -> Any:
    """A record with the shapes and types of the template and random values; what is no number stays as it is."""
    if isinstance(template, Tensor):
        return _random_like(template, high)
    if isinstance(template, np.ndarray | np.generic):
        values = _random_like(torch.as_tensor(np.asarray(template)), high).numpy()
        return values if isinstance(template, np.ndarray) else template.dtype.type(values)
    if isinstance(template, bool):
        return bool(torch.rand(()) < 0.5)
    if isinstance(template, int):
        return int(torch.randint(high, ()))
    if isinstance(template, float):
        return float(torch.rand(()))
    if isinstance(template, Mapping):
        return type(template)({key: _synthetic(value, high) for key, value in template.items()})  # type: ignore[call-arg]
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        return type(template)(*(_synthetic(value, high) for value in template))
    if isinstance(template, list | tuple):
        return type(template)(_synthetic(value, high) for value in template)
    return template


def _random_like(template: Tensor, high: int) -> Tensor:
    if template.is_floating_point():
        return torch.rand(template.shape).to(template.dtype)
    if template.dtype == torch.bool:
        return torch.rand(template.shape) < 0.5
    return torch.randint(min(high, torch.iinfo(template.dtype).max), template.shape).to(template.dtype)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run with fixed global generators, and leave them as they were, also after an error."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
