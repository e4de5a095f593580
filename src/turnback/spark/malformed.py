"""Records that do not fit the schema of their source, as Spark finds them.

Spark parses permissively, and keeps the text of what it cannot parse. It looks only at columns that
somebody reads, so where a record is malformed depends on all of them here.
"""

from __future__ import annotations

import json
import re

from pyspark.sql import Column
from pyspark.sql import functions as F

from turnback.core.errors import MalformedRecordError
from turnback.plan.malformed import MALFORMED_COLUMN, MalformedPolicy, malformed_error
from turnback.plan.plan import SourcePlan
from turnback.values.columns import stream_columns
from turnback.values.typeinfo import TypeInfo, quote_name

CORRUPT_COLUMN = "_turnback_corrupt"
"""The text of a record that Spark cannot parse."""

PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
"""The options with which Spark fills that column."""

_CARRIED = 1_000
"""So many characters of a record go into the error; what is shown of them is less."""
_MARK = re.compile(r"<<turnback malformed (?P<body>[0-9A-F]*) demroflam>>")


def placed_text(is_malformed: Column, place: Column, text: Column) -> Column:
    """The column that tells of malformed records where they are, and what they say."""
    # Bytes of any kind may be there, and Arrow takes what Spark calls a string for UTF-8.
    placed = F.struct(place.alias("place"), F.make_valid_utf8(text).alias("text"))
    return F.when(is_malformed, placed).alias(MALFORMED_COLUMN)


def malformed_column(source: SourcePlan) -> Column:
    """Place and text of each record of a source that is malformed, null of others."""
    if MALFORMED_COLUMN in source.dataframe.columns:
        return F.col(MALFORMED_COLUMN)
    corrupt = F.col(CORRUPT_COLUMN)
    names = [quote_name(name) for name, _ in stream_columns(source.type)]
    # Never taken, but Spark has to read all columns for it.
    text = F.coalesce(corrupt, F.struct(*names).cast("string"))
    return placed_text(corrupt.isNotNull(), F.input_file_name(), text)


def refusing_malformed(source: SourcePlan, column: Column, type: TypeInfo) -> Column:
    """The same column, but reading it fails at a malformed record, if that is the policy."""
    if source.on_malformed is not MalformedPolicy.FAIL:
        return column
    malformed = malformed_column(source)
    found = F.struct(
        F.lit(source.uid).alias("uid"),
        malformed["place"].alias("place"),
        F.substring(malformed["text"], 1, _CARRIED).alias("text"),
    )
    marks = F.lit("<<turnback malformed "), F.hex(F.to_json(found)), F.lit(" demroflam>>")
    refuse = F.raise_error(F.concat(*marks)).cast(type.ddl())
    return F.when(malformed.isNull(), column).otherwise(refuse)


def malformed_record(error: BaseException) -> MalformedRecordError | None:
    """What to say of an error of Spark that is about a malformed record; None if it is not."""
    match = _MARK.search(str(error))
    if match is None:
        return None
    found = json.loads(bytes.fromhex(match["body"]))
    return malformed_error(found["uid"], found.get("place"), found.get("text"))
