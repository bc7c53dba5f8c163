"""Sums of clipped per-example gradients, from an ordinary backward pass; usable without Lightning.

Example:
    A private step by hand. The loss is a mean over the batch; physical batches are chunks of a logical one, whose sums
    are added before the noise, in float64; rounding may raise what a record does to them by the share `ROUNDING`.

    >>> import torch
    >>> from lightning_pac.gradients import ROUNDING, flat_sum, make_engine
    >>> from lightning_pac.randomness import secure_generator
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> parameters = list(model.parameters())
    >>> optimizer = torch.optim.SGD(parameters, lr=0.1)
    >>> inputs, labels = torch.randn(32, 4), torch.randint(2, (32,))
    >>> engine = make_engine()
    >>> engine.attach(model)
    >>> total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    >>> for x, y in zip(inputs.split(16), labels.split(16)):
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     sums, norms = engine.clipped_sum(max_grad_norm=1.0)
    ...     total += flat_sum(sums)
    >>> release = secure_generator().release_(total, deviation=1.5 * (1 + ROUNDING)).div_(32)
    >>> parts = release.split([parameter.numel() for parameter in parameters])
    >>> for parameter, part in zip(parameters, parts):
    ...     parameter.grad = part.view(parameter.shape).float()
    >>> optimizer.step()
    >>> engine.detach()
"""

from lightning_pac.gradients.arithmetic import ROUNDING
from lightning_pac.gradients.calls import Call
from lightning_pac.gradients.contract import GradientEngine, flat_sum
from lightning_pac.gradients.contributions import Contribution, Dense
from lightning_pac.gradients.decoupling import coupling_error
from lightning_pac.gradients.engine import make_engine
from lightning_pac.gradients.loss_in_records import per_record_mean
from lightning_pac.gradients.private_step import private_gradients
from lightning_pac.gradients.rule_check import check_rule
from lightning_pac.gradients.rules.table import register_rule

__all__ = [
    "ROUNDING",
    "Call",
    "Contribution",
    "Dense",
    "GradientEngine",
    "check_rule",
    "coupling_error",
    "flat_sum",
    "make_engine",
    "per_record_mean",
    "private_gradients",
    "register_rule",
]
