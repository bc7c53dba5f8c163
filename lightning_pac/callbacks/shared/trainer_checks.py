"""Refusals of what a Trainer, a model or its optimizer must not do beside a private callback, each with the way out."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from lightning_pac.callbacks.shared.trainer_only import TrainerCallback
from lightning_pac.gradients.refusals import unfit_modules
from lightning_pac.strategies import FixedScalePrecision
from lightning_pac.strategies.private_strategy import PrivateStrategy
from lightning_pac.strategies.sharding import held_parameters, local_part

__all__ = [
    "acts_at_once",
    "is_stopped_by_noised_metric",
    "model_problems",
    "monitored_names",
    "noised_names",
    "optimizer_problems",
    "refuse_gradient_hook",
    "refuse_searches",
    "refuse_together",
    "trainer_problems",
]

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")

CALLBACKS: dict[type, str] = {
    LearningRateFinder: (
        "removes all callbacks and trains on raw gradients while it searches: choose the learning rate on public data, "
        "or spend part of the budget on a search"
    ),
    BatchSizeFinder: (
        "removes all callbacks and trains on raw gradients while it searches: set the batch size yourself"
    ),
    GradientAccumulationScheduler: (
        "changes the number of records in a step during the run: set accumulate_grad_batches in the Trainer"
    ),
    ModelPruning: (
        "puts other parameters in the place of those that are trained: prune the trained model, which costs nothing"
    ),
    SpikeDetection: (
        "skips batches by their losses, a choice that no noise protects: leave it out, clipping already bounds what "
        "one record can do"
    ),
}

MIXING_TRANSFORMS = {"MixUp", "CutMix", "Mixup", "Cutmix", "RandomMixUp", "RandomMixup", "RandomCutMix", "RandomCutmix"}


def refuse_together(problems: Iterable[str]) -> None:
    """Refuse a fit for all that is wrong with it, a sentence a line.

    Raises:
        MisconfigurationException: If there is a problem.
    """
    found = list(dict.fromkeys(problems))
    if found:
        raise MisconfigurationException("\n".join(found))


def trainer_problems(trainer: pl.Trainer, pl_module: pl.LightningModule, callback: pl.Callback) -> Iterator[str]:
    """Why the noised gradient would not be what the optimizer uses.

    Yields:
        Sentences that name the conflict and the way out.
    """
    return (f"{type(callback).__name__}: {problem}." for problem in _conflicts(trainer, pl_module, callback))


def acts_at_once(trainer: pl.Trainer) -> bool:
    """Whether a conflict is with a strategy or another callback, which act as soon as they are set up."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(other, tuple(CALLBACKS)) for other in callbacks) or not _leaves_gradients(trainer)


def refuse_searches(trainer: pl.Trainer, callback: pl.Callback, stage: str) -> None:
    """Refuse callbacks that run the loop of this stage without any other callback, and so without protection.

    Raises:
        MisconfigurationException: Names the callback and the way out.
    """
    kinds = (BatchSizeFinder, LearningRateFinder) if stage == "fit" else (BatchSizeFinder,)
    for other in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(other, kinds):
            raise MisconfigurationException(
                f"{type(other).__name__} removes {type(callback).__name__} and all other callbacks while it searches, "
                "so that nothing is private meanwhile: search on public data, with a Trainer of its own."
            )


def model_problems(pl_module: pl.LightningModule, dataloader: Any = None, datamodule: Any = None) -> Iterator[str]:
    """Why a record has no gradient of its own in a model, or it has nothing to train or is not finite.

    Yields:
        Sentences that name the first layer of a kind, or the hyperparameter or transform, and the way out.
    """
    if not any(parameter.requires_grad for parameter in pl_module.parameters()):
        yield (
            f"{type(pl_module).__name__} has no trainable parameters, so there is nothing to protect: unfreeze what is "
            "to be trained."
        )
    yield from islice(_unfit_parameters(pl_module), 1)
    for holder in (pl_module, datamodule):
        for name, value in (holder.hparams if holder is not None else {}).items():
            if _holds_data(value):
                yield (
                    f"The hyperparameter {name!r} of {type(holder).__name__} holds records or a tensor, which every "
                    f"checkpoint keeps: save_hyperparameters(ignore=[{name!r}]), or make public numbers a list."
                )
    try:
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad:
                refuse_gradient_hook(name, parameter._backward_hooks)
                refuse_gradient_hook(name, parameter._post_accumulate_grad_hooks)
    except MisconfigurationException as error:
        yield str(error)
    for name in islice(_other_leaves(pl_module), 1):
        yield (
            f"The tensor {name!r} requires a gradient and is not a parameter, so it would be handed the raw gradient "
            "of every batch: make it an nn.Parameter, or detach it."
        )
    for name in islice(_power_iterations(pl_module), 1):
        yield (
            f"The weight of {name!r} is divided by its spectral norm, for which a buffer is written to in every "
            "forward pass, so no gradient of a single record can be computed anew: put its parametrization into "
            "evaluation mode (layer.parametrizations.weight[0].eval(), which keeps the vectors of now), or use "
            "weight_norm or orthogonal."
        )
    yield from unfit_modules(pl_module)
    for owner, transform in _mixing_transforms(pl_module, dataloader, datamodule):
        yield (
            f"{owner} holds {type(transform).__name__}, which mixes records of a batch, so one record moves the "
            "clipped gradients of others: remove it (augmentations of single records are fine)."
        )


