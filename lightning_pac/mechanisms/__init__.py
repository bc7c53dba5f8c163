"""Where noise enters, and how much of it."""
