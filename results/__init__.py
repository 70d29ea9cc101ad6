"""What was measured on real GPUs: one folder for each device class."""

from __future__ import annotations

from pathlib import Path

from ..space import BadInput, Device

FOLDER = Path(__file__).parent


def has_table(device: Device) -> bool:
    """Whether a table comes with tileseek for a device class."""
    return (_folder(device) / "table.json").is_file()


def table_path(device: Device) -> Path:
    """The bundled table of a device class.

    Raises:
        BadInput: none comes with tileseek.
    """
    return _file(device, "table.json")


def journal_path(device: Device) -> Path:
    """The bundled journal from which the table of a device class was made.

    Raises:
        BadInput: none comes with tileseek.
    """
    return _file(device, "journal.jsonl.gz")


def noise_path(device: Device) -> Path | None:
    """The measured noise of a device class; None where it was not measured."""
    path = _folder(device) / "noise.json"
    return path if path.is_file() else None


def _file(device: Device, name: str) -> Path:
    path = _folder(device) / name
    if not path.is_file():
        tuned = ", ".join(sorted(p.parent.name.upper() for p in FOLDER.glob(f"*/{name}"))) or "none so far"
        raise BadInput(f"no {name} comes with tileseek for {device.name}: valid are {tuned}")
    return path


def _folder(device: Device) -> Path:
    return FOLDER / device.name.lower()
