"""Lightning strategies that reduce clipped sums instead of raw gradients."""
