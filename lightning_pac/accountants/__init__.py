"""What it cost: prices, bounds, conversions and the durable ledger."""
