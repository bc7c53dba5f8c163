"""An audit of real private runs: silent where they are as declared, loud where a bug was planted."""

import copy
import json
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import stats
from slow_cases import mostly_slow
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_pac import SRPPSGD, Banded, CanaryAudit, CyclicShuffle, Poisson, PrivateMetrics, TwoWorldScenario
from lightning_pac.audits import UNSEEN, TrainingAudit
from lightning_pac.callbacks.canary_audit.auditable import check_trainer
from lightning_pac.callbacks.canary_audit.record_gradients import RecordGradients
from lightning_pac.callbacks.metrics import noised_metric
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.cli import main
from lightning_pac.data.batch_samplers import SchemeBatchSampler
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import BlockedPoisson
from lightning_pac.strategies import PrivateFSDPStrategy

WORLDS = TwoWorldScenario(1, adjacency="zero_out")
STEPS = 10
FALSE_ALARM = 1e-6  # of an honest run; the noise is never seeded


class Small(pl.LightningModule):
    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(24, 4), layer or nn.Tanh(), nn.Linear(4, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.2)


def records(count: int, size: float = 3.0) -> TensorDataset:
    inputs = size * torch.randn(count, 24)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def audited(folder: Path, **changed: Any) -> CanaryAudit:
    """One run of about ten steps over 40 records and some of 30 canaries."""
    audit = changed.get("audit") or CanaryAudit(records(30), false_alarm_rate=changed.get("rate", FALSE_ALARM))
    arguments: dict[str, Any] = {
        "scenario": WORLDS,
        "sampling": Poisson(0.4, batch_size=28),
        "noise_multiplier": 2.0,
        "ledger": folder / "twin.db",
    }
    private = SRPPSGD(**(arguments | changed.get("arguments", {})))
    trainer = pl.Trainer(
        **({"max_steps": STEPS} | changed.get("trainer", {})),
        callbacks=[private, audit, *changed.get("extra", [])],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing="extra" in changed,
        enable_model_summary=False,
        default_root_dir=folder,
        accelerator="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validated = DataLoader(records(40), 28) if "validated" in changed else None
        model, checkpoint = changed.get("module") or Small(), changed.get("checkpoint")
        trainer.fit(model, DataLoader(records(40), 28), validated, ckpt_path=checkpoint)
    return audit


def halve_the_noise(patch: pytest.MonkeyPatch) -> None:
    segments = NoisySum._noise_segments
    patch.setattr(
        NoisySum, "_noise_segments", lambda self, of: [(part, 0.5 * size) for part, size in segments(self, of)]
    )


def leave_the_noise_of_a_layer_out(patch: pytest.MonkeyPatch) -> None:
    release = NoisySum._make_public

    def make_public(self: NoisySum, total: torch.Tensor, start: int) -> torch.Tensor:
        kept = total[-10:-1].clone()  # the last layer; the very last value counts clipped records
        made = release(self, total, start)
        made[-10:-1] = kept
        return made

    patch.setattr(NoisySum, "_make_public", make_public)


def leave_clipping_out(patch: pytest.MonkeyPatch) -> None:
    attach = PrivateRun._attach

    def attach_all(self: PrivateRun) -> None:
        attach(self)
        clipped = type(self._engine).clipped_sum.__get__(self._engine)
        self._engine.clipped_sum = lambda norms, *rest: clipped([1e6] * len(norms), *rest)  # type: ignore[method-assign]

    patch.setattr(PrivateRun, "_attach", attach_all)


def draw_by_a_seed(patch: pytest.MonkeyPatch) -> None:
    made = SchemeBatchSampler.__init__

    def seeded(self: SchemeBatchSampler, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.generator = SecureGenerator(7)

    patch.setattr(SchemeBatchSampler, "__init__", seeded)


def draw_by_torch(patch: pytest.MonkeyPatch) -> None:
    def drawn(self: SchemeBatchSampler) -> Iterator[list[int]]:
        for _ in range(self.num_batches):
            yield torch.nonzero(torch.rand(self.num_records) < 0.4).flatten().tolist()

    patch.setattr(SchemeBatchSampler, "__iter__", drawn)


def draw_a_record_twice(patch: pytest.MonkeyPatch) -> None:
    drawn = SchemeBatchSampler.__iter__

    def doubled(self: SchemeBatchSampler) -> Iterator[list[int]]:
        for batch in drawn(self):
            yield batch[:-1] + batch[-2:-1] if len(batch) > 1 else batch  # as many, one of them twice

    patch.setattr(SchemeBatchSampler, "__iter__", doubled)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "halved": (halve_the_noise, "noise of network.0.weight"),
    "one layer": (leave_the_noise_of_a_layer_out, "noise of network.2.weight"),
    "not clipped": (leave_clipping_out, "clipped sum"),
    "seeded draws": (draw_by_a_seed, "secrecy of the draws"),
    "public draws": (draw_by_torch, "secrecy of the draws"),
    "twice": (draw_a_record_twice, "multiplicity"),
}


def test_a_run_as_declared_raises_no_alarm(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    assert audit.verdict is not None
    assert audit.verdict.alarms == ()
    (saved,) = tmp_path.glob("twin-*.audit.json")
    assert TrainingAudit.load(saved) == audit.verdict
    (card,) = tmp_path.rglob("privacy_card.json")
    told = json.loads(card.read_text())
    assert [estimate["name"] for estimate in told["estimates"]] == [
        "audit_alarms", "white_box_canary_epsilon_at_delta", "black_box_canary_epsilon_at_delta",
    ]  # fmt: skip
    assert told["estimates"][0]["value"] == 0
    assert UNSEEN in told["conditions"]


@pytest.mark.parametrize("bug", mostly_slow(BUGS, "halved", "not clipped", "seeded draws", "twice"))
@pytest.mark.filterwarnings("ignore")
def test_a_planted_bug_is_named(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, name = BUGS[bug]
    plant(monkeypatch)
    verdict = audited(tmp_path).verdict
    assert verdict is not None
    assert name in [alarm.name for alarm in verdict.alarms]
    (card,) = tmp_path.rglob("privacy_card.json")
    assert f"{name} (white-box test)" in card.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.filterwarnings("ignore")
def test_a_planted_bug_is_found_in_nineteen_runs_of_twenty(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS[bug][0](monkeypatch)
    assert sum(bool(audited(tmp_path / str(number)).verdict.alarms) for number in range(20)) >= 19


@pytest.mark.slow
def test_honest_runs_raise_false_alarms_at_the_stated_rate(tmp_path: Path) -> None:
    found = sum(bool(audited(tmp_path / str(number), rate=0.01).verdict.alarms) for number in range(100))
    assert found <= stats.binom.ppf(0.9999, 100, 0.01)


def test_a_record_is_replaced_by_the_coin(tmp_path: Path) -> None:
    audit = CanaryAudit(records(30), records(30), FALSE_ALARM)
    arguments = {"scenario": TwoWorldScenario(1), "sampling": Poisson(0.4)}
    verdict = audited(tmp_path, audit=audit, arguments=arguments).verdict
    assert verdict is not None
    assert verdict.alarms == ()


class Squares(nn.Module):
    """A layer that no vectorised pass can follow."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * float(inputs.detach().sum() < 1e9)


def test_a_vectorised_pass_gives_the_gradients_of_single_ones() -> None:
    data = records(7)
    for layer in (nn.Tanh(), Squares()):
        model = Small(layer)
        blocks = [["network.0.weight", "network.0.bias"], ["network.2.weight", "network.2.bias"]]
        gradients = RecordGradients(lambda model=model: copy.deepcopy(model), default_collate, blocks, [0.5, 0.01])
        gradients.hold_against([data[0], data[1]])
        assert (gradients._vectorised is None) == isinstance(layer, Squares)
        (found,) = gradients.of_rows([data.tensors[0], data.tensors[1]], 5)
        (again,) = gradients.of_records([data[number] for number in range(5)])
        torch.testing.assert_close(found, again)
        for number in range(5):
            model.zero_grad()
            model.training_step([leaf[number : number + 1] for leaf in data.tensors], 0).backward()
            first, second = (
                torch.cat([parameter.grad.flatten() for parameter in model.network[place].parameters()])
                for place in (0, 2)
            )
            wanted = torch.cat([first * min(1.0, 0.5 / first.norm()), second * min(1.0, 0.01 / second.norm())])
            torch.testing.assert_close(found[number].float(), wanted)


class Unusual(Small):
    """Reads a mapping, which a hook of the transfer makes of the batch, and changes it in place."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return {"inputs": batch[0] + 1.0, "labels": batch[1], "name": "records"}

    def training_step(self, batch: Any) -> torch.Tensor:
        batch["inputs"].mul_(0.5)
        return super().training_step((batch["inputs"], batch["labels"]), 0)


def test_batches_are_followed_as_the_step_is_given_them(tmp_path: Path) -> None:
    changed = {"accumulate_grad_batches": 2}
    verdict = audited(tmp_path, module=Unusual(), trainer=changed).verdict
    assert verdict is not None
    assert verdict.alarms == ()


class Measured(Small):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)


@pytest.mark.filterwarnings("ignore")
def test_the_noise_of_private_metrics_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent(SecureGenerator):
        def release_(self, total: torch.Tensor, deviation: float) -> torch.Tensor:
            return total

    for number in range(2):
        if number:
            monkeypatch.setattr(noised_metric, "secure_generator", Silent)
        ledger = tmp_path / str(number) / "twin.db"
        metrics = PrivateMetrics(["val/accuracy"], WORLDS, epsilon=1.0, renyi_order=16, ledger=ledger, budget=50.0)
        audited(ledger.parent, module=Measured(), extra=[metrics], validated=True)
        assert main(["audit", "metrics", str(ledger)]) == number
        assert "noise of the metric accuracy" in capsys.readouterr().out


class Dropped(Small):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([nn.functional.dropout(batch[0]), batch[1]], batch_idx)


class Penalised(Small):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + 0.1 * self.network[0].weight.square().sum()


def test_several_processes_and_a_run_that_goes_on_are_refused(tmp_path: Path) -> None:
    private = SRPPSGD(WORLDS, noise_multiplier=1.0, sampling=Poisson(0.4))
    trainer: Any = types.SimpleNamespace(callbacks=[private], world_size=2, precision="32-true", strategy=None)
    with pytest.raises(MisconfigurationException, match="watches one process, and the Trainer has 2"):
        check_trainer(trainer)
    trainer.world_size, trainer.strategy = 1, PrivateFSDPStrategy()
    with pytest.raises(MisconfigurationException, match="which fsdp_private divides"):
        check_trainer(trainer)
    audit = CanaryAudit(records(3))
    audited(tmp_path, audit=audit, trainer={"max_steps": 2}, extra=[ModelCheckpoint(tmp_path, "last")])
    with pytest.raises(MisconfigurationException, match="goes on after 2 steps"):
        audited(tmp_path, audit=audit, checkpoint=tmp_path / "last.ckpt")


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="canaries is empty"):
        CanaryAudit([])
    with pytest.raises(ValueError, match="others has 1 records for 2"):
        CanaryAudit([1, 2], [1])
    with pytest.raises(MisconfigurationException, match="no private run to audit"):
        pl.Trainer(callbacks=[CanaryAudit(records(3))], max_steps=1, logger=False).fit(Small(), DataLoader(records(9)))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"audit": CanaryAudit([(torch.zeros(3), torch.tensor(0))])}, r"canaries\[0\] is not a record of the dataset"),
        ({"audit": CanaryAudit(records(3), [1, 2, 3])}, r"others\[0\] is not a record"),
        ({"arguments": {"scenario": TwoWorldScenario(1), "sampling": Poisson(0.4)}}, "give others="),
        ({"arguments": {"max_grad_norm": "auto"}}, "a clipping norm"),
        ({"arguments": {"sampling": None}}, r"give SRPPSGD sampling=Poisson\(...\)"),
        ({"arguments": {"sampling": BlockedPoisson(0.4, blocks=2)}}, "audits Poisson sampling"),
        ({"arguments": {"sampling": CyclicShuffle(8), "noise": Banded(2)}}, "no noise="),
        ({"arguments": {"views": 2}}, "drawn one by one"),
        ({"module": Dropped()}, "draws at random"),
        ({"module": Penalised()}, "terms that no record enters"),
        ({"trainer": {"precision": "bf16-mixed"}}, "precision='32-true'"),
        ({"extra": [CanaryAudit(records(3))]}, "2 callbacks are to watch"),
    ]
    for number, (changed, words) in enumerate(refused):
        with pytest.raises((MisconfigurationException, ValueError), match=words):
            audited(tmp_path / str(number), **changed)
