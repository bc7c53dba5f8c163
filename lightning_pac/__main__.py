"""`python -m lightning_pac` is the `lightning-pac` command."""

import sys

from lightning_pac.cli import main

if __name__ == "__main__":
    sys.exit(main())
