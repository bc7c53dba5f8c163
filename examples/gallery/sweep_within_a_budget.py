# %% [markdown]
"""
# A sweep within a budget

Every run on private data costs, even one that is thrown away. If only the best of a secret number of runs is
shown, all of them together cost less than two: `PrivateSelection`.
"""

# %%
import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch
import torchmetrics
from sklearn.datasets import make_classification
from torch.utils.data import TensorDataset

from lightning_pac import SRPPSGD, Poisson, PrivateMetrics, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import GaussianRelease, NumberOfRuns, SelectionPrice, privacy_curve
from lightning_pac.tuning import LogUniform, PrivateSelection, SearchSpace, SelectionRun

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# %% [markdown]
"""
## What many runs cost

One run has 40 steps and ends with one noised score. Paid for one by one, twenty runs cost five times as much as one;
selected, less than twice as much.
"""

# %%
scenario, sampling, noise, steps = TwoWorldScenario.differential_privacy(), Poisson(rate=0.1, batch_size=400), 3.0, 40
(training,) = SRPPAccountant(scenario, sampling).events(noise_multiplier=noise, num_steps=steps)
score = GaussianRelease(mu_squared=2 * 0.05 / 16)  # a value of PrivateMetrics(epsilon=0.05, renyi_order=16)
expected = [2, 5, 10, 20, 50, 100]
selected, paid = [], []
for number in expected:
    selected.append(SelectionPrice([training, score], NumberOfRuns.expecting(number, eta=1.0)).curve.epsilon(1e-5))
    (all_runs,) = SRPPAccountant(scenario, sampling).events(noise_multiplier=noise, num_steps=number * steps)
    paid.append(privacy_curve([all_runs, GaussianRelease(number * score.mu_squared)]).epsilon(1e-5))
one = privacy_curve([training, score]).epsilon(1e-5)

figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.plot(expected, paid, "s-", label="every run paid for and shown")
axes.plot(expected, selected, "o-", label="best of a secret number shown")
axes.axhline(one, color="grey", ls=":", label="one run")
axes.set(xlabel="runs (expected)", ylabel="epsilon at delta 1e-5", xscale="log", ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
"""
## The search

A learning rate is drawn for every run. Each run gets a ledger of its own, which lets it release no more than was
stated.
"""

# %%
features, labels = make_classification(5000, 20, n_informative=8, class_sep=1.0, random_state=0)
features = torch.tensor(features, dtype=torch.float32)
train_set = TensorDataset(features[:4000], torch.tensor(labels[:4000]))
val_set = TensorDataset(features[4000:], torch.tensor(labels[4000:]))


class Classifier(pl.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.network, self.learning_rate = torch.nn.Linear(20, 2), learning_rate
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.accuracy.update(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def make_trainer(run: SelectionRun) -> tuple[pl.Trainer, pl.LightningModule, pl.LightningDataModule]:
    private = SRPPSGD(scenario, sampling=sampling, noise_multiplier=noise, ledger=run.ledger("fit"))
    scored = PrivateMetrics(["val/accuracy"], scenario, epsilon=0.05, renyi_order=16, ledger=run.ledger("score"))
    data = pl.LightningDataModule.from_datasets(train_set, val_set, batch_size=400)
    trainer = pl.Trainer(max_steps=steps, callbacks=[private, scored], logger=False, default_root_dir=run.folder)
    return trainer, Classifier(**run.settings), data


selection = PrivateSelection(
    SearchSpace({"learning_rate": LogUniform(0.01, 10.0)}),
    "val/accuracy",
    {"fit": training, "score": score},
    scenario,
    ledger="study.db",
    folder="selection",
    runs=NumberOfRuns.expecting(8, eta=1.0),
)
best = selection.run(make_trainer)
print(f"learning rate {best.settings['learning_rate']:.3g}, noised accuracy {best.score:.1%}")
print(f"the whole search: epsilon {best.price.curve.epsilon(1e-5):.2f} at delta 1e-5; one run alone: {one:.2f}")

# %% [markdown]
"""
## What to take away

- Showing only the best of a secret number of runs makes a whole search of twenty cost less than two runs.
- Settings are drawn at random from a space that is stated beforehand, and the score is private, too.
- How many runs there were stays secret, and so must how long they took: `wall_time` makes short searches alike.
"""
