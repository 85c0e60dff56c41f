"""Loads the model and computes tokens. Only this package and `instrumented_engine.device` import torch."""
