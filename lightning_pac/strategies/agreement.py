"""Agreement of the processes of a run, checked before anything is spent."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from lightning_pac.data import RankShare
from lightning_pac.data.records import RECORDS_COMPARED, apart, digest_loaded_records, digest_positions
from lightning_pac.scenarios import Sampling
from lightning_pac.strategies.ranks import Ranks

__all__ = ["compare_loaders", "model_declaration", "share_records", "trainer_declaration"]

SETTINGS = (
    "accumulate_grad_batches",
    "precision",
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "num_sanity_val_steps",
    "val_check_interval",
    "check_val_every_n_epoch",
    "reload_dataloaders_every_n_epochs",
    "gradient_clip_val",
    "ckpt_path",
)


def trainer_declaration(trainer: pl.Trainer) -> dict[str, Any]:
    """Settings of the Trainer by which steps and passes are made, and the callbacks that wait for other ranks."""
    assert trainer.lightning_module is not None
    waiting = [
        type(callback).__qualname__
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, Checkpoint | EarlyStopping) or type(callback).__module__.startswith("lightning_pac.")
    ]
    return {
        "the module": type(trainer.lightning_module).__qualname__,
        "the list of private, checkpointing and early-stopping callbacks": waiting,
        **{f"Trainer({name}=)": _plain(getattr(trainer, name, None)) for name in SETTINGS},
    }


def model_declaration(pl_module: pl.LightningModule, trainable: bool = False) -> dict[str, Any]:
    """Shapes and types of all parameters and buffers, by name and in order.

    Args:
        pl_module: The model.
        trainable: Whether it counts, too, which parameters are trained.
    """
    tensors = dict([*pl_module.named_parameters(), *pl_module.named_buffers()])
    shapes = {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}
    if trainable:
        shapes |= {name: f"{shapes[name]}, frozen" for name, tensor in tensors.items() if not tensor.requires_grad}
    return {
        **{f"the parameter or buffer {name}": shape for name, shape in shapes.items()},
        "the order of parameters and buffers": list(tensors),
    }


def compare_loaders(trainer: pl.Trainer) -> Callable[[], None]:
    """Hold the numbers of loaders on all ranks together whenever the Trainer asks for them; return how to undo that.

    Ranks exchange what each of their loaders draws, so one that has another number of them would wait for the others.
    """
    fit_loop = trainer.fit_loop
    loops: dict[str, Any] = {
        "train loaders": fit_loop,
        "validation loaders": fit_loop.epoch_loop.val_loop,
        "loaders of a validation alone": trainer.validate_loop,
        "test loaders": trainer.test_loop,
        "predict loaders": trainer.predict_loop,
    }
    for name, loop in loops.items():
        source = loop._data_source  # a private name: no hook comes between the request and the first loader
        source.dataloader = _compared(source.dataloader, name, Ranks.of(trainer))

    def undo() -> None:
        for loop in loops.values():
            loop._data_source.__dict__.pop("dataloader", None)

    return undo


def _compared(request: Callable[[], Any], name: str, ranks: Ranks) -> Callable[[], Any]:
    def dataloader() -> Any:
        found: list[Any] = []

        def declare() -> dict[str, Any]:
            found.append(request())
            loaders = found[0].iterables if isinstance(found[0], CombinedLoader) else found[0]
            return {f"the number of {name}": len(pytree.tree_leaves(loaders))}

        ranks.agree(declare)
        return found[0]

    return dataloader


def share_records(
    ranks: Ranks, dataloader: object, name: str, plan: Callable[[DataLoader[Any]], Sampling]
) -> tuple[RankShare, Sampling]:
    """This rank's share of a loader, under a key that rank zero draws for it, once all ranks have the same records.

    Ranks divide indices. If an index gave other records on another rank, a record could enter one step twice.

    Args:
        ranks: The processes.
        dataloader: The loader of this rank.
        name: What it is called in errors.
        plan: How a loader is drawn from; its errors are raised by all ranks.

    Raises:
        MisconfigurationException: On every rank, if the draws, or the records behind the indices, differ.
    """
    key = ranks.from_first(lambda: os.urandom(32))
    compared_under = hashlib.sha256(b"records" + key).digest()

    def read() -> tuple[DataLoader[Any], Sampling]:
        if not isinstance(dataloader, DataLoader):
            raise MisconfigurationException(
                f"The {name} is a {type(dataloader).__name__}, which several devices cannot divide: pass a torch "
                "DataLoader over a map-style dataset."
            )
        return dataloader, plan(dataloader)

    loader, sampling = ranks.together(read)
    share = RankShare(ranks.rank, ranks.size, key)
    if ranks.size == 1:
        return share, sampling
    dataset = loader.dataset
    # Neither the number of records, which may be the secret, nor a digest is shown in an error.
    ranks.agree(
        lambda: {
            f"the draw of the {name}": str(sampling),
            f"what the indices of the {name} mean": digest_positions(dataset, compared_under),
        }
    )

    def digest_of_records() -> bytes | None:
        with apart(dataset) as own:
            return digest_loaded_records(own, compared_under)

    comparable = ranks.exchange(digest_of_records, lambda found: _compare(found, name))
    if not comparable:
        rank_zero_warn(
            f"Records of the {name} are not the same when they are loaded twice, so the ranks could not compare what "
            "their indices mean: make sure that every rank has the same records in the same order."
        )
    return share, sampling


def _compare(digests: list[bytes | None], name: str) -> bool:
    """Whether all could be compared; raises if two differ."""
    if len(set(digests) - {None}) > 1:
        raise MisconfigurationException(
            f"The records of the {name} are others, or in another order, on some ranks (up to {RECORDS_COMPARED} were "
            "loaded on each), so a record could count twice: build the same dataset on every rank, with one seed "
            "for what is shuffled or split, and sort what is read from a folder."
        )
    return None not in digests


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
