"""Adam that knows how noisy its gradients are."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_pac._validation import NonNegative, Positive, checks_itself, validated

__all__ = ["DPAdamBC"]


@validated
class DPAdamBC(Optimizer):
    r"""Adam whose second moment is that of the gradient without the noise, which is known.

    A private gradient $g_t + n_t$ with noise of deviation $s_t$ has the second moment $g_t^2 + s_t^2$, so Adam divides
    by little else than the noise, and becomes momentum with another learning rate. This one subtracts:

    .. math:: \theta \leftarrow \theta - \eta \, \hat m / \sqrt{\max(\hat v - \hat w, \rho^2 \hat w)}

    with the usual averages $\hat m$ of gradients, $\hat v$ of their squares, and $\hat w$ of $s_t^2$. It sees released
    gradients and public numbers only, so it is post-processing. Source: Tang, Shpilevskiy and Lécuyer 2024,
    "DP-AdamBC"; the floor in units of the noise is ours.

    `SRPPSGD` tells it the deviations; without a Trainer, call `expect_noise` before each step.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate $\eta$.
        betas: Shares that the averages of gradients and of squares keep in a step.
        floor: $\rho$, below which a gradient counts as lost in the noise. The mean of 250 squares of noise varies by
            about $0.3^2$ of itself.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = DPAdamBC([weight], lr=0.1)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.expect_noise({weight: 0.5})
        >>> optimizer.step()
        >>> round(weight.item(), 4)
        -0.1155
    """

    _deviations: Mapping[Tensor, float] = MappingProxyType({})  # of the class, since torch copies without it

    def __init__(
        self,
        params: Iterable[Any],
        lr: NonNegative = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: Positive = 0.3,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {betas}, but both must lie in [0, 1).")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "floor": floor})

    @checks_itself
    def expect_noise(self, deviations: Mapping[Tensor, float]) -> None:
        """Say how much noise the gradients of the next step hold.

        Args:
            deviations: Standard deviation of the noise in each coordinate of a parameter's gradient, above 0.
        """
        self._deviations = dict(deviations)

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step.

        Raises:
            RuntimeError: If nobody told how noisy the gradients are.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        deviations, self._deviations = self._deviations, {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter not in deviations:
                    raise RuntimeError(
                        "DPAdamBC subtracts the noise of private gradients, and nobody told it of any: add SRPPSGD to "
                        "the Trainer's callbacks, call expect_noise before each step, or use torch.optim.Adam."
                    )
                self._update(group, parameter, deviations[parameter])
        return loss

    def _update(self, group: dict[str, Any], parameter: Tensor, deviation: float) -> None:
        gradient, (beta, beta_square) = parameter.grad, group["betas"]
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            state.update(step=0, noise_square=0.0)
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        # m, v and w of the class before bias correction: after t steps a share 1 - beta^t of what they estimate.
        state["mean"].lerp_(gradient, 1 - beta)
        state["square"].mul_(beta_square).addcmul_(gradient, gradient, value=1 - beta_square)
        state["noise_square"] += (1 - beta_square) * (deviation**2 - state["noise_square"])
        unbias = 1 - beta_square ** state["step"]
        noise = state["noise_square"] / unbias
        # v estimates g^2 + s^2, so v - w may be negative by chance: the floor keeps the root real and the step bounded.
        square = (state["square"] / unbias).sub_(noise).clamp_(min=group["floor"] ** 2 * noise)
        parameter.addcdiv_(state["mean"], square.sqrt_(), value=-group["lr"] / (1 - beta ** state["step"]))
