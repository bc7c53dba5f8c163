"""Provably private training and inference for PyTorch Lightning.

Names are imported on first use: the mathematics (`scenarios`, `accountants`, `mechanisms`, `audits`) needs numpy and
scipy only, and asking for a bound should not take the seconds that importing torch and Lightning does. The names and
their modules stand in the stub beside this file.
"""

import lazy_loader

from lightning_pac._moved import install

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.append("__version__")

install()
