"""The sentences of the evidence that do not depend on the ledger."""

from lightning_pac.cards.card import UNCOVERED

__all__ = [
    "COLLECTION",
    "NOT_CHECKED",
    "NOT_COVERED",
    "RECORD",
    "RELEASED",
    "SIDE_CHANNELS",
    "SOURCES",
    "STATEMENTS",
    "TRUST",
    "check_of",
]

SOURCES = {
    "training": (
        "Clipped gradients, one of each record or person, summed and noised (DP-SGD and SRPP-SGD)",
        "Rényi divergences of Gaussian releases add over adaptive steps (Mironov, 2017). The other figures are read "
        "from the curve of all steps, whose privacy losses are convolved (Zhu, Dong and Wang, 2022) and rounded "
        "outwards; the worst pair of a step with secret Poisson draws is proven in "
        "lightning_pac.accountants.privacy_loss.mixtures.",
    ),
    "metric": (
        "Means over records with bounded contributions, noised (PrivateMetrics)",
        "The Gaussian mechanism: a Rényi divergence of a mu^2 / 2 at order a (Mironov, 2017).",
    ),
    "table": (
        "Ranges and vocabularies of a table's columns from noised counts (TableTransform)",
        "The Gaussian mechanism, for a record that adds one to at most one count of each column: a Rényi divergence of "
        "a mu^2 / 2 at order a (Mironov, 2017). What is read off the counts is post-processing.",
    ),
    "selection": (
        "The best of a secret number of private runs (PrivateSelection)",
        "The theorem and its proof in lightning_pac.accountants.private_selection.price, never above Papernot and "
        "Steinke (2022), theorem 2.",
    ),
    "answers": (
        "Noised votes of models of subsets (PACResponder)",
        "PAC-Private Responses with Adversarial Composition, Algorithm 1 and Theorem 3.3.",
    ),
    "values": (
        "Outputs of a computation on a secret subset, noised (privatize)",
        "PAC-Private Responses with Adversarial Composition, Theorem 3.3, for the posterior that the answers leave.",
    ),
    "mechanism": (
        "Outputs noised by a certified law (ReleasedMechanism)",
        "PAC-Private Algorithms, Theorem 1; Residual-PAC, Theorem 1; the certificate is named in the terms.",
    ),
    "padding": (
        "Response times or batch sizes padded with one-sided noise",
        "The guarantee of the noise that its card names.",
    ),
    "static": (
        "One table of answers, noised for a Pufferfish secret (SlicedWassersteinMechanism)",
        "Sliced Rényi Pufferfish privacy, Theorems 4.7 and 4.8.",
    ),
    "other": (
        "Charged by the user's own program",
        "None: the ledger keeps what was charged, and not why that suffices.",
    ),
}
"""Kind of an account: its mechanism, and the theorem that its price rests on."""

RELEASED = {
    "training": "a trained model, with the noised figures of its training",
    "metric": "measured figures",
    "table": "ranges and categories of columns",
    "selection": "the best of several models",
    "answers": "answers of a model",
    "values": "results of a computation",
    "mechanism": "outputs of a computation",
    "padding": "response times or sizes",
    "static": "a table of answers",
    "other": "what the owner's program released",
}
"""Kind of an account: what it paid for, in a reader's words."""

STATEMENTS = {
    "controller": "Who answers for the data",
    "purpose": "What the release is for",
    "intended_use": "Intended use, and use to be ruled out",
    "data": "The data, and which of them the ledger speaks of",
    "collection": "How the data were collected and where they lie",
    "evaluation": "How well the release works, and for whom",
    "caveats": "Caveats",
}
"""What only the keeper of the data can state; nothing here checks it."""

RECORD = "record"
"""A further statement: what a record is, in the reader's words, such as "one client"."""

