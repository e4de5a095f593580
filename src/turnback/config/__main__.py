"""Prints the table of all configuration keys."""

from turnback.config.table import table

if __name__ == "__main__":
    print(table(), end="")
