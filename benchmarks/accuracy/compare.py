"""Test accuracy at equal promises: no privacy, Opacus, this library plain, with all of its parts, and with each alone.

    python benchmarks/accuracy/compare.py --data-root FOLDER --output benchmarks/accuracy/results.json

Promises are (epsilon, 1e-5) for one record, and a bound of 0.6 on guessing a fact of 10 records. The learning rate of
each row is chosen on public training records, which are not trained on; the accuracy is that of the test records, which
choose nothing, with its standard error over the seeds. Every fit is written down at once, with its CPU seconds, and a
second call goes on with the rest. A fit of Adult takes about 1.5 CPU seconds; `--page FILE` writes a page of what there
is.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from loop import MOMENTUM, Plan, Recipe, accuracy, make_model, plan_of, train, train_by_opacus, train_openly
from sets import LOADERS, PUBLIC
from tqdm import tqdm

from lightning_pac import DPAdamBC

DELTA = 1e-5
BATCH = 512
EPOCHS = {"adult": 4, "bank": 4, "dry_bean": 12, "mnist": 6, "mnist_features": 6, "ag_news": 8}
IMAGES = ("mnist",)
GROUPED = ("adult", "dry_bean", "mnist_features")


def sgd(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate, momentum=MOMENTUM)


def adam_bc(floor: float) -> Any:
    return lambda parameters, rate: DPAdamBC(parameters, rate, floor=floor)


SGD_RATES, ADAM_RATES = (0.1, 0.3, 1.0, 3.0, 10.0), (0.002, 0.006, 0.02, 0.06, 0.2)
PLAIN = Recipe(SGD_RATES, sgd)
WHOLE = ("non-private", "Opacus, PRV", "plain", "all")
# Every part alone, at (3, 1e-5).
RECIPES: dict[str, Recipe] = {
    "non-private": PLAIN,
    "Opacus, PRV": PLAIN,
    "plain": PLAIN,
    "all": Recipe(SGD_RATES, sgd, bands=True, decay=0.95),
    "best bands": Recipe(SGD_RATES, sgd, bands=True),
    "averaged weights": Recipe(SGD_RATES, sgd, decay=0.95),
    "auto": Recipe(SGD_RATES, sgd, max_grad_norm="auto"),
    "Adam": Recipe(ADAM_RATES, torch.optim.Adam),
    "DPAdamBC": Recipe(ADAM_RATES, adam_bc(0.3)),
    "DPAdamBC, floor 1": Recipe(ADAM_RATES, adam_bc(1.0)),
    "moved images": Recipe(SGD_RATES, sgd, moves=True, sets=IMAGES),
    "moved images, 4 views": Recipe(SGD_RATES, sgd, moves=True, rows=4, sets=IMAGES),
    "persons of 4": Recipe(SGD_RATES, sgd, rows=4, persons=True, sets=GROUPED),
    "num_differing=4": Recipe(SGD_RATES, sgd, num_differing=4, sets=GROUPED),
}
PROMISES: dict[str, dict[str, Any]] = {
    **{f"{epsilon:g}": {"epsilon": epsilon, "delta": DELTA, "adjacency": "zero_out"} for epsilon in (1.0, 3.0, 8.0)},
    "fact": {"bound": 0.6, "num_differing": 10, "adjacency": "replace"},
}


TITLES = {
    "adult": "Adult, linear", "bank": "Bank, linear", "dry_bean": "Dry Bean, 32 hidden units",
    "mnist": "10,000 of MNIST, 32 hidden units", "mnist_features": "20,000 of MNIST, random features",
    "ag_news": "AG News, hashed words",
}  # fmt: skip
HEADS = {"1": "(1, 1e-5)", "3": "(3, 1e-5)", "8": "(8, 1e-5)", "fact": "0.6 on 10 records"}
PAGE = """
# Accuracy at equal promises

Test accuracy in percent, with its standard error over the seeds, at equal promises: (epsilon, 1e-5) for one record.
Every row has the same network, batches of 512 by Poisson sampling, number of steps, and four or five learning rates to
choose from. Public training records choose, which are not trained on; test records choose nothing. "all" is the best
number of bands with averaged weights. Fits run without a Trainer, on the library's own draws, clipping and noise.

The figures are those of `benchmarks/accuracy/results.json`, and this page is written from them:

```console
$ cd benchmarks/accuracy
$ python compare.py --data-root DATA --output results.json --page ../../docs/accuracy.md
```

