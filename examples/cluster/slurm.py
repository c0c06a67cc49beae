"""Sweep on a Slurm cluster: dask-jobqueue submits the workers, and joma computes the cells on them.

python examples/cluster/slurm.py --script                       # print a batch script, submit nothing
python examples/cluster/slurm.py --workers 16 --out /shared/fig8

It needs ``pip install 'joma[dask]' dask-jobqueue``, and a folder that all machines see. Each worker computes
one cell at a time on one thread. A sweep that is broken off continues with the same call.
"""

import argparse

import joma


def main() -> None:
    """Start a cluster, sweep on it, and print the mean curves' ends."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--script", action="store_true", help="print a worker's batch script and end")
    words.add_argument("--workers", type=int, default=4)
    words.add_argument("--walltime", default="04:00:00")
    words.add_argument("--queue", default=None)
    words.add_argument("--out", default="runs/slurm-fig8")
    words.add_argument("--preset", default="quick")
    asked = words.parse_args()

    from dask_jobqueue import SLURMCluster

    cluster = SLURMCluster(cores=1, processes=1, memory="8GB", walltime=asked.walltime, queue=asked.queue)
    if asked.script:
        print(cluster.job_script())
        return
    cluster.scale(jobs=asked.workers)
    executor = cluster.scheduler_address.replace("tcp://", "dask://")
    found = joma.sweep("fig8", preset=asked.preset, executor=executor, out=asked.out)
    print(found.summary().groupby("metric").last().to_string())


if __name__ == "__main__":
    main()
