"""Whether noise drowns a release, told from the release alone."""

import warnings

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated

__all__ = ["signal_to_noise", "warn_if_drowned"]


@validated
def signal_to_noise(value: npt.ArrayLike, power: float) -> float:
    r"""Length of an answer in lengths of its noise, estimated from the noised answer.

    $E |a + B|^2 = |a|^2 + P$ for noise of power $P = E |B|^2$, so that $\sqrt{\max(0, |v|^2 - P) / P}$ estimates
    $|a| / \sqrt P$ from the released v. It is a function of what is released and of the noise's public law, hence
    post-processing: to show it, or to act on it, tells nothing more. That is why no spread of the outputs without noise
    enters, though it would tell better.

    Args:
        value: The released answer, with its noise.
        power: Expected squared length of the noise.
    """
    squares = float(np.square(np.asarray(value, dtype=np.float64)).sum())
    return float(np.sqrt(max(0.0, squares - power) / power)) if power > 0 else np.inf


def warn_if_drowned(value: npt.ArrayLike, power: float, ways: str) -> None:
    """Warn of a release that is mostly noise.

    Args:
        value: The released answer, with its noise.
        power: Expected squared length of the noise.
        ways: What its user can do, as the end of a sentence.
    """
    ratio, size = signal_to_noise(value, power), np.sqrt(max(1, np.size(value)))
    if ratio < 1:
        length = float(np.linalg.norm(np.ravel(np.asarray(value, dtype=np.float64))))
        warnings.warn(
            f"The noise drowns this release: its numbers are {length / size:.3g} in size, and noise of "
            f"{np.sqrt(power) / size:.3g} was added to each (root mean squares). What was released stays charged; for "
            f"the next one, {ways}.",
            stacklevel=3,
        )
