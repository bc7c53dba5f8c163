"""Per-example gradient engines: clip each record's gradient and hand out only the sum."""
