"""Every request's time in causes that add up: pure functions over columns. Knows no store and no HTTP."""
