"""What the engine computes: weights in, token ids out. The only room with torch in it."""
