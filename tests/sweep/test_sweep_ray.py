"""The same sweep on a Ray cluster of several nodes, one of them killed in the middle."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sweeping import BALL, STAR, TINY_METRICS, results, started, sweep, timeless, tiny_folder

from fastcar_cli.errors import RequestError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fastcar[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_killed_node_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    model = tiny_folder(tmp_path / "model")
    ask = [BALL, STAR, "--seeds", "0-39", "--tau", "off,0.5,0,-inf", "--metrics", TINY_METRICS, "--model", model,
           "--repeats", "1"]  # fmt: skip
    folder, seen = tmp_path / "ray", []

    def kill() -> None:
        while not list(folder.glob("cells/[!.]*.json")):
            time.sleep(0.01)
        seen.append(len(list(folder.glob("cells/[!.]*.json"))))
        cluster.remove_node(nodes[0], allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    done = sweep(*ask, "--engine", "ray", "--address", cluster.address, "-o", folder)
    assert done.exit_code == 0, done.exception
    killer.join(30)
    assert seen and seen[0] < 320, "the node was killed after the sweep was over"
    assert sweep(*ask, "-o", tmp_path / "local").exit_code == 0
    assert len(results(folder)["cells"]) == 320
    assert timeless(folder) == timeless(tmp_path / "local")


def test_ray_here_prints_nothing_but_the_results(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    ask = [BALL, STAR, "--tau", "off,0", "--metrics", TINY_METRICS, "--model", model, "-o", tmp_path / "d"]
    process = started(*ask, "--engine", "ray", "--workers", "2", "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out) == results(tmp_path / "d") and len(results(tmp_path / "d")["cells"]) == 4


def test_errors_of_workers_and_clusters_are_reported(tmp_path: Path) -> None:
    for address in ("127.0.0.1:1", "auto"):
        done = sweep(BALL, "--tau", "1", "--engine", "ray", "--address", address, "-o", tmp_path / "d")
        assert isinstance(done.exception, RequestError) and "no cluster" in str(done.exception)
