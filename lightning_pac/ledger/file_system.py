"""File systems that cannot hold a write-ahead log."""

from pathlib import Path

__all__ = ["is_on_network"]

_NETWORK_TYPES = {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
_NETWORK_TYPES |= {f"fuse.{name}" for name in ("ceph", "glusterfs", "s3fs", "sshfs")}


def is_on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether Linux says that a file is on a network file system; False where the system does not tell.

    A write-ahead log needs memory that all its readers share, and some network file systems accept one without it.

    Args:
        path: An absolute path without symbolic links.
        mounts: The system's list of mounted file systems.
    """
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    # A later mount hides an earlier one on the same folder.
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        folder = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), fields[2]
    return kind in _NETWORK_TYPES
