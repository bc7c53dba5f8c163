"""The currencies of a ledger: what each counts, and which amounts may be added."""

from __future__ import annotations

from lightning_pac._validation import validated

__all__ = ["KEY_CURRENCY", "describe_currency"]

KEY_CURRENCY = "mutual_information by key"
"""The cost of the answers to single API keys, in accounts of their own."""

_NOTIONS = {
    "mutual_information": "nats told about a secret at most; adds over releases about one secret, adaptive ones too",
    KEY_CURRENCY: "shares of mutual_information that single API keys paid; no cost of its own",
    "rpp": "worst case, unsliced; adds over runs and metrics under one coupling, at one order",
    "srpp_ave": "worst case, average over slices; adds over runs under one coupling, as one flat block does",
    "srpp_joint": "worst case, joint over slices; adds over runs under one coupling, as one flat block does",
    "ms_srpp_ave": "average over the draw of the batches; adds to its own kind only, never to a worst case",
    "ms_srpp_joint": "average over the draw of the batches; adds to its own kind only, never to a worst case",
    "static_pufferfish": "one joint release and never a second: costs that rest on W-infinity distances do not add",
}
_OBSERVABLES = {"time": "response times", "batch_size": "batch sizes"}
_NOISES = {
    "releases": "noised observations, out of the number that the noise was designed for",
    "maximal_leakage": "nats of maximal leakage; adds over observations",
    "mutual_information": "nats told about the secret; adds over observations",
}


@validated
def describe_currency(currency: str) -> str:
    """A sentence on how a currency adds up; one that the package does not know is the user's own.

    Args:
        currency: as accounts name it.

    Example:
        >>> describe_currency("ms_srpp_ave")
        'average over the draw of the batches; adds to its own kind only, never to a worst case'
        >>> describe_currency("carbon")
        'a currency of your own'
    """
    if currency in _NOTIONS:
        return _NOTIONS[currency]
    for observable, words in _OBSERVABLES.items():
        noise = currency.removeprefix(f"{observable}_")
        if noise != currency and noise in _NOISES:
            return f"{words}: {_NOISES[noise]}"
    return "a currency of your own"
