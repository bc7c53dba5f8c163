import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_pac import cli

COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); COMPREPLY=()
$(complete -p lightning-pac | sed 's/.*-F \\([^ ]*\\) .*/\\1/') lightning-pac "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "keys.json").touch()

    def complete(*words: str) -> set[str]:
        command = ["bash", "-c", COMPLETE, "bash", str(script), "lightning-pac", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert complete("acc") == {"account"}
    assert {"fit", "serve", "keys", "completion"} <= complete("")
    assert complete("serve", "--rate") == {"--rate-limit"}
    assert complete("keys", "a") == {"add"}
    assert complete("keys", "budget", "keys.json", "bob", "--bu") == {"--budget"}
    assert "keys.json" in complete("keys", "add", "ke")
    (tmp_path / "study.db").touch()
    assert "study.db" in complete("account", "st")
    assert "study.db" in complete("report", "st")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell, "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]
    assert "calibrate" in script
    assert "rate-limit" in script


def test_an_unknown_shell_is_wrong_usage() -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["completion", "fish"])
