"""Files that hooks write, move and count in: checks that run the hooks on copies leave them alone."""

import bz2
import logging
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac.data.records import Surroundings

pytestmark = [pytest.mark.checks_each_fit, pytest.mark.filterwarnings("ignore:.*num_workers")]


class Averaged(Classifier):
    """Leaves the average of its weights, and writes files as it trains."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.average = {name: value.clone() for name, value in self.network.state_dict().items()}

    def on_train_start(self) -> None:
        (self.folder / "scratch").mkdir()

    def on_train_batch_end(self, *_: Any) -> None:
        self.average = {name: (self.average[name] + value) / 2 for name, value in self.network.state_dict().items()}
        with open(self.folder / "steps.csv", "a") as file:
            file.write(f"{self.global_step}\n")

    def on_train_epoch_end(self) -> None:
        torch.save(self.network.state_dict(), self.folder / f"{self.current_epoch}.pt")

    def on_train_end(self) -> None:
        self.network.load_state_dict(self.average)
        best = self.folder / "best.pt"
        if best.exists():
            shutil.move(best, self.folder / "previous.pt")
        torch.save(self.network.state_dict(), self.folder / "new.pt")
        os.replace(self.folder / "new.pt", best)
        np.savez(self.folder / "best.npz", **{name: value.numpy() for name, value in self.average.items()})
        shutil.rmtree(self.folder / "scratch")


def test_files_of_hooks_are_those_of_the_model_that_was_trained(tmp_path: Path) -> None:
    model = Averaged(tmp_path)
    seen: list[Any] = []
    end = Averaged.on_train_epoch_end

    def noting(self: Averaged) -> None:
        end(self)
        if self is model:
            seen.append((self.folder / f"{self.current_epoch}.pt").read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Averaged, "on_train_epoch_end", noting)
        make_trainer(tmp_path, make_private(), max_epochs=3).fit(model, make_loader())
    weights = model.network.state_dict()
    torch.testing.assert_close(torch.load(tmp_path / "best.pt"), weights, rtol=0, atol=0)
    with np.load(tmp_path / "best.npz") as saved:
        assert all(np.array_equal(saved[name], weights[name]) for name in weights)
    assert [(tmp_path / f"{epoch}.pt").read_bytes() for epoch in range(3)] == seen
    assert (tmp_path / "steps.csv").read_text().split() == [str(step) for step in range(1, 19)]
    names = {path.name for path in tmp_path.iterdir() if path.suffix in (".pt", ".npz", ".csv") or path.is_dir()}
    assert names - {"lightning_logs"} == {"0.pt", "1.pt", "2.pt", "best.pt", "best.npz", "steps.csv"}


class SavesItself(Averaged):
    def on_train_end(self) -> None:
        self.network.load_state_dict(self.average)
        self.trainer.save_checkpoint(self.folder / "end.ckpt")


class Exports(Averaged):
    def on_train_end(self) -> None:
        torch.jit.script(self.network).save(str(self.folder / "script.pt"))
        torch.export.export(self.network, (torch.zeros(2, 6),))


def test_a_model_may_be_exported_as_training_ends(tmp_path: Path) -> None:
    model, rows = Exports(tmp_path), torch.ones(2, 6)
    make_trainer(tmp_path, make_private()).fit(model, make_loader())
    torch.testing.assert_close(torch.jit.load(tmp_path / "script.pt")(rows), model.network(rows))


def test_a_checkpoint_may_be_saved_as_training_ends(tmp_path: Path) -> None:
    model = SavesItself(tmp_path)
    make_trainer(tmp_path, make_private()).fit(model, make_loader())
    saved = torch.load(tmp_path / "end.ckpt", weights_only=False)["state_dict"]
    torch.testing.assert_close(saved, dict(model.state_dict()), rtol=0, atol=0)


def test_what_copies_print_is_left_out_but_what_has_a_file_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A step that prints its accuracy printed forty of made-up records; a debugger names the file that it prints to."""
    with Surroundings().copied({}):
        print("step 3603599")
        print("(Pdb)", file=sys.stdout)
    print("step 1")
    assert capsys.readouterr().out == "(Pdb)\nstep 1\n"


def test_copies_see_the_files_that_they_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("project")
    kept, other, moved = tmp_path / "kept.txt", tmp_path / "other.txt", tmp_path / "moved.txt"
    kept.write_text("1")
    with Surroundings().copied({}):
        with open(kept, "a") as file:
            file.write("2")
        with Surroundings().copied({}):
            kept.write_text(kept.read_text() + "3")
            kept.rename(moved)
            assert moved.read_text() == "123"
            assert not kept.exists()
            with pytest.raises(FileNotFoundError):
                kept.read_text()
        assert kept.read_text() == "12"
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a.txt").touch()
        with pytest.raises(FileExistsError):
            (tmp_path / "folder").mkdir()
        with open(other, "x") as file:
            file.write("new")
        with pytest.raises(FileExistsError):
            other.open("x")
        other.unlink()
        with pytest.raises(FileNotFoundError):
            other.unlink()
        with pytest.raises(FileNotFoundError):
            (tmp_path / "none" / "file.txt").write_text("")
        torch.save(torch.ones(2), other)
        assert torch.load(other).sum() == 2
        torch.jit.script(torch.nn.Linear(1, 1)).save(str(tmp_path / "script.pt"))
        with bz2.open(tmp_path / "a.bz2", "at") as packed:
            packed.write("1")
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(kept, "kept.txt")
        with tempfile.NamedTemporaryFile("w", dir=tmp_path, delete=False) as temporary:
            temporary.write("1")
        os.replace(temporary.name, other)
        assert other.read_text() == "1"
        with tempfile.NamedTemporaryFile(dir=tmp_path), tempfile.NamedTemporaryFile(dir=tmp_path, delete=False):
            pass
        with open(kept, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("2")
        logger.warning("twice")
    logger.warning("once")
    assert caplog.messages == ["once"]
    assert kept.read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
