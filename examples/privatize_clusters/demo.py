"""Cluster centres and a classifier of private records, released with noise that hides which half was used.

K-Means and a linear support vector machine are black boxes: each is run on 128 public halves of the records, and the
results of one secret half are released. Both speak of the same half, so the second gets noise for what the first told.

    python demo.py --output runs/privatize_clusters
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer
from sklearn.svm import LinearSVC

from lightning_pac import ComplementaryHalves, privatize
from lightning_pac.mechanisms import AlignClusters, FittedEstimator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="processes (as many as there are processors)")
    parser.add_argument("--output", type=Path, default=Path("runs/privatize_clusters"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    if (args.output / "secret.key").exists():
        raise SystemExit(f"{args.output / 'secret.key'} is of an earlier run: give another --output, or remove it")

    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = features[order], labels[order]
    records, classes, public, public_classes = features[:400], labels[:400], features[400:], labels[400:]
    # Scaling reads records too: here only public ones, else it would belong into the boxes.
    center, scale = public.mean(axis=0), public.std(axis=0)
    records, public = (records - center) / scale, (public - center) / scale

    halves = ComplementaryHalves(num_records=400, num_subsets=128, seed=0)
    secret = halves.draw_secret(args.output / "secret.key")
    ledger = args.output / "study.db"

    # The order of clusters means nothing: they are put into the order of centres of public records.
    reference = np.stack([public[public_classes == label].mean(axis=0) for label in range(2)])
    clusters = privatize(
        FittedEstimator(KMeans(2, n_init=2, random_state=0), "cluster_centers_"),
        secret,
        budget=1 / 16,
        ledger=ledger,
        data=records,
        public=public,
        canonicalize=AlignClusters(public=reference),
        workers=args.workers,
    )
    nearest = ((public[:, None] - clusters.value) ** 2).sum(axis=2).argmin(axis=1)

    # Chosen after seeing the clusters, and about the same half.
    planes = privatize(
        FittedEstimator(LinearSVC(C=1e-5, dual=False, random_state=0), "coef_", "intercept_"),
        secret,
        budget=1 / 16,
        ledger=ledger,
        data=(records, classes),
        public=(public, public_classes),
        workers=args.workers,
    )
    decided = (public @ planes.value[0, :-1] + planes.value[0, -1] > 0).astype(int)

    planes.card().save(args.output)
    print(f"private clusters         {(nearest == public_classes).mean():.2f} of the public records")
    print(f"private classifier       {(decided == public_classes).mean():.2f}")
    print(f"spent                    {planes.total_mutual_information:g} nats in {planes.num_releases} releases")
    print(f"membership inference     at most {100 * planes.membership_success_bound:.1f} %")


if __name__ == "__main__":
    main()
