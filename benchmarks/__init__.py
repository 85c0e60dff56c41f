"""Every published number, one command each."""
