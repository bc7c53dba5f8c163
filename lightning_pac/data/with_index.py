"""A dataset whose records carry their own index."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from lightning_pac._validation import validated


class IndexedSample(NamedTuple):
    """A record and its index, or a collated batch of both.

    Attributes:
        index: Position of the record in the dataset that `WithIndex` wraps; shape (batch,) once collated.
        sample: What the wrapped dataset returns.
    """

    index: Any
    sample: Any


@validated
class WithIndex(Dataset[IndexedSample]):
    """Give every record of a map-style dataset its index, so that a model can tell whose records a batch holds.

    `SubsetEnsemble` reads the indices to train each member on its own subset of a shared batch. Wrap the dataset that
    the pool counts, before any sampler, `Subset` or loader: the indices are positions in that dataset.

    Args:
        dataset: A dataset with `__getitem__` and `__len__`.

    Raises:
        TypeError: If the dataset has no length (an iterable dataset has no indices to carry).

    Example:
        >>> from torch.utils.data import DataLoader
        >>> batch = next(iter(DataLoader(WithIndex([10.0, 11.0, 12.0]), batch_size=2)))
        >>> batch.index, batch.sample
        (tensor([0, 1]), tensor([10., 11.], dtype=torch.float64))
    """

    def __init__(self, dataset: Any) -> None:
        check_records(dataset, "dataset")
        self.dataset = dataset

    def __getitem__(self, index: int) -> IndexedSample:
        return IndexedSample(index, self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)


def check_records(dataset: Any, name: str) -> None:
    """Refuse what is no map-style dataset.

    Raises:
        TypeError: If it has no `__getitem__` or no `__len__`, or is text or a mapping.
    """
    is_records = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not is_records or isinstance(dataset, str | bytes | Mapping | IterableDataset):
        raise TypeError(
            f"{name} is of type {type(dataset).__name__}, but must be a dataset with __getitem__ and __len__: an "
            "iterable dataset has no number of records to draw from, and gives them no fixed index."
        )


def batch_inputs(batch: Any) -> Any:
    """The inputs of a batch, whether it carries targets, indices, both or neither.

    Example:
        >>> batch_inputs(IndexedSample([0, 1], ("inputs", "targets")))
        'inputs'
    """
    sample = batch.sample if isinstance(batch, IndexedSample) else batch
    return sample[0] if isinstance(sample, list | tuple) else sample
