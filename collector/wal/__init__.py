"""The write-ahead log: what is acknowledged is here before, and in the store after."""
