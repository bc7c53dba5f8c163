"""What is secret: scenarios, how batches are drawn, slice profiles and secret spaces."""
