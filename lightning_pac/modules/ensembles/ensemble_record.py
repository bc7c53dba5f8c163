"""The public facts by which a checkpoint of an ensemble is recognized."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "subset_ensemble"


@dataclass(frozen=True)
class EnsembleRecord:
    """The public facts about the members in a checkpoint.

    Attributes:
        table_hash: Hash of the pool's public table.
        num_subsets: Number of members of the whole ensemble.
        members: The members in this checkpoint.
        seed: Public seed of training.
    """

    table_hash: str
    num_subsets: int
    members: tuple[int, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain containers only, because checkpoints are read with `weights_only=True`."""
        return {
            "table_hash": self.table_hash,
            "num_subsets": self.num_subsets,
            "members": list(self.members),
            "seed": self.seed,
        }

    def check(self, checkpoint: Mapping[str, Any], origin: str = "the checkpoint") -> None:
        """Refuse a checkpoint whose facts are not these.

        Raises:
            ValueError: If it is no ensemble's, or its table, members or seed differ.
        """
        self.check_same_pool(checkpoint, origin)
        found = from_checkpoint(checkpoint, origin)
        if found.members != self.members:
            raise ValueError(
                f"{origin} holds members {show_members(found.members)}, not {show_members(self.members)}: "
                "give this module the same members, or join shards with gather."
            )

    def check_same_pool(self, checkpoint: Mapping[str, Any], origin: str = "the checkpoint") -> None:
        """Refuse a checkpoint of another table or seed; it may hold other members.

        Raises:
            ValueError: If it is no ensemble's, or its table or seed differs.
        """
        found = from_checkpoint(checkpoint, origin)
        if found.table_hash != self.table_hash:
            raise ValueError(
                f"{origin} was trained on the subsets of table {found.table_hash[:12]}, not of this pool's table "
                f"{self.table_hash[:12]}: make the pool with the numbers and the seed of training."
            )
        if found.seed != self.seed:
            raise ValueError(f"{origin} was trained with seed {found.seed}, not {self.seed}: give the same seed.")


def from_checkpoint(checkpoint: Mapping[str, Any], origin: str = "the checkpoint") -> EnsembleRecord:
    """Read the record that a checkpoint carries.

    Raises:
        ValueError: If it carries none.
    """
    if KEY not in checkpoint:
        raise ValueError(f"{origin} is not a checkpoint of a subset ensemble: it carries no table hash.")
    facts = checkpoint[KEY]
    return EnsembleRecord(
        str(facts["table_hash"]),
        int(facts["num_subsets"]),
        tuple(int(member) for member in facts["members"]),
        int(facts["seed"]),
    )


def check_complete(members: Iterable[int], num_subsets: int) -> None:
    """Refuse a collection in which a member of the pool is missing or comes twice.

    Raises:
        ValueError: If so; the sentence names the members.
    """
    found = list(members)
    missing = sorted(set(range(num_subsets)) - set(found))
    if missing:
        raise ValueError(f"checkpoints lack members {show_members(missing)} of {num_subsets}: train and add them.")
    twice = sorted({member for member in found if found.count(member) > 1})
    if twice:
        raise ValueError(f"checkpoints hold members {show_members(twice)} more than once: gather each shard once.")


def member_indices(members: str | Sequence[int] | None, num_subsets: int) -> tuple[int, ...]:
    """Normalize a choice of members: None for all, indices, or text as `"0-15"` and `"0-3,7"`.

    Raises:
        ValueError: If the text cannot be read, or a member is outside the pool or named twice.

    Example:
        >>> member_indices("0-2,5", 8)
        (0, 1, 2, 5)
    """
    if members is None:
        return tuple(range(num_subsets))
    chosen = _parse(members) if isinstance(members, str) else [int(member) for member in members]
    if not chosen:
        raise ValueError("members is empty: name at least one member, or None for all of them.")
    outside = [member for member in chosen if not 0 <= member < num_subsets]
    if outside:
        raise ValueError(f"members has {outside[0]}, which is outside the pool: they are 0 to {num_subsets - 1}.")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"members name one twice ({show_members(chosen)}): name each once.")
    return tuple(chosen)


def show_members(members: Sequence[int]) -> str:
    """Members for an error message, at most eight of them.

    Example:
        >>> show_members([1, 2, 3]), show_members(range(20))
        ('1, 2, 3', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    shown = ", ".join(str(member) for member in list(members)[:8])
    return shown if len(members) <= 8 else f"{shown} and {len(members) - 8} more"


def _parse(text: str) -> list[int]:
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"members={text!r} cannot be read: write ranges as '0-15' or '0-3,7'.")
        chosen += range(int(first), int(last) + 1) if dash else [int(first)]
    return chosen
