"""A real Dask cluster of two processes on this machine: prints its address, and ends when standard input does."""

from __future__ import annotations

import sys

import dask
from distributed import LocalCluster

if __name__ == "__main__":
    count, threads = int(sys.argv[1]), int(sys.argv[2])
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})  # else one that dies twice is not started again
    with LocalCluster(
        n_workers=count, threads_per_worker=threads, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
