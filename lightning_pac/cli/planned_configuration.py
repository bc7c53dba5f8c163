"""The callbacks of a plan, as a configuration file of LightningCLI."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_pac.accountants import ProjectPlan

__all__ = ["configuration"]

_HEAD = """\
# From lightning-pac plan: give it by a second --config, after your own, whose list of callbacks it replaces.
"""


def configuration(project: "ProjectPlan", ledger: Path | None) -> str:
    """The YAML of the run that draws on the best option's shares: the model, and the first of the noised values.

    Args:
        project: With one training.
        ledger: Where the shares are declared.

    Raises:
        ValueError: If there is no ledger or no training.
    """
    import yaml

    best = project.best
    if ledger is None or not best.runs:
        raise ValueError("--yaml writes the run of a model: give --ledger, and --batch-size with --epochs.")
    ((name, run),) = best.runs.items()
    worlds = {"num_differing": run.scenario.num_differing, "adjacency": run.scenario.adjacency}
    is_dp = worlds == {"num_differing": 1, "adjacency": "add_remove"}
    sampling: dict[str, Any] = {"rate": run.sampling.rate}
    if run.sampling.batch_size is not None:
        sampling["batch_size"] = run.sampling.batch_size
    training = _callback(
        "DPSGD" if is_dp else "SRPPSGD",
        **({} if is_dp else {"scenario": worlds}),
        noise_multiplier=run.figures.noise_multiplier,
        sampling=_callback("Poisson", **sampling),
        ledger=_share(ledger, name),
    )
    # An own max_epochs would end the run before its planned steps, and before the evaluation.
    trainer: dict[str, Any] = {"max_epochs": -1, "max_steps": run.num_steps, "callbacks": [training]}
    head = _HEAD
    for values, noise in list(best.noise_of_values.items())[:1]:
        head += "# names: as validation_step logs your torchmetrics.\n"
        # One evaluation, of the model that is trained.
        trainer |= {"check_val_every_n_epoch": run.epochs, "val_check_interval": 1.0}
        trainer["callbacks"].append(
            _callback(
                "PrivateMetrics",
                names=["val/accuracy"],
                scenario=worlds,
                noise_multiplier=noise,
                ledger=_share(ledger, values.removesuffix(" (score)")),
            )
        )
    document: str = yaml.safe_dump({"trainer": trainer}, sort_keys=False)
    return head + document


def _callback(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"lightning_pac.{kind}", "init_args": arguments}


def _share(ledger: Path, name: str) -> dict[str, Any]:
    return {"class_path": "lightning_pac.ledger.LedgerHandle", "init_args": {"given": str(ledger), "share": name}}
