"""The list of sampling schemes, which is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lightning_pac.scenarios.sampling.declaration import check_class, check_price
from lightning_pac.scenarios.sampling.scheme import REGISTERED, Sampling

__all__ = ["register_sampling", "registered_samplings", "sampling_from_dict"]

SchemeT = TypeVar("SchemeT", bound=type[Sampling])


def register_sampling(scheme: SchemeT) -> SchemeT:
    """Let a sampling scheme be trained with, saved and read back; a decorator for its class.

    The price of a scheme is declared by its author. Here it is tried: the batches that `draw_pass` yields for
    `small_cases()` on one to six records are counted for every set of differing records, and a scheme that some path
    surpasses is refused. That is a test and no proof, so the privacy card says that the price is declared by the user.

    Amplification by sampling, and the adjacency `add_remove`, are left to our own Poisson sampling: they rest on the
    law of the draws, which no number of draws can show.

    Args:
        scheme: a frozen dataclass that is a `Sampling`.

    Raises:
        TypeError: if it is no such class, does not say how it draws, or derives from a scheme of ours.
        ValueError: if its draws surpass its price or break what it says of them, it does not survive `to_dict` and
            `from_dict`, or another scheme has its name.

    Example:
        >>> from dataclasses import dataclass
        >>> from lightning_pac.scenarios import EpochShuffle
        >>> @dataclass(frozen=True)
        ... class Halves(EpochShuffle):
        ...     pass
        >>> register_sampling(Halves)
        Traceback (most recent call last):
        TypeError: Halves derives from EpochShuffle, whose proof does not cover it: derive from Sampling itself.
    """
    check_class(scheme)
    name = scheme.__name__
    known = REGISTERED.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (scheme.__module__, scheme.__qualname__):
        raise ValueError(f"{name} is the name of another registered sampling, {known.__module__}.{name}: rename one.")
    if not vars(scheme).get("_certified", False):
        check_price(scheme)
    REGISTERED[name] = scheme
    return scheme


def registered_samplings() -> tuple[type[Sampling], ...]:
    """All classes that can be trained with, ours first.

    Example:
        >>> [scheme.__name__ for scheme in registered_samplings()][:2]
        ['Poisson', 'EpochShuffle']
    """
    order = ["Poisson", "EpochShuffle", "FixedSize", "WithReplacement", "Sequential"]
    own = [scheme for name, scheme in REGISTERED.items() if name not in order]
    return (*(REGISTERED[name] for name in order if name in REGISTERED), *own)


def sampling_from_dict(values: Mapping[str, Any]) -> Sampling:
    """Rebuild the scheme that `Sampling.to_dict` wrote.

    Args:
        values: what `to_dict` returned.

    Raises:
        ValueError: if the name is not that of a registered scheme.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> sampling_from_dict(Poisson(rate=0.01).to_dict())
        Poisson(rate=0.01, batch_size=None, secret_draws=True)
    """
    name = values.get("name")
    if name not in REGISTERED:
        raise ValueError(
            f"{name!r} is not a sampling descriptor: it must be one of {', '.join(sorted(REGISTERED))}, or the module "
            "that registers it must be imported first."
        )
    return REGISTERED[name].from_dict(values)
