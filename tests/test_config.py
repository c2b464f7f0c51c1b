"""How a text becomes a GPU: catalogue, sizes, local cards through a fake NVML, files."""

# The names of the fake are NVML's.
# ruff: noqa: N802, N815

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnnmem_tune.config import find_device, list_devices
from dnnmem_tune.errors import MissingPackageError, UnknownDeviceError, UsageError
from dnnmem_tune.estimate.devices import DeviceProfile, normalize_name
from dnnmem_tune.units import GIB, MIB

# The catalogue.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("V100-16GB", "V100-16GB"),
        ("v100_16gb", "V100-16GB"),
        ("a100-40gb", "A100-40GB"),
        ("A100 40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("GeForce RTX 3090", "RTX 3090"),
        ("rtx3090", "RTX 3090"),
        ("4090", "RTX 4090"),
        ("1080 ti", "GTX 1080 Ti"),
        (" H100 ", "H100-80GB"),
        ("a100-40gb 1g.5gb", "A100-40GB 1g.5gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-40GB 1g.5gb"),
    ],
)
def test_names_are_found_however_they_are_written(text: str, name: str) -> None:
    """People copy names from nvidia-smi, from a cloud's price list, or from memory."""
    assert find_device(text).name == name


def test_every_name_and_alias_finds_its_own_card() -> None:
    """Two cards under one name would make the answer depend on the order of a file."""
    for profile in list_devices():
        for name in (profile.name, *profile.aliases):
            assert find_device(name) is profile


def test_the_catalogue_covers_pascal_to_blackwell() -> None:
    """At least 45 cards, each capability that a training job meets, and MIG slices."""
    devices = list_devices()

    assert len(devices) >= 45
    assert {device.compute_capability for device in devices} == {
        (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0),
    }  # fmt: skip
    assert sum("g." in device.name for device in devices) >= 10


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.name)
def test_a_card_keeps_back_a_part_of_its_nominal_memory(device: DeviceProfile) -> None:
    """CUDA never reports more than the nominal size; a context takes tens to hundreds of MiB of it."""
    assert 3 * GIB < device.total_bytes < 192 * GIB
    assert device.total_bytes % GIB != 0
    assert 40 * MIB < device.context_bytes < 800 * MIB
    assert 30 * MIB < device.context_uncertainty_bytes < device.context_bytes + 10 * MIB
    assert device.usable_bytes == device.total_bytes - device.context_bytes
    assert device.source.startswith("total: ")
    assert "; context: " in device.source


@pytest.mark.parametrize(
    ("name", "total_gib", "context_mib"),
    [("V100-16GB", 15.78, 367), ("A100-40GB", 39.59, 524), ("RTX 3060", 11.76, 128), ("T4", 14.75, 143)],
)
def test_known_cards_have_their_published_figures(name: str, total_gib: float, context_mib: int) -> None:
    """Totals from out-of-memory messages; contexts measured (A100, RTX 3060) or by the rule (V100, T4)."""
    device = find_device(name)

    assert round(device.total_bytes / GIB, 2) == total_gib
    assert device.context_bytes // MIB == context_mib


def test_an_unknown_name_gets_the_near_ones() -> None:
    """A slip of one character should cost one look at the message."""
    with pytest.raises(UnknownDeviceError) as caught:
        find_device("RTX 3091")

    message = str(caught.value)
    assert message.startswith("there is no GPU named 'RTX 3091' in the catalogue; did you mean RTX 3090")
    assert message.endswith(
        "dnnmem gpus lists them all; a size such as 24GiB or a file such as card.toml will do as well"
    )


def test_a_name_like_no_other_gets_no_guess() -> None:
    """A wrong suggestion is worse than none."""
    with pytest.raises(
        UnknownDeviceError, match="no GPU named 'zzzzzzzz' in the catalogue; dnnmem gpus lists them"
    ):
        find_device("zzzzzzzz")


