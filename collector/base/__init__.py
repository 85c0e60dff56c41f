"""What every room may use: the base of answers, counters, the data folder and watched files."""
