"""Clipping blocks: the parameters that are clipped together, their norm, and the noise that each block gets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lightning_pac.gradients.clipping import NORMLESS_RULES, ClippingRule, clip

__all__ = ["BlockNoise", "ClippingBlocks"]

BlockNoise = Literal["optimal", "isotropic"]


@dataclass(frozen=True)
class ClippingBlocks:
    r"""A partition of the trainable parameters, with a clipping norm for each block.

    With clipping norms $c_b$ and noise deviations $s_b$ the cost of a step is that of one noise multiplier,
    $\sigma = (\sum_b c_b^2 / s_b^2)^{-1/2}$ (SRPP-SGD, unsliced: the largest $\delta^T \Sigma^{-1} \delta$ over the
    product of the blocks' balls). Under that constraint `optimal` minimizes the noise power $\sum_b n_b s_b^2$ over
    blocks of $n_b$ parameters (ours, by Lagrange): $s_b^2 = \sigma^2 \, c_b n_b^{-1/2} \sum_k c_k n_k^{1/2}$.
    `isotropic` gives every coordinate $s^2 = \sigma^2 \sum_b c_b^2$.

    Args:
        names: Parameter names of each block.
        sizes: Numbers of parameters $n_b$.
        norms: Clipping norms $c_b$.
        noise: How noise is shared among blocks.
        rule: How gradients are brought below the norms.

    Example:
        >>> module = nn.ModuleDict({"backbone": nn.Linear(9, 9), "head": nn.Linear(9, 1)})
        >>> blocks = ClippingBlocks.of(module, {"backbone": 0.5, "head": 1.0}, "optimal")
        >>> blocks.sizes, blocks.norms
        ((90, 10), (0.5, 1.0))
        >>> deviations = blocks.deviations(noise_multiplier=2.0)
        >>> round(sum((norm / deviation) ** 2 for norm, deviation in zip(blocks.norms, deviations)), 12)
        0.25
    """

    names: dict[str, tuple[str, ...]]
    sizes: tuple[int, ...]
    norms: tuple[float, ...]
    noise: BlockNoise
    rule: ClippingRule = clip

    @classmethod
    def of(
        cls, module: nn.Module, max_grad_norm: float | str | Mapping[str, float], noise: BlockNoise = "optimal"
    ) -> "ClippingBlocks":
        """Sort the trainable parameters of a module into blocks.

        Args:
            module: The module.
            max_grad_norm: One norm for all, the name of a rule that needs none, or norms by the name of a submodule or
                parameter: a block is everything trainable below it.
            noise: How noise is shared among blocks.

        Raises:
            ValueError: If a parameter belongs to no block or to two, or a block has no trainable parameter.
        """
        sizes = {name: parameter.numel() for name, parameter in module.named_parameters() if parameter.requires_grad}
        if not isinstance(max_grad_norm, Mapping):
            norm, rule = (
                (1.0, NORMLESS_RULES[max_grad_norm]) if isinstance(max_grad_norm, str) else (float(max_grad_norm), clip)
            )
            return cls({"all": tuple(sizes)}, (sum(sizes.values()),), (norm,), noise, rule)
        names: dict[str, list[str]] = {prefix: [] for prefix in max_grad_norm}
        for name in sizes:
            homes = [prefix for prefix in names if name == prefix or name.startswith(f"{prefix}.")]
            if len(homes) != 1:
                where = f"in the blocks {' and '.join(homes)}" if homes else "in no block"
                raise ValueError(
                    f"The parameter {name!r} is {where}, but each trainable parameter is clipped in exactly one: name "
                    "submodules in max_grad_norm that do not overlap and leave nothing out."
                )
            names[homes[0]].append(name)
        for prefix, found in names.items():
            if not found:
                raise ValueError(
                    f"max_grad_norm names {prefix!r}, but the model has no trainable parameter there: name a submodule "
                    f"as named_modules() does, for instance {next(iter(sizes)).rpartition('.')[0]!r}."
                )
        return cls(
            names={prefix: tuple(found) for prefix, found in names.items()},
            sizes=tuple(sum(sizes[name] for name in found) for found in names.values()),
            norms=tuple(float(norm) for norm in max_grad_norm.values()),
            noise=noise,
        )

    @property
    def total_norm(self) -> float:
        """Largest norm of a record's whole clipped gradient."""
        return math.hypot(*self.norms)

    @property
    def counts_clipped(self) -> bool:
        """Whether norms are told that some gradients are longer than, so that those are worth counting."""
        return self.rule is clip

    def block_of(self, name: str) -> int:
        """Position of the block that a parameter belongs to."""
        return next(index for index, names in enumerate(self.names.values()) if name in names)

    def deviations(self, noise_multiplier: float) -> tuple[float, ...]:
        """Noise deviation of each block's coordinates, on the sum, at an effective noise multiplier."""
        if self.noise == "isotropic" or len(self.norms) == 1:
            return tuple(noise_multiplier * self.total_norm for _ in self.norms)
        # At the optimum, block b has the share c_b sqrt(n_b) / sum_k c_k sqrt(n_k) of the cost 1 / sigma^2.
        total = sum(norm * math.sqrt(size) for norm, size in zip(self.norms, self.sizes, strict=True))
        return tuple(
            noise_multiplier * math.sqrt(norm / math.sqrt(size) * total)
            for norm, size in zip(self.norms, self.sizes, strict=True)
        )

    def power(self, noise_multiplier: float) -> float:
        """Expected squared norm of the noise on the sum."""
        return sum(
            size * deviation**2 for size, deviation in zip(self.sizes, self.deviations(noise_multiplier), strict=True)
        )
