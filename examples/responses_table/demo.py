"""Private answers about a table from 128 gradient-boosting models, which are not torch.

    python examples/responses_table/demo.py --output runs/responses_table
    python examples/responses_table/demo.py --bean-file data/dry_bean/Dry_Bean_Dataset.arff

Without a file, the table is scikit-learn's breast cancer data. The secret and the ledger are new in every run.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from torch.utils.data import DataLoader

from lightning_pac.callbacks import PACResponses
from lightning_pac.cards import at_most
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import LearnerEnsemble
from lightning_pac.scenarios import BalancedSubsets

Array = npt.NDArray[Any]


def make_learner() -> HistGradientBoostingClassifier:
    """One member; its seed is public."""
    return HistGradientBoostingClassifier(max_iter=40, early_stopping=False, random_state=0)


def table(bean_file: Path | None) -> tuple[Array, Array]:
    """Features and classes, in a fixed random order."""
    if bean_file is None:
        features, labels = load_breast_cancer(return_X_y=True)
    else:
        lines = bean_file.read_text().split("@DATA")[1].split()
        rows = [line.rsplit(",", 1) for line in lines]
        features = np.array([row[0].split(",") for row in rows], dtype=np.float64)
        labels = np.unique([row[1] for row in rows], return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(labels))
    return features[order], labels[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bean-file", type=Path, help="Dry_Bean_Dataset.arff of the UCI repository (7 classes)")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--output", type=Path, default=Path("runs/responses_table"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("secret.key", "responses.db"):
        if (args.output / name).exists():
            raise SystemExit(f"{args.output / name} is of an earlier run: give another --output, or remove the folder")

    features, labels = table(args.bean_file)
    num_test = len(labels) // 5
    test, test_labels = features[:num_test], labels[:num_test]
    pool = BalancedSubsets(num_records=len(labels) - num_test, num_subsets=args.members, seed=0)
    ensemble = LearnerEnsemble(make_learner, pool).fit(features[num_test:], labels[num_test:])
    ensemble.save(args.output / "ensemble.pkl")
    members = (ensemble.votes(test).numpy() == test_labels[:, None]).mean()

    secret = pool.draw_secret(args.output / "secret.key")
    with PACResponder(ensemble, secret, budget_per_response=2**-32, ledger=args.output / "responses.db") as responder:
        trainer = pl.Trainer(accelerator="cpu", logger=False, callbacks=[PACResponses(responder)])
        answers = torch.cat(trainer.predict(ensemble, DataLoader(torch.from_numpy(test), batch_size=500))).numpy()
        responder.card().save(args.output)
        print(f"one member, no noise     {members:.3f}")
        print(f"private answers          {(answers == test_labels).mean():.3f}")
        print(f"spent                    {responder.spent:.3g} nats in {responder.num_responses} answers")
        print(f"membership inference     at most {at_most(responder.membership_success_bound)}")


if __name__ == "__main__":
    main()
