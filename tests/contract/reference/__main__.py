"""Makes the reference blocks of docs/ from the code: `python -m tests.contract.reference` writes, `--check` compares.

A block lies between two marks, and everything around it is written by hand:

    <!-- reference: GET /api/v1/goodput -->
    …
    <!-- end -->

| mark | made of |
| --- | --- |
| `endpoints`, `GET /PATH`, `model NAME`, `parameters` | the collector's OpenAPI document |
| `metrics SECTION` | `collector/metrics/metrics.py` |
| `settings MODULE` | the fields of `Settings` in that module, and their descriptions |
| `variables MODULE` | its constants that name environment variables, and the docstrings under them |
| `commands`, `options COMMAND…` | the Typer application |
| `conditions`, `causes`, `remedies`, `engines` | the YAML file of that name's room |
| `rooms` | `tests/contract/rooms.py`, and the docstrings of the rooms |
| `tickets` | the last run of `benchmarks.alerts_counts` |
"""

import sys

from tests.contract.reference.pages import main

if __name__ == "__main__":
    sys.exit(main())
