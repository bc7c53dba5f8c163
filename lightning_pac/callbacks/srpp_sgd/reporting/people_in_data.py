"""Warnings where more or fewer records are about one person than a promise takes it to be."""

from collections.abc import Sized
from typing import Any, cast

from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_pac.data import Persons, count_records
from lightning_pac.data.records import (
    are_overlapping_windows,
    copies_of_a_record,
    names_of_several,
    row_read_again,
    some_records,
)
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["warn_of_few_persons", "warn_of_shared_contents"]


def warn_of_shared_contents(dataset: Any, num_differing: int) -> None:
    """Warn where what is about one person probably stands in more records than may differ."""
    records = some_records(dataset)
    if 1 + copies_of_a_record(records, len(dataset)) > max(1, num_differing):
        rank_zero_warn(
            "Many records are equal, at least in their largest array. The promise is about one record, and what stands "
            "in several, as where classes were evened out, is protected less with every copy: list each once and weigh "
            "it in the loss, count the copies by num_differing, or give unit=Persons(of=..., at_most=...) if they are "
            "of one person. Keep this line private."
        )
    elif (found := row_read_again(dataset)) is not None and found[1] > num_differing:
        rank_zero_warn(
            f"The dataset gives one row of its {found[0]!r} under several indices, each of which is a record, and the "
            f"promise is about {num_differing} of them: give each row once and repeat by the number of epochs, give "
            "unit=Persons(of=..., at_most=...), whose `of` is the number of the row, or count the records of a row by "
            "num_differing."
        )
    if num_differing == 1 and (names := names_of_several(records, len(dataset))) is not None:
        rank_zero_warn(
            f"Records hold a text at {names[0]!r} that about {names[1]:g} others share, and the promise is about one "
            f"record: where it names whom a record is about, give unit=Persons(of={names[0]!r}, at_most=...), or count "
            "the records of one by num_differing. Keep this line private."
        )
    if num_differing == 1 and are_overlapping_windows(dataset):
        rank_zero_warn(
            "Neighbouring records share half of their values or more, as windows of one series do, and the promise is "
            "about one record: whoever a series is about has many. Give unit=Persons(of=..., at_most=...), whose `of` "
            "names the series, or count the windows of one series by num_differing."
        )


def warn_of_few_persons(unit: Persons, scenario: TwoWorldScenario, sampling: Sampling, loader: DataLoader[Any]) -> None:
    """Warn where persons are so few that `of` may name something else, such as the label; say nothing of how many.

    That the warning comes tells of a number that may be secret, as a refusal of too many does, and like that it tells
    only whoever runs this and holds the data. No step, card or ledger depends on it, and honest statements are far from
    where it begins, so that of two worlds that differ in a few persons either both have it or neither.
    """
    num_persons = count_records(loader)
    if scenario.adjacency == "add_remove":
        too_few = sampling.inclusion_rate() * num_persons < sampling.expected_batch_size() / 2
    else:
        too_few = num_persons < len(cast(Sized, loader.dataset)) / unit.at_most / 10
    if too_few:
        rank_zero_warn(
            f"unit: the data have far fewer persons than the batch size or the records let expect. If {unit.name} in a "
            "record says something else than whose it is, such as its label, all who share that count as one person, "
            "and nobody is protected as promised: look at what `of` points to. Keep this line private."
        )
