"""The examples' scripts, run in this process: a new one would import Lightning again for each of them."""

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest


def run_script(script: Path, *words: str, folder: Path) -> str:
    """Run a script as `python script words` does in `folder`, and return what it printed."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(script), *words])
        patch.syspath_prepend(str(script.parent))
        # Modules beside the script, which another example may call by the same name.
        for path in script.parent.glob("*.py"):
            patch.delitem(sys.modules, path.stem, raising=False)
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(script), run_name="__main__")
        for path in script.parent.glob("*.py"):
            sys.modules.pop(path.stem, None)
    return printed.getvalue()
