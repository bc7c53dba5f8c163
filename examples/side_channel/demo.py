"""Answer about records of private length, such that the clock does not tell the length.

    python examples/side_channel/demo.py

A recurrent network reads a record from its start to its end, so an answer about a long record takes longer. The demo
answers about short and about long records, without padding and with `PositiveDelay`, and lets an attacker who sees when
answers come decide which it was.
"""

import argparse
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import PositiveDelay, PositiveNoise
from lightning_pac.accountants import dp_success_bound

SHORT, LONG = 50, 500  # measurements in a record
UNIT = 0.0005  # seconds
MAX_DURATION = 0.1  # seconds that no answer takes; one that does, on a busy machine, is counted and not covered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=60, help="answers about records of each length")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of all answers together")
    parser.add_argument("--output", type=Path, default=Path("runs/side_channel"))
    args = parser.parse_args()

    # Whatever its record, an answer is first padded to MAX_DURATION less one unit, so two differ by one unit at most.
    noise = PositiveNoise.for_dp(args.epsilon, delta=1e-5, compositions=args.answers)
    bare = [answer(length, args, []) for length in (SHORT, LONG)]
    delays = [PositiveDelay(noise, UNIT, MAX_DURATION, on_overrun="count") for _ in (SHORT, LONG)]
    padded = [answer(length, args, [delay]) for length, delay in zip((SHORT, LONG), delays, strict=True)]
    print(f"bare, short records        {1000 * np.median(bare[0]):.1f} ms an answer")
    print(f"bare, long records         {1000 * np.median(bare[1]):.1f} ms an answer")
    print(f"padded, short records      {1000 * np.median(padded[0]):.1f} ms an answer")
    print(f"padded, long records       {1000 * np.median(padded[1]):.1f} ms an answer")
    print(f"attack on one bare answer  {100 * attack(*bare):.0f} % right")
    print(f"attack on one padded       {100 * attack(*padded):.0f} % right")
    print(f"bound for all of them      {100 * dp_success_bound(args.epsilon, 1e-5):.1f} % right, whatever the attack")


class Reader(pl.LightningModule):
    """A network whose work grows with the length of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        _, state = self.reader(batch[0])
        return self.head(state[-1]).argmax(dim=-1)


class Clock(pl.Callback):
    """The view from outside: when each answer is done, which is when the next one begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_predict_batch_start(self, *_: object, **__: object) -> None:
        self.times.append(time.monotonic())


def answer(length: int, args: argparse.Namespace, callbacks: list[pl.Callback]) -> npt.NDArray[np.float64]:
    """Seconds that each answer about records of one length took, as they show."""
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[clock, *callbacks],
        default_root_dir=args.output,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    records = TensorDataset(torch.randn(args.answers, length, 8))
    trainer.predict(Reader(), DataLoader(records, batch_size=1), return_predictions=False)
    return np.diff(clock.times)[1:]  # the first answer warms up


def attack(short: npt.NDArray[np.float64], long: npt.NDArray[np.float64]) -> float:
    """The share of lengths that a threshold guesses correctly on every other answer, chosen on the remaining ones."""
    seen = np.concatenate([short[::2], long[::2]])
    is_long = np.repeat([False, True], [len(short[::2]), len(long[::2])])
    best = max(seen, key=lambda threshold: np.mean((seen > threshold) == is_long))
    return float((np.mean(short[1::2] <= best) + np.mean(long[1::2] > best)) / 2)


if __name__ == "__main__":
    main()
