"""Columns of a table as numbers, by ranges and vocabularies that tell nothing of its records."""

from lightning_pac.data.columns.transform import TableTransform

__all__ = ["TableTransform"]
