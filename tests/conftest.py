"""What must be so before any test module is imported."""

import os

# As the engine does for itself (instrumented_engine/startup.py); it counts only before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
