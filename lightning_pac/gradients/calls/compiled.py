"""Code that `torch.compile` was given."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["as_written"]


def as_written() -> AbstractContextManager[None]:
    """Inside, what `torch.compile` was given runs as it was written: its graphs hide the calls that are followed.

    A copy of the code would be compiled anew, too, which takes much longer than to run it a few times.
    """
    # Nothing is compiled before this is imported, which takes seconds.
    if "torch._dynamo" not in sys.modules or torch.compiler.is_dynamo_compiling():
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
