"""`python -m tokentrail.cli`, the same as `tokentrail`."""

from tokentrail.cli import main

main()
