"""Padded steps on live Trainers: what an observer of the clock can tell."""

import math
import time
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelCheckpoint,
    ThroughputMonitor,
    TQDMProgressBar,
)
from lightning.pytorch.profilers import PassThroughProfiler
from torch.utils.data import DataLoader

from lightning_pac.accountants import dp_success_bound
from lightning_pac.callbacks import PositiveDelay
from lightning_pac.callbacks.padding import positive_delay
from lightning_pac.callbacks.padding.clocks import refuse_clocks
from lightning_pac.callbacks.padding.noise_account import NoiseAccount
from lightning_pac.callbacks.padding.positive_delay import wait_until
from lightning_pac.exceptions import LedgerMismatchError, PrivacyViolationError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms.one_sided import DiscreteNoise, PositiveNoise


class _Work(pl.LightningModule):
    """A model whose steps take a given time."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seconds = seconds

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return self.layer(batch).square().mean()

    def predict_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class _Counting(_Work):
    """Counts the predictions that were begun."""

    predicted = 0

    def predict_step(self, batch, batch_idx):
        self.predicted += 1
        return super().predict_step(batch, batch_idx)


class _Observer(pl.Callback):
    """Reads the clock when a step becomes visible: at the start of the next one."""

    def __init__(self):
        self.times = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.times.append(time.monotonic())

    def durations(self):
        return np.diff(self.times)


def _trainer(*callbacks, **options):
    return pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )


def _loader(steps):
    return DataLoader(torch.randn(steps, 2), batch_size=1)


def _durations(seconds, steps, delay=None):
    observer = _Observer()
    _trainer(observer, *([delay] if delay is not None else [])).fit(_Work(seconds), _loader(steps))
    return observer.durations()[1:]


def _threshold_attack(fast, slow):
    """Success of the best single threshold that is chosen on one half of the steps and tried on the other."""
    (fast_train, fast_test), (slow_train, slow_test) = (np.array_split(values, 2) for values in (fast, slow))
    thresholds = np.unique(np.concatenate([fast_train, slow_train]))
    successes = [((fast_train < t).mean() + (slow_train >= t).mean()) / 2 for t in thresholds]
    best = thresholds[int(np.argmax(successes))]
    return ((fast_test < best).mean() + (slow_test >= best).mean()) / 2


def _attack(steps, unit):
    """Steps that differ by almost three units, bare and padded with noise for a difference of three."""
    short, long = 0.5 * unit, 8.7 * unit

    def delay():
        noise = _reusable(PositiveNoise.for_dp(epsilon=0.5, delta=0.05, sensitivity=3), 2 * steps)
        return PositiveDelay(noise, unit=unit, max_duration=12 * unit, on_overrun="count")

    bare = _threshold_attack(_durations(short, steps), _durations(long, steps))
    hidden = _threshold_attack(_durations(short, steps, delay()), _durations(long, steps, delay()))
    return bare, hidden


def _reusable(noise, releases):
    """The noise of a single release, shown many times: the bound for one observation is then what each must meet."""
    object.__setattr__(noise.guarantee, "compositions", releases)
    return noise


def test_a_threshold_attack_on_a_live_trainer_stays_below_the_bound():
    steps = 60
    bound = dp_success_bound(0.5, 0.05)
    for _ in range(4):  # where the machine is too busy to tell bare durations apart, padded ones prove nothing
        bare, hidden = _attack(steps, unit=0.005)
        # 58 test observations: 5.2 standard deviations above the bound, 1e-7 each time.
        assert hidden < bound + 5.2 * math.sqrt(bound * (1 - bound) / (steps - 2))
        if bare > 0.9:
            return
    pytest.fail(f"The attack on bare durations succeeds in {bare:.3f} only, so it is none.")


@pytest.mark.slow
def test_the_threshold_attack_with_2000_steps():
    steps = 2000
    bare, hidden = _attack(steps, unit=0.004)
    bound = dp_success_bound(0.5, 0.05)
    print(f"bare {bare:.4f}, padded {hidden:.4f}, bound {bound:.4f}")
    assert bare > 0.9
    assert hidden < bound + 5.2 * math.sqrt(bound * (1 - bound) / (steps - 2))


def test_shown_durations_have_the_designed_distribution_whatever_the_true_one():
    noise = PositiveNoise.for_dp(1.0, 1e-3)
    delay = PositiveDelay(noise, unit=0.01, max_duration=0.1)
    shown = {true: np.array([delay.padded_duration(true) for _ in range(20_000)]) for true in (0.0, 0.089, 0.1)}
    floors = {true: values.min() for true, values in shown.items()}
    assert floors[0.0] == pytest.approx(floors[0.089])
    assert floors[0.1] == pytest.approx(floors[0.0] + 0.01)
    # Six standard errors: 2e-9.
    for true, values in shown.items():
        expected = (0.1 if true == 0.1 else 0.09) + 0.01 * noise.mean
        assert abs(values.mean() - expected) < 6 * 0.01 * math.sqrt(noise.variance / values.size)


def test_leakage_and_pac_noise_pad_too():
    channel = PositiveNoise.for_maximal_leakage(
        np.arange(6), np.full(6, 1 / 6), np.tile(np.arange(6.0), (6, 1)), math.log(2)
    )
    delay = PositiveDelay(channel, unit=0.01)
    assert {round(delay.padded_duration(value), 9) for value in np.linspace(0.001, 0.05, 30)} <= {
        0.02,
        0.05,
        0.01,
        0.03,
    }
    pac = PositiveDelay(PositiveNoise.for_pac(4.0, 10.0, 20.0), unit=0.01)
    assert 0.03 <= pac.padded_duration(0.0299) <= 0.13
    for delay, name, each in (
        (channel, "padding_maximal_leakage", math.log(2)),
        (pac.noise, "padding_mutual_information", pac.noise.mutual_information),
    ):
        callback = PositiveDelay(delay, unit=0.1)
        _trainer(callback).fit(_Work(), _loader(1))
        (guarantee,) = callback.card().guarantees
        assert (guarantee.name, guarantee.unit) == (name, "nats")
        assert guarantee.value == pytest.approx(each)


def test_every_step_is_charged_before_it_shows_and_training_stops_when_releases_are_spent(tmp_path):
    noise = PositiveNoise.for_dp(3.0, 0.01, compositions=4)
    delay = PositiveDelay(noise, unit=1e-4, ledger=tmp_path / "ledger.db")
    observer = _Observer()
    trainer = _trainer(observer, delay)
    trainer.fit(_Work(), _loader(20))
    assert trainer.global_step == 4
    with PrivacyLedger.read_only(tmp_path / "ledger.db") as ledger:
        (account,) = ledger.accounts()
        assert (account.currency, account.spent, account.budget) == ("time_releases", 4.0, 4.0)
        assert account.declaration["epsilon"] == 3.0
        assert account.card == delay.card()
    assert delay.card().guarantees[0].value == pytest.approx(dp_success_bound(3.0, 0.01))
    assert delay.card().details["num_observations"] == 4
    # A second run of the same noise has nothing left.
    second = _trainer(PositiveDelay(noise, unit=1e-4, ledger=tmp_path / "ledger.db"), max_steps=3)
    second.fit_loop.max_epochs = -1
    second.fit(_Work(), _loader(5))
    assert second.global_step == 0


def test_an_account_goes_on_with_the_noise_that_it_was_opened_with(tmp_path):
    # Two noises of the same guarantee in turns may break it (tests/accountants/test_shift_composition.py).
    first, other = (
        PositiveNoise.for_dp(3.0, 0.01, compositions=4, accounting=kind) for kind in ("exact", "hybrid_rdp")
    )
    other.guarantee = first.guarantee
    _trainer(PositiveDelay(first, unit=1e-4, ledger=tmp_path / "ledger.db"), max_steps=1).fit(_Work(), _loader(2))
    with pytest.raises(LedgerMismatchError, match="declared with other values of mean"):
        _trainer(PositiveDelay(other, unit=1e-4, ledger=tmp_path / "ledger.db")).fit(_Work(), _loader(2))


def test_without_a_ledger_the_count_is_in_the_checkpoint():
    noise = PositiveNoise.for_dp(3.0, 0.01, compositions=3)
    first = PositiveDelay(noise, unit=1e-4)
    _trainer(first, limit_train_batches=2).fit(_Work(), _loader(5))
    resumed = PositiveDelay(noise, unit=1e-4)
    resumed.load_state_dict(first.state_dict())
    trainer = _trainer(resumed)
    trainer.fit(_Work(), _loader(5))
    assert trainer.global_step == 1


def test_predictions_are_padded_and_refused_when_spent():
    noise = PositiveNoise.for_dp(3.0, 0.01, compositions=3)
    delay = PositiveDelay(noise, unit=0.01)
    start = time.monotonic()
    _trainer(delay, limit_predict_batches=3).predict(_Work(), _loader(3))
    assert delay.num_observations == 3
    assert time.monotonic() - start >= 3 * 0.01
    # Nothing more is begun: a step that ends without a charge has shown how long it took.
    delay, work = PositiveDelay(noise, unit=0.001), _Counting()
    with pytest.warns(UserWarning, match="stopped after 3 padded steps, since all releases are spent"):
        predicted = _trainer(delay).predict(work, _loader(5))
    assert (len(predicted), work.predicted, delay.num_observations) == (3, 3, 3)


def test_an_overrun_is_an_error_or_is_counted():
    noise = PositiveNoise.for_dp(1.0, 0.01)
    with pytest.raises(PrivacyViolationError, match=r"A step took longer than max_duration = 0\.005 s"):
        _trainer(PositiveDelay(noise, unit=0.001, max_duration=0.005)).fit(_Work(0.02), _loader(1))
    delay = PositiveDelay(_reusable(noise, 10), unit=0.001, max_duration=0.005, on_overrun="count")
    with pytest.warns(UserWarning, match="2 of 2 steps took longer than max_duration"):
        _trainer(delay).fit(_Work(0.02), _loader(2))
    assert any(condition.endswith("no bound covers: 2.") for condition in delay.card().conditions)


def test_an_undeclared_maximum_is_said_to_be_an_assumption():
    with pytest.warns(UserWarning, match="your assumption that .* differ by at most 0.001 s"):
        _trainer(PositiveDelay(PositiveNoise.for_dp(1.0, 0.01), unit=0.001)).fit(_Work(), _loader(1))


def test_no_callback_behind_it_is_left_out():
    class Set(pl.Callback):
        stages = ()

        def setup(self, trainer, pl_module, stage):
            self.stages = (*self.stages, stage)

    others = [Set(), Set(), Set()]
    delay = PositiveDelay(PositiveNoise.for_dp(1.0, 0.01, compositions=2), unit=0.001)
    trainer = _trainer(others[0], delay, *others[1:])
    trainer.fit(_Work(), _loader(1))
    assert [callback.stages for callback in others] == [("fit",)] * 3
    assert trainer.callbacks[0] is delay


class _Writer(BasePredictionWriter):
    def __init__(self, events):
        super().__init__("batch")
        self.events = events

    def write_on_batch_end(self, *args):
        self.events.append("file")


def _recorded(monkeypatch):
    """What happens in a run, in order: steps' results, their deadlines, their charges, and what others write."""
    events = []
    monkeypatch.setattr(positive_delay, "wait_until", lambda deadline: events.append("deadline"))
    pay = NoiseAccount.pay
    monkeypatch.setattr(NoiseAccount, "pay", lambda *args: (events.append("charge"), pay(*args))[1])
    return events


