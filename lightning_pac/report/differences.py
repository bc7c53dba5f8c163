"""What tells the runs of a page apart, as their loggers, cards and ledgers know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_pac.cards import upwards
from lightning_pac.report.ledgers import FoundLedger, account_of
from lightning_pac.report.runs import Run

__all__ = ["differences", "in_short", "protects", "whose"]

_LONGEST = 40  # letters of a value
_MOST = 6  # hyperparameters


def differences(runs: Sequence[Run], ledgers: Sequence[FoundLedger]) -> list[str]:
    """The class of each run's model where it is known, and what differs between the runs; empty where nothing does.

    Args:
        runs: The runs of a page.
        ledgers: Those that list them, where they were found.
    """
    settings = _differing([_flat(run.hparams) for run in runs])
    for number, found in enumerate(settings):
        settings[number] = [*found[:_MOST], *["…"] * (len(found) > _MOST)]
    terms = _differing([_terms(run, ledgers) for run in runs])
    classes = [_model_class(run) for run in runs]
    return [
        ", ".join([*([name] if name else []), *one, *other])
        for name, one, other in zip(classes, settings, terms, strict=True)
    ]


def whose(runs: Sequence[Run]) -> list[str | None]:
    """Whose records the secret of each run is about, as "one row", where that is not the same in all."""
    found = [_unit(run) for run in runs]
    secrets = {run.card.secret for run in runs if run.card and run.card.guarantees}
    return found if len(secrets) > 1 or len(set(found) - {None}) > 1 else [None] * len(runs)


def protects(run: Run, whose: str | None) -> str | None:
    """What of those the run's promise covers, such as "the whole content of one row"; None where whose is None.

    Args:
        run: The run.
        whose: Whose records its secret is about.
    """
    if whose is None or run.card is None:
        return None
    if _is_pool(run):
        return f"{whose}, or one person if each subset has all of their rows or none"
    changes = run.card.details["scenario"].get("adjacency") == "replace"
    if run.card.details["unit_of_privacy"] == "person":
        return f"everything that the rows of {whose} say" if changes else f"everything of {whose}"
    return f"the whole content of {whose}" if changes else whose


def in_short(run: Run, whose: str | None) -> str:
    """The same for a label in a figure.

    Args:
        run: The run.
        whose: Whose records its secret is about.
    """
    return (whose if _is_pool(run) else protects(run, whose)) or ""


def _is_pool(run: Run) -> bool:
    return run.card is not None and any(entry.name == "membership_success_bound" for entry in run.card.guarantees)


def _unit(run: Run) -> str | None:
    if _is_pool(run):
        return "one row"
    details = run.card.details if run.card else {}
    unit, scenario = details.get("unit_of_privacy"), details.get("scenario")
    if unit not in ("record", "person") or not isinstance(scenario, dict):
        return None
    number = scenario.get("num_differing", 1)
    number = sum(number) if isinstance(number, list) else number
    if unit == "record":
        return "one row" if number == 1 else f"up to {number:,} rows"
    return "one person" if number == 1 else f"up to {number:,} persons"


def _terms(run: Run, ledgers: Sequence[FoundLedger]) -> dict[str, str]:
    if run.card is None:
        return {}
    details, account = run.card.details, account_of(run)
    promised = [entry.value for entry in run.card.guarantees if entry.name == "epsilon_at_delta"]
    ledger = next((ledger.name for ledger in ledgers if account in ledger.accounts), None)
    terms = {
        "epsilon": f"epsilon {upwards(promised[0], 4)}" if promised else None,
        "batch": f"batches of {details['batch_size']:,.0f}" if details.get("batch_size") else None,
        "norm": _clipping(details),
        "steps": f"{details['num_steps']} steps" if details.get("num_steps") else None,
        "parameters": f"{details['num_parameters']:,} parameters" if details.get("num_parameters") else None,
        "ledger": f"ledger {ledger}" if ledger else None,
        "account": f"account {account}" if account else None,
    }
    return {name: text for name, text in terms.items() if text is not None}


def _clipping(details: Mapping[str, Any]) -> str | None:
    stated = details.get("max_grad_norm")
    if not stated or details.get("clipping", "clip") != "clip":  # by a rule that no norm was stated for
        return "automatic clipping" if stated else None
    norms = list(stated.values()) if isinstance(stated, Mapping) else [stated]
    return f"clipping norm {', '.join(f'{norm:g}' if isinstance(norm, float | int) else str(norm) for norm in norms)}"


def _model_class(run: Run) -> str | None:
    """From the card, or from what LightningCLI adds to the hyperparameters."""
    stated = (run.card.details.get("model") if run.card else None) or run.hparams.get("_class_path")
    return stated.rpartition(".")[2] if isinstance(stated, str) else None


def _differing(entries: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The entries of each run that are not the same in all runs that have any."""
    known = [entry for entry in entries if entry]
    names = dict.fromkeys(name for entry in known for name in entry)
    differ = [name for name in names if len({entry.get(name) for entry in known}) > 1]
    return [[entry[name] for name in differ if name in entry] for entry in entries]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values as words by their names, those in a mapping behind the name of the mapping."""
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        elif not name.startswith("_"):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            found[name] = f"{name} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}"
    return found
