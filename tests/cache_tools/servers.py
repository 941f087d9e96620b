"""Real servers on loopback: S3 (moto), nginx, a threaded HTTP server without ranges, and a line that breaks."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.cache_tools.get_nginx import nginx_command

NGINX = nginx_command()

_CONF = """
daemon off; pid {run}/pid; error_log {run}/error.log; worker_processes 1; {user}
events {{ worker_connections 256; }}
http {{
  access_log {run}/access.log; client_body_temp_path {run}/body; client_max_body_size 64m;
  proxy_temp_path {run}/p; fastcgi_temp_path {run}/f; uwsgi_temp_path {run}/u; scgi_temp_path {run}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ root {root}; {dav} }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(root: Path, run: Path, *, dav: bool = False) -> Iterator[str]:
    """nginx shows `root`, and takes files too if `dav`; its address."""
    assert NGINX
    program, environment = NGINX
    run.mkdir()
    port = free_port()
    methods = "dav_methods PUT; create_full_put_path on; dav_access user:rw;" if dav else ""
    user = "user root;" if Path("/root").owner() == "root" and run.owner() == "root" else ""
    conf = run / "nginx.conf"
    conf.write_text(_CONF.format(run=run, root=root, port=port, dav=methods, user=user))
    process = subprocess.Popen(
        [program, "-c", str(conf), "-e", str(run / "start.log")],
        env={**os.environ, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextlib.contextmanager
def plain_http(root: Path) -> Iterator[str]:
    """Python's own threaded server shows `root`; it knows no ranges."""
    handler = partial(_Quiet, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with _serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class BreakingLine(socketserver.ThreadingTCPServer):
    """A proxy that cuts a connection after so many bytes of answer, as long as `cuts` are left."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, *, cuts: int, after_bytes: int) -> None:
        parts = urlsplit(address)
        self.behind = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.cuts, self.after_bytes, self.done = cuts, after_bytes, 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Pipe)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def may_cut(self) -> bool:
        with self.lock:
            if self.done >= self.cuts:
                return False
            self.done += 1
            return True


class _Pipe(socketserver.BaseRequestHandler):
    server: BreakingLine

    def handle(self) -> None:
        with socket.create_connection(self.server.behind) as behind:
            threading.Thread(target=self._upward, args=(behind,), daemon=True).start()
            passed = 0
            with contextlib.suppress(OSError):
                while data := behind.recv(1 << 14):
                    passed += len(data)
                    if passed > self.server.after_bytes and self.server.may_cut():
                        self.request.sendall(data[: len(data) // 2])
                        self.request.shutdown(socket.SHUT_RDWR)
                        return
                    self.request.sendall(data)

    def _upward(self, behind: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 14):
                behind.sendall(data)
            behind.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def breaking(address: str, *, cuts: int, after_bytes: int) -> Iterator[BreakingLine]:
    """A line to `address` that breaks."""
    line = BreakingLine(address, cuts=cuts, after_bytes=after_bytes)
    with _serving(line):
        yield line


@contextlib.contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {port}")
