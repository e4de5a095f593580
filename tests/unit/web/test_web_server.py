import errno
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from web_support import TOKEN, raw, served

from services.missing import missing
from turnback.errors import ConfigurationError
from turnback.web.server import listen, serve, url
from turnback.web.site import Site

pytestmark = pytest.mark.slow

PROGRAM = """
import logging, sys
from turnback.views.jobs import Jobs
from turnback.web.server import serve
from turnback.web.site import Site
logging.basicConfig(level=logging.DEBUG, filename=sys.argv[2])
site = Site(jobs=Jobs(sys.argv[1]), token=sys.argv[3], port=0)
serve(site, on_ready=lambda url: print(url, flush=True))
print("over", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order_and_no_token_is_logged(world, tmp_path, number):
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(world.root), str(log), TOKEN]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        address = process.stdout.readline().strip()
        port = int(address.removesuffix("/").rsplit(":", 1)[1])
        assert address == f"http://127.0.0.1:{port}/"
        request = f"GET /?token={TOKEN} HTTP/1.1\nHost: 127.0.0.1:{port}\nConnection: close\n\n"
        assert raw(port, request)[0] == 303
        # A browser that keeps its connection open must not keep the server.
        with socket.create_connection(("127.0.0.1", port)) as idle:
            idle.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert idle.recv(10)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "over\n", "")
    assert TOKEN not in log.read_text()


def test_a_port_that_is_taken_is_a_clear_error(world):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port} is in use.*--port"):
            serve(Site(jobs=world.jobs, token=TOKEN, port=port))


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", -1, "0 to 65535"),
        ("127.0.0.1", 65536, "0 to 65535"),
        ("127.0.0.1", "8081", "0 to 65535"),
        ("no such host", 0, "cannot listen"),
        ("192.0.2.1", 0, "cannot listen"),
        ("a" * 100, 0, "listen"),
    ],
)
def test_addresses_that_cannot_be_used(host, port, text):
    with pytest.raises(ConfigurationError, match=text):
        listen(host, port)


def test_a_port_that_needs_root(monkeypatch):
    def refuse(*args, **more):  # tests may run as root, who may use every port
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigurationError, match="above 1023"):
        listen("127.0.0.1", 1)


def test_the_port_is_free_again_afterwards(world):
    with served(world.jobs) as port:
        pass
    listen("127.0.0.1", port).close()


def test_addresses_for_people():
    assert url("127.0.0.1", 8081) == "http://127.0.0.1:8081/"
    assert url("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert url("::1", 8081) == "http://[::1]:8081/"
    assert url("::", 8081, "/turnback") == "http://[::1]:8081/turnback/"
    assert url("jobs", 8081, "/turnback/") == "http://jobs:8081/turnback/"


def test_ipv6(world):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        missing("this machine has no IPv6")
    with served(world.jobs, host="::1") as port:
        request = f"GET /api/v1/jobs HTTP/1.1\nHost: [::1]:{port}\nConnection: close\n\n"
        assert raw(port, request, host="::1")[0] == 200


def test_it_ends_when_told_to_from_a_thread(world):
    stop = threading.Event()
    stop.set()
    serve(Site(jobs=world.jobs, token=TOKEN, port=0), stop=stop)


def test_the_package_offers_both():
    import turnback.web

    assert sorted(turnback.web.__all__) == ["Site", "create_app", "serve"]
    assert Path(turnback.web.__file__).parent.joinpath("static").is_dir()
