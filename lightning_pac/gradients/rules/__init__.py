"""One file for each family of functions: how a call contributes to per-example gradients."""
