"""A finite secret and the output that the mechanism gives for each of its values."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_pac._validation import Count, validated
from lightning_pac.data.with_index import IndexedSample, batch_inputs
from lightning_pac.mechanisms import FiniteOutputs

__all__ = ["SecretTable"]


@validated
class SecretTable(nn.Module):
    """All that can happen: each possible secret, its probability, and its output without noise.

    Args:
        outputs: One row per secret, shape (m, d).
        weights: Prior of the secret, shape (m,); uniform if None.
        features: What a record or membership decoder decodes, shape (m, p): the record itself, or which records the
            subset holds. None if the decoder decodes the index.
        secret: One sentence: what is secret. It is shown on the privacy card.

    Raises:
        ValueError: If the outputs are not finite rows of one length, or the other arguments do not fit them.

    Example:
        >>> table = SecretTable(torch.tensor([[-1.0], [1.0]]), secret="Which of two halves trained the model.")
        >>> table.num_secrets, round(table.entropy, 4)
        (2, 0.6931)
    """

    def __init__(
        self,
        outputs: Tensor,
        weights: Tensor | None = None,
        features: Tensor | None = None,
        secret: str = "Which of the possible training sets was used.",
    ) -> None:
        super().__init__()
        rows = torch.as_tensor(outputs).detach()
        law = FiniteOutputs(
            rows.double().cpu().numpy(), None if weights is None else torch.as_tensor(weights).double().cpu().numpy()
        )
        if features is not None and (features.ndim != 2 or len(features) != len(rows)):
            raise ValueError(f"features must have shape ({len(rows)}, p), got {tuple(features.shape)}.")
        self.law = law
        self.secret = secret
        # Un-noised outputs do not belong in checkpoints.
        self.register_buffer("outputs", rows.float(), persistent=False)
        self.register_buffer("features", None if features is None else features.detach().float(), persistent=False)
        self.register_buffer("log_prior", torch.from_numpy(law.weights).float().log(), persistent=False)

    @classmethod
    def of_records(cls, mechanism: Callable[[Any], Tensor], loader: DataLoader[Any], secret: str) -> "SecretTable":
        """The table of each input record of a loader's dataset, all equally likely, in the dataset's order.

        The mechanism is run once over the dataset without gradients. Records that are drawn more than once, or
        augmented at random, are not covered by what such a table proves.

        Args:
            mechanism: Gives one row of numbers for each record of a batch, shape (batch, d).
            loader: Its dataset holds the records, its collate function makes the batches.
            secret: One sentence: what stays secret.

        Raises:
            ValueError: If the mechanism gives something else than one row for each record.
        """
        ordered = DataLoader(
            loader.dataset, batch_size=loader.batch_size or 256, shuffle=False, collate_fn=loader.collate_fn
        )
        outputs, features = [], []
        with torch.inference_mode():
            for batch in ordered:
                inputs = batch_inputs(batch)
                released = mechanism(inputs)
                if released.ndim != 2 or len(released) != len(inputs):
                    raise ValueError(
                        f"mechanism must give one row of numbers for each record, shape (batch, d), got "
                        f"{tuple(released.shape)} for {len(inputs)} records."
                    )
                outputs.append(released.cpu())
                features.append(inputs.flatten(1).cpu().float())
        return cls(torch.cat(outputs).clone(), features=torch.cat(features).clone(), secret=secret)

    @property
    def num_secrets(self) -> int:
        """Number m of possible secrets."""
        return len(self.get_buffer("outputs"))

    @property
    def dimension(self) -> int:
        """Coordinates d of an output."""
        return int(self.get_buffer("outputs").shape[1])

    @property
    def entropy(self) -> float:
        """Entropy of the secret in nats, that of the outputs where some are equal."""
        return self.law.entropy

    def draw(self, size: Count) -> Tensor:
        """Indices drawn from the prior, for training and estimates (not from secure randomness)."""
        return torch.multinomial(self.get_buffer("log_prior").exp(), size, replacement=True)

    def candidates(self, decodes: Literal["index", "features"]) -> Tensor:
        """The answers a decoder may give: indices (m,) or features (m, p).

        Raises:
            ValueError: If it decodes features and the table has none.
        """
        if decodes == "index":
            return torch.arange(self.num_secrets, device=self.get_buffer("outputs").device)
        features: Tensor | None = self.features  # type: ignore[assignment]
        if features is None:
            raise ValueError("decodes is 'features' (records or membership bits), of which SecretTable was given none.")
        return features

    def indices_of(self, batch: Any) -> Tensor | None:
        """The positions in the dataset that a batch of `WithIndex` carries, None for other batches."""
        return torch.as_tensor(batch.index) if isinstance(batch, IndexedSample) else None
