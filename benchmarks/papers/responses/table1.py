"""Table 1 of *PAC-Private Responses*: success bounds and numbers of responses, against the printed digits.

python benchmarks/papers/responses/table1.py --output runs/table1.json
"""

import argparse
import json
from pathlib import Path

from lightning_pac.accountants import membership_success_bound, responses_until

EXPONENTS = [4, 8, 12, 16, 20, 24, 28, 32]
PRINTED = {
    1: ["67.5", "54.4", "51.1", "50.3", "50.07", "50.02", "50.00", "50.00"],
    10: ["98.7", "63.9", "53.5", "50.9", "50.22", "50.05", "50.01", "50.00"],
    100: ["100", "91.0", "61.0", "52.8", "50.69", "50.17", "50.04", "50.01"],
    1_000: ["100", "100", "83.4", "58.7", "52.18", "50.55", "50.14", "50.03"],
    10_000: ["100", "100", "100", "76.9", "56.89", "51.73", "50.43", "50.11"],
    100_000: ["100", "100", "100", "100", "71.48", "55.45", "51.36", "50.34"],
    1_000_000: ["100", "100", "100", "100", "100", "67.09", "54.31", "51.08"],
}
PRINTED_RESPONSES = {
    1: ["1", "28", "454", "7K", "116K", "2M", "30M", "477M"],
    8: ["11", "176", "3K", "45K", "724K", "12M", "185M", "3B"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    rows = []
    for count, printed in PRINTED.items():
        bounds = [100 * membership_success_bound(count * 2.0**-exponent) for exponent in EXPONENTS]
        rows.append({"responses": count, "bounds": bounds, "agrees": list(map(same_digits, bounds, printed))})
    for epsilon, printed in PRINTED_RESPONSES.items():
        counts = [responses_until(epsilon, 2.0**-exponent) for exponent in EXPONENTS]
        agrees = [shortened(count) == text for count, text in zip(counts, printed, strict=True)]
        rows.append({"epsilon": epsilon, "responses": counts, "agrees": agrees})
    for row in rows:
        print(json.dumps(row))
    cells = [agreement for row in rows for agreement in row["agrees"]]
    print(f"{sum(cells)} of {len(cells)} cells agree in every printed digit")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(rows, indent=1))


def same_digits(value: float, printed: str) -> bool:
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" == printed


def shortened(count: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.0f}{letter}"
    return str(count)


if __name__ == "__main__":
    main()
