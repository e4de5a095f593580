"""A job under load whose processes are killed at random, and a check of everything it wrote."""
