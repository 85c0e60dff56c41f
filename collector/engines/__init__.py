"""Engines and their processes: what they tell, and what they did."""
