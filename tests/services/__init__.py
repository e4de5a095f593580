"""Real servers that tests start for themselves: one module per server."""
