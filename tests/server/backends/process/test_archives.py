"""Tests of unpacking archives that are not trusted. Each one gives content for one tar archive."""

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reference_server.backends.archives import ArchiveError, Limits, unpack

pytestmark = pytest.mark.brute_force

LIMITS = Limits(content_bytes=1 << 20, entries=50)
NO_ARCHIVE = "archive_read_open_filename() failed."
DATA_MISSING = "archive_read_data_block() failed with error code = -30"


def entry(
    name: str, content: bytes = b"", link: str = "", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry: a file, or a symbolic link if `link` is given. `fields` are its others."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, link=target, type=tarfile.LNKTYPE)


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a compressed tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=form) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def with_header(change: Callable[[bytearray], None]) -> bytes:
    """Return an archive of one file of five bytes with a changed header and a valid checksum."""
    header = bytearray(gzip.decompress(archive(entry("file", b"12345"))))
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def unpacked(content: bytes, into: Path, limits: Limits = LIMITS) -> str:
    return unpack(io.BytesIO(content), into, limits)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """Return an empty folder with a file beside it, which must stay as it is."""
    (tmp_path / "outside").write_text("untouched")
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def test_files_folders_and_links_are_unpacked(into):
    unpacked(
        archive(
            entry("bin", type=tarfile.DIRTYPE),
            entry("./bin/tool", b"#!/bin/sh\n", mode=0o4777, mtime=1_000_000_000),
            entry("lib64", link="lib"),
            entry("lib/a/b/data", b"12345"),
            entry("lib/a/up", link="../../bin/./tool"),
            hard_link("lib/again", "lib/a/b/data"),
            entry("bin/python", link="/usr/bin/python3"),
            entry("bin/python3.10", link="python"),
        ),
        into,
    )
    tool = into / "bin" / "tool"
    assert tool.read_bytes() == b"#!/bin/sh\n"
    assert tool.stat().st_mode & 0o7777 == 0o755
    assert tool.stat().st_mtime == 1_000_000_000
    assert (into / "lib64" / "a" / "b" / "data").read_bytes() == b"12345"
    assert (into / "lib" / "a" / "up").resolve() == tool
    assert (into / "lib" / "again").samefile(into / "lib" / "a" / "b" / "data")
    assert (into / "bin" / "python").readlink() == Path("/usr/bin/python3")


def test_an_archive_without_compression_is_unpacked(into):
    unpacked(gzip.decompress(archive(entry("file", b"12345"))), into)
    assert (into / "file").read_bytes() == b"12345"


def test_a_later_entry_replaces_an_earlier_one(into):
    unpacked(
        archive(
            entry("file", b"old"),
            hard_link("link", "file"),
            entry("file", b"new"),
            entry("a", link="file"),
            entry("a", b"file"),
            entry("b", b"file"),
            entry("b", link="file"),
        ),
        into,
    )
    assert (into / "file").read_bytes() == b"new"
    assert (into / "link").read_bytes() == b"old"
    assert not (into / "a").is_symlink()
    assert (into / "b").is_symlink()


def test_the_hash_covers_the_whole_file(into):
    content = archive(entry("file", b"12345"))
    plain = unpacked(content, into)
    more = into.with_name("more")
    more.mkdir()
    assert unpacked(content + bytes(2_000_000), more) != plain


