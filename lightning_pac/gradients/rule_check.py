"""The numerical check that a rule must pass: the clipped sums of one record at a time, in float64."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_pac._validation import validated
from lightning_pac.gradients.arithmetic import ROUNDING
from lightning_pac.gradients.calls import Call, name_of
from lightning_pac.gradients.contributions import Contribution, Found, OwnRows
from lightning_pac.gradients.one_backward import OneBackwardEngine
from lightning_pac.gradients.rules.table import rule_on_trial

__all__ = ["check_rule"]

# What one record is made while the others must give what they gave: factors on its inputs and on its loss.
_MADE = ((0.0, 1.0), (-30.0, 1.0), (1.0, 1e4), (1e-6, 1e-6), (float("inf"), 1.0))
# Type of numbers, whether there are gaps between them, how many records at least, and a factor on all of them.
_COMPANY = (
    (torch.float32, False, 1, 1.0, _MADE),
    (torch.bfloat16, True, 1, 1.0, _MADE),
    (torch.float32, False, 200, 1.0, _MADE[1:2]),
    (torch.float32, False, 1, 1e-8, _MADE[1:2]),
)
# Norms from Gram matrices are raised by what rounding may have taken from them.
_TOLERANCE = 1e-4


@validated
def check_rule(
    function: Callable[..., Any], rule: Callable[[Call], Found | None], cases: Iterable[Sequence[Any]]
) -> None:
    """Hold a rule against one record at a time, with the function's calls arranged in every way that networks do.

    Each case is called on its rows as so many records, as records of two rows, as one record, as no record, with the
    records in another order, with the parameters computed from others and used twice, and with each of them trained
    alone. Norms, sums and sums of clipped gradients must agree to a share of 1e-4, with and without a record that is
    not finite. One record that is all zero, small, far outside or not finite must leave what the others give as it is,
    and itself give no more than the clipping norm, also in bfloat16 and where tensors are not contiguous, among 200
    records (the case's own, repeated) and where all numbers are tiny. Sums must be the same where they are written to
    float64, as those of more than 4,096 records are. The rule is registered meanwhile, and left as it
    was.

    Args:
        function: As for `register_rule`.
        rule: The rule.
        cases: Arguments of calls, by position. An `nn.Parameter` is trained; every other tensor holds records in
            dimension 0, at least four and an even number of rows; anything else is handed on. Give cases with and
            without each optional argument, with and without further dimensions, and of sizes that the rule treats
            apart.

    Raises:
        ValueError: If a contribution is wrong, if the function is not seen by torch's function modes, or if the rule
            took no call of a case in its plain arrangement.
    """
    for case in cases:
        taken = [0]

        def counted(call: Call, taken: list[int] = taken) -> Found | None:
            found = rule(call)
            taken[0] += found is not None
            return found and [(tensor, partial(_built, function, tensor, build)) for tensor, build in found]

        with rule_on_trial(function, counted):
            parameters = [place for place, value in enumerate(case) if isinstance(value, nn.Parameter)]
            rows = next((len(v) for v in case if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)), 0)
            if not parameters or rows < 4 or rows % 2:
                raise ValueError(
                    f"cases hold {_shown(case)}, but each needs an nn.Parameter, and an even number of rows, at least "
                    "four."
                )
            _compare(function, case, parameters)
            if not taken[0]:
                raise ValueError(f"rule of {name_of(function)} took no call of {_shown(case)}: leave the case out.")
            for arrangement in ({"rows": 2}, {"rows": rows}, {"shuffled": True}, {"derived": True}, {"poisoned": True}):
                _compare(function, case, parameters, **arrangement)
            for company in _COMPANY:
                _check_company(function, case, parameters, *company)
            _compare(function, [value[:0] if _is_rows(value) else value for value in case], parameters)
            for place in parameters if len(parameters) > 1 else ():
                _compare(function, case, [place])


def _built(
    function: Callable[..., Any], free: Tensor, build: Callable[[], Contribution | OwnRows]
) -> Contribution | OwnRows:
    """What a rule builds, held to the sums that it writes in float64, as it has to for more than 4,096 records."""
    contribution = build()
    if isinstance(contribution, Contribution):
        refusal = ValueError(
            f"rule of {name_of(function)} gives a {type(contribution).__name__} whose weighted_sum does not write the "
            "same to float64, as for more than 4,096 records, as to float32: let it write to both."
        )
        weights = torch.ones(len(contribution.squares()), device=free.device)
        narrow = torch.zeros(free.shape, device=free.device)
        wide = narrow.double()
        try:
            for out in (narrow, wide):
                contribution.weighted_sum(weights, out)
        except RuntimeError as error:
            raise refusal from error
        if narrow.isfinite().all() and float((narrow - wide).norm()) > 1e-3 * float(narrow.norm()):
            raise refusal
    return contribution


class _Caller(nn.Module):
    """Calls a function on rows of which each record has the same number."""

    def __init__(
        self,
        function: Callable[..., Any],
        case: Sequence[Any],
        trained: Sequence[int],
        shuffled: bool,
        derived: bool,
        strided: bool = False,
    ) -> None:
        super().__init__()
        self._function, self._case, self._shuffled, self._derived = function, list(case), shuffled, derived
        self._strided = strided
        self._places = [place for place, value in enumerate(case) if isinstance(value, nn.Parameter)]
        self.values = nn.ParameterList(
            nn.Parameter(case[place].detach().clone(), place in trained) for place in self._places
        )

    def forward(self, *batch: Tensor) -> Tensor:
        records = len(batch[0])
        flat = [tensor[:, 0] if self._strided else tensor.flatten(0, 1) for tensor in batch]
        order = torch.arange(len(flat[0])).flip(0) if self._shuffled else None
        outputs = self._call([tensor if order is None else tensor[order] for tensor in flat], 1.0)
        if self._derived:
            outputs = [a + b for a, b in zip(outputs, self._call(flat, 0.5), strict=True)]
        kept = [output if order is None else output[order] for output in outputs]
        return torch.cat([output.reshape(records, -1) if records else output.flatten(1) for output in kept], 1)

    def _call(self, rows: Sequence[Tensor], factor: float) -> list[Tensor]:
        values, remaining = list(self._case), iter(rows)
        for place, value in enumerate(values):
            values[place] = next(remaining) if _is_rows(value) else value
        for place, value in zip(self._places, self.values, strict=True):
            values[place] = factor * value if self._derived else value
        # Looked up at each call: an attached engine shows it to the mode that is on.
        function: Any = getattr(self._function, "apply", self._function)
        found = function(*values)
        parts = [part for part in ([found] if isinstance(found, Tensor) else found) if part.is_floating_point()]
        return [_strided(part) for part in parts] if self._strided else parts


def _compare(
    function: Callable[..., Any],
    case: Sequence[Any],
    trained: Sequence[int],
    rows: int = 1,
    shuffled: bool = False,
    derived: bool = False,
    poisoned: bool = False,
) -> None:
    """Raise unless sums and norms are those of one record at a time."""
    batch = [value.view(-1, rows, *value.shape[1:]) for value in case if _is_rows(value)]
    batch = [tensor.clone() for tensor in batch]
    caller = _Caller(function, case, trained, shuffled, derived)
    finite = torch.ones(len(batch[0]), dtype=torch.bool)
    if poisoned:
        floating = [tensor for tensor in batch if tensor.is_floating_point()]
        if not floating:
            return
        floating[0][1] = torch.nan
        finite[1] = False
    truth = _Caller(function, case, trained, False, derived).double()
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in batch]
    parameters = [parameter for parameter in truth.parameters() if parameter.requires_grad]
    per_record = torch.zeros(len(finite), sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    # g_i by autograd from the loss of record i alone, shape (n, all numbers trained).
    for i in finite.nonzero().flatten().tolist():
        losses = _losses(truth(*[tensor[i : i + 1] for tensor in wide]))
        per_record[i] = torch.cat([part.flatten() for part in torch.autograd.grad(losses.sum(), parameters)])
    norms = per_record.norm(dim=1)
    if not len(finite):
        try:
            truth(*wide)
        except Exception:  # there are functions of torch that take no empty batch
            return
    engine = OneBackwardEngine()
    engine.attach(caller)
    try:
        # Once clipping nothing, and once with half the longest norm, so that some record is surely clipped.
        size = max(float(norms.max()), 1e-6) if len(norms) else 1.0
        for bound in (1e30, size / 2):
            losses = _losses(caller(*batch))
            (losses.mean() if len(losses) else losses.sum()).backward()  # type: ignore[no-untyped-call]
            sums, found = engine.clipped_sum(bound)
            expected = (per_record * (bound / norms.clamp(min=1e-30)).clamp(max=1.0)[:, None]).sum(0)
            total = torch.cat([part.flatten() for part in sums]).double()
            # Relative to the sum; where its terms cancel, to a hundredth of the longest term.
            wrong = float((total - expected).norm()) / max(float(expected.norm()), 1e-2 * min(size, bound))
            if len(finite):
                wrong = max(wrong, float((found[:, 0].double() - norms).abs().max()) / size)
            if not wrong <= _TOLERANCE:
                how = [f"{rows} rows a record"] if rows > 1 else []
                how += [name for name, on in (("shuffled", shuffled), ("derived and used twice", derived)) if on]
                how += ["with a record that is not finite"] if poisoned else []
                raise ValueError(
                    f"rule of {name_of(function)} is off by a share of {wrong:.1e} for {_shown(case)} "
                    f"({', '.join(how) or 'one row a record'}; trained: argument {', '.join(map(str, trained))}); "
                    "return the gradient of each record's share of the output."
                )
    finally:
        engine.detach()


def _check_company(
    function: Callable[..., Any],
    case: Sequence[Any],
    trained: Sequence[int],
    dtype: torch.dtype,
    strided: bool,
    least: int,
    scale: float,
    made: Sequence[tuple[float, float]],
) -> None:
    """Raise unless a made record leaves the others' sum as it is, and gives no more than the clipping norm itself."""
    caller = _Caller(function, case, trained, False, False, strided).to(dtype)
    rows = [(scale * value).to(dtype) if value.is_floating_point() else value for value in case if _is_rows(value)]
    rows = [torch.cat([value] * -(-least // len(value))) for value in rows]
    count = len(rows[0])
    engine = OneBackwardEngine()
    engine.attach(caller)

    def total(place: int, factors: tuple[float, float], bound: float, num_records: int) -> Tensor:
        weights = torch.ones(count)
        weights[place] = factors[1]
        batch = [tensor[:, None].clone() for tensor in rows]
        for tensor in batch:
            tensor[place] = tensor[place] * factors[0] if tensor.is_floating_point() else tensor[count - 1 - place]
        losses = _losses(caller(*(map(_strided, batch) if strided else batch)))
        (losses * weights).mean().backward()  # type: ignore[no-untyped-call]
        return torch.cat([part.flatten() for part in engine.clipped_sum(bound, num_records=num_records)[0]]).double()

    try:
        try:
            expected = total(count - 1, (1.0, 1.0), 1e30, count - 1)
        except Exception:
            if dtype != torch.float32 or least > 1:  # not every function takes that
                return
            raise
        for factors in made:
            # The made record last, as a dummy, so that only the others are added up; then first, and alone.
            others = total(count - 1, factors, 1e30, count - 1)
            own = float(total(0, factors, 1.0, 1).norm())
            wrong = float((others - expected).norm()) / max(float(expected.norm()), 1e-6 * scale)
            if wrong <= _TOLERANCE and own <= 1.0 + ROUNDING:
                continue
            found = f"lets one record give {own:.3g} clipping norms"
            if not wrong <= _TOLERANCE:
                found = f"lets one record move the others' sum by a share of {wrong:.1e}"
            raise ValueError(
                f"rule of {name_of(function)} {found} for {_shown(case)} (in {dtype}"
                f"{', with gaps between values' if strided else ''}, {count} rows times {scale:g}; its inputs and its "
                f"loss times {factors}): let what it returns for a record depend on that record's rows alone, and "
                "squares be those of what is summed."
            )
    finally:
        engine.detach()


def _strided(tensor: Tensor) -> Tensor:
    """The same values and, backwards, gradients, with gaps between them."""
    return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]


def _losses(outputs: Tensor) -> Tensor:
    # Another slope at each output, so that none can stand in for another.
    ramp = torch.linspace(0.5, 1.5, outputs.shape[1], dtype=outputs.dtype)
    return (torch.sin(outputs) * ramp).sum(1)


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _shown(case: Sequence[Any]) -> str:
    parts = [str(list(value.shape)) if isinstance(value, Tensor) else repr(value) for value in case]
    return f"arguments of shapes and values ({', '.join(parts)})"
