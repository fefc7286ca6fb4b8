"""The machines that four papers measured on.

Everything here is *nominal*: what the paper prints, or else the maker's data sheet; nothing is
fitted (:meth:`Cluster.calibrated`).  Bandwidths are those of one direction, memory is in GiB, as
the chips hold it, and latencies, which no paper prints, are 0.
"""

from pipekit.choices import require_choice
from pipekit.clusters.cluster import Calibrated, Cluster, Device, Level
from pipekit.names import CLUSTERS

_GIB = 2**30
_GBPS = 1e9 / 8  # bytes/s
_PCIE_3_X16 = 16 * 8 * _GBPS * 128 / 130  # bytes/s: 16 lanes of 8 GT/s in a 128b/130b code

K80 = Device("K80 12GB", 12 * _GIB, {"float32": 4.37e12}, 240e9, "cuDNN")
"""One of the two GPUs of a Tesla K80 (data sheet of both: 8.74 TFLOPS boosted, 480 GB/s, 24 GB)."""

TITAN_X = Device("Titan X 12GB", 12 * _GIB, {"float32": 11e12}, 480e9, "cuDNN")
"""Pascal Titan X (data sheet); PipeDream section 5.1 prints its 12 GB."""

V100 = Device("V100 16GB", 16 * _GIB, {"float32": 15.7e12, "float16": 125e12}, 900e9, "cuDNN")
"""Tesla V100 SXM2 (data sheet), float16 on tensor cores; both PipeDream papers print its 16 GB."""

P40 = Device("P40 22GiB", 22 * _GIB, {"float32": 12e12}, 346e9, "cuDNN")
"""Tesla P40 (data sheet); torchgpipe section 4 prints the 22 GiB that can be used."""

P100 = Device("P100 16GB", 16 * _GIB, {"float32": 9.3e12, "float16": 18.7e12}, 732e9, "cuDNN")
"""Tesla P100 for PCIe (data sheet), which has no NVLink."""

TPU_V2_CORE = Device("TPU-v2 core 8GB", 8 * _GIB, {"bfloat16": 22.5e12}, 300e9, "XLA")
"""One of the two cores of a TPU-v2 chip (Google Cloud TPU system architecture: 45 TFLOPS and
600 GB/s a chip); GPipe section 4 prints the 8 GB of an accelerator."""

NVLINK_COLLECTIVES = Calibrated(
    6 * 20e9,
    "6 links at 20 of 25 GB/s by NCCL's payload (S. Jeaugey, NVIDIA/nccl-tests, issue 149)",
)
"""Bus bandwidth of NCCL's collectives on a V100: a link's 25 GB/s are about 20 with a payload of
128 bytes, which is what kernels can send."""

_SERVER = 8  # workers of one of PipeDream-2BW's servers
_FIGURE1 = {"K80": K80, "Titan X": TITAN_X, "V100": V100}


def pipedream_a(workers: int = 16) -> Cluster:
    """Return PipeDream's Cluster-A: one Titan X a machine, 25 Gbps Ethernet (section 5.1)."""
    return _one_gpu_machines("Cluster-A", TITAN_X, workers, 25)


def pipedream_b(workers: int = 8) -> Cluster:
    """Return PipeDream's Cluster-B: AWS p3.2xlarge, one V100, 10 Gbps Ethernet (section 5.1)."""
    return _one_gpu_machines("Cluster-B", V100, workers, 10)


def pipedream_figure1(gpu: str, workers: int = 8) -> Cluster:
    """Return the machines of PipeDream's Figure 1 (section 2.1), with links of 10 Gbps.

    The text gives every GPU generation the same 10 Gbps, also the Titan X that has 25 Gbps in
    section 5.1; each of the ``workers`` is a machine with one ``gpu``: "K80", "Titan X" or "V100".
    """
    require_choice("gpu", gpu, _FIGURE1)
    return _one_gpu_machines(f"Figure 1, {gpu}", _FIGURE1[gpu], workers, 10)


def gpipe_tpu_v2(cores: int = 8) -> Cluster:
    """Return cores of GPipe's TPU-v2 board (section 4): 8 accelerators of 8 GB each.

    The paper says only "high-speed interconnections" (section 4.2).  496 Gbps is one inter-chip
    link in one direction (Jouppi et al., "A Domain-Specific Supercomputer for Training Deep Neural
    Networks", CACM 2020); the two cores of a chip are taken to be no closer than that.
    """
    return Cluster("TPU-v2 board", TPU_V2_CORE, (Level("interconnect", cores, 496 * _GBPS),))


def torchgpipe_p40(workers: int = 8) -> Cluster:
    """Return GPUs of torchgpipe's server (section 4): Tesla P40s of 22 GiB.

    The paper does not print the link; a P40 has a PCI Express 3.0 x16 connector and no other
    (data sheet), 15.75 GB/s.
    """
    return Cluster("P40 server", P40, (Level("PCIe", workers, _PCIE_3_X16),))


def two_bw_v100(servers: int = 8) -> Cluster:
    """Return PipeDream-2BW's AWS p3.16xlarge servers of 8 V100s each (section 5): 8 or 1 of them.

    The paper says "NVLink" and "bandwidth across servers is much lower", without numbers.  NVLink:
    six links of 25 GB/s a GPU (V100 data sheet), of which 20 each are left for what NCCL sends
    (:data:`NVLINK_COLLECTIVES`).  Network: 25 Gbps a server (AWS, P3 instances), for its 8 GPUs
    together; nobody published what collectives attain of it.
    """
    nvlink = Level("NVLink", 8, 6 * 25e9, NVLINK_COLLECTIVES)
    levels = nvlink, Level("network", servers, 25 * _GBPS)
    return Cluster(f"{servers} x p3.16xlarge", V100, levels)


def _one_gpu_machines(name: str, device: Device, workers: int, gbps: float) -> Cluster:
    """Return machines that sum as PipeDream does, by a distributed parameter server (section 4)."""
    network = Level("network", workers, gbps * _GBPS)
    return Cluster(name, device, (network,), "sharded parameter server")


def named(name: str, workers: int | None = None) -> Cluster:
    """Return the cluster of a ``name`` of :data:`pipekit.names.CLUSTERS`, say "pipedream-a".

    It has so many ``workers``, by default as many as the paper had, or this machine has; ValueError
    if it cannot.
    """
    make = CLUSTERS.load(name)
    cluster: Cluster = make() if workers is None else make(workers)
    return cluster


def two_bw_workers(workers: int = 8 * _SERVER) -> Cluster:
    """Return PipeDream-2BW's V100s, by their number; raises ValueError for part of a server."""
    if workers % _SERVER:
        whole = -(-workers // _SERVER) * _SERVER
        raise ValueError(
            f"2bw-v100 has servers of {_SERVER} workers: ask for {whole} workers in place of "
            f"{workers}"
        )
    return two_bw_v100(workers // _SERVER)
