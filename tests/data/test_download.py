"""Downloads against a server that misbehaves: cuts, truncates, ignores ranges, serves the wrong file."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from layouts import picture, write_shard
from typer.testing import CliRunner

from slomofast.cli.__main__ import app
from slomofast.core.errors import ConfigError, DataError
from slomofast.data import download, open_data
from slomofast.data.images import encode_jpeg

CONTENT = bytes(range(256)) * 4000  # about 1 MB
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    content = CONTENT
    files: dict  # by path, instead of the one content
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
            content = s.files.get(self.path) if s.files else s.content
            if s.status != 200 or content is None:
                self.send_error(404 if content is None else s.status)
                return
            start = int(given.removeprefix("bytes=").rstrip("-")) if given and s.ranges else 0
            if start >= len(content) and given and s.ranges:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            body = content[start:]
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
    httpd.asked, httpd.files = [], {}
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


def test_the_top_folder_is_left_out_whatever_the_target_is_called(tmp_path):
    (tmp_path / "set.tar").write_bytes(archive("CIFAR-10-C"))
    download.unpack(tmp_path / "set.tar", tmp_path / "elsewhere", "CIFAR-10-C")
    assert (tmp_path / "elsewhere" / "a.npy").exists()
    download.unpack(tmp_path / "set.tar", tmp_path / "other")
    assert (tmp_path / "other" / "CIFAR-10-C" / "a.npy").exists()


def zipped(names=("n01/a.JPEG", "n02/b.JPEG", "n02/c.JPEG"), top="sketch/"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for i, name in enumerate(names):
            file.writestr(top + name, encode_jpeg(picture(i, 40), 90))
        file.writestr("__MACOSX/left-over", b"")
    return buffer.getvalue()


@pytest.fixture
def sketch(server, monkeypatch):
    """A small ImageNet-Sketch on the server, and what is expected of it."""
    server.content = zipped()
    item = download.Archive(url(server, "ImageNet-Sketch.zip"), None, "", "https://example.org/sketch")
    monkeypatch.setitem(download.ARCHIVES, "imagenet_sketch", ("sketch", (item,)))
    monkeypatch.setattr("slomofast.data.check._CLASSES", {"imagenet_sketch": 2})
    monkeypatch.setattr("slomofast.data.check._IMAGES", {"imagenet_sketch": 3})
    return server


def run(*arguments):
    return CliRunner().invoke(app, ["data", *(str(a) for a in arguments)], env={"COLUMNS": "200"})


class TestSketch:
    def test_it_ends_in_the_layout_that_is_read(self, sketch, tmp_path):
        result = run("get", "imagenet_sketch")
        assert result.exit_code == 0, result.output
        assert "No checksum is published for imagenet_sketch" in result.output
        home = tmp_path / "home" / "sketch"
        assert sorted(p.name for p in home.iterdir() if p.is_dir()) == ["n01", "n02"]
        data = open_data("imagenet_sketch", classes=2)
        assert (data.size, data.labels("").tolist()) == (3, [0, 1, 1])
        assert run("check", f"imagenet_sketch:{home}").exit_code == 0
        assert run("get", "imagenet_sketch", "--folder", tmp_path / "mine").exit_code == 0
        assert open_data(f"imagenet_sketch:{tmp_path / 'mine'}", classes=2).size == 3

    def test_a_failing_address_tells_how_to_do_it_by_hand(self, sketch, tmp_path):
        sketch.status = 403
        place = tmp_path / "home" / "ImageNet-Sketch.zip"
        with pytest.raises(
            DataError, match=r"HTTP 403[\s\S]*by hand, get ImageNet-Sketch.zip from https://example.org"
        ):
            download.get("imagenet_sketch")
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(zipped())
        where = download.get("imagenet_sketch")
        assert open_data(f"imagenet_sketch:{where}", classes=2).size == 3
        assert not place.exists()

    def test_a_page_instead_of_the_archive(self, sketch):
        sketch.content = b"<html>too many downloads today</html>"
        with pytest.raises(DataError, match=r"cannot be unpacked[\s\S]*by hand"):
            download.get("imagenet_sketch")

    def test_an_incomplete_archive_is_refused(self, sketch):
        sketch.content = zipped(("n01/a.JPEG", "n02/b.JPEG"))
        with pytest.raises(DataError, match=r"not all of imagenet_sketch.*2 images where 3 are expected"):
            download.get("imagenet_sketch")

    def test_damage_inside_shows_by_its_own_checksum(self, tmp_path):
        content = bytearray(zipped())
        content[200] ^= 255
        (tmp_path / "a.zip").write_bytes(content)
        with pytest.raises(DataError, match="cannot be unpacked"):
            download.unpack(tmp_path / "a.zip", tmp_path / "sketch")
        (tmp_path / "a.zip").write_bytes(zipped(top="../outside/"))
        with pytest.raises(DataError, match="reaches outside"):
            download.unpack(tmp_path / "a.zip", tmp_path / "sketch")
        assert not (tmp_path / "outside").exists()


class TestCcc:
    NAME = "baseline_20_transition+speed_1000_seed_44"

    @pytest.fixture
    def published(self, server, tmp_path, monkeypatch):
        monkeypatch.setattr(download, "CCC_URL", url(server, "CCC"))
        for number, keys in enumerate((range(4), range(4, 7))):
            shard = write_shard(tmp_path / "made.tar", keys)
            server.files[f"/CCC/{self.NAME}/serial_{number:05d}.tar"] = shard.read_bytes()
        return server

    def test_shards_are_read_as_they_come(self, published, tmp_path):
        result = run("get", "ccc", "--shards", 2)
        assert result.exit_code == 0, result.output
        assert "No checksum is published for ccc" in result.output
        where = tmp_path / "home" / "CCC" / self.NAME
        assert open_data(f"ccc:{where}").labels("ccc").tolist() == list(range(7))
        assert len(published.asked) == 2
        download.get_ccc(shards=2)
        assert len(published.asked) == 2

    def test_a_cut_connection_is_continued(self, published, tmp_path):
        published.cut_after, published.cuts = 3000, 1
        where = download.get_ccc(shards=1, folder=tmp_path / "here")
        assert published.asked == [None, "bytes=3000-"]
        assert open_data(f"ccc:{where}").size == 4

    def test_a_missing_shard_leaves_the_first_ones_usable(self, published, tmp_path):
        with pytest.raises(DataError, match=r"HTTP 404[\s\S]*The first 2 shards are there"):
            download.get("ccc", folder=tmp_path / "here")
        assert open_data(f"ccc:{tmp_path / 'here'}").size == 7

    def test_a_shard_that_is_none_does_not_stay(self, published, tmp_path):
        published.files[f"/CCC/{self.NAME}/serial_00000.tar"] = b"<html>moved</html>"
        with pytest.raises(DataError, match="not a readable shard"):
            download.get_ccc(shards=1, folder=tmp_path / "here")
        assert not list((tmp_path / "here").glob("*.tar"))

    def test_the_published_streams(self):
        assert [download.ccc_shards(speed) for speed in download.CCC_SPEEDS] == [300, 289, 300]
        with pytest.raises(ConfigError, match="did you mean 'medium'"):
            download.ccc_name("mediun", 1000, 44)
        with pytest.raises(ConfigError, match="seeds 43, 44, 45, not 1"):
            download.ccc_name("hard", 1000, 1)
        with pytest.raises(ConfigError, match="has 300 shards, asked for 301"):
            download.get_ccc(shards=301)


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
            assert item.file.endswith((".tar", ".zip"))
            assert item.md5 or item.page, "an archive without a checksum says where a person finds it"