TRUST = (
    "Central model: those who train, answer and keep the ledger hold the data and are trusted with them.",
    "The guarantees hold against everyone else who sees all releases listed here, whatever else they know and however "
    "they compute, but for what a condition rules out.",
    "The ledger is trusted to hold every release about these data. What was released outside it, or from a copy of it, "
    "is in no figure.",
)

SIDE_CHANNELS = (
    "Noise comes from the operating system's randomness, in float64 on a grid that does not depend on the data; the "
    "charge for finite random bits is part of the figures where the terms say how many values were drawn.",
    "How long something took, how much memory or traffic it needed, and error messages are not covered, unless a "
    "mechanism above pads them.",
    "Logs, metrics without noise, checkpoints of other programs and the machine's disk are not covered.",
)

COLLECTION = (
    "Nothing here protects data before they are released from: collecting, storing and sharing them, and who may read "
    "them, are for the keeper to state above.",
    "Preprocessing that used the data themselves (statistics, selected features, removed records) is not covered "
    "unless it is one of the releases.",
)

NOT_COVERED = (
    "Facts that more records decide than the unit of privacy says, and what is true of the population whether or not a "
    "record is in the data.",
    "Whether the model or the answers are right, fair or fit for the purpose.",
    "Releases about the same data in another ledger, and by other programs.",
    "A ledger that was put back as a whole to an earlier moment: compare the time of its last charge with that of the "
    "last release.",
    "The code that ran: the hashes name the installed package, and nothing here proves that it was the one.",
)

NOT_CHECKED = "Nothing here checks this: the keeper of the data must make sure of it."

_CLIPPED = "The library clipped every record's gradient before the sum."
_DRAWN = "The library drew the batches, or knows the sampler that did and refuses others."
_TOGETHER = "The figure at the top includes the rest of the ledger, and says what it rests on."
# A phrase of a condition, and how the library sees to it, in the run itself.
_CHECKS = {
    "no batch normalization": "Layers that mix records are refused. Gradients of synthetic batches were compared "
    "before the first step and again during the run; what that could not show stands among these conditions.",
    "realized batch sizes and un-noised losses are not released": "The rows of every batch were held against the "
    "declared sampling, and a step whose gradient was not the released one ends the run. That nobody saw losses and "
    "batch sizes is for the keeper to see to.",
    "Both worlds belong to one declared coupling": "The ledger refuses an account that declares other worlds.",
    "the clipped sum moves by up to twice the clipping norm": _CLIPPED,
    "contributes a zero gradient where it is absent": _CLIPPED,
    "rate, batch size and steps are stated, never computed from the data": "Batches that do not fit their public "
    "number of rows end the run. That the stated numbers were not computed from the data is for the keeper to see to.",
    "enter a batch independently": _DRAWN,
    "Every record comes at most once in a pass": _DRAWN,
    "Every batch holds distinct records": _DRAWN,
    "A batch may hold one record many times": _DRAWN,
    "The Poisson draws are secret": "The library drew them itself; a loader with a seed, or that keeps its state, is "
    "priced without that secrecy.",
    "The noise comes from finite random bits": "Counted by the library, step by step.",
    "Rounding lets a record move the sum": "The noise was enlarged by as much.",
    "The unit of privacy is a person": "Records were grouped and clipped by the library, by what the user's function "
    "says of each.",
    UNCOVERED: "Found by the library in the data and the model, when the run began.",
    "was drawn once, from secure randomness": "The ledger is bound to the secret file by a code, and refuses another "
    "index or a second account about the same table.",
    "The figures are of this run alone": _TOGETHER,
    "The figures are of what was charged so far": _TOGETHER,
    "The ledger is the only record of what was answered": "Marks beside the ledger and in the secret file refuse one "
    "that is behind them.",
}


def check_of(condition: str) -> str:
    """Say in a sentence how a condition was checked.

    Args:
        condition: As a card states it.
    """
    return next((check for phrase, check in _CHECKS.items() if phrase in condition), NOT_CHECKED)
