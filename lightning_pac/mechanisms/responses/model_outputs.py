"""Asking a model for one output per secret, and reading what it returns."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_batch", "query"]


def query(model: Any, inputs: Any) -> Any:
    """The outputs of a model, or its votes if it has any; a torch module is evaluated without gradients."""
    votes = getattr(model, "votes", model)
    with _evaluation_mode(model):
        return votes(inputs)


def as_batch(outputs: Any) -> tuple[npt.NDArray[Any], bool]:
    """Outputs as (n, m) labels or (n, m, d) scores, and whether they were those of one query."""
    values = _to_array(outputs)
    votes = bool(np.issubdtype(values.dtype, np.integer))
    if not votes and not (np.issubdtype(values.dtype, np.floating) and values.dtype.itemsize <= 8):
        raise ValueError(f"The model must return integer labels or real scores, got {values.dtype}.")
    dimensions = 1 if votes else 2
    if values.ndim not in (dimensions, dimensions + 1):
        shapes = "(m,) or (n, m)" if votes else "(m, d) or (n, m, d)"
        raise ValueError(f"{'Labels' if votes else 'Scores'} must have shape {shapes}, got {values.shape}.")
    single = values.ndim == dimensions
    values = values[None] if single else values
    if values.size == 0:
        raise ValueError(f"The batch is empty, with outputs of shape {values.shape}: ask at least one query.")
    if not votes and values.shape[-1] == 1:
        raise ValueError(
            "Scores of one column (d = 1) have no largest class: return labels, or one score for each class."
        )
    return values, single


def _to_array(outputs: Any) -> npt.NDArray[Any]:
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu()
        # NumPy has no bfloat16.
        outputs = outputs.float() if outputs.is_floating_point() and outputs.element_size() == 2 else outputs
    try:
        return np.asarray(outputs)
    except ValueError as error:
        raise ValueError("The model returned rows of different lengths: return one array, a row for each.") from error


def _evaluation_mode(model: Any) -> AbstractContextManager[None]:
    # A model that is a torch module has imported torch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return nullcontext()
    return _torch_evaluation_mode(model, torch)


@contextmanager
def _torch_evaluation_mode(model: Any, torch: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
