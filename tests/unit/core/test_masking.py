"""What counts as a secret."""

from __future__ import annotations

import pytest

from turnback.core.masking import is_secret_name, mask_arguments, mask_text, mask_value


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.container.shop.blob.core.windows.net",
        "spark.ssl.keyPassword",
        "spark.hadoop.fs.azure.sas.fixed.token",
        "--db-password",
        "--pass",
        "--api-key",
        "AWS_SECRET_ACCESS_KEY",
        "client_credentials",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert mask_value(name, "x") == "****"


@pytest.mark.parametrize(
    "name",
    [
        "spark.master",
        "spark.sql.session.timeZone",
        "--key-column",
        "--passes",
        "--sasl",
        "--signal",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://u:p@h/db", "postgres://u:****@h/db"),
        ("postgresql://u:p@ss@h:5432/db", "postgresql://u:****@h:5432/db"),
        ("redis://:p@h:6379", "redis://:****@h:6379"),
        ("https://a.net/x?sv=1&sig=ab%2Fc&se=2 is", "https://a.net/x?sv=1&sig=****&se=2 is"),
        ("jdbc:postgresql://h/db?user=u&password=p", "jdbc:postgresql://h/db?user=u&password=****"),
        ("jdbc:sqlserver://h;user=u;password=p;x=y", "jdbc:sqlserver://h;user=u;password=****;x=y"),
        ("host=h password='a b' dbname=d", "host=h password=**** dbname=d"),
        ('required username="a" password="b";', 'required username="a" password=****;'),
        ('{"password": "x", "user": "y"}', '{"password": ****, "user": "y"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ****"),
        ("https://host:8080/path@v2", "https://host:8080/path@v2"),
        ("at 12:30 the token was wrong", "at 12:30 the token was wrong"),
        ("Unexpected token: x", "Unexpected token: x"),
        ("file:///data/a=b", "file:///data/a=b"),
    ],
)  # fmt: skip
def test_secrets_within_a_text(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert mask_text(shown) == shown


def test_arguments_of_a_program() -> None:
    given = (
        *("job.py", "--db-password", "X", "--token=X", "--in", "postgres://u:X@h/db", "-v"),
        *("secret=X", "--use-token", "--out", "/data", "--api-key", "X", "X-axis"),
    )
    shown = (
        *("job.py", "--db-password", "****", "--token=****", "--in", "postgres://u:****@h/db"),
        *("-v", "secret=****", "--use-token", "--out", "/data", "--api-key", "****", "X-axis"),
    )
    assert mask_arguments(given) == shown
    assert mask_arguments(shown) == shown
    assert mask_arguments(()) == ()
