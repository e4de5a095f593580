import pickle
from pathlib import Path

import pytest

from turnback.errors import ConfigurationError
from turnback.storage.hdfs import HdfsStorage
from turnback.storage.local import LocalStorage
from turnback.storage.locations import normalized
from turnback.storage.object_store import AzureStorage, GcsStorage, S3Storage
from turnback.storage.open import MemoryStorage, open_storage

CONTAINER = "abfss://box@account.dfs.core.windows.net"


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "FILE://{}", "{}/"])
def test_forms_of_a_local_path(tmp_path: Path, form: str) -> None:
    storage = open_storage(form.format(tmp_path / "root"))
    assert isinstance(storage, LocalStorage)
    storage.put("a", b"1")
    assert (tmp_path / "root/a").read_bytes() == b"1"


def test_a_path_object(tmp_path: Path) -> None:
    open_storage(tmp_path / "ro%41ot").put("a", b"")
    assert (tmp_path / "ro%41ot/a").exists()


@pytest.mark.parametrize("name", ["plain", "sp ace", "per%41cent", "ünï", "a#b?c"])
def test_a_uri_leads_back_to_the_same_place(tmp_path: Path, name: str) -> None:
    storage = open_storage(tmp_path / name)
    storage.put("a", b"1")
    assert open_storage(storage.uri).get("a") == b"1"
    assert open_storage(str(tmp_path / name)).get("a") == b"1"


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_storage("~/root").put("a", b"")
    assert (tmp_path / "root/a").exists()


