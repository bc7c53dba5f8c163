# %% [markdown]
"""
# From Opacus

The same DP-SGD in both libraries: the same table, rate, noise and number of steps. With Opacus the module, the
optimizer and the loader are wrapped, and you write the loop; here you add a callback to the Trainer.
"""

# %%
import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from sklearn.datasets import make_classification
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, SRPPAccountant, TwoWorldScenario

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
NOISE, NORM, RECORDS, BATCH, STEPS = 1.1, 1.0, 4000, 200, 200

features, labels = make_classification(RECORDS + 1000, 20, n_informative=8, random_state=0)
features, labels = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
train_set = TensorDataset(features[:RECORDS], labels[:RECORDS])


def make_network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def accuracy(network: torch.nn.Module) -> float:
    return float((network(features[RECORDS:]).argmax(dim=1) == labels[RECORDS:]).float().mean())


# %% [markdown]
"""
## With Opacus
"""

# %%
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
engine = PrivacyEngine()
wrapped, optimizer, loader = engine.make_private(
    module=network,
    optimizer=optimizer,
    data_loader=DataLoader(train_set, batch_size=BATCH),
    noise_multiplier=NOISE,
    max_grad_norm=NORM,
)
for _ in range(STEPS * BATCH // RECORDS):
    for batch, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(batch), targets).backward()
        optimizer.step()
print(f"Opacus           accuracy {accuracy(network):.1%}, epsilon {engine.get_epsilon(1e-5):.3f} at delta 1e-5")


# %% [markdown]
"""
## With lightning-pac

The batch size is stated, since the number of records is secret and nothing may be computed from it.
"""


# %%
class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


sampling = Poisson(rate=BATCH / RECORDS, batch_size=BATCH)
scenario = TwoWorldScenario.differential_privacy()
private = SRPPSGD(scenario, sampling=sampling, noise_multiplier=NOISE, max_grad_norm=NORM)
trainer = pl.Trainer(
    max_steps=STEPS,
    callbacks=[private],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
model = Classifier()
trainer.fit(model, DataLoader(train_set, batch_size=BATCH))
epsilon = private.account.exact_epsilon_at_delta()
print(f"lightning-pac    accuracy {accuracy(model.network):.1%}, epsilon {epsilon:.3f} at delta 1e-5")

# %% [markdown]
"""
## The accounts, step by step
"""

# %%
steps = [1, 10, 25, 50, 100, 150, 200]
accountant, ours, theirs = SRPPAccountant(scenario, sampling), [], []
for number in steps:
    ours.append(accountant.epsilon_at_delta(NOISE, number, delta=1e-5)[0])
    opacus = PRVAccountant()
    opacus.history = [(NOISE, BATCH / RECORDS, number)]
    theirs.append(opacus.get_epsilon(1e-5))
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.plot(steps, theirs, "s", label="Opacus, PRVAccountant")
axes.plot(steps, ours, "-", label="lightning-pac")
axes.set(xlabel="steps", ylabel="epsilon at delta 1e-5")
axes.legend()
plt.show()

# %% [markdown]
"""
## What to take away

- The mechanism and the price are the same; nothing is wrapped, and the Trainer keeps its loop.
- The Trainer's loader is rebuilt for Poisson sampling, so what the account assumes is what happens.
- Accumulation, resuming and several devices are accounted for by the callback.
"""
