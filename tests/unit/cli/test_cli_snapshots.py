"""`inspect`, `query` without a query, `verify`, `dispose`, `gc` and `transactions`."""

import pytest

from turnback.cli.context import ExitCode
from turnback.job.run import Launch, ProcessId, RunningJob
from turnback.job.status import JobState
from turnback.launch.runs import Runs
from turnback.worker.local_state import LocalStores, StoreOwner
from unit.cli.cli_support import TOTAL, make_job


@pytest.fixture
def job(shell, tmp_path):
    job = make_job(shell.root, "orders")
    job.savepoint(str(tmp_path / "sp" / "one"), (TOTAL, {"alice": 7, "zoe": 1}), label="before")
    return job


@pytest.mark.parametrize(
    "text", ["orders@latest", "orders@chk-3", "ord@3", "orders@before", "orders@2030-01-01T00:00"]
)
def test_inspect_finds_snapshots_of_a_job(shell, job, text):
    seen = shell("inspect", text, "--json").json
    assert seen["job"] == "orders"
    assert [state["name"] for state in seen["states"]] == ["total"]


def test_inspect_finds_snapshots_by_their_path(shell, job, tmp_path):
    for path in ("sp/one", "sp/one/_metadata.json"):
        assert shell("inspect", f"{tmp_path}/{path}", "--json").json["label"] == "before"
    file = f"{shell.root}/orders/checkpoints/chk-2.json"
    assert shell("inspect", file, "--json").json["id"] == "chk-2"


def test_inspect_prints_states_and_sources(shell, job):
    out = shell("inspect", "orders@before").out
    assert "count  total  value  string" in out
    assert 'events  {"at": 1}' in out


