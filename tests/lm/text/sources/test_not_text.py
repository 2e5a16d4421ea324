"""What is not text for people is left out with its number, refused or warned of, but never read in silence."""

import gzip
import re

import pytest

from lm.core.errors import DataError
from lm.text.sources.local import LocalFetch, fetch_local, find_files
from lm.text.sources.text_files import TextFile

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
DVC = "outs:\n- md5: 1f0c\n  size: 5\n  path: a.txt\n"


def documents(path) -> list[str | None]:
    return list(TextFile(path, "text", None, "utf-8").documents())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", LFS, "is a pointer of Git LFS, not the file; fetch it with git lfs pull"),
        ("a.jsonl.gz", LFS, "is a pointer of Git LFS"),
        ("a.gz", gzip.compress(b"%PDF-1.4\n", mtime=0), "is a PDF file"),
        ("a.txt", "/annex/objects/SHA256E-s5--1f0c.txt\n", "is a pointer of git-annex"),
        ("a.txt", "# xet version 0\n", "is a pointer of git-xet"),
        ("a.txt.dvc", DVC, "is DVC's record of a file that is not there; fetch it with dvc pull"),
        ("a.txt.part", "the beginning", r"is a part of a download by its name \(\.part\); complete it"),
        ("a.pdf", "%PDF-1.4\n1 0 obj\n", "is a PDF file; save it as plain text"),
        ("a.rtf", "{\\rtf1\\ansi words}", "is an RTF file"),
        ("a.url", "[InternetShortcut]\nURL=https://example.org\n", "is a link to a web page"),
        (".a.txt.icloud", "bplist00", r"stands for a text that is not in it \(\.icloud\); put the text on this disk"),
        ("a.txt", "[ZoneTransfer]\nZoneId=3\n", "is a file that a system put beside another"),
        ("dataset_info.json", '{"features": {"text": {"dtype": "string"}}}', "belongs to a dataset that save_to_disk"),
    ],
)
def test_stand_ins_and_documents_to_convert_are_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(DataError, match=f"{re.escape(name)}: {sentence}"):
        documents(tmp_path / name)


def test_files_that_programs_put_beside_text_are_left_out(tmp_path, capsys):
    beside = ["a.txt:Zone.Identifier", "a.txt\uf03aZone.Identifier", "desktop.ini", "Thumbs.db", "a.txt.dvc"]
    backups = ["a.txt~", "#a.txt#", "a.csv.bak", "a.txt.ORIG"]
    for name in ("a.txt", *beside, *backups, "$RECYCLE.BIN/b.txt", "Zone.Identifiers.txt", ".b.txt.icloud"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    found = find_files(tmp_path, "**/*")

    assert [path.name for path in found] == [".b.txt.icloud", "Zone.Identifiers.txt", "a.txt"]
    said = capsys.readouterr().err
    assert "warning: 6 files are left out because the operating system or DVC wrote them, first " in said
    assert f"warning: 4 files are left out because they are backups by their names, first {tmp_path}/#a.txt#;" in said

    find_files(tmp_path, "*.txt")
    assert capsys.readouterr().err == "", "those that include does not take are not counted"


PAGE = "\n<!doctype HTML>\n<title>404 Not Found</title>"


@pytest.mark.parametrize(
    ("name", "content", "is_said"),
    [
        ("b.txt", PAGE, True),
        ("b.html", PAGE, False),
        ("b.txt", "404: Not Found", True),
        ("b.txt", "<?xml version='1.0'?>\n<Error><Code>AccessDenied</Code></Error>", True),
        ("b.txt", "She was not found at home.", False),
        ("b.txt", "Bread &amp; butter " * 5, True),
        ("b.csv", "text\nBread &#38; butter\n" + "a &lt; b\n" * 4, True),
        ("b.txt", "Bread &amp; butter " * 4, False),
        ("b.txt", "Gr=C3=BC=C3=9Fe " * 5, True),
        ("b.txt", "Gr%C3%BC%C3%9Fe " * 5, True),
        ("b.txt", "Grüße “привет” ".encode().decode("cp1252", "replace") * 3, True),
        ("b.txt", "NÃO, «déjà»: Âge, 50 % = 1/2; Ðе “€”\n===\n" * 9, False),
    ],
)
def test_what_is_not_the_text_itself_is_warned_of(tmp_path, capsys, name, content, is_said):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("words")
    (source / name).write_text(content)

    manifest = fetch_local(LocalFetch("local", "**/*", None, "text", "utf-8", None, None), source, tmp_path / "out")

    assert manifest["splits"]["text"]["documents"] >= 2
    said = capsys.readouterr().err
    assert ("warning: 1 of 2 files are answers of a server, such as web pages, or" in said) == is_said
    assert (f"convert or remove them; first {source / name}\n" in said) == is_said
