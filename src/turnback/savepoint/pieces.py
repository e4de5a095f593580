from collections.abc import Iterator

import pyarrow as pa


def pieces(table: pa.Table, rows: int, size: int) -> Iterator[pa.Table]:
    """Cut a table into pieces of at most so many rows and bytes; a single row may be larger."""
    count = table.num_rows
    if count <= 1 or (count <= rows and table.nbytes <= size):
        yield table
        return
    middle = count // 2
    yield from pieces(table.slice(0, middle), rows, size)
    yield from pieces(table.slice(middle), rows, size)