def test_an_empty_name_is_told_apart() -> None:
    """It comes from an unset shell variable, and no near match would help."""
    with pytest.raises(UsageError, match="no GPU was named; pass a name such as V100-16GB"):
        find_device("  ")


# Sizes.


def test_a_size_is_a_card_of_which_only_that_is_known() -> None:
    """The context is that of a large card, and what was assumed is said."""
    device = find_device("24GiB")

    assert device.total_bytes == 24 * GIB
    assert device.compute_capability == (8, 0)
    assert device.usable_bytes == 24 * GIB - device.context_bytes
    assert "compute capability 8.0 (assumed; write 24GiB:sm_90 for another)" in device.source


@pytest.mark.parametrize("text", ["24GiB:sm_90", "24G:sm90", "24 gib : SM_90"])
def test_a_size_can_name_its_capability(text: str) -> None:
    """Kernels, and so workspaces, depend on it."""
    device = find_device(text)

    assert device.total_bytes == 24 * GIB
    assert device.compute_capability == (9, 0)
    assert "assumed" not in device.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24GiB:sm_33", "sm_33 is not a compute capability known here; write one of sm_60, sm_61"),
        ("100MiB", "a card of 100.0 MiB has no room for a CUDA context, which takes 496.8 MiB"),
        ("0GiB", "a size must be at least one byte"),
    ],
)
def test_impossible_sizes_are_refused(text: str, message: str) -> None:
    """Each with what is wrong about it."""
    with pytest.raises(UsageError, match=message):
        find_device(text)


# Files.

CARD = """
name = "mine"
total = "20 GiB"
compute_capability = "8.6"
sms = 60
"""


def test_a_file_describes_a_card(tmp_path: Path) -> None:
    """Own cards need no release of this package."""
    path = tmp_path / "card.toml"
    path.write_text(CARD + 'context = "300 MiB"\ncontext_uncertainty = "10 MiB"\n')

    device = find_device(str(path))

    assert device.name == "mine"
    assert device.total_bytes == 20 * GIB
    assert device.context_bytes == 300 * MIB
    assert device.context_uncertainty_bytes == 10 * MIB
    assert device.threads_per_sm == 1536
    assert device.source == "total: as the file says; context: as the file says"


