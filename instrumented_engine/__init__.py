"""A torch decode engine with continuous batching and a paged KV cache, instrumented through the SDK only."""
