"""The engines by name."""

from collections.abc import Callable
from typing import Literal

from lightning_pac._validation import validated
from lightning_pac.gradients.clipping import clip_factors
from lightning_pac.gradients.contract import GradientEngine, block_index, flat_sum
from lightning_pac.gradients.one_backward import OneBackwardEngine

__all__ = ["GradientEngine", "block_index", "clip_factors", "flat_sum", "make_engine"]

EngineName = Literal["auto", "one_backward", "opacus"]


@validated
def make_engine(
    name: EngineName = "auto", public_terms: bool = False, rests: Callable[[], bool] = bool
) -> GradientEngine:
    """Make the engine of that name.

    Args:
        name: `one_backward` is ours; `opacus` instantiates every per-example gradient with Opacus' hooks, to compare
            with. `auto` is the first.
        public_terms: Whether terms without records may be added to the mean of the losses, as `OneBackwardEngine` does.
        rests: Whether passes that begin now are no training, such as those of an evaluation between two microbatches;
            Opacus' hooks see none in evaluation mode.

    Raises:
        ValueError: If there is no engine of that name.

    Example:
        >>> import torch
        >>> engine = make_engine("auto")
        >>> linear = torch.nn.Linear(3, 2)
        >>> engine.attach(linear)
        >>> linear(torch.ones(5, 3)).sum(1).mean().backward()
        >>> sums, norms = engine.clipped_sum(max_grad_norm=1.0)
        >>> [tuple(total.shape) for total in sums], tuple(norms.shape)
        ([(2, 3), (2,)], (5, 1))
        >>> linear.weight.grad is None
        True
        >>> engine.detach()
    """
    if name == "opacus":
        from lightning_pac.gradients.opacus_engine import OpacusEngine

        return OpacusEngine()
    return OneBackwardEngine(public_terms=public_terms, rests=rests)
