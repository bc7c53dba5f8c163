# %% [markdown]
"""
# Pad a clock

A recurrent network takes longer over longer records, so the times of its answers tell how long a record is.
`PositiveDelay` pads every answer to a public maximum, with one-sided noise for what is left.
"""

# %%
import logging
import time

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import PositiveDelay, PositiveNoise
from lightning_pac.accountants import dp_success_bound
from lightning_pac.cards import at_most

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
ANSWERS, SHORT, LONG = 40, 50, 500  # answers about records of each length


# %% [markdown]
"""
## A network, and a clock outside it
"""


# %%
class Reader(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.reader = torch.nn.GRU(8, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 2)

    def predict_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.head(self.reader(batch[0])[1][-1]).argmax(dim=-1)


class Clock(pl.Callback):
    """Sees when each answer is done, which is when the next one begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_predict_batch_start(self, *_: object, **__: object) -> None:
        self.times.append(time.monotonic())


def milliseconds(length: int, callbacks: list[pl.Callback]) -> npt.NDArray[np.float64]:
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[clock, *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    records = TensorDataset(torch.randn(ANSWERS, length, 8))
    trainer.predict(Reader(), DataLoader(records, batch_size=1), return_predictions=False)
    return 1000 * np.diff(clock.times)[1:]  # the first answer warms up


# %% [markdown]
"""
## With and without padding

No answer takes 100 ms; on a busy machine one may, and is counted as not covered. All answers together cost epsilon 1.
"""

# %%
noise = PositiveNoise.for_dp(epsilon=1.0, delta=1e-5, compositions=ANSWERS)
bare = [milliseconds(length, []) for length in (SHORT, LONG)]
padded = [
    milliseconds(length, [PositiveDelay(noise, unit=0.0005, max_duration=0.1, on_overrun="count")])
    for length in (SHORT, LONG)
]


def attack(short: npt.NDArray[np.float64], long: npt.NDArray[np.float64]) -> float:
    """Guesses of the length that are right: a threshold is chosen on every other answer and tried on the rest."""
    seen, is_long = np.concatenate([short[::2], long[::2]]), np.repeat([False, True], [len(short[::2]), len(long[::2])])
    best = max(seen, key=lambda threshold: np.mean((seen > threshold) == is_long))
    return float((np.mean(short[1::2] <= best) + np.mean(long[1::2] > best)) / 2)


print(f"bare     {np.median(bare[0]):6.1f} and {np.median(bare[1]):6.1f} ms   attack {attack(*bare):.0%} right")
print(f"padded   {np.median(padded[0]):6.1f} and {np.median(padded[1]):6.1f} ms   attack {attack(*padded):.0%} right")
print(f"promise                            at most {at_most(dp_success_bound(1.0, 1e-5))} right, whatever the attack")

# %%
figure, panels = plt.subplots(1, 2, figsize=(8.4, 2.8), layout="constrained")
for axes, times, title in zip(panels, (bare, padded), ("bare", "padded"), strict=True):
    bins = np.linspace(0, 1.1 * max(part.max() for part in times), 40)
    axes.hist(times[0], bins, alpha=0.6, label="short records")
    axes.hist(times[1], bins, alpha=0.6, label="long records")
    axes.set(title=title, xlabel="milliseconds an answer", ylabel="answers")
panels[0].legend()
plt.show()

# %% [markdown]
"""
## What to take away

- Time is a release of its own, next to the model and its answers, and can be padded but not shortened.
- Most of a padded answer is the public maximum; the noise hides the one unit of time that may be left.
- Memory, power, and the number of answers stay visible.
"""