def device(kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return entry("device", type=kind, devmajor=1, devminor=3)


def sparse(header: bytearray) -> None:
    """Declare an old GNU sparse file whose real size is a terabyte."""
    header[156:157] = b"S"
    header[257:265] = b"ustar  \0"
    header[386:482] = bytes(96)
    header[483:495] = b"%011o\0" % (1 << 32)


def negative(header: bytearray) -> None:
    """Declare a size of -512 bytes in base 256."""
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"


def huge_extension(header: bytearray) -> None:
    """Declare an extended header of a gigabyte."""
    header[156:157] = b"x"
    header[124:136] = b"%011o\0" % (1 << 30)


REFUSED = {
    "an absolute path": (archive(entry("/etc/x")), "entry '/etc/x': found path '/etc/x'; expected"),
    "a path outside": (
        archive(entry("../outside")),
        "found path '../outside'; expected a",
    ),
    "a path outside and back": (archive(entry("a/../../into/x")), "expected a path inside"),
    "a path up inside": (archive(entry("a/../b")), "found path 'a/../b'; expected a path inside"),
    "a folder outside": (archive(entry("../new", type=tarfile.DIRTYPE)), "expected a path inside"),
    "an empty name": (archive(entry(".")), "found an empty name"),
    "a link outside": (
        archive(entry("a/b", link="../../outside")),
        "expected a target inside",
    ),
    "a link to the parent": (
        archive(entry("a", link="..")),
        "expected a target inside",
    ),
    "a link up through a folder": (
        archive(entry("a/up", link=".."), entry("b", link="a/up/../outside")),
        "entry 'b': found a link to 'a/up/../outside'; expected a target inside",
    ),
    "an absolute link": (
        archive(entry("etc", link="/etc")),
        "a link to '/etc'; expected a relative",
    ),
    "an absolute link beside the interpreter": (
        archive(entry("bin/pythonic", link="/usr/bin/python3")),
        "expected a relative path",
    ),
    "an interpreter that is a folder": (
        archive(entry("bin/python3", link="/")),
        "entry 'bin/python3': found a link to the folder /",
    ),
    "a hard link outside": (archive(hard_link("a", "../outside")), "found path '../outside'"),
    "an absolute hard link": (archive(hard_link("a", "/etc/passwd")), "found path '/etc/passwd'"),
    "a hard link to a link": (
        archive(entry("bin/python", link="/etc/passwd"), hard_link("a", "bin/python")),
        "found a hard link to 'bin/python'; expected an earlier file",
    ),
    "a hard link to itself": (archive(hard_link("a", "a")), "expected an earlier file"),
    "a character device": (archive(device(tarfile.CHRTYPE)), "found type b'3'; expected a file"),
    "a block device": (archive(device(tarfile.BLKTYPE)), "found type b'4'; expected a file"),
    "a pipe": (archive(device(tarfile.FIFOTYPE)), "found type b'6'; expected a file"),
    "an unknown type": (archive(device(b"Z")), "found type b'Z'; expected a file"),
    "a sparse file": (with_header(sparse), "found type b'S'; expected a file"),
    "a negative size": (with_header(negative), "found"),
    "a huge extension": (with_header(huge_extension), "found a header of 1073741824 bytes"),
    "a bomb of bytes": (archive(entry("a", bytes(1 << 20))), "found content of more than 1048576"),
    "a bomb of files": (archive(*[entry(f"{n}") for n in range(51)]), "found more than 50 entries"),
    "a bomb of folders": (archive(entry("d/" * 50 + "x")), "found more than 50 entries"),
    "a damaged second header": (
        gzip.decompress(archive(entry("a", b"12345")))[:1024] + b"x" * 1024,
        "found a damaged archive",
    ),
    "a chain of headers": (
        gzip.decompress(archive(entry("n" * 200)))[:1536] * 600,
        "found",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malicious_archive_is_refused(into, case):
    content, reason = REFUSED[case]
    with pytest.raises(ArchiveError) as caught:
        unpacked(content, into)
    assert reason in str(caught.value)
    assert (into.parent / "outside").read_text() == "untouched"
    assert sorted(path.name for path in into.parent.iterdir()) == ["into", "outside"]


@pytest.mark.parametrize("below", ["a", "a/b"])
def test_no_file_is_written_through_a_link(into, below):
    """Links are made last, and fail where a folder is."""
    with pytest.raises(OSError, match="a"):
        unpacked(archive(entry("a", link="target"), entry(f"{below}/x", b"12345")), into)
    assert not (into / "target").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", NO_ARCHIVE),
        (b"this is no archive\n" * 40, NO_ARCHIVE),
        (gzip.compress(b"this is no archive\n" * 40), NO_ARCHIVE),
        (archive(entry("a", random.Random(1).randbytes(9999)))[:5000], DATA_MISSING),
        (gzip.decompress(archive(entry("a", b"x" * 5000)))[:3000], DATA_MISSING),
    ],
    ids=["empty", "text", "compressed text", "cut and compressed", "cut"],
)
def test_a_file_that_is_no_complete_archive_has_tritons_error(into, content, text):
    with pytest.raises(ArchiveError) as caught:
        unpacked(content, into)
    assert caught.value.text == text


@pytest.mark.parametrize("seed", range(2))
def test_changed_bytes_of_an_archive_have_no_effect_outside(into, seed):
    """The archive is unpacked inside the folder, or refused."""
    choice = random.Random(seed)
    whole = gzip.decompress(
        archive(
            entry("bin/tool", b"12345"),
            entry("n" * 150, b"1" * 600),
            entry("a/link", link="../bin/tool"),
            hard_link("b", "bin/tool"),
            form=choice.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
        )
    )
    for number in range(30):
        changed = bytearray(whole)
        for _ in range(choice.randint(1, 4)):
            start = choice.randrange(len(whole) // 512) * 512
            at = start + choice.choice([*range(110), *range(124, 136), 156, *range(157, 260)])
            if at < len(changed):
                changed[at] = choice.choice(b"./\0x0127\xff5gLKS")
            header = changed[start : start + 512]
            header[148:156] = b" " * 8
            changed[start + 148 : start + 156] = b"%06o\0 " % sum(header)
        folder = into / str(number)
        folder.mkdir()
        try:
            unpacked(bytes(changed), folder)
        except (ArchiveError, OSError):
            pass
        else:
            for path in folder.rglob("*"):
                assert not path.is_symlink() or path.resolve().is_relative_to(folder)
    assert sorted(path.name for path in into.parent.iterdir()) == ["into", "outside"]
    assert len(list(into.iterdir())) == 30
