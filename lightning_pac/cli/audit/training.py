"""`lightning-pac audit training` and `audit metrics`: what an audit found in a run."""

import argparse

from lightning_pac.cli.common import print_json, print_table

__all__ = ["show_training"]


def show_training(args: argparse.Namespace) -> int:
    """Print the tests of both instruments; exit code 1 where one of them is an alarm."""
    from dataclasses import asdict

    from lightning_pac.audits import UNSEEN, TrainingAudit
    from lightning_pac.ledger import PrivacyLedger

    with PrivacyLedger.read_only(args.ledger) as ledger:
        names = [account.name for account in ledger.accounts() if args.account in (None, account.name)]
        path = ledger.path
    found = [file for name in names if (file := TrainingAudit.path_beside(path, name)).is_file()]
    if not found:
        which = "none of its accounts" if args.account is None else f"account {args.account!r}"
        raise ValueError(
            f"{path} has no verdict beside it, of {which}: train a twin with CanaryAudit among the callbacks first."
        )
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} runs of {path} were audited ({', '.join(file.name for file in found)}): choose by --account."
        )
    verdict = TrainingAudit.load(found[0])
    if args.audit == "metrics":
        of_metrics = tuple(test for test in verdict.tests if test.name.startswith("noise of the metric"))
        if not of_metrics:
            raise ValueError(f"{found[0]} is of a run without private metrics: give its twin PrivateMetrics as well.")
        verdict = TrainingAudit(of_metrics, (), verdict.false_alarm_rate)
    alarms = {alarm.name for alarm in verdict.alarms}
    if args.json:
        print_json({**asdict(verdict), "alarms": sorted(alarms), "unseen": UNSEEN})
    else:
        rows = [
            [test.name, test.seen, f"{test.p_value:.2g}", "ALARM" if test.name in alarms else ""]
            for test in verdict.every_test
        ]
        print_table(
            f"Audit of {args.audit}", ["test", "seen", "p-value", ""], rows, f"{verdict.summary()} {UNSEEN} {_ESTIMATE}"
        )
    return int(bool(alarms))


_ESTIMATE = "Limits on epsilon are estimates: they can refute a promise, and prove none."
