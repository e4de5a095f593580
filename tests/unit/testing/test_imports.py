"""What `turnback.testing` needs."""

import subprocess
import sys

PROGRAM = """
import sys
from turnback.testing import *
assert "pyspark" not in sys.modules
"""


def test_it_is_imported_without_pyspark():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
