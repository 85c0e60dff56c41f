"""`python -m tokentrail.cli`, the same as `tokentrail`."""

from tokentrail.cli.app import app

app()
