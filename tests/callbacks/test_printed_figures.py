"""What is printed and logged of a bound is never on the side that promises more."""

import math
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from lightning_pac import BalancedSubsets, PrivacyLedger
from lightning_pac._shown import shows_itself
from lightning_pac.audits.canaries.canary_game import CanaryGame
from lightning_pac.callbacks.shared import in_float32
from lightning_pac.callbacks.srpp_sgd.reporting.logged_metrics import log_metrics
from lightning_pac.cards import Estimate, PrivacyCard
from lightning_pac.evidence.page import _figure
from lightning_pac.mechanisms.privatization.privatized_output import PrivatizedOutput

BOUNDS = (2.9940000001, 2.996, 8.0040000001, 0.59960001, 0.65, 1e-30, 1 / 3, 3.0000001, 12.349, 1e-45, 0.5, 5e38)


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_lightning_keeps_is_the_next_float_above(bound: float) -> None:
    kept = torch.tensor(in_float32(bound))  # as Lightning makes it
    assert kept.dtype == torch.float32
    assert kept.item() >= bound
    below = torch.nextafter(kept, torch.tensor(-math.inf)).item()
    assert kept.isinf() or Fraction(below) < Fraction(bound)


@pytest.mark.parametrize("promised", ["world_success_bound", "epsilon_at_delta"])
@pytest.mark.parametrize("bound", [value for value in BOUNDS if value < 1e38])
def test_the_bar_and_the_logs_of_a_run_show_no_less(
    bound: float, promised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, tuple[float, dict[str, Any]]] = {}
    log = lambda _, name, value, **options: logged.update({name: (value, options)})  # noqa: E731
    monkeypatch.setattr(pl.LightningModule, "log", log)
    module: Any = pl.LightningModule()
    run: Any = SimpleNamespace(
        metrics=lambda: {f"privacy/{promised}": bound, "privacy/noise_multiplier": 1.0},
        journal=SimpleNamespace(promised=promised),
        logged={},
    )
    log_metrics(module, run)
    for name, (value, options) in logged.items():
        kept = torch.tensor(value).item()
        if name == "privacy/noise_multiplier":
            continue
        assert kept >= bound * (1 - 1e-7 * bool(options.get("prog_bar")))
        if options.get("prog_bar"):
            shown = float(Tqdm.format_num(kept))
            assert bound * (1 - 1e-12) <= shown <= max(1.5e-45, bound * 1.011)


def test_an_audit_shows_no_more_than_it_found() -> None:
    game = CanaryGame("white-box", 1000, 100, 90, 0.01, 2.996, 1.2999, 2.9941, 1e-5, 0.95)
    shown = [
        float(found) for found in re.findall(r"at least ([\d.]+)", game.to_estimate().meaning + game.to_test().seen)
    ]
    assert shown == [2.99, 1.29, 2.99]
    claimed = re.findall(r"where ([\d.]+) is claimed", game.to_estimate().meaning + game.to_test().seen)
    assert [float(value) for value in claimed] == [3.0, 3.0]


@pytest.mark.parametrize("cost", [0.01953125, 1 / 3, 2.0000001, 1e-9 / 3])
def test_costs_in_the_evidence_are_not_rounded_down(cost: float) -> None:
    assert cost <= float(_figure(cost)) <= cost * (1 + 1.1e-5)


@pytest.mark.parametrize("spent", [0.3, 0.1 + 0.2, 2.9940000001, 3.00000041, 1e-9 / 3])
def test_the_repr_of_an_account_shows_no_less(spent: float) -> None:
    @shows_itself
    class Account:
        @property
        def spent(self) -> float:
            return spent

    shown = float(repr(Account()).partition("spent=")[2].rstrip(")>"))
    assert spent * (1 - 1e-13) <= shown <= spent * (1 + 1.1e-5)


@pytest.mark.parametrize("spent", [149.44923791803, 5.4284232535951, 2.2862830621752, 0.3])
def test_the_repr_of_a_ledger_shows_no_less_and_leaves_no_more(spent: float, tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "a.db", budget={"rpp": 300.0}) as ledger:
        ledger.account("fit", "rpp").charge(spent)
        found, left = map(float, re.findall(r"'rpp': ([\d.]+)", repr(ledger)))
    assert spent <= found <= spent * (1 + 1.1e-5)
    assert (300 - spent) * (1 - 1.1e-5) <= left <= 300 - spent


@pytest.mark.parametrize("failure", [1e-9, 1.2345e-6, 0.01])
def test_no_confidence_is_rounded_up(failure: float) -> None:
    """To six digits, 1 - 1e-9 is nearest to 1: a certificate that holds for certain."""
    ones = np.ones(1)
    output = PrivatizedOutput(ones, ones, 0.5, 0.5, 1.0, "exact", 1 - failure, BalancedSubsets(8, num_subsets=4))
    (words,) = [condition for condition in output.card().conditions if "confidence" in condition]
    estimate = Estimate("success", 0.5, "probability", "It guesses.", "", (0.49999994, 0.50000006), 1 - failure)
    found = re.findall(
        r"Between (\S+) and (\S+) with (\S+) %", PrivacyCard("t", "s", (), (), (estimate,)).to_markdown()
    )
    low, high, percent = map(float, *found)
    assert float(re.search(r"confidence ([\d.]*\d)", words)[1]) <= 1 - failure
    assert percent <= 100 * (1 - failure)
    assert low <= 0.49999994
    assert high >= 0.50000006
