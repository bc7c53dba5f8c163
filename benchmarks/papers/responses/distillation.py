"""Table 5: a student trained on private labels of public records, by the number of responses.

    python benchmarks/papers/responses/distillation.py --dataset mnist --records 5000 --data-root data

Pool and public records are disjoint parts of one training set, whose public labels nobody looks at: no distribution
shift, unlike the paper's CINIC-10. For CIFAR-10 give `--public` an npz file of images (array x), such as the CIFAR-100
subset or CINIC-10 converted to it, and a GPU.
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


def distil(responder: PACResponder, public: Array, task: Task, args: argparse.Namespace) -> tuple[float, Any]:
    """Accuracy of a student of the first records, and its labels."""
    torch.manual_seed(0)
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
    parser.add_argument("--records", type=int, default=5000, help="records in the pool; the rest is public")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--responses", type=int, nargs="+", default=[500, 1000, 2500, 5000, 10000, 20000])
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
    if args.public is not None:
        public, truth = normalized_images(args.public), None
    space = pool_of(task, args.members)
    ensemble = train(task, space, args.accelerator)
    budget = 2.0**-args.budget_exponent
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        secret = space.draw_secret(Path(folder) / "secret.key")
        with PACResponder(ensemble, secret, budget, Path(folder) / "responses.db", rule="linear") as responder:
            for count in [count for count in args.responses if count <= len(public)]:
                accuracy, labels = distil(responder, public[:count], task, args)
                wrong = None if truth is None else float((truth[labels.index] != labels.labels).mean())
                bound = membership_success_bound(count * budget)
                rows.append(
                    {
                        "responses": count,
                        "mutual_information_of_all": count * budget,
                        "mutual_information_spent": responder.spent,
                        "membership_success_bound": bound,
                        "dp_epsilon": dp_epsilon_for_success(bound),
                        "unanimous": labels.num_unanimous,
                        "kept": len(labels.index),
                        "kept_and_not_the_truth": wrong,
                        "student_accuracy": accuracy,
                    }
                )
                print(json.dumps(rows[-1]))
            # The teacher is asked last: its answers to the test set are paid for as well.
            answers = responder(torch.from_numpy(task.test_features[:2000]))
    teacher = float((answers == task.test_labels[:2000]).mean())
    result = {
        "dataset": args.dataset,
        "records": args.records,
        "members": args.members,
        "budget": f"2^-{args.budget_exponent}",
        "filter": args.filter,
        "alpha": args.alpha,
        "private_teacher_accuracy": teacher,
        "member_accuracy": member_accuracy(ensemble, task),
        "rows": rows,
    }
    print(json.dumps(result, indent=2))
    (args.output / f"distillation_{args.filter}.json").write_text(json.dumps(result, indent=2) + "\n")


def member_accuracy(ensemble: Any, task: Task) -> float:
    """Mean test accuracy of the members, without noise."""
    inputs, labels = torch.from_numpy(task.test_features[:2000]), torch.from_numpy(task.test_labels[:2000])
    with torch.no_grad():
        return float((ensemble.votes(inputs.to(ensemble.device)).cpu() == labels[:, None]).double().mean())


if __name__ == "__main__":
    main()
