"""Libraries whose code is not asked for memories of records."""

import functools
import sys
import sysconfig
from pathlib import Path

__all__ = ["is_installed", "is_library"]

# To which models of transformers lead, beside torch: adapters, and what fetches weights from afar.
_AROUND_MODELS = {
    *("datasets", "transformers", "peft", "accelerate", "huggingface_hub", "tokenizers", "safetensors", "filelock"),
    *("tqdm", "packaging", "yaml", "httpx", "httpx2", "httpcore", "requests", "urllib3", "idna", "fsspec"),
}
_LIBRARIES = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchvision", "torchaudio", "torchdata", "torchmetrics", "lightning", "lightning_pac", "numpy"),
    *("pytorch_lightning", "lightning_fabric", "scipy", "pandas", "PIL", "sklearn", "cv2", "typing_extensions"),
    *("pytest", "_pytest", *_AROUND_MODELS),
}
_MISTAKABLE = frozenset(sys.stdlib_module_names) | _AROUND_MODELS  # names that a user's file may have
_STANDARD = sysconfig.get_path("stdlib")


@functools.cache
def is_library(module: object) -> bool:
    """Whether it is one of the libraries that are not followed, and no file of the user's that has its name.

    Args:
        module: The name of a module; without one, as that of compiled functions, code is taken for that of a library.
    """
    if not isinstance(module, str):
        return True
    name = module.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if name not in _MISTAKABLE or file is None:
        return name in _LIBRARIES
    return _lies_with_libraries(file)


@functools.cache
def is_installed(module: object) -> bool:
    """Whether it is any library, also one whose code is asked for memories.

    Args:
        module: The name of a module; without one, code is taken for that of a library.
    """
    if not isinstance(module, str) or is_library(module):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and _lies_with_libraries(file)


def _lies_with_libraries(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(_STANDARD) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
