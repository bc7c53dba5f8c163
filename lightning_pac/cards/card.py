"""A privacy card: what is guaranteed, on what conditions, in words."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any

from lightning_pac._validation import Count, Probability, validated
from lightning_pac.cards.roc import Roc, draw_rocs

__all__ = ["Estimate", "Guarantee", "PrivacyCard", "at_most", "upwards"]


@validated
@dataclass(frozen=True)
class Guarantee:
    """A proven bound.

    Attributes:
        name: Technical name, for instance `"mutual_information"`.
        value: Its value.
        unit: `"nats"`, `"probability"`, ..., or an empty string.
        meaning: One sentence for a person who knows no privacy theory.
    """

    name: str
    value: float
    unit: str
    meaning: str


@validated
@dataclass(frozen=True)
class Estimate:
    """A measured figure, which can contradict a guarantee and never prove one.

    Attributes:
        name: Technical name, for instance `"membership_attack_success"`.
        value: Its value.
        unit: `"nats"`, `"probability"`, ..., or an empty string.
        meaning: One sentence for a person who knows no privacy theory.
        method: How it was measured.
        interval: Lower and upper confidence limits, if there are any.
        confidence: Their confidence level, between 0 and 1.
    """

    name: str
    value: float
    unit: str
    meaning: str
    method: str = ""
    interval: tuple[float, float] | None = None
    confidence: float | None = None


UNCOVERED = "Not covered: "
"""Begins a condition that was found not to hold, as where the records were scaled by themselves."""


@validated
@dataclass(frozen=True)
class PrivacyCard:
    """The promises made about a released model, answer or statistic.

    Args:
        title: What the card is about.
        secret: One sentence: what stays secret, and from whom.
        guarantees: Proven bounds.
        conditions: What the bounds rest on, and what they do not say; one sentence each.
        estimates: Measurements, set apart from the guarantees.
        details: Public parameters (JSON-like), for people who want to recompute the bounds.
        roc: The best possible attacker, who must say which of two worlds is the true one.

    Raises:
        TypeError: If a guarantee is given as an estimate or the other way round, or the details are not JSON.

    Example:
        >>> card = PrivacyCard(
        ...     title="Answers of the digit ensemble",
        ...     secret="Which half of the records trained the model that answers.",
        ...     guarantees=(Guarantee("membership_success_bound", 0.5108, "probability", "An attacker who sees every "
        ...         "answer guesses whether a record was used at most 51.08 % of the time; a coin gets 50 %."),),
        ...     conditions=("The index of the model was drawn once.",),
        ... )
        >>> print(card.to_markdown().splitlines()[0])
        # Answers of the digit ensemble
    """

    title: str
    secret: str
    guarantees: tuple[Guarantee, ...]
    conditions: tuple[str, ...]
    estimates: tuple[Estimate, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    roc: Roc | None = None

    def __post_init__(self) -> None:
        for name, kind in (("guarantees", Guarantee), ("estimates", Estimate), ("conditions", str)):
            for entry in getattr(self, name):
                if not isinstance(entry, kind):
                    raise TypeError(f"{name} must hold {kind.__name__} objects, got {type(entry).__name__}: {entry!r}.")
        try:
            json.dumps(dict(self.details))
        except TypeError as error:
            raise TypeError(f"details must be JSON (strings, numbers, lists, mappings): {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """The card as plain lists and mappings, fit for JSON and for a checkpoint."""
        curve = {} if self.roc is None else {"roc": {name: list(rates) for name, rates in asdict(self.roc).items()}}
        return {
            "title": self.title,
            "secret": self.secret,
            "guarantees": [asdict(guarantee) for guarantee in self.guarantees],
            "conditions": list(self.conditions),
            "estimates": [_estimate_to_dict(estimate) for estimate in self.estimates],
            "details": json.loads(json.dumps(dict(self.details))),
            **curve,
        }

    @classmethod
    def from_json(cls, text: str) -> "PrivacyCard":
        """The card that `to_json` wrote.

        Args:
            text: What `to_json` or `save` wrote.

        Raises:
            ValueError: If the text is not a privacy card.
        """
        try:
            content = json.loads(text)
            estimates = [
                {**entry, "interval": None if entry["interval"] is None else tuple(map(float, entry["interval"]))}
                for entry in content["estimates"]
            ]
            return cls(
                title=content["title"],
                secret=content["secret"],
                guarantees=tuple(Guarantee(**_float_value(entry)) for entry in content["guarantees"]),
                conditions=tuple(content["conditions"]),
                estimates=tuple(Estimate(**_float_value(entry)) for entry in estimates),
                details=content["details"],
                roc=Roc(**{name: tuple(map(float, rates)) for name, rates in content["roc"].items()})
                if "roc" in content
                else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"This is not a privacy card ({error!r}): give the JSON that PrivacyCard.save wrote."
            ) from error

    def to_json(self) -> str:
        """The card as JSON text. An infinite bound is the string `"inf"`, since JSON has no such number."""
        return json.dumps(_without_infinities(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False)

    def to_markdown(self, picture: str | None = None) -> str:
        """The card as a Markdown page for a reader who knows no privacy theory.

        Args:
            picture: File of the picture of `roc`, relative to the page.
        """
        sections = [
            f"# {self.title}",
            f"**Secret.** {self.secret}",
            "## Guarantees",
            _bullets(f"**{_figure(entry)}** {entry.meaning}" for entry in self.guarantees)
            or "Nothing: no bound holds for this release.",
            *([] if self.roc is None else ["## The best possible attacker", _attacker(self.roc, picture)]),
            "## Conditions",
            _bullets(self.conditions) or "No conditions were stated.",
        ]
        if self.estimates:
            sections += [
                "## Measurements",
                "They can show that a promise is broken, but cannot prove that it is kept.",
                _bullets(_measurement(entry) for entry in self.estimates),
            ]
        if self.details:
            sections += ["## Details for specialists", _table(self.details)]
        return "\n\n".join(sections) + "\n"

    def save(self, directory: str | Path, stem: str = "privacy_card") -> tuple[Path, Path]:
        """Writes `<stem>.json` and `<stem>.md`, and `<stem>.svg` where there is a curve, each replaced as a whole.

        Args:
            directory: Where to; it is made if there is none.
            stem: Name of the files without suffix.

        Returns:
            The paths of JSON and page.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        picture = None if self.roc is None else f"{stem}.svg"
        texts = [(".json", self.to_json()), (".md", self.to_markdown(picture))]
        if self.roc is not None:
            texts.append((".svg", draw_rocs({"": self.roc})))
        for suffix, text in texts:
            path = folder / (stem + suffix)
            partial = folder / (stem + suffix + ".partial")
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
            written.append(path)
        return written[0], written[1]


