"""Does the loss give every record a gradient of its own? Asked of synthetic records, on a copy of the model."""

import copy
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.integer_arguments import IntegerArguments
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import EXAMPLES, GROUP, SyntheticRecords
from lightning_pac.gradients import make_engine

__all__ = ["LossCheck", "check_loss"]

TOLERANCE = 1e-4  # of the gradient's norm; float32 leaves about 1e-6

# A step that mixes records with some probability does so under one of them, be it by torch, NumPy or Python.
SEEDS = (1, 2, 3)

# Of the records: the one class with another weight may be missing in a draw, of three classes in one draw of ten.
DRAWS = 6

REMEMBERS = (
    "depends on the records of earlier batches, which the model keeps without noise (a hidden state that is carried "
    "on, a memory bank)"
)
MEANS_OF_ALL = "a mean over all tokens or targets that count does so, or padding that is not masked; average in records"


@dataclass(frozen=True)
class LossCheck:
    """The outcome of running `training_step` on synthetic records.

    Attributes:
        problem: How the loss couples records, or None.
        unchecked: Why nothing could be shown, or None.
        logged: Names that `training_step` logs.
        state: Names of buffers, parameters and other saved state that take up what the records hold, as running
            statistics do.
        keeps_order: Whether row i of what the layers see is record i of the batch.
    """

    problem: str | None
    unchecked: str | None
    logged: tuple[str, ...]
    state: tuple[str, ...]
    keeps_order: bool


def check_loss(
    pl_module: pl.LightningModule, dataloader: DataLoader[Any], datamodule: pl.LightningDataModule | None = None
) -> LossCheck:
    """Compare gradients of synthetic batches that a loss of single records relates to each other.

    Records only lend their structure (shapes and types, and negative integers that mark what is ignored); their values
    are drawn at random. Replacing one half of a batch must change the gradient by the same amount whatever the
    other half is, and the gradient of a batch must be the mean of those of its halves. A class-weighted mean, a
    contrastive loss, in-batch negatives, MixUp in the collate function and a sum in place of a mean all fail. The same
    is asked of records of different lengths and of ignored targets, where the model takes them: a mean over all tokens
    of a batch weighs a record by the lengths of the others. At last, what the layers see must be one row a record.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        dataloader: Lends the dataset and the collate function.
        datamodule: Its transfer hooks are run as the Trainer would.
    """
    logged: list[str] = []
    problem, unchecked, keeps_order = None, None, True
    state: tuple[str, ...] = ()
    try:
        model = _detached_copy(pl_module, logged)
        probe = _Probe(model, dataloader.collate_fn, [source for source in (datamodule, model) if source is not None])
        synthetic = SyntheticRecords(_examples(dataloader.dataset), probe.accepts)
        records = synthetic.draw(0)
        state = _taking_up_records(probe, records)
        problem, unchecked = (REMEMBERS, None) if _remembers(probe, records) else _compare(probe, records)
        for draw in range(1, DRAWS):
            if problem is None and unchecked is None:
                problem, unchecked = _coupled(probe, synthetic.draw(draw), SEEDS[0])
        if problem is None and unchecked is None:
            problem, unchecked, keeps_order = _compare_varied(probe, records, synthetic)
    except Exception as error:  # any model, dataset or collate function may run here
        problem, unchecked = None, _place_of(error)
    return LossCheck(problem, unchecked, tuple(dict.fromkeys(logged)), state, keeps_order)