Rows whose errors overlap are not told apart by these runs.
"""


class Results:
    """Fits on record, and those that are made when they are asked for."""

    def __init__(self, file: Path, data_root: Path) -> None:
        self.file, self._root = file, data_root
        found = json.loads(file.read_text()) if file.exists() else []
        self.known = {self._key(fit): fit for fit in found}
        self._sets: dict[str, Any] = {}
        self._plans: dict[Any, Plan] = {}

    def fit(self, name: str, promise: str, row: str, rate: float, seed: int) -> dict[str, Any]:
        """One run, and its accuracy on public and on test records."""
        fit = {"data": name, "promise": promise, "row": row, "rate": rate, "seed": seed}
        if self._key(fit) in self.known:
            return self.known[self._key(fit)]
        if name not in self._sets:
            (inputs, labels), test = LOADERS[name](self._root)
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
            order = torch.arange(len(labels)) if name == "dry_bean" else order
            public, private = order[: PUBLIC[name]], order[PUBLIC[name] :]
            self._sets[name] = (inputs[private], labels[private]), (inputs[public], labels[public]), test
        private, public, test = self._sets[name]
        recipe, records = RECIPES[row], len(private[1])
        steps = EPOCHS[name] * records // BATCH
        model, started = make_model(private, seed), time.process_time()
        if row == "non-private":
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
        fit |= {"public": accuracy(model, public), "test": accuracy(model, test)}
        fit["cpu_seconds"] = round(time.process_time() - started, 2)
        self.known[self._key(fit)] = fit
        lines = ",\n".join(json.dumps(one) for one in self.known.values())
        self.file.write_text(f"[\n{lines}\n]\n")
        return fit

    def row(self, name: str, promise: str, row: str, seeds: int) -> list[float]:
        """Test accuracies at the rate that the public records choose."""
        best = max(RECIPES[row].rates, key=lambda rate: self.fit(name, promise, row, rate, 0)["public"])
        return [self.fit(name, promise, row, best, seed)["test"] for seed in range(1, seeds + 1)]

    @staticmethod
    def _key(fit: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(fit[part] for part in ("data", "promise", "row", "rate", "seed"))


def _plan(row: str, recipe: Recipe, units: int, steps: int, promise: str) -> Plan:
    plan = plan_of(recipe, units, BATCH, steps, PROMISES[promise])
    if not row.startswith("Opacus"):
        return plan
    from opacus.accountants.utils import get_noise_multiplier

    terms = PROMISES[promise]
    noise = get_noise_multiplier(
        target_epsilon=terms["epsilon"], target_delta=DELTA, sample_rate=BATCH / units, steps=steps, accountant="prv"
    )
    return Plan(plan.sampling, noise, None)


def rows_of(name: str, promise: str) -> Iterable[str]:
    """The rows of a table: all parts at (3, 1e-5), and no Opacus where the promise is about ten records."""
    if promise == "3":
        return [row for row, recipe in RECIPES.items() if not recipe.sets or name in recipe.sets]
    return [row for row in WHOLE if promise != "fact" or not row.startswith("Opacus")]


def page(results: Results) -> str:
    """The page: a table for each set, a promise in each column."""
    chosen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for fit in results.known.values():
        place = fit["data"], fit["row"], fit["promise"]
        if not fit["seed"] and (place not in chosen or fit["public"] > chosen[place]["public"]):
            chosen[place] = fit
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for fit in results.known.values():
        name, row, promise = fit["data"], fit["row"], fit["promise"]
        if fit["seed"] and fit["rate"] == chosen[name, row, promise]["rate"]:
            found.setdefault(name, {}).setdefault((row, promise), []).append(fit["test"])
    sections = []
    for name in LOADERS:
        cells = found.get(name, {})
        promises = [promise for promise in PROMISES if any(column == promise for _, column in cells)]
        lines = [f"| {TITLES[name]} | " + " | ".join(map(HEADS.__getitem__, promises)) + " |"]
        lines.append("| --- |" + " --- |" * len(promises))
        for row in RECIPES:
            values = [cells.get((row, promise), []) for promise in promises]
            lines += [f"| {row} | " + " | ".join(map(_cell, values)) + " |"] if any(values) else []
        sections += ["\n".join(lines)] if cells else []
    spent = sum(fit["cpu_seconds"] for fit in results.known.values()) / 3600
    tail = f"{len(results.known)} fits, {spent:.2f} CPU hours on one core."
    return "\n\n".join([PAGE.strip(), *sections, tail]) + "\n"


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return "".join(f"{100 * value:.2f}" for value in values)
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values) / len(values) ** 0.5:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-root", type=Path, required=True, help="folder with MNIST, adult, bank, dry_bean, ag_news"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", nargs="+", choices=list(LOADERS), default=list(LOADERS))
    parser.add_argument("--promises", nargs="+", choices=list(PROMISES), default=list(PROMISES))
    parser.add_argument("--rows", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path, help="file for the table")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = Results(options.output, options.data_root)
    work = [(n, p, r) for n in options.sets for p in options.promises for r in rows_of(n, p) if r in options.rows]
    for name, promise, row in tqdm(work, unit="row"):
        print(f"{name:<10} {promise:<5} {row:<22} {_cell(results.row(name, promise, row, options.seeds))}", flush=True)
    if options.page is not None:
        options.page.write_text(page(results))


if __name__ == "__main__":
    main()