def _attacker(roc: Roc, picture: str | None) -> str:
    text = (
        f"An attacker with 0.1 % false alarms recognizes one of the worlds at most {at_most(roc.at(1e-3))} of the "
        f"time, and with 1 % false alarms at most {at_most(roc.at(1e-2))}; a coin finds 0.1 % and 1 %."
    )
    return text if picture is None else f"{text}\n\n![True positives over false alarms, at most]({picture})"


def _estimate_to_dict(estimate: Estimate) -> dict[str, Any]:
    content = asdict(estimate)
    content["interval"] = None if estimate.interval is None else list(estimate.interval)
    return content


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_infinities(entry) for entry in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value


def _float_value(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "value": float(entry["value"])}


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


@validated
def at_most(probability: Probability) -> str:
    """A bound in percent, rounded up to a hundredth: what is promised must not be less than what was proven.

    Example:
        >>> at_most(0.5), at_most(0.500011), at_most(0.67490)
        ('50 %', '50.01 %', '67.49 %')
    """
    # A bound that is a hundredth up to its last bits stays one.
    return f"{math.ceil(1e4 * probability * (1 - 1e-14)) / 100:g} %"


@validated
def upwards(bound: float, digits: Count = 6) -> str:
    """A bound with so many digits, rounded up as by `at_most`.

    Args:
        bound: of any size, in any unit.
        digits: that are shown.

    Example:
        >>> upwards(3.0000001), upwards(1.23412, digits=4), upwards(8.0)
        ('3.00001', '1.235', '8')
    """
    if not math.isfinite(bound):
        return f"{bound:g}"
    # A bound with these digits up to its last bits stays one.
    lowered = Decimal(bound) - abs(Decimal(bound)) * Decimal("1e-14")
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(lowered)
    return f"{float(rounded):.{digits}g}"


@validated
def downwards(bound: float, digits: Count = 6) -> str:
    """A bound from below, or what is left of a budget, with so many digits, rounded down as `upwards` rounds up.

    Args:
        bound: of any size, in any unit.
        digits: that are shown.

    Example:
        >>> downwards(2.9999999), downwards(1.23472, digits=4), downwards(8.0)
        ('2.99999', '1.234', '8')
    """
    text = upwards(-bound, digits)
    return text[1:] if text[0] == "-" else f"-{text}" if bound else "0"


def records_of_person(name: str, at_most: int | None = None) -> str:
    """A person's records, in words.

    Args:
        name: The mark that tells persons apart (`Persons.name`): a position, a key in quotes or a function.
        at_most: Records of a person that are used, where that is known.
    """
    is_position = name.lstrip("-").isdigit()
    where = f"at position {name}, counted from 0" if is_position else f"by {name}"
    used = "" if at_most is None else f", of which at most {at_most} are used"
    return f"all records that name them ({where}){used}"


def _figure(entry: Guarantee | Estimate) -> str:
    name = entry.name.replace("_", " ")
    if entry.unit == "probability" and isinstance(entry, Guarantee):
        return f"{name[:1].upper()}{name[1:]}: {at_most(entry.value)}."
    if entry.unit == "probability":
        return f"{name[:1].upper()}{name[1:]}: {100 * entry.value:.4g} %."
    value = upwards(entry.value) if isinstance(entry, Guarantee) else f"{entry.value:.6g}"
    return f"{name[:1].upper()}{name[1:]}: {value}{' ' + entry.unit if entry.unit else ''}."


def _measurement(entry: Estimate) -> str:
    parts = [f"**{_figure(entry)}** {entry.meaning}"]
    if entry.interval is not None:
        level = "" if entry.confidence is None else f" with {downwards(100 * entry.confidence)} % confidence"
        parts.append(f"Between {downwards(entry.interval[0])} and {upwards(entry.interval[1])}{level}.")
    if entry.method:
        parts.append(f"Measured by {entry.method}.")
    return " ".join(parts)


def _table(details: Mapping[str, Any]) -> str:
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in details.items()]
    return "\n".join(["| parameter | value |", "| --- | --- |", *rows])


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")
