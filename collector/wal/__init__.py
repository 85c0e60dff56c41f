"""The write-ahead log: a payload is fsynced here before its acknowledgement, and leaves when the store has it."""
