import pytest

from unit.cli.cli_support import Shell


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)
