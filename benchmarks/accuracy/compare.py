"""Test accuracy at equal promises: no privacy, Opacus, this library plain, with all of its parts, and with each alone.

    python benchmarks/accuracy/compare.py --data-root FOLDER --output benchmarks/accuracy/results.json

Promises are (epsilon, 1e-5) for one record, and a bound of 0.6 on guessing a fact of 10 records. The learning rate of
each row is chosen on public training records, which are not trained on, by one run a rate and two more of the best two;
the accuracy is that of the test records, which choose nothing, with its standard error over the seeds. Every fit is
written down at once, with its CPU seconds and the commit, and a second call goes on with the rest. A fit of Adult takes
about 1.5 CPU seconds. `--page FILE ...` writes the tables of pages anew, from what there is.
"""

import argparse
import json
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from loop import Plan, Recipe, accuracy, make_model, plan_of, train, train_by_opacus, train_openly
from page import cell, chosen_rate, draw, write_page
from recipes import BATCH, DELTA, EPOCHS, EPSILON_OF_FACT, PROMISES, RECIPES, rates_of, rows_of
from sets import LOADERS, PUBLIC
from tqdm import tqdm

from lightning_pac import Poisson


class Results:
    """Fits on record, and those that are made when they are asked for."""

    def __init__(self, file: Path, data_root: Path) -> None:
        self.file, self._root = file, data_root
        found = json.loads(file.read_text()) if file.exists() else []
        self.known = {self._key(fit): fit for fit in found}
        self._sets: dict[str, Any] = {}
        self._plans: dict[Any, Plan] = {}
        describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        self._commit = subprocess.run(
            describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    def fit(self, name: str, promise: str, row: str, rate: float, seed: int) -> dict[str, Any]:
        """One run, and its accuracy on public and on test records."""
        fit = {"data": name, "promise": promise, "row": row, "rate": rate, "seed": seed}
        if self._key(fit) in self.known:
            return self.known[self._key(fit)]
        private, public, test = self._split(name)
        recipe, records = RECIPES[row], len(private[1])
        steps = EPOCHS[name] * records // BATCH
        model, started = make_model(private, seed), time.process_time()
        if promise == "none":
            model = train_openly(model, private, recipe, rate, BATCH, steps)
        else:
            units = records // recipe.rows if recipe.persons else records
            place = name, promise, row
            if place not in self._plans:
                self._plans[place] = _plan(row, recipe, units, steps, promise)
            run = train_by_opacus if row.startswith("Opacus") else train
            model = run(model, private, recipe, rate, self._plans[place], steps)
            fit["bands"] = 1 if self._plans[place].correlation is None else self._plans[place].correlation.num_bands
            fit["noise_multiplier"] = round(self._plans[place].noise_multiplier, 4)
        fit |= {"public": round(accuracy(model, public), 5), "test": round(accuracy(model, test), 5)}
        fit |= {"cpu_seconds": round(time.process_time() - started, 2), "commit": self._commit}
        self.known[self._key(fit)] = fit
        lines = ",\n".join(json.dumps(one) for one in self.known.values())
        written = self.file.with_suffix(".new")
        written.write_text(f"[\n{lines}\n]\n")
        written.replace(self.file)  # whole at any time, also where the run is ended
        return fit

    def row(self, name: str, promise: str, row: str, seeds: int) -> list[float]:
        """Test accuracies at the rate that the public records choose."""
        promise = "none" if row.startswith("non-private") else promise
        best = self._best_rate(name, promise, row)
        return [self.fit(name, promise, row, best, seed)["test"] for seed in range(1, seeds + 1)]

    def _best_rate(self, name: str, promise: str, row: str) -> float:
        """Each rate has one run, and the two of the highest public accuracy have two more."""
        first = [self.fit(name, promise, row, rate, 0) for rate in rates_of(name, row, promise)]
        best = sorted(first, key=lambda fit: fit["public"])[-2:]
        more = [self.fit(name, promise, row, fit["rate"], seed) for fit in best for seed in (-1, -2)]
        return chosen_rate([*first, *more])

    def _split(self, name: str) -> Any:
        """Private, public and test records."""
        if name not in self._sets:
            (inputs, labels), test = LOADERS[name](self._root)
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
            order = torch.arange(len(labels)) if name == "dry_bean" else order
            public, private = order[: PUBLIC[name]], order[PUBLIC[name] :]
            self._sets = {name: ((inputs[private], labels[private]), (inputs[public], labels[public]), test)}
        return self._sets[name]

    @staticmethod
    def _key(fit: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(fit[part] for part in ("data", "promise", "row", "rate", "seed"))


def _plan(row: str, recipe: Recipe, units: int, steps: int, promise: str) -> Plan:
    terms = PROMISES[promise]
    if not row.startswith("Opacus"):
        return plan_of(recipe, units, BATCH, steps, terms)
    from opacus.accountants.utils import get_noise_multiplier

    epsilon = terms.get("epsilon", EPSILON_OF_FACT)
    noise = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sample_rate=BATCH / units, steps=steps, accountant="prv",
        epsilon_tolerance=min(0.01, epsilon / 50), eps_error=min(0.01, epsilon / 20),
    )  # fmt: skip
    return Plan(Poisson(BATCH / units), noise, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-root", type=Path, required=True, help="folder with MNIST, adult, bank, dry_bean, ag_news, cifar*.npz"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", nargs="+", choices=list(LOADERS), default=list(LOADERS))
    parser.add_argument("--promises", nargs="+", choices=list(PROMISES), default=list(PROMISES))
    parser.add_argument("--rows", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path, nargs="+", default=[], help="Markdown files whose tables are written anew")
    parser.add_argument("--picture", type=Path, help="SVG file for accuracy over the promises")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = Results(options.output, options.data_root)
    work = [(n, p, r) for n in options.sets for p in options.promises for r in rows_of(n, p) if r in options.rows]
    for name, promise, row in tqdm(work, unit="row"):
        print(f"{name:<16} {promise:<5} {row:<22} {cell(results.row(name, promise, row, options.seeds))}", flush=True)
    for file in options.page:
        write_page(file, list(results.known.values()))
    if options.picture is not None:
        draw(options.picture, list(results.known.values()))


if __name__ == "__main__":
    main()
