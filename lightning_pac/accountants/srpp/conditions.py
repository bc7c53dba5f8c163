"""The assumptions of an SRPP guarantee, in words for the privacy card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sequential, WithReplacement

if TYPE_CHECKING:
    from lightning_pac.accountants.srpp.accountant import SRPPAccountant

__all__ = ["conditions_of"]

_ALWAYS = (
    "A record's clipped gradient depends on that record and on earlier releases only: no batch normalization, mixing "
    "of records or in-batch negatives.",
    "The sampler, class weights, preprocessing and stopping rule do not look at the secret.",
    "The sampling, the batch size that the sum is divided by and the number of steps are public and the same in both "
    "worlds; realized batch sizes and un-noised losses are not released.",
    "Both worlds belong to one declared coupling, record by record; costs add only over releases under that coupling.",
)

_ADJACENCY = {
    "replace": "A differing record changes its content: the clipped sum moves by up to twice the clipping norm.",
    "add_remove": "A differing record is in one world only, and the number of records is part of the secret: rate, "
    "batch size and steps are stated, never computed from the data.",
    "zero_out": "A differing record keeps its place in both worlds and contributes a zero gradient where it is absent; "
    "the number of records is public.",
}

_SAMPLING = {
    EpochShuffle: "Every record comes at most once in a pass over the data; the bound holds for every order of them.",
    Sequential: "Every record comes at most once in a pass over the data, in an order that may be public.",
    FixedSize: "Every batch holds distinct records.",
    WithReplacement: "A batch may hold one record many times; the bound allows all of it to be one record.",
    Poisson: "Records enter a batch independently, and an empty batch still takes a noised step.",
}


def conditions_of(accountant: SRPPAccountant) -> tuple[str, ...]:
    """The assumptions of the account and the limits of its notion, one sentence each."""
    sentences = [*_ALWAYS, _ADJACENCY[accountant.scenario.adjacency]]
    sentences += [text for descriptor, text in _SAMPLING.items() if isinstance(accountant.sampling, descriptor)]
    sentences += _direction(accountant)
    if accountant.is_amplified:
        sentences.append(
            "The Poisson draws are secret: they come from the operating system's randomness, and no sampler state is "
            "kept."
        )
    if accountant.is_mean_square:
        sentences.append(
            "The cost is an average over the draw of the batches, which the adversary did not choose: single draws may "
            "cost more, and a public seed voids it."
        )
    if accountant.notion != "rpp":
        sentences.append(_sliced(accountant))
    return tuple(sentences)


def _direction(accountant: SRPPAccountant) -> list[str]:
    scenario = accountant.scenario
    if scenario.adjacency == "replace":
        return []
    if isinstance(scenario.num_differing, tuple):
        first, second = scenario.num_differing
        return [f"At most {first} records are in the first world only and at most {second} in the second only."]
    if scenario.nested:
        return [f"All of the at most {scenario.num_differing} differing records are in the same world."]
    return [f"At most {scenario.num_differing} records differ, each present in either world."]


def _sliced(accountant: SRPPAccountant) -> str:
    if accountant.slices is None:
        return (
            "The notion speaks of adversaries who see one projection; with one clipping block the same number also "
            "bounds an adversary who sees every coordinate."
        )
    return (
        "The figure speaks of adversaries who see one projection of one release; over adaptive steps such costs do not "
        "add, so it reproduces the paper and certifies nothing."
    )
