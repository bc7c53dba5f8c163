"""The attachments of the fast engine, one to each module that owns trainable parameters."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_pac.gradients.rules.attention import attention_forward, supports_attention
from lightning_pac.gradients.rules.linear import linear_bias, linear_weight
from lightning_pac.gradients.rules.table import Rule, rule_for
from lightning_pac.gradients.tap import Receiver, Tap
from lightning_pac.gradients.vmapped import VmappedTap
from lightning_pac.gradients.watching import KeptInputs, enclosing_backward, watch_output

__all__ = ["plan_taps"]


def plan_taps(module: nn.Module, engine: Receiver, batch_first: bool) -> list[Tap]:
    """Attach a tap to every module below `module` that owns trainable parameters."""
    taps: list[Tap] = []
    through_vmap: dict[str, dict[str, nn.Parameter]] = {}
    attention = {}
    modules = dict(module.named_modules())
    for name, layer in modules.items():
        if type(layer) is nn.MultiheadAttention and supports_attention(layer):
            attention[f"{name}.out_proj" if name else "out_proj"] = name
            if any(parameter.requires_grad for parameter in layer.parameters()):
                taps.append(_AttentionTap(name or "(root)", layer, engine))
            continue
        own = {key: value for key, value in layer._parameters.items() if value is not None and value.requires_grad}
        if not own or name in attention:
            continue
        batch_dim = 0 if _batch_first(modules, name, batch_first) else 1
        rule = rule_for(layer)
        if rule is not None and not (name and _is_never_called(modules, name)):
            taps.append(_LayerTap(name or "(root)", layer, rule, batch_dim, engine))
            continue
        caller = name
        while caller and _is_never_called(modules, caller):
            caller = caller.rpartition(".")[0]
        prefix = name[len(caller) :].lstrip(".")
        group = through_vmap.setdefault(caller, {})
        group.update({f"{prefix}.{key}" if prefix else key: value for key, value in own.items()})
    for name, parameters in through_vmap.items():
        batch_dim = 0 if _batch_first(modules, name, batch_first) else 1
        taps.append(VmappedTap(name or "(root)", modules[name], parameters, batch_dim, engine))
    return taps


def _is_never_called(modules: dict[str, nn.Module], name: str) -> bool:
    """Containers, parametrizations and the last projection of attention hold parameters for the module above them."""
    layer, above = modules[name], modules[name.rpartition(".")[0]]
    containers = nn.ParameterList | nn.ParameterDict | nn.ModuleList | nn.ModuleDict
    if isinstance(layer, containers | nn.utils.parametrize.ParametrizationList):
        return True
    return isinstance(above, nn.MultiheadAttention) and layer is above.out_proj


def _batch_first(modules: dict[str, nn.Module], name: str, default: bool) -> bool:
    """The place of the batch dimension, as the layer itself or the nearest module above states it."""
    while True:
        layer = modules[name]
        if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            layer = layer.self_attn
        stated = getattr(layer, "batch_first", None)
        if isinstance(stated, bool):
            return stated
        if not name:
            return default
        name = name.rpartition(".")[0]


class _LayerTap(Tap):
    """Hooks of a layer that has a rule."""

    def __init__(self, name: str, layer: nn.Module, rule: Rule, batch_dim: int, engine: Receiver) -> None:
        self._name, self._layer, self._rule, self._engine = name, layer, rule, engine
        self._batch_dim = batch_dim
        self._held: dict[str, nn.Parameter | None] = {}
        self._handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._before),
            layer.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    @override
    def remove(self) -> None:
        self._restore()
        for handle in self._handles:
            handle.remove()

    def _before(self, layer: nn.Module, args: Any) -> None:
        if self._engine.watching and not self._held:
            self._held = dict(layer._parameters)
            for key, parameter in self._held.items():
                if parameter is not None:
                    layer._parameters[key] = parameter.detach()  # type: ignore[assignment]

    def _after(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        if not self._held:
            return None
        parameters = self._restore()
        if not isinstance(output, Tensor):
            return None
        inputs = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        swap = self._check_dims(inputs[0])
        kept, outer = KeptInputs(self._name, inputs), enclosing_backward()

        def on_gradient(gradient: Tensor) -> None:
            self._engine.check_backward(self._name, outer, gradient)
            with _plain_arithmetic(gradient):
                self._contribute(parameters, kept.take(), gradient, swap)

        return watch_output(output, on_gradient)

    def _contribute(
        self, parameters: dict[str, nn.Parameter | None], inputs: tuple[Tensor, ...], gradient: Tensor, swap: bool
    ) -> None:
        if self._rule.bags:
            self._engine.check_count(self._name, gradient.shape[0])
            found = self._rule.contributions(self._name, self._layer, gradient, *inputs)
        else:
            value = inputs[0].transpose(0, 1) if swap else inputs[0]
            gradient = gradient.transpose(0, 1) if swap else gradient
            self._engine.check_count(self._name, value.shape[0])
            found = self._rule.contributions(self._name, self._layer, value, gradient)
        for key, build in found.items():
            parameter = parameters.get(key)
            if parameter is not None and parameter.requires_grad:
                self._engine.receive(parameter, build())

    def _check_dims(self, value: Tensor) -> bool:
        """Refuse an input without a batch dimension, and say whether the first two dimensions change places."""
        rule = self._rule
        if rule.bags:
            return False
        wrong = value.dim() not in rule.input_dims if rule.input_dims else value.dim() < rule.minimum_dims
        if wrong:
            raise RuntimeError(
                f"The layer {self._name!r} was given an input of shape {tuple(value.shape)} without a batch dimension; "
                "add one."
            )
        return self._batch_dim == 1 and rule.input_dims is None and value.dim() > rule.minimum_dims

    def _restore(self) -> dict[str, nn.Parameter | None]:
        held, self._held = self._held, {}
        self._layer._parameters.update(held)
        return held


class _AttentionTap(Tap):
    """Replaces the forward of an attention module by one whose projections are watched one by one."""

    def __init__(self, name: str, layer: nn.MultiheadAttention, engine: Receiver) -> None:
        self._name, self._layer, self._engine = name, layer, engine
        self._stock = layer.forward
        self._private = attention_forward(layer, self._project)
        layer.forward = self._forward  # type: ignore[method-assign]

    @override
    def remove(self) -> None:
        vars(self._layer).pop("forward", None)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self._private if self._engine.watching else self._stock)(*args, **kwargs)

    def _project(self, value: Tensor, weight_name: str, rows: slice, bias_name: str) -> Tensor:
        weight: nn.Parameter = self._layer.get_parameter(weight_name)
        holder = self._layer.out_proj if "." in bias_name else self._layer
        bias: nn.Parameter | None = getattr(holder, bias_name.rpartition(".")[2])
        # Separate projection weights share one bias; packed ones are rows of one weight, too.
        packed = weight_name == "in_proj_weight"
        weight_rows = rows if packed else slice(None)
        output = nn.functional.linear(
            value, weight.detach()[weight_rows], None if bias is None else bias.detach()[rows]
        )
        kept, outer = KeptInputs(self._name, (value,)), enclosing_backward()

        def on_gradient(gradient: Tensor) -> None:
            self._engine.check_backward(self._name, outer, gradient)
            with _plain_arithmetic(gradient):
                (inputs,) = kept.take()
                self._engine.check_count(self._name, inputs.shape[0])
                for part, target in _thirds(rows, gradient.shape[2], weight_name != "out_proj.weight"):
                    piece = gradient[..., part]
                    if weight.requires_grad:
                        contribution = linear_weight(self._name, inputs, piece)
                        self._engine.receive(weight, contribution, target if packed else slice(None))
                    if bias is not None and bias.requires_grad:
                        self._engine.receive(bias, linear_bias(piece), target)

        return watch_output(output, on_gradient)


def _thirds(rows: slice, width: int, inward: bool) -> Iterator[tuple[slice, slice]]:
    """Columns of an output and the rows they come from, split so that any two calls share all rows or none."""
    if not inward:
        yield slice(None), slice(None)
    elif rows.start is not None:
        yield slice(None), rows
    else:
        third = width // 3
        for part in range(3):
            piece = slice(part * third, (part + 1) * third)
            yield piece, piece


@contextlib.contextmanager
def _plain_arithmetic(gradient: Tensor) -> Iterator[None]:
    """No autograd and no autocast: norms are computed in float32."""
    with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
        yield
