# %% [markdown]
"""
# Private answers, and a student to publish

A model behind an interface gives away who it was trained on, a little with every answer. Here 128 models are trained
on public subsets of 898 digits, one of them is drawn in secret and answers, and a student learns from its answers.
"""

# %%
import functools
import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import BalancedSubsets, DistilledDataModule, PACResponder, PACResponses, SubsetEnsemble, WithIndex
from lightning_pac.accountants import membership_success_bound
from lightning_pac.cards import at_most

pl.seed_everything(0, verbose=False)  # public: secrets and noise are drawn from the operating system
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
}

# %% [markdown]
"""
## A model for each subset

One fit trains all 128. `WithIndex` says which records are in a batch, so that each model learns from its own half.
"""

# %%
pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
images, labels = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
pool_set, public_set = TensorDataset(images[:898], labels[:898]), TensorDataset(images[898:1437])
test_images, test_labels = images[1437:], labels[1437:]


def make_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


pool = BalancedSubsets(num_records=898, num_subsets=128, seed=0)
ensemble = SubsetEnsemble(make_network, pool, optimizer=functools.partial(torch.optim.Adam, lr=3e-3))
trainer = pl.Trainer(max_epochs=20, **QUIET)
trainer.fit(ensemble, DataLoader(WithIndex(pool_set), batch_size=64, shuffle=True))
votes = ensemble.votes(test_images)
one_member = float((torch.as_tensor(votes) == test_labels[:, None]).float().mean())

# %% [markdown]
"""
## Answers

Which of the 128 answers is the secret. Each answer costs at most 2^-32 nats, and nothing where all models agree.
"""

# %%
secret = pool.draw_secret("secret.key")  # once; afterwards pool.load_secret("secret.key")
responder = PACResponder(ensemble, secret, budget_per_response=2**-32, ledger="responses.db", budget=1e-4)
answering = pl.Trainer(callbacks=[PACResponses(responder)], **QUIET)
answers = torch.cat(answering.predict(ensemble, DataLoader(TensorDataset(test_images), batch_size=64)))
private_accuracy = float((answers == test_labels).float().mean())


# %% [markdown]
"""
## A student

It sees public images and private labels, and nothing else, so it may be published.
"""


# %%
class Student(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


student = Student()
pl.Trainer(max_epochs=40, **QUIET).fit(student, DistilledDataModule(responder, public_set, alpha=0.01))
student_accuracy = float((student.network(test_images).argmax(dim=1) == test_labels).float().mean())
print(f"one model, no noise     {one_member:.1%}")
print(f"private answers         {private_accuracy:.1%}")
print(f"student                 {student_accuracy:.1%}")
print(f"spent                   {responder.spent:.2g} nats in {responder.num_responses} answers")
print(f"who was in the pool     guessed right at most {at_most(responder.membership_success_bound)} of the time")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
names = ["one model,\nno noise", "private\nanswers", "student"]
bars = left.bar(names, [100 * one_member, 100 * private_accuracy, 100 * student_accuracy], color=["grey", "C0", "C1"])
left.bar_label(bars, fmt="%.1f")
left.set(ylabel="test accuracy, %", ylim=(0, 105))
numbers = np.logspace(2, 9, 60)
right.semilogx(numbers, [100 * membership_success_bound(number * 2**-32) for number in numbers])
right.axhline(50, color="grey", ls=":")
right.set(xlabel="answers, at 2^-32 nats each", ylabel="membership guessed right at most, %")
plt.show()

# %% [markdown]
"""
## What to take away

- Models stay with you; answers leave. A million of them move a coin's 50 % by one point.
- Answer with votes: where the models agree, an answer needs no noise.
- The student costs no more than its labels, is used without limit, and is often better than a single answer.
"""
