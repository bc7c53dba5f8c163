"""One file for each family of layers: how a call of the layer contributes to per-example gradients."""
