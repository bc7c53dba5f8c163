"""Optimizers of the user's own, whose step may read more than the noised gradient."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch import Tensor, nn

pytestmark = pytest.mark.checks_each_fit


class Preconditioned(torch.optim.Optimizer):
    """Gradients times the inverse second moments of each layer's inputs, as in KFAC, which a hook gives it."""

    def __init__(self, model: nn.Module, keeps_in: str) -> None:
        super().__init__(list(model.parameters()), {"lr": 0.1})
        self.layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        self.moments: dict[nn.Module, Tensor] = {}
        moments, hooks = self.moments, {"optimizer": self.keep, "layer": _keep_in_layer}

        def keep_in_closure(layer: nn.Module, inputs: Any) -> None:
            moments[layer] = _moments(inputs)

        for layer in self.layers:
            layer.register_forward_pre_hook(hooks.get(keeps_in, keep_in_closure))

    def keep(self, layer: nn.Module, inputs: Any) -> None:
        self.moments[layer] = _moments(inputs)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for layer in self.layers:
            moments: Any = self.moments.get(layer, getattr(layer, "moments", None))
            layer.weight.sub_(layer.weight.grad @ torch.linalg.inv(moments), alpha=0.1)
        return loss


def _moments(inputs: Any) -> Tensor:
    rows = inputs[0].detach().flatten(0, -2)
    return rows.T @ rows / len(rows) + torch.eye(rows.shape[1])


def _keep_in_layer(layer: Any, inputs: Any) -> None:
    layer.moments = _moments(inputs)


def scaled_by_hook(model: Classifier) -> torch.optim.Optimizer:
    """One of torch whose rate a hook sets before each step, by the size of what a layer was given last."""
    optimizer, kept = torch.optim.SGD(model.parameters(), 0.1), {"size": 1.0}
    model.network[0].register_forward_pre_hook(lambda _, inputs: kept.update(size=float(inputs[0].abs().mean())))

    def scale(given: torch.optim.Optimizer, *_: Any) -> None:
        given.param_groups[0]["lr"] = 0.1 * kept["size"]

    optimizer.register_step_pre_hook(scale)
    return optimizer


class NowAndThen(Preconditioned):
    """Looks at inputs in every tenth step only, which the steps 2, 4, 8, ... are not."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, "optimizer")
        self.steps = 0

    def keep(self, layer: nn.Module, inputs: Any) -> None:
        if (self.steps + 1) % 10 == 0 or layer not in self.moments:
            self.moments[layer] = _moments(inputs) if self.steps else torch.eye(inputs[0].shape[-1])

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.steps += 1
        return loss


class SkipsSpikes(torch.optim.SGD):
    """Takes no step after a batch in which an activation was large, which none of the records looked at makes."""

    def __init__(self, model: Classifier) -> None:
        super().__init__(model.parameters(), 0.1)
        self.largest = 0.0
        model.network[0].register_forward_hook(self.note)

    def note(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self.largest = float(output.abs().max())

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure) if self.largest < 100 else closure()


class Averaging(torch.optim.Optimizer):
    """Momentum in the state and a number of steps beside it: nothing of the records."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure()
        self.steps += 1
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                weight.sub_(momentum.mul_(0.9).add_(weight.grad), alpha=group["lr"] / self.steps)
        return loss


def fit(make: Callable[[Any], Any], folder: Path) -> Classifier:
    class Model(Classifier):
        def configure_optimizers(self) -> Any:
            return make(self)

    model = Model()
    make_trainer(folder, make_private()).fit(model, make_loader())
    return model


@pytest.mark.parametrize("make", [
    lambda model: Preconditioned(model, "optimizer"), lambda model: Preconditioned(model, "layer"),
    lambda model: Preconditioned(model, "closure"), scaled_by_hook, NowAndThen, SkipsSpikes,
], ids=["optimizer", "layer", "closure", "hook", "now and then", "spikes"])  # fmt: skip
def test_a_step_reads_nothing_of_the_records_but_the_gradient(make: Any, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="moves weights otherwise after other records"):
        fit(make, tmp_path)


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_of_ones_own_that_reads_the_gradient_alone_trains(scheduled: bool, tmp_path: Path) -> None:
    def make(model: Classifier) -> Any:
        optimizer = Averaging(model.parameters())
        return ([optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]) if scheduled else optimizer

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*synthetic records.*")
        model = fit(make, tmp_path)
    assert model.trainer.optimizers[0].steps == 6, "copies take steps of their own"  # type: ignore[attr-defined]


class Counting(torch.optim.Optimizer):
    """A decaying rate, with the number of steps in its state, in a group or in an attribute."""

    def __init__(self, model: nn.Module, place: str) -> None:
        super().__init__(list(model.parameters()), {"lr": 0.1})
        places = {"state": self.state, "group": self.param_groups[0], "attribute": vars(self)}
        self.place = place
        places[place]["count"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        place: Any = {"state": self.state, "group": self.param_groups[0], "attribute": vars(self)}[self.place]
        place["count"] += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1 / place["count"])
        return loss


@pytest.mark.parametrize("place", ["group", "attribute"])
def test_an_optimizer_counts_its_steps(place: str, tmp_path: Path) -> None:
    class Counted(Classifier):
        def configure_optimizers(self) -> Any:
            return Counting(self, place)

    private = make_private()
    make_trainer(tmp_path, private).fit(Counted(), make_loader())
    assert private.account is not None
    assert private.account.num_steps == 6


def test_a_number_among_the_states_of_parameters_is_refused_in_words(tmp_path: Path) -> None:
    class Counted(Classifier):
        def configure_optimizers(self) -> Any:
            return Counting(self, "state")

    with pytest.raises(MisconfigurationException, match=r"keeps 'count' in its state as int, .* group\['count'\]"):
        make_trainer(tmp_path, make_private()).fit(Counted(), make_loader())


class Lookahead(torch.optim.Optimizer):
    """Goes back half of the way every second step; it leaves out `Optimizer.__init__`, as timm's does, and more."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.param_groups, self.defaults = base, base.param_groups, base.defaults
        self.state: Any = base.state
        for group in self.param_groups:
            group["count"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self.base.step(closure)
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"] if group["count"] % 2 == 0 else ():
                slow = self.state[weight].setdefault("slow", weight.detach().clone())
                weight.copy_(slow.lerp_(weight, 0.5))
        return loss


def test_the_first_run_of_an_optimizer_that_wraps_another_passes(tmp_path: Path) -> None:
    """Nobody told of its steps until a copy of it was made, so that they counted as written by others."""
    fit(lambda model: Lookahead(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)), tmp_path)
