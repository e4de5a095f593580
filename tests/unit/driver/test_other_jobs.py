"""What a sink can learn of the job that owns its target."""

from coordinator_fakes import Job, memory
from turnback.driver.sinks import _OtherJobs
from turnback.job.directory import JobDirectory


def test_what_a_job_has_promised_until_it_is_turned_back() -> None:
    storage = memory()
    directory = JobDirectory(storage, "job")
    other_jobs = _OtherJobs({})
    assert other_jobs.promised_by(storage.uri) == 0
    job_id = directory.open().job_id
    job = Job(storage, job_id=job_id)
    directory.record_attempt(1)
    job.sink.broken = RuntimeError("the target does not answer")
    job.epoch(1)
    job.checkpoint()
    assert other_jobs.promised_by(storage.uri) == 1
    # An attempt that starts empty has given it up, and has no checkpoint of its own yet.
    Job(storage, job_id=job_id, nonce="m")
    assert other_jobs.promised_by(storage.uri) == 1
    directory.record_attempt(2, abandoned=(2,))
    assert other_jobs.promised_by(storage.uri) == 0
