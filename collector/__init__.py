"""The collector takes OTLP into a write-ahead log, stores it in ClickHouse, and answers `/metrics` and `/api/v1`."""

import os

# Its matrices are small. More threads of BLAS than one wait for each other, busily: a comparison took twice the CPU.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
