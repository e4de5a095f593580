from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from turnback.core import RowTypeInfo, TypeInfo
from turnback.core.errors import PlanError

FORMATS = ("csv", "json", "orc", "parquet", "text")


def file_frame(
    spark: SparkSession,
    path: str,
    format: str,
    type: TypeInfo,
    max_files: int | None,
    options: Mapping[str, Any],
) -> DataFrame:
    """A streaming DataFrame over the files of a directory."""
    if format not in FORMATS:
        raise PlanError(f"from_files: unknown format {format!r}; there are {', '.join(FORMATS)}")
    if not isinstance(type, RowTypeInfo):
        raise PlanError(f"from_files: the schema must name columns, got {type}")
    if "://" not in path and not Path(path).is_dir():
        what = "is a file, not a directory" if Path(path).is_file() else "does not exist"
        raise PlanError(f"from_files: {path} {what}; name the directory the files arrive in")
    columns = zip(type.names, type.types, strict=True)
    ddl = ", ".join(f"`{name.replace('`', '``')}` {t.ddl()}" for name, t in columns)
    reader = spark.readStream.format(format).schema(ddl).options(**dict(options))
    if max_files is not None:
        reader = reader.option("maxFilesPerTrigger", max_files)
    return reader.load(path)
