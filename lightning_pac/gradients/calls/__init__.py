"""Calls of torch's functions: where the records are in arguments and results, and a call as its rule sees it."""

from lightning_pac.gradients.calls.call import Autocast, Call, name_of, unflattened, without_autocast
from lightning_pac.gradients.calls.compiled import as_written
from lightning_pac.gradients.calls.layouts import CONSTANTS, layout_of_result
from lightning_pac.gradients.calls.moved_rows import functions_named, settle_packed
from lightning_pac.gradients.calls.tags import (
    Batched,
    Free,
    Pass,
    by_record,
    free_of,
    nested_tensors,
    record_axis,
    record_count,
    set_tag,
    settle,
    tag_of,
)
from lightning_pac.gradients.calls.watching import (
    KeptTensors,
    anchored,
    enclosing_backward,
    hook_before_others,
    joined,
    on_gradient_of,
)

__all__ = [
    "CONSTANTS",
    "Autocast",
    "Batched",
    "Call",
    "Free",
    "KeptTensors",
    "Pass",
    "anchored",
    "as_written",
    "by_record",
    "enclosing_backward",
    "free_of",
    "functions_named",
    "hook_before_others",
    "joined",
    "layout_of_result",
    "name_of",
    "nested_tensors",
    "on_gradient_of",
    "record_axis",
    "record_count",
    "set_tag",
    "settle",
    "settle_packed",
    "tag_of",
    "unflattened",
    "without_autocast",
]
