"""What the callback itself costs in a ResNet-22 step: everything but per-example gradients and noise.

    python benchmarks/callback_overhead.py --steps 10 --batch-size 64

Times the parts of a private step inside one fit, so that they share the machine's state: the callback's hooks, less the
engine's clipped sum and the noise, against an ordinary Trainer's step of the same model.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.gradients.engine import GradientEngine


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(16, outputs, affine=False),
            nn.ELU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(16, outputs, affine=False),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return nn.functional.elu(self.body(inputs) + self.shortcut(inputs))


class ResNet22(pl.LightningModule):
    """Three stages of 16, 32 and 64 channels, GroupNorm without affine parameters, ELU."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
        channels = 16
        for stage, width in enumerate((16, 32, 64)):
            for block in range(3 if stage else 4):
                layers.append(Residual(channels, width, 2 if stage and not block else 1))
                channels = width
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), 0.1)


class StepTimes(pl.Callback):
    """Times whole batches, from start to start."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        """Note the time."""
        self.starts.append(time.perf_counter())

    @property
    def least(self) -> float:
        """Least seconds from one batch to the next, without the first two."""
        return min(b - a for a, b in zip(self.starts[2:], self.starts[3:], strict=False))


def timed(owner: type, name: str, spent: dict[str, list[float]], key: str) -> Callable[[], None]:
    """Add up the time spent in a method; returns how to undo that."""
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[key].append(time.perf_counter() - start)

    setattr(owner, name, method)
    return lambda: setattr(owner, name, original)


def measure(steps: int, batch_size: int) -> dict[str, float]:
    """Least seconds of the parts of a step, and the shares of an ordinary step."""
    records = 8 * batch_size
    data = TensorDataset(torch.randn(records, 3, 32, 32), torch.randint(10, (records,)))
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    spent: dict[str, list[float]] = defaultdict(list)
    hooks = ("on_train_batch_start", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end")
    engines = [kind for kind in all_engines() if "clipped_sum" in vars(kind)]
    undo = [timed(SRPPSGD, hook, spent, hook) for hook in hooks]
    undo += [timed(engine, "clipped_sum", spent, "engine") for engine in engines]
    undo += [timed(NoisySum, "_make_public", spent, "noise")]
    with tempfile.TemporaryDirectory() as folder:
        ordinary, private = StepTimes(), StepTimes()
        run(folder, loader, steps, [ordinary])
        scenario = TwoWorldScenario(num_differing=1)
        callback = SRPPSGD(scenario, noise_multiplier=2.0, sampling=Poisson(rate=batch_size / records))
        run(folder, loader, steps, [callback, private])
    for restore in undo:
        restore()
    # The least disturbed step of each part: a busy machine only ever adds time. Calls before the first step are those
    # of the check of the loss.
    per_step = {key: min(times[-steps:]) for key, times in spent.items()}
    own = sum(per_step[hook] for hook in hooks) - per_step["engine"] - per_step["noise"]
    return {
        "ordinary_step": ordinary.least,
        "private_step": private.least,
        "clipped_sum_after_backward": per_step["engine"],
        "noise": per_step["noise"],
        "callback_alone": own,
        "first_step_in_callback": spent["on_train_batch_end"][0],
        "callback_alone_share": own / ordinary.least,
        "noise_share": per_step["noise"] / ordinary.least,
    }


def all_engines() -> list[type[GradientEngine]]:
    """Every engine that is imported when the automatic one is made."""
    from lightning_pac.gradients import make_engine

    make_engine()
    return GradientEngine.__subclasses__()


def run(folder: str, loader: DataLoader[Any], steps: int, callbacks: list[pl.Callback]) -> None:
    """One fit of the given number of steps."""
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(ResNet22(), loader)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(arguments.steps, arguments.batch_size), indent=2))


if __name__ == "__main__":
    main()
