"""The `lightning-pac` command."""
