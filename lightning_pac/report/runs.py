"""Read what training runs left on disk: logged metrics and privacy cards."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_pac._validation import validated
from lightning_pac.cards import Estimate, PrivacyCard

__all__ = ["EPSILON", "Run", "Series", "find_runs", "left_out"]

EPSILON = re.compile(r"privacy/(rpp|(ms_)?srpp_\w+)_epsilon(_uncertified)?")
_LOGS = "metrics.csv", "events.out.tfevents*"
_BESIDE = "_deviation", "_standard_error"  # what is logged beside a noised metric
_OF_ONE_RUN = ("ledger", "scenario", "sampling", "noise_multiplier", "num_parameters", "notion", "unit_of_privacy")


@validated
@dataclass(frozen=True)
class Series:
    """One metric over the run.

    Attributes:
        steps: Optimizer steps at which it was logged.
        values: Its values there.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@validated
@dataclass(frozen=True)
class Run:
    """The files that one run left on disk.

    Attributes:
        name: Its folder, relative to where the search began.
        metrics: Logged metrics by name; the suffixes `_step` and `_epoch` of Lightning are kept.
        card: Its latest privacy card, None where there is none.
        folder: Where its files are, None where it was not read from files.
        hparams: Its hyperparameters, as the logger wrote them to `hparams.yaml`.
    """

    name: str
    metrics: Mapping[str, Series] = field(default_factory=dict)
    card: PrivacyCard | None = None
    folder: Path | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, *names: str) -> Series | None:
        """The first of these metrics that was logged, as it is or as a mean over the epoch."""
        for name in names:
            for candidate in (name, f"{name}_epoch", f"{name}_step"):
                if candidate in self.metrics:
                    return self.metrics[candidate]
        return None

    @property
    def epsilon(self) -> tuple[str, Series] | None:
        """Name and course of the epsilon of the notion that the run was asked for.

        Every run logs the unsliced one; where another notion was asked for, that one is logged too, and meant.
        """
        names = [name for name in self.metrics if EPSILON.fullmatch(_stem(name))]
        names.sort(key=lambda name: (_stem(name) == "privacy/rpp_epsilon", name.endswith("_step")))
        return (_stem(names[0]), self.metrics[names[0]]) if names else None

    @property
    def accuracy(self) -> tuple[str, Series] | None:
        """Name and course of an accuracy on records that were not trained on, if one was logged."""
        names = [name for name in self.metrics if "acc" in name.lower() and not name.lower().startswith("train")]
        names = [name for name in names if not _stem(name).endswith(_BESIDE)]
        names.sort(key=lambda name: (not name.startswith("test"), name))
        return (_stem(names[0]), self.metrics[names[0]]) if names else None

    @property
    def accuracy_deviation(self) -> Series | None:
        """Course of the standard deviation of the noise in that accuracy, if it is noised."""
        return self.metric(f"{self.accuracy[0]}_deviation") if self.accuracy else None

    @property
    def accuracy_error(self) -> Series | None:
        """Course of the standard error of that accuracy, its noise included, if one was logged."""
        return self.metric(f"{self.accuracy[0]}_standard_error") if self.accuracy else None

    @property
    def outdated(self) -> int | None:
        """The step of which the last noised accuracy is, where no later one was paid for and it was shown again."""
        if self.accuracy is None or self.accuracy_deviation is None:
            return None
        steps, values = self.accuracy[1].steps, self.accuracy[1].values
        first = next(n for n in range(len(values)) if set(values[n:]) == {values[-1]})  # noise never draws it twice
        return steps[first] if steps[first] < steps[-1] else None

    @property
    def noised(self) -> dict[str, tuple[float, float, float | None]]:
        """Last values of noised metrics that are no accuracy, with the deviation of their noise and standard error.

        The clipped fraction is none of them: it says how the run went, and is paid for with its gradients.
        """
        return {
            name: (self.metrics[name].values[-1], self.metrics[f"{name}_deviation"].values[-1], self._error(name))
            for name in self.with_noise
            if "acc" not in name.lower()
        }

    @property
    def with_noise(self) -> list[str]:
        """Names of the metrics that were logged with the deviation of their noise, the clipped fraction aside."""
        return [
            name for name in self.metrics if f"{name}_deviation" in self.metrics and not name.startswith("privacy/")
        ]

    @property
    def only_figures(self) -> bool:
        """Whether it trained no model and released noised metrics alone, which are charged beside it.

        An ordinary training whose metrics were noised logs them at later steps, and is no such run.
        """
        known = {part for name in self.with_noise for part in (name, *(f"{name}{end}" for end in _BESIDE))}
        at_start = all(set(series.steps) == {0} for series in self.metrics.values())
        return self.card is None and bool(known) and self.metrics.keys() <= known and at_start

    def _error(self, name: str) -> float | None:
        error = self.metrics.get(f"{name}_standard_error")
        return error.values[-1] if error else None

    @property
    def attacks(self) -> tuple[Estimate, ...]:
        """Attack successes on the card."""
        estimates = self.card.estimates if self.card else ()
        return tuple(estimate for estimate in estimates if estimate.name.endswith("attack_success"))


