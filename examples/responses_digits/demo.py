"""Private answers and a private student from 128 digit classifiers.

    python examples/responses_digits/demo.py --output runs/responses_digits

The secret and the ledger are new in every run; in earnest they are kept, and opened with `pool.load_secret`.
"""

import argparse
import functools
from pathlib import Path

import lightning.pytorch as pl
import torch
from responses_digits import NUM_POOL, PoolDigits, PublicDigits, Student, make_network
from torch.utils.data import DataLoader

from lightning_pac.callbacks import PACResponses
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import DistilledDataModule, SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("runs/responses_digits"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("secret.key", "responses.db"):
        if (args.output / name).exists():
            raise SystemExit(f"{args.output / name} is of an earlier run: give another --output, or remove the folder")
    pl.seed_everything(0)  # public: it orders batches, and does not touch secrets or noise
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_model_summary": False}

    data = PoolDigits()
    labels = torch.stack([label for _, label in data.test])
    pool = BalancedSubsets(num_records=NUM_POOL, num_subsets=args.members, seed=0)
    optimizer = functools.partial(torch.optim.Adam, lr=3e-3)
    ensemble = SubsetEnsemble(make_network, pool, optimizer=optimizer)
    trainer = pl.Trainer(max_epochs=args.epochs, **options)
    trainer.fit(ensemble, data)
    members = trainer.validate(ensemble, data, verbose=False)[0]["val_accuracy"]

    secret = pool.draw_secret(args.output / "secret.key")
    ledger = args.output / "responses.db"
    with PACResponder(ensemble, secret, budget_per_response=2**-32, ledger=ledger, budget=1e-4) as responder:
        private = pl.Trainer(callbacks=[PACResponses(responder)], **options).predict(ensemble, data)
        answers = torch.cat(private)

        student = Student()
        distilled = DistilledDataModule(responder, PublicDigits(), alpha=0.01)
        pl.Trainer(max_epochs=60, **options).fit(student, distilled)
        accuracy = pl.Trainer(**options).validate(student, DataLoader(data.test, batch_size=64), verbose=False)[0][
            "val_accuracy"
        ]

        responder.card().save(args.output)
        print(f"one member, no noise     {members:.3f}")
        print(f"private answers          {(answers == labels).float().mean():.3f}")
        kept = len(distilled.labels.index)
        print(f"student of {kept} labels    {accuracy:.3f}")
        print(f"spent                    {responder.spent:.3g} nats in {responder.num_responses} answers")
        print(f"membership inference     at most {100 * responder.membership_success_bound:.3f} %")


if __name__ == "__main__":
    main()
