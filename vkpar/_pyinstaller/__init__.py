"""What PyInstaller needs to know of vkpar; it asks for that by the entry point ``pyinstaller40``."""

from pathlib import Path


def hook_dirs() -> list[str]:
    """Return the folders in which PyInstaller finds hooks."""
    return [str(Path(__file__).parent)]