@validated
def find_runs(directory: str | Path | Sequence[Path]) -> list[Run]:
    """All runs below a folder, the oldest first: wherever the CSV or TensorBoard logger wrote, or else a card is.

    Beside others, a run that ended before it logged anything, such as one that was refused, is left out, and so is an
    evaluation alone (`Trainer.test`), whose accuracy belongs to a model of another folder. So are values of nan, and a
    card whose folder a later run without privacy logged to. A run that was resumed stands where it went on.

    Args:
        directory: A run's own folder, or one that holds several, or a list of such folders.

    Raises:
        FileNotFoundError: The folder does not exist, or holds no run.
        ValueError: The list is empty.
    """
    several = not isinstance(directory, str | Path)
    roots = [Path(one) for one in directory] if several else [Path(directory)]  # type: ignore[arg-type,union-attr]
    if not roots:
        raise ValueError("directory is an empty list: give at least one folder that a run was logged to.")
    found: dict[Path, Run] = {}
    for root in roots:
        for folder, run in _runs_below(root).items():
            name = f"{root}/{run.name}" if several and folder != root.resolve() else run.name
            found.setdefault(folder, dataclasses.replace(run, name=name))
    return _joined([run for run in found.values() if _has_begun(run)] or list(found.values()))


@validated
def left_out(directories: Sequence[Path], runs: Sequence[Run]) -> tuple[list[Path], list[Path]]:
    """Folders that a logger made, and of which `find_runs` has no run.

    Args:
        directories: Where the runs were looked for.
        runs: Those that were found.

    Returns:
        Those without metrics, and those of evaluations alone.
    """
    made = {path.parent for root in directories for name in (*_LOGS, "hparams.yaml") for path in root.rglob(name)}
    logged = {folder: _read_logs(folder) for folder in sorted(made - {run.folder for run in runs})}
    evaluations = [folder for folder, metrics in logged.items() if metrics and _only_evaluate(metrics)]
    return [folder for folder, metrics in logged.items() if not metrics], evaluations


