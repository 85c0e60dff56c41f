"""The assembler thread: records become spans."""
