"""Labels for a public dataset, bought once from a responder."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_warn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import default_collate

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Count, OpenProbability, validated
from lightning_pac.cards import PrivacyCard, upwards
from lightning_pac.data.with_index import batch_inputs, check_records
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.mechanisms import BatchRelease, FilteredLabels, PACResponder, bayes_filter, hypothesis_filter
from lightning_pac.mechanisms.responses import as_batch, query

FilterName = Literal["bayes", "test", "paper"]

_FILTERS: dict[str, Callable[[BatchRelease, float], FilteredLabels]] = {
    "bayes": bayes_filter,
    "test": hypothesis_filter,
    "paper": partial(hypothesis_filter, paper_level=True),
}
_MEANING = {
    "bayes": "Given everything released before, a kept label differs from what the secret model says with probability "
    "at most {alpha}, on average over the secret.",
    "test": "Whatever the secret, a label is kept and differs from what the secret model says with probability at most "
    "{alpha}; that is no bound on the wrong part of the kept labels.",
    "paper": "Labels were kept at the paper's level, which a label can pass wrongly more often than alpha = {alpha} "
    "where more than two classes are voted for.",
}


@shows_itself
@dataclass(frozen=True, eq=False)
class PrivateLabels:
    """The labels that a filter kept, and what they cost.

    Attributes:
        index: Positions in the public dataset of the kept records, ascending.
        labels: Their labels.
        num_answers: Records that were answered.
        num_unanimous: Those of them on which all members agreed, which are free.
        card: What is guaranteed for everything the responder has answered, and so for the student.
    """

    index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    num_answers: int
    num_unanimous: int
    card: PrivacyCard


@validated
def label_privately(
    responder: PACResponder, dataset: Any, alpha: OpenProbability, filter_name: FilterName, batch_size: Count = 256
) -> PrivateLabels:
    """Label every record of a public dataset once, and keep the labels that pass the filter.

    A record is asked under a name made from its content, which the ledger keeps with the answer in one transaction: a
    record that was answered before, in this run or another, is read from there and not paid for again. If the budget
    ends before the dataset, the labels that were bought are used, with a warning.

    Args:
        responder: Answers with votes.
        dataset: A map-style dataset of inputs, or of tuples that begin with the input; labels in it are not looked at.
        alpha: The filter's level.
        filter_name: `"bayes"`, `"test"` or `"paper"`.
        batch_size: Records asked in one transaction.

    Raises:
        BudgetExceededError: If the budget allows no label at all.
        TypeError: If the dataset's inputs hold no tensor.
        ValueError: If the dataset is empty, changes between two looks, the responder answers with scores, or no label
            passes.
    """
    check_records(dataset, "dataset")
    if len(dataset) == 0:
        raise ValueError("dataset is empty: give at least one record to label.")
    _check_fixed(dataset)
    _check_votes(responder, dataset)
    names = _ask(responder, dataset, batch_size)
    places = [responder.place_of(name) for name in names]
    answered = np.array([place is not None for place in places])
    # (answers, 2): number of the release, and row in it.
    wanted = np.array([place for place in places if place is not None])
    labels, keep, unanimous = (np.empty(len(wanted), kind) for kind in (np.int64, np.bool_, np.bool_))
    for entry, batch in enumerate(responder.recorded_releases()):
        rows = np.flatnonzero(wanted[:, 0] == entry)
        if len(rows):
            filtered = _FILTERS[filter_name](batch, alpha)
            at = wanted[rows, 1]
            labels[rows], keep[rows], unanimous[rows] = filtered.labels[at], filtered.keep[at], batch.unanimous[at]
    if not keep.any():
        raise ValueError(
            f"None of {len(wanted)} private labels passed the filter {filter_name!r} at alpha = {alpha:g}: ask with a "
            "larger budget_per_response, raise alpha, or train members that agree more."
        )
    card = _student_card(responder.card(), alpha, filter_name, len(wanted), int(keep.sum()))
    return PrivateLabels(
        np.flatnonzero(answered)[keep], labels[keep], len(wanted), int(np.count_nonzero(unanimous)), card
    )


def _ask(responder: PACResponder, dataset: Any, batch_size: int) -> list[str]:
    """Ask for every record without an answer, while the budget lasts; the name of each record's answer."""
    names: list[str] = []
    known: set[str] = set()
    ended: BudgetExceededError | None = None
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        inputs = default_collate([batch_inputs(dataset[index]) for index in range(start, stop)])
        batch_names = _names(inputs)
        names += batch_names
        new = {name: row for row, name in enumerate(batch_names) if name not in known}
        known.update(new)
        rows = {name: row for name, row in new.items() if responder.place_of(name) is None}
        try:
            if ended is None:
                _ask_rows(responder, inputs, rows)
        except BudgetExceededError as error:
            ended, place = error, f"between records {start} and {stop} of {len(dataset)}"
    if ended is not None:
        if all(responder.place_of(name) is None for name in known):  # other answers may have used the budget up
            raise ended
        rank_zero_warn(f"Labelling stopped {place}: {ended}")
    return names


