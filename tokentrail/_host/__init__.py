"""What the SDK is to its host process: its errors, its clock, its end, the turns of its threads, and its books."""
