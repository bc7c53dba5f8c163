# %% [markdown]
"""
# Release k-means, and a classifier after it

`privatize` takes any computation as a black box: it runs it on many public halves of the records and releases the
result of one secret half, with just enough noise. Here the box is k-means on 400 tumours, and then a classifier of
the same half.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer
from sklearn.svm import LinearSVC

from lightning_pac import ComplementaryHalves, privatize
from lightning_pac.cards import at_most
from lightning_pac.mechanisms import AlignClusters, FittedEstimator

# %% [markdown]
"""
## Records, private and public

Scaling reads records too. Here public ones set it; otherwise it would belong in the box.
"""

# %%
features, labels = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
features, labels = features[order][:, [0, 7]], labels[order]  # mean radius, mean concave points
center, scale = features[400:].mean(axis=0), features[400:].std(axis=0)
features = (features - center) / scale
records, classes, public, public_classes = features[:400], labels[:400], features[400:], labels[400:]

# %% [markdown]
"""
## Clusters

K-means numbers its clusters as it likes; `AlignClusters` puts them in the order of public centres, so that numbering
is not paid for in noise.
"""

# %%
halves = ComplementaryHalves(num_records=400, num_subsets=128, seed=0)
secret = halves.draw_secret("secret.key")
reference = np.stack([public[public_classes == label].mean(axis=0) for label in range(2)])
clusters = privatize(
    FittedEstimator(KMeans(2, n_init=2, random_state=0), "cluster_centers_"),
    secret,
    budget=1 / 64,
    ledger="study.db",
    data=records,
    public=public,
    canonicalize=AlignClusters(public=reference),
    workers=1,
)
nearest = ((public[:, None] - clusters.value) ** 2).sum(axis=2).argmin(axis=1)
print(f"public records in the right cluster   {(nearest == public_classes).mean():.1%}")

# %%
plain = KMeans(2, n_init=2, random_state=0).fit(records).cluster_centers_
figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
axes.scatter(*public.T, c=public_classes, s=8, cmap="coolwarm_r", alpha=0.5)
axes.scatter(*plain.T, marker="x", color="black", s=80, label="centres without noise")
spread = clusters.standard_deviations.reshape(clusters.value.shape)
axes.errorbar(
    *clusters.value.T,
    xerr=spread[:, 0],
    yerr=spread[:, 1],
    fmt="D",
    color="C2",
    label="released centres",
)
axes.set(xlabel="mean radius, scaled", ylabel="mean concave points, scaled")
axes.legend()
plt.show()

# %% [markdown]
"""
## A second release

It is about the same half, and was chosen after seeing the first, so its noise covers what both reveal. Strong
regularization keeps the answers of the halves alike, and what is alike needs little noise.
"""

# %%
planes = privatize(
    FittedEstimator(LinearSVC(C=1e-3, dual=False, random_state=0), "coef_", "intercept_"),
    secret,
    budget=1 / 64,
    ledger="study.db",
    data=(records, classes),
    public=(public, public_classes),
    workers=1,
)
decided = (public @ planes.value[0, :-1] + planes.value[0, -1] > 0).astype(int)
planes.card().save(".")
print(f"public records classified right       {(decided == public_classes).mean():.1%}")
print(f"spent in {planes.num_releases} releases                   {planes.total_mutual_information:g} nats")
bound = at_most(planes.membership_success_bound)
print(f"who was in the half                   guessed right at most {bound} of the time")

# %% [markdown]
"""
## What to take away

- Any deterministic computation can be a box; nothing about k-means had to be analysed.
- Make results comparable (order, signs, bases) before they are noised: differences that mean nothing cost noise.
- Releases about one half add up in the ledger; a second table for the same records would not be noticed.
"""
