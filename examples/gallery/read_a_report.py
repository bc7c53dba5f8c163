# %% [markdown]
"""
# Read a report

`lightning-pac report` turns a folder of runs into one page that can be sent or printed. Here are three runs, ordinary
training and two promises, and their page from top to bottom.
"""

# %%
import logging

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import make_classification
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario
from lightning_pac.report import find_runs, summarize, write_report

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# %% [markdown]
"""
## Three runs

Every run logs to a folder of its own, and its privacy card is saved there.
"""

# %%
features, labels = make_classification(8000, 20, n_informative=8, random_state=0)
data = TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))
patients, others = torch.utils.data.random_split(data, [6000, 2000], torch.Generator().manual_seed(0))


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(20, 2)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val_accuracy", (self.network(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


scenario = TwoWorldScenario(num_differing=5, secret="Whether five of 6,000 patients are ill.")
for name, bound in {"ordinary": None, "strict": 0.53, "generous": 0.65}.items():
    pl.seed_everything(0, verbose=False)
    private = [] if bound is None else [SRPPSGD(scenario, sampling=Poisson(rate=0.1), world_success_bound=bound)]
    trainer = pl.Trainer(
        max_epochs=5,
        callbacks=private,
        logger=CSVLogger("runs", name=name, version=""),  # which deletes the metrics of an earlier run there
        accelerator="cpu",
        log_every_n_steps=1,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(patients, batch_size=600, shuffle=True), DataLoader(others, batch_size=2000))

# %% [markdown]
"""
## The page

On the command line it is `lightning-pac report runs`.
"""

# %%
page = write_report("runs")
for row in map(summarize, find_runs("runs")):
    bound = "no promise" if row["success_bound"] is None else f"guessed right at most {row['success_bound']:.0%}"
    print(f"{row['run']:10} {bound:28} accuracy {row['accuracy']:.1%}")

# %% [markdown]
"""
![The top of the report: a sentence, a scale from a coin to certainty, and the promise of each
run](../images/report.png)

(The picture is of the demonstration, `make demo`, where attacks were run, too.)

- **The sentence** says how often the secret can be guessed by an attacker who sees everything, beside a coin, and
  what that cost in accuracy. *The secret* says who or what is protected; where runs have different secrets, the table
  does.
- **The scale** goes from a coin, where nothing is learned, to certainty. A promise near its left end is worth
  keeping.
- **Blue areas** end at the promise, which is proven. **Marks** are attacks that were tried: one whose whole
  interval lies above its promise would refute it, those below prove nothing.
- **The folds** hold courses over the run, technical names and figures, and the privacy cards with their conditions.
"""

# %% [markdown]
"""
## What to take away

- A promise is proven, an attack is measured: only the first is a guarantee.
- Read the promise together with the secret: five patients of 6,000 here, not each patient's whole record.
- Each row is about one run alone. Several runs on the same data tell more together.
"""
