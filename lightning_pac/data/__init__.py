"""Loaders whose sampling is known to the accountant, and data modules."""

from lightning_pac.data.batch_samplers import (
    FixedSizeBatchSampler,
    PoissonBatchSampler,
    ShuffledBatchSampler,
    WithReplacementBatchSampler,
)
from lightning_pac.data.columns import TableTransform
from lightning_pac.data.describe import batch_sizes, count_records, describe_loader, order_is_public
from lightning_pac.data.loader import PrivateDataLoader, ResumableDataLoader, private_loader, rebuild_loader
from lightning_pac.data.persons import Persons
from lightning_pac.data.public_rows import most_records
from lightning_pac.data.rank_share import RankShare
from lightning_pac.data.records import check_records_alone
from lightning_pac.data.secret_workers import SecretWorkerSeeds, hide_worker_seeds
from lightning_pac.data.with_index import IndexedSample, WithIndex
from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sampling, Sequential, WithReplacement

__all__ = [
    "EpochShuffle",
    "FixedSize",
    "FixedSizeBatchSampler",
    "IndexedSample",
    "Persons",
    "Poisson",
    "PoissonBatchSampler",
    "PrivateDataLoader",
    "RankShare",
    "ResumableDataLoader",
    "Sampling",
    "SecretWorkerSeeds",
    "Sequential",
    "ShuffledBatchSampler",
    "TableTransform",
    "WithIndex",
    "WithReplacement",
    "WithReplacementBatchSampler",
    "batch_sizes",
    "check_records_alone",
    "count_records",
    "describe_loader",
    "hide_worker_seeds",
    "most_records",
    "order_is_public",
    "private_loader",
    "rebuild_loader",
]