class _Probe:
    """Runs `training_step` on records, under seeds of its own.

    Attributes:
        drew: Whether it has drawn random numbers.
        is_random: Whether it does so in evaluation mode, too.
        integers: What is done with integers.
    """

    def __init__(self, model: pl.LightningModule, collate_fn: Callable[[list[Any]], Any], hooks: list[Any]) -> None:
        self.model = model
        self.drew = False
        self.is_random = False
        self.integers = IntegerArguments()
        self._collate_fn, self._hooks = collate_fn, hooks
        self._explicit = is_param_in_hook_signature(model.training_step, "batch_idx", min_args=2)

    def gradient(self, records: list[Any], seed: int = SEEDS[0]) -> Tensor:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(self.loss(records, seed), parameters, allow_unused=True)
        parts = [torch.zeros(1) if part is None else part.to_dense().reshape(-1) for part in gradients]
        return torch.cat([part.double() for part in parts])

    def accepts(self, records: list[Any]) -> bool:
        """Whether their gradient is finite, in a model that forgets them; raises if there is none."""
        model = self.model
        self.model = copy.deepcopy(model)
        try:
            return bool(self.gradient(records).isfinite().all())
        finally:
            self.model = model

    def loss(self, records: list[Any], seed: int = SEEDS[0]) -> Tensor:
        with _seeded(seed), torch.enable_grad(), self.integers:
            before = _generator_states()
            batch = _collate(records, self._collate_fn, self._hooks)
            self._start_batch(batch)
            step = self.model.training_step
            output = step(batch, 0) if self._explicit else step(batch)
            self.drew |= before != _generator_states()
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise TypeError("training_step returned no loss.")
        return loss

    def _start_batch(self, batch: Any) -> None:
        """The model's own hook may change the batch in place; it may also need a Trainer, and then shows nothing."""
        if is_overridden("on_train_batch_start", self.model):
            with suppress(Exception):
                self.model.on_train_batch_start(batch, 0)

    @contextmanager
    def without_randomness(self) -> Iterator[None]:
        """Whole batches and parts of them must not differ by their dropout masks."""
        modes = [(module, module.training) for module in self.model.modules()]
        if self.drew:
            self.model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def _compare(probe: _Probe, records: list[Any]) -> tuple[str | None, str | None]:
    """The problem found, and the reason why none could be found."""
    whole = probe.gradient(records[: 2 * GROUP])
    if not np.isfinite(float(whole.norm())):
        return None, "its gradient on synthetic records is not finite"
    if not _is_small(probe.gradient(records[: 2 * GROUP]) - whole, float(whole.norm())):
        return None, "its gradient changes when it is evaluated again"
    for seed in SEEDS if probe.drew else SEEDS[:1]:
        found = _coupled(probe, records, seed)
        if found != (None, None):
            return found
    with probe.without_randomness():
        whole = probe.gradient(records[: 2 * GROUP])
        halves = [probe.gradient(records[start : start + GROUP]) for start in (0, GROUP)]
        probe.is_random = not _is_small(probe.gradient(records[: 2 * GROUP], SEEDS[1]) - whole, float(whole.norm()))
    if not probe.is_random and not _is_small((halves[0] + halves[1]) / 2 - whole, float(whole.norm())):
        return "is not the mean over the records of a batch (a sum, or a divisor that depends on the batch)", None
    return None, None


def _coupled(probe: _Probe, records: list[Any], seed: int) -> tuple[str | None, str | None]:
    first, second, other_first, other_second = (records[start : start + GROUP] for start in range(0, 4 * GROUP, GROUP))
    pairs = [first + second, other_first + second, first + other_second, other_first + other_second]
    whole, *corners = (probe.gradient(pair, seed) for pair in pairs)
    size = max(float(corner.norm()) for corner in [whole, *corners])
    if not np.isfinite(size):
        return None, "its gradient on synthetic records is not finite"
    if size == 0:
        return None, "its gradient on synthetic records is zero"
    if not _is_small(whole - corners[0] - corners[1] + corners[2], size):
        return "couples the records of a batch (a class-weighted mean, a contrastive loss or MixUp does so)", None
    return None, None


def _compare_varied(
    probe: _Probe, records: list[Any], synthetic: SyntheticRecords
) -> tuple[str | None, str | None, bool]:
    """Couplings that equal records do not show: other lengths, ignored targets, and rows that are no records.

    Returns:
        The problem found, what only the data could show, and whether rows keep the order of the records.
    """
    problem, keeps_order = _compare_rows(probe, records)
    if problem is not None or probe.is_random:
        return problem, None, keeps_order
    doubt = None
    for variation in synthetic.varied(records, probe.integers.may_be_ignored):
        try:
            with probe.without_randomness():
                problem, unchecked = _coupled(probe, variation.records, SEEDS[0])
            rows = _compare_rows(probe, variation.records) if problem is None and unchecked is None else (None, True)
        except Exception:  # these records are no input for the model
            continue
        keeps_order &= rows[1]
        if problem is not None and not variation.occurs:
            doubt = f"it couples records {variation.circumstance}, as the few that were looked at do not"
        elif problem is not None:
            return f"couples records {variation.circumstance} ({MEANS_OF_ALL})", None, keeps_order
        elif rows[0] is not None:
            return f"{rows[0]}, with records {variation.circumstance}", None, keeps_order
    return None, doubt, keeps_order


