"""`lightning-pac audit training`: what an audit found in a training run."""

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
    found = [file for name in names if (file := path.with_name(f"{path.stem}-{name}.audit.json")).is_file()]
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
    alarms = {alarm.name for alarm in verdict.alarms}
    if args.json:
        print_json({**asdict(verdict), "alarms": sorted(alarms), "unseen": UNSEEN})
    else:
        rows = [
            [test.name, test.seen, f"{test.p_value:.2g}", "ALARM" if test.name in alarms else ""]
            for test in verdict.every_test
        ]
        print_table(
            "Audit of a training", ["test", "seen", "p-value", ""], rows, f"{verdict.summary()} {UNSEEN} {_ESTIMATE}"
        )
    return int(bool(alarms))


_ESTIMATE = "Limits on epsilon are estimates: they can refute a promise, and prove none."
