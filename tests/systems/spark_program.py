"""Runs a program on a Spark that has the Kafka connector."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from services.kafka import connector_jars

WRONG_PASSWORD = "wrong-password-of-kafka"
"""What a program logs in with to be refused: it may not be printed."""


def run(program: Path, directory: Path, java: str, *arguments: str) -> str:
    """Run a program on a Spark with the connector; returns what it prints."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env=os.environ
        | {
            "JDK_JAVA_OPTIONS": java,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER": "local[2]",
            "PYSPARK_SUBMIT_ARGS": f"--jars {connector_jars()} pyspark-shell",
            "PYTHONPATH": str(program.parent),  # workers load functions of modules there
            "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(directory / "jobs"),
            "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert WRONG_PASSWORD not in done.stdout + done.stderr
    return done.stdout
