import pathlib
import re

import pytest
from scripts import run_script

import lightning_pac

DEMO = pathlib.Path(lightning_pac.__file__).parent.parent / "examples" / "privatize_clusters" / "demo.py"


@pytest.mark.skipif(not DEMO.exists(), reason="the examples are in a checkout")
def test_the_example_releases_twice_about_one_half(tmp_path):
    words = ["--output", str(tmp_path), "--workers", "1"]
    printed = run_script(DEMO, *words, folder=tmp_path)
    assert "0.125 nats in 2 releases" in printed
    assert "at most 74.5 %" in printed
    assert re.search(r"classifier +[01]\.[0-9]+", printed)
    assert (tmp_path / "privacy_card.md").exists()
    with pytest.raises(SystemExit, match="earlier run"):
        run_script(DEMO, *words, folder=tmp_path)
