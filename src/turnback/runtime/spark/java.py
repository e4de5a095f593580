from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from turnback.core.errors import ConfigurationError

MINIMUM = 17
_HINT = (
    f"Install Java {MINIMUM} or newer (for example Debian's openjdk-17-jre-headless, or Temurin "
    f"{MINIMUM}) and put it on PATH or name it in JAVA_HOME."
)


def check_java() -> int:
    """Find Java and return its major version.

    Raises:
        ConfigurationError: It is missing or too old; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is none on PATH"
        raise ConfigurationError(f"Spark needs Java, and {where}. {_HINT}")
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise ConfigurationError(f"{program} -version does not answer as Java does. {_HINT}")
    major = int(found[1])
    if major < MINIMUM:
        raise ConfigurationError(f"{program} is Java {major}, too old for Spark. {_HINT}")
    return major
