"""One program per engine; each runs in a process of its own and prints one JSON line."""