def test_a_prediction_is_written_behind_the_deadline(monkeypatch, tmp_path):
    events = _recorded(monkeypatch)
    delay = PositiveDelay(
        PositiveNoise.for_dp(3.0, 0.01, compositions=2), unit=0.01, max_duration=5.0, ledger=tmp_path / "ledger.db"
    )
    _trainer(_Writer(events), delay).predict(_Work(), _loader(2))
    # The file of the writer, and that of the ledger, told the true duration by their times.
    assert events == ["deadline", "charge", "file"] * 2


def test_a_checkpoint_is_written_behind_the_deadline(monkeypatch, tmp_path):
    events = _recorded(monkeypatch)
    monkeypatch.setattr(pl.Trainer, "save_checkpoint", lambda *args: events.append("file"))
    delay = PositiveDelay(PositiveNoise.for_dp(3.0, 0.01, compositions=2), unit=0.01, max_duration=5.0)
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    trainer = pl.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[checkpoint, delay]
    )
    trainer.fit(_Work(), _loader(2))
    assert events == ["deadline", "charge", "file"] * 2


def test_a_validation_in_between_belongs_to_no_step():
    class Validated(_Work):
        def validation_step(self, batch, batch_idx):
            time.sleep(1.2)

    delay = PositiveDelay(PositiveNoise.for_dp(3.0, 0.01, compositions=4), unit=0.001, max_duration=1.0)
    trainer = _trainer(delay, val_check_interval=2, num_sanity_val_steps=0, limit_val_batches=1)
    trainer.fit(Validated(), _loader(4), _loader(1))
    assert (trainer.global_step, delay.num_overruns) == (4, 0)


