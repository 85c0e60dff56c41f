"""How long to wait: the healthy requests that a time-out would cut, the dead ones it would catch, and hedging."""
