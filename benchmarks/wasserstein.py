"""Time of the exact W-infinity distances of a table the size of Adult: 30,162 rows, 1,000 slices, 20 ordered pairs.

python benchmarks/wasserstein.py
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from lightning_pac.mechanisms.sliced_wasserstein import slice_sensitivities
from lightning_pac.scenarios import AttributeScenario, SliceProfile

SIZES = {"White": 25_933, "Black": 2_817, "Asian-Pac-Islander": 895, "Amer-Indian-Eskimo": 286, "Other": 231}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    laws = {race: rng.normal(rng.normal(), 1.0, size=(size, arguments.dimension)) for race, size in SIZES.items()}
    scenario, profile = AttributeScenario(laws), SliceProfile.random(arguments.dimension, arguments.slices)
    for _ in range(arguments.repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        distances = slice_sensitivities(scenario, scenario.outputs(None), profile)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{sum(SIZES.values())} rows, {distances.shape}: {wall:.2f} s wall, {cpu:.2f} s of processor time")


if __name__ == "__main__":
    main()
