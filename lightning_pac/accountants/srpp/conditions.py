"""The assumptions of an SRPP guarantee, in words for the privacy card."""

from __future__ import annotations

from lightning_pac.scenarios import Sampling, TwoWorldScenario

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

_ONE_BLOCK = (
    "The notion speaks of adversaries who see one projection; with one clipping block the same number also bounds an "
    "adversary who sees every coordinate."
)

_SLICES = (
    "The figure speaks of adversaries who see one projection of one release; over adaptive steps such costs do not "
    "add, so it reproduces the paper and certifies nothing."
)


def conditions_of(
    scenario: TwoWorldScenario, sampling: Sampling, notion: str, is_amplified: bool, has_slices: bool
) -> tuple[str, ...]:
    """The assumptions of an account of these terms and the limits of its notion, one sentence each.

    Args:
        scenario: the two worlds.
        sampling: how batches are drawn.
        notion: what epsilon bounds, a `Notion`.
        is_amplified: whether the secrecy of the draws lowers the cost.
        has_slices: whether the cost is put together from slices of several blocks.
    """
    sentences = [*_ALWAYS, _ADJACENCY[scenario.adjacency]]
    if sampling.condition:
        sentences.append(sampling.condition)
    if not sampling.is_certified:
        sentences.append(
            f"How often differing records meet in a batch is declared by the user, in {type(sampling).__name__}; it is "
            "tried on a few records where the sampling is registered, and proven nowhere."
        )
    sentences += _direction(scenario)
    if is_amplified:
        sentences.append(
            "The Poisson draws are secret: they come from the operating system's randomness, and no sampler state is "
            "kept."
        )
    if notion.startswith("ms-"):
        sentences.append(
            "The cost is an average over the draw of the batches, which the adversary did not choose: single draws may "
            "cost more, and a public seed voids it."
        )
    if notion != "rpp":
        sentences.append(_SLICES if has_slices else _ONE_BLOCK)
    return tuple(sentences)


def _direction(scenario: TwoWorldScenario) -> list[str]:
    if scenario.adjacency == "replace":
        return ["The number of records is public: what a record says does not decide if it is left out or held out."]
    if isinstance(scenario.num_differing, tuple):
        first, second = scenario.num_differing
        return [f"At most {first} records are in the first world only and at most {second} in the second only."]
    if scenario.nested:
        number = scenario.num_differing
        return [f"The differing records, at most {number}, are all in the same world."] if number > 1 else []
    return [f"At most {scenario.num_differing} records differ, each present in either world."]
