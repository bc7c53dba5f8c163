import pathlib
import re
import subprocess
import sys

import pytest

import lightning_pac

DEMO = pathlib.Path(lightning_pac.__file__).parent.parent / "examples" / "privatize_clusters" / "demo.py"


@pytest.mark.skipif(not DEMO.exists(), reason="the examples are in a checkout")
def test_the_example_releases_twice_about_one_half(tmp_path):
    command = [sys.executable, str(DEMO), "--output", str(tmp_path), "--workers", "1"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr[-3000:]
    assert "0.125 nats in 2 releases" in first.stdout
    assert "at most 74.5 %" in first.stdout
    assert re.search(r"classifier +[01]\.[0-9]+", first.stdout)
    assert (tmp_path / "privacy_card.md").exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode != 0
    assert "earlier run" in again.stderr
