"""Explains slow requests: which causes took their time, whose they were, and what would be without them."""