def refuse_gradient_hook(name: str, hooks: Mapping[int, Any] | None) -> None:
    """Refuse hooks on the gradient of a parameter.

    Raises:
        MisconfigurationException: If there is one.
    """
    if hooks:
        raise MisconfigurationException(
            f"The parameter {name!r} has a hook on its gradient, which would be handed raw gradients of a batch or "
            "none at all: remove it (register_hook, an optimizer that steps within backward, watch(log='gradients') of "
            "a logger)."
        )


def optimizer_problems(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Iterator[str]:
    """Why the optimizer would use a gradient other than the one released.

    Yields:
        Sentences that name the optimizer and the way out.
    """
    if len(trainer.optimizers) != 1:
        yield (
            f"{type(pl_module).__name__} configures {len(trainer.optimizers)} optimizers, and each would release a "
            "gradient of its own: return exactly one from configure_optimizers."
        )
        return
    optimizer = trainer.optimizers[0]
    if isinstance(optimizer, torch.optim.LBFGS):
        yield (
            "LBFGS evaluates the gradient several times a step, and each evaluation is a release: use SGD, Adam or "
            "another optimizer that evaluates it once."
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        yield "SparseAdam takes sparse gradients only, but noise reaches every coordinate: use Adam."
    members = {id(parameter) for parameter in held_parameters(pl_module).values()}
    if any(id(parameter) not in members for group in optimizer.param_groups for parameter in group["params"]):
        yield (
            f"{type(optimizer).__name__} holds parameters that are not part of {type(pl_module).__name__}, and their "
            "gradients would stay raw: register them in the LightningModule."
        )


def monitored_names(trainer: pl.Trainer) -> list[str]:
    """Metrics that callbacks and schedulers act on, but for the private ones of this package."""
    found: list[tuple[str, object]] = []
    noised = noised_names(trainer)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping | ModelCheckpoint) and callback.monitor:
            found.append((callback.monitor, callback))
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor:
            found.append((config.monitor, config.scheduler))
    return [
        f"{name} ({type(user).__name__})"
        for name, user in found
        if not name.startswith("privacy/") and name not in noised
    ]


def is_stopped_by_noised_metric(trainer: pl.Trainer) -> bool:
    """Whether an `EarlyStopping` has ended the run that looks at a private metric of this package."""
    noised = noised_names(trainer)
    return any(
        isinstance(callback, EarlyStopping) and callback.monitor in noised and callback.stopped_epoch > 0
        for callback in trainer.callbacks  # type: ignore[attr-defined]
    )


def noised_names(trainer: pl.Trainer) -> set[str]:
    """Of the private metrics of this package: nothing else can be logged under these."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return {name for callback in callbacks if isinstance(callback, TrainerCallback) for name in callback.noised_names}


def _conflicts(trainer: pl.Trainer, pl_module: pl.LightningModule, callback: pl.Callback) -> Iterator[str]:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for other in callbacks:
        if other is not callback and ("mixup" in type(other).__name__.lower() or any(_mixing_transforms(other))):
            yield (
                f"{type(other).__name__} mixes records of a batch, so one record moves the clipped gradients of "
                "others: remove it (augmentations of single records are fine)"
            )
    if sum(isinstance(other, type(callback)) for other in callbacks) > 1:
        yield "the Trainer has two of it, and each would clip what the other has noised: keep one"
    for other in callbacks:
        for kind, reason in CALLBACKS.items():
            if isinstance(other, kind):
                yield f"{type(other).__name__} {reason}"
    if trainer.gradient_clip_val:
        yield (
            f"gradient_clip_val={trainer.gradient_clip_val} would rescale the noised gradient: remove it, "
            "max_grad_norm already clips the gradient of each record"
        )
    if is_overridden("configure_gradient_clipping", pl_module):
        yield (
            f"{type(pl_module).__name__}.configure_gradient_clipping would change the noised gradient: remove it, "
            "max_grad_norm already clips the gradient of each record"
        )
    if is_overridden("backward", pl_module):
        yield (
            f"{type(pl_module).__name__}.backward decides itself what is differentiated, which need not be a mean over "
            "records: leave it out, and return the loss from training_step"
        )
    if trainer._detect_anomaly:
        yield (
            "detect_anomaly=True ends the run where a record's gradient is not finite, a choice that no noise "
            "protects: leave it out, such a gradient counts as zero"
        )
    if isinstance(trainer.precision_plugin, FixedScalePrecision):
        pass
    elif trainer.precision == "16-mixed":
        yield (
            "precision='16-mixed' scales the loss and skips steps by what it finds in the data: use 'bf16-mixed', "
            "which needs no loss scaling, or plugins=FixedScalePrecision(), whose scale is public"
        )
    elif trainer.precision not in PRECISIONS:
        yield f"precision={trainer.precision!r} is not supported: use one of {', '.join(PRECISIONS)}"
    if not _leaves_gradients(trainer):
        yield (
            f"{type(trainer.strategy).__name__} would average or shard raw gradients before they are clipped: use "
            "strategy='ddp_private', or 'fsdp_private' for shards, which clip on every device and then sum, or one "
            "device"
        )
    if not pl_module.automatic_optimization:
        yield (
            "manual optimization decides itself how many gradients a batch gives: set automatic_optimization = True "
            "and leave the steps to the Trainer"
        )
    if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
        yield (
            "a training_step(dataloader_iter) fetches any number of batches in a step: take the batch as its argument "
            "instead"
        )


def _leaves_gradients(trainer: pl.Trainer) -> bool:
    return isinstance(trainer.strategy, SingleDeviceStrategy | PrivateStrategy)


def _unfit_parameters(pl_module: pl.LightningModule) -> Iterator[str]:
    for name, parameter in pl_module.named_parameters():
        has_no_shape: bool = is_lazy(parameter)
        if has_no_shape:
            yield (
                f"The parameter {name!r} has no shape yet, so its gradient cannot be noised: run the model on one "
                "made-up batch before fit, or state the sizes of its layers."
            )
        elif not bool(local_part(parameter.detach()).isfinite().all()):
            yield (
                f"The parameter {name!r} holds numbers that are not finite before the first step, so nothing can be "
                "learned: look at how it is initialised (by public data, if it takes values from a first batch), or at "
                "the checkpoint that it was loaded from."
            )


def _mixing_transforms(*roots: Any) -> Iterator[tuple[str, Any]]:
    """Objects that mix a batch, looked for by name where they usually are."""
    for root in roots:
        if root is None:
            continue
        collate = getattr(root, "collate_fn", None)
        candidates = [value for holder in (root, getattr(root, "dataset", None)) for value in _attributes(holder)]
        candidates += [collate, getattr(collate, "func", None), getattr(collate, "__self__", None)]
        candidates += [cell.cell_contents for cell in getattr(collate, "__closure__", None) or () if _is_filled(cell)]
        if isinstance(root, torch.nn.Module):
            candidates += list(root.modules())
        for candidate in candidates:
            if {kind.__name__ for kind in type(candidate).__mro__} & MIXING_TRANSFORMS:
                yield type(root).__name__, candidate


def _power_iterations(pl_module: pl.LightningModule) -> Iterator[str]:
    """Names of layers with a trainable weight under either `spectral_norm` whose vectors are still updated."""
    for name, module in pl_module.named_modules():
        if not any(parameter.requires_grad for parameter in module.parameters()):
            continue
        parts = [part for parts in getattr(module, "parametrizations", {}).values() for part in parts]
        updated = [part for part in parts if type(part).__name__ == "_SpectralNorm" and part.training]
        hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__name__ == "SpectralNorm"]
        if updated or (hooks and module.training):
            yield name


def _other_leaves(pl_module: pl.LightningModule) -> Iterator[str]:
    """Names of buffers and plain attributes that backward would give a gradient to."""
    for prefix, module in pl_module.named_modules():
        for name, value in {**module._buffers, **vars(module)}.items():
            if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
                yield f"{prefix}.{name}".lstrip(".")


def _holds_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_data, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_holds_data, value))
    is_table = hasattr(value, "iloc") or hasattr(value, "__arrow_c_stream__")  # of pandas, polars and others
    return is_table or isinstance(value, torch.Tensor | np.ndarray | Dataset | DataLoader)


def _attributes(holder: Any) -> list[Any]:
    """Values of its attributes; a list of records, or an object with slots, has none."""
    return list(getattr(holder, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
