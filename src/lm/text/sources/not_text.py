"""Recognize files that are not readable text: system files, placeholders, documents to convert.

Programs put system files beside the user's files. Tools leave a pointer, or a partial download, in place of a file.
Their bytes are valid text, so a model would learn them. Files that every system hides are left out, and a warning
counts them. All others are rejected, because text would be missing.
"""

import re
from pathlib import Path

# Names of files that systems and editors put beside a user's files, and of folders with such files.
SYSTEM_NAMES = re.compile(r".*zone\.identifier|desktop\.ini|(eh)?thumbs\.db|icon\r", re.IGNORECASE | re.DOTALL)
BACKUPS = re.compile(r".*~|#.*#|.*\.(bak|backup|orig|rej|old|tmp)", re.IGNORECASE | re.DOTALL)
SYSTEM_FOLDERS = ("$RECYCLE.BIN", "System Volume Information", "@eaDir")
DVC_RECORD = ".dvc"
PARTIAL_SUFFIXES = (".part", ".partial", ".crdownload", ".download", ".incomplete", ".filepart", ".aria2")
# Suffixes of placeholders for files on another disk, and of links to a web page.
STAND_INS = (".icloud", ".nextcloud", ".owncloud", ".webloc")

SYSTEM_FILE = "is a file that a system put beside another; remove it"
TO_TEXT = "save it as plain text, or as JSONL"
PAGES_TO_ROWS = "save the text of each page as a row of JSONL, such as with warcio"
# The beginning of a file, after a byte-order mark and white space, and what the file is. HTML and TeX are text.
STARTS = {
    "%PDF-": f"is a PDF file; {TO_TEXT}, such as with pdftotext",
    "%!PS": f"is a PostScript file; {TO_TEXT}, such as with ps2ascii",
    "{\\rtf": f"is an RTF file; {TO_TEXT}",
    "PK\3\4": "is a ZIP archive, such as .docx, .xlsx and .epub are; save it as text or CSV",
    "From: <Saved by ": f"is a saved web page (MHTML); {TO_TEXT}",
    "WARC/": f"is a web archive (WARC, WET or WAT) with many pages; {PAGES_TO_ROWS}",
    "filedesc://": f"is a web archive (ARC) with many pages; {PAGES_TO_ROWS}",
    "HTTP/1.": f"is the answer of a web server with its header; {TO_TEXT}",
    "version https://git-lfs.github.com/spec/": "is a pointer of Git LFS, not the file; fetch it with git lfs pull",
    "/annex/objects/": "is a pointer of git-annex, not the file; fetch it with git annex get",
    "# xet version": "is a pointer of git-xet, not the file; fetch it with git xet checkout",
    "[ZoneTransfer]": SYSTEM_FILE,
    "[.ShellClassInfo]": SYSTEM_FILE,
    "[InternetShortcut]": "is a link to a web page, not its text; save the page as text",
}
# Files beside the rows of a dataset that `datasets` saved, with a key that each has.
SAVED_DATASET = {"dataset_info.json": '"features"', "dataset_dict.json": '"splits"', "state.json": '"_data_files"'}
# Mail begins with lines "Name: value". At least one name occurs in mail and news only. In a Unix mailbox, a line "From
# SENDER DATE" precedes each mail.
HEADER_LINE = r"[A-Za-z][\w-]*:.*\n(?:[ \t].*\n)*"
MAIL_NAMES = "Message-I[Dd]|M(?:IME|ime)-Version|Delivered-To|Return-Path|X-Mozilla-Status|Newsgroups"
MAIL = re.compile(rf"(?:From .*\d\d:\d\d.*\n{HEADER_LINE}|(?:{HEADER_LINE})*?(?:{MAIL_NAMES}): )")
# A list, a dict, a string or an object that Python pickled by protocol 0, which is ASCII.
PICKLE = re.compile(r"(?:\([ld]|V.*\n|c[\w.]+\n\w+\n)p0\n")
# A server's answer in place of a file: a web page, or a short message.
ANSWER = re.compile(r"<!doctype html|<html[\s>]|<\?xml[^>]*>\s*<Error>|(?:\d{3}:? )?not found\s*$", re.IGNORECASE)
# Encoded text: HTML entities, quoted-printable, percent-encoding, escapes, and UTF-8 that was read in an 8-bit
# encoding.
ENCODED = re.compile(
    r"&(?:#\d+|#x[\da-f]+|amp|lt|gt|quot|nbsp);|=[\dA-F]{2}=[\dA-F]{2}|%[\dA-F]{2}%[\dA-F]{2}|\\u[\da-f]{4}"
    "|[\u00c2\u00c3\u00d0\u00d1][\u0080-\u00bf]|\u00e2\u20ac"
)
MIN_ENCODED = 5  # in the first characters of a file
DOUBTFUL = (
    "are answers of a server, such as web pages, or have much text in forms such as &amp; =C3=BC %C3%BC Ã¼; "
    "the model would learn these: convert or remove them"
)


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Return True for names that begin with a dot, except placeholders of iCloud.

    `parts`: the names of the folders below local.path, and of the file.
    """
    return any(part.startswith(".") for part in parts) and not parts[-1].endswith(STAND_INS[0])


def reason_to_leave_out(parts: tuple[str, ...], path: Path) -> str | None:
    """Return the reason if names like these belong to files that a program wrote, else None.

    Arrow and Spark leave out names that begin with _, which programs give to their files: _SUCCESS, __pycache__.
    """
    if any(part.startswith("_") for part in parts):
        return "their names or folders begin with _"
    is_of_system = SYSTEM_NAMES.fullmatch(parts[-1]) or set(parts) & set(SYSTEM_FOLDERS)
    is_record = path.suffix == DVC_RECORD and path.with_suffix("").exists()
    if is_of_system or is_record:
        return "the operating system or DVC wrote them"
    return "they are backups by their names" if BACKUPS.fullmatch(parts[-1]) else None


def reason_to_reject(path: Path, start: str) -> str | None:
    """Return what a file is instead of text, and the remedy; None if it is not recognized.

    `start`: its first characters, without white space at the beginning.
    """
    if path.suffix.lower() in PARTIAL_SUFFIXES:
        return f"is a part of a download by its name ({path.suffix}); complete it, or remove it"
    if path.suffix.lower() in STAND_INS:
        return f"stands for a text that is not in it ({path.suffix}); put the text on this disk, or remove it"
    if path.suffix == DVC_RECORD and re.search("^(outs|md5|deps):", start, re.MULTILINE):
        return "is DVC's record of a file that is not there; fetch it with dvc pull, or remove the record"
    for beginning, reason in STARTS.items():
        if start.startswith(beginning):
            return reason
    if MAIL.match(start):
        return "is mail with its headers; save the text of each mail as a row of JSONL, such as with Python's mailbox"
    if PICKLE.match(start):
        return "is a pickle of Python; load it and write its texts as JSONL"
    key = SAVED_DATASET.get(path.name)
    if key and key in start:
        return "belongs to a dataset that save_to_disk wrote; load it with load_from_disk and write it with to_parquet"
    return None


def is_doubtful(kind: str, start: str) -> bool:
    """Return True for a file of prose or a table that holds a server's answer, or encoded text.

    `kind`: the suffix of the file. `start`: its first characters.
    """
    if kind in ("", ".txt", ".text") and ANSWER.match(start):
        return True
    return kind in ("", ".txt", ".text", ".csv", ".tsv") and len(ENCODED.findall(start)) >= MIN_ENCODED
