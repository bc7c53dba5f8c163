"""Every module and name that version 0.1.0 showed is still found where it was, but for what has no meaning any more.

`public_names_0.1.0.txt` lists them, a module a line. An old path is imported first, in a process of its own, as user
code would: a module that somebody else has imported already proves nothing.
"""

import importlib
import pathlib
import pickle

from prepared import Child, forget_package

import lightning_pac
from lightning_pac import _moved

# Parts of the gradient engine that went by classes of layers, never shown by `lightning_pac.gradients`: nothing is left
# that they could name.
GONE = {
    "contributions": {"Contributions"},
    "rules.attention": {"TappedProjection", "attention_forward", "supports_attention"},
    "rules.convolution": {"convolution_layer", "transposed_convolution_layer"},
    "rules.embedding": {"embedding_bag_layer", "embedding_layer"},
    "rules.linear": {"linear_layer"},
    "rules.normalization": {"group_norm_layer", "instance_norm_layer", "layer_norm_layer", "rms_norm_layer"},
    "rules.table": {"rule_for"},
    "tap": None,
    "taps": None,
    "vmapped": None,
    "watching": {"KeptInputs", "watch_output"},
}


def names_to_find(line: str) -> tuple[str, str] | None:
    path, names = line.split(": ", 1)
    gone = GONE.get(path.removeprefix("lightning_pac.gradients."), set())
    return None if gone is None else (path, " ".join(name for name in names.split() if name not in gone))


LINES = (pathlib.Path(__file__).parent / "public_names_0.1.0.txt").read_text().splitlines()
LISTED = dict(found for found in map(names_to_find, LINES) if found is not None)


def import_all():
    forget_package()
    # Deep paths before the faces of their packages, so that none is there already when it is asked for.
    for path in sorted(LISTED, key=lambda path: -path.count(".")):
        module = importlib.import_module(path)
        for name in LISTED[path].split():
            assert hasattr(module, name), f"{path} has lost {name}"
    print("complete")


def test_every_old_path_is_imported_first():
    assert Child(import_all).finish().decode() == "complete\n"


def test_an_old_path_is_the_same_module():
    from lightning_pac.accountants import ledger as old
    from lightning_pac.ledger import ledger as new

    assert old is new
    assert new.__spec__.name == new.__name__ == "lightning_pac.ledger.ledger"


def test_functions_are_not_replaced_by_the_modules_they_were_in():
    import lightning_pac.accountants.hybrid_rdp
    import lightning_pac.mechanisms.wasserstein

    assert callable(lightning_pac.accountants.hybrid_rdp)
    assert callable(lightning_pac.mechanisms.wasserstein)


def test_objects_pickled_by_an_old_path_are_read():
    pickled = pickle.dumps(lightning_pac.accountants.SRPPAccountant, protocol=0)
    old = pickled.replace(b"accountants.srpp.accountant", b"accountants.srpp")
    assert old != pickled
    assert pickle.loads(old) is lightning_pac.accountants.SRPPAccountant


def test_nothing_moved_to_a_place_that_does_not_exist():
    root = pathlib.Path(lightning_pac.__file__).parent
    for old, new in _moved.MODULES.items():
        place = root.joinpath(*new.split("."))
        assert place.with_suffix(".py").exists() or (place / "__init__.py").exists(), f"{old} -> {new}"
        assert not root.joinpath(*old.split(".")).with_suffix(".py").exists(), f"{old} is still there"
