"""Stand-ins for collectives: they hand back what the real ones do, where other ranks hold multiples of this one's."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_ranks
from torch import Tensor

from lightning_pac.strategies.stand_in_collectives import exchanging_nothing

COLLECTIVES = [
    "sum", "average", "largest", "smallest", "product", "bits", "reduce", "gather all", "gather", "gather into one",
    "gather counts", "gather objects", "gather objects to one", "scatter", "reduce and scatter", "all to all",
    "broadcast", "barrier", "without waiting",
]  # fmt: skip


def exchanged(name: str, rank: int, size: int, factor: float, shift: int = 0) -> Any:
    """What a rank has after a collective that each begins with multiples of the same numbers, others in other rows."""
    own = factor * torch.tensor([[1.0, -2.0], [0.5, 4.0]]).roll(shift, 0)
    parts = [torch.empty_like(own) for _ in range(size)]
    counts = [torch.empty(1, dtype=torch.long) for _ in range(size)]
    halves = [factor * torch.tensor([1.0, 3.0]).roll(shift, 0) for _ in range(size)]
    objects: list[Any] = [None] * size
    one, half = torch.empty(2 * size, 2), torch.empty(2)
    operations = {
        "sum": dist.ReduceOp.SUM,
        "largest": dist.ReduceOp.MAX,
        "smallest": dist.ReduceOp.MIN,
        "product": dist.ReduceOp.PRODUCT,
    }
    if name in operations:
        dist.all_reduce(own, operations[name])
    elif name == "average":
        dist.all_reduce(own, op=dist.ReduceOp.AVG)
    elif name == "bits":
        own = torch.tensor([5])
        dist.all_reduce(own, dist.ReduceOp.BOR)
    elif name == "reduce":
        dist.reduce(own, dst=0)
    elif name == "gather all":
        dist.all_gather(parts, own)
        return parts
    elif name == "gather":
        dist.gather(own, parts if rank == 0 else None)
        return parts
    elif name == "gather into one":
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(one, own)
        return one
    elif name == "gather counts":
        dist.all_gather(counts, torch.tensor([7]))
        return counts
    elif name == "gather objects":
        dist.all_gather_object(objects, "text")
        return objects
    elif name == "gather objects to one":
        dist.gather_object("text", objects if rank == 0 else None)
        return objects
    elif name == "scatter":
        dist.scatter(half, halves if rank == 0 else None)
        return half
    elif name == "reduce and scatter":
        dist.reduce_scatter(half, halves)
        return half
    elif name == "all to all":
        received = [torch.empty(2) for _ in range(size)]
        dist.all_to_all(received, halves)
        return received
    elif name == "broadcast":
        dist.broadcast(own, src=0)
    elif name == "barrier":
        dist.barrier()
    elif name == "without waiting":
        work = dist.all_reduce(own, async_op=True)
        assert work is not None
        work.wait()
        assert work.is_completed()
    return own


def on_both(rank: int, size: int) -> dict[str, tuple[Any, Any]]:
    """By the name of each collective, what it hands back and what its stand-in does; None where gloo has none."""
    dist.init_process_group("gloo", rank=rank, world_size=size)
    found = {}
    for name in COLLECTIVES:
        try:
            real = exchanged(name, rank, size, 1.25 if rank else 1.0, rank)
        except RuntimeError:
            continue
        with exchanging_nothing():
            if rank == 0:  # which alone would wait for the other
                found[name] = (real, exchanged(name, rank, size, 1.0))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[Any, Any]]:
    return on_ranks(on_both, 2)[0]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_stand_in_hands_back_what_ranks_exchange(found: dict[str, tuple[Any, Any]], name: str) -> None:
    if name not in found:
        assert name in ("average", "reduce and scatter", "all to all")
        pytest.skip("gloo has none")
    real, stand_in = found[name]
    if isinstance(real, Tensor):
        real, stand_in = [real], [stand_in]
    if isinstance(real[0], str):
        assert stand_in == real
    else:
        torch.testing.assert_close(stand_in, real)


def test_one_process_keeps_its_functions() -> None:
    before = dist.all_reduce
    with exchanging_nothing():
        assert dist.all_reduce is before
