"""Lightning callbacks: the way most people use this package."""
