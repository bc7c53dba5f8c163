"""Figure 7: share of the variance that the leading principal components explain.

python benchmarks/papers/pac_algorithms/explained_variance.py --data-root data --output runs/pac
"""

import argparse
import json
from pathlib import Path

import numpy as np
from boxes import load
from figures import has_data

PANELS = {"rice": "minmax", "bean": "minmax", "cifar10": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--components", type=int, default=20, help="at most so many")
    parser.add_argument("--output", type=Path, default=Path("runs/pac"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, object]] = {}
    for name, scaler in PANELS.items():
        if not has_data(name, args.data_root):
            print(f"{name}: no data under {args.data_root}, left out")
            continue
        records = load(name, scaler, args.data_root).features
        variances = np.linalg.eigvalsh(np.cov(records.T))[::-1]
        shares = variances[: args.components] / variances.sum()
        found[name] = {"records": len(records), "features": len(variances), "explained": shares.tolist()}
        found[name]["together"] = float(shares.sum())
        print(f"{name}: first component {shares[0]:.1%}, first {len(shares)} together {shares.sum():.1%}")
    (args.output / "explained_variance.json").write_text(json.dumps(found, indent=1) + "\n")
    plot(found, args.output / "explained_variance.png")


def plot(found: dict[str, dict[str, object]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    for axes, (name, row) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        shares = 100 * np.asarray(row["explained"])
        axes.bar(np.arange(1, len(shares) + 1), shares)
        axes.set(title=f"{name} ({row['features']} features)", xlabel="component", ylabel="variance explained (%)")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
