"""A private step in shards beside an ordinary one of FSDP2, and beside one device: time, and peak memory of a rank.

python benchmarks/sharded.py --width 512 --layers 4 --ranks 2
python benchmarks/sharded.py --width 5000 --layers 4 --steps 3 --low-rank 8 --unchecked

The check of the loss, which comes before some steps, is in no time; at 10^8 parameters `--unchecked` leaves it out.
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
from lightning_pac.callbacks.srpp_sgd import callback, first_check
from lightning_pac.callbacks.srpp_sgd.loss_check import LossCheck

PAGE = resource.getpagesize()

# With how many processes; 0 stands for the ranks asked for.
KINDS = {"ordinary FSDP2": 0, "private FSDP2": 0, "private DDP": 0, "ordinary, one device": 1, "private, one device": 1}


class Layer(nn.Module):
    """A square layer: trained, or frozen beside two of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.whole = nn.Linear(width, width).requires_grad_(not rank)
        self.low = (
            nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)) if rank else None
        )

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.whole(inputs)
        return torch.tanh(hidden if self.low is None else hidden + self.low(inputs))


class Stack(pl.LightningModule):
    """Layers, each of which is sharded by itself."""

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer(width, rank) for _ in range(layers))

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
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.01)


class Watched(pl.Callback):
    """Time and peak memory of steps but the first, and memory with the check of the loss that comes before some."""

    def __init__(self) -> None:
        self.times: list[float] = []
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
        self.start = time.perf_counter()

    @override
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.within = False
        self.times.append(time.perf_counter() - self.start)


@contextmanager
def environment(rank: int, size: int, port: int) -> Iterator[None]:
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    yield


def run(rank: int, args: argparse.Namespace, kind: str, size: int, port: int, results: Any) -> None:
    with environment(rank, size, port), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        watched = Watched()
        watched.before = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        threading.Thread(target=watched._sample, daemon=True).start()
        data = TensorDataset(torch.randn(args.batch * size * args.steps, args.width))
        private = SRPPSGD(TwoWorldScenario(1), noise_multiplier=1.0, renyi_order=4, ledger=f"{args.folder}/{kind}.db")
        callbacks = [watched] if kind.startswith("ordinary") else [private, watched]
        strategies = {"private DDP": "ddp_private", "private FSDP2": "fsdp_private"}
        shards = ModelParallelStrategy(size, 1)
        strategy: Any = shards if kind == "ordinary FSDP2" else strategies.get(kind, "auto")
        if args.unchecked:
            for module in (first_check, callback):
                module.check_loss = lambda *_: LossCheck(None, None, (), (), True)  # type: ignore[attr-defined]
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=size,
            strategy=strategy,
            callbacks=callbacks,
            max_epochs=1,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Stack(args.width, args.layers, args.low_rank)
        trainer.fit(model, DataLoader(data, batch_size=args.batch))
        steps = torch.tensor(watched.times[1:])
        results.put((kind, rank, float(steps.median()), watched.peak - watched.before, watched.all - watched.before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="records of a rank")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--low-rank", type=int, default=0, help="train layers of this rank beside frozen ones")
    parser.add_argument("--unchecked", action="store_true", help="leave out the check of the loss")
    args = parser.parse_args()
    size = args.layers * args.width * (args.width + 1)
    print(
        f"{size:,} parameters, {4 * size / 2**20:.1f} MiB; {args.ranks} ranks of one thread, {args.batch} records each"
    )
    with tempfile.TemporaryDirectory() as args.folder:
        for kind, ranks in KINDS.items():
            processes = ranks or args.ranks
            results = mp.get_context("spawn").SimpleQueue()
            mp.spawn(run, (args, kind, processes, find_free_network_port(), results), nprocs=processes)
            found = [results.get() for _ in range(processes)]
            step, peak, with_checks = (max(row[place] for row in found) for place in (2, 3, 4))
            print(
                f"{kind:20} {1e3 * step:9.1f} ms a step, peak of a rank {peak / 2**20:8.1f} MiB in steps, "
                f"{with_checks / 2**20:8.1f} MiB in all",
                flush=True,
            )


if __name__ == "__main__":
    main()
