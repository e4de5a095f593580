"""`turnback delete`: removes a job for good."""

from __future__ import annotations

from turnback.cli.command import command, flag
from turnback.cli.context import Cli
from turnback.cli.parameters import whole_job_argument, yes_option


@command("delete", "turnback delete orders", "turnback delete orders --savepoints --yes")
@whole_job_argument
@flag("--savepoints", help="Its savepoints too; otherwise they are kept.")
@flag(
    "--force",
    help="Also if its driver cannot be asked, or sinks have promised output that is not committed.",
)
@yes_option
def delete(cli: Cli, job_name: str, savepoints: bool, force: bool, yes: bool) -> None:
    """Delete a job that does not run: its directory with all checkpoints, for good.

    Savepoints are kept unless --savepoints is given, and can be started from. What sinks have
    written stays. Names and ids have to be whole.
    """
    from turnback.operations.deletion import delete_job, refuse_to_delete

    job = cli.job(job_name, whole=True)
    refuse_to_delete(job, force=force)
    there = sum(row.exists is not False for row in job.savepoints())
    also = f" and {there} savepoints" if savepoints and there else ""
    cli.confirm(f"Delete job {job.name!r} with all its checkpoints{also} for good?", yes)
    deleted = delete_job(job, cli.jobs, savepoints=savepoints, force=force)
    if cli.json:
        cli.out.document(deleted)
        return
    cli.out.line(
        f"deleted {deleted.directory}: {deleted.files} files, {cli.out.size(deleted.bytes)}"
    )
    for path in deleted.savepoints:
        cli.out.line(f"deleted {path}")
    for path in deleted.kept:
        cli.out.message(f"kept the savepoint {path}")
