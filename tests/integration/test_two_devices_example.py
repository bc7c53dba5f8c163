"""The example for two devices, run as a reader would: Lightning starts the script once more for the other rank."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_pac
from lightning_pac.ledger import PrivacyLedger

DEMO = Path(lightning_pac.__file__).parent.parent / "examples" / "two_devices" / "demo.py"

pytestmark = pytest.mark.skipif(not DEMO.exists(), reason="the examples are in a checkout")


@pytest.mark.slow  # what ranks do is shown by test_ddp_private; here Lightning starts them, too
@pytest.mark.parametrize("strategy", ["ddp_private", "ddp_private_spawn"])
def test_two_devices_train_one_model_under_one_account(strategy: str, tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--output", str(tmp_path / "run"), "--strategy", strategy]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    (accuracy,) = re.findall(r"^epsilon 8 at order 4, test accuracy (\d+)%$", done.stdout, re.MULTILINE)
    assert int(accuracy) > 75
    with PrivacyLedger.read_only(tmp_path / "run" / "privacy_ledger.db") as ledger:
        (account,) = ledger.accounts()
        assert account.num_charges == 50
        assert account.spent == pytest.approx(8.0, rel=1e-3)
