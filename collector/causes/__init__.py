"""Every request's time in causes that add up: the split, the stage that stores it, and the answers that read it."""