def test_a_file_may_use_the_form_of_the_catalogue(tmp_path: Path) -> None:
    """So that an entry can be copied from there; the context is then estimated."""
    path = tmp_path / "card.toml"
    path.write_text("[[gpu]]" + CARD)

    assert find_device(str(path)).context_bytes == 60 * (1536 * 1024 + 26 * MIB // 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "is not TOML: "),
        (CARD.replace("sms = 60", ""), "card.toml: card 'mine': sms: Field required"),
        (CARD.replace('"20 GiB"', "-5"), "card 'mine': total: a size is at least 0 bytes, got -5"),
        (CARD.replace('"20 GiB"', "0"), "card 'mine': total: Input should be greater than 0"),
        (CARD.replace('"20 GiB"', '"much"'), "card 'mine': total: 'much' is not a size"),
        (CARD.replace('"20 GiB"', "2.5"), "card 'mine': total: Input should be a valid integer"),
        (CARD.replace("60", "0"), "card 'mine': sms: Input should be greater than or equal to 1"),
        (CARD.replace('"8.6"', "8.6"), 'compute_capability: a compute capability is text such as "8.0", got 8.6'),
        (CARD + "colour = 1", "card 'mine': colour: Extra inputs are not permitted"),
        (CARD + 'context = "30 GiB"', "leaves nothing of 21474836480 bytes"),
        ("[[gpu]]" + CARD + "[[gpu]]" + CARD, "must describe one card"),
        ('gpu = "RTX 3090"', "must describe one card"),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    """The reader should know which line to change."""
    path = tmp_path / "card.toml"
    path.write_text(text)

    with pytest.raises(UsageError) as caught:
        find_device(str(path))

    assert message in str(caught.value)
    assert "card.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the reason that the system gives."""
    with pytest.raises(UsageError, match=r"the GPU file '.*absent\.toml' cannot be read: No such file"):
        find_device(str(tmp_path / "absent.toml"))


# Local cards.


class FakeNVMLError(Exception):
    """Stands for ``pynvml.NVMLError``."""


@dataclass
class _FakeNvml:
    """A machine with the cards given; the calls that ``dnnmem_tune.nvml`` makes, and no other."""

    cards: list[SimpleNamespace]
    starts: bool = True
    has_second_version: bool = True
    is_running: bool = False
    NVMLError: type[Exception] = FakeNVMLError
    NVML_DEVICE_MIG_ENABLE: int = 1
    nvmlMemory_v2: int = 2

    def nvmlInit(self) -> None:
        if not self.starts:
            raise FakeNVMLError("Driver Not Loaded")
        self.is_running = True

    def nvmlShutdown(self) -> None:
        self.is_running = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        if index >= len(self.cards):
            raise FakeNVMLError("Invalid Argument")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:
        for card in self.cards:
            for device in (card, *card.slices):
                if device.uuid == uuid:
                    return device
        raise FakeNVMLError("Not Found")

    def nvmlDeviceGetMigMode(self, card: SimpleNamespace) -> tuple[int, int]:
        if not card.can_divide:
            raise FakeNVMLError("Not Supported")
        return (1 if card.slices else 0, 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: SimpleNamespace, index: int) -> SimpleNamespace:
        if index >= len(card.slices):
            raise FakeNVMLError("Not Found")
        piece: SimpleNamespace = card.slices[index]
        return piece

    def nvmlDeviceIsMigDeviceHandle(self, device: SimpleNamespace) -> bool:
        return device.card is not None

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: SimpleNamespace) -> SimpleNamespace:
        card: SimpleNamespace = device.card
        return card

    def nvmlDeviceGetName(self, device: SimpleNamespace) -> str | bytes:
        name: str | bytes = device.name
        return name

    def nvmlDeviceGetCudaComputeCapability(self, device: SimpleNamespace) -> tuple[int, int]:
        assert device.card is None, "NVML answers this for whole cards only"
        capability: tuple[int, int] = device.capability
        return capability

    def nvmlDeviceGetMemoryInfo(self, device: SimpleNamespace, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=device.total, used=device.used)
        if not self.has_second_version:
            raise FakeNVMLError("Function Not Found")
        return SimpleNamespace(total=device.total, used=device.used, reserved=device.reserved)

    def nvmlDeviceGetAttributes(self, device: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=device.sms)

    def nvmlDeviceGetNumGpuCores(self, device: SimpleNamespace) -> int:
        cores: int = device.cores
        return cores


def card(name: str | bytes, capability: tuple[int, int], **changes: Any) -> SimpleNamespace:
    """Return a whole card of 24 GiB of which the driver keeps 300 MiB and others hold 1 GiB."""
    values: dict[str, Any] = {
        "uuid": "GPU-1", "total": 24 * GIB, "used": GIB, "reserved": 300 * MIB, "cores": 82 * 128, "sms": 82,
        "can_divide": False, "card": None, "slices": [],
    }  # fmt: skip
    return SimpleNamespace(name=name, capability=capability, **{**values, **changes})


def divided_card() -> SimpleNamespace:
    """Return an A100 with two instances."""
    whole = card("NVIDIA A100-SXM4-40GB", (8, 0), can_divide=True, total=40 * GIB, uuid="GPU-2", sms=108)
    for index, used in enumerate((0, 2 * GIB)):
        whole.slices.append(
            card(
                "NVIDIA A100-SXM4-40GB MIG 1g.5gb", (0, 0), card=whole, uuid=f"MIG-{index}",
                total=4864 * MIB, used=used, reserved=0, sms=14,
            )
        )  # fmt: skip
    return whole