def _ask_rows(responder: PACResponder, inputs: Any, rows: dict[str, int]) -> None:
    """Ask for some rows of a batch, and where the budget allows not all of them, for as many as it does."""
    if not rows:
        return
    try:
        responder.release(_rows(responder, inputs, list(rows.values())), requests=list(rows))
    except BudgetExceededError:
        if len(rows) == 1:
            raise
        named = list(rows.items())
        _ask_rows(responder, inputs, dict(named[: len(named) // 2]))
        _ask_rows(responder, inputs, dict(named[len(named) // 2 :]))


def _rows(responder: PACResponder, inputs: Any, rows: list[int]) -> Any:
    device = _device(responder.model)
    return apply_to_collection(inputs, Tensor, lambda tensor: tensor[rows].to(device))


def _names(inputs: Any) -> list[str]:
    """A name for each row of a batch, from its content."""
    tensors: list[Tensor] = []
    apply_to_collection(inputs, Tensor, tensors.append)
    if not tensors:
        raise TypeError(
            f"dataset gives {type(inputs).__name__} without a tensor or a number: turn texts into tensors of tokens."
        )
    digests = []
    for row in range(len(tensors[0])):
        digest = hashlib.sha256()
        for tensor in tensors:
            value = tensor[row].contiguous()
            digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        digests.append(f"distillation {digest.hexdigest()}")
    return digests


def _check_fixed(dataset: Any) -> None:
    first, second = (_names(default_collate([batch_inputs(dataset[0])])) for _ in range(2))
    if first != second:
        raise ValueError(
            "The public dataset gives another input for record 0 every time: label the records as they are, and give "
            "random augmentations to the data module as transform."
        )


def _check_votes(responder: PACResponder, dataset: Any) -> None:
    """Refuse scores, which no filter takes, before they are paid for."""
    inputs = _rows(responder, default_collate([batch_inputs(dataset[0])]), [0])
    if not np.issubdtype(as_batch(query(responder.model, inputs))[0].dtype, np.integer):
        raise ValueError(
            "responder answers with scores, and a student's labels are filtered by votes: give it a model that returns "
            "labels, as its argmax does."
        )


def _device(model: Any) -> torch.device:
    parameter = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def _student_card(
    card: PrivacyCard, alpha: float, filter_name: FilterName, num_answers: int, num_kept: int
) -> PrivacyCard:
    distillation = {"alpha": alpha, "filter": filter_name, "answers": num_answers, "kept": num_kept}
    return replace(
        card,
        title=f"Student of {num_kept} private labels",
        conditions=(
            *card.conditions,
            "The student has seen the private labels and public records and nothing else, so that the bounds hold for "
            "the student, however it is trained and asked.",
            _MEANING[filter_name].format(alpha=upwards(alpha)),
        ),
        details={**card.details, "distillation": distillation},
    )
