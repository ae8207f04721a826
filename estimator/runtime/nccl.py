"""NCCL's communicators: what the processes of a group allocate on a GPU so that they can exchange.

Read in NCCL 2.30 with its defaults, which connect what is used when it is used first (`NCCL_RUNTIME_CONNECT`) and allocate by
whole pages of 2 MiB (`NCCL_CUMEM_ENABLE`). docs/techniques/nccl.md has the equations, and what others measured beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.units import KIB, MIB

PAGE = 2 * MIB
"""`CUDA_IPC_MIN` (transport/p2p.cc), and the granularity of cuMemCreate."""
PROTOCOLS = {"LL": 512 * KIB, "LL128": 4800 * KIB, "Simple": 4 * MIB}
"""Buffers of a connection (init.cc, `DEFAULT_*BUFFSIZE`)."""
LINK_GBPS = {7: 20.0, 8: 20.0, 9: 20.6, 10: 40.1}
"""GB/s that NCCL takes an NVLink for, by major compute capability (graph/topo.h)."""
SEARCHED_GBPS = {7: 40, 8: 40, 9: 60, 10: 90}
"""The first speed at which it looks for rings in a node (graph/search.cc)."""
COPIES = 4
"""Each ring that is found is doubled where it is fast (`ncclTopoDupChannels`), and all once more (graph/connect.cc)."""
PCIE_CHANNELS = 2
"""One ring, doubled."""
NETWORK_CHANNELS = 16
"""Between nodes of eight GPUs with a network card each: NCCL issue 1453, two nodes with H100."""
NVLS_CHANNELS = {9: 16, 10: 24}
"""transport/nvls.cc, in one node."""
NVLS_BUFFER = MIB
"""Eight steps of 128 KiB."""
PER_CHANNEL, PER_COMMUNICATOR = 3 * PAGE, 2 * PAGE
"""Small allocations: peers, pointers to them and the ring's ranks (channel.cc); the communicator and its ranks (init.cc)."""
SHARED_CHUNKS, NETWORK_CHUNK, NVLINK_CHUNK = 16, 128 * KIB, 512 * KIB
"""Chunks per channel of a buffer that all sends, or all receives, over the network share, and their size (net.cc, init.cc)."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group that exchanges: its ranks, how many of them are in one node, and by which collectives."""

    name: str
    ranks: int
    per_node: int
    operations: frozenset[str]


@dataclass(frozen=True, slots=True)
class Links:
    """How the GPUs of a node are connected: so many NVLinks each, 0 if by PCIe; and their compute capability."""

    nvlinks: int
    capability: tuple[int, int]

    @property
    def channels(self) -> int:
        """Channels of a collective in a node."""
        major = min(max(self.capability[0], 7), 10)
        rings = int(self.nvlinks * LINK_GBPS[major] // SEARCHED_GBPS[major])
        return max(PCIE_CHANNELS, rings * COPIES)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def connection_bytes() -> int:
    """A channel's buffers to one peer and from it: 12 MiB.

    The receiver holds all protocols' buffers and the sender a page, or, where A100s read from each other, the sender holds
    Simple's (transport/p2p.cc, `p2pSendSetup` and `p2pRecvSetup`); a header lies beside each.
    """
    return PAGE + _pages(sum(PROTOCOLS.values()) + 1)


def network_bytes() -> int:
    """A channel's buffers to a peer on another node and from it: LL's buffer is in the host's memory (transport/net.cc)."""
    return 2 * _pages(PROTOCOLS["LL128"] + PROTOCOLS["Simple"])


def small_bytes(channels: int) -> int:
    """What a communicator with so many channels allocates before anything is exchanged."""
    return PER_COMMUNICATOR + PER_CHANNEL * channels


def shared_bytes(channels: int, chunk: int) -> int:
    """The buffer that what is sent over the network shares, or what is received."""
    return channels * SHARED_CHUNKS * chunk


def communicator_bytes(group: Communicator, links: Links) -> tuple[int, int, int]:
    """What one rank allocates for a group: expected, at least, and at most.

    A ring for gathers and scatters; for sums a tree, too, which those of middling size take, or a multicast buffer, where there
    is one; for all-to-alls and pipelines connections of their own to each peer. At least: what is connected, nothing where GPUs
    without NVLink meet in the host's memory. At most: tree and multicast buffer in any case, and the buffer for sends that NCCL
    before 2.22 made at once.
    """
    channels = links.channels if group.per_node == group.ranks else min(NETWORK_CHANNELS, links.channels * group.per_node)
    channels = max(channels, PCIE_CHANNELS)
    each = connection_bytes() if group.per_node > 1 else network_bytes()
    collective = group.operations & {"all_gather", "reduce_scatter", "all_reduce"}
    ring = channels * each if collective else 0
    tree = ring if group.ranks > 2 else 0
    multicast = _multicast(group, links) if collective else 0
    direct = _direct(group, links, channels) if group.operations - collective else 0
    sums = "all_reduce" in group.operations
    small, needed = small_bytes(_power(channels)), ring + direct
    expected = small + needed + ((multicast or tree) if sums else 0)
    shared = shared_bytes(_power(channels), NVLINK_CHUNK if links.nvlinks and group.per_node == group.ranks else NETWORK_CHUNK)
    return expected, needed if links.nvlinks else 0, small + needed + tree + multicast + shared


def _multicast(group: Communicator, links: Links) -> int:
    """NVLS: two buffers per channel and rank of the node, where switches add (transport/nvls.cc, `ncclNvlsBufferSetup`)."""
    if group.per_node < 3 or not links.nvlinks or links.capability[0] < 9:
        return 0
    return 2 * NVLS_CHANNELS[min(links.capability[0], 10)] * group.per_node * NVLS_BUFFER


def _direct(group: Communicator, links: Links, channels: int) -> int:
    """Sending and receiving: to all ranks, or to the stages before and after."""
    peers = group.ranks - 1 if "all_to_all" in group.operations else min(2, group.ranks - 1)
    near = min(peers, group.per_node - 1)
    per_peer = min(_power(channels), _power(2 * links.nvlinks) if links.nvlinks else PCIE_CHANNELS)
    far = 2 * shared_bytes(_power(channels), NETWORK_CHUNK) if peers > near else 0
    return near * per_peer * connection_bytes() + far