def test_a_local_card_is_charged_with_what_others_hold() -> None:
    """CUDA's total leaves out what the driver keeps; other processes' memory is not there for the job."""
    nvml = _FakeNvml([card("NVIDIA GeForce RTX 3090", (8, 6))])

    device = find_device("local", nvml=nvml)  # type: ignore[arg-type]

    assert device.name == "NVIDIA GeForce RTX 3090"
    assert device.total_bytes == 24 * GIB - 300 * MIB
    assert device.occupied_bytes == GIB
    assert device.usable_bytes == device.total_bytes - GIB - find_device("RTX 3090").context_bytes
    assert device.num_sms == 82
    assert device.source == "total and occupied: NVML, this machine; context: as for RTX 3090 in the catalogue"
    assert not nvml.is_running


def test_an_old_driver_has_only_the_first_memory_call() -> None:
    """Its total is CUDA's already."""
    nvml = _FakeNvml([card("NVIDIA GeForce RTX 3090", (8, 6))], has_second_version=False)

    assert find_device("local:0", nvml=nvml).total_bytes == 24 * GIB  # type: ignore[arg-type]


def test_a_local_card_that_the_catalogue_does_not_know_is_described_by_its_driver() -> None:
    """Its multiprocessors follow from its cores; old releases of pynvml give the name as bytes."""
    nvml = _FakeNvml([card("T4", (7, 5)), card(b"Quadro Unheard-of", (7, 5), cores=40 * 64)])

    device = find_device("local:1", nvml=nvml)  # type: ignore[arg-type]

    assert device.name == "Quadro Unheard-of"
    assert device.num_sms == 40
    assert device.threads_per_sm == 1024
    assert device.source.endswith("context: estimated from the number of multiprocessors")


@pytest.mark.parametrize(
    ("text", "occupied_bytes"), [("local", 0), ("local:0:1", 2 * GIB), ("local:MIG-1", 2 * GIB)]
)
def test_a_divided_card_means_one_of_its_instances(text: str, occupied_bytes: int) -> None:
    """CUDA gives a process one instance; its memory and multiprocessors are the instance's."""
    nvml = _FakeNvml([divided_card()])

    device = find_device(text, nvml=nvml)  # type: ignore[arg-type]

    assert device.name == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert device.total_bytes == 4864 * MIB
    assert device.occupied_bytes == occupied_bytes
    assert device.compute_capability == (8, 0)
    assert device.num_sms == 14


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local:3", "local:3 cannot be used (Invalid Argument); this machine has 1 GPUs, counted from 0"),
        ("local:GPU-9", "local:GPU-9 cannot be used (Not Found); this machine has 1 GPUs, counted from 0"),
        (
            "local:first",
            "local:first is no local GPU; write local, local:1, local:0:2 for a MIG instance, or local:UUID",
        ),
    ],
)
def test_a_local_card_that_is_not_there_is_named(text: str, message: str) -> None:
    """And the driver is let go of."""
    nvml = _FakeNvml([card("T4", (7, 5))])

    with pytest.raises(UnknownDeviceError) as caught:
        find_device(text, nvml=nvml)  # type: ignore[arg-type]

    assert str(caught.value) == message
    assert not nvml.is_running


def test_a_machine_without_a_driver_is_told_apart() -> None:
    """This tool is for machines without a GPU, so this is the usual slip."""
    with pytest.raises(
        UnknownDeviceError, match=r"NVML does not start \(Driver Not Loaded\); name the card instead"
    ):
        find_device("local", nvml=_FakeNvml([], starts=False))  # type: ignore[arg-type]


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """``pynvml`` comes with another name on the index."""
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(MissingPackageError, match=r'run pip install "dnnmem-tune\[nvml\]", or name the card'):
        find_device("local")


# Imports.


def test_importing_the_configuration_does_not_import_pydantic() -> None:
    """It takes longer to import than everything else of the core together."""
    script = "import sys, dnnmem_tune.config; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_normalized_names_keep_what_tells_cards_apart() -> None:
    """``RTX 3060`` and its laptop version differ, and so do MIG slices with a dot."""
    assert normalize_name("RTX 3060") != normalize_name("RTX 3060 Laptop GPU")
    assert normalize_name("A100 1g.5gb") == "a1001g.5gb"
