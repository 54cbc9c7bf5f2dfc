"""Output files: appear whole or not at all, and never in place of another by accident."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from retilt._input import check_json_size
from retilt.exceptions import InputError, OutputExistsError


def refuse_existing(path: str | Path, force: bool) -> None:
    """Refuse an output path that can't be written, before any work is done.

    Raises
    ------
    OutputExistsError
        If the file exists and ``force`` is false.
    InputError
        If the path is a folder or no regular file, or its folder does not exist.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"output {str(path)!r} is a folder: give the name of a file.")
    if not path.parent.is_dir():
        raise InputError(
            f"output {str(path)!r}: the folder {str(path.parent)!r} does not exist. Make it first."
        )
    if path.exists() and not path.is_file():
        raise InputError(f"output {str(path)!r} is not a regular file: give another name.")
    if path.exists() and not force:
        raise OutputExistsError(
            f"output {str(path)!r} exists already: give another name, or ask to overwrite it "
            "(force=True, on the command line --force)."
        )


@contextmanager
def atomic_output(path: str | Path, force: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``path`` if the block succeeds.

    Parameters
    ----------
    path
        The output file.
    force
        Whether an existing file may be replaced.

    Yields
    ------
    Path
        An empty file in the same folder (so that renaming it is one step); its name's ending
        means nothing. It is removed if the block raises.

    Raises
    ------
    OutputExistsError, InputError
        As :func:`refuse_existing`, checked at the beginning and again at the end.
    """
    refuse_existing(path, force)
    target = Path(path).resolve()  # write through a symbolic link, don't replace it
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        # os.open, unlike tempfile, gives the file the permissions of any new file.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise InputError(f"output {str(path)!r} can't be written: {error.strerror}.") from None
    try:
        yield draft
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        refuse_existing(path, force)
        draft.replace(target)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):  # a full disk, a folder that went away
            reason = error.strerror or type(error).__name__
            raise InputError(f"output {str(path)!r} can't be written: {reason}.") from None
        raise


def write_text(path: str | Path, text: str, *, force: bool = False) -> None:
    """Write text as UTF-8 with plain newlines, whole or not at all."""
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"output {str(path)!r}: a name or text in it holds half of a surrogate pair, which is "
            "no Unicode text. Rename it."
        ) from None
    with atomic_output(path, force) as draft:
        draft.write_bytes(content)


def json_text(content: Mapping[str, Any]) -> str:
    """The text of a JSON file of ours."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, content: Mapping[str, Any], *, force: bool) -> None:
    """Write a JSON file whole or not at all, and none that could not be read back."""
    text = json_text(content)
    check_json_size(text, f"output {str(path)!r}")
    write_text(path, text, force=force)
