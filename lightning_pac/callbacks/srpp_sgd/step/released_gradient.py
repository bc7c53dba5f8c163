"""Writing the released gradient, and proving that the optimizer used exactly that."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.strategies.sharding import local_part

__all__ = ["ReleasedGradient", "enable_hooks"]


def enable_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer run hooks before and after its step, which one that wraps another may not.

    `Optimizer.__init__` sees to that, and wrappers (Lookahead in timm) leave it out.
    """
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        vars(optimizer).setdefault(hooks, OrderedDict())
    optimizer._patch_step_function()


class ReleasedGradient:
    """The gradient of one optimizer step as it was written to `p.grad`.

    Identity and version counter of every gradient show afterwards whether anything replaced or changed it in between;
    ordinary optimizers do neither. The first step also compares values, in case something writes past the counter.

    Args:
        parameters: Trainable parameters by name, in the engine's order.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._size = sum(local_part(parameter).numel() for parameter in parameters.values())
        self._written: dict[str, tuple[Tensor, tuple[int, int]]] = {}
        self._copies: dict[str, Tensor] | None = {}

    def write(self, release: Tensor, batch_size: float = 1.0, public: Tensor | None = None) -> None:
        """Write a flat gradient, of this rank's rows where parameters are sharded, in place of every `p.grad`.

        Args:
            release: The noised sum, which is overwritten; what is behind the parameters' coordinates stays.
            batch_size: What it is divided by.
            public: The gradient of what no record enters, flat, which is added; None for none.
        """
        release[: self._size].div_(batch_size)  # in place: a copy costs as much memory as the sum itself
        start = 0
        for name, parameter in self._parameters.items():
            written = torch.empty_like(parameter)
            rows = local_part(written)
            own = slice(start, start + rows.numel())
            if public is not None:
                release[own] += public[own]
            rows.copy_(release[own].view(rows.shape))
            parameter.grad = written
            self._written[name] = (written, _versions(written))
            if self._copies is not None:
                self._copies[name] = rows.clone()
            start += rows.numel()

    def verify(self, used_up: bool = False) -> None:
        """Raise if a gradient is not the one that was written, and forget it.

        Args:
            used_up: Whether the optimizer overwrites gradients while it uses them; `check` must have come before.

        Raises:
            PrivacyViolationError: Names the parameter and says what to look for.
        """
        self.check(used_up)
        if self._written:
            self._copies = None
        self._written.clear()

    def check(self, used_up: bool = False) -> None:
        """Raise if a gradient is not the one that was written."""
        for name, (gradient, versions) in self._written.items():
            current = self._parameters[name].grad
            if current is not gradient:
                self._fail(name, "replaced")
            if used_up:
                continue
            if _versions(gradient) != versions:
                self._fail(name, "changed in place")
            if self._copies and not torch.equal(local_part(gradient), self._copies[name]):
                self._fail(name, "changed behind torch's back")

    def _fail(self, name: str, how: str) -> None:
        self._written.clear()
        raise PrivacyViolationError(
            f"The noised gradient of {name!r} was {how} before the optimizer used it, so what was trained is not what "
            "is accounted for: remove the callback, hook or override that touches p.grad (gradient clipping, "
            "centralization, an on_before_optimizer_step of your own)."
        )


def _versions(tensor: Tensor) -> tuple[int, int]:
    """A sharded tensor and its rows on this rank count what is written to them apart."""
    return tensor._version, local_part(tensor)._version
