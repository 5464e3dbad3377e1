# SPDX-License-Identifier: Apache-2.0
"""Elastic training with torchrun, whose nodes come and go; it needs PyTorch.

    train.py meet PORT EPOCHS SNAPSHOT    the head: keeps the meeting place until the training is over
    train.py train EPOCHS SNAPSHOT        what torchrun starts, anew whenever a node comes or leaves

A line is fitted to points. After each epoch the process of rank 0 writes a snapshot to a file that all nodes can read;
whoever is started anew goes on from there.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

POINTS = 6720
"""Shared by up to eight processes without a remainder."""
LONGEST = timedelta(hours=8)
DONE = "training is over"
PATIENCE = timedelta(seconds=60)
"""Nobody tells a process that another will never come, as its node has left: so long it waits, and fails."""
PAUSE = float(os.environ.get("TRAIN_PAUSE", "0.5"))
"""Seconds that an epoch takes longer, so that there is something to see."""


def meet(port: int, epochs: int, snapshot: Path) -> None:
    """Keep the store by which torchrun's nodes find each other; print what came out."""
    store = dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)  # noqa: S104 - nodes are elsewhere
    store.wait([DONE], LONGEST)
    saved = torch.load(snapshot, weights_only=True)
    slope, offset = saved["model"]["weight"].item(), saved["model"]["bias"].item()
    print(f"{epochs} epochs on {saved['sizes']} processes: y = {slope:.3f} x + {offset:.3f}")


def train(epochs: int, snapshot: Path) -> None:
    """Train as one of the present processes, from the last snapshot on."""
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, size = dist.get_rank(), dist.get_world_size()
    model, first, sizes = torch.nn.Linear(1, 1), 0, []
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True)
        model.load_state_dict(saved["model"])
        first, sizes = saved["epoch"], saved["sizes"]
    sizes = [*sizes, size] if sizes[-1:] != [size] else sizes
    if rank == 0:
        print(f"from epoch {first} on, {size} processes", flush=True)
    x = torch.linspace(-1, 1, POINTS).reshape(-1, 1)[rank::size]
    y = 2 * x + 1
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.2)
    for epoch in range(first, epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(parallel(x), y).backward()
        optimizer.step()
        time.sleep(PAUSE)
        if rank == 0:
            beside = snapshot.with_suffix(".new")
            torch.save({"model": model.state_dict(), "epoch": epoch + 1, "sizes": sizes}, beside)
            beside.replace(snapshot)
    dist.barrier()
    if rank == 0:
        host, port = os.environ["TRAIN_MEETING_PLACE"].rsplit(":", 1)
        dist.TCPStore(host, int(port), is_master=False).set(DONE, "")
    dist.destroy_process_group()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "meet":
        meet(int(arguments[0]), int(arguments[1]), Path(arguments[2]))
    else:
        train(int(arguments[0]), Path(arguments[1]))