def test_inspect_shows_the_rows_of_a_state(shell, job):
    lines = shell("inspect", "orders@chk-3", "--state", "count/total").lines
    assert sorted(lines[1:]) == ["alice  3", "bob    2", "carol  4"]
    assert shell("inspect", "orders@before", "--state", "total", "--key", "zoe").lines[1:] == [
        "zoe  1"
    ]
    page = shell("inspect", "orders@chk-3", "--state", "total", "--rows", "2", "--json").json
    assert len(page["rows"]) == 2 and page["next"] is not None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["orders@chk-99"], ExitCode.NOT_FOUND, "chk-99"),
        (["orders@nothing"], ExitCode.NOT_FOUND, "nothing"),
        (["oders@latest"], ExitCode.NOT_FOUND, "did you mean 'orders'?"),
        (["/nowhere/at/all"], ExitCode.NOT_FOUND, "/nowhere/at/all"),
        (["orders"], ExitCode.NOT_FOUND, "orders@latest"),
        (["orders@before", "--state", "count/totals"], ExitCode.NOT_FOUND, "did you mean 'total'"),
        (["orders@before", "--state", "x"], ExitCode.NOT_FOUND, "count/total"),
        (["orders@before", "--key", "x"], ExitCode.USAGE, "--state"),
        (["orders@before", "--state", "total", "--rows", "0"], ExitCode.USAGE, "--rows"),
    ],
)
def test_what_is_not_there_is_named(shell, job, words, code, said):
    done = shell("inspect", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_verify_finds_nothing_wrong(shell, job):
    assert shell("verify", "orders@before").lines[0].startswith("ok: ")
    assert shell("verify", "orders@latest", "--json").json["ok"] is True


def test_verify_names_damaged_and_missing_files(shell, job, tmp_path):
    parquet = next((tmp_path / "sp" / "one").rglob("*.parquet"))
    data = bytearray(parquet.read_bytes())
    data[len(data) // 2] ^= 1
    parquet.write_bytes(data)
    done = shell("verify", "orders@before", "--json")
    assert done.code == ExitCode.DAMAGED
    (problem,) = done.json["problems"]
    assert problem["path"].endswith(".parquet")
    parquet.unlink()
    done = shell("verify", "orders@before")
    assert done.code == ExitCode.DAMAGED
    assert "missing" in done.out


def test_a_damaged_checkpoint_and_a_newer_format_are_told_apart_from_missing_ones(shell, job):
    (shell.root / "orders" / "checkpoints" / "chk-3.json").write_text("{")
    done = shell("inspect", "orders@chk-3", "--json")
    assert (done.code, done.error["kind"]) == (ExitCode.DAMAGED, "CorruptFileError")


def test_query_lists_its_tables(shell, job):
    assert shell("query", "orders@before", "--json").json == [
        {"table": "count_total", "uid": "count", "state": "total", "kind": "value"}
    ]
    assert shell("query", "orders@before").lines[1].split() == [
        "count_total", "count", "total", "value",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--format", "xml"], ["--limit", "0"]])
def test_query_refuses_wrong_options(shell, job, words):
    assert shell("query", "orders@before", "SELECT 1", *words).code == ExitCode.USAGE


def test_dispose_deletes_a_savepoint(shell, job, tmp_path):
    done = shell("dispose", "orders@before", "--yes", "--json")
    assert done.code == 0
    assert done.json["job"] == "orders"
    assert not (tmp_path / "sp" / "one" / "_metadata.json").exists()
    assert shell("savepoints", "orders", "--json").json == []


def test_dispose_asks(shell, job, tmp_path):
    done = shell("dispose", "orders@before")
    assert done.code == ExitCode.DECLINED
    assert "before" in done.err
    assert (tmp_path / "sp" / "one" / "_metadata.json").exists()


def test_dispose_needs_the_whole_name(shell, job, tmp_path):
    done = shell("dispose", "ord@before", "--yes")
    assert done.code == ExitCode.NOT_FOUND
    assert "If you mean 'orders', use its full name" in done.err
    assert (tmp_path / "sp" / "one" / "_metadata.json").exists()


def test_dispose_refuses_checkpoints(shell, job):
    done = shell("dispose", "orders@chk-3", "--yes")
    assert done.code == ExitCode.USAGE
    assert (shell.root / "orders" / "checkpoints" / "chk-3.json").exists()


def leave(job):
    """A state file that no checkpoint references."""
    path = f"state/{job.number}/unused.arrow"
    job.storage.put(path, b"x" * 100)
    return path


def test_gc_shows_and_removes_what_nothing_needs(shell, job):
    path = leave(job)
    (garbage,) = shell("gc", "--dry-run", "--json").json["garbage"]
    assert (garbage["job"], garbage["bytes"]) == ("orders", 100)
    assert path in job.storage.list("state")
    done = shell("gc", "--yes")
    assert done.code == 0, done.err
    assert path not in job.storage.list("state")
    assert shell("verify", "orders@latest").code == 0


def test_gc_asks(shell, job):
    path = leave(job)
    done = shell("gc")
    assert done.code == ExitCode.DECLINED
    assert path in job.storage.list("state")


def launched(shell, root):
    """A launch that is over, of a job below a root; nobody has its log."""
    run = Runs(shell.root.parent / "runs").create(Launch(script="job.py"))
    gone = ProcessId(ProcessId.current().host, ProcessId.current().machine, 1, "never")
    run.set_supervisor(gone)
    run.set_job(RunningJob(name="job", job_id="id", root=str(root), directory=f"file://{root}/job"))
    return run.path


def test_gc_looks_only_at_launches_and_local_stores_of_its_own_root(shell, job, tmp_path):
    elsewhere = tmp_path / "other-root"
    mine, theirs = launched(shell, shell.root), launched(shell, elsewhere)
    stores = []
    for root in (shell.root, elsewhere):
        owner = StoreOwner(job="gone", job_id="id", directory=f"file://{root}/gone")
        stores.append(LocalStores.of(owner, "rocksdb", str(tmp_path / "local")))
        stores[-1].store(0, 0).mkdir(parents=True)
        stores[-1].mark_used(owner)
    words = ("-D", f"run.dir={mine.parent}", "-D", f"state.backend.local-dir={tmp_path}/local")
    found = shell(*words, "gc", "--dry-run", "--json").json["garbage"]
    assert {(item["kind"], item["path"]) for item in found} == {
        ("local stores", str(stores[0].path)),
        ("run directory", str(mine)),
    }
    assert mine.exists()
    assert shell(*words, "gc", "--yes").code == 0
    assert [path.exists() for path in (mine, theirs)] == [False, True]
    assert [each.path.exists() for each in stores] == [False, True]


def test_gc_names_launches_that_may_belong_to_any_root(shell, job, tmp_path):
    path = launched(shell, shell.root)
    (path / "job.json").unlink()
    done = shell("-D", f"run.dir={path.parent}", "gc", "--yes")
    assert done.code == 0
    assert path.name in done.err
    assert path.exists()


def test_gc_leaves_running_jobs_alone(shell):
    job = make_job(shell.root, "orders", JobState.RUNNING)
    path = leave(job)
    done = shell("gc", "--yes")
    assert (done.code, len(done.lines)) == (0, 1)
    assert "skipped" in done.err
    assert path in job.storage.list("state")


def test_transactions_of_a_job_without_any(shell, job):
    assert shell("transactions", "list", "orders", "--json").json == []
    settled = shell("transactions", "commit", "orders", "--yes", "--json").json
    assert settled["action"] == "commit"
    assert settled["transactions"] == {}


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_transactions_are_settled_only_after_a_question(shell, job, action):
    before = job.storage.list("checkpoints")
    assert shell("transactions", action, "orders").code == ExitCode.DECLINED
    assert job.storage.list("checkpoints") == before


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_transactions_of_a_job_are_settled_by_its_whole_name(shell, job, action):
    done = shell("transactions", action, "ord", "--yes")
    assert done.code == ExitCode.NOT_FOUND
    assert "If you mean 'orders', use its full name" in done.err


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_transactions_of_a_running_job_are_its_own_business(shell, action):
    make_job(shell.root, "orders", JobState.RUNNING)
    done = shell("transactions", action, "orders", "--yes")
    assert done.code == ExitCode.CONFLICT


@pytest.mark.parametrize("words", [["--script", "gone.py"], ["--", "--input"], ["--script", "."]])
def test_a_wrong_program_is_refused(shell, job, words):
    done = shell("transactions", "commit", "orders", "--yes", *words)
    assert done.code == ExitCode.USAGE
