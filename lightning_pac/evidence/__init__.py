"""What a ledger proves, to be handed over and verified by others."""

from lightning_pac.evidence.folder import write_evidence
from lightning_pac.evidence.verification import EvidenceCheck, verify_evidence

__all__ = ["EvidenceCheck", "verify_evidence", "write_evidence"]
