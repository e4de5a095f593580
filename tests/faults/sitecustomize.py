"""Python runs this when a process starts that has this directory on its PYTHONPATH."""

import os

import turnback_faults

turnback_faults.install(os.environ)
