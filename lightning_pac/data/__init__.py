"""Loaders whose sampling is known to the accountant, and data modules."""
