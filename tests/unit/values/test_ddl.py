import pytest

from turnback.errors import UnsupportedTypeError
from turnback.values.hints import parse_ddl
from turnback.values.typeinfo import TypeInfo, Types

SCALARS = {
    "string": Types.STRING(),
    "VARCHAR(20)": Types.STRING(),
    "char(3)": Types.STRING(),
    "binary": Types.BYTES(),
    "boolean": Types.BOOLEAN(),
    "tinyint": Types.BYTE(),
    "byte": Types.BYTE(),
    "smallint": Types.SHORT(),
    "short": Types.SHORT(),
    "int": Types.INT(),
    "INTEGER": Types.INT(),
    "bigint": Types.LONG(),
    "long": Types.LONG(),
    "float": Types.FLOAT(),
    "real": Types.FLOAT(),
    "double": Types.DOUBLE(),
    "date": Types.SQL_DATE(),
    "time": Types.SQL_TIME(),
    "time(6)": Types.SQL_TIME(),
    "timestamp": Types.INSTANT(),
    "timestamp_ltz": Types.INSTANT(),
    "Timestamp_NTZ": Types.SQL_TIMESTAMP(),
    "decimal": Types.BIG_DEC(10, 0),
    "decimal(5)": Types.BIG_DEC(5, 0),
    " numeric ( 38 , 18 ) ": Types.BIG_DEC(38, 18),
    "dec(1,1)": Types.BIG_DEC(1, 1),
}
INT, STRING = Types.INT(), Types.STRING()


@pytest.mark.parametrize("text", SCALARS)
def test_scalars(text: str) -> None:
    assert parse_ddl(text) == SCALARS[text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("post string, n bigint", Types.ROW_NAMED(["post", "n"], [STRING, Types.LONG()])),
        ("post: string,n:int", Types.ROW_NAMED(["post", "n"], [STRING, INT])),
        ("struct<post:string,n:int>", Types.ROW_NAMED(["post", "n"], [STRING, INT])),
        ("struct<post string, n int>", Types.ROW_NAMED(["post", "n"], [STRING, INT])),
        ("array<array<int>>", Types.LIST(Types.LIST(INT))),
        ("map<string,map<int,string>>", Types.MAP(STRING, Types.MAP(INT, STRING))),
        ("n INT NOT NULL COMMENT 'how, (many) it\\'s', s string",
         Types.ROW_NAMED(["n", "s"], [INT, STRING])),
        ('n int comment "a \\"b\\"" not null', Types.ROW_NAMED(["n"], [INT])),
        ("struct<a:int NOT NULL>", Types.ROW_NAMED(["a"], [INT])),
        ("`a b` int, `c``d` string", Types.ROW_NAMED(["a b", "c`d"], [INT, STRING])),
        ("int int", Types.ROW_NAMED(["int"], [INT])),
        ("timestamp timestamp_ntz", Types.ROW_NAMED(["timestamp"], [Types.SQL_TIMESTAMP()])),
        ("array array<int>", Types.ROW_NAMED(["array"], [Types.LIST(INT)])),
        ("größe int", Types.ROW_NAMED(["größe"], [INT])),
        ("\n a\tint,\n b int\n", Types.ROW_NAMED(["a", "b"], [INT, INT])),
    ],
)  # fmt: skip
def test_rows_and_nesting(text: str, expected: TypeInfo) -> None:
    assert parse_ddl(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "empty"),
        ("   ", 3, "empty"),
        ("bigit", 0, "unknown type 'bigit'"),
        ("a int, b itn", 9, "unknown type 'itn'"),
        ("a int,", 6, "expected a field name"),
        ("a int b int", 6, "expected the end"),
        ("array<int", 9, "expected '>'"),
        ("array<int>>", 10, "expected the end"),
        ("map<int>", 7, "expected ','"),
        ("struct<>", 7, "expected a field name"),
        ("decimal(x)", 8, "expected a number"),
        ("a-b int", 1, "unexpected character"),
        ("a int not nul", 10, "expected NULL"),
        ("a int comment x", 14, "expected the comment in quotes"),
        ("`a int", 0, "unexpected character"),
        ("int(3)", 3, "expected the end"),
        ("a interval", 2, "unknown type 'interval'"),
    ],
)
def test_errors_say_where(text: str, position: int, reason: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"at position {position}: .*{reason}"):
        parse_ddl(text)


def test_nesting_has_a_limit_that_is_an_error() -> None:
    assert parse_ddl("array<" * 100 + "int" + ">" * 100)
    with pytest.raises(UnsupportedTypeError, match="too deep"):
        parse_ddl("array<" * 100_000)


def test_wrong_decimals_and_duplicate_names() -> None:
    with pytest.raises(UnsupportedTypeError, match="precision"):
        parse_ddl("decimal(39,0)")
    with pytest.raises(UnsupportedTypeError, match="two fields with the same name"):
        parse_ddl("a int, a int")
