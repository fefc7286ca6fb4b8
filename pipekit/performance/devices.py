"""Machines of today by their makers' data sheets: an accelerator, its node, the network.

Rates are dense (no structured sparsity), bandwidths of one direction a GPU; the network is 400 Gb/s
a GPU where a sheet has none.  Memory is what the driver reports: 183,359 MiB of a B200.
"""

from dataclasses import dataclass

from pipekit.choices import require_choice
from pipekit.clusters import P100, V100, Device
from pipekit.clusters.cluster import require_positive

GB, GIB, TERA = 1e9, 2**30, 1e12


@dataclass(frozen=True)
class Machine:
    """Equal accelerators in nodes; ValueError if a count or rate is not above zero."""

    device: Device  # FLOP/s are by "float32", "float16", "bfloat16", "float8", "float4"
    multiprocessors: int  # that run tiles of a product side by side (SMs, compute units)
    node_gpus: int  # that the fast links join (a node, or an NVLink domain of several nodes)
    node_bandwidth: float  # bytes/s of a GPU's fast links, one direction
    network_bandwidth: float  # bytes/s of a GPU's share of the network, one direction

    def __post_init__(self) -> None:
        for name in ("multiprocessors", "node_gpus", "node_bandwidth", "network_bandwidth"):
            require_positive(f"{self.device.name}'s {name}", getattr(self, name))

    @property
    def dtypes(self) -> list[str]:
        """What it has units for."""
        return [each for each in _WIDER if each in self.device.peak_flops]

    def peak(self, dtype: str) -> float:
        """Return FLOP/s of a dtype, or of the next wider one that the device has units for."""
        wider = _WIDER[_WIDER.index(dtype) :] if dtype in _WIDER else ()
        for each in wider:
            if each in self.device.peak_flops:
                return self.device.peak_flops[each]
        raise ValueError(f"{self.device.name} has no peak for {dtype}: add it to peak_flops")


_WIDER = ("float4", "float8", "bfloat16", "float16", "float32")


def described(
    peak_flops: float,
    memory_gb: float,
    memory_bandwidth: float,
    node_bandwidth: float,
    network_bandwidth: float,
) -> Machine:
    """Return a machine in five numbers: bfloat16 FLOP/s, GB of memory, and three bandwidths.

    It has 128 multiprocessors, and 8 GPUs a node; ``dataclasses.replace`` changes that.
    """
    peaks = dict.fromkeys(("bfloat16", "float16"), peak_flops)
    device = Device("own device", memory_gb * GB, peaks, memory_bandwidth)
    return Machine(device, 128, 8, node_bandwidth, network_bandwidth)


def machine(name: str) -> Machine:
    """Return a machine by its name, in any case; ValueError has the closest and the remedy."""
    start = f"{name} ".casefold()
    alike = [known for known in MACHINES if f"{known} ".casefold().startswith(start)]
    if len(alike) > 1:
        raise ValueError(f"there are several {name}: name one, {' or '.join(alike)}")
    name, *_ = (*alike, name)
    try:
        require_choice("device", name, MACHINES)
    except ValueError as error:
        raise ValueError(
            f"{error} (your own: devices.described(peak FLOP/s, memory in GB, and bytes/s of "
            f"memory, of the links in a node, of the network))"
        ) from None
    return MACHINES[name]


def _sheet(
    name: str,
    memory_gib: float,
    bandwidth: float,
    multiprocessors: int,
    node: tuple[int, float],
    network: float,
    **tera_flops: float,
) -> Machine:
    if "bfloat16" in tera_flops:
        tera_flops.setdefault("float16", tera_flops["bfloat16"])
    peaks = {dtype: flops * TERA for dtype, flops in tera_flops.items()}
    device = Device(name, memory_gib * GIB, peaks, bandwidth * TERA)
    return Machine(device, multiprocessors, node[0], node[1] * GB, network * GB)


_HOPPER = {"float32": 67, "bfloat16": 989, "float8": 1979}
_AMPERE = {"float32": 19.5, "bfloat16": 312}
_HGX = {"bfloat16": 2250, "float8": 4500}
_NVL72 = {"bfloat16": 2500, "float8": 5000}
_MI355X = {"float32": 157, "bfloat16": 2517, "float8": 5033}
_NVLINK_2, _NVLINK_3, _NVLINK_4 = (8, 150), (8, 300), (8, 450)
_NVLINK_5, _NVLINK_5_RACK = (8, 900), (72, 900)
_PCIE_3 = (8, 15.75)

MACHINES = {
    each.device.name: each
    for each in (
        Machine(P100, 56, 8, 15.75 * GB, 1.25 * GB),
        Machine(V100, 80, 8, 150 * GB, 1.25 * GB),
        _sheet("V100 32GB", 32, 0.9, 80, _NVLINK_2, 12.5, float32=15.7, float16=125),
        _sheet("A100 40GB", 40, 1.555, 108, _NVLINK_3, 25, **_AMPERE),
        _sheet("A100 80GB", 80, 2.039, 108, _NVLINK_3, 25, **_AMPERE),
        _sheet("H100", 79.6, 3.35, 132, _NVLINK_4, 50, **_HOPPER),
        _sheet("H200", 140.4, 4.8, 132, _NVLINK_4, 50, **_HOPPER),
        _sheet("GH200", 95.6, 4.0, 132, (4, 450), 25, **_HOPPER),
        _sheet("B200", 179.1, 8.0, 148, _NVLINK_5, 50, float4=9000, **_HGX),
        _sheet("B300", 268.6, 8.0, 148, _NVLINK_5, 100, float4=13500, **_HGX),
        _sheet("GB200", 185.0, 8.0, 148, _NVLINK_5_RACK, 50, float4=10000, **_NVL72),
        _sheet("GB300", 277.5, 8.0, 148, _NVLINK_5_RACK, 100, float4=15000, **_NVL72),
        _sheet("MI250X", 128, 3.277, 220, (8, 50), 25, float32=47.9, bfloat16=383),
        _sheet("MI300X", 192, 5.3, 304, (8, 448), 50, float32=163, bfloat16=1307, float8=2615),
        _sheet("MI325X", 256, 6.0, 304, (8, 448), 50, float32=163, bfloat16=1307, float8=2615),
        _sheet("MI355X", 288, 8.0, 256, (8, 538), 50, float4=10066, **_MI355X),
        _sheet("Gaudi2", 96, 2.46, 24, (8, 262), 37.5, bfloat16=432, float8=865),
        _sheet("TPU-v5p", 95.7, 2.765, 8, (8960, 300), 25, bfloat16=459),
        _sheet("TPU-trillium", 32, 1.64, 2, (256, 224), 12.5, bfloat16=918),
        _sheet("RTX 2080", 8, 0.448, 46, _PCIE_3, 1.25, float32=10.1, float16=40.3),
        _sheet("RTX 3090", 24, 0.936, 82, _PCIE_3, 1.25, float32=35.6, bfloat16=71),
        _sheet("Titan RTX", 24, 0.672, 72, _PCIE_3, 1.25, float32=16.3, float16=130),
    )
}
