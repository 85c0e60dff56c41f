"""A torch decode engine that shows every serving technique, instrumented through the SDK only."""
