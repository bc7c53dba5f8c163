"""Table 5: a student trained on private labels of public records, by the number of responses.

    python benchmarks/papers/responses/distillation.py --dataset mnist --records 10000 --shift --data-root data

Pool and public records are disjoint parts of one training set, whose public labels nobody looks at. The paper's public
images, CINIC-10, are of another distribution; `--shift` turns, bends, moves, fades and blurs with noise those of MNIST.
For CIFAR-10 give `--public` an npz file of images (array x), such as CINIC-10 converted to it, and a GPU. The members
are trained once; each run draws a secret, buys all labels and trains its students anew.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torch.nn.functional as F
from tasks import TASKS, Array, Task, load, normalized_images, pool_of, train
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_pac.accountants import dp_epsilon_for_success, membership_success_bound
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import DistilledDataModule


class Student(pl.LightningModule):
    """An ordinary classifier with the architecture of a member."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        assert task.network is not None
        self.network, self.learning_rate = task.network(), task.learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross-entropy with the private labels."""
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """As the members'."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def shifted(images: Array, seed: int = 0) -> Array:
    """MNIST's images (n, 784) under random affine maps, paler and with noise."""
    generator = torch.Generator().manual_seed(seed)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(len(images), *shape, generator=generator)

    angle, shear, scale = between(-0.4, 0.4), between(-0.3, 0.3), between(0.85, 1.25)
    maps = torch.zeros(len(images), 2, 3)
    maps[:, 0, 0], maps[:, 0, 1] = scale * angle.cos(), shear - scale * angle.sin()
    maps[:, 1, 0], maps[:, 1, 1] = scale * angle.sin(), scale * angle.cos()
    maps[:, :, 2] = between(-0.15, 0.15, 2)
    pixels = torch.from_numpy(images).reshape(-1, 1, 28, 28)
    moved = F.grid_sample(pixels, F.affine_grid(maps, list(pixels.shape), align_corners=False), align_corners=False)
    noisy = between(0.5, 1.0, 1, 1, 1) * moved + 0.1 * torch.randn(moved.shape, generator=generator)
    return np.asarray(noisy.clamp(0, 1).reshape(-1, 784).numpy())


def distil(
    responder: PACResponder, public: Array, task: Task, seed: int, args: argparse.Namespace
) -> tuple[float, Any]:
    """Accuracy of a student of the first records, and its labels."""
    torch.manual_seed(seed)
    data = DistilledDataModule(
        responder,
        TensorDataset(torch.from_numpy(public)),
        alpha=args.alpha,
        filter=args.filter,
        batch_size=task.batch_size,
        mix=args.mix,
        num_classes=task.num_classes,
    )
    data.prepare_data()
    assert data.labels is not None
    # The same number of steps for every size, so that small sets are not merely undertrained.
    steps = max(300, task.epochs * len(public) // task.batch_size)
    student = Student(task)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_steps=steps, accelerator=args.accelerator, devices=1, **quiet)
    trainer.fit(student, data)
    with torch.no_grad():
        predicted = student.cpu().eval().network(torch.from_numpy(task.test_features)).argmax(1).numpy()
    return float((predicted == task.test_labels).mean()), data.labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=sorted(TASKS), default="mnist")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, default=10_000, help="records in the pool; the rest is public")
    parser.add_argument("--shift", action="store_true", help="distort the public images (MNIST)")
    parser.add_argument("--runs", type=int, default=5, help="secrets, labels and students")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--responses", type=int, nargs="+", default=[500, 2500, 5000, 10000, 20000, 50000])
    parser.add_argument("--budget-exponent", type=int, default=32, help="b = 2^-exponent nats per response")
    parser.add_argument("--alpha", type=float, default=0.01)
    parser.add_argument("--filter", choices=["bayes", "test", "paper"], default="bayes")
    parser.add_argument("--mix", choices=["none", "mixup", "cutmix", "both"], default="none")
    parser.add_argument("--public", type=Path, help="an npz file of public images (array x)")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("runs/responses"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)

    whole = load(args.dataset, args.data_root)
    order = np.random.default_rng(0).permutation(len(whole.labels))
    pool_part, rest = order[: args.records], order[args.records :]
    task = Task(**{**vars(whole), "features": whole.features[pool_part], "labels": whole.labels[pool_part]})
    public, truth = whole.features[rest], whole.labels[rest]
    if args.shift:
        public = shifted(public)
    if args.public is not None:
        public, truth = normalized_images(args.public), None
    space = pool_of(task, args.members)
    ensemble = train(task, space, args.accelerator)
    runs = [one_run(ensemble, space, public, truth, task, seed, args) for seed in range(args.runs)]
    result = {
        "dataset": args.dataset,
        "records": args.records,
        "members": args.members,
        "budget": f"2^-{args.budget_exponent}",
        "filter": args.filter,
        "alpha": args.alpha,
        "member_accuracy": member_accuracy(ensemble, task),
        **averaged([{"private_teacher_accuracy": teacher} for _, teacher in runs]),
        "rows": [averaged(list(rows)) for rows in zip(*(rows for rows, _ in runs), strict=True)],
    }
    print(json.dumps(result, indent=2))
    (args.output / f"distillation_{args.filter}.json").write_text(json.dumps(result, indent=2) + "\n")


def one_run(
    ensemble: Any, space: Any, public: Array, truth: Array | None, task: Task, seed: int, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], float]:
    """Students of one secret's labels, one row a number of responses, and the accuracy of its private answers."""
    budget = 2.0**-args.budget_exponent
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        secret = space.draw_secret(Path(folder) / "secret.key")
        with PACResponder(ensemble, secret, budget, Path(folder) / "responses.db", rule="linear") as responder:
            for count in [count for count in args.responses if count <= len(public)]:
                accuracy, labels = distil(responder, public[:count], task, seed, args)
                bound = membership_success_bound(count * budget)
                row = {
                    "responses": count,
                    "mutual_information_of_all": count * budget,
                    "mutual_information_spent": responder.spent,
                    "membership_success_bound": bound,
                    "dp_epsilon": dp_epsilon_for_success(bound),
                    "unanimous": labels.num_unanimous,
                    "kept": len(labels.index),
                    "student_accuracy": accuracy,
                }
                if truth is not None:
                    row["kept_and_not_the_truth"] = float((truth[labels.index] != labels.labels).mean())
                rows.append(row)
                print(json.dumps(row), flush=True)
            # The teacher is asked last: its answers to the test set are paid for as well.
            answers = responder(torch.from_numpy(task.test_features[:2000]))
    return rows, float((answers == task.test_labels[:2000]).mean())


def averaged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the runs, with standard errors of those that vary."""
    found: dict[str, Any] = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        found[name] = values[0].item() if (values == values[0]).all() else float(values.mean())
        if len(runs) > 1 and not (values == values[0]).all():
            found[f"{name}_standard_error"] = float(values.std(ddof=1) / len(runs) ** 0.5)
    return found


def member_accuracy(ensemble: Any, task: Task) -> float:
    """Mean test accuracy of the members, without noise."""
    inputs, labels = torch.from_numpy(task.test_features[:2000]), torch.from_numpy(task.test_labels[:2000])
    with torch.no_grad():
        return float((ensemble.votes(inputs.to(ensemble.device)).cpu() == labels[:, None]).double().mean())


if __name__ == "__main__":
    main()
