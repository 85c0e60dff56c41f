"""What the engine decides: who runs, on which blocks, and what each request gets. No torch, no I/O."""