def _runs_below(root: Path) -> dict[Path, Run]:
    """By their folders, the oldest first."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}: give the folder that a run was logged to.")
    found = [path for pattern in _LOGS for path in root.rglob(pattern)] or list(root.rglob("*privacy_card*.json"))
    folders = list(dict.fromkeys(path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)))
    if not folders:
        raise FileNotFoundError(
            f"{root} holds no metrics.csv, no TensorBoard events and no privacy card: give the folder that a run was "
            "logged to."
        )
    runs = {}
    for folder in folders:
        metrics, card = _read_logs(folder), _read_card(folder)
        name = str(folder.relative_to(root)) if folder != root else root.resolve().name
        card = None if card and _is_left_over(card, metrics) else card
        runs[folder.resolve()] = Run(name, metrics, card, folder, _read_hparams(folder / "hparams.yaml"))
    return runs


def _joined(runs: list[Run]) -> list[Run]:
    """Runs with what they logged before they were resumed in another folder, whose card says less than the last."""
    kept: list[Run] = []
    for run in runs:
        before = next((other for other in kept if _are_one(other, run)), None)
        if before is None:
            kept.append(run)
            continue
        first, last = sorted((before, run), key=_num_steps)
        kept[kept.index(before)] = dataclasses.replace(last, metrics=_continued(first.metrics, last.metrics))
    return kept


def _are_one(first: Run, second: Run) -> bool:
    """Whether one went on with the other: under the same terms and account, from where it had not yet been."""
    if first.card is None or second.card is None:
        return False
    terms = [{name: run.card.details.get(name) for name in _OF_ONE_RUN} for run in (first, second) if run.card]
    metrics = max(first, second, key=_num_steps).metrics
    steps = [series.steps[0] for name, series in metrics.items() if name.startswith("privacy/")]
    return terms[0] == terms[1] and terms[0]["ledger"] is not None and bool(steps) and min(steps) > 0


def _num_steps(run: Run) -> int:
    return int(run.card.details.get("num_steps") or 0) if run.card else 0


def _continued(metrics: Mapping[str, Series], found: Mapping[str, Series]) -> dict[str, Series]:
    """Courses with later values, which take the place of those at and behind their first step."""
    joined = dict(metrics)
    for name, series in found.items():
        earlier = metrics.get(name, Series((), ()))
        kept = sum(step < series.steps[0] for step in earlier.steps)
        joined[name] = Series(earlier.steps[:kept] + series.steps, earlier.values[:kept] + series.values)
    return joined


def _read_logs(folder: Path) -> dict[str, Series]:
    """What the last run in a folder logged, in all its files: evaluations and resumed runs begin one of their own."""
    metrics: dict[str, Series] = {}
    files = [path for pattern in _LOGS for path in folder.glob(pattern)]
    for path in sorted(files, key=lambda path: path.stat().st_mtime):
        found = _read_csv(path) if path.suffix == ".csv" else _read_events(path)
        if _is_private(found) != _is_private(metrics) and (_is_private(found) or not _evaluates(found, metrics)):
            metrics = {}
        metrics = _continued(metrics, found)
    return metrics


def _read_csv(path: Path) -> dict[str, Series]:
    collected: dict[str, tuple[list[int], list[float]]] = {}
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        try:
            for number, row in enumerate(rows):
                if None in row:
                    raise ValueError("more values than columns")
                step = int(float(row.get("step") or number))
                for name, text in row.items():
                    if name in ("step", "epoch") or not text or math.isnan(value := float(text)):
                        continue
                    steps, values = collected.setdefault(name, ([], []))
                    steps.append(step)
                    values.append(value)
        except (ValueError, OverflowError, csv.Error) as error:
            raise ValueError(
                f"{path} is not a table of numbers at line {rows.line_num} ({error}): remove what is not the logger's."
            ) from error
    return {name: Series(tuple(steps), tuple(values)) for name, (steps, values) in collected.items()}


def _read_events(path: Path) -> dict[str, Series]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise ImportError(f"{path.parent} holds TensorBoard events, which need `pip install tensorboard`.") from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    series = {}
    for name in events.Tags()["scalars"]:
        scalars = [entry for entry in events.Scalars(name) if not math.isnan(entry.value)]
        if scalars:
            series[name] = Series(tuple(entry.step for entry in scalars), tuple(entry.value for entry in scalars))
    series.pop("epoch", None)
    if set(series.get("hp_metric", Series((), ())).values) == {-1.0}:  # which Lightning's logger writes of itself
        del series["hp_metric"]
    return series


def _read_hparams(path: Path) -> dict[str, Any]:
    """What the file says, with objects of Python as the list of their arguments; nothing where it does not read."""
    import yaml

    def plain(reader: Any, suffix: str, node: Any) -> Any:
        return reader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else suffix

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("tag:yaml.org,2002:python/", plain)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # the report needs none of it
        return {}
    return {str(name): value for name, value in content.items()} if isinstance(content, dict) else {}


def _read_card(folder: Path) -> PrivacyCard | None:
    cards = sorted(folder.rglob("*privacy_card*.json"), key=lambda path: path.stat().st_mtime)
    if not cards:
        return None
    try:
        return PrivacyCard.from_json(cards[-1].read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{cards[-1]} is not a privacy card ({error}): restore or remove it.") from error


def _is_left_over(card: PrivacyCard, metrics: Mapping[str, Series]) -> bool:
    """Whether an earlier run left the card in this folder: one that trains privately logs so whenever it logs."""
    trained = any(series.steps[-1] > 0 for series in metrics.values())
    return trained and "num_steps" in card.details and not _is_private(metrics)


def _is_private(metrics: Mapping[str, Series]) -> bool:
    return any(name.startswith("privacy/") for name in metrics)


def _evaluates(found: Mapping[str, Series], trained: Mapping[str, Series]) -> bool:
    """Whether a file is of an evaluation: after the last step by the Trainer that trained, at step 0 by a new one."""
    last = max(step for series in trained.values() for step in series.steps)
    return {step for series in found.values() for step in series.steps} <= {0, last + 1}


def _has_begun(run: Run) -> bool:
    if run.card is None:
        return bool(run.metrics) and not _only_evaluate(run.metrics)
    return bool(run.metrics) or run.card.details.get("num_steps") != 0  # a card is written before the first step


def _only_evaluate(metrics: Mapping[str, Series]) -> bool:
    return all(name.startswith(("test", "val")) and set(series.steps) == {0} for name, series in metrics.items())


def _stem(name: str) -> str:
    return name.removesuffix("_epoch").removesuffix("_step")