@pytest.mark.parametrize(
    "clock", [LearningRateMonitor("step"), LearningRateMonitor(), DeviceStatsMonitor(), ThroughputMonitor(len)]
)
def test_what_writes_down_the_time_within_a_step_is_refused(clock):
    trainer = SimpleNamespace(callbacks=[clock], profiler=PassThroughProfiler())
    with pytest.raises(MisconfigurationException, match=f"{type(clock).__name__} writes down"):
        PositiveDelay(PositiveNoise.for_dp(1.0, 0.01)).setup(trainer, _Work(), "fit")


def test_what_else_acts_within_a_step_is_named():
    trainer = SimpleNamespace(
        callbacks=[_Observer(), LearningRateMonitor("epoch"), TQDMProgressBar()], profiler=PassThroughProfiler()
    )
    with pytest.warns(UserWarning, match=r"act within it \(_Observer\.on_train_batch_start\): a file"):
        refuse_clocks(trainer, "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_clocks(trainer, "predict")


def test_predictions_are_charged_what_those_who_choose_them_can_learn(tmp_path):
    noise = PositiveNoise.for_pac(4.0, 50.0, 600.0)
    with pytest.raises(MisconfigurationException, match=r"declare PositiveDelay\(max_duration="):
        _trainer(PositiveDelay(noise, unit=0.001)).predict(_Work(), _loader(1))
    for ledger in (tmp_path / "ledger.db", None):
        delay = PositiveDelay(noise, unit=0.1, max_duration=4.0, ledger=ledger)
        _trainer(delay).fit(_Work(), _loader(1))
        assert delay.spent == pytest.approx(noise.mutual_information)
        _trainer(delay).predict(_Work(), _loader(1))
        each = noise.adaptive_information(40.0)
        assert each > 2 * noise.mutual_information
        (guarantee,) = delay.card().guarantees
        # Without a ledger, one object speaks of all its steps; with one, each kind has its account.
        assert guarantee.value == pytest.approx(each if ledger else each + noise.mutual_information)
        conditions = " ".join(delay.card().conditions)
        assert "lies between 0 and 40; an observer may choose" in conditions
        assert ("against those who do, these costs do not add" in conditions) == (ledger is None)
    with PrivacyLedger.read_only(tmp_path / "ledger.db") as ledger:
        spent = {account.name: account.spent for account in ledger.accounts()}
    assert spent == pytest.approx(
        {"positive_delay": noise.mutual_information, "positive_delay_of_queries": noise.adaptive_information(40.0)}
    )


def test_predicting_in_several_processes_is_refused():
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer = SimpleNamespace(
        world_size=2, global_rank=0, strategy=strategy, callbacks=[], profiler=PassThroughProfiler()
    )
    with pytest.raises(MisconfigurationException, match=r"Of the 2 processes that predict.*predict with devices=1"):
        PositiveDelay(PositiveNoise.for_dp(1.0, 0.01)).setup(trainer, _Work(), "predict")


def test_the_ledger_is_given_back_with_its_card_after_an_error(tmp_path):
    delay = PositiveDelay(PositiveNoise.for_dp(1.0, 0.01), 0.001, max_duration=0.005, ledger=tmp_path / "ledger.db")
    with pytest.raises(PrivacyViolationError, match="A step took longer"):
        _trainer(delay).fit(_Work(0.02), _loader(1))
    with PrivacyLedger(tmp_path / "ledger.db") as ledger:
        (card,) = (account.card for account in ledger.accounts())
    assert any(condition.endswith("no bound covers: 1.") for condition in card.conditions)


def test_a_step_that_ends_just_before_a_whole_unit_is_not_shown_by_the_time_that_drawing_takes(monkeypatch):
    # A channel may show a state as it is, so that nothing but the rest of the unit is left to draw in.
    channel = PositiveNoise.for_maximal_leakage(np.arange(2), [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], leakage=math.log(2))
    delay, unit, now, shown = PositiveDelay(channel, unit=0.01), 0.01, [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=None)
    monkeypatch.setattr(positive_delay, "time", clock)
    monkeypatch.setattr(positive_delay, "wait_until", lambda deadline: shown.append(max(deadline, now[0])))
    padded = delay.padded_duration

    def drawn(duration):
        now[0] += 3e-4
        return padded(duration)

    monkeypatch.setattr(delay, "padded_duration", drawn)
    for short in (1e-5, 1e-4, 2e-3):
        delay._start, now[0] = 0.0, unit - short
        delay._pad(SimpleNamespace(device=torch.device("cpu")), {})
    assert len(set(shown)) == 1


def test_the_wait_ends_at_the_deadline():
    deadline = time.monotonic() + 0.02
    wait_until(deadline)
    assert time.monotonic() >= deadline
    wait_until(deadline - 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"unit": 0.0}, ValueError, "unit must be a positive number of seconds"),
        ({"unit": 5e-324}, ValueError, "unit must be .* from 1e-09 to 1e"),
        ({"max_duration": -1.0}, ValueError, "max_duration must be a positive number"),
        ({"max_duration": 1e300}, ValueError, "max_duration must be .* from 1e-09 to 1e"),
        ({"on_overrun": "ignore"}, ValueError, "on_overrun is 'ignore', but must be raise or count"),
        (
            {"noise": DiscreteNoise([0.5, 0.5])},
            TypeError,
            "noise is an object of type DiscreteNoise, but must be a DPNoise",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        PositiveDelay(**{"noise": PositiveNoise.for_dp(1.0, 0.01), **arguments})