def test_memory() -> None:
    storage = open_storage("memory://tests")
    assert isinstance(storage, MemoryStorage)
    assert storage.uri == "memory://tests"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a/", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
    ],
)
def test_s3(uri: str, expected: str) -> None:
    storage = open_storage(uri, {"region": "eu-west-1", "timeout": "30 s", "max_retries": "2"})
    assert isinstance(storage, S3Storage)
    assert storage.uri == expected
    assert pickle.loads(pickle.dumps(storage)).uri == expected


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "empty"),
        (
            "gopher://host/path",
            r"unknown storage scheme 'gopher'; .*gs://, abfss:// or hdfs://",
        ),
        ("file://host/path", "three slashes"),
        ("memory://", "memory://NAME"),
        ("hdfs://host:8020", "all of HDFS"),
        ("hdfs://me@host:8020/x", "names a user"),
        ("hdfs://host:port/x", "names no host"),
        ("hdfs://host/a/../b", "not a path"),
        ("hdfs://host/a:b", "no ':' in names"),
        ("s3://", "bucket"),
        ("s3:///path", "bucket"),
        ("gs://", "no bucket: use gs://BUCKET/PREFIX"),
        ("gs://bucket/a/../b", "not a path"),
        ("abfss://box/path", "names no container and account: use abfss://CONTAINER@ACCOUNT"),
        ("abfss://@account.dfs.core.windows.net/path", "names no container and account"),
        ("abfss://box@account.blob.core.windows.net/path", "names no container and account"),
        ("abfss://box@account.dfs.core.windows.net/a./b", "dot at the end"),
        ("abfss://box@account.dfs.core.windows.net/a\\b", "a backslash"),
        ("az://box/path", r"unknown storage scheme 'az' \(write abfss://CONTAINER@ACCOUNT"),
        ("s3://bucket/a/../b", "not a path"),
        ("s3://bucket/a//b", "not a path"),
        ("/tmp/a\0b", "not a directory"),
    ],
)
def test_unusable_locations(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_storage(uri)


@pytest.mark.parametrize("path", ["file", "file/below", "file/far/below"])
def test_a_file_is_no_storage(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"file.* is not a directory"):
        open_storage(tmp_path / path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_point": "http://x"}, r"'end_point' \(did you mean 'endpoint'\?\); available"),
        ({"zzz": "1"}, "unknown option 'zzz'"),
        ({"endpoint": "http://127.0.0.1:1"}, "allow_http"),
        ({"endpoint": "http://127.0.0.1:1", "allow_http": "false"}, "allow_http"),
        ({"timeout": "soon"}, "timeout"),
        ({"max_retries": "many"}, "cannot use"),
        ({"virtual_hosted_style_request": "perhaps"}, "cannot use"),
    ],
)
def test_unusable_s3_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_storage("s3://bucket/x", options)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("gs://bucket/a/b/", "gs://bucket/a/b"),
        ("GS://bucket", "gs://bucket"),
        (f"{CONTAINER}/a/b/", f"{CONTAINER}/a/b"),
        (f"abfs{CONTAINER[5:]}/a", f"{CONTAINER}/a"),
        ("abfss://box@me.dfs.core.chinacloudapi.cn", "abfss://box@me.dfs.core.chinacloudapi.cn"),
    ],
)
def test_google_and_azure(uri: str, expected: str) -> None:
    options = {
        "region": "eu-west-1",
        "gcs_max_retries": "3",
        "gcs_timeout": "30 s",
        "azure_account_key": "aGlkZGVu",
        "azure_max_retries": "2",
        "hdfs_timeout": "30 s",
    }
    storage = open_storage(uri, options)
    assert isinstance(storage, GcsStorage if expected.startswith("gs") else AzureStorage)
    assert storage.uri == expected
    again = pickle.loads(pickle.dumps(storage))
    assert (type(again), again.uri) == (type(storage), expected)
    assert "aGlkZGVu" not in repr(storage)
    assert normalized(f"{uri}/") == normalized(expected)


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("gs://bucket", {"gcs_end_point": "x"}, r"'gcs_end_point' \(did you mean 'gcs_endpoint'"),
        ("gs://bucket", {"gcs_endpoint": "http://127.0.0.1:1"}, "set gcs_allow_http"),
        ("gs://bucket", {"gcs_timeout": "soon"}, "gcs_timeout"),
        ("gs://bucket", {"gcs_service_account": "/no/such/file"}, "cannot use gs://bucket"),
        ("gs://bucket", {"gcs_service_account_key": "{}"}, "cannot use gs://bucket"),
        ("gs://bucket", {"gcs_max_retries": "many"}, "cannot use gs://bucket"),
        (CONTAINER, {"azure_acount_key": "x"}, "did you mean 'azure_account_key'"),
        (CONTAINER, {"azure_endpoint": "http://127.0.0.1:1"}, "set azure_allow_http"),
        (CONTAINER, {"azure_account_key": "not base64!"}, "cannot use abfss://box@account"),
        (CONTAINER, {"azure_max_retries": "many"}, "cannot use abfss://box@account"),
    ],
)
def test_unusable_options_of_google_and_azure(
    uri: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as failure:
        open_storage(uri, options)
    assert "not base64!" not in str(failure.value)


@pytest.mark.parametrize(
    ("uri", "endpoint", "allow"),
    [
        ("gs://bucket", "GOOGLE_BASE_URL", "GOOGLE_ALLOW_HTTP"),
        (CONTAINER, "AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP"),
    ],
)
def test_another_endpoint_without_tls_from_the_environment(
    uri: str, endpoint: str, allow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(endpoint, "http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="allow_http"):
        open_storage(uri)
    monkeypatch.setenv(allow, "true")
    open_storage(uri)


def test_an_endpoint_without_tls_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="allow_http"):
        open_storage("s3://bucket")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    open_storage("s3://bucket")


@pytest.mark.parametrize(
    ("uri", "extra"), [("s3://bucket", "s3"), ("gs://bucket", "gcs"), (CONTAINER, "azure")]
)
def test_object_stores_without_their_extra(
    uri: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf"turnback\[{extra}\]"):
        open_storage(uri)


def test_keys_are_not_shown() -> None:
    options = {"access_key_id": "open", "secret_access_key": "hidden"}
    assert "hidden" not in repr(open_storage("s3://bucket", options))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hdfs://host:8020/a/b/", "hdfs://host:8020/a/b"),
        ("HDFS://warehouse/a", "hdfs://warehouse/a"),
        ("hdfs:///a", "hdfs:///a"),
    ],
)
def test_hdfs(uri: str, expected: str) -> None:
    both = {"region": "eu-west-1", "hdfs_timeout": "30 s", "hdfs_config_dir": "/etc/hadoop"}
    storage = open_storage(uri, both)
    assert isinstance(storage, HdfsStorage)
    assert storage.uri == expected
    assert pickle.loads(pickle.dumps(storage)).uri == expected
    assert isinstance(open_storage("s3://bucket/a", both), S3Storage)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hdfs_time": "1 s"}, r"unknown option 'hdfs_time' \(did you mean 'hdfs_timeout'\?\)"),
        ({"hdfs_timeout": "soon"}, "hdfs_timeout"),
    ],
)
def test_unusable_hdfs_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_storage("hdfs://host:8020/x", options)


def test_hdfs_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"turnback\[hdfs\]"):
        open_storage("hdfs://host:8020/x")
