"""What must be so before any test module is imported."""

import instrumented_engine  # noqa: F401  # sets how torch's threads wait, which counts only before torch is loaded
