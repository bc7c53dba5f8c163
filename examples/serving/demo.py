"""Train an ensemble, serve it, and ask it from several clients.

python examples/serving/demo.py --output runs/serving
"""

import argparse
import functools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from digits_members import NUM_POOL, digits, make_network
from torch.utils.data import DataLoader

from lightning_pac.cards import at_most
from lightning_pac.data import WithIndex
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets
from lightning_pac.serve import APIKeys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("runs/serving"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("secret.key", "responses.db", "keys.json"):
        if (args.output / name).exists():
            raise SystemExit(f"{args.output / name} is of an earlier run: give another --output, or remove the folder")

    pool, asked = digits()
    train(args, pool)
    keys = APIKeys(args.output / "keys.json")
    alice, bob = keys.add("alice"), keys.add("bob", budget=20 * 2**-32)

    process, url = start_server(args)
    try:
        with ThreadPoolExecutor(8) as clients:
            ask = functools.partial(post, url, alice)
            images, labels = asked[: args.questions]
            answers = list(clients.map(ask, images.tolist(), [f"digit {index}" for index in range(len(images))]))
        correct = sum(body["label"] == label for (_, body), label in zip(answers, labels.tolist(), strict=True))
        page = get(url, "/privacy", alice)
        print(f"private answers          {correct / len(images):.3f} correct of {len(images)}")
        print(f"spent                    {page['spent']:.3g} of {page['budget']:g} nats")
        print(f"membership inference     at most {at_most(page['membership_success_bound'])}")

        retry = post(url, alice, images[0].tolist(), "digit 0")
        print(f"a retry costs            {get(url, '/privacy', alice)['spent'] - page['spent']:g} nats")
        assert retry == answers[0]

        # Images of noise, on which the members disagree, until the share of this key is spent.
        noise = torch.rand(200, 64, generator=torch.Generator().manual_seed(1)).tolist()
        results = [post(url, bob, image, None) for image in noise]
        refused = [body["detail"] for status, body in results if status == 429]
        print(f"bob was answered         {len(results) - len(refused)} times, and then told:")
        print(f"  {refused[0]}")
    finally:
        process.terminate()  # answers what is under way first
        process.wait()


def train(args: argparse.Namespace, pool: Any) -> None:
    pl.seed_everything(0)  # public: it orders batches, and does not touch secrets or noise
    subsets = BalancedSubsets(num_records=NUM_POOL, num_subsets=args.members)
    ensemble = SubsetEnsemble(make_network, subsets, optimizer=functools.partial(torch.optim.Adam, lr=3e-3))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(ensemble, DataLoader(WithIndex(pool), batch_size=64, shuffle=True))
    trainer.save_checkpoint(args.output / "ensemble.ckpt", weights_only=False)


def start_server(args: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "--ensemble": args.output / "ensemble.ckpt",
        "--network": "digits_members.make_network",
        "--records": NUM_POOL,
        "--subsets": args.members,
        "--budget": 1e-4,
        "--keys": args.output / "keys.json",
        "--rate-limit": "10000/second",
        "--port": port,
    }
    words = [str(word) for option in options.items() for word in option]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_pac", "serve", str(args.output / "responses.db"), *words], env=environment
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(3000):
        try:
            urllib.request.urlopen(url + "/health").close()
            return process, url
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def post(url: str, key: str, image: list[float], name: str | None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    if name is not None:
        headers["Idempotency-Key"] = name
    request = urllib.request.Request(f"{url}/predict", json.dumps({"input": image}).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get(url: str, path: str, key: str) -> Any:
    with urllib.request.urlopen(
        urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"})
    ) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
