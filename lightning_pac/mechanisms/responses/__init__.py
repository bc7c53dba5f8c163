"""PAC-private responses: a belief over the secrets, answers noised by it, and the responder that books them."""

from lightning_pac.mechanisms.responses.adaptive_composition import AdaptiveComposition
from lightning_pac.mechanisms.responses.answer import BatchRelease, Release
from lightning_pac.mechanisms.responses.card import (
    attacker_conditions,
    open_answers,
    responder_card,
    success_bound,
)
from lightning_pac.mechanisms.responses.filters import FilteredLabels, bayes_filter, hypothesis_filter
from lightning_pac.mechanisms.responses.model_outputs import as_batch, query
from lightning_pac.mechanisms.responses.recorded_answers import RecordedAnswers
from lightning_pac.mechanisms.responses.responder import PACResponder
from lightning_pac.mechanisms.responses.vote_table import VoteTable
from lightning_pac.mechanisms.responses.votes import SMALLEST_MASS, vote_channel

__all__ = [
    "SMALLEST_MASS",
    "AdaptiveComposition",
    "BatchRelease",
    "FilteredLabels",
    "PACResponder",
    "RecordedAnswers",
    "Release",
    "VoteTable",
    "as_batch",
    "attacker_conditions",
    "bayes_filter",
    "hypothesis_filter",
    "open_answers",
    "query",
    "responder_card",
    "success_bound",
    "vote_channel",
]
