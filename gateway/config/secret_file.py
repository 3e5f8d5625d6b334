"""Reads secrets that are kept in files of their own."""

from __future__ import annotations

from pathlib import Path

from gateway.records.section import SettingsError


def read_secret(file: str, where: str) -> str:
    """Return the text of a file without the white space around it.

    Args:
        where: setting that names the file, for messages.

    Raises:
        SettingsError: it cannot be read, or is empty.
    """
    try:
        secret = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: {file} cannot be read: {error}") from None
    if not secret:
        raise SettingsError(f"{where}: {file} is empty")
    return secret
