import json
import math
from dataclasses import FrozenInstanceError
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scipy import stats

from lightning_pac.cards import ROC_RATES, Estimate, Guarantee, PrivacyCard, Roc, at_most, draw_rocs, upwards

CARD = PrivacyCard(
    title="A model of digits",
    secret="How many sevens were in the training data.",
    guarantees=(
        Guarantee("world_success_bound", 0.6175, "probability", "An attacker is right at most 61.75 % of the time."),
        Guarantee("rpp_epsilon", 8.0, "", "The largest ratio."),
        Guarantee("mutual_information", 2**-10, "nats", "What it tells."),
    ),
    conditions=("Batches were drawn in secret.", "Rows | columns\nare fixed."),
    estimates=(
        Estimate(
            "attack_success", 0.52, "probability", "The best attack we know.", "loss threshold", (0.5, 0.54), 0.95
        ),
    ),
    details={"noise_multiplier": 6.56, "sampling": {"rate": 0.01}, "orders": (2, 16), "table | rule": "a|b\nc"},
)


def test_a_reader_finds_every_promise_every_condition_and_measurements_apart() -> None:
    text = CARD.to_markdown()
    guaranteed, rest = text.split("## Conditions")
    conditions, measured = rest.split("## Measurements")
    assert text.startswith("# A model of digits\n")
    assert CARD.secret in guaranteed
    for entry, figure in zip(CARD.guarantees, ("61.75 %", "8.", "0.000976563 nats"), strict=True):
        assert entry.meaning in guaranteed
        assert figure in guaranteed
    assert "Batches were drawn in secret." in conditions
    assert "The best attack we know. Between 0.5 and 0.54 with 95 % confidence. Measured by loss threshold." in measured
    assert "attack" not in conditions
    assert "cannot prove" in measured
    rows = [line for line in measured.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert rows[-1] == "| table \\| rule | a\\|b c |"


def test_a_card_without_a_bound_says_so() -> None:
    text = PrivacyCard("t", "s", (), ()).to_markdown()
    assert "Nothing: no bound holds for this release." in text
    assert "Measurements" not in text


def test_it_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    json_path, markdown_path = CARD.save(tmp_path / "new" / "folder", stem="card")
    again = PrivacyCard.from_json(json_path.read_text(encoding="utf-8"))
    assert again.to_dict() == CARD.to_dict() == json.loads(CARD.to_json())
    assert again.guarantees == CARD.guarantees
    assert again.estimates == CARD.estimates
    assert markdown_path.read_text(encoding="utf-8") == CARD.to_markdown()
    assert sorted(path.name for path in json_path.parent.iterdir()) == ["card.json", "card.md"]


def test_an_infinite_bound_is_valid_json_and_comes_back() -> None:
    card = PrivacyCard("t", "s", (Guarantee("epsilon", math.inf, "", "none"),), (), details={"budget": math.inf})
    assert "Infinity" not in card.to_json()
    again = PrivacyCard.from_json(card.to_json())
    assert again.guarantees[0].value == math.inf
    assert "Epsilon: inf." in again.to_markdown()


def test_a_guarantee_is_no_estimate() -> None:
    guarantee, estimate = CARD.guarantees[0], CARD.estimates[0]
    with pytest.raises(TypeError, match="is an object of type Estimate, but must be a Guarantee"):
        PrivacyCard("t", "s", (estimate,), ())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is an object of type Guarantee, but must be an Estimate"):
        PrivacyCard("t", "s", (), (), (guarantee,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="details must be JSON"):
        PrivacyCard("t", "s", (), (), details={"model": object()})
    with pytest.raises(FrozenInstanceError):
        guarantee.value = 0.5  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"title": "t", "secret": "s", "guarantees": [{"name": "x"}]}'])
def test_what_is_no_card_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="This is not a privacy card"):
        PrivacyCard.from_json(text)


@pytest.mark.parametrize("excess", [0.0, 1e-9, 1e-6, 1e-5, 0.0131, 0.3])
def test_a_promise_in_percent_is_never_below_the_bound(excess: float) -> None:
    """10 answers of 2^-32 nats have a bound of 50.0034 %, which four digits would show as a coin's 50 %."""
    bound = 0.5 + excess
    shown = float(at_most(bound).removesuffix(" %"))
    assert 100 * bound <= shown * (1 + 1e-12)
    assert shown <= 100 * bound + 0.0100001


def test_a_bound_in_words_is_never_below_itself() -> None:
    for exponent in range(-320, 308, 7):
        for digits, mantissa in enumerate((1.0, 1.5, 2.00001, math.pi, 9.99995, 9.9999999), start=1):
            bound = mantissa * 10.0**exponent
            shown = float(upwards(bound, digits))
            subnormal = bound < 1e-300  # has few bits
            assert bound * (1 - 2e-14) <= shown <= bound * (1 + 1.01 * 10.0 ** (1 - digits)) or subnormal
    assert [upwards(value, 2) for value in (0.0, math.inf, 0.30000000000000004, 8.0)] == ["0", "inf", "0.3", "8"]


def test_the_best_attacker_is_on_the_card_and_in_a_picture_beside_it(tmp_path: Path) -> None:
    """N(0, 1) against N(1, 1), whose curve is Phi(Phi^-1(FPR) + 1)."""
    exact = {rate: float(stats.norm.cdf(stats.norm.ppf(rate) + 1)) for rate in ROC_RATES}
    card = PrivacyCard("A model", "A fact.", (), (), roc=Roc.of(exact.__getitem__))
    assert PrivacyCard.from_json(card.to_json()) == card
    assert card.roc is not None
    assert card.roc.at(0.01) == exact[0.01]
    assert card.roc.at(0.0105) >= stats.norm.cdf(stats.norm.ppf(0.0105) + 1), "the next point, which is no less"
    _, page = card.save(tmp_path)
    text = page.read_text()
    assert "0.1 % false alarms recognizes one of the worlds at most 1.83 % of the time" in text
    assert "with 1 % false alarms at most 9.24 %" in text
    assert "![True positives over false alarms, at most](privacy_card.svg)" in text
    picture = ElementTree.parse(tmp_path / "privacy_card.svg").getroot()
    words = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert {"1.9 %", "9.3 %", "a coin", "false alarms"} <= set(words), "rounded up"


def test_a_card_without_a_curve_has_no_picture(tmp_path: Path) -> None:
    card = PrivacyCard("A model", "A fact.", (), ())
    card.save(tmp_path)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".json", ".md"]
    assert "roc" not in card.to_dict(), "what earlier versions wrote stays as it was"
    with pytest.raises(ValueError, match="not a privacy card"):
        PrivacyCard.from_json(
            card.to_json()[:-2] + ', "roc": {"false_positive_rates": [2], "true_positive_rates": []}}'
        )


def test_curves_beside_each_other_keep_the_colours_of_their_names() -> None:
    coin = Roc.of(lambda rate: rate)
    picture = draw_rocs({"none": None, "<one>": coin, "other": coin})
    ElementTree.fromstring(picture)
    words = [element.text for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]
    assert {"<one>", "other"} <= set(words)
    assert "none" not in words
    assert "#0072B2" not in picture, "the colour of the name without a curve"
