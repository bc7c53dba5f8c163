"""A private step in shards beside an ordinary step of FSDP2, and one of private DDP: time, and peak memory of a rank.

python benchmarks/sharded.py --width 512 --layers 4 --ranks 2
"""

import argparse
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.multiprocessing as mp
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from lightning_pac import SRPPSGD, TwoWorldScenario

PAGE = resource.getpagesize()


class Stack(pl.LightningModule):
    """Square layers, each of which is sharded by itself."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers))
        self.times: list[float] = []

    @override
    def configure_model(self) -> None:
        if self._device_mesh is not None:
            for block in self.blocks:
                fully_shard(block, mesh=self._device_mesh["data_parallel"])

    @override
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        hidden = batch[0]
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().mean()

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.times.append(time.perf_counter())

    @override
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


class Watched(pl.Callback):
    """Peak memory within steps, and with the check of the loss that comes before some of them."""

    def __init__(self) -> None:
        self.before = self.peak = self.all = 0
        self.within = False

    def _sample(self) -> None:
        while True:
            size = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
            self.all = max(self.all, size)
            if self.within:
                self.peak = max(self.peak, size)
            time.sleep(0.002)

    @override
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.within = batch_idx > 0

    @override
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.within = False


@contextmanager
def environment(rank: int, size: int, port: int) -> Iterator[None]:
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    yield


def run(rank: int, args: argparse.Namespace, kind: str, port: int, results: Any) -> None:
    with environment(rank, args.ranks, port), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        watched = Watched()
        watched.before = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        threading.Thread(target=watched._sample, daemon=True).start()
        data = TensorDataset(torch.randn(args.batch * args.ranks * args.steps, args.width))
        private = SRPPSGD(TwoWorldScenario(1), noise_multiplier=1.0, renyi_order=4, ledger=f"{args.folder}/{kind}.db")
        callbacks = [watched] if kind == "ordinary FSDP2" else [private, watched]
        strategy: Any = {"private DDP": "ddp_private", "private FSDP2": "fsdp_private"}.get(kind)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=args.ranks,
            strategy=strategy or ModelParallelStrategy(args.ranks, 1),
            callbacks=callbacks,
            max_epochs=1,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Stack(args.width, args.layers)
        trainer.fit(model, DataLoader(data, batch_size=args.batch))
        steps = torch.tensor(model.times).diff()[5:]
        results.put((kind, rank, float(steps.median()), watched.peak - watched.before, watched.all - watched.before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="records of a rank")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    size = args.layers * args.width * (args.width + 1)
    print(
        f"{size:,} parameters, {4 * size / 2**20:.1f} MiB; {args.ranks} ranks of one thread, {args.batch} records each"
    )
    with tempfile.TemporaryDirectory() as args.folder:
        for kind in ("ordinary FSDP2", "private FSDP2", "private DDP"):
            results = mp.get_context("spawn").SimpleQueue()
            mp.spawn(run, (args, kind, find_free_network_port(), results), nprocs=args.ranks)
            found = [results.get() for _ in range(args.ranks)]
            step, peak, with_checks = (max(row[place] for row in found) for place in (2, 3, 4))
            print(
                f"{kind:15} {1e3 * step:9.1f} ms a step, peak of a rank {peak / 2**20:8.1f} MiB in steps, "
                f"{with_checks / 2**20:8.1f} MiB with checks"
            )


if __name__ == "__main__":
    main()
