"""A torch decode engine that shows every serving technique, instrumented through the SDK only."""

import os

# Read by OpenMP when torch is loaded. Threads that spin while they wait for each other starve on cores that anything
# else uses too: a decode step then takes 15 times as long as with threads that sleep (docs/engine.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
