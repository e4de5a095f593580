import json
import sys

import pytest

from turnback.core.extras import require
from turnback.errors import ConfigurationError


def test_a_module_that_is_there():
    assert require("json", "kafka", "KafkaSink") is json


def test_a_missing_package_names_the_extra():
    with pytest.raises(ConfigurationError) as caught:
        require("no_such_package.client", "kafka", "KafkaSink")
    assert str(caught.value) == "KafkaSink needs no_such_package: pip install 'turnback[kafka]'"


def test_a_package_that_cannot_be_imported_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import its_own_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot be imported.*its_own_dependency.*\[x\]"):
        require("half_installed", "x", "XSink")
    assert "half_installed" not in sys.modules
