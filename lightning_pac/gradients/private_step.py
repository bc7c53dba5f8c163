"""A private step without a Trainer."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_pac._validation import Natural, Noise, Positive, validated
from lightning_pac.accountants import GaussianRelease, PoissonSteps, PrivacyEvent
from lightning_pac.gradients.arithmetic import ROUNDING, widest_type
from lightning_pac.gradients.clipping import NORMLESS_RULES, SMALLEST_NORM, clip
from lightning_pac.gradients.contract import flat_sum
from lightning_pac.gradients.one_backward import OneBackwardEngine
from lightning_pac.randomness import secure_generator
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = ["private_gradients"]


@validated
def private_gradients(
    module: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batch: object,
    *,
    max_grad_norm: Positive | Literal["auto"],
    noise_multiplier: Noise,
    batch_size: Positive,
    scenario: TwoWorldScenario,
    sampling: Poisson | None = None,
    num_records: Natural | None = None,
) -> tuple[dict[str, Tensor], PrivacyEvent]:
    r"""Clipped, noised gradients of a module's trainable parameters, and what they are to be charged as.

    The release is $\frac{1}{B} (\sum_i \mathrm{clip}_C(g_i) + N(0, (1 + 2^{-7})^2 \sigma^2 C^2))$, rounded to a public
    grid; the factor covers what floating point adds to a record's share (`ROUNDING`).

    What it keeps: records are clipped one by one or refused by name, no raw gradient exists outside, noise is drawn
    from the operating system's randomness and is fine everywhere, and the event is what a step costs. What only a
    Trainer's callback checks, and is the caller's here: that the loss couples no records (`coupling_error` asks that),
    that batches were drawn as `sampling` says, that a record is in a batch once, that batches have one public shape,
    that gradients go to the optimizer as they are, that nothing else of the batch is kept or shown, and that the event
    is charged, also for a step whose gradients are thrown away.

    Args:
        module: The module; its `p.grad` are neither read nor written.
        loss_fn: Called with the module and the batch; returns the mean of the records' losses. A penalty on weights is
            refused in it, since a value of the batch in it would not be noised: add its gradient to what is returned.
        batch: Records in dimension 0 of its tensors.
        max_grad_norm: C, largest norm of a record's gradient; ``"auto"`` gives nearly all of them the norm C = 1.
        noise_multiplier: sigma, deviation of the noise on the sum, in clipping norms.
        batch_size: B, what the sum is divided by: public, such as the expected number of records, never the drawn one.
        scenario: The two worlds that are not to be told apart.
        sampling: Secret Poisson sampling, which amplifies; None where draws may be known.
        num_records: Records among the rows; those behind them are dummies, which add nothing. Under `add_remove` the
            number of records is secret, so the batch must be filled up to a public number of rows.

    Returns:
        Gradients by the parameters' names, and the event: `PoissonSteps`, or `GaussianRelease` without sampling.

    Raises:
        ValueError: If the number of records is secret and not told apart from that of rows, draws are not secret, or
            C is below 1e-15.
        RuntimeError: If gradients of records cannot be told apart.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> batch = torch.randn(8, 3), torch.randn(8, 1)
        >>> def loss(module, batch):
        ...     return (module(batch[0]) - batch[1]).square().mean()
        >>> gradients, event = private_gradients(
        ...     model, loss, batch, max_grad_norm=1.0, noise_multiplier=2.0, batch_size=8,
        ...     scenario=TwoWorldScenario(num_differing=1),
        ... )
        >>> sorted(gradients), event
        (['bias', 'weight'], GaussianRelease(mu_squared=1.0))
    """
    if scenario.adjacency == "add_remove" and num_records is None:
        raise ValueError(
            "num_records is missing, but under add_remove the number of records is secret: fill the batch up with "
            "dummies to a public number of rows, and say how many of them are records."
        )
    if sampling is not None and sampling.amplified_rate is None:
        raise ValueError("sampling has public draws, or a law of its own, so it amplifies nothing: leave it out.")
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    bound, rule = (1.0, NORMLESS_RULES[max_grad_norm]) if isinstance(max_grad_norm, str) else (max_grad_norm, clip)
    if bound < SMALLEST_NORM:
        raise ValueError(f"max_grad_norm is {bound:g}, but must be at least {SMALLEST_NORM:g}: scale the loss.")
    engine = OneBackwardEngine()
    engine.attach(module)
    try:
        with torch.enable_grad(), engine.following(batch):
            loss = loss_fn(module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        total = flat_sum(engine.clipped_sum(bound, num_records=num_records, rule=rule)[0])
    finally:
        engine.detach()
    # Noise for the sensitivity (1 + ROUNDING) C, which covers what rounding adds to a record's share.
    total = total.to(widest_type(total.device), copy=True)
    secure_generator().release_(total, (1.0 + ROUNDING) * noise_multiplier * bound)
    total /= batch_size
    parts = torch.split(total, [parameter.numel() for parameter in named.values()])
    gradients = {
        name: part.view(parameter.shape).to(parameter.dtype)
        for (name, parameter), part in zip(named.items(), parts, strict=True)
    }
    # mu of the Gaussian mechanism: how far the worlds' sums can lie apart, in deviations of the noise.
    shift = scenario.sensitivity_factor * scenario.total_differing / noise_multiplier
    event = (
        GaussianRelease(shift**2)
        if sampling is None
        else PoissonSteps.of(scenario, sampling.rate, noise_multiplier, num_steps=1)
    )
    return gradients, event
