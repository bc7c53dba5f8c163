"""LightningModules: the subset ensemble, the Stackelberg game and the student."""
