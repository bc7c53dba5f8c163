"""The verdict of both instruments on one training run: what they tested, what they found, what they cannot see."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from lightning_pac._durable_files import replace_file
from lightning_pac._validation import validated
from lightning_pac.audits.canaries.canary_game import CanaryGame
from lightning_pac.audits.canaries.white_box import AuditTest, alarms
from lightning_pac.cards import Estimate

__all__ = ["UNSEEN", "TrainingAudit"]

UNSEEN = (
    "Neither the white-box tests nor the canary game see losses that mix the records of a batch, side channels, what "
    "happens before a record is read, and noise that can be foretold though its law is right."
)
"""The limits of both instruments, in one sentence."""


@validated
@dataclass(frozen=True)
class TrainingAudit:
    """The findings of an audit in one run.

    Attributes:
        tests: the white-box tests.
        games: the canary games.
        false_alarm_rate: probability of any alarm in a run that is as declared.
    """

    tests: tuple[AuditTest, ...]
    games: tuple[CanaryGame, ...]
    false_alarm_rate: float

    @property
    def every_test(self) -> tuple[AuditTest, ...]:
        """The tests of both instruments."""
        return (*self.tests, *(game.to_test() for game in self.games))

    @property
    def alarms(self) -> tuple[AuditTest, ...]:
        """Those that the run fails, each of which names what it found; false ones at the stated rate, all together."""
        return alarms(self.every_test, self.false_alarm_rate)

    def summary(self) -> str:
        """One sentence: what was found, and by which instrument."""
        if not self.alarms:
            coins = f" and the coins of {self.games[0].num_canaries:,} canaries" if self.games else ""
            return f"Nothing found by {len(self.tests)} white-box tests{coins}."
        games = {game.to_test().name for game in self.games}
        found = "; ".join(
            f"{alarm.name}{'' if alarm.name in games else ' (white-box test)'}: {alarm.seen}" for alarm in self.alarms
        )
        return f"The run is not what is accounted for, and its figures do not hold: {found}."

    def to_estimates(self) -> tuple[Estimate, ...]:
        """The entries of a privacy card: how many alarms there were, and the limits on epsilon."""
        count = Estimate(
            name="audit_alarms",
            value=float(len(self.alarms)),
            unit="",
            meaning=self.summary(),
            method=f"{len(self.every_test)} tests, all of which together raise a false alarm in at most "
            f"{self.false_alarm_rate:.2g} of runs",
        )
        return (count, *(game.to_estimate() for game in self.games))

    @staticmethod
    def path_beside(ledger: str | Path, account: str) -> Path:
        """The place of the verdict on a run.

        Args:
            ledger: the ledger of the run.
            account: its account there.
        """
        path = Path(ledger)
        return path.with_name(f"{path.stem}-{quote(account, safe=' ')}.audit.json")

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Args:
            path: the file, which is replaced.
        """
        content = {**asdict(self), "alarms": [alarm.name for alarm in self.alarms], "unseen": UNSEEN}
        replace_file(Path(path), json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> TrainingAudit:
        """Read back a verdict that `save` wrote.

        Args:
            path: the file.

        Raises:
            ValueError: if it is none that `save` wrote.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                tuple(AuditTest(**test) for test in content["tests"]),
                tuple(CanaryGame(**game) for game in content["games"]),
                float(content["false_alarm_rate"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path} is not a verdict of an audit ({str(error)[:60]}): run the audit again.") from None