def _compare_rows(probe: _Probe, records: list[Any]) -> tuple[str | None, bool]:
    """Whether an engine clips records: a group's norms must be the same in company and alone.

    Returns:
        The problem found, and whether row i is record i.
    """
    engine = make_engine()
    with probe.without_randomness():
        parts = records[: 2 * GROUP], records[:GROUP], records[GROUP : 2 * GROUP]
        for part in parts:
            probe.gradient(part)  # an error without an engine is none of the engine's
        try:
            engine.attach(probe.model)
        except ValueError:  # says so again when the run attaches its own
            return None, True
        try:
            norms = []
            for part in parts:
                probe.loss(part).backward()  # type: ignore[no-untyped-call]
                norms.append(engine.clipped_sum(1.0)[1][:, 0])
        except Exception as error:
            return f"cannot be taken apart into records: {str(error).rstrip('.')}", True
        finally:
            engine.detach()
    whole, alone = norms[0], torch.cat(norms[1:])
    if len(whole) != 2 * GROUP:
        return f"reaches the layers in {len(whole)} rows for {2 * GROUP} records", True
    if probe.is_random:
        return None, True
    size = float(whole.max())
    if not _is_small(whole.sort().values - alone.sort().values, 10 * size):
        return "reaches the layers in rows that are no records", True
    return None, _is_small(whole - alone, 10 * size)


def _taking_up_records(probe: _Probe, records: list[Any]) -> tuple[str, ...]:
    """Names of the state that ends up different after different records."""
    model, outcomes = probe.model, []
    for part in (records[: 2 * GROUP], records[2 * GROUP :]):
        probe.model = copy.deepcopy(model)
        probe.gradient(part)
        outcomes.append(_saved_state(probe.model))
    probe.model = model
    first, second = outcomes
    return tuple(name for name in first if name in second and not _is_equal(first[name], second[name]))


def _remembers(probe: _Probe, records: list[Any]) -> bool:
    """Whether the gradient of a batch depends on the records of the batch before, through what the model keeps."""
    model, gradients = probe.model, []
    try:
        for start in (0, 0, 2 * GROUP):
            probe.model = copy.deepcopy(model)
            probe.gradient(records[start : start + 2 * GROUP])
            gradients.append(probe.gradient(records[GROUP : 3 * GROUP]))
    except Exception:  # a second batch, or a copy that has seen one, may not work here
        return False
    finally:
        probe.model = model
    same, again, other = gradients
    size = float(same.norm())
    return _is_small(again - same, size) and not _is_small(other - same, size)


def _saved_state(model: torch.nn.Module) -> dict[str, Any]:
    return {**model.state_dict(), **dict(model.named_buffers())}


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
    return bool(first == second)


def _is_small(difference: Tensor, size: float) -> bool:
    return float(difference.norm()) <= TOLERANCE * size


def _detached_copy(pl_module: pl.LightningModule, logged: list[str]) -> pl.LightningModule:
    model = copy.deepcopy(pl_module).cpu().float()

    def log(name: str, *args: Any, **kwargs: Any) -> None:
        logged.append(name)

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        logged.extend(dictionary)

    model.log = log  # type: ignore[method-assign]
    model.log_dict = log_dict  # type: ignore[assignment, method-assign]
    return model


def _collate(records: list[Any], collate_fn: Callable[[list[Any]], Any], hooks: list[Any]) -> Any:
    batch = apply_to_collection(collate_fn(records), Tensor, lambda t: t.float() if t.is_floating_point() else t)
    for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
        source = next((hook for hook in hooks if is_overridden(name, hook)), None)
        if source is not None:
            batch = getattr(source, name)(batch, 0)
    return batch


def _generator_states() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state[1].tobytes(), numpy_state[2:]


def _examples(dataset: Any) -> list[Any]:
    """Records from all over a dataset, since its first may be of one class."""
    size = len(dataset)
    return [dataset[index] for index in sorted({size * number // EXAMPLES for number in range(EXAMPLES)}) if size]


def _place_of(error: Exception) -> str:
    """Its kind and where it was raised; the message of an error that others raise may hold parts of a record."""
    frames = traceback.extract_tb(error.__traceback__)
    own = frames[-1].filename.startswith(str(Path(__file__).parent))
    if own and isinstance(error, TypeError | ValueError):
        return str(error)
    last = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), frames[-1])
    return f"{type(error).__name__} in {last.name}, {Path(last.filename).name} line {last.lineno}"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run with fixed global generators, and leave them as they were, also after an error."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
