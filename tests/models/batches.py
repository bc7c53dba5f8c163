"""Batches and losses as users of the networks have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RECORDS = 4
"""Records of a batch; as many are left over to take their places."""
SIDE, LENGTH, WORDS = 32, 7, 40

Batch = Any


# Losses.


def own_loss(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss that a network of Hugging Face returns."""
    return network(**batch).loss


def mean_of_records(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross entropy of a causal language model, averaged in each record before it is over records."""
    logits = network(**{name: value for name, value in batch.items() if name != "labels"}).logits
    labels = batch["labels"]
    if logits.shape[1] > labels.shape[1]:  # virtual tokens come first
        logits = logits[:, -labels.shape[1] :]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    counted = (labels[:, 1:] != -100).sum(1).clamp(min=1)
    return (losses.sum(1) / counted).mean()


def mean_of_targets(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross entropy at the targets of each record, averaged there before it is over records."""
    logits, labels = network(**batch).logits, batch["labels"]
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()


def cross_entropy(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return F.cross_entropy(network(batch[0]), batch[1])


def squared_error(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return F.mse_loss(network(*batch[:-1]).squeeze(-1), batch[-1])


# Batches.


def words() -> Any:
    """A tokenizer of the words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<mask>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*special, *[f"w{n}" for n in range(WORDS - 3)]])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", mask_token="<mask>", unk_token="<unk>")


def _texts(tokenizer: Any, shortest: int = 3) -> list[Any]:
    """Records of different lengths, one of them the longest, tokenized."""
    lengths = [LENGTH, *(shortest + torch.randperm(LENGTH)[0].item() % (LENGTH - shortest) for _ in range(7))]
    return [
        tokenizer(" ".join(f"w{n}" for n in torch.randint(WORDS - 3, (length,)).tolist()), return_token_type_ids=False)
        for length in lengths
    ]


def sentences() -> Batch:
    """Padded by Hugging Face's collator, one label each."""
    from transformers import DataCollatorWithPadding

    tokenizer = words()
    texts = _texts(tokenizer)
    return dict(DataCollatorWithPadding(tokenizer)([{**text, "labels": n % 3} for n, text in enumerate(texts)]))


def full_sentences() -> Batch:
    """All of one length, one label each."""
    tokens = torch.randint(3, WORDS, (2 * RECORDS, LENGTH))
    return {"input_ids": tokens, "labels": torch.arange(2 * RECORDS) % 3}


def continuations() -> Batch:
    """Padded for a causal language model by Hugging Face's collator: padding is no target."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer = words()
    return dict(DataCollatorForLanguageModeling(tokenizer, mlm=False)(_texts(tokenizer)))


def masked() -> Batch:
    """Masked by Hugging Face's collator, as many targets as it happens to draw."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer = words()
    return dict(DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)(_texts(tokenizer)))


def translations() -> Batch:
    """Padded for an encoder and a decoder by Hugging Face's collator."""
    from transformers import DataCollatorForSeq2Seq

    tokenizer = words()
    pairs = zip(_texts(tokenizer), _texts(tokenizer), strict=True)
    return dict(DataCollatorForSeq2Seq(tokenizer)([{**x, "labels": y["input_ids"]} for x, y in pairs]))


def labelled_words() -> Batch:
    """A label for every word, padded by Hugging Face's collator."""
    from transformers import DataCollatorForTokenClassification

    tokenizer = words()
    texts = [{**text, "labels": [n % 3 for n in text["input_ids"]]} for text in _texts(tokenizer)]
    return dict(DataCollatorForTokenClassification(tokenizer)(texts))


def pixels() -> Batch:
    return {"pixel_values": torch.randn(2 * RECORDS, 3, SIDE, SIDE), "labels": torch.arange(2 * RECORDS) % 3}


def images(side: int = SIDE) -> Callable[[], Batch]:
    return lambda: (torch.randn(2 * RECORDS, 3, side, side), torch.arange(2 * RECORDS) % 3)


def masks(side: int = SIDE) -> Callable[[], Batch]:
    return lambda: (torch.randn(2 * RECORDS, 3, side, side), torch.randint(3, (2 * RECORDS, side, side)))


def waves() -> Batch:
    return {"input_values": torch.randn(2 * RECORDS, 400), "labels": torch.arange(2 * RECORDS) % 3}


def spectra(labels: Callable[[], Tensor]) -> Callable[[], Batch]:
    return lambda: {"input_features": torch.randn(2 * RECORDS, 8, 20), "labels": labels()}


def vectors() -> Batch:
    return torch.randn(2 * RECORDS, 6), torch.randn(2 * RECORDS)


def sequences() -> Batch:
    return torch.randn(2 * RECORDS, LENGTH, 5), torch.arange(2 * RECORDS) % 3


def segmentation(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Cross entropy over the pixels, as many in every record."""
    output = network(batch[0])
    return F.cross_entropy(output["out"] if isinstance(output, Mapping) else output, batch[1])


def columns() -> Batch:
    return torch.randn(2 * RECORDS, 5), torch.randint(3, (2 * RECORDS, 2)), torch.randn(2 * RECORDS)


def tabnet_loss(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """With the sparsity of its masks, a mean over the batch."""
    found, sparsity = network(batch[0])
    return F.mse_loss(found.squeeze(-1), batch[1]) - 1e-3 * sparsity


def forecasting_data(known: bool) -> Any:
    import pandas
    from pytorch_forecasting import TimeSeriesDataSet

    frames = [
        pandas.DataFrame({"time": range(12), "series": str(n), "value": torch.randn(12).tolist()}) for n in range(8)
    ]
    return TimeSeriesDataSet(
        pandas.concat(frames, ignore_index=True), time_idx="time", target="value", group_ids=["series"],
        max_encoder_length=8, max_prediction_length=4, min_encoder_length=8, time_varying_unknown_reals=["value"],
        target_normalizer=None, add_relative_time_idx=known,
    )  # fmt: skip


def histories(known: bool) -> Callable[[], Batch]:
    """A batch of pytorch_forecasting's own collator."""

    def draw() -> Batch:
        inputs, targets = next(iter(forecasting_data(known).to_dataloader(train=True, batch_size=2 * RECORDS)))
        return inputs, targets[0]

    return draw


def forecast_loss(network: nn.Module, batch: Any) -> Tensor:
    found = network(batch[0])["prediction"]
    return F.mse_loss(found, batch[1][..., None].expand_as(found))
