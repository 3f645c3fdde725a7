"""Downloads against a server that misbehaves: cuts, truncates, ignores ranges, serves the wrong file."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slomofast.core.errors import ConfigError, DataError
from slomofast.data import download

CONTENT = bytes(range(256)) * 4000  # about 1 MB
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    content = CONTENT
    cut_after: int | None = None  # bytes per answer, then the connection ends
    cuts = 10**9  # how many answers are cut
    ranges = True
    status = 200
    asked: list


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            s = self.server
            given = self.headers.get("Range")
            s.asked.append(given)
            if s.status != 200:
                self.send_error(s.status)
                return
            start = int(given.removeprefix("bytes=").rstrip("-")) if given and s.ranges else 0
            if start >= len(s.content) and given and s.ranges:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(s.content)}")
                self.end_headers()
                return
            body = s.content[start:]
            self.send_response(206 if given and s.ranges else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if s.cut_after is not None and s.cuts > 0:
                s.cuts -= 1
                body = body[: s.cut_after]
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    httpd = Server(("127.0.0.1", 0), Handler)
    httpd.asked = []
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def url(server, name="file.bin"):
    return f"http://127.0.0.1:{server.server_address[1]}/{name}"


def fetch(server, path, md5=MD5, **options):
    return download.fetch(url(server), path, md5, attempts=3, pause=0.01, timeout=5, **options)


def test_a_whole_file_with_progress(server, tmp_path):
    seen = []
    path = fetch(server, tmp_path / "file.bin", progress=lambda *a: seen.append(a))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["file.bin"]


def test_a_cut_connection_is_continued_where_it_ended(server, tmp_path):
    server.cut_after, server.cuts = 300_000, 3
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_an_interrupted_command_continues(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_complete_part_is_recognised(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_too_long_starts_over(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_never_gets_on_is_given_up(server, tmp_path):
    server.cut_after = 0
    with pytest.raises(DataError, match="could not be fetched completely"):
        fetch(server, tmp_path / "file.bin")
    assert len(server.asked) == 3
    assert not (tmp_path / "file.bin").exists()


def test_a_wrong_checksum_discards_the_file(server, tmp_path):
    with pytest.raises(DataError, match=f"MD5 {MD5} where {'0' * 32} is published"):
        fetch(server, tmp_path / "file.bin", md5="0" * 32)
    assert not list(tmp_path.glob("file.bin*"))


def test_a_damaged_file_on_disk_is_fetched_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"damaged")
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_refusals_are_reported_at_once(server, tmp_path):
    server.status = 404
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(server, tmp_path / "file.bin")
    assert len(server.asked) == 1


def archive(top="set"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("a.npy", "sub/b.npy"):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    return buffer.getvalue()


def test_get_unpacks_into_the_home_once(server, tmp_path, monkeypatch):
    server.content = archive()
    md5 = hashlib.md5(server.content).hexdigest()
    monkeypatch.setitem(
        download.ARCHIVES, "cifar10_c", ("set", (download.Archive(url(server, "set.tar?download=1"), md5, ""),))
    )
    where = download.get("cifar10_c")
    assert where == tmp_path / "home" / "set"
    assert (where / "a.npy").read_bytes() == b"abc"
    assert (where / "sub" / "b.npy").exists()
    assert not (tmp_path / "home" / "set.tar").exists()
    download.get("cifar10_c")
    assert len(server.asked) == 1


def test_archives_that_are_none_or_reach_outside(tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"not an archive")
    with pytest.raises(DataError, match="cannot be unpacked"):
        download.unpack(bad, tmp_path / "set")
    bad.write_bytes(archive("../outside"))
    with pytest.raises(DataError, match="cannot be unpacked"):
        download.unpack(bad, tmp_path / "set")
    assert not (tmp_path / "outside").exists()
    assert not list((tmp_path / "set").iterdir())


def test_names_and_addresses_are_checked(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'cifar10_c'"):
        download.get("cifar10c")
    monkeypatch.setitem(download.ARCHIVES, "cifar10_c", ("set", (download.Archive("ftp://host/set.tar", None, ""),)))
    with pytest.raises(ConfigError, match="only https"):
        download.get("cifar10_c")


def test_the_table_is_complete():
    for name, (folder, archives) in download.ARCHIVES.items():
        assert folder, name
        for item in archives:
            assert item.url.startswith("https://")
            assert item.md5 is None or (len(item.md5) == 32 and int(item.md5, 16) >= 0)
            assert item.file.endswith(".tar")
