"""What every test gets."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _mended_dataloader() -> Iterator[None]:
    """Undo what Lightning leaves behind when a dataloader hook raises.

    It patches `DataLoader.__init__` around the hook and takes the patch back without a `finally`: after an error
    every DataLoader of the process is built by the patch, and predict fails on positional arguments.
    """
    yield
    import sys

    data = sys.modules.get("torch.utils.data")
    if data is None:
        return
    for base in (data.DataLoader, data.BatchSampler):
        for cls in (base, *_subclasses(base)):
            for name in ("__init__", "__setattr__", "__delattr__"):
                if f"__old{name}" in cls.__dict__:
                    setattr(cls, name, getattr(cls, f"__old{name}"))
                    delattr(cls, f"__old{name}")


@pytest.fixture(autouse=True)
def _checked_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loss check once for a model: it takes most of a tiny fit. Its own tests are marked `checks_each_fit`."""
    import sys

    if "lightning_pac.callbacks.srpp_sgd" in sys.modules and not request.node.get_closest_marker("checks_each_fit"):
        from checked_once import share_passed_checks

        share_passed_checks(monkeypatch.setattr)
    if request.node.get_closest_marker("metrics_asked_once"):
        from checked_once import share_clean_rows

        share_clean_rows(monkeypatch.setattr)


def _subclasses(cls: type) -> set[type]:
    return {below for child in cls.__subclasses__() for below in (child, *_subclasses(child))}
