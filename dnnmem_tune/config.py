"""Which GPU a text names: the catalogue, a size, the machine's own card, or a file of the user's.

The catalogue is ``configs/gpus.toml``; it is read when a device is first looked up.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune.errors import UnknownDeviceError, UsageError
from dnnmem_tune.estimate.devices import (
    DeviceProfile,
    normalize_name,
    threads_per_sm,
    typical_context,
)
from dnnmem_tune.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from types import ModuleType

_SIZE = re.compile(r"\s*([0-9.]+\s*(?:GiB|GB|G|MiB|MB|M|TiB|TB|T))\s*(?::\s*sm_?([0-9]{2,3}))?\s*", re.IGNORECASE)
_LOCAL = re.compile(r"local(?::(.+))?", re.IGNORECASE)

_GENERIC_SMS = {
    (6, 0): 56, (6, 1): 28, (7, 0): 80, (7, 5): 68, (8, 0): 108, (8, 6): 82, (8, 9): 128,
    (9, 0): 132, (10, 0): 148, (12, 0): 170,
}  # fmt: skip
"""Multiprocessors of a large card of each capability, for a card of which only the size is known."""


def find_device(text: str, *, nvml: ModuleType | None = None) -> DeviceProfile:
    """Return the GPU that ``text`` names.

    Args:
        text: A name or alias of the catalogue, in any case and with or without spaces, hyphens and
            underscores (``V100-16GB``, ``a100 40gb``, ``3090``); a size (``24GiB``, ``24GiB:sm_90``) for a card
            of which only that is known; ``local``, ``local:1``, ``local:0:2`` (a MIG instance) or
            ``local:UUID`` for a card of this machine; or the path of a TOML file with one card.
        nvml: What to ask about local cards; the package ``pynvml`` unless given.

    Raises:
        UnknownDeviceError: If nothing has that name; the message has the nearest names.
        UsageError: If the text is empty, or the file cannot be read or is not right.
        MissingPackageError: If a local card is asked for without the package for it.

    Example:
        >>> find_device("a100 40gb").name
        'A100-40GB'

    """
    if not text.strip():
        raise UsageError("no GPU was named; pass a name such as V100-16GB, a size such as 24GiB, or local")
    if match := _LOCAL.fullmatch(text.strip()):
        # Only here, since everything else works without the driver's library.
        from dnnmem_tune.nvml import local_device

        return local_device(match[1] or "0", catalogue=_by_name(), nvml=nvml)
    if text.strip().lower().endswith(".toml"):
        return read_device(Path(text.strip()))
    name = normalize_name(text)
    for spelling in (name, f"rtx{name}", f"gtx{name}"):
        if (profile := _by_name().get(spelling)) is not None:
            return profile
    if match := _SIZE.fullmatch(text):
        return _generic_device(match[1], match[2])
    raise UnknownDeviceError(_unknown_message(text))


def list_devices() -> tuple[DeviceProfile, ...]:
    """Return the catalogue, in its own order: by architecture, then by name."""
    return _catalogue()


def read_device(path: Path) -> DeviceProfile:
    """Return the one card that a user's file describes.

    Raises:
        UsageError: If the file cannot be read, is no TOML, holds no card or several, or a field is not right.

    """
    document = _read_toml(path)
    rows = document.get("gpu", document)
    if isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, list) or len(rows) != 1:
        raise UsageError(f"{path} must describe one card, with keys such as name, total and compute_capability")
    return _parse_device(rows[0], str(path))


@cache
def _catalogue() -> tuple[DeviceProfile, ...]:
    path = files("dnnmem_tune") / "configs" / "gpus.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_parse_device(row, "gpus.toml") for row in document["gpu"])


@cache
def _by_name() -> Mapping[str, DeviceProfile]:
    names: dict[str, DeviceProfile] = {}
    for profile in _catalogue():
        for name in (profile.name, *profile.aliases):
            known = names.setdefault(normalize_name(name), profile)
            if known is not profile:
                raise UsageError(f"gpus.toml: {name!r} names both {known.name} and {profile.name}")
    return names


def _unknown_message(text: str) -> str:
    # An alias may be nearer than the name: a reader wants the name, once each.
    near = difflib.get_close_matches(normalize_name(text), list(_by_name()), n=6, cutoff=0.5)
    names = list(dict.fromkeys(_by_name()[name].name for name in near))[:3]
    hint = f"; did you mean {' or '.join(names)}?" if names else ";"
    return (
        f"there is no GPU named {text!r} in the catalogue{hint} "
        "dnnmem gpus lists them all; a size such as 24GiB or a file such as card.toml will do as well"
    )


def _generic_device(size: str, capability: str | None) -> DeviceProfile:
    version = (8, 0) if capability is None else (int(capability[:-1]), int(capability[-1]))
    total_bytes = parse_bytes(size)
    num_sms = _GENERIC_SMS.get(version)
    if num_sms is None:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in sorted(_GENERIC_SMS))
        raise UsageError(f"sm_{capability} is not a compute capability known here; write one of {known}")
    context_bytes, uncertainty_bytes = typical_context(num_sms, threads_per_sm(version))
    if total_bytes <= context_bytes:
        raise UsageError(
            f"a card of {format_bytes(total_bytes)} has no room for a CUDA context, "
            f"which takes {format_bytes(context_bytes)}"
        )
    assumed = " (assumed; write 24GiB:sm_90 for another)" if capability is None else ""
    return DeviceProfile(
        name=f"{format_bytes(total_bytes)} card",
        total_bytes=total_bytes,
        context_bytes=context_bytes,
        context_uncertainty_bytes=uncertainty_bytes,
        compute_capability=version,
        num_sms=num_sms,
        threads_per_sm=threads_per_sm(version),
        source=(
            f"total: as asked for; compute capability {version[0]}.{version[1]}{assumed}; "
            f"{num_sms} multiprocessors and context: those of a large card of that capability"
        ),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the GPU file {str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the GPU file {str(path)!r} is not TOML: {error}") from error


def _parse_device(row: object, where: str) -> DeviceProfile:
    """Validate one table of a file."""
    from pydantic import ValidationError

    try:
        entry = _entry_model().model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        name = row.get("name", "?") if isinstance(row, dict) else "?"
        field = ".".join(str(part) for part in first["loc"]) or "the table"
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}: card {name!r}: {field}: {message}") from error
    profile: DeviceProfile = entry.profile()
    return profile


@cache
def _entry_model() -> Any:
    """Return the model of a table; made on first use because pydantic takes longer to import than the rest."""
    from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

    class Entry(BaseModel):
        """One card as it is written in a file."""

        model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

        name: str = Field(min_length=1)
        total: int = Field(gt=0)
        compute_capability: tuple[int, int]
        sms: int = Field(ge=1, le=1024)
        aliases: tuple[str, ...] = ()
        context: int | None = None
        context_uncertainty: int = 0
        total_source: str = ""
        context_source: str = ""

        @field_validator("total", "context", "context_uncertainty", mode="before")
        @classmethod
        def _read_size(cls, value: object) -> object:
            nbytes = parse_bytes(value) if isinstance(value, str) else value
            if isinstance(nbytes, int) and nbytes < 0:
                raise ValueError(f"a size is at least 0 bytes, got {nbytes}")
            return nbytes

        @field_validator("compute_capability", mode="before")
        @classmethod
        def _read_version(cls, value: object) -> object:
            if not isinstance(value, str) or re.fullmatch(r"[0-9]+\.[0-9]", value) is None:
                raise ValueError(f'a compute capability is text such as "8.0", got {value!r}')
            major, minor = value.split(".")
            return int(major), int(minor)

        @field_validator("aliases", mode="before")
        @classmethod
        def _read_aliases(cls, value: object) -> object:
            return tuple(value) if isinstance(value, list) else value

        @model_validator(mode="after")
        def _leave_room(self) -> Entry:
            if self.context is not None and self.context >= self.total:
                raise ValueError(f"the context of {self.context} bytes leaves nothing of {self.total} bytes")
            return self

        def profile(self) -> DeviceProfile:
            threads = threads_per_sm(self.compute_capability)
            context_bytes, uncertainty_bytes = typical_context(self.sms, threads)
            context_source = "estimated from the number of multiprocessors"
            if self.context is not None:
                context_bytes, uncertainty_bytes = self.context, self.context_uncertainty
                context_source = self.context_source or "as the file says"
            return DeviceProfile(
                name=self.name,
                total_bytes=self.total,
                context_bytes=context_bytes,
                context_uncertainty_bytes=uncertainty_bytes,
                compute_capability=self.compute_capability,
                num_sms=self.sms,
                threads_per_sm=threads,
                aliases=self.aliases,
                source=f"total: {self.total_source or 'as the file says'}; context: {context_source}",
            )

    return Entry
