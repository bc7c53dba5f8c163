"""The best possible attacker as a curve: how often he is right for how often he is wrong."""

from __future__ import annotations

import html
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lightning_pac._validation import validated

__all__ = ["ROC_RATES", "Roc", "draw_rocs"]

_DECADES = 4
ROC_RATES = tuple(sorted({10 ** (-_DECADES + part / 10) for part in range(10 * _DECADES)} | {1e-3, 1e-2, 1.0}))
"""False-positive rates at which a curve is kept, 0.1 % and 1 % among them."""

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LEFT, _TOP, _SIZE = 62, 14, 300


@validated
@dataclass(frozen=True)
class Roc:
    """The most true positives of any attack, for each share of false positives.

    Args:
        false_positive_rates: increasing, shape (points,).
        true_positive_rates: upper bounds there, shape (points,).

    Raises:
        ValueError: if there are not as many of the one as of the other, or rates that are no probabilities.

    Example:
        >>> roc = Roc.of(lambda rate: min(1.0, 2 * rate))
        >>> roc.at(0.01)
        0.02
    """

    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        rates = (*self.false_positive_rates, *self.true_positive_rates)
        ordered = sorted(self.false_positive_rates) == list(self.false_positive_rates)
        same = len(self.false_positive_rates) == len(self.true_positive_rates) > 0
        if not (same and ordered and all(0 <= rate <= 1 for rate in rates)):
            raise ValueError("true_positive_rates must have one for each of false_positive_rates, which increase.")

    @classmethod
    def of(cls, true_positive_rate: Callable[[float], float]) -> Roc:
        """The curve of a bound, at `ROC_RATES`."""
        return cls(ROC_RATES, tuple(min(1.0, true_positive_rate(rate)) for rate in ROC_RATES))

    def at(self, false_positive_rate: float) -> float:
        """The bound at a rate; between two points that of the larger, which is no less."""
        place = bisect_left(self.false_positive_rates, false_positive_rate * (1 - 1e-12))
        return self.true_positive_rates[place] if place < len(self.true_positive_rates) else 1.0


@validated
def draw_rocs(curves: Mapping[str, Roc | None]) -> str:
    """Curves by name as SVG text: both axes logarithmic from 0.01 %, and a coin's line below them.

    The rates at 0.1 % and 1 % false positives are marked, and written out where there is one curve. A name without a
    curve keeps its colour, and is not drawn.
    """
    width = _LEFT + _SIZE + 20 + (0 if len(curves) == 1 else 150)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_TOP + _SIZE + 48}" width="{width}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#222">',
        f'<rect width="{width}" height="{_TOP + _SIZE + 48}" fill="#fff"/>',
    ]
    for decade in range(_DECADES + 1):
        rate = 10.0 ** (decade - _DECADES)
        x, y, label = _x(rate), _y(rate), f"{100 * rate:g} %"
        parts += [
            f'<path d="M{x:.1f} {_TOP}V{_TOP + _SIZE}M{_LEFT} {y:.1f}H{_LEFT + _SIZE}" stroke="#e6e6e6"/>',
            f'<text x="{x:.1f}" y="{_TOP + _SIZE + 16}" text-anchor="middle">{label}</text>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    middle = _TOP + _SIZE / 2
    parts += [
        f'<text x="{_LEFT + _SIZE / 2}" y="{_TOP + _SIZE + 36}" text-anchor="middle">false alarms</text>',
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">found at most</text>',
        f'<path d="M{_x(0):.1f} {_y(0):.1f}L{_x(1):.1f} {_y(1):.1f}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{_x(0.03):.1f}" y="{_y(0.03) + 22:.1f}" fill="#777">a coin</text>',
    ]
    place = 0
    for index, (name, curve) in enumerate(curves.items()):
        if curve is None:
            continue
        colour = _COLOURS[index % len(_COLOURS)]
        dashes = ' stroke-dasharray="7 5"' if place % 2 else ""  # curves may lie on each other
        points = zip(curve.false_positive_rates, curve.true_positive_rates, strict=True)
        path = "L".join(f"{_x(wrong):.1f} {_y(right):.1f}" for wrong, right in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>')
        for rate in (1e-3, 1e-2):
            x, y = _x(rate), _y(curve.at(rate))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="{colour}"/>')
            if len(curves) == 1:
                parts.append(
                    f'<text x="{x - 6:.1f}" y="{y - 7:.1f}" text-anchor="end">{_percent(curve.at(rate))}</text>'
                )
        if len(curves) > 1:
            y = _TOP + 12 + 18 * place
            parts += [
                f'<path d="M{_LEFT + _SIZE + 14} {y}h18" stroke="{colour}" stroke-width="1.8"{dashes}/>',
                f'<text x="{_LEFT + _SIZE + 38}" y="{y + 4}">{html.escape(name)}</text>',
            ]
        place += 1
    return "\n".join([*parts, "</svg>"])


def _x(rate: float) -> float:
    return _LEFT + _SIZE * _height(rate)


def _y(rate: float) -> float:
    return _TOP + _SIZE * (1 - _height(rate))


def _height(rate: float) -> float:
    return 1 + math.log10(max(rate, 10.0**-_DECADES)) / _DECADES


def _percent(rate: float) -> str:
    """Rounded up to two digits."""
    digits = 10.0 ** (math.floor(math.log10(max(rate, 1e-9))) - 1)
    return f"{100 * math.ceil(rate / digits * (1 - 1e-12)) * digits:.2g} %"
