"""Scheduling, block management, stop conditions and the engine's loop. Imports no torch and does no I/O."""
