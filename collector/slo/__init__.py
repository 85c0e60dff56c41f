"""Service-level objectives: what is promised, who is judged, how fast the budget burns. No I/O but the data files."""
