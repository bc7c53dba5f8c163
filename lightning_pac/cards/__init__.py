"""Privacy cards: what is guaranteed, on what conditions, in words and in one picture."""

from lightning_pac.cards.card import Estimate, Guarantee, PrivacyCard, at_most, downwards, upwards
from lightning_pac.cards.roc import ROC_RATES, Roc, draw_rocs

__all__ = ["ROC_RATES", "Estimate", "Guarantee", "PrivacyCard", "Roc", "at_most", "downwards", "draw_rocs", "upwards"]
