"""Writes `customers.csv`, a made table that stands for yours."""

import csv
import random

random.seed(0)
with open("customers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["age", "income", "job", "left"])
    for _ in range(4000):
        age, job = random.randint(18, 80), random.choice(["clerk", "cook", "nurse", ""])
        income = round(random.lognormvariate(10, 0.5)) if random.random() < 0.9 else ""
        writer.writerow([age, income, job, "yes" if age + 20 * (job == "cook") + random.gauss(0, 10) > 60 else "no"])
